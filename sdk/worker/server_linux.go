package worker

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// Noter is an optional face of a backend: facts about loading it that an operator should see (signal handlers that had to be put back, ops served by the SDK).
type Noter interface{ Notes() []string }

// maxPrograms bounds program ids.
const maxPrograms = 4096

// compiled is one program with what the step thread needs to judge a step.
type compiled struct {
	exec  *backend.Executable
	vocab int
}

// server implements the control service and owns the step thread.
type server struct {
	controlpb.UnimplementedControlServer

	name    string
	resolve func(string) (backend.Backend, error)
	log     hclog.Logger
	ring    *wire.WorkerRing
	link    *wire.FileLink
	weights weights

	jobs    chan func() // work for the step thread, handed over by onThread
	stopped chan struct{}
	stop    sync.Once

	mu       sync.Mutex // serialises control calls that change state
	greeted  bool
	draining atomic.Bool

	// Owned by the step thread.
	be          backend.Backend
	beErr       error
	dev         backend.Device
	runner      *backend.Runner
	slots       int
	granules    int
	progs       []*compiled
	result      program.Result
	progress    func(done, total int64)
	ended       bool
	memoryFree  atomic.Int64
	steps       atomic.Uint64
	failedSteps atomic.Uint64
	busyNS      atomic.Uint64
}

func newServer(name string, resolve func(string) (backend.Backend, error), log hclog.Logger) (*server, error) {
	rf, err := inherit(wire.FDRing, "step ring")
	if err != nil {
		return nil, err
	}
	defer rf.Close()
	lf, err := inherit(wire.FDLink, "file link")
	if err != nil {
		return nil, err
	}
	s := &server{name: name, resolve: resolve, log: log, jobs: make(chan func(), 1), stopped: make(chan struct{})}
	s.weights.tensors = map[string]backend.TensorInfo{}
	if s.ring, err = wire.OpenWorker(rf, wire.Policy{}); err != nil {
		return nil, err
	}
	if s.link, err = wire.OpenFileLink(lf); err != nil {
		return nil, err
	}
	go s.stepThread()
	go s.beat()
	return s, nil
}

// beat shows that the process runs at all; the step thread has a word of its own.
func (s *server) beat() {
	t := time.NewTicker(beatPeriod)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			s.ring.Beat()
		case <-s.stopped:
			return
		}
	}
}

// onThread runs f on the step thread, between steps, and returns when it has run. It gives up waiting when ctx ends; f still runs.
func (s *server) onThread(ctx context.Context, what string, f func() error) error {
	done := make(chan error, 1)
	job := func() {
		defer func() {
			if p := recover(); p != nil {
				done <- &backend.Error{Code: abi.Internal, Scope: backend.ScopeDevice, Op: what, Msg: fmt.Sprintf("panic: %v\n%s", p, debug.Stack())}
			}
		}()
		done <- f()
	}
	select {
	case s.jobs <- job:
	case <-s.stopped:
		return &backend.Error{Code: abi.Unavailable, Scope: backend.ScopeDevice, Op: what, Msg: "the device was closed"}
	case <-ctx.Done():
		return ctx.Err()
	}
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for {
		s.ring.Interrupt()
		select {
		case err := <-done:
			return err
		case <-s.stopped:
			select {
			case err := <-done:
				return err
			default:
				return &backend.Error{Code: abi.Unavailable, Scope: backend.ScopeDevice, Op: what, Msg: "the device was closed"}
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
			t.Reset(20 * time.Millisecond)
		}
	}
}

// stepThread owns the device: vendor contexts are tied to the thread that made them.
func (s *server) stepThread() {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	defer close(s.stopped)
	for !s.ended {
		step, err := s.ring.Next()
		switch {
		case err == nil:
			s.run(step)
		case errors.Is(err, wire.ErrInterrupted):
			s.drainJobs()
		default:
			s.log.Error("engine broke the step protocol, leaving", "error", err.Error())
			os.Exit(ExitProtocol)
		}
	}
}

func (s *server) drainJobs() {
	for {
		select {
		case job := <-s.jobs:
			job()
		default:
			return
		}
	}
}

// run executes one step and publishes its outcome.
func (s *server) run(step *program.Step) {
	began := time.Now()
	fail := s.execute(step)
	s.steps.Add(1)
	s.busyNS.Add(uint64(time.Since(began)))
	if fail != nil {
		s.failedSteps.Add(1)
	}
	if err := s.ring.Complete(&s.result, fail); err != nil {
		s.log.Error("cannot complete a step, leaving", "step", step.Seq, "error", err.Error())
		os.Exit(ExitProtocol)
	}
}

func (s *server) execute(step *program.Step) (fail *backend.Error) {
	defer func() {
		if p := recover(); p != nil {
			s.log.Error("panic in a step", "step", step.Seq, "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			fail = &backend.Error{Code: abi.Internal, Scope: backend.ScopeDevice, Op: "step", Msg: fmt.Sprintf("panic: %v", p)}
		}
	}()
	switch {
	case s.draining.Load():
		return &backend.Error{Code: abi.Unavailable, Scope: backend.ScopeStep, Op: "step", Msg: "the worker is draining"}
	case int64(step.Program) >= int64(len(s.progs)) || s.progs[step.Program] == nil:
		return &backend.Error{Code: abi.NotFound, Scope: backend.ScopeProgram, Op: "step", Msg: fmt.Sprintf("program %d is not compiled", step.Program)}
	}
	c := s.progs[step.Program]
	if err := step.Validate(c.exec.Program(), s.slots, s.granules, c.vocab); err != nil {
		return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "step", Msg: err.Error()}
	}
	if err := c.exec.Run(step, &s.result); err != nil {
		return wire.AsBackendError("step", backend.ScopeDevice, err)
	}
	return nil
}

// backend resolves the backend once. For the step thread.
func (s *server) backend() (backend.Backend, error) {
	if s.be == nil && s.beErr == nil {
		s.be, s.beErr = s.resolve(s.name)
		if s.beErr == nil && s.be == nil {
			s.beErr = fmt.Errorf("no backend named %q in this worker", s.name)
		}
		if s.beErr != nil {
			s.beErr = wire.AsBackendError("load backend "+s.name, backend.ScopeHost, s.beErr)
		}
	}
	return s.be, s.beErr
}

func (s *server) notes() []string {
	if n, ok := s.be.(Noter); ok {
		return n.Notes()
	}
	return nil
}

// status turns any error into one with scope.
func status(call string, scope backend.Scope, err error) error {
	if err == nil {
		return nil
	}
	return wire.ToStatus(wire.AsBackendError(call, scope, err))
}

func (s *server) refuse(call, msg string) error {
	return wire.ToStatus(&backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeHost, Op: call, Msg: msg})
}

