// Package tiny is a complete model of two matrices for tests of executors: embed, then head, then sample. The weights make the greedy answer a known function of the last
// token (Next), so a test can tell a right result from a stale, shifted or foreign one without a second implementation.
//
// Plain functions; what they return belongs to the caller.
package tiny

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Vocab is the number of token ids, and the width of the model: every token has a dimension of its own.
const Vocab = 64

// TopN is the capacity of the log-probability outputs.
const TopN = 2

// Next is the greedy continuation of a token.
func Next(t int32) int32 { return (5*t + 3) % Vocab }

// Weights is a backend.WeightSource over one file.
type Weights struct{ File backend.WeightFile }

const matrixBytes = Vocab * Vocab * 2

// bytes holds embed.weight, then head.weight: BF16 [Vocab, Vocab].
func content() []byte {
	b := make([]byte, 2*matrixBytes)
	for t := range Vocab {
		one := func(off, row, col int) { binary.LittleEndian.PutUint16(b[off+2*(row*Vocab+col):], 0x3f80) } // 1.0
		one(0, t, t)
		one(matrixBytes, int(Next(int32(t))), t)
	}
	return b
}

// Embedded returns weights without a path, as an embedded model has them.
func Embedded() *Weights {
	return &Weights{backend.WeightFile{Name: "tiny", Data: content()}}
}

// OnDisk writes the weights to a file in dir and names its path.
func OnDisk(dir string) (*Weights, error) {
	w := Embedded()
	w.File.Path = filepath.Join(dir, "tiny.safetensors")
	return w, os.WriteFile(w.File.Path, w.File.Data, 0o644)
}

// Tensor implements backend.WeightSource.
func (w *Weights) Tensor(name string) (backend.TensorInfo, bool) {
	t := backend.TensorInfo{Name: name, DType: "BF16", Shape: []int64{Vocab, Vocab}, Size: matrixBytes}
	switch name {
	case "embed.weight":
	case "head.weight":
		t.Offset = matrixBytes
	default:
		return t, false
	}
	return t, true
}

// Files implements backend.WeightSource.
func (w *Weights) Files() []backend.WeightFile { return []backend.WeightFile{w.File} }

// Spec is a model spec with room for 8 sequences.
func Spec(w backend.WeightSource) engine.ModelSpec {
	return engine.ModelSpec{Weights: w, SlotBytes: 64, Slots: 8, Granule: 64, Granules: 16}
}

// Program lowers the model for steps of at most that many rows.
func Program(rows int) *program.Program {
	p := &program.Program{Format: program.Format, OpSet: abi.OpSet, Name: fmt.Sprintf("tiny-%d", rows), Profile: "reference", Acc: abi.F32, Bucket: program.Bucket{Rows: rows, Seqs: 8, Logits: 8},
		TopN: TopN, SlotBytes: 64, Granule: 64}
	add := func(b program.Buffer) int {
		if b.Kind == program.Temp || b.Kind == program.Input || b.Kind == program.Output {
			b.Offset = p.Workspace
			p.Workspace += (b.Bytes(p.Bucket.Count(b.Domain)) + 63) / 64 * 64
		}
		p.Buffers = append(p.Buffers, b)
		return len(p.Buffers) - 1
	}
	weight := func(name string) int {
		return add(program.Buffer{Name: name, Kind: program.Weight, Weight: &program.WeightRef{Format: abi.WBF16, N: Vocab, K: Vocab, Names: []string{name}}})
	}
	embed, head := weight("embed.weight"), weight("head.weight")
	h := add(program.Buffer{Name: "h", Kind: program.Temp, DType: abi.BF16, Domain: program.Rows, Dims: []int{1, Vocab}})
	x := add(program.Buffer{Name: "x", Kind: program.Temp, DType: abi.BF16, Domain: program.Rows, Dims: []int{Vocab}})
	index := add(program.Buffer{Name: program.LogitsIndex, Kind: program.Input, DType: abi.I32, Domain: program.Logits})
	logits := add(program.Buffer{Name: "logits", Kind: program.Temp, DType: abi.F32, Domain: program.Logits, Dims: []int{Vocab}})
	out := func(name string, dtype uint32, dims ...int) int {
		return add(program.Buffer{Name: name, Kind: program.Output, DType: dtype, Domain: program.Logits, Dims: dims})
	}
	ids, lp := out(program.OutIDs, abi.I32), out(program.OutLogProb, abi.F32)
	top, toplp := out(program.OutTopIDs, abi.I32, TopN), out(program.OutTopLogProb, abi.F32, TopN)
	op := func(code program.Code, label string, o ...program.Operand) {
		p.Ops = append(p.Ops, program.Op{Code: code, Label: label, Operands: o})
	}
	at := func(name string, buf int) program.Operand { return program.Operand{Name: name, Buf: buf} }
	op(program.Embed, "embed", at("w", embed), at("y", h))
	op(program.MHCMean, "mean", at("h", h), at("x", x))
	op(program.Head, "head", at("x", x), at("w", head), at("rows", index), at("y", logits))
	op(program.Sample, "sample", at("logits", logits), at("ids", ids), at("logprob", lp), at("top_ids", top), at("top_logprob", toplp))
	return p
}

// Step is one decode step: sequence i, in slot i, has token tokens[i] at position pos. Every row wants logits, drawn greedily.
func Step(seq uint64, prog uint32, pos int32, tokens ...int32) *program.Step {
	s := &program.Step{Seq: seq, Program: prog, TopN: TopN}
	b := &s.Rows
	b.TableWidth = 1
	for i, t := range tokens {
		n := int32(i)
		b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow = append(b.Token, t), append(b.Pos, pos), append(b.Seq, n), append(b.Flag, 0), append(b.ImageRow, -1)
		b.SeqFirst, b.SeqRows, b.SeqSlot, b.SeqLow, b.SeqWrite = append(b.SeqFirst, n), append(b.SeqRows, 1), append(b.SeqSlot, n), append(b.SeqLow, 0), append(b.SeqWrite, 0)
		b.Table = append(b.Table, n)
		s.Logits = append(s.Logits, n)
		s.Sampling = append(s.Sampling, abi.Sampling{Pos: pos, TopP: 1, Forced: -1})
	}
	return s
}

// Check says what is wrong with the result of a Step.
func Check(s *program.Step, r *program.Result) error {
	if r.Seq != s.Seq || len(r.IDs) != len(s.Logits) || len(r.LogProb) != len(s.Logits) || len(r.TopIDs) != TopN*len(s.Logits) || len(r.TopLogProb) != len(r.TopIDs) {
		return fmt.Errorf("step %d: result %d with %d ids, %d log-probabilities, %d and %d best; want %d rows", s.Seq, r.Seq, len(r.IDs), len(r.LogProb), len(r.TopIDs), len(r.TopLogProb), len(s.Logits))
	}
	for i, row := range s.Logits {
		if want := Next(s.Rows.Token[row]); r.IDs[i] != want || r.TopIDs[TopN*i] != want {
			return fmt.Errorf("step %d row %d: token %d, best %d, want %d", s.Seq, i, r.IDs[i], r.TopIDs[TopN*i], want)
		}
		if l := r.LogProb[i]; !(l < 0 && l > -10) {
			return fmt.Errorf("step %d row %d: log-probability %v", s.Seq, i, l)
		}
	}
	return nil
}

var _ backend.WeightSource = (*Weights)(nil)
