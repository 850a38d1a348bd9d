package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

const (
	testEOS   = 1
	testImage = 990
)

func geometry() Geometry {
	return Geometry{NHist: testHist, Vocab: testVocab, MaxContext: 4096, EOS: []int32{testEOS}, ImageToken: testImage, Downsample: 2}
}

// start returns an engine over f; it is closed, and checked for leaks, when the test ends.
func start(t *testing.T, f *fakeExec, change func(*Options)) *Engine {
	t.Helper()
	opt := Options{
		Executor: f, Geometry: geometry(), Programs: []*program.Program{testProgram(4), testProgram(64), testProgram(512)}, Vision: visionProgram(),
		Limits: sched.Limits{Slots: f.slots, Granules: f.granules},
	}
	if change != nil {
		change(&opt)
	}
	before := runtime.NumGoroutine()
	e, err := New(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if s := e.Stats(); s.Pool.FreeGranules != s.Pool.Granules || s.Pool.FreeSlots != s.Pool.Slots || s.Queued+s.Running != 0 {
			t.Errorf("leaked after close: %+v", s)
		}
		for i := 0; runtime.NumGoroutine() > before; i++ {
			if i == 2000 {
				buf := make([]byte, 1<<16)
				t.Fatalf("goroutines left:\n%s", buf[:runtime.Stack(buf, true)])
			}
			time.Sleep(time.Millisecond)
		}
	})
	return e
}

// read collects a stream to its end.
func read(ctx context.Context, s *Stream) ([]Event, error) {
	var out []Event
	for {
		ev, err := s.Next(ctx)
		if err != nil {
			return out, err
		}
		out = append(out, ev)
	}
}

// verify compares events with what the model must say.
func verify(r Request, seed uint64, got []Event, reason FinishReason) error {
	images := map[int][]uint16{}
	for _, img := range r.Images {
		for k := range len(img.Rows) / hidden {
			images[img.Start+k] = img.Rows[k*hidden : (k+1)*hidden]
		}
	}
	ids := append([]int32{}, r.Prompt...)
	p := r.Sampling
	p.Seed = seed
	for i := 0; ; i++ {
		pos := len(ids)
		row := p.Row(pos)
		if len(r.Force) > 0 {
			if i == len(r.Force) {
				return length(got, i, reason, FinishLength)
			}
			row = sample.ForcedRow(pos, r.Force[i])
		} else if i == r.MaxTokens {
			return length(got, i, reason, FinishLength)
		}
		if i >= len(got) {
			return fmt.Errorf("%d tokens, more must follow", len(got))
		}
		h := truth(ids, images, testImage, pos-1)
		id, lp := draw(h, row, testVocab)
		ev := got[i]
		if ev.ID != id || ev.LogProb != lp || ev.Pos != pos || len(ev.Top) != r.TopN {
			return fmt.Errorf("token %d is %+v, want id %d log-probability %v at %d with %d candidates", i, ev, id, lp, pos, r.TopN)
		}
		for k, c := range ev.Top {
			if want := int32(mix(h, uint64(k)) % testVocab); c.ID != want {
				return fmt.Errorf("token %d candidate %d is %d, want %d", i, k, c.ID, want)
			}
		}
		ids = append(ids, id)
		stop := len(r.Force) == 0 && !r.IgnoreEOS && id == testEOS
		for _, s := range r.StopIDs {
			stop = stop || len(r.Force) == 0 && id == s
		}
		if ev.Stop != stop {
			return fmt.Errorf("token %d: stop %v", i, ev.Stop)
		}
		if stop {
			return length(got, i+1, reason, FinishStop)
		}
	}
}

func length(got []Event, n int, reason, want FinishReason) error {
	if len(got) != n || reason != want {
		return fmt.Errorf("%d tokens and %q, want %d and %q", len(got), reason, n, want)
	}
	return nil
}