// lock takes the control lock and checks that Hello came first.
func (s *server) lock(call string) (func(), error) {
	s.mu.Lock()
	if !s.greeted {
		s.mu.Unlock()
		return nil, s.refuse(call, "Hello must be the first call")
	}
	return s.mu.Unlock, nil
}

// pick takes the highest version both sides accept.
func pick(what string, r *controlpb.Range, low, high uint32) (uint32, error) {
	v := min(high, r.GetMax())
	if v < low || v < r.GetMin() {
		return 0, fmt.Errorf("%s: the engine accepts %d to %d, this worker %d to %d; install engine and worker of one release", what, r.GetMin(), r.GetMax(), low, high)
	}
	return v, nil
}

// Hello agrees on versions and takes fd 1 away from what is loaded later.
func (s *server) Hello(_ context.Context, r *controlpb.HelloRequest) (*controlpb.HelloReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	layout, err1 := pick("ring layout", r.RingLayout, wire.LayoutVersion, wire.LayoutVersion)
	ops, err2 := pick("op set", r.OpSet, abi.OpSet, abi.OpSet)
	var err3, err4 error
	if r.AbiMajor != abi.ABIMajor {
		err3 = fmt.Errorf("ABI major: the engine speaks %d, this worker %d", r.AbiMajor, abi.ABIMajor)
	}
	if r.Epoch != s.ring.Epoch() {
		err4 = fmt.Errorf("epoch: the engine says %d, the ring %d", r.Epoch, s.ring.Epoch())
	}
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, s.refuse("Hello", err.Error())
	}
	if !s.greeted {
		if err := quietStdout(); err != nil {
			return nil, status("Hello", backend.ScopeHost, fmt.Errorf("move fd 1 onto fd 2: %w", err))
		}
	}
	s.greeted = true
	return &controlpb.HelloReply{Build: build(), RingLayout: layout, OpSet: ops, AbiMajor: abi.ABIMajor, AbiMinor: abi.ABIMinor, Pid: int32(os.Getpid()), Layers: sandboxReport()}, nil
}

func device(i backend.Info) *controlpb.Device {
	return &controlpb.Device{Name: i.Name, MemoryBytes: i.MemoryBytes, MemoryFree: i.MemoryFree, Cores: int32(i.Cores), Features: i.Features,
		BatchInvariant: i.BatchInvariant, HostMemory: i.HostMemory, F64: i.F64, Missing: i.Missing}
}

