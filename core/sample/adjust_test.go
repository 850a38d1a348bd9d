package sample

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

func adjuster(t *testing.T, p Params, blocked []int32, vocab, prompt int) *Adjuster {
	t.Helper()
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	a, err := NewAdjuster(&p, blocked, vocab, prompt)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// logits applies entries the way a backend does.
func logits(z []float64, entries []abi.Bias) []float64 {
	z = slices.Clone(z)
	for _, b := range entries {
		switch {
		case b.Id >= 0:
			z[b.Id] += float64(b.Add)
		case z[^b.Id] > 0:
			z[^b.Id] /= float64(b.Add)
		default:
			z[^b.Id] *= float64(b.Add)
		}
	}
	return z
}

func TestNothingToAdjust(t *testing.T) {
	for _, p := range []Params{Default(), {TopP: 1, Repetition: 1}} {
		if a := adjuster(t, p, []int32{3}, 10, 4); a != nil {
			t.Errorf("%+v: an adjuster although nothing changes", p)
		}
	}
}

// TestAdjustmentsFollowTheirDefinition recounts the whole window for each token and compares logits.
func TestAdjustmentsFollowTheirDefinition(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 5))
	const vocab = 40
	for trial := range 60 {
		p := Default()
		if trial%2 == 0 {
			p.Frequency = float32(r.IntN(9)-4) / 2
		}
		if trial%3 == 0 {
			p.Presence = float32(r.IntN(9)-4) / 2
		}
		if trial%5 == 0 {
			p.Repetition = float32(r.IntN(7)+1) / 4
		}
		for _, id := range r.Perm(vocab)[:r.IntN(4)] {
			p.Bias = append(p.Bias, Bias{int32(id), float32(r.IntN(200) - 100)})
		}
		for range r.IntN(3) {
			p.Blocked = append(p.Blocked, int32(r.IntN(vocab)))
		}
		var ids []int32
		for range 1 + r.IntN(30) {
			ids = append(ids, int32(r.IntN(vocab)))
		}
		prompt := len(ids)
		server := []int32{7}
		a := adjuster(t, p, server, vocab, prompt)
		if a == nil {
			continue
		}
		z := make([]float64, vocab)
		for i := range z {
			z[i] = r.NormFloat64() * 4
		}
		for range 40 {
			want := slices.Clone(z)
			for _, b := range p.Bias {
				want[b.ID] += float64(b.Add)
			}
			for _, id := range append(slices.Clone(p.Blocked), server...) {
				want[id] = math.Inf(-1)
			}
			for id := range int32(vocab) {
				drawn := 0
				for _, x := range ids[prompt:] {
					if x == id {
						drawn++
					}
				}
				if p.Repetition != 0 && slices.Contains(ids, id) {
					if want[id] > 0 {
						want[id] /= float64(p.Repetition)
					} else {
						want[id] *= float64(p.Repetition)
					}
				}
				if drawn > 0 {
					want[id] -= float64(drawn)*float64(p.Frequency) + float64(p.Presence)
				}
			}
			entries := a.Append(nil, ids)
			for _, b := range entries {
				if err := b.Check(vocab); err != nil {
					t.Fatal(err)
				}
			}
			got := logits(z, entries)
			for id := range want {
				if got[id] != want[id] && math.Abs(got[id]-want[id]) > 1e-5 {
					t.Fatalf("trial %d: %+v after %v: logit %d is %v, want %v", trial, p, ids, id, got[id], want[id])
				}
			}
			ids = append(ids, int32(r.IntN(vocab)))
		}
	}
}

