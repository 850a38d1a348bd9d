package program

import (
	"math"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// rowsStep is a valid step of one sequence with n rows, all of them with logits.
func rowsStep(n int) *Step {
	s := &Step{Seq: 5, Rows: Batch{SeqFirst: []int32{0}, SeqRows: []int32{int32(n)}, SeqSlot: []int32{0}, SeqLow: []int32{0}, SeqWrite: []int32{0}, Table: []int32{0}, TableWidth: 1}}
	for i := range int32(n) {
		b := &s.Rows
		b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow = append(b.Token, i), append(b.Pos, i), append(b.Seq, 0), append(b.Flag, 0), append(b.ImageRow, -1)
		s.Logits, s.Sampling = append(s.Logits, i), append(s.Sampling, abi.Sampling{Forced: -1})
	}
	return s
}

// TestMasksAndBiasesAreChecked: a backend may rely on every index.
func TestMasksAndBiasesAreChecked(t *testing.T) {
	const vocab = 70 // three words
	p := &Program{Bucket: Bucket{Rows: 16, Seqs: 1, Logits: 16}}
	good := func() *Step {
		s := rowsStep(2)
		s.Masks, s.MaskWords = make([]uint32, 6), 3
		s.Biases = []abi.Bias{{Id: 69, Add: -3}, abi.Block(0), abi.Repeat(69, 1.5)}
		s.Sampling[0].Mask, s.Sampling[1].BiasFirst, s.Sampling[1].BiasCount = 2, 1, 2
		return s
	}
	if err := good().Validate(p, 1, 1, vocab); err != nil {
		t.Fatal(err)
	}
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for want, edit := range map[string]func(*Step){
		"vocabulary 70 needs 3":       func(s *Step) { s.MaskWords = 2 },
		"masks in rows of 0":          func(s *Step) { s.MaskWords = 0 },
		"5 words":                     func(s *Step) { s.Masks = s.Masks[:5] },
		"mask 3 of 2":                 func(s *Step) { s.Sampling[0].Mask = 3 },
		"mask -1 of 2":                func(s *Step) { s.Sampling[0].Mask = -1 },
		"mask 2 of 0":                 func(s *Step) { s.Masks, s.MaskWords = nil, 0 },
		"9 masks, the bucket takes 8": func(s *Step) { s.Masks = make([]uint32, 27) },
		"entries 2+2 of 3":            func(s *Step) { s.Sampling[1].BiasFirst = 2 },
		"entries -1+2":                func(s *Step) { s.Sampling[1].BiasFirst = -1 },
		"entries 1+-1":                func(s *Step) { s.Sampling[1].BiasCount = -1 },
		"of 3":                        func(s *Step) { s.Sampling[1].BiasFirst, s.Sampling[1].BiasCount = math.MaxInt32, math.MaxInt32 },
		"bias 1: id 70":               func(s *Step) { s.Biases[1].Id = 70 },
		"bias 2: id 70":               func(s *Step) { s.Biases[2].Id = ^70 },
		"value NaN":                   func(s *Step) { s.Biases[0].Add = nan },
		"value +Inf":                  func(s *Step) { s.Biases[0].Add = inf },
		"factor 0":                    func(s *Step) { s.Biases[2].Add = 0 },
		"16385 bias entries":          func(s *Step) { s.Biases = make([]abi.Bias, MaxRowBiases+1) },
	} {
		s := good()
		edit(s)
		if err := s.Validate(p, 1, 1, vocab); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
}
