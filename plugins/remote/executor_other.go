//go:build !linux

package remote

import (
	"context"
	"fmt"
	"runtime"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Executor cannot be made on this system: workers need memfd and futex, which are Linux's. The ref backend runs in process everywhere.
type Executor struct{}

func unsupported() error {
	return fmt.Errorf("worker processes are not supported on %s; use backend \"ref\"", runtime.GOOS)
}

// New refuses.
func New(opt Options) (*Executor, error) { return nil, unsupported() }

// Load refuses.
func (*Executor) Load(context.Context, engine.ModelSpec) error { return unsupported() }

// Compile refuses.
func (*Executor) Compile(context.Context, *program.Program) (uint32, error) {
	return 0, unsupported()
}

// Submit refuses.
func (*Executor) Submit(*program.Step) error { return unsupported() }

// Wait refuses.
func (*Executor) Wait(context.Context) (*program.Result, error) { return nil, unsupported() }

// Recover refuses.
func (*Executor) Recover(context.Context) error { return unsupported() }

// Facts is empty.
func (*Executor) Facts() engine.Facts { return engine.Facts{} }

// Status is empty.
func (*Executor) Status() Status { return Status{} }

// Close does nothing.
func (*Executor) Close(context.Context) error { return nil }

var _ engine.Executor = (*Executor)(nil)
