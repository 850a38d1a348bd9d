package ref_test

import (
	"context"
	"testing"

	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/conformance"
)

func open(t testing.TB, threads int, config string) backend.Device {
	t.Helper()
	d, err := ref.New().Open(context.Background(), 0, backend.OpenOptions{Threads: threads, Config: []byte(config)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestConformance(t *testing.T) {
	conformance.Run(t, open(t, 3, ""), conformance.Options{})
}

func TestConformanceFloat64(t *testing.T) {
	conformance.Run(t, open(t, 2, `{"accumulate":"float64"}`), conformance.Options{Acc: abi.F64})
}
