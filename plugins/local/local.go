package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Options configure an executor.
type Options struct {
	Backend backend.Backend
	Index   int                 // device number of Backend.Devices
	Open    backend.OpenOptions // settings of the device
	Depth   int                 // steps in flight; 0 = 2, at most 8
	Limits  supervise.Limits    // pauses and quarantine of Recover
	Logger  *slog.Logger        // nil = none
}

// Executor is an in-process engine.Executor.
type Executor struct {
	opt Options
	log *slog.Logger

	work    chan item
	out     chan *outcome
	free    chan *outcome
	done    chan struct{} // closed when the device goroutine has ended
	waiting atomic.Int32  // steps submitted and not taken
	lost    atomic.Pointer[error]
	taken   *outcome // given out by the last Wait

	mu     sync.Mutex // control calls: Load, Compile, Recover, Close
	closed bool
	sup    *supervise.Supervisor

	// Owned by the device goroutine.
	spec   *engine.ModelSpec
	dev    backend.Device
	runner *backend.Runner
	progs  []*compiled
	info   atomic.Pointer[backend.Info]
}

type compiled struct {
	p     *program.Program
	exec  *backend.Executable
	vocab int
}

// item is work for the device goroutine: a step, or a job with nil step.
type item struct {
	step *program.Step
	job  func()
}

type outcome struct {
	res program.Result
	err error
}

// New checks the options and starts the device goroutine. Close ends it.
func New(opt Options) (*Executor, error) {
	if opt.Backend == nil {
		return nil, errors.New("local executor: no backend given")
	}
	if opt.Depth == 0 {
		opt.Depth = 2
	}
	if opt.Depth < 1 || opt.Depth > 8 {
		return nil, fmt.Errorf("local executor: depth %d, must be 1 to 8", opt.Depth)
	}
	e := &Executor{opt: opt, log: opt.Logger, work: make(chan item, opt.Depth+1), out: make(chan *outcome, opt.Depth+1), free: make(chan *outcome, opt.Depth+1),
		done: make(chan struct{}), sup: supervise.New(opt.Limits)}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	for range opt.Depth + 1 {
		e.free <- new(outcome)
	}
	go e.serve()
	return e, nil
}

// serve owns the device until work is closed.
func (e *Executor) serve() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	defer close(e.done)
	for it := range e.work {
		if it.step == nil {
			it.job()
			continue
		}
		o := <-e.free
		o.err = e.run(it.step, &o.res)
		e.out <- o
	}
}

// run executes a step. A device error marks the executor lost.
func (e *Executor) run(s *program.Step, res *program.Result) (err error) {
	fail := func(scope backend.Scope, err error) error {
		if scope >= backend.ScopeDevice {
			err = fmt.Errorf("%w: %w", engine.ErrLost, err)
			e.lose(err)
		}
		return &engine.StepError{Seq: s.Seq, Scope: scope, Err: err}
	}
	defer func() {
		if p := recover(); p != nil {
			e.log.Error("panic in a step", "step", s.Seq, "panic", p, "stack", string(debug.Stack()))
			err = fail(backend.ScopeDevice, fmt.Errorf("panic: %v", p))
		}
	}()
	if l := e.lost.Load(); l != nil {
		return &engine.StepError{Seq: s.Seq, Scope: backend.ScopeDevice, Err: *l}
	}
	if int64(s.Program) >= int64(len(e.progs)) {
		return fail(backend.ScopeProgram, fmt.Errorf("program %d is not compiled", s.Program))
	}
	c := e.progs[s.Program]
	if err := s.Validate(c.p, e.spec.Slots, e.spec.Granules, c.vocab); err != nil {
		return fail(backend.ScopeStep, err)
	}
	if err := c.exec.Run(s, res); err != nil {
		scope := backend.ScopeDevice
		var be *backend.Error
		if errors.As(err, &be) {
			scope = be.Scope
		}
		return fail(scope, err)
	}
	return nil
}

func (e *Executor) lose(err error) { e.lost.CompareAndSwap(nil, &err) }