// Fingerprint loads the backend and lists devices.
func (s *server) Fingerprint(ctx context.Context, _ *controlpb.FingerprintRequest) (*controlpb.FingerprintReply, error) {
	unlock, err := s.lock("Fingerprint")
	if err != nil {
		return nil, err
	}
	defer unlock()
	out := &controlpb.FingerprintReply{}
	err = s.onThread(ctx, "Fingerprint", func() error {
		be, err := s.backend()
		if err != nil {
			return err
		}
		list, err := be.Devices(ctx)
		if err != nil {
			return fmt.Errorf("list devices: %w", err)
		}
		out.Backend, out.Notes = be.Name(), s.notes()
		for _, d := range list {
			out.Devices = append(out.Devices, device(d))
		}
		return nil
	})
	if err != nil {
		return nil, status("Fingerprint", backend.ScopeHost, err)
	}
	return out, nil
}

// Open takes the device.
func (s *server) Open(ctx context.Context, r *controlpb.OpenRequest) (*controlpb.OpenReply, error) {
	unlock, err := s.lock("Open")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if r.Slots < 1 || r.Granules < 1 || r.SlotBytes < 0 || r.GranuleBytes < 0 || r.Slots > math.MaxInt32 || r.Granules > math.MaxInt32 || r.Index < 0 || r.Threads < 0 {
		return nil, s.refuse("Open", fmt.Sprintf("pools of %d slots x %d bytes and %d granules x %d bytes, device %d, %d threads: counts must be positive", r.Slots, r.SlotBytes, r.Granules, r.GranuleBytes, r.Index, r.Threads))
	}
	out := &controlpb.OpenReply{}
	err = s.onThread(ctx, "Open", func() error {
		be, err := s.backend()
		if err != nil {
			return err
		}
		if s.dev != nil {
			return &backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeHost, Op: "Open", Msg: "a device is open already; one worker serves one device"}
		}
		dev, err := be.Open(ctx, int(r.Index), backend.OpenOptions{Threads: int(r.Threads), Config: r.Config})
		if err != nil {
			return fmt.Errorf("open device %d of %s: %w", r.Index, be.Name(), err)
		}
		info := dev.Info()
		runner, err := backend.NewRunner(dev, backend.RunnerOptions{Weights: &s.weights, SlotBytes: r.SlotBytes, Slots: int(r.Slots), Granule: r.GranuleBytes, Granules: int(r.Granules),
			Progress: func(done, total int64) {
				if s.progress != nil {
					s.progress(done, total)
				}
			}})
		if err != nil {
			return errors.Join(err, dev.Close())
		}
		s.dev, s.runner, s.slots, s.granules = dev, runner, int(r.Slots), int(r.Granules)
		s.memoryFree.Store(dev.Info().MemoryFree)
		policy := wire.DefaultPolicy(0)
		policy.Spin = policy.Spin && r.Spin && !info.HostMemory
		s.ring.SetPolicy(policy)
		out.Device, out.Notes = device(info), s.notes()
		return nil
	})
	if err != nil {
		return nil, status("Open", backend.ScopeDevice, err)
	}
	return out, nil
}

const fileWait = 10 * time.Second

// MapFile maps a checkpoint file.
func (s *server) MapFile(_ context.Context, r *controlpb.MapFileRequest) (*controlpb.MapFileReply, error) {
	unlock, err := s.lock("MapFile")
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := s.link.Receive(r.Ticket, r.Name, fileWait)
	if err == nil {
		err = s.weights.mapFile(f, int(r.File), r.Size, r.Name)
	}
	if err != nil {
		return nil, status("MapFile", backend.ScopeHost, err)
	}
	return &controlpb.MapFileReply{}, nil
}

// MapArena maps a step arena.
func (s *server) MapArena(_ context.Context, r *controlpb.MapArenaRequest) (*controlpb.MapArenaReply, error) {
	unlock, err := s.lock("MapArena")
	if err != nil {
		return nil, err
	}
	defer unlock()
	f, err := s.link.Receive(r.Ticket, "arena", fileWait)
	if err == nil {
		defer f.Close()
		spec := wire.ArenaSpec{ID: r.Arena, RequestBytes: r.RequestBytes, PartBytes: r.PartBytes}
		if spec.Bytes() != r.Size {
			err = fmt.Errorf("arena %d: stated %d bytes, partitions of %d make %d", r.Arena, r.Size, r.PartBytes, spec.Bytes())
		} else {
			err = s.ring.AddArena(f, spec)
		}
	}
	if err != nil {
		return nil, status("MapArena", backend.ScopeHost, err)
	}
	return &controlpb.MapArenaReply{}, nil
}

// LoadWeights records tensor descriptors.
func (s *server) LoadWeights(_ context.Context, r *controlpb.LoadWeightsRequest) (*controlpb.LoadWeightsReply, error) {
	unlock, err := s.lock("LoadWeights")
	if err != nil {
		return nil, err
	}
	defer unlock()
	n, err := s.weights.describe(r.Tensors)
	if err != nil {
		return nil, status("LoadWeights", backend.ScopeHost, err)
	}
	return &controlpb.LoadWeightsReply{Known: int64(n)}, nil
}

