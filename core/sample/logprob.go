package sample

import (
	"errors"
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Candidate is one of the most likely tokens of a position.
type Candidate struct {
	ID      int32
	LogProb float32
}

// Token is one drawn or scored token with its log-probabilities, taken from the unfiltered logits.
type Token struct {
	ID      int32
	LogProb float32
	Top     []Candidate // best first; nil when none were asked for
}

// Floor is the lowest log-probability that is reported: an impossible token has it instead of minus infinity, which JSON cannot carry.
const Floor = -9999

// ErrNotANumber reports logits that contain NaN: the model or the backend is broken for this input.
var ErrNotANumber = errors.New("the model computed no valid probabilities (NaN)")

// ErrNothingAllowed reports that mask, blocked ids and biases left no token to draw.
var ErrNothingAllowed = errors.New("no token is allowed here: every id of the vocabulary is masked or blocked")

// CheckResult verifies that a result carries what its step asked for: rows logit rows with topN candidates each.
func CheckResult(r *program.Result, rows, topN int) error {
	if len(r.IDs) < rows || len(r.LogProb) < rows || len(r.TopIDs) < rows*topN || len(r.TopLogProb) < rows*topN {
		return fmt.Errorf("result has %d ids, %d log-probabilities, %d and %d candidates for %d rows with %d candidates each", len(r.IDs), len(r.LogProb), len(r.TopIDs), len(r.TopLogProb), rows, topN)
	}
	return nil
}

// Assemble reads logit row i of a result whose step asked for topN candidates per row, and keeps the best want of them. CheckResult must have passed. The
// token is a copy; only Top, when want > 0, is allocated.
func Assemble(r *program.Result, i, topN, want, vocab int) (Token, error) {
	t := Token{ID: r.IDs[i], LogProb: max(r.LogProb[i], Floor)} // max keeps NaN
	if t.LogProb != t.LogProb || t.LogProb > math.MaxFloat32 {
		return t, ErrNotANumber
	}
	if t.ID == -1 {
		return t, ErrNothingAllowed
	}
	if t.ID < 0 || int(t.ID) >= vocab {
		return t, fmt.Errorf("the backend drew token %d, the vocabulary has %d", t.ID, vocab)
	}
	want = min(want, topN)
	if want <= 0 {
		return t, nil
	}
	t.Top = make([]Candidate, 0, want)
	for k := range want {
		id := r.TopIDs[i*topN+k]
		if id < 0 { // fewer candidates than asked for: a vocabulary smaller than N
			break
		}
		t.Top = append(t.Top, Candidate{ID: id, LogProb: max(r.TopLogProb[i*topN+k], Floor)})
	}
	return t, nil
}