// do runs f on the device goroutine. When ctx ends first, f still runs later; the caller must treat the executor as unknown.
func (e *Executor) do(ctx context.Context, f func() error) error {
	ran := make(chan error, 1)
	job := item{job: func() {
		defer func() {
			if p := recover(); p != nil {
				ran <- &backend.Error{Code: abi.Internal, Scope: backend.ScopeDevice, Op: "device call", Msg: fmt.Sprintf("panic: %v\n%s", p, debug.Stack())}
			}
		}()
		ran <- f()
	}}
	select {
	case e.work <- job:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-ran:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

var errClosed = errors.New("executor is closed")

// Load implements engine.Executor.
func (e *Executor) Load(ctx context.Context, spec engine.ModelSpec) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errClosed
	}
	if spec.Slots < 1 || spec.Granules < 1 || spec.SlotBytes < 0 || spec.Granule < 0 {
		return fmt.Errorf("load: %d slots of %d bytes, %d granules of %d bytes: counts must be positive", spec.Slots, spec.SlotBytes, spec.Granules, spec.Granule)
	}
	err := e.do(ctx, func() error {
		if e.spec != nil {
			return errors.New("load: a model is loaded already")
		}
		if err := e.open(ctx, &spec); err != nil {
			return err
		}
		e.spec = &spec
		return nil
	})
	if err == nil {
		if _, err = e.sup.Start(time.Now()); err == nil {
			err = e.sup.Ready()
		}
	}
	return err
}

// open takes the device and the pools. For the device goroutine.
func (e *Executor) open(ctx context.Context, spec *engine.ModelSpec) error {
	dev, err := e.opt.Backend.Open(ctx, e.opt.Index, e.opt.Open)
	if err != nil {
		return fmt.Errorf("open device %d of backend %s: %w", e.opt.Index, e.opt.Backend.Name(), err)
	}
	runner, err := backend.NewRunner(dev, backend.RunnerOptions{Weights: spec.Weights, SlotBytes: spec.SlotBytes, Slots: spec.Slots, Granule: spec.Granule, Granules: spec.Granules, Progress: spec.Progress})
	if err != nil {
		return errors.Join(err, dev.Close())
	}
	info := dev.Info()
	e.dev, e.runner = dev, runner
	e.info.Store(&info)
	return nil
}

// shut closes runner and device. For the device goroutine.
func (e *Executor) shut() error {
	var errs []error
	if e.runner != nil {
		errs = append(errs, e.runner.Close())
	}
	if e.dev != nil {
		errs = append(errs, e.dev.Close())
	}
	e.runner, e.dev = nil, nil
	return errors.Join(errs...)
}

// Compile implements engine.Executor.
func (e *Executor) Compile(ctx context.Context, p *program.Program) (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return 0, errClosed
	}
	var id uint32
	err := e.do(ctx, func() error {
		if e.runner == nil {
			return fmt.Errorf("compile %s: no model is loaded", p.Name)
		}
		exec, err := e.runner.Compile(p)
		if err != nil {
			return err
		}
		id = uint32(len(e.progs))
		e.progs = append(e.progs, &compiled{p: p, exec: exec, vocab: vocabulary(p)})
		return nil
	})
	return id, err
}

// vocabulary is the number of token ids that a program's embedding serves.
func vocabulary(p *program.Program) int {
	for i := range p.Ops {
		if o := &p.Ops[i]; o.Code == program.Embed {
			if b := o.Buf("w"); b >= 0 && p.Buffers[b].Weight != nil {
				return p.Buffers[b].Weight.N
			}
		}
	}
	return math.MaxInt32
}

// Submit implements engine.Executor.
func (e *Executor) Submit(s *program.Step) error {
	if l := e.lost.Load(); l != nil {
		return *l
	}
	if e.waiting.Add(1) > int32(e.opt.Depth) {
		e.waiting.Add(-1)
		return engine.ErrFull
	}
	select {
	case e.work <- item{step: s}:
		return nil
	case <-e.done:
		e.waiting.Add(-1)
		return errClosed
	}
}

