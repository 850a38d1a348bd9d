package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

var inf = float32(math.Inf(1))

// rules is a grammar: after the ids read so far, which id may come next, and whether the text is complete.
type rules struct {
	allowed func(ids []int32, id int32) bool
	done    func(ids []int32) bool
	dormant func(ids []int32) bool
}

// follow is a Matcher over rules that keeps all ids.
type follow struct {
	rules
	ids     []int32
	replays atomic.Int32
	panicAt string // "mask", "accept", "dormant", "done": after two ids
	fail    error  // of Accept, after two ids
}

func (f *follow) boom(what string) {
	if f.panicAt == what && len(f.ids) >= 2 {
		panic("boom in " + what)
	}
}

func (f *follow) Mask(dst []uint32) int {
	f.boom("mask")
	clear(dst)
	n := 0
	for id := range int32(testVocab) {
		if f.allowed(f.ids, id) {
			dst[id/32] |= 1 << (id % 32)
			n++
		}
	}
	return n
}

func (f *follow) Accept(id int32) error {
	f.boom("accept")
	if f.fail != nil && len(f.ids) >= 2 {
		return f.fail
	}
	if !f.allowed(f.ids, id) {
		return fmt.Errorf("id %d is not allowed after %v", id, f.ids)
	}
	f.ids = append(f.ids, id)
	return nil
}

func (f *follow) Done() bool {
	f.boom("done")
	return f.done != nil && f.done(f.ids)
}

func (f *follow) Dormant() bool {
	f.boom("dormant")
	return f.dormant != nil && f.dormant(f.ids)
}

func (f *follow) Replay(ids []int32) error {
	f.replays.Add(1)
	f.ids = nil
	for _, id := range ids {
		if err := f.Accept(id); err != nil {
			return err
		}
	}
	return nil
}

// steps is a grammar whose allowed ids depend on everything before them; it ends after n ids.
func steps(n int) rules {
	return rules{
		allowed: func(ids []int32, id int32) bool {
			h := uint64(len(ids))
			for _, x := range ids {
				h = mix(h, uint64(x))
			}
			return id != testEOS && mix(h, uint64(id))%50 == 0
		},
		done: func(ids []int32) bool { return len(ids) >= n },
	}
}

// expected draws the constrained answer from the definition: no engine, no batch, no steps.
func expected(r Request, rules *rules, blocked []int32, seed uint64) (ids []int32, reason FinishReason) {
	p := r.Sampling
	p.Seed = seed
	all := slices.Clone(r.Prompt)
	free, open := 0, r.Trigger != nil
	var forced, seen []int32 // rest of a forced trigger; what the matcher saw
	for len(ids) < r.MaxTokens {
		var id int32
		if open && r.Trigger.Bound > 0 && free >= r.Trigger.Bound && forced == nil {
			k := 0 // the longest start of the trigger that was drawn already
			for n := range len(r.Trigger.IDs) {
				if n <= len(ids) && slices.Equal(ids[len(ids)-n:], r.Trigger.IDs[:n]) {
					k = n
				}
			}
			forced = r.Trigger.IDs[k:]
		}
		if len(forced) > 0 {
			id, forced = forced[0], forced[1:]
		} else {
			h := truth(all, nil, testImage, len(all)-1)
			id, _ = draw(h, p.Row(len(all)), testVocab)
			add := func(c int32) (sum float32) {
				if slices.Contains(blocked, c) || slices.Contains(r.Sampling.Blocked, c) {
					return -inf
				}
				for _, b := range r.Sampling.Bias {
					if b.ID == c {
						sum += b.Add
					}
				}
				if n := count(all[len(r.Prompt):], c); n > 0 {
					sum -= float32(n)*r.Sampling.Frequency + r.Sampling.Presence
				}
				if t := r.Trigger; open && t.Bound > 0 && t.Bound-free <= t.NudgeTokens && c == t.IDs[0] {
					sum += t.Nudge
				}
				return sum
			}
			id = choose(id, testVocab, func(c int32) bool {
				return open || rules == nil || rules.dormant != nil && rules.dormant(seen) || rules.allowed(seen, c)
			}, add)
			if id < 0 {
				return ids, FinishError
			}
		}
		ids, all = append(ids, id), append(all, id)
		done := false
		if open {
			free++
			open = !(len(ids) >= len(r.Trigger.IDs) && slices.Equal(ids[len(ids)-len(r.Trigger.IDs):], r.Trigger.IDs))
		} else if rules != nil {
			seen = append(seen, id)
			done = rules.done != nil && rules.done(seen)
		}
		if !r.IgnoreEOS && id == testEOS || done {
			return ids, FinishStop
		}
	}
	return ids, FinishLength
}

