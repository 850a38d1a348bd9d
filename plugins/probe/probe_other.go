//go:build !linux

package probe

import (
	"context"
	"runtime"

	"github.com/deepinfer-go/deepinfer/plugins/catalog"
)

// Run reports that there are no worker processes on this system.
func Run(_ context.Context, entry catalog.Entry, _ Options) Report {
	return Report{Backend: entry.Name, Path: entry.LibPath, Result: Refused, Reason: "worker processes are not supported on " + runtime.GOOS}
}
