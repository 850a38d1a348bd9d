// Package cputest builds the CPU backend for tests. Build returns the library; it is safe to call from several test processes at once, which then share
// one build.
package cputest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Build compiles what has changed and returns the path of cpu.so; its manifest lies beside it. Without make or a C++ compiler it skips the test.
func Build(t testing.TB) string {
	t.Helper()
	for _, tool := range []string{"make", compiler()} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("the CPU backend cannot be built: %s is not installed", tool)
		}
	}
	lib, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func compiler() string {
	if c := os.Getenv("CXX"); c != "" {
		return c
	}
	return "g++"
}

var built = sync.OnceValues(func() (string, error) {
	_, self, _, ok := runtime.Caller(0)
	if !ok {
		return "", fmt.Errorf("build the CPU backend: the source path is unknown")
	}
	dir := filepath.Dir(filepath.Dir(self))
	out := filepath.Join(dir, "build")
	if err := os.MkdirAll(out, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(out, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("build the CPU backend: lock %s: %w", lock.Name(), err)
	}
	cmd := exec.Command("make", "-C", dir, fmt.Sprintf("-j%d", runtime.NumCPU()), "CXX="+compiler(), "OUT="+out, "WORK="+out)
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the CPU backend: %w\n%s", err, text)
	}
	return filepath.Join(out, "cpu.so"), nil
})