// Wait implements engine.Executor. With nothing outstanding it waits for the next step.
func (e *Executor) Wait(ctx context.Context) (*program.Result, error) {
	if e.waiting.Load() == 0 {
		if l := e.lost.Load(); l != nil {
			return nil, *l
		}
	}
	var o *outcome
	select {
	case o = <-e.out:
	default:
		select {
		case o = <-e.out:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-e.done:
			return nil, errClosed
		}
	}
	if e.taken != nil {
		e.free <- e.taken
	}
	e.taken = o
	e.waiting.Add(-1)
	if o.err != nil {
		return nil, o.err
	}
	return &o.res, nil
}

// Recover implements engine.Executor: it closes the device and opens it again, with the same programs under the same ids. No Submit or Wait may run meanwhile.
func (e *Executor) Recover(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return errClosed
	}
	reason := "recovery was asked for"
	if l := e.lost.Load(); l != nil {
		reason = (*l).Error()
	}
	e.lose(fmt.Errorf("%w: %s", engine.ErrLost, reason))
	// The barrier: everything submitted before has gone through, failing as lost.
	if err := e.do(ctx, func() error { return nil }); err != nil {
		return fmt.Errorf("recover %s: the device does not come back from its last step: %w", e.opt.Backend.Name(), err)
	}
	for drained := false; !drained; {
		select {
		case o := <-e.out:
			e.free <- o
			e.waiting.Add(-1)
		default:
			drained = true
		}
	}
	if e.sup.Crash(time.Now(), reason) == supervise.Quarantined {
		_, err := e.sup.Start(time.Now())
		return fmt.Errorf("recover %s: %w", e.opt.Backend.Name(), err)
	}
	for {
		wait, err := e.sup.Start(time.Now())
		if err != nil {
			return fmt.Errorf("recover %s: %w", e.opt.Backend.Name(), err)
		}
		if wait > 0 {
			e.log.Warn("device lost, waiting before it is opened again", "backend", e.opt.Backend.Name(), "pause", wait.String(), "cause", reason)
			t := time.NewTimer(wait)
			select {
			case <-t.C:
				continue
			case <-ctx.Done():
				t.Stop()
				return ctx.Err()
			}
		}
		err = e.do(ctx, func() error { return e.reopen(ctx) })
		if err == nil {
			e.lost.Store(nil)
			return e.sup.Ready()
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		reason = err.Error()
		e.sup.Crash(time.Now(), reason)
	}
}

func (e *Executor) reopen(ctx context.Context) error {
	if err := e.shut(); err != nil {
		e.log.Warn("the lost device did not close cleanly", "backend", e.opt.Backend.Name(), "error", err)
	}
	if e.spec == nil {
		return errors.New("no model is loaded")
	}
	if err := e.open(ctx, e.spec); err != nil {
		return err
	}
	for _, c := range e.progs {
		exec, err := e.runner.Compile(c.p)
		if err != nil {
			return err
		}
		c.exec = exec
	}
	return nil
}

// Facts implements engine.Executor.
func (e *Executor) Facts() engine.Facts {
	f := engine.Facts{Backend: e.opt.Backend.Name(), Depth: e.opt.Depth}
	if i := e.info.Load(); i != nil {
		f.Device = *i
	}
	return f
}

// Close implements engine.Executor. A device stuck in a call is left behind with an error when ctx ends. No Submit or Wait may run meanwhile.
func (e *Executor) Close(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	// Results nobody took must not block the device goroutine; the pool has room for all of them once the one given out is back.
	if e.taken != nil {
		e.free <- e.taken
		e.taken = nil
	}
	err := e.do(ctx, e.shut)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("close %s: the device does not come back from its last call: %w", e.opt.Backend.Name(), ctx.Err())
	}
	e.closed = true
	e.sup.Stop()
	close(e.work)
	select {
	case <-e.done:
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
	return err
}

var _ engine.Executor = (*Executor)(nil)
