package sample

import (
	"fmt"
	"slices"
)

// Stop recognises token ids that end an answer. The zero value never stops.
type Stop struct {
	ids []int32 // ascending
}

// NewStop combines the model's end-of-sequence ids, unless ignoreEOS, with the request's own. All ids must lie in the vocabulary.
func NewStop(eos, own []int32, ignoreEOS bool, vocab int) (Stop, error) {
	if len(own) > MaxStopIDs {
		return Stop{}, &ParamError{Name: "stop_token_ids", Value: fmt.Sprintf("of %d ids", len(own)), Want: fmt.Sprintf("at most %d ids", MaxStopIDs)}
	}
	for i, id := range own {
		if id < 0 || int(id) >= vocab {
			return Stop{}, &ParamError{Name: fmt.Sprintf("stop_token_ids[%d]", i), Value: id, Want: fmt.Sprintf("in [0, %d): the vocabulary", vocab)}
		}
	}
	ids := slices.Clone(own)
	if !ignoreEOS {
		ids = append(ids, eos...)
	}
	slices.Sort(ids)
	return Stop{ids: slices.Compact(ids)}, nil
}

// Hit reports whether id ends the answer.
func (s Stop) Hit(id int32) bool {
	if len(s.ids) < 16 {
		return slices.Contains(s.ids, id)
	}
	_, ok := slices.BinarySearch(s.ids, id)
	return ok
}
