package checkpoint

import (
	"errors"
	"fmt"
)

// Kind classifies a Problem.
type Kind string

// Kinds of problems.
const (
	KindFile      Kind = "file"       // a shard or the index is damaged, incomplete or inconsistent
	KindMissing   Kind = "missing"    // the configuration needs the tensor, no shard has it
	KindExtra     Kind = "extra"      // a shard has the tensor, the configuration has no place for it
	KindShape     Kind = "shape"      // wrong shape
	KindDType     Kind = "dtype"      // wrong element type
	KindNonFinite Kind = "non-finite" // NaN or infinity among the values
	KindRange     Kind = "range"      // a value out of its range, such as an expert number
	KindName      Kind = "name"       // names with and without prefix, or of an unfolded checkpoint
	KindTokenizer Kind = "tokenizer"  // tokenizer or token map do not fit the configuration
)

// Problem is one thing wrong with a checkpoint.
type Problem struct {
	Kind   Kind
	Name   string // tensor or file
	Detail string // what was found and what is wanted
}

// Error formats the problem on one line.
func (p Problem) Error() string { return fmt.Sprintf("%s: %s: %s", p.Kind, p.Name, p.Detail) }

// Join turns problems into one error, one line each; nil for none.
func Join(problems []Problem) error {
	errs := make([]error, len(problems))
	for i, p := range problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}
