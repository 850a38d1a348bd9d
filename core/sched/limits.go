package sched

import (
	"errors"
	"fmt"
)

// Limits bound what the scheduler hands out. The zero value of an optional field means its default.
type Limits struct {
	Slots    int // requests that run at the same time; required, at most MaxRows and MaxSeqs and MaxLogits
	Granules int // units of the KV pool; required

	MaxRows   int // T_max: rows of one step; required
	MaxSeqs   int // sequences of one step; 0 = MaxRows
	MaxLogits int // logit rows of one step; 0 = MaxRows

	GranuleTokens int // tokens of a granule; 0 = 128
	Window        int // W: no chunk leaves fewer than this many rows of a prompt for the last one; 0 = 128

	MaxQueue       int // requests that may wait; 0 = 8 x Slots
	MaxQueueTokens int // prompt rows that may wait or be in prefill together; 0 = no limit. One prompt alone may exceed it.
	MaxRetries     int // losses of the device that a request survives without a new token in between; 0 = 8
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.MaxSeqs, l.MaxRows)
	def(&l.MaxLogits, l.MaxRows)
	def(&l.GranuleTokens, 128)
	def(&l.Window, 128)
	def(&l.MaxQueue, 8*l.Slots)
	def(&l.MaxRetries, 8)
	return l
}

// Validate reports every limit that is out of range. Defaults must have been applied.
func (l Limits) Validate() error {
	var errs []error
	for _, f := range []struct {
		name string
		v    int
		low  int
	}{
		{"slots", l.Slots, 1}, {"granules", l.Granules, 1}, {"max rows", l.MaxRows, 1}, {"max sequences", l.MaxSeqs, 1}, {"max logits", l.MaxLogits, 1},
		{"granule tokens", l.GranuleTokens, 1}, {"window", l.Window, 1}, {"max queue", l.MaxQueue, 1}, {"max queue tokens", l.MaxQueueTokens, 0}, {"max retries", l.MaxRetries, 1},
	} {
		if f.v < f.low || f.v > 1<<31-1 {
			errs = append(errs, fmt.Errorf("scheduler limits: %s %d: must be in %d..2147483647", f.name, f.v, f.low))
		}
	}
	if fit := min(l.MaxRows, l.MaxSeqs, l.MaxLogits); l.Slots > fit {
		// Otherwise the decodes alone could fill every step and a prompt would wait for ever.
		errs = append(errs, fmt.Errorf("scheduler limits: %d slots: a step holds %d rows, %d sequences and %d logits, so at most %d requests may run", l.Slots, l.MaxRows, l.MaxSeqs, l.MaxLogits, fit))
	}
	return errors.Join(errs...)
}

// aligned reports whether steps are wide enough that chunks can end on granule boundaries without starving a prompt behind decodes (serving 2.1).
func (l *Limits) aligned() bool { return l.MaxRows >= l.Slots+2*l.Window+l.GranuleTokens }

// Chunk returns how many rows of a prompt go into a step. pos is the first uncomputed row, n the rows of the prompt, budget the rows left in the step,
// replay the rows that a prefix hit recomputes first. An unfinished chunk ends on a multiple of granule and leaves at least window rows, so that the last
// chunk holds all rows of the final window. With budget >= replay + window + granule - 1 the result is positive.
func Chunk(pos, n, budget, replay, window, granule int) int {
	b := budget - replay
	if b <= 0 || pos >= n {
		return 0
	}
	rem := n - pos
	if rem <= b {
		return rem
	}
	c := b
	if rem-c < window {
		c = rem - window
	}
	c = (pos+c)/granule*granule - pos
	return max(c, 0)
}
