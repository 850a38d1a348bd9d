package program

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Names of the buffers that carry a step's payload in and its results out.
const (
	InputName     = "input"        // Input BF16 [T, H] image rows (main) or [T, 3pp] patches (vision), filled from Step.Input
	LogitsIndex   = "logits_index" // Input I32 [L], filled from Step.Logits: the rows that copy ops gather for the head
	KeptIndex     = "kept_index"   // Input I32 [K], filled from Step.KeptIndex, in programs that narrow the decoder half
	OutIDs        = "ids"          // I32 [L]
	OutLogProb    = "logprob"      // F32 [L]
	OutTopIDs     = "top_ids"      // I32 [L, TopN]
	OutTopLogProb = "top_logprob"  // F32 [L, TopN]
	OutRows       = "rows"         // BF16 [L, H] of a vision program
)

// Batch is the host side of abi.Batch: the rows of a step in order of sequence. Slices are indexed as documented there.
type Batch struct {
	Token, Pos, Seq, Flag, ImageRow              []int32 // per row
	SeqFirst, SeqRows, SeqSlot, SeqLow, SeqWrite []int32 // per sequence
	Table                                        []int32 // [seqs, TableWidth] granule ids
	TableWidth                                   int
	Hist, HistFlag                               []int32 // [seqs, NHist]
}

// MaxRowBiases bounds the bias entries of one logit row.
const MaxRowBiases = 1 << 14

// MaskRows bounds the masks of a step. Rows that only score need none, so a mask for every logit row would waste memory: there are as many as for eight
// drawn rows of each sequence.
func (b Bucket) MaskRows() int { return min(b.Logits, 8*b.Seqs) }

// Biases bounds the bias entries of a step.
func (b Bucket) Biases() int { return b.Seqs * MaxRowBiases }

// Step is one run of a program. The executor owns it from Submit until the result arrives; it is never edited in between.
type Step struct {
	Seq     uint64 // number of the step, grows by one
	Program uint32 // id given by Compile
	Rows    Batch
	// Kept, when its Token is not nil, lists the rows that the decoder half serves (a subset of Rows, same sequences) and
	// KeptIndex their indices in Rows; nil = all rows.
	Kept      Batch
	KeptIndex []int32 // see the KeptIndex buffer

	Logits   []int32        // rows (of Kept, or of Rows) whose logits are wanted
	Sampling []abi.Sampling // one per entry of Logits
	// Masks are rows of MaskWords words, ceil(V/32) each, for the rows whose Sampling.Mask names one (from 1). Biases are the entries that the ranges
	// BiasFirst, BiasCount choose from; rows may share them. Both may be empty.
	Masks     []uint32
	MaskWords int
	Biases    []abi.Bias
	TopN      int // log-probabilities of the best TopN ids per logit row, 0 = none

	Input        []uint16 // BF16 payload of the InputName buffer
	GridH, GridW int      // vision: patch grid
	Cells        int      // vision: merged cells (the Logits domain)
}

// Count returns the members of a domain in this step.
func (s *Step) Count(d Domain) int {
	switch d {
	case Rows:
		if s.GridH > 0 {
			return s.GridH * s.GridW
		}
		return len(s.Rows.Token)
	case Kept:
		if s.Kept.Token != nil {
			return len(s.Kept.Token)
		}
		return len(s.Rows.Token)
	case Logits:
		if s.GridH > 0 {
			return s.Cells
		}
		return len(s.Logits)
	}
	return 1
}

// Result is what a step returns. Slices are reused by the executor: valid until the next step's result is taken.
type Result struct {
	Seq        uint64
	IDs        []int32   // [L]
	LogProb    []float32 // [L]
	TopIDs     []int32   // [L, TopN] best first
	TopLogProb []float32
	Rows       []uint16 // vision: BF16 [cells, H]
	HostNS     int64    // time between dequeue and completion on the worker's clock
}

