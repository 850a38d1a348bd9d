package refop

import (
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// block is the length of the partial sums of a dot product: each block of 64 is summed from its first element on, the block sums are
// added in order. Every product in this package uses this order, so it depends on K alone and the error grows with K/64.
const block = 64

// dot1 is the dot product in the order of block.
func dot1[F Float](x, w []F) F {
	w = w[:len(x)]
	var sum F
	for len(x) > block {
		xb, wb := x[:block], w[:block]
		var a F
		for i, v := range xb {
			a += F(v * wb[i])
		}
		sum += a
		x, w = x[block:], w[block:]
	}
	w = w[:len(x)]
	var a F
	for i, v := range x {
		a += F(v * w[i])
	}
	return sum + a
}

// dot4 is dot1 of x with four rows of w at a time: four chains of additions hide their latency. Two rows of x as well would halve the loads, but need more
// registers than the compiler has: measured at 0.9 against 2.0 billion multiply-adds a second on an EPYC core (six and eight rows of w: 1.9 and 1.6).
func dot4[F Float](x, w0, w1, w2, w3 []F) (s0, s1, s2, s3 F) {
	n := len(x)
	for at := 0; at < n; at += block {
		e := min(at+block, n)
		xb := x[at:e]
		a, b, c, d := w0[at:e], w1[at:e], w2[at:e], w3[at:e]
		a, b, c, d = a[:len(xb)], b[:len(xb)], c[:len(xb)], d[:len(xb)]
		var p0, p1, p2, p3 F
		for i, v := range xb {
			p0 += F(v * a[i])
			p1 += F(v * b[i])
			p2 += F(v * c[i])
			p3 += F(v * d[i])
		}
		s0, s1, s2, s3 = s0+p0, s1+p1, s2+p2, s3+p3
	}
	return
}

// gemmJob computes columns lo..hi-1 of all segments: rows of x against the rows of one part of w.
type gemmJob[F Float] struct {
	o      *Ops[F]
	w      *abi.Weight
	values []F // expanded w, nil = decode row by row
	f      []F // [N,K] values that are no weight (mHC), in place of w
	k      int
	n      int // columns of one part
	groups int // block diagonal groups (1 = none): column c reads x columns of group c/(n/groups)

	x    []F // [rows, groups*k]
	ldx  int
	bias []F

	// Where results go: y by dtype.
	y *abi.Tensor
	// Out, when not nil, takes the results instead of y: [rows, n].
	out []F

	// Segments: rows off[e]..off[e+1]-1 belong to part e. nil = all rows, part 0.
	rows int
	offs []int32
	// Masked layout: rows e*pitch .. e*pitch+count[e]-1 belong to part e.
	pitch int
}

func (j *gemmJob[F]) run(lo, hi int) {
	s := j.o.take()
	if j.offs == nil {
		j.segment(s, 0, 0, j.rows, lo, hi)
	} else if j.pitch > 0 {
		for e, c := range j.offs {
			s.reset()
			j.segment(s, e, e*j.pitch, e*j.pitch+int(c), lo, hi)
		}
	} else {
		for e := range len(j.offs) - 1 {
			s.reset()
			j.segment(s, e, int(j.offs[e]), int(j.offs[e+1]), lo, hi)
		}
	}
	j.o.give(s)
}

// wrow returns row c of a part.
func (j *gemmJob[F]) wrow(part, c int, tmp []F) []F {
	if j.f != nil {
		return j.f[c*j.k : (c+1)*j.k]
	}
	if j.values != nil {
		at := (part*j.n + c) * j.k
		return j.values[at : at+j.k]
	}
	decodeRow(tmp, j.w, part, int64(c))
	return tmp
}

func (j *gemmJob[F]) segment(s *scratch[F], part, r0, r1, lo, hi int) {
	if r0 >= r1 {
		return
	}
	k, per := j.k, j.n/j.groups
	var tmp [4][]F
	if j.values == nil && j.f == nil {
		for i := range tmp {
			tmp[i] = s.floats(k)
		}
	}
	for c := lo; c < hi; {
		g := c / per
		end := min(hi, (g+1)*per)
		xo := g * k
		for ; c+4 <= end; c += 4 {
			w0, w1, w2, w3 := j.wrow(part, c, tmp[0]), j.wrow(part, c+1, tmp[1]), j.wrow(part, c+2, tmp[2]), j.wrow(part, c+3, tmp[3])
			for r := r0; r < r1; r++ {
				s0, s1, s2, s3 := dot4(j.x[r*j.ldx+xo:r*j.ldx+xo+k], w0, w1, w2, w3)
				j.store4(r, c, s0, s1, s2, s3)
			}
		}
		for ; c < end; c++ {
			w := j.wrow(part, c, tmp[0])
			for r := r0; r < r1; r++ {
				j.store(r, c, dot1(j.x[r*j.ldx+xo:r*j.ldx+xo+k], w))
			}
		}
	}
}

func (j *gemmJob[F]) store4(r, c int, v0, v1, v2, v3 F) {
	if j.bias == nil && j.out != nil {
		o := j.out[r*j.n+c : r*j.n+c+4]
		o[0], o[1], o[2], o[3] = v0, v1, v2, v3
		return
	}
	if j.bias == nil && j.pitch == 0 && j.y.DType == abi.BF16 {
		o := (*[4]uint16)(unsafe.Add(j.y.Data, (r*j.y.RowStride()+c)*2))
		o[0], o[1], o[2], o[3] = BF16(v0), BF16(v1), BF16(v2), BF16(v3)
		return
	}
	j.store(r, c, v0)
	j.store(r, c+1, v1)
	j.store(r, c+2, v2)
	j.store(r, c+3, v3)
}

func (j *gemmJob[F]) store(r, c int, v F) {
	if j.bias != nil {
		v += j.bias[c]
	}
	if j.out != nil {
		j.out[r*j.n+c] = v
		return
	}
	var at int
	if j.pitch > 0 { // y [E,M,n]: rows of one part are dense
		at = r/j.pitch*j.y.RowStride() + r%j.pitch*j.n + c
	} else {
		at = r*j.y.RowStride() + c
	}
	switch j.y.DType {
	case abi.BF16:
		*(*uint16)(unsafe.Add(j.y.Data, at*2)) = BF16(v)
	case abi.F32:
		*(*float32)(unsafe.Add(j.y.Data, at*4)) = float32(v)
	default:
		*(*float64)(unsafe.Add(j.y.Data, at*8)) = float64(v)
	}
}

// loadX converts BF16 rows into scratch values, through the A8 quantiser when group > 0. pick selects rows (nil = 0..rows-1).
func (o *Ops[F]) loadX(x *abi.Tensor, rows, cols, group int, pick []int32, seg []int32, pitch int) []F {
	dst := o.a.floats(rows * cols)
	for r := range rows {
		if pitch > 0 && r%pitch >= int(seg[r/pitch]) {
			continue // beyond the valid rows of this expert
		}
		src := r
		if pick != nil {
			src = int(pick[r])
		}
		d := dst[r*cols : (r+1)*cols]
		if pitch > 0 {
			at := r/pitch*x.RowStride() + r%pitch*cols
			widen(d, unsafe.Slice((*uint16)(unsafe.Add(x.Data, at*2)), cols))
		} else {
			widen(d, row[uint16](x, src))
		}
		if group > 0 {
			a8Groups(d, d, group)
		}
	}
	return dst
}

func outDType(c *checker, y *abi.Tensor) uint32 {
	if y.DType != abi.BF16 && y.DType != abi.F32 && y.DType != abi.F64 {
		c.fail("y is %s, must be BF16, F32 or F64", dtypeName(y.DType))
	}
	return y.DType
}

// GEMM implements backend.GEMM.
func (o *Ops[F]) GEMM(a *abi.GEMMArgs) error {
	c := checker{op: "gemm"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	g := int(max(a.Groups, 1))
	n, k := int(a.W.N), int(a.W.K)
	if n%g != 0 {
		c.fail("%d groups do not divide %d output columns", g, n)
	}
	if a.W.Parts != 1 {
		c.fail("weight w%s has %d parts, must have 1", nameOf(a.W), a.W.Parts)
	}
	t := int(a.X.Dim[0])
	c.shape("x", &a.X, abi.BF16, t, g*k)
	c.shape("y", &a.Y, outDType(&c, &a.Y), t, n)
	if a.Bias.Present() {
		c.flat("bias", &a.Bias, floats, n)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.a.reset()
	j := &o.gemm
	*j = gemmJob[F]{o: o, w: a.W, values: o.matrix(a.W), k: k, n: n, groups: g, rows: t, y: &a.Y, ldx: g * k}
	j.x = o.loadX(&a.X, t, g*k, int(a.ActGroup), nil, nil, 0)
	if a.Bias.Present() {
		j.bias = readF(&a.Bias, 0, n, &o.a)
	}
	o.do(n, t*k, j)
	return nil
}

// GEMMGrouped implements backend.GEMM.
func (o *Ops[F]) GEMMGrouped(a *abi.GEMMGroupedArgs) error {
	c := checker{op: "gemm_grouped"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	e, n, k := int(a.W.Parts), int(a.W.N), int(a.W.K)
	dt := outDType(&c, &a.Y)
	var rows, pitch int
	switch a.Layout {
	case abi.GroupedContiguous:
		rows = int(a.X.Dim[0])
		c.shape("x", &a.X, abi.BF16, rows, k)
		c.shape("y", &a.Y, dt, rows, n)
		c.flat("offs", &a.Offs, abi.I32, e+1)
	case abi.GroupedMasked:
		pitch = int(a.X.Dim[1])
		rows = e * pitch
		c.shape("x", &a.X, abi.BF16, e, pitch, k)
		c.shape("y", &a.Y, dt, e, pitch, n)
		c.flat("offs", &a.Offs, abi.I32, e)
	default:
		c.fail("unknown layout %d", a.Layout)
	}
	if c.err != nil || rows == 0 {
		return c.err
	}
	offs := abi.Slice[int32](&a.Offs)
	if pitch > 0 {
		for i, v := range offs {
			if v < 0 || int(v) > pitch {
				return fault("gemm_grouped", "offs[%d] is %d, must be 0 to %d", i, v, pitch)
			}
		}
	} else {
		for i, v := range offs {
			if v < 0 || int(v) > rows || i > 0 && v < offs[i-1] || i == 0 && v != 0 {
				return fault("gemm_grouped", "offs[%d] is %d: offsets must start at 0, ascend, and end by %d", i, v, rows)
			}
		}
	}
	o.a.reset()
	j := &o.gemm
	*j = gemmJob[F]{o: o, w: a.W, values: o.matrix(a.W), k: k, n: n, groups: 1, rows: rows, y: &a.Y, ldx: k, offs: offs, pitch: pitch}
	j.x = o.loadX(&a.X, rows, k, int(a.ActGroup), nil, offs, pitch)
	o.do(n, rows*k, j)
	return nil
}

// Head implements backend.GEMM.
func (o *Ops[F]) Head(a *abi.HeadArgs) error {
	c := checker{op: "head"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	n, k := int(a.W.N), int(a.W.K)
	t := int(a.X.Dim[0])
	c.shape("x", &a.X, abi.BF16, -1, k)
	l := t
	if a.Rows.Present() {
		l = int(a.Rows.Dim[0])
		c.shape("rows", &a.Rows, abi.I32, -1)
	} else if a.Rows.Rank == 1 && a.Rows.Dim[0] == 0 {
		l = 0
	}
	c.shape("y", &a.Y, floats, l, n)
	if c.err != nil || l == 0 {
		return c.err
	}
	pick := abi.Slice[int32](&a.Rows)
	for i, r := range pick {
		if r < 0 || int(r) >= t {
			return fault("head", "rows[%d] is %d, x has %d rows", i, r, t)
		}
	}
	o.a.reset()
	j := &o.gemm
	*j = gemmJob[F]{o: o, w: a.W, values: o.matrix(a.W), k: k, n: n, groups: 1, rows: l, y: &a.Y, ldx: k}
	j.x = o.loadX(&a.X, l, k, 0, pick, nil, 0)
	o.do(n, l*k, j)
	return nil
}
