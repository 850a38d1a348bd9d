package refop

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Ops executes op set 1 with sums in F. The zero value works on the caller's goroutine.
type Ops[F Float] struct {
	// Parallel runs fn over disjoint ranges that cover [0,n), possibly at the same time, and returns when all are done. nil = one
	// call fn(0,n). It must not be called by two goroutines at once. The results do not depend on the split.
	Parallel func(n int, fn func(lo, hi int))

	mu      sync.Mutex
	weights map[*abi.Weight]*packed[F]
	free    []*scratch[F] // idle scratch areas

	job  job
	body func(lo, hi int) // runs job; made once so that a call allocates nothing
	a    arena[F]         // scratch of the calling goroutine, rewound by every op

	gemm   gemmJob[F]
	attend attendJob[F]
	sel    selectJob[F]
	loop   loopJob[F]
}

// New returns Ops that spread work with parallel (nil = none).
func New[F Float](parallel func(n int, fn func(lo, hi int))) *Ops[F] {
	return &Ops[F]{Parallel: parallel}
}

var (
	_ backend.GEMM      = (*Ops[float32])(nil)
	_ backend.Attention = (*Ops[float32])(nil)
	_ backend.AllToAll  = (*Ops[float64])(nil)
	_ backend.Vector    = (*Ops[float64])(nil)
)

// job is the body of one op; the struct behind it lives in Ops and is reused.
type job interface{ run(lo, hi int) }

// grain is the work, in multiply-adds, below which spreading over workers costs more than it gains (about 10 us of one core).
const grain = 16384

// do runs j over [0,n), where one item costs about cost multiply-adds.
func (o *Ops[F]) do(n, cost int, j job) {
	if n == 0 {
		return
	}
	if o.Parallel == nil || n == 1 || n*cost < 2*grain {
		j.run(0, n)
		return
	}
	if o.body == nil {
		o.body = func(lo, hi int) { o.job.run(lo, hi) }
	}
	o.job = j
	o.Parallel(n, o.body)
	o.job = nil
}

// loopJob runs one of the row-wise ops over a range of rows. The op is a number, not a function value: those of generic methods allocate.
type loopJob[F Float] struct {
	o   *Ops[F]
	op  loopOp
	p   unsafe.Pointer // the op's argument struct
	x   []F            // values that all rows share
	y   []F
	n   []int32
	par []F
}

func (j *loopJob[F]) run(lo, hi int) {
	s := j.o.take()
	for i := lo; i < hi; i++ {
		j.item(s, i)
		s.reset()
	}
	j.o.give(s)
}

// arena hands out zero-cost slices from one growing block. Slices are valid until reset.
type arena[F Float] struct {
	f  []F
	fn int
	i  []int32
	in int
}

func (a *arena[F]) reset() { a.fn, a.in = 0, 0 }

// floats returns n values of undefined content.
func (a *arena[F]) floats(n int) []F {
	if a.fn+n > len(a.f) {
		a.f = make([]F, max(2*len(a.f), n)) // slices handed out before keep the old block
		a.fn = 0
	}
	s := a.f[a.fn : a.fn+n : a.fn+n]
	a.fn += n
	return s
}

// ints returns n integers of undefined content.
func (a *arena[F]) ints(n int) []int32 {
	if a.in+n > len(a.i) {
		a.i = make([]int32, max(2*len(a.i), n))
		a.in = 0
	}
	s := a.i[a.in : a.in+n : a.in+n]
	a.in += n
	return s
}

// scratch is the memory of one worker range.
type scratch[F Float] struct{ arena[F] }

func (o *Ops[F]) take() *scratch[F] {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.free); n > 0 {
		s := o.free[n-1]
		o.free = o.free[:n-1]
		s.reset()
		return s
	}
	return &scratch[F]{}
}

func (o *Ops[F]) give(s *scratch[F]) {
	o.mu.Lock()
	o.free = append(o.free, s)
	o.mu.Unlock()
}

// fault is the error of a refused call.
func fault(op, format string, a ...any) error {
	return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: op, Msg: fmt.Sprintf(format, a...)}
}

// checker collects the first problem of a call's arguments.
type checker struct {
	op  string
	err error
}

func (c *checker) fail(format string, a ...any) {
	if c.err == nil {
		c.err = fault(c.op, format, a...)
	}
}