// randomRequest makes requests of every kind.
func randomRequest(r *rand.Rand) Request {
	q := Request{ID: fmt.Sprint("r", r.IntN(1000)), Sampling: sample.Greedy(), MaxTokens: 1 + r.IntN(25), IgnoreEOS: r.IntN(2) == 0}
	n := 1 + r.IntN(60)
	if r.IntN(4) == 0 {
		n = 100 + r.IntN(400) // several chunks and granules
	}
	for range n {
		q.Prompt = append(q.Prompt, int32(r.IntN(testImage)))
	}
	switch r.IntN(4) {
	case 0:
		q.Sampling = sample.Params{Temperature: 0.8, TopP: 0.9, TopK: 40, Seed: r.Uint64(), Salt: uint32(r.IntN(3))}
	case 1:
		q.MaxTokens = 0
		for range 1 + r.IntN(70) {
			q.Force = append(q.Force, int32(r.IntN(testVocab)))
		}
	case 2:
		at := 0
		for at < n && r.IntN(3) > 0 {
			at += r.IntN(n - at)
			k := min(1+r.IntN(150), n-at)
			rows := make([]uint16, k*hidden)
			for i := range rows {
				rows[i] = uint16(r.Uint32())
			}
			for i := range k {
				q.Prompt[at+i] = testImage
			}
			q.Images = append(q.Images, ImageRows{Start: at, Rows: rows})
			at += k
		}
	}
	for range r.IntN(4) {
		q.StopIDs = append(q.StopIDs, int32(r.IntN(testVocab)))
	}
	if r.IntN(3) == 0 {
		q.TopN = 1 + r.IntN(5)
	}
	return q
}

// TestTokensDoNotDependOnBatching runs requests of every kind under many limits, orders and faults: each gets exactly the tokens of its own context.
func TestTokensDoNotDependOnBatching(t *testing.T) {
	for seed := range uint64(24) {
		r := rand.New(rand.NewPCG(seed, 2))
		slots := 1 + r.IntN(8)
		lim := sched.Limits{Slots: slots, Granules: 9 + r.IntN(60), MaxRows: slots + r.IntN(500), MaxQueue: 1000, MaxRetries: 1000}
		lim.MaxRows = min(lim.MaxRows, 512)
		lim.MaxLogits = slots + r.IntN(33-slots)
		kind := seed % 4 // 0, 1: nothing fails; 2: losses; 3: losses, refused steps, refused submissions
		t.Run(fmt.Sprintf("seed=%d/kind=%d/rows=%d/slots=%d", seed, kind, lim.MaxRows, slots), func(t *testing.T) {
			f := newFake(slots, lim.Granules)
			faults := rand.New(rand.NewPCG(seed, 3)) // used under f.mu or from Wait alone
			e := start(t, f, func(o *Options) { o.Limits = lim })
			if kind >= 2 {
				f.set(func() {
					f.fault = func(st *program.Step) error {
						// Alone in the step may be a suspect; a loss then ends it, by design. Losses of a lone request: TestALoneRequestSurvivesLosses.
						switch k := faults.IntN(30); {
						case len(st.Rows.SeqSlot) == 1:
						case k == 0:
							f.wipe()
							return errKilled
						case k == 1 && kind == 3:
							return &StepError{Seq: st.Seq, Scope: backend.ScopeStep, Err: errBad}
						case k == 2:
							f.wipe()
							return &StepError{Seq: st.Seq, Scope: backend.ScopeDevice, Err: errBad}
						}
						return nil
					}
				})
			}
			var wg sync.WaitGroup
			ctx := t.Context()
			for range 25 {
				q := randomRequest(r)
				if r.IntN(3) == 0 {
					runtime.Gosched() // lets a step start: arrivals fall between and into steps
				}
				s, err := e.Submit(ctx, q)
				if err != nil {
					t.Fatalf("submit: %v", err)
				}
				wg.Add(1)
				go func() {
					defer wg.Done()
					got, err := read(ctx, s)
					if err != io.EOF {
						t.Errorf("stream of %d prompt tokens ends with %v", len(q.Prompt), err)
						return
					}
					if err := verify(q, s.Seed(), got, s.Finish()); err != nil {
						t.Errorf("prompt of %d, max %d, force %d, %d images: %v", len(q.Prompt), q.MaxTokens, len(q.Force), len(q.Images), err)
					}
					if u := s.Usage(); u.Prompt != len(q.Prompt) || u.Generated != len(got) {
						t.Errorf("usage %+v, want %d and %d", u, len(q.Prompt), len(got))
					}
				}()
			}
			wg.Wait()
			st := e.Stats()
			if st.Done != 25 || st.Accepted != 25 {
				t.Errorf("stats %+v", st)
			}
			if kind >= 2 && st.Losses != uint64(f.recovered.Load()) {
				t.Errorf("%d losses, %d recoveries", st.Losses, f.recovered.Load())
			}
			for _, s := range f.steps {
				if p := f.progs[s.program].Bucket; s.program > 0 {
					if b := f.progs[s.program-1].Bucket; s.rows <= b.Rows && s.seqs <= b.Seqs && s.logits <= b.Logits {
						t.Fatalf("step %+v ran in bucket %+v, %+v holds it", s, p, b)
					}
				}
			}
		})
	}
}

