package wire

import (
	"fmt"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// maxElements bounds one array of a payload, so that sizes cannot overflow.
const maxElements = 1 << 28

// stepElem is the element size of each array of a submission.
var stepElem = func() (e [stepArrays]uint64) {
	for i := range e {
		e[i] = 4
	}
	e[arrSampling] = uint64(unsafe.Sizeof(abi.Sampling{}))
	e[arrBiases] = uint64(unsafe.Sizeof(abi.Bias{}))
	e[arrInput] = 2
	return e
}()

var resultElem = [resultArrays]uint64{arrIDs: 4, arrLogProb: 4, arrTopIDs: 4, arrTopLogProb: 4, arrRows: 2, arrOp: 1, arrMsg: 1}

func align8(n uint64) uint64 { return (n + 7) &^ 7 }

// payloadBytes is the size of the arrays, false when one is absurdly long.
func payloadBytes(lens []uint32, elem []uint64) (uint64, bool) {
	var n uint64
	for i, l := range lens {
		if l > maxElements {
			return 0, false
		}
		n += align8(uint64(l) * elem[i])
	}
	return n, true
}

// RequestBytes is the arena room that the largest step of a bucket needs: every row, sequence and logit row used, block tables of tableWidth entries,
// all masks and biases, input values of the InputName buffer. Most of it is never touched, and memory that is not touched costs nothing.
func RequestBytes(p *program.Program, tableWidth int) uint64 {
	rows, seqs, logits := uint64(p.Bucket.Rows), uint64(p.Bucket.Seqs), uint64(p.Bucket.Logits)
	batch := 5*align8(4*rows) + 5*align8(4*seqs) + align8(4*seqs*uint64(tableWidth)) + 2*align8(4*seqs*uint64(p.NHist))
	n := 2*batch + align8(4*rows) + align8(4*logits) + align8(stepElem[arrSampling]*logits)
	if v := uint64(p.Vocab()); v > 0 {
		n += align8(4*uint64(p.Bucket.MaskRows())*((v+31)/32)) + stepElem[arrBiases]*uint64(p.Bucket.Biases())
	}
	if i := p.Find(program.InputName); i >= 0 {
		n += align8(2 * rows * uint64(max(p.Buffers[i].Mul, 1)) * uint64(p.Buffers[i].Width()))
	}
	return n
}

// errorBytes is the room kept for the op and message of a failure.
const errorBytes = 2048

// ReplyBytes is the arena room that the largest result of a program needs.
func ReplyBytes(p *program.Program) uint64 {
	logits := uint64(p.Bucket.Logits)
	n := 2*align8(4*logits) + 2*align8(4*logits*uint64(p.TopN))
	if i := p.Find(program.OutRows); i >= 0 {
		n += align8(2 * uint64(max(p.Buffers[i].Bytes(p.Bucket.Count(p.Buffers[i].Domain))/2, 0)))
	}
	return n + errorBytes
}

// bytesOf views a slice's memory.
func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// put copies s to the cursor and returns the rest.
func put[T any](b []byte, s []T) []byte {
	n := copy(b, bytesOf(s))
	return b[align8(uint64(n)):]
}

// get copies n elements into *s, which keeps its memory from step to step, and returns the rest.
func get[T any](b []byte, s *[]T, n uint32) []byte {
	if cap(*s) < int(n) {
		*s = make([]T, n)
	}
	*s = (*s)[:n]
	c := copy(bytesOf(*s), b)
	return b[align8(uint64(c)):]
}

func batchLens(b *program.Batch, l []uint32) {
	for i, s := range [...][]int32{b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow, b.SeqFirst, b.SeqRows, b.SeqSlot, b.SeqLow, b.SeqWrite, b.Table, b.Hist, b.HistFlag} {
		l[i] = uint32(len(s))
	}
}

func putBatch(out []byte, b *program.Batch) []byte {
	for _, s := range [...][]int32{b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow, b.SeqFirst, b.SeqRows, b.SeqSlot, b.SeqLow, b.SeqWrite, b.Table, b.Hist, b.HistFlag} {
		out = put(out, s)
	}
	return out
}

func getBatch(in []byte, b *program.Batch, l []uint32) []byte {
	for i, s := range [...]*[]int32{&b.Token, &b.Pos, &b.Seq, &b.Flag, &b.ImageRow, &b.SeqFirst, &b.SeqRows, &b.SeqSlot, &b.SeqLow, &b.SeqWrite, &b.Table, &b.Hist, &b.HistFlag} {
		in = get(in, s, l[i])
	}
	return in
}

// describe fills the step-dependent fields of m. Counts that do not fit the wire form are an error of the step.
func (m *Submission) describe(s *program.Step) error {
	for _, n := range [...]int{s.TopN, s.GridH, s.GridW, s.Cells, s.Rows.TableWidth, s.Kept.TableWidth, s.MaskWords} {
		if n < 0 || n > maxElements {
			return fmt.Errorf("step %d: count %d is out of range", s.Seq, n)
		}
	}
	m.Step, m.Program, m.Flags = s.Seq, s.Program, 0
	m.TopN, m.GridH, m.GridW, m.Cells = uint32(s.TopN), uint32(s.GridH), uint32(s.GridW), uint32(s.Cells)
	m.TableWidth, m.KeptTableWidth, m.MaskWords = uint32(s.Rows.TableWidth), 0, uint32(s.MaskWords)
	clear(m.Len[:])
	batchLens(&s.Rows, m.Len[:batchArrays])
	if s.Kept.Token != nil {
		m.Flags |= flagKept
		m.KeptTableWidth = uint32(s.Kept.TableWidth)
		batchLens(&s.Kept, m.Len[arrKept:arrKept+batchArrays])
	}
	m.Len[arrKeptIndex] = uint32(len(s.KeptIndex))
	m.Len[arrLogits] = uint32(len(s.Logits))
	m.Len[arrSampling] = uint32(len(s.Sampling))
	m.Len[arrMasks] = uint32(len(s.Masks))
	m.Len[arrBiases] = uint32(len(s.Biases))
	m.Len[arrInput] = uint32(len(s.Input))
	n, ok := payloadBytes(m.Len[:], stepElem[:])
	if !ok {
		return fmt.Errorf("step %d: an array has more than %d entries", s.Seq, maxElements)
	}
	m.PayloadLen = n
	return nil
}

// putStep writes the arrays in their order. out has PayloadLen bytes.
func putStep(out []byte, s *program.Step) {
	out = putBatch(out, &s.Rows)
	if s.Kept.Token != nil {
		out = putBatch(out, &s.Kept)
	}
	out = put(out, s.KeptIndex)
	out = put(out, s.Logits)
	out = put(out, s.Sampling)
	out = put(out, s.Masks)
	out = put(out, s.Biases)
	put(out, s.Input)
}

// StepBuffer holds a private copy of a step; its arrays keep their memory from one step to the next.
type StepBuffer struct {
	step program.Step
	kept program.Batch // memory of Step.Kept between steps that have it
}

// load copies a payload. The caller has checked that len(in) equals what m.Len needs.
func (b *StepBuffer) load(m *Submission, in []byte) *program.Step {
	s := &b.step
	s.Seq, s.Program, s.TopN = m.Step, m.Program, int(m.TopN)
	s.GridH, s.GridW, s.Cells, s.MaskWords = int(m.GridH), int(m.GridW), int(m.Cells), int(m.MaskWords)
	in = getBatch(in, &s.Rows, m.Len[:batchArrays])
	s.Rows.TableWidth = int(m.TableWidth)
	in = getBatch(in, &b.kept, m.Len[arrKept:arrKept+batchArrays])
	s.Kept = program.Batch{}
	if m.Flags&flagKept != 0 {
		if b.kept.Token == nil {
			b.kept.Token = make([]int32, 0, 1) // present but empty; Validate refuses it
		}
		s.Kept = b.kept
		s.Kept.TableWidth = int(m.KeptTableWidth)
	}
	in = get(in, &s.KeptIndex, m.Len[arrKeptIndex])
	in = get(in, &s.Logits, m.Len[arrLogits])
	in = get(in, &s.Sampling, m.Len[arrSampling])
	in = get(in, &s.Masks, m.Len[arrMasks])
	in = get(in, &s.Biases, m.Len[arrBiases])
	get(in, &s.Input, m.Len[arrInput])
	return s
}

// cut shortens s to n bytes.
func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// putResult writes the arrays of a result, or the text of a failure, and fills the lengths of m. out is the reply part of the partition.
func (m *Completion) putResult(out []byte, r *program.Result, fail *backend.Error) error {
	clear(m.Len[:])
	m.Code, m.Scope, m.Native, m.ReplyLen = 0, 0, 0, 0
	if fail != nil {
		m.Code, m.Scope, m.Native = fail.Code, uint32(fail.Scope), fail.Native
		if m.Code == 0 {
			m.Code = abi.Internal
		}
		half := min(len(out), errorBytes)/2 - 8
		if half <= 0 {
			return nil
		}
		op, msg := cut(fail.Op, half), cut(fail.Msg, half)
		m.Len[arrOp], m.Len[arrMsg] = uint32(len(op)), uint32(len(msg))
		copy(out, op)
		copy(out[align8(uint64(len(op))):], msg)
		m.ReplyLen = align8(uint64(len(op))) + align8(uint64(len(msg)))
		return nil
	}
	m.Len[arrIDs] = uint32(len(r.IDs))
	m.Len[arrLogProb] = uint32(len(r.LogProb))
	m.Len[arrTopIDs] = uint32(len(r.TopIDs))
	m.Len[arrTopLogProb] = uint32(len(r.TopLogProb))
	m.Len[arrRows] = uint32(len(r.Rows))
	n, ok := payloadBytes(m.Len[:], resultElem[:])
	if !ok || n > uint64(len(out)) {
		clear(m.Len[:])
		return fmt.Errorf("result of step %d needs %d bytes, the reply part of its partition has %d", r.Seq, n, len(out))
	}
	out = put(out, r.IDs)
	out = put(out, r.LogProb)
	out = put(out, r.TopIDs)
	out = put(out, r.TopLogProb)
	put(out, r.Rows)
	m.ReplyLen = n
	return nil
}

// loadResult copies a reply into r. The caller has checked that len(in) equals what c.Len needs.
func loadResult(c *Completion, in []byte, r *program.Result) {
	r.Seq = c.Step
	r.HostNS = int64(c.Done - c.Dequeued)
	in = get(in, &r.IDs, c.Len[arrIDs])
	in = get(in, &r.LogProb, c.Len[arrLogProb])
	in = get(in, &r.TopIDs, c.Len[arrTopIDs])
	in = get(in, &r.TopLogProb, c.Len[arrTopLogProb])
	get(in, &r.Rows, c.Len[arrRows])
}

// loadFailure rebuilds the error of a failed step. It allocates; failures are not the hot path.
func loadFailure(c *Completion, in []byte) *backend.Error {
	op := string(in[:c.Len[arrOp]])
	msg := string(in[align8(uint64(c.Len[arrOp])):][:c.Len[arrMsg]])
	scope := backend.Scope(c.Scope)
	if scope < backend.ScopeStep || scope > backend.ScopeHost {
		scope = backend.ScopeDevice // an unknown scope is taken as the graver case
	}
	return &backend.Error{Code: c.Code, Scope: scope, Native: c.Native, Op: op, Msg: msg}
}
