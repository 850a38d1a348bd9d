package worker

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/sdk/wire"
)

// confined carries what was applied over the exec: "name=state:detail;...".
const confined = "DEEPINFER_WORKER_CONFINED"

// confine restricts this process as the engine asked and starts the program anew, because the kernel binds threads made after the restriction and a Go program has several
// before main runs. One locked thread restricts itself and calls exec; everything after inherits. A layer that the kernel lacks is reported, not skipped in silence. It
// returns nil when there is nothing (more) to do.
func confine() error {
	want := os.Getenv(wire.EnvSandbox)
	if want == "" || os.Getenv(confined) != "" {
		return nil
	}
	runtime.LockOSThread() // kept: on success exec replaces the program
	var report []string
	note := func(name, state, detail string) {
		report = append(report, name+"="+state+":"+strings.NewReplacer(";", ",", "=", " ").Replace(detail))
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	note("no_new_privs", "applied", "")
	network := false
	writable := []string{"/dev"} // device nodes, /dev/shm, /dev/null
	for w := range strings.SplitSeq(want, string(os.PathListSeparator)) {
		switch {
		case w == wire.SandboxNetwork:
			network = true
		case strings.HasPrefix(w, "/"):
			writable = append(writable, w)
		}
	}
	detail, err := landlock(writable, network)
	switch {
	case err == nil:
		note("landlock", "applied", detail)
	case errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP):
		note("landlock", "unsupported", err.Error())
	default:
		return fmt.Errorf("landlock: %w", err)
	}
	env := append(os.Environ(), confined+"="+strings.Join(report, ";"))
	// By its path, so that process listings show the program's name; the link serves when the file was replaced meanwhile.
	if path, err := os.Readlink("/proc/self/exe"); err == nil {
		_ = unix.Exec(path, os.Args, env)
	}
	return fmt.Errorf("start anew after confinement: %w", unix.Exec("/proc/self/exe", os.Args, env))
}

// landlock lets this thread write only below the given paths (reading stays free: drivers load files from many places) and, without network, open no TCP connection. From ABI 6
// on, signals and abstract sockets of other processes are out of reach. It returns what was applied.
func landlock(writable []string, network bool) (string, error) {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	if errno != 0 {
		return "", errno
	}
	fs := uint64(unix.LANDLOCK_ACCESS_FS_WRITE_FILE | unix.LANDLOCK_ACCESS_FS_REMOVE_DIR | unix.LANDLOCK_ACCESS_FS_REMOVE_FILE | unix.LANDLOCK_ACCESS_FS_MAKE_CHAR | unix.LANDLOCK_ACCESS_FS_MAKE_DIR |
		unix.LANDLOCK_ACCESS_FS_MAKE_REG | unix.LANDLOCK_ACCESS_FS_MAKE_SOCK | unix.LANDLOCK_ACCESS_FS_MAKE_FIFO | unix.LANDLOCK_ACCESS_FS_MAKE_BLOCK | unix.LANDLOCK_ACCESS_FS_MAKE_SYM)
	if version >= 3 {
		fs |= unix.LANDLOCK_ACCESS_FS_TRUNCATE
	}
	attr := struct{ fs, net, scoped uint64 }{fs: fs}
	size := unsafe.Sizeof(attr.fs)
	applied := []string{"writing"}
	if version >= 4 {
		size += unsafe.Sizeof(attr.net)
		if !network {
			attr.net = unix.LANDLOCK_ACCESS_NET_BIND_TCP | unix.LANDLOCK_ACCESS_NET_CONNECT_TCP
			applied = append(applied, "tcp")
		}
	}
	if version >= 6 {
		size += unsafe.Sizeof(attr.scoped)
		attr.scoped = unix.LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET | unix.LANDLOCK_SCOPE_SIGNAL
		applied = append(applied, "signals", "abstract sockets")
	}
	rules, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, uintptr(unsafe.Pointer(&attr)), size, 0)
	if errno != 0 {
		return "", fmt.Errorf("create ruleset: %w", errno)
	}
	defer unix.Close(int(rules))
	for _, path := range writable {
		fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("open %s: %w", path, err)
		}
		rule := unix.LandlockPathBeneathAttr{Allowed_access: fs, Parent_fd: int32(fd)}
		_, _, errno := unix.Syscall6(unix.SYS_LANDLOCK_ADD_RULE, rules, 1, uintptr(unsafe.Pointer(&rule)), 0, 0, 0) // 1: path beneath
		unix.Close(fd)
		if errno != 0 {
			return "", fmt.Errorf("allow writing below %s: %w", path, errno)
		}
	}
	if _, _, errno := unix.Syscall(unix.SYS_LANDLOCK_RESTRICT_SELF, rules, 0, 0); errno != 0 {
		return "", fmt.Errorf("restrict: %w", errno)
	}
	return fmt.Sprintf("ABI %d: %s", version, strings.Join(applied, ", ")), nil
}

// confinement is what confine reported before the exec.
func confinement() map[string][2]string {
	out := map[string][2]string{}
	for p := range strings.SplitSeq(os.Getenv(confined), ";") {
		if name, rest, ok := strings.Cut(p, "="); ok {
			state, detail, _ := strings.Cut(rest, ":")
			out[name] = [2]string{state, detail}
		}
	}
	return out
}
