package worker

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// sandboxReport says per layer what holds for this process: applied, unsupported or off. It reads facts from the kernel instead of believing a flag.
func sandboxReport() []*controlpb.Layer {
	layer := func(name string, on bool, detail string) *controlpb.Layer {
		state := "off"
		if on {
			state = "applied"
		}
		return &controlpb.Layer{Name: name, State: state, Detail: detail}
	}
	var out []*controlpb.Layer
	out = append(out, layer("process_group", unix.Getpgrp() == os.Getpid(), fmt.Sprintf("pgid %d", unix.Getpgrp())))
	sig, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)
	out = append(out, layer("no_new_privs", err == nil && sig == 1, ""))
	var core unix.Rlimit
	err = unix.Getrlimit(unix.RLIMIT_CORE, &core)
	out = append(out, layer("rlimit_core", err == nil && core.Cur == 0, fmt.Sprint(core.Cur)))
	filter := ""
	if b, err := os.ReadFile("/proc/self/status"); err == nil {
		for line := range strings.SplitSeq(string(b), "\n") {
			if v, ok := strings.CutPrefix(line, "Seccomp:"); ok {
				filter = strings.TrimSpace(v)
			}
		}
	}
	out = append(out, layer("seccomp", filter == "2", "mode "+filter))
	land := &controlpb.Layer{Name: "landlock", State: "off"}
	if c, ok := confinement()["landlock"]; ok {
		land.State, land.Detail = c[0], c[1]
	}
	return append(out, land)
}
