package dl

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// sigaction is the kernel's struct on amd64 and arm64.
type sigaction struct {
	handler  uintptr
	flags    uint64
	restorer uintptr
	mask     uint64
}

// handlers is a snapshot of all signal dispositions.
type handlers [65]sigaction

const sigsetBytes = 8

func snapshot() *handlers {
	h := new(handlers)
	for s := 1; s <= 64; s++ {
		// Signals that cannot be read keep the zero value on both sides of a comparison.
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), 0, uintptr(unsafe.Pointer(&h[s])), sigsetBytes, 0, 0)
	}
	return h
}

// restore writes back the handlers that differ now and returns the signals it did so for. Go's own handler, which os/signal may have installed in the
// meantime, counts as no change: it is the one that serves SIGURG.
func (h *handlers) restore() ([]string, error) {
	now := snapshot()
	own := h[unix.SIGURG].handler
	var changed []string
	for s := 1; s <= 64; s++ {
		if now[s] == h[s] || now[s].handler == own && own > 1 {
			continue
		}
		name := unix.SignalName(unix.Signal(s))
		if name == "" {
			name = fmt.Sprintf("signal %d", s)
		}
		if _, _, e := unix.RawSyscall6(unix.SYS_RT_SIGACTION, uintptr(s), uintptr(unsafe.Pointer(&h[s])), 0, sigsetBytes, 0, 0); e != 0 {
			return changed, fmt.Errorf("restore the handler of %s: %w", name, e)
		}
		changed = append(changed, name)
	}
	return changed, nil
}