// TestPenaltiesForgetOldTokens keeps the entries of a row within what a step can carry.
func TestPenaltiesForgetOldTokens(t *testing.T) {
	p := Default()
	p.Frequency, p.Repetition = 0.5, 1.5
	const vocab = 100_000
	for i := range int32(MaxBiasIDs) {
		p.Bias, p.Blocked = append(p.Bias, Bias{i, 1}), append(p.Blocked, i)
	}
	ids := make([]int32, 3*PenaltyWindow)
	for i := range ids {
		ids[i] = int32(i) // all distinct
	}
	prompt := 2 * PenaltyWindow
	a := adjuster(t, p, make([]int32, MaxBiasIDs), vocab, prompt)
	for n := prompt; n <= len(ids); n += 97 {
		got := a.Append(nil, ids[:n])
		if len(got) >= program.MaxRowBiases { // one is left for the engine
			t.Fatalf("%d entries after %d tokens, a row takes %d", len(got), n, program.MaxRowBiases)
		}
		got = got[len(a.fixed):]
		if want := PenaltyWindow + n - prompt; len(got) != want {
			t.Fatalf("%d entries after %d drawn tokens, want %d", len(got), n-prompt, want)
		}
		for _, b := range got {
			if id := max(b.Id, ^b.Id); int(id) < n-PenaltyWindow {
				t.Fatalf("token %d of %d still counts", id, n)
			}
		}
	}
}

func TestAdjusterDoesNotAllocate(t *testing.T) {
	p := Default()
	p.Frequency, p.Repetition, p.Bias = 0.5, 1.2, []Bias{{3, 4}}
	a := adjuster(t, p, nil, 100, 1)
	ids := make([]int32, 1, 2000)
	dst := a.Append(nil, ids)
	for i := range 500 {
		ids = append(ids, int32(i%50))
		dst = a.Append(dst[:0], ids)
	}
	if n := testing.AllocsPerRun(1000, func() {
		ids = append(ids, int32(len(ids)%50))
		dst = a.Append(dst[:0], ids)
	}); n != 0 {
		t.Errorf("%v allocations a token", n)
	}
}

func TestAbsurdAdjustmentsAreNamed(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for want, set := range map[string]func(*Params){
		"frequency_penalty 2.1: must be in [-2, 2]":          func(p *Params) { p.Frequency = 2.1 },
		"frequency_penalty NaN":                              func(p *Params) { p.Frequency = nan },
		"presence_penalty -3":                                func(p *Params) { p.Presence = -3 },
		"presence_penalty +Inf":                              func(p *Params) { p.Presence = inf },
		"repetition_penalty -1: must be in (0, 2]":           func(p *Params) { p.Repetition = -1 },
		"repetition_penalty 1e-42":                           func(p *Params) { p.Repetition = 1e-42 },
		"repetition_penalty NaN":                             func(p *Params) { p.Repetition = nan },
		"logit_bias of id 5 is 101: must be in [-100, 100]":  func(p *Params) { p.Bias = []Bias{{5, 101}} },
		"logit_bias of id 5 is NaN":                          func(p *Params) { p.Bias = []Bias{{5, nan}} },
		"logit_bias of id 5 is -Inf":                         func(p *Params) { p.Bias = []Bias{{5, -inf}} },
		"logit_bias of 1025 ids: must be for at most 1024":   func(p *Params) { p.Bias = make([]Bias, 1025) },
		"logit_bias of id 10: must be for ids in [0, 10)":    func(p *Params) { p.Bias = []Bias{{10, 1}} },
		"logit_bias of id -1: must be for ids in [0, 10)":    func(p *Params) { p.Bias = []Bias{{-1, 1}} },
		"logit_bias of id 4: must be given once for each id": func(p *Params) { p.Bias = []Bias{{4, 1}, {4, 2}} },
		"blocked id 10: must be in [0, 10): the vocabulary":  func(p *Params) { p.Blocked = []int32{10} },
		"blocked ids of 1025 ids: must be at most 1024 ids":  func(p *Params) { p.Blocked = make([]int32, 1025) },
	} {
		p := Default()
		set(&p)
		err := p.Validate()
		if err == nil {
			_, err = NewAdjuster(&p, nil, 10, 1)
		}
		var pe *ParamError
		if !errors.As(err, &pe) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want *ParamError with %q", err, want)
		}
	}
}
