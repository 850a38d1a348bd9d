package sched

import (
	"errors"
	"fmt"
	"sort"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// world runs one script: requests have one-letter names, tokens are counts.
type world struct {
	s     *Scheduler
	now   Time
	names map[Handle]string
	byID  map[string]Handle
	plan  Plan
	busy  bool
}

var errDevice = errors.New("device went away")

// TestScripts runs testdata/*. Commands:
//
//	new slots= granules= rows= [logits= seqs= window= granule= queue= queuetokens= retries=]
//	arrive NAME prompt= max= [score=N] [deadline=]     score=N: the last N rows of the prompt are predicted, nothing is drawn
//	plan                 next step, checked against INV-4
//	done [stop=(a,b)] [fail=(a)]   the step ran
//	run steps=N          plan and done N times, or until nothing is left
//	step-failed / lost   the step or the device failed
//	cancel NAME, tick t=, fail-all, status
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var w *world
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "new" {
				l := Limits{Window: 4, GranuleTokens: 4}
				for key, v := range map[string]*int{"slots": &l.Slots, "granules": &l.Granules, "rows": &l.MaxRows, "logits": &l.MaxLogits, "seqs": &l.MaxSeqs,
					"window": &l.Window, "granule": &l.GranuleTokens, "queue": &l.MaxQueue, "queuetokens": &l.MaxQueueTokens, "retries": &l.MaxRetries} {
					d.MaybeScanArgs(t, key, v)
				}
				s, err := New(l)
				if err != nil {
					return err.Error() + "\n"
				}
				w = &world{s: s, names: map[Handle]string{}, byID: map[string]Handle{}}
				return "ok\n"
			}
			out := w.command(t, d)
			if err := w.s.Check(); err != nil {
				d.Fatalf(t, "%v", err)
			}
			return out
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	var b strings.Builder
	switch d.Cmd {
	case "arrive":
		var r Request
		score, deadline := 0, 0
		d.ScanArgs(t, "prompt", &r.Rows)
		d.MaybeScanArgs(t, "max", &r.Generate)
		d.MaybeScanArgs(t, "score", &score)
		d.MaybeScanArgs(t, "deadline", &deadline)
		r.Deadline = Time(deadline)
		r.LogitsFrom = r.Rows - max(score, 1)
		h, err := w.s.Arrive(w.now, r)
		if err != nil {
			return err.Error() + "\n"
		}
		w.names[h] = d.CmdArgs[0].Key
		w.byID[d.CmdArgs[0].Key] = h
	case "plan":
		if w.busy {
			d.Fatalf(t, "a step is in flight")
		}
		w.next(t, d, &b)
	case "done":
		var stop, fail []string
		if d.HasArg("stop") {
			stop = args(d, "stop")
		}
		if d.HasArg("fail") {
			fail = args(d, "fail")
		}
		w.done(stop, fail)
	case "run":
		steps := 0
		d.ScanArgs(t, "steps", &steps)
		for i := 0; i < steps && w.s.Live() > 0; i++ {
			w.next(t, d, &b)
			w.done(nil, nil)
			w.ends(&b)
		}
	case "step-failed":
		w.s.StepFailed(w.now, &w.plan, errDevice)
		w.plan, w.busy = Plan{}, false
	case "lost":
		w.s.Lost(w.now, &w.plan, errDevice)
		w.plan, w.busy = Plan{}, false
	case "cancel":
		w.s.Cancel(w.byID[d.CmdArgs[0].Key])
	case "fail-all":
		w.s.FailAll(errDevice)
	case "tick":
		t0 := 0
		d.ScanArgs(t, "t", &t0)
		w.now = Time(t0)
		w.s.Expire(w.now)
	case "status":
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	w.ends(&b)
	if d.Cmd == "status" || b.Len() == 0 {
		w.status(&b)
	}
	return b.String()
}

func args(d *datadriven.TestData, key string) []string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return a.Vals
		}
	}
	return nil
}

func (w *world) next(t *testing.T, d *datadriven.TestData, b *strings.Builder) {
	w.s.Plan(w.now, &w.plan)
	if err := w.s.CheckPlan(&w.plan); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if len(w.plan.Parts) == 0 {
		b.WriteString("nothing to run\n")
		return
	}
	w.busy = true
	fmt.Fprintf(b, "step %d: %d rows, %d logits:", w.plan.Step, w.plan.Rows, w.plan.Logits)
	for _, p := range w.plan.Parts {
		fmt.Fprintf(b, " %s[%d,%d)", w.names[p.Handle], p.From, p.To)
		if n := p.Logits(); n > 0 {
			fmt.Fprintf(b, "!%d", n)
		}
	}
	b.WriteString("\n")
}

