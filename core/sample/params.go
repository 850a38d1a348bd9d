package sample

import (
	"errors"
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Bounds of the parameters.
const (
	MaxTemperature = 100  // above it every distribution is flat in FP32
	minTemperature = 1e-5 // below it logits divided by it leave the range of FP32; the draw is the argmax there anyway
	MaxStopIDs     = 1024
)

// Params choose how the tokens of one request are drawn. Default returns the neutral ones; the zero value is not valid (TopP 0).
type Params struct {
	Temperature float32 // 0 = argmax, lowest id wins; up to MaxTemperature
	TopP        float32 // in (0, 1]; 1 = off
	MinP        float32 // in [0, 1]; 0 = off
	TopK        int     // 0 = off
	Seed        uint64  // key of the random numbers
	Seeded      bool    // Seed was given, even if it is 0; otherwise a Seed of 0 is replaced by 64 random bits at intake
	Salt        uint32  // choice index (n > 1): same seed, other draws

	// What follows changes logits before the filters above. The log-probabilities that are reported stay those of the model. Only the newest PenaltyWindow
	// tokens count for the penalties.
	Frequency  float32 // subtracted once for each time an id was drawn; in [-2, 2]
	Presence   float32 // subtracted from ids that were drawn; in [-2, 2]
	Repetition float32 // divides positive logits of ids in prompt and answer, multiplies negative ones; in (0, 2]; 0 or 1 = off
	Bias       []Bias  // added to logits, in [-100, 100]; each id once
	Blocked    []int32 // ids that are never drawn
}

// Default returns temperature 1 without filters.
func Default() Params { return Params{Temperature: 1, TopP: 1} }

// Greedy returns temperature 0: the most likely token each time.
func Greedy() Params { return Params{TopP: 1} }

// ParamError is a parameter outside its range.
type ParamError struct {
	Name  string // as clients spell it: "top_p"
	Value any
	Want  string // the allowed range in words
}

// Error names parameter, value and range.
func (e *ParamError) Error() string { return fmt.Sprintf("%s %v: must be %s", e.Name, e.Value, e.Want) }

// Validate reports every parameter outside its range as *ParamError, joined. NewAdjuster checks ids against the vocabulary.
func (p Params) Validate() error {
	var errs []error
	bad := func(name string, v any, want string) {
		errs = append(errs, &ParamError{Name: name, Value: v, Want: want})
	}
	in := func(v, low, high float32) bool { return v >= low && v <= high } // false for NaN
	if !in(p.Temperature, 0, MaxTemperature) {
		bad("temperature", p.Temperature, fmt.Sprintf("in [0, %d]; 0 takes the most likely token", MaxTemperature))
	}
	if !in(p.TopP, math.SmallestNonzeroFloat32, 1) {
		bad("top_p", p.TopP, "in (0, 1]; 1 turns it off")
	}
	if !in(p.MinP, 0, 1) {
		bad("min_p", p.MinP, "in [0, 1]; 0 turns it off")
	}
	if p.TopK < 0 || p.TopK > math.MaxInt32 {
		bad("top_k", p.TopK, "in [0, 2147483647]; 0 turns it off")
	}
	p.validateAdjust(bad)
	return errors.Join(errs...)
}

// Row returns how the token with absolute index pos is drawn. The caller adds mask and biases.
func (p *Params) Row(pos int) abi.Sampling {
	t := p.Temperature
	if t < minTemperature {
		t = 0
	}
	return abi.Sampling{Seed: p.Seed, Pos: int32(pos), Salt: p.Salt, Temperature: t, TopP: p.TopP, MinP: p.MinP, TopK: int32(p.TopK), Forced: -1}
}

// ForcedRow returns the row that scores id as the token with absolute index pos; nothing is drawn.
func ForcedRow(pos int, id int32) abi.Sampling {
	return abi.Sampling{Pos: int32(pos), TopP: 1, Forced: id}
}