var dtypeNames = [...]string{"none", "F32", "F64", "BF16", "I32", "I64", "U8"}

func dtypeName(d uint32) string {
	if int(d) < len(dtypeNames) {
		return dtypeNames[d]
	}
	return fmt.Sprintf("dtype(%d)", d)
}

const floats = 0 // stands for F32 or F64 in shape

// maxElements bounds an operand: far above any step, and low enough that no product of two dimensions overflows.
const maxElements = 1 << 31

// shape checks an operand: dtype (floats = F32 or F64), rank, sizes, alignment and that it is there. A wanted size of -1 accepts any.
func (c *checker) shape(name string, t *abi.Tensor, dtype uint32, dims ...int) {
	if c.err != nil {
		return
	}
	if dtype == floats && t.DType != abi.F32 && t.DType != abi.F64 {
		c.fail("%s is %s, must be F32 or F64", name, dtypeName(t.DType))
		return
	}
	if dtype != floats && t.DType != dtype {
		c.fail("%s is %s, must be %s", name, dtypeName(t.DType), dtypeName(dtype))
		return
	}
	if len(dims) == 2 && (t.Rank == 3 || t.Rank == 4) { // rows of any inner shape
		if t.Dim[0] < 0 || t.Dim[0] > maxElements || t.Dim[1] < 0 || t.Dim[1] > 1<<20 || t.Dim[2] < 0 || t.Dim[2] > 1<<20 || t.Rank == 4 && (t.Dim[3] < 0 || t.Dim[3] > 1<<20) {
			c.fail("%s has dimensions %v", name, t.Dim[:t.Rank])
		} else if dims[0] >= 0 && t.Dim[0] != int64(dims[0]) || dims[1] >= 0 && t.Width() != dims[1] {
			c.fail("%s has %d rows of %d, must have %d of %d", name, t.Dim[0], t.Width(), dims[0], dims[1])
		} else if t.Stride != 0 && t.Stride < int64(t.Width()) {
			c.fail("%s row stride %d is below its row of %d", name, t.Stride, t.Width())
		} else {
			c.data(name, t, t.Dim[0]*int64(t.Width()))
		}
		return
	}
	if int(t.Rank) != len(dims) {
		c.fail("%s has %d dimensions, must have %d", name, t.Rank, len(dims))
		return
	}
	total := int64(1)
	for i, d := range dims {
		v := t.Dim[i]
		if v < 0 || v > maxElements || d >= 0 && v != int64(d) {
			c.fail("%s dimension %d is %d, must be %d", name, i, v, d)
			return
		}
		if total *= v; total > maxElements {
			c.fail("%s has more than 2^31 elements", name)
			return
		}
	}
	if t.Stride != 0 && t.Stride < int64(t.Width()) {
		c.fail("%s row stride %d is below its row of %d", name, t.Stride, t.Width())
		return
	}
	c.data(name, t, total)
}

func (c *checker) data(name string, t *abi.Tensor, total int64) {
	if total == 0 {
		return
	}
	if t.Data == nil {
		c.fail("%s is absent", name)
	} else if e := abi.ElemBytes(t.DType); uintptr(t.Data)%uintptr(e) != 0 {
		c.fail("%s at %#x is not aligned to %d bytes", name, uintptr(t.Data), e)
	}
}

// flat checks an operand whose elements are used in order: total elements, any rank, dense.
func (c *checker) flat(name string, t *abi.Tensor, dtype uint32, total int) {
	if c.err != nil {
		return
	}
	ok := t.DType == dtype || dtype == floats && (t.DType == abi.F32 || t.DType == abi.F64)
	if !ok {
		want := dtypeName(dtype)
		if dtype == floats {
			want = "F32 or F64"
		}
		c.fail("%s is %s, must be %s", name, dtypeName(t.DType), want)
		return
	}
	if t.Rank < 1 || t.Rank > 4 {
		c.fail("%s has %d dimensions", name, t.Rank)
		return
	}
	n := int64(1)
	for i := range int(t.Rank) {
		if t.Dim[i] < 0 || t.Dim[i] > maxElements {
			c.fail("%s dimension %d is %d", name, i, t.Dim[i])
			return
		}
		if n *= t.Dim[i]; n > maxElements {
			c.fail("%s has more than 2^31 elements", name)
			return
		}
	}
	if n != int64(total) {
		c.fail("%s has %d elements, must have %d", name, n, total)
		return
	}
	if t.Stride != 0 && t.Stride != int64(t.Width()) {
		c.fail("%s must be dense, its row stride is %d of a row of %d", name, t.Stride, t.Width())
		return
	}
	c.data(name, t, n)
}

