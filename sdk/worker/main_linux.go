package worker

import (
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
)

// ExitProtocol is the exit status after the engine broke the ring's rules.
const ExitProtocol = 3

// stderr is fd 2 itself: the plugin library replaces os.Stderr by a pipe.
var stderr = os.NewFile(2, "stderr")

// Main serves one engine until it says goodbye or disappears, and does not return. resolve turns the name chosen by the engine into a backend; it is called
// after the handshake, on the step thread, at most once.
func Main(resolve func(name string) (backend.Backend, error)) {
	if os.Getenv(wire.Handshake.MagicCookieKey) != wire.Handshake.MagicCookieValue {
		fmt.Fprintln(os.Stderr, "deepinfer worker: started by hand. The engine starts this program itself; see `deepinfer serve` and `deepinfer plugin list`.")
		os.Exit(2)
	}
	log := hclog.New(&hclog.LoggerOptions{Name: "worker", Level: hclog.Info, Output: stderr, JSONFormat: true})
	if err := confine(); err != nil {
		fail(log, err)
	}
	if err := takeStdin(); err != nil {
		fail(log, err)
	}
	life, err := inherit(wire.FDLifeline, "lifeline")
	if err != nil {
		fail(log, err)
	}
	s, err := newServer(os.Getenv(wire.EnvBackend), resolve, log)
	if err != nil {
		fail(log, err)
	}
	go lifeline(life, log)
	plugin.Serve(&plugin.ServeConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.PluginSets(s),
		Logger:           hclog.New(&hclog.LoggerOptions{Name: "plugin", Level: hclog.Warn, Output: stderr, JSONFormat: true}),
		GRPCServer: func(opts []grpc.ServerOption) *grpc.Server {
			return grpc.NewServer(append(opts, grpc.MaxRecvMsgSize(wire.MaxMessage), grpc.MaxSendMsgSize(wire.MaxMessage))...)
		},
	})
	s.shutdown()
	os.Exit(0)
}

func fail(log hclog.Logger, err error) {
	log.Error("cannot start", "error", err.Error())
	os.Exit(1)
}

// takeStdin puts /dev/null on fd 0: the plugin library hands the engine's terminal to its children.
func takeStdin() error {
	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(fd)
	if err := unix.Dup3(fd, 0, 0); err != nil {
		return fmt.Errorf("move /dev/null to fd 0: %w", err)
	}
	return nil
}

// quietStdout moves fd 1 onto fd 2. The plugin library reads the engine's end of fd 1 for the handshake only: what vendor code printed there later would be lost,
// or stop the start when printed early.
func quietStdout() error { return unix.Dup3(2, 1, 0) }

// lifeline ends the process when the engine is gone: nothing else does when it was killed.
func lifeline(f *os.File, log hclog.Logger) {
	var b [1]byte
	for {
		if n, err := f.Read(b[:]); n == 0 || err != nil {
			log.Info("lifeline closed, leaving")
			os.Exit(0)
		}
	}
}

// inherit takes a descriptor of the wire contract and keeps it from children.
func inherit(fd int, name string) (*os.File, error) {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
		return nil, fmt.Errorf("descriptor %d (%s) was not handed over: %w", fd, name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// build names this binary in Hello.
func build() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		v := b.Main.Version
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				v += " " + s.Value
			}
		}
		return b.Main.Path + " " + v + " " + b.GoVersion
	}
	return "unknown"
}

const beatPeriod = 100 * time.Millisecond
