package remote

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/plugins/launch"
	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

const (
	waitSlice  = 20 * time.Millisecond // Wait looks at its context and at the worker's health this often
	callLimit  = 30 * time.Second      // for control calls that only exchange a few words
	termGrace  = 2 * time.Second       // SIGTERM to SIGKILL
	tableWidth = 8192                  // block table entries of a sequence that an arena always has room for: contexts of 2^20 tokens. Untouched pages cost nothing
	batchSize  = 4096                  // tensor descriptors in one call
	closeLimit = 5 * time.Second       // for the device to close when the caller set no limit
)

// Executor is an engine.Executor over a worker process.
type Executor struct {
	opt Options

	mu     sync.Mutex // control calls: Load, Compile, Recover, Close
	closed bool
	spec   *engine.ModelSpec
	lib    *launch.Library
	files  []*os.File // checkpoint files, held open over worker lives: a restarted worker maps the same bytes
	progs  []*program.Program
	coded  [][]byte
	epoch  uint32

	life atomic.Pointer[life]
	lost atomic.Pointer[error]

	supMu  sync.Mutex
	sup    *supervise.Supervisor
	status Status
	info   backend.Info
}

// life is one worker process.
type life struct {
	p       *launch.Process
	dead    atomic.Bool
	mu      sync.Mutex
	closed  bool // Wake must not touch the ring any more
	watched chan struct{}
	known   map[string]bool // tensors described
	arenas  uint32
	request uint64
	reply   uint64
}

// New checks the options. Nothing is started before Load.
func New(opt Options) (*Executor, error) {
	opt = opt.withDefaults()
	if err := opt.validate(); err != nil {
		return nil, err
	}
	return &Executor{opt: opt, sup: supervise.New(opt.Limits)}, nil
}

var errClosed = errors.New("executor is closed")

func (e *Executor) locked(f func()) {
	e.supMu.Lock()
	defer e.supMu.Unlock()
	f()
}

// lose marks the present life lost, once, and charges the crash.
func (e *Executor) lose(cause error) error {
	err := fmt.Errorf("%w: %w", engine.ErrLost, cause)
	if e.lost.CompareAndSwap(nil, &err) {
		e.locked(func() { e.sup.Crash(time.Now(), cause.Error()) })
		e.opt.Logger.Warn("worker lost", "backend", e.opt.Backend, "epoch", e.epochNow(), "cause", cause)
	}
	return *e.lost.Load()
}

func (e *Executor) epochNow() (n uint32) {
	e.locked(func() { n = e.status.Epoch })
	return n
}

// Load implements engine.Executor: it starts the worker, maps the checkpoint files there and opens the device. A worker that does not start is an error at once; restarts are for
// workers that have served.
func (e *Executor) Load(ctx context.Context, spec engine.ModelSpec) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return errClosed
	case e.spec != nil:
		return errors.New("load: a model is loaded already")
	case spec.Slots < 1 || spec.Granules < 1 || spec.SlotBytes < 0 || spec.Granule < 0:
		return fmt.Errorf("load: %d slots of %d bytes, %d granules of %d bytes: counts must be positive", spec.Slots, spec.SlotBytes, spec.Granules, spec.Granule)
	}
	err := e.prepare(&spec)
	if err == nil {
		var wait time.Duration
		for {
			e.locked(func() { wait, err = e.sup.Start(time.Now()) })
			if err != nil || wait <= 0 {
				break
			}
			if err = sleep(ctx, wait); err != nil {
				break
			}
		}
		if err == nil {
			e.spec = &spec
			if err = e.begin(ctx); err != nil {
				e.locked(func() { e.sup.Crash(time.Now(), err.Error()) })
			}
		}
	}
	if err != nil {
		e.spec = nil
		return errors.Join(fmt.Errorf("backend %s: %w", e.opt.Backend, err), e.drop())
	}
	e.locked(func() { err = e.sup.Ready() })
	return err
}

// prepare seals the library and opens the checkpoint files.
func (e *Executor) prepare(spec *engine.ModelSpec) error {
	if e.opt.Library != "" {
		lib, err := launch.SealLibrary(e.opt.Library, e.opt.PluginDir, e.opt.Pinned)
		if err != nil {
			return err
		}
		e.lib = lib
		e.locked(func() { e.status.SHA256 = lib.SHA256 })
	}
	if spec.Weights == nil {
		return nil
	}
	for _, w := range spec.Weights.Files() {
		f, err := openWeights(w)
		if err != nil {
			return err
		}
		e.files = append(e.files, f)
	}
	return nil
}

