package parity

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/worker/dl"
)

// The cpu library is built once per test process, as `make` builds it, and loaded into this process: no worker stands between the test and the op.
var buildCPU = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "deepinfer-cpu-")
	if err != nil {
		return "", err
	}
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return "", err
	}
	cmd := exec.Command("make", "-C", filepath.Join(root, "backends", "cpu"), "OUT="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", &exec.Error{Name: string(out), Err: err}
	}
	return filepath.Join(dir, "cpu.so"), nil
})

func cpuDevice(name, config string, acc uint32) device {
	return device{name, func(t testing.TB) backend.Device {
		t.Helper()
		if _, err := exec.LookPath("g++"); err != nil {
			t.Skip("no g++: the cpu library cannot be built here")
		}
		path, err := buildCPU()
		if err != nil {
			t.Fatalf("build cpu.so: %v", err)
		}
		lib, err := dl.Open(path, dl.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := lib.Open(context.Background(), 0, backend.OpenOptions{Config: []byte(config)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}, acc}
}

func init() {
	cpuDevices = append(cpuDevices, cpuDevice("cpu-float64", `{"accumulate":"float64"}`, abi.F64), cpuDevice("cpu-float32", `{"accumulate":"float32"}`, abi.F32))
}

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := buildCPU(); err == nil && path != "" {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}
