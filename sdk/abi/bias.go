package abi

import (
	"fmt"
	"math"
)

// Block returns the entry that keeps id from being drawn.
func Block(id int32) Bias { return Bias{Id: id, Add: float32(math.Inf(-1))} }

// Repeat returns the entry that makes id less likely (factor > 1) or more likely (factor < 1): its logit is divided by factor where positive and
// multiplied by it elsewhere.
func Repeat(id int32, factor float32) Bias { return Bias{Id: ^id, Add: factor} }

// Check reports an entry that di_bias does not allow for a vocabulary of vocab ids.
func (b Bias) Check(vocab int) error {
	id, factor := b.Id, b.Id < 0
	if factor {
		id = ^id
	}
	switch {
	case int(id) >= vocab:
		return fmt.Errorf("id %d, the vocabulary has %d", id, vocab)
	case b.Add != b.Add || b.Add > math.MaxFloat32:
		return fmt.Errorf("id %d: value %v, must be finite or -Inf", id, b.Add)
	case factor && !(b.Add > 0):
		return fmt.Errorf("id %d: factor %v, must be above 0", id, b.Add)
	}
	return nil
}