// Validate checks a step against the program that shall run it: counts within the bucket, every index in range. slots and granules
// are the pool sizes. The backend may rely on it.
func (s *Step) Validate(p *Program, slots, granules, vocab int) error {
	bad := func(format string, a ...any) error {
		return fmt.Errorf("step %d: "+format, append([]any{s.Seq}, a...)...)
	}
	if s.GridH > 0 || s.GridW > 0 {
		if s.GridH <= 0 || s.GridW <= 0 || s.GridH*s.GridW > p.Bucket.Rows || s.Cells <= 0 || s.Cells > p.Bucket.Logits {
			return bad("grid %dx%d with %d cells does not fit bucket %d/%d", s.GridH, s.GridW, s.Cells, p.Bucket.Rows, p.Bucket.Logits)
		}
		if i := p.Find(InputName); i < 0 || len(s.Input) != s.GridH*s.GridW*p.Buffers[i].Width() {
			return bad("patch payload has %d values", len(s.Input))
		}
		return nil
	}
	if err := s.Rows.validate(p, slots, granules, vocab, len(s.Input)/max(1, inputWidth(p))); err != nil {
		return bad("rows: %w", err)
	}
	final := &s.Rows
	if s.Kept.Token != nil {
		if err := s.Kept.validate(p, slots, granules, vocab, 0); err != nil {
			return bad("kept rows: %w", err)
		}
		if len(s.KeptIndex) != len(s.Kept.Token) {
			return bad("%d kept indices for %d kept rows", len(s.KeptIndex), len(s.Kept.Token))
		}
		for _, r := range s.KeptIndex {
			if r < 0 || int(r) >= len(s.Rows.Token) {
				return bad("kept index %d of %d rows", r, len(s.Rows.Token))
			}
		}
		final = &s.Kept
	}
	if len(s.Logits) > p.Bucket.Logits || len(s.Sampling) != len(s.Logits) || s.TopN < 0 || s.TopN > p.TopN {
		return bad("%d logit rows (bucket %d), %d sampling rows, top %d (capacity %d)", len(s.Logits), p.Bucket.Logits, len(s.Sampling), s.TopN, p.TopN)
	}
	for _, r := range s.Logits {
		if r < 0 || int(r) >= len(final.Token) {
			return bad("logit row %d of %d", r, len(final.Token))
		}
	}
	masks := 0
	if len(s.Masks) > 0 || s.MaskWords != 0 {
		if s.MaskWords < 1 || s.MaskWords != (vocab+31)/32 || len(s.Masks)%s.MaskWords != 0 {
			return bad("%d words of masks in rows of %d, vocabulary %d needs %d a row", len(s.Masks), s.MaskWords, vocab, (vocab+31)/32)
		}
		if masks = len(s.Masks) / s.MaskWords; masks > p.Bucket.MaskRows() {
			return bad("%d masks, the bucket takes %d", masks, p.Bucket.MaskRows())
		}
	}
	if len(s.Biases) > p.Bucket.Biases() {
		return bad("%d bias entries, the bucket takes %d", len(s.Biases), p.Bucket.Biases())
	}
	for i := range s.Biases {
		if err := s.Biases[i].Check(vocab); err != nil {
			return bad("bias %d: %w", i, err)
		}
	}
	for i := range s.Sampling {
		r := &s.Sampling[i]
		switch {
		case r.Forced >= int32(vocab):
			return bad("forced id %d, vocabulary %d", r.Forced, vocab)
		case r.Mask < 0 || int(r.Mask) > masks:
			return bad("logit row %d: mask %d of %d", i, r.Mask, masks)
		case r.BiasFirst < 0 || r.BiasCount < 0 || int64(r.BiasFirst)+int64(r.BiasCount) > int64(len(s.Biases)):
			return bad("logit row %d: bias entries %d+%d of %d", i, r.BiasFirst, r.BiasCount, len(s.Biases))
		}
	}
	return nil
}

func inputWidth(p *Program) int {
	if i := p.Find(InputName); i >= 0 {
		return p.Buffers[i].Width()
	}
	return 0
}

func (b *Batch) validate(p *Program, slots, granules, vocab, images int) error {
	t, n := len(b.Token), len(b.SeqSlot)
	if t == 0 || t > p.Bucket.Rows || n == 0 || n > p.Bucket.Seqs {
		return fmt.Errorf("%d rows, %d sequences; bucket %d rows, %d sequences", t, n, p.Bucket.Rows, p.Bucket.Seqs)
	}
	if len(b.Pos) != t || len(b.Seq) != t || len(b.Flag) != t || len(b.ImageRow) != t {
		return fmt.Errorf("row arrays of unequal length")
	}
	if len(b.SeqFirst) != n || len(b.SeqRows) != n || len(b.SeqLow) != n || len(b.SeqWrite) != n || len(b.Table) != n*b.TableWidth ||
		len(b.Hist) != n*p.NHist || len(b.HistFlag) != n*p.NHist {
		return fmt.Errorf("sequence arrays of unequal length")
	}
	row := 0
	for q := range n {
		if b.SeqSlot[q] < 0 || int(b.SeqSlot[q]) >= slots {
			return fmt.Errorf("sequence %d: slot %d of %d", q, b.SeqSlot[q], slots)
		}
		if int(b.SeqFirst[q]) != row || b.SeqRows[q] < 0 || row+int(b.SeqRows[q]) > t {
			return fmt.Errorf("sequence %d: rows %d+%d do not continue at %d of %d", q, b.SeqFirst[q], b.SeqRows[q], row, t)
		}
		for i := range int(b.SeqRows[q]) {
			r := row + i
			if b.Seq[r] != int32(q) || b.Pos[r] < 0 || i > 0 && b.Pos[r] != b.Pos[r-1]+1 {
				return fmt.Errorf("row %d: sequence %d position %d", r, b.Seq[r], b.Pos[r])
			}
			if b.Token[r] < 0 || int(b.Token[r]) >= vocab {
				return fmt.Errorf("row %d: token %d, vocabulary %d", r, b.Token[r], vocab)
			}
			if int(b.ImageRow[r]) >= images {
				return fmt.Errorf("row %d: image row %d of %d", r, b.ImageRow[r], images)
			}
		}
		row += int(b.SeqRows[q])
		if n := int(b.SeqRows[q]); n > 0 {
			last := int(b.Pos[row-1])
			if last/128 >= b.TableWidth {
				return fmt.Errorf("sequence %d: position %d outside a table of %d granules", q, last, b.TableWidth)
			}
			for _, g := range b.Table[q*b.TableWidth : q*b.TableWidth+last/128+1] {
				if g < 0 || int(g) >= granules {
					return fmt.Errorf("sequence %d: granule %d of %d", q, g, granules)
				}
			}
		}
		for _, h := range b.Hist[q*p.NHist : (q+1)*p.NHist] {
			if h < 0 || int(h) >= vocab {
				return fmt.Errorf("sequence %d: preceding token %d, vocabulary %d", q, h, vocab)
			}
		}
	}
	if row != t {
		return fmt.Errorf("sequences cover %d of %d rows", row, t)
	}
	return nil
}