// TestALoneRequestSurvivesLosses kills the device every few steps of one answer, or once when a step is submitted.
func TestALoneRequestSurvivesLosses(t *testing.T) {
	for _, every := range []int{5, 6, 9, 1000} {
		f := newFake(1, 16)
		n := 0
		f.fault = func(*program.Step) error {
			if n++; n%every == 0 {
				f.wipe()
				return errKilled
			}
			return nil
		}
		f.submitErr = func(st *program.Step) error {
			if st.Seq == 21 && every == 1000 {
				return errKilled
			}
			return nil
		}
		e := start(t, f, func(o *Options) { o.Limits.MaxRows = 60 })
		q := randomRequest(rand.New(rand.NewPCG(uint64(every), 8)))
		q.Prompt, q.Images, q.Force, q.MaxTokens, q.StopIDs, q.IgnoreEOS = prompt(130), nil, nil, 80, nil, true
		s, err := e.Submit(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		got, err := read(t.Context(), s)
		if err != io.EOF {
			t.Fatalf("a loss every %d steps: %v", every, err)
		}
		if err := verify(q, s.Seed(), got, s.Finish()); err != nil {
			t.Error(err)
		}
		if u := s.Usage(); u.Preemptions < 1000/every/10 || u.Preemptions == 0 || uint64(u.Preemptions) != e.Stats().Losses {
			t.Errorf("a loss every %d steps: usage %+v, %d losses", every, u, e.Stats().Losses)
		}
	}
}

func prompt(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i*7%900 + 2)
	}
	return ids
}

func greedy(n, max int) Request {
	return Request{Prompt: prompt(n), MaxTokens: max, Sampling: sample.Greedy(), IgnoreEOS: true}
}

