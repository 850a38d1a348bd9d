package local

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/backends/fault"
	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/plugins/internal/tiny"
	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

var quick = supervise.Limits{BackoffMin: time.Millisecond, BackoffMax: time.Millisecond}

func faulty(t *testing.T, rules string) backend.Backend {
	t.Helper()
	b, err := fault.New(ref.New(), fault.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, b backend.Backend) (*Executor, uint32) {
	t.Helper()
	before := runtime.NumGoroutine()
	e, err := New(Options{Backend: b, Limits: quick})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
		for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines before, %d after Close", before, n)
		}
	})
	ctx := context.Background()
	if err := e.Load(ctx, tiny.Spec(tiny.Embedded())); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Compile(ctx, tiny.Program(2)); err != nil {
		t.Fatal(err)
	}
	id, err := e.Compile(ctx, tiny.Program(8))
	if err != nil || id != 1 {
		t.Fatal(id, err)
	}
	return e, id
}

func run(t *testing.T, e *Executor, s *program.Step) {
	t.Helper()
	if err := e.Submit(s); err != nil {
		t.Fatal(err)
	}
	r, err := e.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := tiny.Check(s, r); err != nil {
		t.Fatal(err)
	}
}

func TestStepsInOrder(t *testing.T) {
	e, id := open(t, ref.New())
	if f := e.Facts(); f.Backend != "ref" || f.Depth != 2 || f.PID != 0 || f.Device.Name == "" {
		t.Errorf("%+v", f)
	}
	var held []*program.Step
	sent := uint64(0)
	for range 50 {
		for {
			s := tiny.Step(sent, id, int32(sent), int32(sent%tiny.Vocab), 7)
			err := e.Submit(s)
			if errors.Is(err, engine.ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			held, sent = append(held, s), sent+1
		}
		if len(held) != 2 {
			t.Fatalf("%d steps in flight at depth 2", len(held))
		}
		r, err := e.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := tiny.Check(held[0], r); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
}

func TestBadStepSpoilsOnlyItself(t *testing.T) {
	e, id := open(t, ref.New())
	bad := tiny.Step(1, id, 0, tiny.Vocab+5)
	for _, s := range []*program.Step{bad, tiny.Step(2, 99, 0, 1)} {
		if err := e.Submit(s); err != nil {
			t.Fatal(err)
		}
		_, err := e.Wait(context.Background())
		var se *engine.StepError
		if !errors.As(err, &se) || se.Seq != s.Seq || se.Scope >= backend.ScopeDevice || errors.Is(err, engine.ErrLost) {
			t.Fatalf("%v", err)
		}
	}
	run(t, e, tiny.Step(3, id, 0, 1))
}

func TestDeviceErrorIsLostAndRecovers(t *testing.T) {
	e, id := open(t, faulty(t, `op=head step=1 times=1 -> error device "sticky"`))
	run(t, e, tiny.Step(1, id, 0, 1))
	for i := range 2 {
		if err := e.Submit(tiny.Step(uint64(2+i), id, 1, 2)); err != nil && !errors.Is(err, engine.ErrLost) {
			t.Fatal(err)
		}
	}
	_, err := e.Wait(context.Background())
	var se *engine.StepError
	if !errors.Is(err, engine.ErrLost) || !errors.As(err, &se) || se.Seq != 2 || !strings.Contains(err.Error(), "sticky") {
		t.Fatal(err)
	}
	if err := e.Submit(tiny.Step(4, id, 1, 2)); !errors.Is(err, engine.ErrLost) {
		t.Fatalf("submit to a lost executor: %v", err)
	}
	if err := e.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	run(t, e, tiny.Step(5, id, 1, 2))
	run(t, e, tiny.Step(6, 0, 2, 3))
}

func TestRecoverGivesUp(t *testing.T) {
	e, _ := open(t, faulty(t, `op=open call=2 -> error host "gone"
op=open call=2 -> error host "gone"
op=open call=2 -> error host "gone"
op=open call=2 -> error host "gone"`))
	err := e.Recover(context.Background())
	var q *supervise.QuarantineError
	if !errors.As(err, &q) || !strings.Contains(err.Error(), "gone") {
		t.Fatal(err)
	}
	if err := e.Submit(tiny.Step(1, 0, 0, 1)); !errors.Is(err, engine.ErrLost) {
		t.Fatal(err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	e, id := open(t, faulty(t, `op=head times=1 -> delay 200ms`))
	if err := e.Submit(tiny.Step(1, id, 0, 1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if r, err := e.Wait(context.Background()); err != nil || r.Seq != 1 {
		t.Fatal("the step is still outstanding after a cancelled wait", err)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	e, id := open(t, null.New())
	s := tiny.Step(0, id, 0, 1, 2, 3)
	ctx := context.Background()
	round := func() {
		if err := e.Submit(s); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	round()
	round()
	round()
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a step", n)
	}
}

func TestMisuseIsAnError(t *testing.T) {
	if _, err := New(Options{}); err == nil {
		t.Error("no backend")
	}
	if _, err := New(Options{Backend: ref.New(), Depth: 9}); err == nil {
		t.Error("depth 9")
	}
	e, err := New(Options{Backend: ref.New()})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := e.Compile(ctx, tiny.Program(1)); err == nil || !strings.Contains(err.Error(), "no model is loaded") {
		t.Error(err)
	}
	if err := e.Load(ctx, engine.ModelSpec{}); err == nil {
		t.Error("empty spec")
	}
	spec := tiny.Spec(tiny.Embedded())
	if err := e.Load(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if err := e.Load(ctx, spec); err == nil {
		t.Error("second load")
	}
	p := tiny.Program(1)
	p.Buffers[0].Weight.Names[0] = "nowhere.weight"
	if _, err := e.Compile(ctx, p); err == nil || !strings.Contains(err.Error(), "nowhere.weight") {
		t.Error(err)
	}
	if err := errors.Join(e.Close(ctx), e.Close(ctx)); err != nil {
		t.Error(err)
	}
	if err := e.Load(ctx, spec); err == nil {
		t.Error("load after close")
	}
}