// openWeights opens a checkpoint file read-only, or copies embedded content into a sealed memfd.
func openWeights(w backend.WeightFile) (*os.File, error) {
	if w.Path != "" {
		f, err := os.Open(w.Path)
		if err != nil {
			return nil, fmt.Errorf("weight file: %w", err)
		}
		if st, err := f.Stat(); err != nil || st.Size() != int64(len(w.Data)) {
			f.Close()
			if err == nil {
				err = fmt.Errorf("has %d bytes now, had %d when it was checked", st.Size(), len(w.Data))
			}
			return nil, fmt.Errorf("weight file %s: %w", w.Path, err)
		}
		return f, nil
	}
	fd, err := unix.MemfdCreate("deepinfer-weights", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("weight file %s: memfd_create: %w", w.Name, err)
	}
	f := os.NewFile(uintptr(fd), w.Name)
	if _, err = f.Write(w.Data); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("weight file %s: copy %d bytes to a memfd: %w", w.Name, len(w.Data), err)
	}
	return f, nil
}

// drop closes library and checkpoint files.
func (e *Executor) drop() error {
	var errs []error
	if e.lib != nil {
		errs = append(errs, e.lib.Close())
		e.lib = nil
	}
	for _, f := range e.files {
		errs = append(errs, f.Close())
	}
	e.files = nil
	return errors.Join(errs...)
}

// begin starts a worker life and brings it to where the last one was. On error nothing of it is left.
func (e *Executor) begin(ctx context.Context) (err error) {
	e.epoch++
	policy := wire.Policy{}
	if e.opt.SpinCap >= 0 {
		policy = wire.DefaultPolicy(e.opt.SpinCap)
	}
	mayspin := policy.Spin
	p, err := launch.Start(ctx, launch.Spec{Worker: e.opt.Worker, Backend: e.opt.Backend, Library: e.lib, Env: e.opt.Env, Epoch: e.epoch, Policy: policy,
		Sandbox:      launch.Sandbox{Off: e.opt.NoSandbox, Network: e.opt.Network, Write: e.opt.WritePaths},
		StartTimeout: e.opt.StartTimeout, Logger: e.opt.Logger.With("backend", e.opt.Backend, "epoch", e.epoch)})
	if err != nil {
		return err
	}
	l := &life{p: p, watched: make(chan struct{}), known: map[string]bool{}}
	go l.watch()
	defer func() {
		if err != nil {
			err = errors.Join(err, l.end(context.Background(), false))
		}
	}()
	for i, f := range e.files {
		ticket, err := p.Link.Send(f)
		if err != nil {
			return l.explain("send weights", err)
		}
		err = l.call(ctx, callLimit, func(ctx context.Context) error {
			_, err := p.Control.MapFile(ctx, &controlpb.MapFileRequest{Ticket: ticket, File: int32(i), Size: int64(len(e.spec.Weights.Files()[i].Data)), Name: e.spec.Weights.Files()[i].Name})
			return err
		})
		if err != nil {
			return l.explain("MapFile", err)
		}
	}
	var reply *controlpb.OpenReply
	began := time.Now()
	err = l.call(ctx, e.opt.OpenTimeout, func(ctx context.Context) (err error) {
		reply, err = p.Control.Open(ctx, &controlpb.OpenRequest{Index: int32(e.opt.Index), Threads: int32(e.opt.Open.Threads), Config: e.opt.Open.Config, SlotBytes: e.spec.SlotBytes, Slots: int64(e.spec.Slots),
			GranuleBytes: e.spec.Granule, Granules: int64(e.spec.Granules), Spin: mayspin})
		return err
	})
	if err != nil {
		if ctx.Err() == nil && time.Since(began) >= e.opt.OpenTimeout {
			return fmt.Errorf("open: the library did not load and open device %d within %s; `deepinfer plugin probe` shows how far it comes", e.opt.Index, e.opt.OpenTimeout)
		}
		return l.explain("Open", err)
	}
	d := reply.Device
	info := backend.Info{Name: d.GetName(), MemoryBytes: d.GetMemoryBytes(), MemoryFree: d.GetMemoryFree(), Cores: int(d.GetCores()), Features: d.GetFeatures(),
		BatchInvariant: d.GetBatchInvariant(), HostMemory: d.GetHostMemory(), F64: d.GetF64(), Missing: d.GetMissing()}
	if info.HostMemory {
		p.Ring.NoSpin() // the device's threads need the CPUs that a spinning engine would take
	}
	for id := range e.progs {
		if err := e.compile(ctx, l, uint32(id)); err != nil {
			return err
		}
	}
	var layers []string
	for _, y := range p.Layers {
		layers = append(layers, y.Name+": "+y.State)
	}
	e.locked(func() {
		e.info = info
		e.status.PID, e.status.Epoch, e.status.Layers, e.status.Notes = p.PID, e.epoch, layers, reply.Notes
	})
	for _, n := range reply.Notes {
		e.opt.Logger.Debug("backend note", "backend", e.opt.Backend, "note", n)
	}
	e.life.Store(l)
	return nil
}