// rows checks a BF16 operand of any rank that is read row by row along its last dimension, and returns its size in rows and columns.
func (c *checker) rows(name string, t *abi.Tensor, dtype uint32) (rows, cols int) {
	if c.err != nil {
		return
	}
	if t.DType != dtype {
		c.fail("%s is %s, must be %s", name, dtypeName(t.DType), dtypeName(dtype))
		return
	}
	if t.Rank < 1 || t.Rank > 4 {
		c.fail("%s has %d dimensions, must have 1 to 4", name, t.Rank)
		return
	}
	total := int64(1)
	for i := range int(t.Rank) {
		if t.Dim[i] < 0 || t.Dim[i] > maxElements {
			c.fail("%s dimension %d is %d", name, i, t.Dim[i])
			return
		}
		if total *= t.Dim[i]; total > maxElements {
			c.fail("%s has more than 2^31 elements", name)
			return
		}
	}
	if t.Stride != 0 && t.Stride < int64(t.Width()) {
		c.fail("%s row stride %d is below its row of %d", name, t.Stride, t.Width())
		return
	}
	c.data(name, t, total)
	cols = int(t.Dim[t.Rank-1])
	if cols > 0 {
		rows = int(total) / cols
	}
	return rows, cols
}

func (c *checker) weight(name string, w *abi.Weight) {
	if p := weightProblem(w); p != "" {
		c.fail("weight %s%s %s", name, nameOf(w), p)
	}
}

func (c *checker) batch(b *abi.Batch, rows int) {
	if c.err != nil {
		return
	}
	if b == nil {
		c.fail("batch is absent")
		return
	}
	if b.Rows < 0 || b.Seqs < 0 || int(b.Rows) != rows {
		c.fail("batch has %d rows and %d sequences, the operands have %d rows", b.Rows, b.Seqs, rows)
		return
	}
	if rows > 0 && (b.Pos == nil || b.Seq == nil || b.Token == nil || b.Flag == nil) {
		c.fail("batch lacks its row arrays")
		return
	}
}

// seqs checks the arrays by sequence and that they describe the rows.
func (c *checker) seqs(b *abi.Batch) {
	if c.err != nil || b.Rows == 0 {
		return
	}
	if b.Seqs < 1 || b.SeqFirst == nil || b.SeqRows == nil || b.SeqSlot == nil || b.SeqLow == nil || b.SeqWrite == nil {
		c.fail("batch lacks its sequence arrays")
		return
	}
	first, rows, slot := arr(b.SeqFirst, b.Seqs), arr(b.SeqRows, b.Seqs), arr(b.SeqSlot, b.Seqs)
	for i := range first {
		if rows[i] < 0 || first[i] < 0 || first[i] > b.Rows-rows[i] {
			c.fail("sequence %d has rows %d+%d of %d", i, first[i], rows[i], b.Rows)
			return
		}
		if slot[i] < 0 {
			c.fail("sequence %d has state slot %d", i, slot[i])
			return
		}
	}
	for r, s := range arr(b.Seq, b.Rows) {
		if s < 0 || s >= b.Seqs {
			c.fail("row %d belongs to sequence %d of %d", r, s, b.Seqs)
			return
		}
		if int32(r) < first[s] || int32(r) >= first[s]+rows[s] {
			c.fail("row %d lies outside its sequence %d", r, s)
			return
		}
	}
	pos, owner := arr(b.Pos, b.Rows), arr(b.Seq, b.Rows)
	for r, p := range pos {
		if p < 0 || r > 0 && owner[r] == owner[r-1] && p != pos[r-1]+1 {
			c.fail("row %d has position %d: positions of a sequence start at 0 or above and are consecutive", r, p)
			return
		}
	}
}

