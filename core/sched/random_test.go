package sched

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
)

// fate is what the test knows about a request: enough to tell a wrong end, a lost token or a row that was skipped.
type fate struct {
	rows, generate, score int
	computed              int // rows in the cache
	drawn, scored         int
	cancelled             bool
}

// TestRandomOperations drives the scheduler with everything that can happen and checks INV-1, INV-4, INV-5, INV-6, INV-8 after each event, and that every
// request is computed row by row from its start, gets exactly its tokens and ends once.
func TestRandomOperations(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := Limits{
			Slots: 1 + r.IntN(5), Granules: 8 + r.IntN(30), MaxRows: 6 + r.IntN(40), MaxLogits: 5 + r.IntN(4), MaxSeqs: 5 + r.IntN(3),
			GranuleTokens: 4, Window: 4, MaxQueue: 1 + r.IntN(12), MaxRetries: 1 + r.IntN(4),
		}
		if r.IntN(2) == 0 {
			l.MaxQueueTokens = 1 + r.IntN(100)
		}
		if err := random(r, l, 1500); err != nil {
			t.Fatalf("seed %d, limits %+v: %v", seed, l, err)
		}
	}
}

func random(r *rand.Rand, l Limits, events int) error {
	s, err := New(l)
	if err != nil {
		return err
	}
	lim := s.Limits()
	fates := map[Handle]*fate{}
	var plan Plan
	var now Time
	flying, ended, accepted := false, 0, 0
	poison := Handle(-1)
	takeEnded := func() error {
		for _, e := range s.TakeEnded() {
			f := fates[e.Handle]
			if f == nil {
				return fmt.Errorf("%d ended twice", e.Handle)
			}
			delete(fates, e.Handle)
			ended++
			if e.Handle == poison {
				poison = -1
			}
			switch e.Reason {
			case Length:
				if f.drawn != f.generate || f.scored != f.score {
					return fmt.Errorf("%d ends by length with %d of %d tokens, %d of %d scores", e.Handle, f.drawn, f.generate, f.scored, f.score)
				}
			case Cancelled:
				if !f.cancelled {
					return fmt.Errorf("%d was not cancelled", e.Handle)
				}
			case Failed:
				var p *PoisonError
				var q *RetryError
				if !errors.As(e.Err, &p) && !errors.As(e.Err, &q) && !errors.Is(e.Err, errDevice) {
					return fmt.Errorf("%d fails with %v", e.Handle, e.Err)
				}
			}
		}
		return nil
	}
	step := func(i int) error {
		k := r.IntN(100)
		if i >= events { // drain: no arrivals or faults
			k = 50
		}
		switch {
		case k < 20:
			q := Request{Rows: 1 + r.IntN(50)}
			f := &fate{rows: q.Rows}
			if r.IntN(4) == 0 {
				f.score = 1 + r.IntN(q.Rows)
				q.LogitsFrom = q.Rows - f.score
			} else {
				q.LogitsFrom = q.Rows - 1
				q.Generate = 1 + r.IntN(20)
				f.generate = q.Generate
			}
			if r.IntN(5) == 0 {
				q.Deadline = now + Time(r.IntN(200))
			}
			h, err := s.Arrive(now, q)
			var o *OverloadError
			var c *CapacityError
			switch {
			case err == nil:
				if fates[h] != nil {
					return fmt.Errorf("handle %d is in use", h)
				}
				accepted++
				fates[h] = f
				if poison < 0 && r.IntN(10) == 0 {
					poison = h
				}
			case errors.As(err, &o), errors.As(err, &c):
			default:
				return err
			}
		case k < 24:
			h := Handle(r.IntN(20)) - 2
			s.Cancel(h)
			if f := fates[h]; f != nil {
				f.cancelled = true
			}
		case k < 26:
			now += Time(r.IntN(100))
			s.Expire(now)
		case k < 27:
			s.Lost(now, &plan, errDevice)
			flying, plan = false, Plan{}
			for _, f := range fates {
				f.computed = 0
			}
		case !flying:
			s.Plan(now, &plan)
			if err := s.CheckPlan(&plan); err != nil {
				return err
			}
			if err := takeEnded(); err != nil {
				return err
			}
			if len(plan.Parts) == 0 && s.Live() > 0 {
				return fmt.Errorf("INV-6: %d live requests and an empty plan", s.Live())
			}
			flying = len(plan.Parts) > 0
			prefill := false
			for _, p := range plan.Parts {
				f := fates[p.Handle]
				if p.From != f.computed || p.To > f.rows+f.drawn {
					return fmt.Errorf("%d gets rows [%d,%d), %d are computed and %d known", p.Handle, p.From, p.To, f.computed, f.rows+f.drawn)
				}
				decode := p.To-p.From == 1 && p.To == f.rows+f.drawn
				if decode && prefill && f.drawn > 0 && p.From > 0 && s.State(p.Handle) == Decode {
					return fmt.Errorf("decode of %d comes after a prompt", p.Handle)
				}
				prefill = prefill || !decode
			}
		default:
			flying = false
			fault := k > 97 && i < events
			for _, p := range plan.Parts {
				if p.Handle == poison {
					fault = true
				}
			}
			if fault && r.IntN(2) == 0 {
				s.StepFailed(now, &plan, errDevice)
				for _, p := range plan.Parts {
					if f := fates[p.Handle]; f != nil {
						f.computed = 0
					}
				}
				break
			}
			if fault {
				s.Lost(now, &plan, errDevice)
				for _, f := range fates {
					f.computed = 0
				}
				break
			}
			out := make([]Outcome, len(plan.Parts))
			for j, p := range plan.Parts {
				f := fates[p.Handle]
				if s.State(p.Handle) == Aborting {
					continue
				}
				f.computed = p.To
				if f.generate == 0 {
					f.scored += p.Logits()
				} else if p.Logits() == 1 {
					out[j].Tokens = 1
					f.drawn++
					out[j].Stop = r.IntN(15) == 0
				} else if p.Logits() != 0 {
					return fmt.Errorf("%d wants %d logits while it draws", p.Handle, p.Logits())
				}
			}
			s.StepDone(now, &plan, out)
		}
		if err := takeEnded(); err != nil {
			return err
		}
		if err := s.Check(); err != nil {
			return err
		}
		if n := len(s.running); n > lim.Slots {
			return fmt.Errorf("%d running, %d slots", n, lim.Slots)
		}
		return nil
	}
	for i := 0; i < events || s.Live() > 0; i++ {
		if i > events+20000 {
			return fmt.Errorf("%d requests never end", s.Live())
		}
		if err := step(i); err != nil {
			return fmt.Errorf("event %d: %w", i, err)
		}
	}
	if st := s.Stats(); accepted != ended || st.Pool.FreeGranules != st.Pool.Granules || st.Pool.FreeSlots != st.Pool.Slots || st.PendingTokens != 0 {
		return fmt.Errorf("%d accepted, %d ended, stats %+v", accepted, ended, st)
	}
	return nil
}
