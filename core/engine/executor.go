package engine

import (
	"context"
	"errors"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// ErrFull is returned by Submit when the executor already holds Facts.Depth steps. It is a scheduling fact, not a failure.
var ErrFull = errors.New("executor: all step slots in use")

// ErrLost reports that the executor's device state (KV pools, state slots) is gone: the worker died and was restarted. Requests in flight must be
// recomputed from their tokens. Steps submitted after Recover run on the new worker.
var ErrLost = errors.New("executor: device state lost")

// Facts describe an executor after Load.
type Facts struct {
	Backend string       // "ref", "cpu"
	Device  backend.Info // what it runs on
	Depth   int          // steps that may be in flight
	PID     int          // worker process, 0 = in process
}

// ModelSpec is what an executor needs to hold a model.
type ModelSpec struct {
	Weights   backend.WeightSource
	SlotBytes int64 // state pool: unit stride
	Slots     int
	Granule   int64 // KV pool: unit stride
	Granules  int
	Progress  func(done, total int64) // bytes of weights bound so far; may be nil, called from one goroutine
}

// Executor runs programs on one device: plugins/local in this process, plugins/remote in a worker process.
//
// Load, then Compile each program, then Submit and Wait. Submit and Wait may be called from different goroutines, each from one at a time; results come in
// the order of submission. Every call returns when its context ends; a dead worker shows as an error with ErrLost from Wait, never as a hang.
type Executor interface {
	// Load opens the device, allocates the pools and takes the weights.
	Load(ctx context.Context, spec ModelSpec) error
	// Compile binds a program and returns its id for Step.Program. Ids stay valid across Recover.
	Compile(ctx context.Context, p *program.Program) (uint32, error)
	// Submit enqueues a step and returns at once. The step belongs to the executor until its result was taken.
	Submit(step *program.Step) error
	// Wait returns the oldest outstanding result. The Result is valid until the next Wait. A failed step yields *StepError.
	Wait(ctx context.Context) (*program.Result, error)
	// Recover brings a lost executor back: restart, load, compile. It respects back-off and quarantine and says when it gives up.
	Recover(ctx context.Context) error
	Facts() Facts
	// Close ends the device and leaves no process, goroutine or mapping behind.
	Close(ctx context.Context) error
}

// StepError is a failed step.
type StepError struct {
	Seq   uint64
	Scope backend.Scope // what was spoiled; ScopeDevice and worse come with ErrLost
	Err   error
}

// Error formats the step number and cause.
func (e *StepError) Error() string { return "step " + itoa(e.Seq) + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *StepError) Unwrap() error { return e.Err }