func count(ids []int32, id int32) (n int) {
	for _, x := range ids {
		if x == id {
			n++
		}
	}
	return n
}

func ids(ev []Event) (out []int32) {
	for _, e := range ev {
		out = append(out, e.ID)
	}
	return out
}

// TestConstrainedAnswersDoNotDependOnBatching runs matchers, triggers, penalties, biases and blocked ids side by side, with losses: each answer is the one of
// its own definition.
func TestConstrainedAnswersDoNotDependOnBatching(t *testing.T) {
	var replayed atomic.Int32
	for seed := range uint64(12) {
		r := rand.New(rand.NewPCG(seed, 7))
		slots := 1 + r.IntN(8)
		lim := sched.Limits{Slots: slots, Granules: 9 + r.IntN(60), MaxRows: slots + r.IntN(64), MaxLogits: slots + r.IntN(9), MaxQueue: 1000, MaxRetries: 1000}
		var blocked []int32
		if seed%2 == 0 {
			blocked = []int32{3, 5, int32(r.IntN(testVocab))}
		}
		t.Run(fmt.Sprintf("seed=%d/slots=%d", seed, slots), func(t *testing.T) {
			f := newFake(slots, lim.Granules)
			e := start(t, f, func(o *Options) { o.Limits, o.Blocked = lim, blocked })
			if seed%3 == 0 {
				faults := rand.New(rand.NewPCG(seed, 8))
				f.set(func() {
					f.fault = func(st *program.Step) error {
						switch k := faults.IntN(20); {
						case len(st.Rows.SeqSlot) == 1:
						case k == 0:
							f.wipe()
							return errKilled
						case k == 1:
							return &StepError{Seq: st.Seq, Scope: 1, Err: errBad}
						}
						return nil
					}
				})
			}
			type run struct {
				r Request
				g *rules
				m *follow
				s *Stream
			}
			var runs []run
			for range 24 {
				q := Request{Prompt: prompt(1 + r.IntN(40)), MaxTokens: 1 + r.IntN(40), Sampling: sample.Greedy(), IgnoreEOS: r.IntN(2) == 0}
				if r.IntN(2) == 0 {
					q.Sampling = sample.Params{Temperature: 0.8, TopP: 1, Seed: r.Uint64(), Salt: uint32(r.IntN(3))}
				}
				if r.IntN(3) == 0 {
					q.Sampling.Frequency, q.Sampling.Presence, q.Sampling.Repetition = -2, float32(r.IntN(3)-1), 1.3
					q.Sampling.Bias = []sample.Bias{{ID: int32(r.IntN(testVocab - 1)), Add: -40}, {ID: testVocab - 1, Add: 99}}
				}
				if r.IntN(3) == 0 {
					q.Sampling.Blocked = []int32{int32(r.IntN(testVocab)), testEOS}
				}
				x := run{}
				if r.IntN(3) > 0 {
					g := steps(1 + r.IntN(20))
					if r.IntN(3) == 0 {
						wide := g.allowed
						g.dormant = func(ids []int32) bool { return len(ids) < 3 }
						g.allowed = func(ids []int32, id int32) bool { return len(ids) < 3 || wide(ids, id) }
					}
					x.g, x.m = &g, &follow{rules: g}
					q.Matcher = x.m
				}
				if r.IntN(3) == 0 {
					q.Trigger = &Trigger{IDs: []int32{10, 11, 10, 12}[:1+r.IntN(4)], Bound: r.IntN(12)}
					if r.IntN(2) == 0 {
						q.Trigger.Nudge, q.Trigger.NudgeTokens = 60, 1+r.IntN(3)
					}
				}
				var err error
				if x.s, err = e.Submit(context.Background(), q); err != nil {
					t.Fatal(err)
				}
				x.r = q
				runs = append(runs, x)
			}
			for i, x := range runs {
				ev, err := read(context.Background(), x.s)
				want, reason := expected(x.r, x.g, blocked, x.s.Seed())
				if got := ids(ev); !slices.Equal(got, want) || x.s.Finish() != reason {
					t.Errorf("request %d (%+v, trigger %+v): %v %q (%v), want %v %q", i, x.r.Sampling, x.r.Trigger, got, x.s.Finish(), err, want, reason)
				}
				if x.m != nil {
					replayed.Add(x.m.replays.Load())
				}
			}
		})
	}
	if replayed.Load() == 0 {
		t.Error("no matcher had to read its tokens again: the losses tested nothing")
	}
}

