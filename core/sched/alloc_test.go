//go:build !invariants

package sched

import "testing"

// TestSteadyDecodeDoesNotAllocate holds the round at zero allocations.
func TestSteadyDecodeDoesNotAllocate(t *testing.T) {
	s, err := New(Limits{Slots: 8, Granules: 4096, MaxRows: 512})
	if err != nil {
		t.Fatal(err)
	}
	for range 8 {
		if _, err := s.Arrive(0, Request{Rows: 5, LogitsFrom: 4, Generate: 50000}); err != nil {
			t.Fatal(err)
		}
	}
	var p Plan
	out := make([]Outcome, 8)
	for i := range out {
		out[i].Tokens = 1
	}
	round := func() {
		s.Plan(0, &p)
		s.StepDone(0, &p, out)
		s.TakeEnded()
	}
	for range 3000 {
		round() // lets the granule tables grow
	}
	if n := testing.AllocsPerRun(100, round); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if p.Rows != 8 {
		t.Errorf("%d rows a round, want 8", p.Rows)
	}
}

func BenchmarkRound256(b *testing.B) {
	s, err := New(Limits{Slots: 256, Granules: 1 << 20, MaxRows: 1024})
	if err != nil {
		b.Fatal(err)
	}
	for range 256 {
		if _, err := s.Arrive(0, Request{Rows: 2, LogitsFrom: 1, Generate: 400000}); err != nil {
			b.Fatal(err)
		}
	}
	var p Plan
	out := make([]Outcome, 256)
	for i := range out {
		out[i].Tokens = 1
	}
	b.ReportAllocs()
	for b.Loop() {
		s.Plan(0, &p)
		s.StepDone(0, &p, out[:len(p.Parts)])
		s.TakeEnded()
	}
}