func TestBadRequestsAreRefusedWithNumbers(t *testing.T) {
	e := start(t, newFake(2, 8), func(o *Options) { o.Geometry.MaxContext = 2000 })
	rows := make([]uint16, 3*hidden)
	img := func(n, at, k int) []int32 {
		ids := prompt(n)
		for i := range k {
			ids[at+i] = testImage
		}
		return ids
	}
	for _, c := range []struct {
		name string
		req  Request
		want string
	}{
		{"empty prompt", Request{MaxTokens: 1, Sampling: sample.Greedy()}, "the prompt is empty"},
		{"no max tokens", greedy(3, 0), "max_tokens 0: must be at least 1"},
		{"negative max tokens", greedy(3, -7), "max_tokens -7"},
		{"prompt of the whole context", greedy(2000, 1), "the prompt has 2000 tokens, the context holds 2000"},
		{"prompt above the context", greedy(5000, 1), "the prompt has 5000 tokens"},
		{"together too long", greedy(1990, 11), "together 2001; the context holds 2000: shorten the prompt or lower max_tokens to 10"},
		{"max tokens near overflow", greedy(10, math.MaxInt32), "the context holds 2000"},
		{"more granules than the pool has", greedy(1000, 500), "1500 tokens needs 12 KV granules, the pool has 8"},
		{"id above the vocabulary", Request{Prompt: []int32{5, testVocab}, MaxTokens: 1, Sampling: sample.Greedy()}, "prompt[1] is token 997: must be in [0, 997)"},
		{"negative id", Request{Prompt: []int32{-1}, MaxTokens: 1, Sampling: sample.Greedy()}, "prompt[0] is token -1"},
		{"forced id above the vocabulary", Request{Prompt: []int32{5}, Force: []int32{4, 2000}}, "force[1] is token 2000"},
		{"forced ids and another max", Request{Prompt: []int32{5}, Force: []int32{4, 3}, MaxTokens: 9}, "max_tokens 9: must be 0 or the 2 forced tokens"},
		{"zero params", Request{Prompt: []int32{5}, MaxTokens: 1}, "top_p 0"},
		{"temperature", Request{Prompt: []int32{5}, MaxTokens: 1, Sampling: sample.Params{Temperature: -1, TopP: 1}}, "temperature -1"},
		{"candidates", Request{Prompt: []int32{5}, MaxTokens: 1, TopN: 6, Sampling: sample.Greedy()}, "top_logprobs 6: must be in [0, 5]"},
		{"negative candidates", Request{Prompt: []int32{5}, MaxTokens: 1, TopN: -1, Sampling: sample.Greedy()}, "top_logprobs -1"},
		{"stop id", Request{Prompt: []int32{5}, MaxTokens: 1, StopIDs: []int32{9999}, Sampling: sample.Greedy()}, "stop_token_ids[0] 9999"},
		{"image token without image", Request{Prompt: img(9, 4, 2), MaxTokens: 1, Sampling: sample.Greedy()}, "prompt position 4 carries the image token 990 and no image covers it"},
		{"image over text", Request{Prompt: img(9, 4, 2), Images: []ImageRows{{4, rows}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 0: prompt position 6 carries token"},
		{"image past the end", Request{Prompt: img(9, 7, 2), Images: []ImageRows{{7, rows}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 0: rows for positions 7..9"},
		{"image before the start", Request{Prompt: img(9, 0, 3), Images: []ImageRows{{-1, rows}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 0: rows for positions -1..1"},
		{"images overlap", Request{Prompt: img(9, 0, 5), Images: []ImageRows{{0, rows}, {2, rows}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 1: rows for positions 2..4: must follow position 3"},
		{"image row cut", Request{Prompt: img(9, 0, 3), Images: []ImageRows{{0, rows[:hidden*3-1]}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 0: 11 values: must be rows of 4"},
		{"image empty", Request{Prompt: img(9, 0, 3), Images: []ImageRows{{0, nil}}, MaxTokens: 1, Sampling: sample.Greedy()}, "image 0: 0 values"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := e.Submit(t.Context(), c.req)
			if err == nil || s != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
	var ce *ContextError
	if _, err := e.Submit(t.Context(), greedy(3000, 1)); !errors.As(err, &ce) || ce.Prompt != 3000 || ce.Limit != 2000 {
		t.Errorf("%v is no *ContextError with the numbers", err)
	}
	if st := e.Stats(); st.Accepted != 0 || st.Steps != 0 {
		t.Errorf("a refused request ran: %+v", st)
	}
	for _, g := range [][2]int{{0, 4}, {9, 8}, {-1, -1}, {1 << 40, 1 << 40}} {
		if _, err := e.EncodeImage(t.Context(), nil, g[0], g[1]); err == nil {
			t.Errorf("grid %v accepted", g)
		}
	}
	if _, err := e.EncodeImage(t.Context(), make([]uint16, 5), 2, 2); err == nil || !strings.Contains(err.Error(), "5 values, must be 24") {
		t.Errorf("short patches: %v", err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	good := func() Options {
		return Options{Executor: newFake(2, 8), Geometry: geometry(), Programs: []*program.Program{testProgram(8), testProgram(64)}, Limits: sched.Limits{Slots: 2, Granules: 8}}
	}
	for _, c := range []struct {
		name   string
		change func(*Options)
		want   string
	}{
		{"no executor", func(o *Options) { o.Executor = nil }, "an executor"},
		{"no program", func(o *Options) { o.Programs = nil }, "at least one program"},
		{"vocabulary", func(o *Options) { o.Geometry.Vocab = 0 }, "vocabulary 0"},
		{"end id", func(o *Options) { o.Geometry.EOS = []int32{5000} }, "end id 5000"},
		{"order of programs", func(o *Options) { o.Programs[0] = testProgram(64) }, "must ascend"},
		{"history", func(o *Options) { o.Geometry.NHist = 1 }, "reads 3 preceding tokens, the geometry says 1"},
		{"rows", func(o *Options) { o.Limits.MaxRows = 65 }, "65 rows a step, the largest program holds 64"},
		{"slots", func(o *Options) { o.Limits.Slots = 40 }, "at most 16 requests"},
		{"image cells", func(o *Options) { o.Vision = visionProgram(); o.Geometry.Downsample = 0 }, "downsample"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := good()
			c.change(&o)
			if _, err := New(o); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
		})
	}
}

// TestCancelledRequestsGiveEverythingBack is bugs/engine row 35: clients go away after three tokens, fifty times.
func TestCancelledRequestsGiveEverythingBack(t *testing.T) {
	f := newFake(4, 64)
	e := start(t, f, nil)
	f.set(func() { f.gate = make(chan struct{}) }) // one value, one step
	for i := range 50 {
		ctx, cancel := context.WithCancel(t.Context())
		s, err := e.Submit(ctx, greedy(20, 1000))
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			f.gate <- struct{}{}
			if _, err := s.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		byContext := i%2 == 0
		if byContext {
			cancel()
		} else {
			s.Cancel()
		}
		_, err = read(t.Context(), s) // the reader learns it although the device works on
		if !errors.Is(err, ErrCancelled) || s.Finish() != FinishAbort || byContext && !errors.Is(err, context.Canceled) {
			t.Fatalf("ends with %v, %q", err, s.Finish())
		}
		for fed := 0; e.Stats().Running > 0; {
			if byContext || fed == 0 { // at most the step in flight; only the context's watcher may come a step late
				select {
				case f.gate <- struct{}{}:
					fed++
				default:
				}
			}
			time.Sleep(50 * time.Microsecond)
		}
		cancel()
		if st := e.Stats(); st.Cancelled != uint64(i+1) || st.Pool.FreeGranules != 64 || st.Pool.FreeSlots != 4 {
			t.Fatalf("stats %+v", st)
		}
	}
}

func TestCancellationStorm(t *testing.T) {
	f := newFake(6, 64)
	e := start(t, f, func(o *Options) { o.Limits.MaxQueue, o.Limits.MaxRetries = 1000, 1000 })
	n := 0
	f.set(func() {
		f.fault = func(*program.Step) error {
			if n++; n%40 == 0 {
				f.wipe()
				return errKilled
			}
			return nil
		}
	})
	var wg sync.WaitGroup
	for c := range 8 {
		r := rand.New(rand.NewPCG(uint64(c), 5))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 60 {
				q := randomRequest(r)
				ctx, cancel := context.WithCancel(t.Context())
				s, err := e.Submit(ctx, q)
				if err != nil {
					t.Errorf("submit: %v", err)
					cancel()
					return
				}
				keep := r.IntN(3) == 0
				var got []Event
				for k := r.IntN(6); k > 0 || keep; k-- {
					ev, err := s.Next(t.Context())
					if err == io.EOF {
						if err := verify(q, s.Seed(), append(got, ev)[:len(got)], s.Finish()); err != nil {
							t.Error(err)
						}
						break
					}
					if err != nil {
						t.Errorf("next: %v", err)
						break
					}
					got = append(got, ev)
				}
				cancel()
			}
		}()
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := e.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	if st := e.Stats(); st.Accepted != 480 || st.Done+st.Cancelled != 480 || st.Pool.FreeSlots != 6 || st.Pool.FreeGranules != 64 {
		t.Errorf("stats %+v", st)
	}
}

func TestOnlyTheGuiltyRequestFails(t *testing.T) {
	for _, scope := range []backend.Scope{backend.ScopeStep, backend.ScopeDevice} {
		t.Run(scope.String(), func(t *testing.T) {
			f := newFake(4, 64)
			e := start(t, f, nil)
			f.set(func() {
				f.fault = func(st *program.Step) error {
					for _, id := range st.Rows.Token {
						if id == 666 {
							return &StepError{Seq: st.Seq, Scope: scope, Err: errBad}
						}
					}
					return nil
				}
				f.gate = make(chan struct{}, 1000)
			})
			var streams []*Stream
			var reqs []Request
			for i := range 4 {
				q := greedy(10+i, 10)
				if i == 1 {
					q.Prompt[3] = 666
				}
				s, err := e.Submit(t.Context(), q)
				if err != nil {
					t.Fatal(err)
				}
				reqs, streams = append(reqs, q), append(streams, s)
			}
			for range 1000 {
				f.gate <- struct{}{}
			}
			for i, s := range streams {
				got, err := read(t.Context(), s)
				if i == 1 {
					if s.Finish() != FinishError || !errors.Is(err, errBad) {
						t.Errorf("the guilty one ends with %q: %v", s.Finish(), err)
					}
					continue
				}
				if err != io.EOF {
					t.Errorf("request %d: %v", i, err)
				} else if err := verify(reqs[i], 0, got, s.Finish()); err != nil {
					t.Errorf("request %d: %v", i, err)
				}
			}
		})
	}
}

func TestRefusedSubmissionFailsTheRequest(t *testing.T) {
	f := newFake(1, 8)
	f.submitErr = func(st *program.Step) error {
		if len(st.Rows.Token) == 7 {
			return errBad
		}
		return nil
	}
	e := start(t, f, nil)
	s, err := e.Submit(t.Context(), greedy(7, 5))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t.Context(), s); !errors.Is(err, errBad) || s.Finish() != FinishError {
		t.Errorf("%v, %q", err, s.Finish())
	}
	q := greedy(8, 5)
	s, _ = e.Submit(t.Context(), q)
	got, _ := read(t.Context(), s)
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
	if f.recovered.Load() != 0 {
		t.Error("a refused step restarted the device")
	}
}

func TestNonsenseResults(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*program.Result)
		want string
	}{
		{"NaN", func(r *program.Result) { r.LogProb[0] = float32(math.NaN()) }, "NaN"},
		{"id outside the vocabulary", func(r *program.Result) { r.IDs[0] = 5000 }, "token 5000"},
		{"too few ids", func(r *program.Result) { r.IDs = r.IDs[:0] }, "0 ids"},
		{"a step from the future", func(r *program.Result) { r.Seq += 7 }, "result of step"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFake(1, 8)
			f.edit = c.edit
			e := start(t, f, nil)
			s, err := e.Submit(t.Context(), greedy(7, 5))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := read(t.Context(), s); err == io.EOF || !strings.Contains(err.Error(), c.want) || s.Finish() != FinishError {
				t.Errorf("ends with %v, want %q", err, c.want)
			}
			f.set(func() { f.edit = nil })
			q := greedy(9, 5)
			s, _ = e.Submit(t.Context(), q)
			got, _ := read(t.Context(), s)
			if err := verify(q, 0, got, s.Finish()); err != nil {
				t.Errorf("the next request: %v", err)
			}
		})
	}
}

func TestEngineEndsWhenTheDeviceCannotBeBroughtBack(t *testing.T) {
	f := newFake(2, 32)
	e := start(t, f, nil)
	f.set(func() {
		f.gate = make(chan struct{})
		f.fault = func(*program.Step) error { return errKilled }
		f.recoverErr = errors.New("quarantined after 5 crashes in 10 minutes")
	})
	var streams []*Stream
	for range 5 {
		s, err := e.Submit(t.Context(), greedy(10, 10))
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	image := make(chan error, 1)
	go func() {
		_, err := e.EncodeImage(t.Context(), make([]uint16, 4*6), 2, 2)
		image <- err
	}()
	for e.Stats().Images == 0 {
		time.Sleep(time.Millisecond)
	}
	f.gate <- struct{}{}
	for _, s := range streams {
		if _, err := read(t.Context(), s); s.Finish() != FinishError || !strings.Contains(err.Error(), "could not be brought back: quarantined") {
			t.Errorf("ends with %q: %v", s.Finish(), err)
		}
	}
	if err := <-image; err == nil || !strings.Contains(err.Error(), "quarantined") {
		t.Errorf("image: %v", err)
	}
	if err := e.Err(); err == nil || !strings.Contains(err.Error(), "quarantined") {
		t.Errorf("Err() = %v", err)
	}
	if _, err := e.Submit(t.Context(), greedy(3, 3)); err == nil || err != e.Err() {
		t.Errorf("submit: %v", err)
	}
	if err := e.Drain(t.Context()); err != nil {
		t.Errorf("drain: %v", err)
	}
}

func TestImagesAreEncodedBetweenSteps(t *testing.T) {
	f := newFake(2, 32)
	e := start(t, f, nil)
	n := 0
	f.set(func() {
		f.fault = func(st *program.Step) error {
			if n++; n == 3 || n == 4 { // one loss hits an image, whatever the order
				f.wipe()
				return errKilled
			}
			return nil
		}
	})
	q := greedy(40, 60)
	s, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			patches := make([]uint16, 3*5*6)
			for k := range patches {
				patches[k] = uint16(i*100 + k)
			}
			rows, err := e.EncodeImage(t.Context(), patches, 3, 5)
			if err != nil || len(rows) != 6*hidden {
				t.Errorf("image %d: %d values, %v", i, len(rows), err)
				return
			}
			for c := range 6 {
				h := uint64(c)
				for _, v := range patches {
					h = mix(h, uint64(v))
				}
				if rows[c*hidden] != uint16(mix(h, 0)) {
					t.Errorf("image %d cell %d is of another image", i, c)
				}
			}
		}()
	}
	wg.Wait()
	got, _ := read(t.Context(), s)
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
	if st := e.Stats(); st.ImageSteps != 6 {
		t.Errorf("%d image steps", st.ImageSteps)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := e.EncodeImage(ctx, make([]uint16, 24), 2, 2); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled image: %v", err)
	}
}

func TestAnImageThatKillsTheDeviceIsGivenUp(t *testing.T) {
	f := newFake(2, 32)
	f.fault = func(st *program.Step) error {
		if st.GridH == 4 {
			f.wipe()
			return errKilled
		}
		return nil
	}
	e := start(t, f, nil)
	q := greedy(40, 60)
	s, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	var pe *sched.PoisonError
	if _, err := e.EncodeImage(t.Context(), make([]uint16, 4*2*6), 4, 2); !errors.As(err, &pe) {
		t.Errorf("image: %v", err)
	}
	got, err := read(t.Context(), s)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
}

func TestASlowReaderBlocksNobody(t *testing.T) {
	f := newFake(2, 64)
	e := start(t, f, func(o *Options) { o.StreamBuffer = 10 })
	slow, err := e.Submit(t.Context(), greedy(5, 500))
	if err != nil {
		t.Fatal(err)
	}
	q := greedy(6, 9)
	quick, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := read(t.Context(), quick)
	if err := verify(q, 0, got, quick.Finish()); err != nil {
		t.Error(err)
	}
	if err := e.Drain(t.Context()); err != nil { // the slow one ends although nobody reads it
		t.Fatal(err)
	}
	got, err = read(t.Context(), slow)
	if len(got) != 10 || !errors.Is(err, ErrSlowConsumer) || slow.Finish() != FinishError {
		t.Errorf("%d tokens, %v", len(got), err)
	}
	if _, err := e.Submit(t.Context(), q); !errors.Is(err, ErrDraining) {
		t.Errorf("submit while draining: %v", err)
	}
	if _, err := e.EncodeImage(t.Context(), make([]uint16, 24), 2, 2); !errors.Is(err, ErrDraining) {
		t.Errorf("image while draining: %v", err)
	}
}

func TestOverload(t *testing.T) {
	f := newFake(1, 64)
	e := start(t, f, func(o *Options) { o.Limits.MaxQueue = 2 })
	f.set(func() { f.gate = make(chan struct{}, 100) })
	var streams []*Stream
	for i := 0; ; i++ {
		s, err := e.Submit(t.Context(), greedy(5, 3))
		var o *sched.OverloadError
		if errors.As(err, &o) {
			if o.Limit != 2 || i < 2 || i > 3 {
				t.Errorf("request %d: %v", i, err)
			}
			break
		}
		if err != nil || i > 3 {
			t.Fatalf("request %d: %v", i, err)
		}
		streams = append(streams, s)
	}
	for range 100 {
		f.gate <- struct{}{}
	}
	for _, s := range streams {
		if got, err := read(t.Context(), s); err != io.EOF || len(got) != 3 {
			t.Errorf("%d tokens, %v", len(got), err)
		}
	}
	if _, err := e.Submit(t.Context(), greedy(5, 3)); err != nil {
		t.Errorf("after the overload: %v", err)
	}
}

// TestWaitingRequestsExpire runs in fake time: the device takes a minute a step.
func TestWaitingRequestsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(1, 64)
		f.fault = func(*program.Step) error { time.Sleep(time.Minute); return nil }
		e := start(t, f, func(o *Options) { o.QueueTimeout = 90 * time.Second })
		began := time.Now()
		first, err := e.Submit(t.Context(), greedy(5, 5))
		if err != nil {
			t.Fatal(err)
		}
		second, err := e.Submit(t.Context(), greedy(6, 5))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := second.Next(t.Context()); !errors.Is(err, sched.ErrExpired) || second.Finish() != FinishError {
			t.Errorf("%v, %q", err, second.Finish())
		}
		if d := time.Since(began); d != 90*time.Second {
			t.Errorf("expired after %s", d)
		}
		if got, err := read(t.Context(), first); err != io.EOF || len(got) != 5 {
			t.Errorf("%d tokens, %v", len(got), err)
		}
		st := e.Stats()
		if st.Expired != 1 || st.StepTime.Count() != 5 || st.StepTime.Sum != 5*time.Minute || st.StepTime.Counts[len(StepSeconds)] != 5 {
			t.Errorf("stats %+v", st)
		}
		if err := e.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	for _, state := range []string{"in a step", "hanging step", "recovering", "idle"} {
		t.Run(state, func(t *testing.T) {
			f := newFake(2, 64)
			e := start(t, f, nil)
			f.set(func() {
				switch state {
				case "in a step":
					f.gate = make(chan struct{})
				case "hanging step":
					f.hang = true
				case "recovering":
					f.gate = make(chan struct{})
					f.fault = func(*program.Step) error { return errKilled }
				}
			})
			var streams []*Stream
			image := make(chan error, 1)
			image <- ErrClosed
			if state != "idle" {
				for range 4 {
					s, err := e.Submit(t.Context(), greedy(9, 100))
					if err != nil {
						t.Fatal(err)
					}
					streams = append(streams, s)
				}
				<-image
				go func() {
					_, err := e.EncodeImage(t.Context(), make([]uint16, 24), 2, 2)
					image <- err
				}()
				for e.Stats().Images == 0 {
					time.Sleep(time.Millisecond)
				}
			}
			if state == "recovering" {
				f.set(func() { f.hang = true })
				f.gate <- struct{}{}
				for !e.Stats().Recovering {
					time.Sleep(time.Millisecond)
				}
			}
			if err := e.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, s := range streams {
				_, err := read(t.Context(), s)
				if !errors.Is(err, ErrClosed) || s.Finish() != FinishAbort {
					t.Errorf("stream: %v, %q", err, s.Finish())
				}
			}
			if err := <-image; !errors.Is(err, ErrClosed) {
				t.Errorf("image: %v", err)
			}
			if _, err := e.Submit(t.Context(), greedy(3, 3)); !errors.Is(err, ErrClosed) {
				t.Errorf("submit: %v", err)
			}
			if err := e.Drain(t.Context()); !errors.Is(err, ErrClosed) {
				t.Errorf("drain: %v", err)
			}
		})
	}
}

func TestSeedsAreDrawnAtIntake(t *testing.T) {
	n := uint64(0)
	e := start(t, newFake(2, 64), func(o *Options) { o.Random = func() uint64 { n++; return 1000 + n } })
	p := sample.Default()
	q := Request{Prompt: prompt(9), MaxTokens: 12, Sampling: p, IgnoreEOS: true}
	a, _ := e.Submit(t.Context(), q)
	b, _ := e.Submit(t.Context(), q)
	if a.Seed() != 1001 || b.Seed() != 1002 {
		t.Errorf("seeds %d and %d", a.Seed(), b.Seed())
	}
	first, _ := read(t.Context(), a)
	if err := verify(q, 1001, first, a.Finish()); err != nil {
		t.Error(err)
	}
	q.Sampling.Seed, q.Sampling.Seeded = 1001, true
	c, _ := e.Submit(t.Context(), q)
	again, _ := read(t.Context(), c)
	for i := range first {
		if first[i].ID != again[i].ID {
			t.Fatalf("token %d differs under the same seed", i)
		}
	}
	q.Sampling.Seed = 0
	if d, _ := e.Submit(t.Context(), q); d.Seed() != 0 {
		t.Errorf("a given seed of 0 became %d", d.Seed())
	}
}

func TestABusyExecutorIsTriedAgain(t *testing.T) {
	f := newFake(1, 8)
	n := 0
	f.submitErr = func(*program.Step) error {
		if n++; n%3 != 0 {
			return ErrFull
		}
		return nil
	}
	e := start(t, f, nil)
	q := greedy(8, 5)
	s, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := read(t.Context(), s)
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
	if st := e.Stats(); st.Losses != 0 || st.StepFailures != 0 {
		t.Errorf("stats %+v", st)
	}
}

// lateExec answers some steps with an old result, or an old failure, first.
type lateExec struct {
	*fakeExec
	n int
}

func (l *lateExec) Wait(ctx context.Context) (*program.Result, error) {
	switch l.n++; {
	case l.n%5 == 2:
		return &program.Result{Seq: 0}, nil
	case l.n%5 == 4:
		return nil, &StepError{Seq: 0, Scope: backend.ScopeStep, Err: errBad}
	}
	return l.fakeExec.Wait(ctx)
}

func TestLateResultsAreDropped(t *testing.T) {
	f := newFake(1, 8)
	e := start(t, f, func(o *Options) { o.Executor = &lateExec{fakeExec: f} })
	q := greedy(8, 20)
	s, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := read(t.Context(), s)
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
	if st := e.Stats(); st.Losses != 0 || st.StepFailures != 0 || st.Steps != 20 {
		t.Errorf("stats %+v", st)
	}
}

func TestAnImageMayBeCancelledInItsStep(t *testing.T) {
	f := newFake(1, 8)
	f.gate = make(chan struct{})
	e := start(t, f, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var errs [2]chan error // one in a step, one waiting
	for i := range errs {
		errs[i] = make(chan error, 1)
		go func() {
			_, err := e.EncodeImage(ctx, make([]uint16, 24), 2, 2)
			errs[i] <- err
		}()
	}
	for e.Stats().Images != 1 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	for i := range errs {
		if err := <-errs[i]; !errors.Is(err, context.Canceled) {
			t.Errorf("image %d: %v", i, err)
		}
	}
	for e.Stats().Images != 0 {
		time.Sleep(time.Millisecond)
	}
	close(f.gate)
	q := greedy(8, 5)
	s, err := e.Submit(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	got, _ := read(t.Context(), s)
	if err := verify(q, 0, got, s.Finish()); err != nil {
		t.Error(err)
	}
	if st := e.Stats(); st.ImageSteps != 1 {
		t.Errorf("%d images encoded, want the one in flight", st.ImageSteps)
	}
}