// TestTriggerIsForcedFromWhereItStands: a bound that falls into a trigger forces the rest of it only.
func TestTriggerIsForcedFromWhereItStands(t *testing.T) {
	l, err := newLead(&Trigger{IDs: []int32{4, 5, 4, 6}, Bound: 6}, 10)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		id   int32
		next int32
	}{{4, -1}, {5, -1}, {4, -1}, {5, -1}, {4, -1}, {1, 4}, {4, 5}, {5, 4}, {4, 6}, {6, -1}} {
		if l.read(c.id); l.next() != c.next {
			t.Fatalf("after token %d (%d): next %d, want %d", i, c.id, l.next(), c.next)
		}
	}
	if !l.over {
		t.Error("the trigger was drawn, the free text goes on")
	}
	l, _ = newLead(&Trigger{IDs: []int32{4, 5, 4, 6}, Bound: 5}, 10)
	for _, id := range []int32{1, 1, 4, 5, 4} {
		l.read(id)
	}
	if l.next() != 6 {
		t.Errorf("three of four ids stand, next is %d", l.next())
	}
	l, _ = newLead(&Trigger{IDs: []int32{4, 5, 4, 6}}, 10) // 4 5 4 5 4 6: the second start counts
	for i, id := range []int32{4, 5, 4, 5, 4, 6} {
		if l.read(id); l.over != (i == 5) {
			t.Errorf("over %v after token %d", l.over, i)
		}
	}
}

// TestAMatcherFailsItsOwnRequestOnly: errors, panics and dead ends.
func TestAMatcherFailsItsOwnRequestOnly(t *testing.T) {
	errStuck := errors.New("stuck")
	nothing := rules{allowed: func(ids []int32, id int32) bool { return len(ids) < 2 && id > 20 }}
	anything := rules{allowed: func(ids []int32, id int32) bool { return id > 20 }}
	for name, c := range map[string]struct {
		m    *follow
		want string
		is   error
		got  int // tokens before the end
	}{
		"nothing allowed": {&follow{rules: nothing}, "no token is allowed", sample.ErrNothingAllowed, 2},
		"accept fails":    {&follow{rules: anything, fail: errStuck}, "stuck", errStuck, 2},
		"accept panics":   {&follow{rules: anything, panicAt: "accept"}, "panicked: boom in accept", nil, 2},
		"mask panics":     {&follow{rules: anything, panicAt: "mask"}, "panicked: boom in mask", nil, 2},
		"done panics":     {&follow{rules: anything, panicAt: "done"}, "panicked: boom in done", nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(4, 40)
			e := start(t, f, nil)
			other := greedy(9, 30)
			other.IgnoreEOS = true
			os, err := e.Submit(context.Background(), other)
			if err != nil {
				t.Fatal(err)
			}
			q := greedy(5, 30)
			q.IgnoreEOS, q.Matcher = true, c.m
			s, err := e.Submit(context.Background(), q)
			if err != nil {
				t.Fatal(err)
			}
			ev, err := read(context.Background(), s)
			var ce *ConstraintError
			if !errors.As(err, &ce) || ce.Pos != 5+c.got || !strings.Contains(err.Error(), c.want) || c.is != nil && !errors.Is(err, c.is) || len(ev) != c.got {
				t.Errorf("%d tokens, error %v; want %d and %q", len(ev), err, c.got, c.want)
			}
			ev, err = read(context.Background(), os)
			if bad := verify(other, os.Seed(), ev, os.Finish()); bad != nil {
				t.Errorf("the other request: %v (%v)", bad, err)
			}
		})
	}
	t.Run("dormant panics", func(t *testing.T) { // a mask is made instead
		e := start(t, newFake(4, 40), nil)
		q := greedy(5, 10)
		q.IgnoreEOS, q.Matcher = true, &follow{rules: anything, panicAt: "dormant"}
		s, err := e.Submit(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := expected(q, &anything, nil, 0)
		if ev, err := read(context.Background(), s); !slices.Equal(ids(ev), want) {
			t.Errorf("%v (%v), want %v", ids(ev), err, want)
		}
	})
	t.Run("everything blocked", func(t *testing.T) {
		e := start(t, newFake(4, 40), nil)
		q := greedy(5, 10)
		q.Matcher = &follow{rules: rules{allowed: func(_ []int32, id int32) bool { return id == 30 }}}
		q.Sampling.Blocked = []int32{30}
		s, err := e.Submit(context.Background(), q)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := read(context.Background(), s); !errors.Is(err, sample.ErrNothingAllowed) || s.Finish() != FinishError {
			t.Errorf("%v, finish %q", err, s.Finish())
		}
	})
}

