package launch

import (
	"slices"
	"testing"
)

// Of a crash report a reader keeps the signal and what led to it, not registers and stacks.
func TestWordsLeaveRegistersOut(t *testing.T) {
	w := &words{}
	report := "licence dongle not found\nSIGABRT: abort\nPC=0x7fabcd m=4 sigcode=18446744073709551610\nsignal arrived during cgo execution\n\ngoroutine 1 [syscall]:\nmain.main()\n"
	if _, err := w.Write([]byte(report)); err != nil {
		t.Fatal(err)
	}
	want := []string{"licence dongle not found", "SIGABRT: abort", "signal arrived during cgo execution"}
	if !slices.Equal(w.tail, want) {
		t.Errorf("kept %q, want %q", w.tail, want)
	}
}