// Compile binds a program under the given id and streams progress.
func (s *server) Compile(r *controlpb.CompileRequest, out controlpb.Control_CompileServer) error {
	unlock, err := s.lock("Compile")
	if err != nil {
		return err
	}
	defer unlock()
	if r.Id >= maxPrograms {
		return s.refuse("Compile", fmt.Sprintf("program id %d, at most %d", r.Id, maxPrograms-1))
	}
	p, err := program.Decode(r.Program)
	if err != nil {
		return status("Compile", backend.ScopeProgram, err)
	}
	var done, total atomic.Int64
	finished := make(chan error, 1)
	go func() {
		finished <- s.onThread(out.Context(), "Compile", func() error {
			if s.runner == nil {
				return &backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeHost, Op: "Compile", Msg: "no device is open"}
			}
			s.progress = func(d, t int64) { total.Store(t); done.Store(d) }
			defer func() { s.progress = nil }()
			exec, err := s.runner.Compile(p)
			if err != nil {
				return err
			}
			for len(s.progs) <= int(r.Id) {
				s.progs = append(s.progs, nil)
			}
			s.progs[r.Id] = &compiled{exec: exec, vocab: vocabulary(p)}
			s.memoryFree.Store(s.dev.Info().MemoryFree)
			return nil
		})
	}()
	t := time.NewTicker(beatPeriod)
	defer t.Stop()
	for sent := int64(0); ; {
		select {
		case err := <-finished:
			if err != nil {
				return status("Compile", backend.ScopeProgram, err)
			}
			return out.Send(&controlpb.CompileEvent{DoneBytes: done.Load(), TotalBytes: total.Load(), Done: true})
		case <-t.C:
			if d := done.Load(); d != sent {
				sent = d
				if err := out.Send(&controlpb.CompileEvent{DoneBytes: d, TotalBytes: total.Load()}); err != nil {
					<-finished
					return err
				}
			}
		}
	}
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

// Release forgets a program; its weights stay, other programs share them.
func (s *server) Release(ctx context.Context, r *controlpb.ReleaseRequest) (*controlpb.ReleaseReply, error) {
	unlock, err := s.lock("Release")
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = s.onThread(ctx, "Release", func() error {
		if int64(r.Id) >= int64(len(s.progs)) || s.progs[r.Id] == nil {
			return &backend.Error{Code: abi.NotFound, Scope: backend.ScopeStep, Op: "Release", Msg: fmt.Sprintf("program %d is not compiled", r.Id)}
		}
		s.progs[r.Id] = nil
		return nil
	})
	if err != nil {
		return nil, status("Release", backend.ScopeStep, err)
	}
	return &controlpb.ReleaseReply{}, nil
}

// Stats reports counters.
func (s *server) Stats(context.Context, *controlpb.StatsRequest) (*controlpb.StatsReply, error) {
	spin, parks := s.ring.Spent()
	return &controlpb.StatsReply{Steps: s.steps.Load(), Failed: s.failedSteps.Load(), BusyNs: s.busyNS.Load(), SpinNs: uint64(spin), Parks: uint64(parks), MemoryFree: s.memoryFree.Load()}, nil
}

// Ping answers while the process can serve calls at all.
func (s *server) Ping(context.Context, *controlpb.PingRequest) (*controlpb.PingReply, error) {
	return &controlpb.PingReply{Beat: uint64(s.ring.StepBeat())}, nil
}

// Drain waits for submitted steps, then refuses new ones.
func (s *server) Drain(ctx context.Context, _ *controlpb.DrainRequest) (*controlpb.DrainReply, error) {
	t := time.NewTicker(time.Millisecond)
	defer t.Stop()
	for !s.ring.Idle() {
		select {
		case <-t.C:
		case <-s.stopped:
			return &controlpb.DrainReply{}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.draining.Store(true)
	return &controlpb.DrainReply{}, nil
}

// Close ends the step thread and the device.
func (s *server) Close(ctx context.Context, _ *controlpb.CloseRequest) (*controlpb.CloseReply, error) {
	if err := s.close(ctx); err != nil {
		return nil, status("Close", backend.ScopeDevice, err)
	}
	return &controlpb.CloseReply{}, nil
}

func (s *server) close(ctx context.Context) error {
	var err error
	s.stop.Do(func() {
		err = s.onThread(ctx, "Close", func() error {
			s.ended = true
			var errs []error
			if s.runner != nil {
				errs = append(errs, s.runner.Close())
			}
			if s.dev != nil {
				errs = append(errs, s.dev.Close())
			}
			s.runner, s.dev, s.progs = nil, nil, nil
			return errors.Join(errs...)
		})
	})
	return err
}

// shutdown is the last resort of a goodbye without Close: give the device two seconds.
func (s *server) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := s.close(ctx); err != nil {
		s.log.Warn("device did not close", "error", err.Error())
	}
}