// table checks that the granule table of every sequence covers entries below (pos+1)/ratio of its last row.
func (c *checker) table(b *abi.Batch, g *abi.Region) {
	if c.err != nil || b.Rows == 0 {
		return
	}
	if b.SeqTable == nil || b.TableWidth < 1 {
		c.fail("batch lacks its granule table")
		return
	}
	first, rows, pos := arr(b.SeqFirst, b.Seqs), arr(b.SeqRows, b.Seqs), arr(b.Pos, b.Rows)
	tab := arr(b.SeqTable, b.Seqs*b.TableWidth)
	for s := range first {
		if rows[s] == 0 {
			continue
		}
		n := (pos[first[s]+rows[s]-1] + 1) / g.Ratio // entries
		n = (n + g.Rows - 1) / g.Rows                // granules
		if n > b.TableWidth {
			c.fail("sequence %d needs %d granules, its table has %d", s, n, b.TableWidth)
			return
		}
		for i := range n {
			if tab[int32(s)*b.TableWidth+i] < 0 {
				c.fail("sequence %d has no granule for entries from %d", s, i*g.Rows)
				return
			}
		}
	}
}

// region checks a region of packed records.
func (c *checker) region(name string, g *abi.Region) {
	if c.err != nil {
		return
	}
	if p := recordProblem(g.Format, int(g.Dim), int(g.Rope)); p != "" {
		c.fail("%s format %d of %d values: %s", name, g.Format, g.Dim, p)
		return
	}
	if want := abi.RecordBytes(g.Format, int(g.Dim), int(g.Rope)); int(g.RowBytes) != want {
		c.fail("%s rows have %d bytes, the format needs %d", name, g.RowBytes, want)
		return
	}
	if g.Base == nil || g.Rows < 1 || g.Ratio < 1 || g.Offset < 0 || g.UnitStride < 0 {
		c.fail("%s is incomplete: base %p, %d rows, ratio %d, offset %d, stride %d", name, g.Base, g.Rows, g.Ratio, g.Offset, g.UnitStride)
	}
}

// arr views a batch array.
func arr(p *int32, n int32) []int32 {
	if p == nil {
		return nil
	}
	return unsafe.Slice(p, n)
}

// row views row i of an operand whose rows along dim 0 may be strided.
func row[E any](t *abi.Tensor, i int) []E {
	w := t.Width()
	if w == 0 {
		return nil
	}
	e := unsafe.Sizeof(*new(E))
	return unsafe.Slice((*E)(unsafe.Add(t.Data, uintptr(i)*uintptr(t.RowStride())*e)), w)
}

// lastRow views row i counted over all dimensions but the last.
func lastRow[E any](t *abi.Tensor, i int) []E {
	cols := int(t.Dim[t.Rank-1])
	if cols == 0 {
		return nil
	}
	off := 0
	if t.Rank > 1 {
		per := t.Width() / cols
		off = i/per*t.RowStride() + i%per*cols
	}
	return unsafe.Slice((*E)(unsafe.Add(t.Data, uintptr(off)*unsafe.Sizeof(*new(E)))), cols)
}

// widen converts BF16 values.
func widen[F Float](y []F, x []uint16) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] = F(Wide(v))
	}
}

// narrow rounds to BF16.
func narrow[F Float](y []uint16, x []F) {
	y = y[:len(x)]
	for i, v := range x {
		y[i] = BF16(v)
	}
}

// readF views n floats from element at of an F32 or F64 operand as F, converting into tmp when the types differ.
func readF[F Float](t *abi.Tensor, at, n int, tmp *arena[F]) []F {
	if n == 0 {
		return nil
	}
	if uint32(unsafe.Sizeof(F(0))) == uint32(abi.ElemBytes(t.DType)) {
		return unsafe.Slice((*F)(unsafe.Add(t.Data, at*int(unsafe.Sizeof(F(0))))), n)
	}
	y := tmp.floats(n)
	if t.DType == abi.F32 {
		for i, v := range unsafe.Slice((*float32)(unsafe.Add(t.Data, at*4)), n) {
			y[i] = F(v)
		}
	} else {
		for i, v := range unsafe.Slice((*float64)(unsafe.Add(t.Data, at*8)), n) {
			y[i] = F(v)
		}
	}
	return y
}

// writeF stores floats from element at of an F32 or F64 operand.
func writeF[F Float](t *abi.Tensor, at int, x []F) {
	if len(x) == 0 {
		return
	}
	if t.DType == abi.F32 {
		y := unsafe.Slice((*float32)(unsafe.Add(t.Data, at*4)), len(x))
		for i, v := range x {
			y[i] = float32(v)
		}
		return
	}
	y := unsafe.Slice((*float64)(unsafe.Add(t.Data, at*8)), len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
}