// watch notes the end of the process and wakes whoever waits.
func (l *life) watch() {
	defer close(l.watched)
	<-l.p.Exited()
	l.dead.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.p.Ring.Wake()
	}
}

// call runs a control call with a deadline.
func (l *life) call(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return f(ctx)
}

// explain prefers the end of the process over the broken connection it caused.
func (l *life) explain(call string, err error) error {
	var be *backend.Error
	err = wire.FromStatus(call, err)
	if errors.As(err, &be) {
		return be
	}
	select {
	case <-l.p.Exited():
	case <-time.After(100 * time.Millisecond):
	}
	if dead := l.p.Err(); dead != nil {
		return fmt.Errorf("%s: %w", call, dead)
	}
	return err
}

// end closes a life. polite: the device is closed first.
func (l *life) end(ctx context.Context, polite bool) error {
	var err error
	if polite && !l.dead.Load() {
		_, err = l.p.Control.Close(ctx, &controlpb.CloseRequest{})
		if err != nil {
			err = l.explain("Close", err)
		}
		if l.p.Err() != nil {
			err = nil // dead already: there is nothing left to close
		}
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	if !polite {
		l.p.Kill()
	}
	err = errors.Join(err, l.p.Stop(ctx))
	<-l.watched
	return err
}

// Compile implements engine.Executor.
func (e *Executor) Compile(ctx context.Context, p *program.Program) (uint32, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.life.Load()
	switch {
	case e.closed:
		return 0, errClosed
	case l == nil:
		return 0, fmt.Errorf("compile %s: no model is loaded", p.Name)
	case e.lost.Load() != nil:
		return 0, fmt.Errorf("compile %s: %w", p.Name, *e.lost.Load())
	}
	if err := p.Validate(); err != nil {
		return 0, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	coded, err := p.Encode()
	if err == nil && len(coded) > wire.MaxMessage-4096 {
		err = fmt.Errorf("encoded form has %d bytes, a message holds %d", len(coded), wire.MaxMessage)
	}
	if err != nil {
		return 0, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	id := uint32(len(e.progs))
	e.progs, e.coded = append(e.progs, p), append(e.coded, coded)
	if err := e.compile(ctx, l, id); err != nil {
		e.progs, e.coded = e.progs[:id], e.coded[:id]
		if l.p.Err() != nil {
			err = e.lose(err)
		}
		return 0, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	return id, nil
}

// compile brings one program to a life: tensor descriptors, room in the arena, the program itself.
func (e *Executor) compile(ctx context.Context, l *life, id uint32) error {
	p := e.progs[id]
	if err := e.describe(ctx, l, p); err != nil {
		return err
	}
	if err := e.grow(ctx, l, wire.RequestBytes(p, max(e.spec.Granules, tableWidth)), wire.ReplyBytes(p)); err != nil {
		return err
	}
	return l.call(ctx, e.opt.LoadTimeout, func(ctx context.Context) error {
		events, err := l.p.Control.Compile(ctx, &controlpb.CompileRequest{Id: id, Program: e.coded[id]})
		if err != nil {
			return l.explain("Compile", err)
		}
		for {
			ev, err := events.Recv()
			if err == io.EOF {
				return errors.New("worker call Compile: ended without an answer")
			}
			if err != nil {
				return l.explain("Compile", err)
			}
			if f := e.spec.Progress; f != nil && ev.TotalBytes > 0 {
				f(ev.DoneBytes, ev.TotalBytes)
			}
			if ev.Done {
				// The stream is read to its end, so that the call leaves nothing behind.
				if _, err := events.Recv(); err != io.EOF {
					return l.explain("Compile", err)
				}
				return nil
			}
		}
	})
}

// describe sends the tensors that a program names and the worker does not know yet. Names the checkpoint lacks are left out: the worker reports all of them at once.
func (e *Executor) describe(ctx context.Context, l *life, p *program.Program) error {
	if e.spec.Weights == nil {
		return nil
	}
	var list []*controlpb.Tensor
	add := func(name string) {
		if l.known[name] {
			return
		}
		l.known[name] = true
		if t, ok := e.spec.Weights.Tensor(name); ok {
			list = append(list, &controlpb.Tensor{Name: name, Dtype: t.DType, Shape: t.Shape, File: int32(t.File), Offset: t.Offset, Size: t.Size})
		}
	}
	for i := range p.Buffers {
		w := p.Buffers[i].Weight
		if w == nil {
			continue
		}
		for _, n := range w.Names {
			add(n)
			const suffix = "weight"
			if len(n) > len(suffix) && n[len(n)-len(suffix):] == suffix {
				add(n[:len(n)-len(suffix)] + "scale")
			}
		}
	}
	for len(list) > 0 {
		n := min(len(list), batchSize)
		err := l.call(ctx, callLimit, func(ctx context.Context) error {
			_, err := l.p.Control.LoadWeights(ctx, &controlpb.LoadWeightsRequest{Tensors: list[:n]})
			return err
		})
		if err != nil {
			return l.explain("LoadWeights", err)
		}
		list = list[n:]
	}
	return nil
}

// grow maps a larger arena when a program needs one. Steps in flight keep theirs.
func (e *Executor) grow(ctx context.Context, l *life, request, reply uint64) error {
	if request <= l.request && reply <= l.reply {
		return nil
	}
	request, reply = max(request, l.request), max(reply, l.reply)
	spec := wire.NewArenaSpec(l.arenas, request, reply)
	f, err := wire.NewMemory("deepinfer-arena", spec.Bytes())
	if err != nil {
		return fmt.Errorf("step arena of %d bytes: %w", spec.Bytes(), err)
	}
	defer f.Close()
	ticket, err := l.p.Link.Send(f)
	if err != nil {
		return l.explain("send arena", err)
	}
	err = l.call(ctx, callLimit, func(ctx context.Context) error {
		_, err := l.p.Control.MapArena(ctx, &controlpb.MapArenaRequest{Ticket: ticket, Arena: spec.ID, Size: spec.Bytes(), PartBytes: spec.PartBytes, RequestBytes: spec.RequestBytes})
		return err
	})
	if err != nil {
		return l.explain("MapArena", err)
	}
	if err := l.p.Ring.AddArena(f, spec); err != nil {
		return err
	}
	l.arenas++
	l.request, l.reply = request, reply
	return nil
}

// Submit implements engine.Executor. The step is copied; it may be reused as soon as Submit returns, though callers do not rely on that.
func (e *Executor) Submit(s *program.Step) error {
	if lost := e.lost.Load(); lost != nil {
		return *lost
	}
	l := e.life.Load()
	if l == nil {
		return errors.New("submit: no model is loaded")
	}
	if l.p.Ring.Outstanding() >= e.opt.Depth {
		return engine.ErrFull
	}
	err := l.p.Ring.Submit(s, e.opt.Deadline)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, wire.ErrFull):
		return engine.ErrFull
	}
	return &engine.StepError{Seq: s.Seq, Scope: backend.ScopeStep, Err: err}
}

// Wait implements engine.Executor. With nothing outstanding it waits for the next step.
func (e *Executor) Wait(ctx context.Context) (*program.Result, error) {
	l := e.life.Load()
	if l == nil {
		return nil, errors.New("wait: no model is loaded")
	}
	ring := l.p.Ring
	for {
		if lost := e.lost.Load(); lost != nil {
			return nil, *lost
		}
		if ring.Await(waitSlice) {
			return e.take(l)
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if l.dead.Load() {
			if ring.Ready() { // finished before it died: the tokens are good
				return e.take(l)
			}
			return nil, e.lostStep(l, l.p.Err())
		}
		step, start, deadline, ok := ring.Oldest()
		if !ok {
			continue
		}
		now := time.Now()
		limit := time.Duration(0)
		if !deadline.IsZero() {
			limit = e.opt.Deadline
		}
		_, beat := ring.Beats()
		var v supervise.Verdict
		var why string
		var before supervise.State
		e.locked(func() {
			before = e.sup.State()
			v, why = e.sup.Watch(now, now.Sub(start), ring.Expected(), limit, uint64(beat))
		})
		switch {
		case v == supervise.Late && before != supervise.Suspect:
			e.opt.Logger.Warn("step is late, watching the worker's heartbeat", "backend", e.opt.Backend, "step", step, "elapsed", now.Sub(start).String())
		case v == supervise.Kill:
			go l.p.Terminate(termGrace)
			return nil, e.lostStep(l, errors.New(why))
		}
	}
}

// take takes a completion and sorts its error.
func (e *Executor) take(l *life) (*program.Result, error) {
	seq, _, _, _ := l.p.Ring.Oldest()
	res, fail, err := l.p.Ring.Take()
	if err != nil {
		l.p.Kill()
		return nil, &engine.StepError{Seq: seq, Scope: backend.ScopeDevice, Err: e.lose(err)}
	}
	if fail != nil {
		if fail.Scope >= backend.ScopeDevice {
			return nil, &engine.StepError{Seq: seq, Scope: fail.Scope, Err: e.lose(fail)}
		}
		return nil, &engine.StepError{Seq: seq, Scope: fail.Scope, Err: fail}
	}
	e.supMu.Lock()
	e.sup.Done()
	e.supMu.Unlock()
	return res, nil
}

// lostStep loses the executor and names the step that was under way, if any.
func (e *Executor) lostStep(l *life, cause error) error {
	seq, _, _, ok := l.p.Ring.Oldest()
	err := e.lose(cause)
	if !ok {
		return err
	}
	return &engine.StepError{Seq: seq, Scope: backend.ScopeDevice, Err: err}
}

// Recover implements engine.Executor: the old process is ended, and after the supervisor's pause a new one is brought to the same state. It tries until it succeeds, ctx ends or the
// worker is quarantined. No Submit or Wait may run meanwhile.
func (e *Executor) Recover(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return errClosed
	case e.spec == nil:
		return errors.New("recover: no model is loaded")
	}
	e.lose(errors.New("recovery was asked for"))
	if l := e.life.Swap(nil); l != nil {
		if err := l.end(ctx, false); err != nil {
			e.opt.Logger.Warn("old worker did not end cleanly", "backend", e.opt.Backend, "error", err)
		}
	}
	for {
		var wait time.Duration
		var err error
		e.locked(func() { wait, err = e.sup.Start(time.Now()) })
		if err != nil {
			return fmt.Errorf("recover backend %s: %w", e.opt.Backend, err)
		}
		if wait > 0 {
			if err := sleep(ctx, wait); err != nil {
				return fmt.Errorf("recover backend %s: %w", e.opt.Backend, err)
			}
			continue
		}
		err = e.begin(ctx)
		if err == nil {
			e.locked(func() { err = e.sup.Ready() })
			e.lost.Store(nil)
			return err
		}
		e.locked(func() { e.sup.Crash(time.Now(), err.Error()) })
		e.opt.Logger.Warn("worker did not restart", "backend", e.opt.Backend, "error", err)
		if ctx.Err() != nil {
			return fmt.Errorf("recover backend %s: %w", e.opt.Backend, errors.Join(ctx.Err(), err))
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Facts implements engine.Executor.
func (e *Executor) Facts() engine.Facts {
	f := engine.Facts{Backend: e.opt.Backend, Depth: e.opt.Depth}
	e.locked(func() { f.Device, f.PID = e.info, e.status.PID })
	return f
}

// Status returns a snapshot of the link.
func (e *Executor) Status() Status {
	var s Status
	e.locked(func() {
		s = e.status
		s.State = e.sup.State()
		s.Device, s.Reason = e.sup.Device()
	})
	if l := e.life.Load(); l != nil {
		s.SpinTime, s.Parks = l.p.Ring.Spent()
	}
	return s
}

// Close implements engine.Executor: the device is closed, the worker ends, and nothing is left. Without a deadline in ctx the device has five seconds. No Submit or Wait may run meanwhile.
func (e *Executor) Close(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil
	}
	e.closed = true
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeLimit)
		defer cancel()
	}
	var err error
	if l := e.life.Swap(nil); l != nil {
		err = l.end(ctx, e.lost.Load() == nil)
	}
	e.locked(func() { e.sup.Stop(); e.status.PID = 0 })
	closed := errClosed
	e.lost.Store(&closed)
	return errors.Join(err, e.drop())
}

var _ engine.Executor = (*Executor)(nil)
