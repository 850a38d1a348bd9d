//go:build !linux

package worker

import (
	"fmt"
	"os"
	"runtime"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Main refuses: workers need memfd and futex, which are Linux's.
func Main(func(name string) (backend.Backend, error)) {
	fmt.Fprintf(os.Stderr, "deepinfer worker: not supported on %s\n", runtime.GOOS)
	os.Exit(1)
}
