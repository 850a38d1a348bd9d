//go:build !invariants

package engine

import (
	"context"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// nullExec answers every step with token 7 when told to.
type nullExec struct {
	fakeExec
	gate chan struct{}
	step chan *program.Step
	res  program.Result
}

func (n *nullExec) Submit(st *program.Step) error { n.step <- st; return nil }

func (n *nullExec) Wait(ctx context.Context) (*program.Result, error) {
	st := <-n.step
	select {
	case <-n.gate:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	r := &n.res
	r.Seq, r.IDs, r.LogProb = st.Seq, r.IDs[:0], r.LogProb[:0]
	for range st.Logits {
		r.IDs, r.LogProb = append(r.IDs, 7), append(r.LogProb, -1)
	}
	return r, nil
}

// anyID is a matcher that allows every id and keeps nothing.
type anyID struct{}

func (anyID) Mask(dst []uint32) int {
	for i := range dst {
		dst[i] = ^uint32(0)
	}
	return len(dst) * 32
}
func (anyID) Accept(int32) error   { return nil }
func (anyID) Done() bool           { return false }
func (anyID) Dormant() bool        { return false }
func (anyID) Replay([]int32) error { return nil }

func nullEngine(tb testing.TB, streams int, change func(*Request)) (*nullExec, []*Stream) {
	n := &nullExec{gate: make(chan struct{}), step: make(chan *program.Step, 1)}
	o := Options{Executor: n, Geometry: geometry(), Programs: []*program.Program{testProgram(512)}}
	o.Geometry.MaxContext = 1 << 24
	o.Limits.Slots, o.Limits.Granules, o.Limits.MaxQueue = streams, 1<<18, streams
	e, err := New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			tb.Fatal(err)
		}
	})
	var out []*Stream
	for range streams {
		r := greedy(5, 1<<20)
		if change != nil {
			change(&r)
		}
		s, err := e.Submit(context.Background(), r)
		if err != nil {
			tb.Fatal(err)
		}
		out = append(out, s)
	}
	return n, out
}

// TestSteadyDecodeDoesNotAllocate counts the whole path: plan, layout, masks, hand-over to the executor, delivery, reading.
func TestSteadyDecodeDoesNotAllocate(t *testing.T) {
	t.Run("plain", func(t *testing.T) { steadyDecode(t, nil) })
	t.Run("constrained", func(t *testing.T) {
		steadyDecode(t, func(r *Request) {
			r.Matcher, r.Trigger = anyID{}, &Trigger{IDs: []int32{7}, Bound: 3}
			r.Sampling.Frequency, r.Sampling.Repetition = 0.5, 1.1
			r.Sampling.Bias = []sample.Bias{{ID: 4, Add: -3}}
		})
	})
}

func steadyDecode(t *testing.T, change func(*Request)) {
	const streams = 8
	n, ss := nullEngine(t, streams, change)
	ctx := context.Background()
	n.gate <- struct{}{} // the first step may hold the first request alone; Next below waits for the others
	round := func() {
		n.gate <- struct{}{}
		for _, s := range ss {
			if _, err := s.Next(ctx); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 3 {
		n.gate <- struct{}{} // tokens in advance, so that no stream runs dry
	}
	for range 2000 {
		round() // buffers and tables grow to their size
	}
	if got := testing.AllocsPerRun(500, round); got != 0 {
		t.Errorf("%v allocations a step", got)
	}
}

func BenchmarkDecodeStep16(b *testing.B) {
	n, ss := nullEngine(b, 16, nil)
	ctx := context.Background()
	for range 4 {
		n.gate <- struct{}{}
	}
	b.ReportAllocs()
	for b.Loop() {
		n.gate <- struct{}{}
		for _, s := range ss {
			if _, err := s.Next(ctx); err != nil {
				b.Fatal(err)
			}
		}
	}
}