// TestABackendWithoutReasonForNoTokenIsNotTrusted: id -1 without mask or bias is the backend's fault.
func TestABackendWithoutReasonForNoTokenIsNotTrusted(t *testing.T) {
	f := newFake(2, 20)
	e := start(t, f, nil)
	f.set(func() { f.edit = func(r *program.Result) { r.IDs[0] = -1 } })
	s, err := e.Submit(context.Background(), greedy(3, 4))
	if err != nil {
		t.Fatal(err)
	}
	_, err = read(context.Background(), s)
	var ce *ConstraintError
	if err == nil || errors.As(err, &ce) {
		t.Errorf("error %v", err)
	}
}

func TestBadConstraintsAreRefused(t *testing.T) {
	e := start(t, newFake(2, 20), nil)
	for want, edit := range map[string]func(*Request){
		"force of 2 tokens: must be without a matcher": func(r *Request) { r.MaxTokens, r.Force, r.Matcher = 0, []int32{1, 2}, &follow{} },
		"trigger of 0 ids: must be 1 to 64 ids":        func(r *Request) { r.Trigger = &Trigger{} },
		"trigger of 65 ids":                            func(r *Request) { r.Trigger = &Trigger{IDs: make([]int32, 65)} },
		"trigger[1] is token 997: must be in [0, 997)": func(r *Request) { r.Trigger = &Trigger{IDs: []int32{1, testVocab}} },
		"trigger bound -1":                             func(r *Request) { r.Trigger = &Trigger{IDs: []int32{1}, Bound: -1} },
		"trigger nudge 101":                            func(r *Request) { r.Trigger = &Trigger{IDs: []int32{1}, Nudge: 101} },
		"logit_bias of id 997":                         func(r *Request) { r.Sampling.Bias = []sample.Bias{{ID: testVocab}} },
		"blocked id -1":                                func(r *Request) { r.Sampling.Blocked = []int32{-1} },
		"frequency_penalty 3":                          func(r *Request) { r.Sampling.Frequency = 3 },
	} {
		r := greedy(3, 4)
		edit(&r)
		if _, err := e.Submit(context.Background(), r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	for want, blocked := range map[string][]int32{"blocked id 997": {testVocab}, "1025 blocked ids": make([]int32, 1025)} {
		_, err := New(Options{Executor: newFake(1, 20), Geometry: geometry(), Programs: []*program.Program{testProgram(8)}, Limits: sched.Limits{Slots: 1, Granules: 20}, Blocked: blocked})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