func (w *world) done(stop, fail []string) {
	out := make([]Outcome, len(w.plan.Parts))
	has := func(l []string, h Handle) bool {
		for _, n := range l {
			if n == w.names[h] {
				return true
			}
		}
		return false
	}
	for i, p := range w.plan.Parts {
		if p.Logits() > 0 {
			out[i].Tokens = 1
		}
		out[i].Stop = has(stop, p.Handle)
		if has(fail, p.Handle) {
			out[i].Err = errors.New("not a number")
		}
	}
	w.s.StepDone(w.now, &w.plan, out)
	w.plan, w.busy = Plan{}, false
}

func (w *world) ends(b *strings.Builder) {
	for _, e := range w.s.TakeEnded() {
		fmt.Fprintf(b, "%s ends: %s", w.names[e.Handle], e.Reason)
		if e.Err != nil {
			fmt.Fprintf(b, ": %v", e.Err)
		}
		b.WriteString("\n")
	}
}

func (w *world) status(b *strings.Builder) {
	st := w.s.Stats()
	fmt.Fprintf(b, "queue %s, running %s; granules free %d promised %d, slots free %d, pending %d\n", w.list(w.s.queue), w.list(w.s.running), st.Pool.FreeGranules, st.Pool.Promised, st.Pool.FreeSlots, st.PendingTokens)
}

func (w *world) list(l []Handle) string {
	var s []string
	for _, h := range l {
		s = append(s, w.names[h]+":"+w.s.State(h).String())
	}
	return "[" + strings.Join(s, " ") + "]"
}

func TestLimitsNameEveryBadValue(t *testing.T) {
	_, err := New(Limits{Slots: 9, Granules: 0, MaxRows: 8, MaxLogits: 3, MaxRetries: -1})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"granules 0", "max retries -1", "9 slots", "at most 3 requests"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not mention %q", err, want)
		}
	}
}

func TestArriveRefusesWhatIsNotARequest(t *testing.T) {
	s, _ := New(Limits{Slots: 1, Granules: 4, MaxRows: 8})
	for _, r := range []Request{{}, {Rows: 3, LogitsFrom: 3, Generate: 1}, {Rows: 3, LogitsFrom: 1, Generate: 1}, {Rows: 3, LogitsFrom: -1}, {Rows: 3, LogitsFrom: 2, Generate: -1}} {
		if _, err := s.Arrive(0, r); err == nil {
			t.Errorf("%+v accepted", r)
		}
	}
	if err := s.Check(); err != nil || s.Stats().Rejected != 5 {
		t.Errorf("%v, %+v", err, s.Stats())
	}
}

func TestChunkProperties(t *testing.T) {
	const w, g = 128, 128
	cases := []int{1, 2, w - 1, w, w + 1, 2 * w, 2*w + 1, 3*w + 7, 1000, 5000, 8191, 8192, 8193, 20000}
	for _, n := range cases {
		for _, budget := range []int{w + g - 1, w + g, 384, 511, 512, 1000, 2048, 8192} {
			for _, replay := range []int{0, w} {
				pos := 0
				var cuts []int
				for pos < n {
					b := budget
					if pos > 0 {
						b += replay
					}
					c := Chunk(pos, n, b, min(replay, b-budget), w, g)
					if c <= 0 || c > budget {
						t.Fatalf("n=%d pos=%d budget=%d replay=%d: chunk %d", n, pos, budget, replay, c)
					}
					pos += c
					if pos < n && (pos%g != 0 || n-pos < w) {
						t.Fatalf("n=%d budget=%d: a chunk ends at %d", n, budget, pos)
					}
					cuts = append(cuts, pos)
				}
				if !sort.IntsAreSorted(cuts) || cuts[len(cuts)-1] != n {
					t.Fatalf("n=%d: cuts %v", n, cuts)
				}
			}
		}
	}
	if Chunk(0, 100, 0, 0, w, g) != 0 || Chunk(0, 100, w, w, w, g) != 0 || Chunk(100, 100, 8, 0, w, g) != 0 {
		t.Error("a chunk without rows or budget")
	}
}
