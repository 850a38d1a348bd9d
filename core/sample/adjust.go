package sample

import (
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Bounds of what changes logits.
const (
	MaxPenalty    = 2    // frequency and presence penalties lie in [-MaxPenalty, MaxPenalty]
	MaxRepetition = 2    // repetition penalty: in (0, MaxRepetition]
	MaxBias       = 100  // a logit bias lies in [-MaxBias, MaxBias]
	MaxBiasIDs    = 1024 // ids with a bias; as many may be blocked by a request, and by the server

	// PenaltyWindow is how many of the newest tokens the penalties look at. A step has room for two entries for each of them beside the biased and
	// blocked ids of a row.
	PenaltyWindow = (program.MaxRowBiases - 3*MaxBiasIDs - 1) / 2
)

// Bias is added to the logit of one id.
type Bias struct {
	ID  int32
	Add float32
}

// penalised says whether tokens of the answer so far change the next draw.
func (p *Params) penalised() bool {
	return p.Frequency != 0 || p.Presence != 0 || p.Repetition != 0 && p.Repetition != 1
}

// Adjuster gives the bias entries of one request's rows: blocked ids, logit bias, and penalties from the counts of its tokens. It is a value of one
// request for one goroutine.
type Adjuster struct {
	fixed                           []abi.Bias
	frequency, presence, repetition float32 // repetition 0 = off
	penalised                       bool
	prompt                          int

	from, to int // tokens that are counted
	entries  []count
	index    map[int32]int32 // id to entry
}

// count is how often an id occurs in the window.
type count struct {
	id    int32
	drawn int32
	all   int32 // with those of the prompt, which count for the repetition penalty
}

// NewAdjuster checks the ids of p, and returns nil when p changes no logit. blocked are ids of the server's, which count as a reason only together with
// p's own. prompt is the length of the prompt. It does not keep slices of p.
func NewAdjuster(p *Params, blocked []int32, vocab, prompt int) (*Adjuster, error) {
	for _, id := range p.Blocked {
		if id < 0 || int(id) >= vocab {
			return nil, &ParamError{Name: "blocked id", Value: id, Want: fmt.Sprintf("in [0, %d): the vocabulary", vocab)}
		}
	}
	seen := make(map[int32]bool, len(p.Bias))
	for _, b := range p.Bias {
		if b.ID < 0 || int(b.ID) >= vocab {
			return nil, &ParamError{Name: "logit_bias", Value: fmt.Sprintf("of id %d", b.ID), Want: fmt.Sprintf("for ids in [0, %d): the vocabulary", vocab)}
		}
		if seen[b.ID] {
			return nil, &ParamError{Name: "logit_bias", Value: fmt.Sprintf("of id %d", b.ID), Want: "given once for each id"}
		}
		seen[b.ID] = true
	}
	if len(p.Blocked)+len(p.Bias) == 0 && !p.penalised() {
		return nil, nil
	}
	a := &Adjuster{frequency: p.Frequency, presence: p.Presence, penalised: p.penalised(), prompt: prompt, from: prompt, to: prompt}
	for _, ids := range [][]int32{blocked, p.Blocked} {
		for _, id := range ids {
			a.fixed = append(a.fixed, abi.Block(id))
		}
	}
	for _, b := range p.Bias {
		if b.Add != 0 {
			a.fixed = append(a.fixed, abi.Bias{Id: b.ID, Add: b.Add})
		}
	}
	if a.penalised {
		a.index = make(map[int32]int32)
	}
	if p.Repetition != 0 && p.Repetition != 1 {
		a.repetition = p.Repetition
		a.from = max(0, prompt-PenaltyWindow)
		a.to = a.from
	}
	return a, nil
}

// Append adds the entries for the token that follows ids, the prompt and what was drawn so far. From one call to the next ids only grows; its new part is
// counted.
func (a *Adjuster) Append(dst []abi.Bias, ids []int32) []abi.Bias {
	dst = append(dst, a.fixed...)
	if !a.penalised {
		return dst
	}
	for ; a.to < len(ids); a.to++ {
		a.add(ids[a.to], +1, a.to >= a.prompt)
	}
	for ; a.from < a.to-PenaltyWindow; a.from++ {
		a.add(ids[a.from], -1, a.from >= a.prompt)
	}
	for i := range a.entries {
		c := &a.entries[i]
		if a.repetition != 0 {
			dst = append(dst, abi.Repeat(c.id, a.repetition))
		}
		if c.drawn > 0 {
			if v := -(a.frequency*float32(c.drawn) + a.presence); v != 0 {
				dst = append(dst, abi.Bias{Id: c.id, Add: v})
			}
		}
	}
	return dst
}

func (a *Adjuster) add(id, n int32, drawn bool) {
	i, ok := a.index[id]
	if !ok {
		i = int32(len(a.entries))
		a.entries = append(a.entries, count{id: id})
		a.index[id] = i
	}
	c := &a.entries[i]
	c.all += n
	if drawn {
		c.drawn += n
	}
	if c.all == 0 { // left the window: the last entry takes its place
		last := len(a.entries) - 1
		*c = a.entries[last]
		a.index[c.id] = i
		a.entries = a.entries[:last]
		delete(a.index, id)
	}
}

// validateAdjust reports values outside their range.
func (p *Params) validateAdjust(bad func(name string, v any, want string)) {
	for _, f := range []struct {
		name string
		v    float32
	}{{"frequency_penalty", p.Frequency}, {"presence_penalty", p.Presence}} {
		if !(f.v >= -MaxPenalty && f.v <= MaxPenalty) {
			bad(f.name, f.v, fmt.Sprintf("in [-%d, %d]; 0 turns it off", MaxPenalty, MaxPenalty))
		}
	}
	if !(p.Repetition >= 0 && p.Repetition <= MaxRepetition) || p.Repetition != 0 && 1/p.Repetition > math.MaxFloat32 {
		bad("repetition_penalty", p.Repetition, fmt.Sprintf("in (0, %d]; 1 turns it off", MaxRepetition))
	}
	if len(p.Bias) > MaxBiasIDs {
		bad("logit_bias", fmt.Sprintf("of %d ids", len(p.Bias)), fmt.Sprintf("for at most %d ids", MaxBiasIDs))
	}
	for _, b := range p.Bias {
		if !(b.Add >= -MaxBias && b.Add <= MaxBias) {
			bad("logit_bias", fmt.Sprintf("of id %d is %v", b.ID, b.Add), fmt.Sprintf("in [-%d, %d]", MaxBias, MaxBias))
			break
		}
	}
	if len(p.Blocked) > MaxBiasIDs {
		bad("blocked ids", fmt.Sprintf("of %d ids", len(p.Blocked)), fmt.Sprintf("at most %d ids", MaxBiasIDs))
	}
}
