package refop

import (
	"math"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

type loopOp uint8

const (
	loopCompress loopOp = iota
	loopIndexKey
	loopCombine
	loopGather
	loopEmbed
	loopRMS
	loopRope
	loopQuantize
	loopHadamard
	loopMix
	loopCollapse
	loopExpand
	loopMean
	loopRouter
	loopSwiglu
	loopHash
	loopEngram
	loopSample
	loopCast
	loopAdd
	loopGelu
	loopVision
)

func (j *loopJob[F]) item(sc *scratch[F], i int) {
	switch j.op {
	case loopCompress:
		j.compress(sc, i)
	case loopIndexKey:
		j.indexKey(sc, i)
	case loopCombine:
		j.combine(sc, i)
	case loopGather:
		j.gather(sc, i)
	case loopEmbed:
		j.embed(sc, i)
	case loopRMS:
		j.rms(sc, i)
	case loopRope:
		j.rope(sc, i)
	case loopQuantize:
		j.quantize(sc, i)
	case loopHadamard:
		j.hadamard(sc, i)
	case loopMix:
		j.mix(sc, i)
	case loopCollapse:
		j.collapse(sc, i)
	case loopExpand:
		j.expand(sc, i)
	case loopMean:
		j.mean(i)
	case loopRouter:
		j.route(sc, i)
	case loopSwiglu:
		j.swiglu(sc, i)
	case loopHash:
		j.hash(sc, i)
	case loopEngram:
		j.engram(sc, i)
	case loopSample:
		j.sample(sc, i)
	case loopCast:
		j.cast(sc, i)
	case loopAdd:
		j.add(i)
	case loopGelu:
		j.gelu(i)
	case loopVision:
		j.vision(sc, i)
	}
}

// start sets up the row loop.
func (o *Ops[F]) start(op loopOp, p unsafe.Pointer) *loopJob[F] {
	o.a.reset()
	o.loop = loopJob[F]{o: o, op: op, p: p}
	return &o.loop
}

// Embed implements backend.Vector.
func (o *Ops[F]) Embed(a *abi.EmbedArgs) error {
	c := checker{op: "embed"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	t, h := int(a.Y.Dim[0]), int(a.W.K)
	c.shape("y", &a.Y, abi.BF16, t, -1, h)
	images := 0
	if a.Image.Present() {
		images = int(a.Image.Dim[0])
		c.shape("image", &a.Image, abi.BF16, -1, h)
	}
	c.batch(a.Batch, t)
	if c.err != nil || t == 0 {
		return c.err
	}
	img := arr(a.Batch.ImageRow, a.Batch.Rows)
	for i, id := range arr(a.Batch.Token, a.Batch.Rows) {
		if img != nil && img[i] >= 0 {
			if int(img[i]) >= images {
				return fault("embed", "row %d shows image row %d of %d", i, img[i], images)
			}
		} else if id < 0 || int64(id) >= a.W.N {
			return fault("embed", "row %d has token %d, the table has %d rows", i, id, a.W.N)
		}
	}
	o.do(t, 4*h, o.start(loopEmbed, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) embed(sc *scratch[F], i int) {
	a := (*abi.EmbedArgs)(j.p)
	b, h := a.Batch, int(a.W.K)
	y := row[uint16](&a.Y, i)
	if len(y) == 0 {
		return
	}
	if img := arr(b.ImageRow, b.Rows); img != nil && img[i] >= 0 {
		copy(y[:h], row[uint16](&a.Image, int(img[i])))
	} else {
		tmp := sc.floats(h)
		decodeRow(tmp, a.W, 0, int64(arr(b.Token, b.Rows)[i]))
		narrow(y[:h], tmp)
	}
	for s := h; s < len(y); s += h {
		copy(y[s:s+h], y[:h])
	}
}

// rms writes w * x * rsqrt(mean(x^2)+eps); w nil = 1.
func rms[F Float](y, x, w []F, eps F) {
	r := rsqrt(dot1(x, x)/F(len(x)) + eps)
	if w == nil {
		for i, v := range x {
			y[i] = v * r
		}
		return
	}
	w = w[:len(x)]
	for i, v := range x {
		y[i] = v * r * w[i]
	}
}

// RMSNorm implements backend.Vector.
func (o *Ops[F]) RMSNorm(a *abi.RMSNormArgs) error {
	c := checker{op: "rms_norm"}
	rows, n := c.rows("x", &a.X, abi.BF16)
	c.sameShape(&a.X, &a.Y)
	if a.W.Present() {
		c.flat("w", &a.W, floats, n)
	}
	if c.err != nil || rows == 0 {
		return c.err
	}
	j := o.start(loopRMS, unsafe.Pointer(a))
	if a.W.Present() {
		j.x = readF(&a.W, 0, n, &o.a)
	}
	o.do(rows, 4*n, j)
	return nil
}

func (j *loopJob[F]) rms(sc *scratch[F], i int) {
	a := (*abi.RMSNormArgs)(j.p)
	x := lastRow[uint16](&a.X, i)
	v := sc.floats(len(x))
	widen(v, x)
	rms(v, v, j.x, F(a.Eps))
	narrow(lastRow[uint16](&a.Y, i), v)
}

// Rope implements backend.Vector.
func (o *Ops[F]) Rope(a *abi.RopeArgs) error {
	c := checker{op: "rope"}
	t := int(a.X.Dim[0])
	_, d := c.rows("x", &a.X, abi.BF16)
	c.sameShape(&a.X, &a.Y)
	if c.err == nil && a.X.Rank < 2 {
		c.fail("x has %d dimensions, must have 2 or 3", a.X.Rank)
	}
	c.freq(&a.Freq, d)
	c.batch(a.Batch, t)
	if c.err != nil || t == 0 {
		return c.err
	}
	o.do(t, 4*a.X.Width(), o.start(loopRope, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) rope(sc *scratch[F], i int) {
	a := (*abi.RopeArgs)(j.p)
	d := int(a.X.Dim[a.X.Rank-1])
	freq := abi.Slice[float32](&a.Freq)
	n := len(freq)
	cs, sn, v := sc.floats(n), sc.floats(n), sc.floats(2*n)
	pos := int(arr(a.Batch.Pos, a.Batch.Rows)[i])
	if a.Ratio > 1 {
		pos += 1 - int(a.Ratio)
	}
	cosSin(cs, sn, pos, freq)
	x, y := row[uint16](&a.X, i), row[uint16](&a.Y, i)
	for at := 0; at < len(x); at += d {
		cut := at + d - 2*n
		copy(y[at:cut], x[at:cut])
		widen(v, x[cut:at+d])
		rotate(v, cs, sn, a.Conj != 0)
		narrow(y[cut:at+d], v)
	}
}

// Quantize implements backend.Vector.
func (o *Ops[F]) Quantize(a *abi.QuantizeArgs) error {
	c := checker{op: "quantize"}
	rows, d := c.rows("x", &a.X, abi.BF16)
	rope := int(a.Rope)
	switch {
	case c.err != nil:
	case a.Y.DType == abi.U8:
		if p := recordProblem(a.Format, d, rope); p != "" && rows > 0 {
			c.fail("format %d of %d values: %s", a.Format, d, p)
		}
		n, cols := c.rows("y", &a.Y, abi.U8)
		if want := abi.RecordBytes(a.Format, d, rope); c.err == nil && rows > 0 && (n != rows || cols != want) {
			c.fail("y has %d records of %d bytes, must have %d of %d", n, cols, rows, want)
		}
	case a.Y.DType == abi.BF16:
		if a.Format < abi.RecA8x32 || a.Format > abi.RecF4E8x32 || rope < 0 || rope > d {
			c.fail("format %d with %d rotary of %d values is unknown", a.Format, rope, d)
		}
		c.sameShape(&a.X, &a.Y)
	default:
		c.fail("y is %s, must be U8 or BF16", dtypeName(a.Y.DType))
	}
	if c.err != nil || rows == 0 {
		return c.err
	}
	o.do(rows, 8*d, o.start(loopQuantize, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) quantize(sc *scratch[F], i int) {
	a := (*abi.QuantizeArgs)(j.p)
	x := lastRow[uint16](&a.X, i)
	v := sc.floats(len(x))
	widen(v, x)
	if a.Y.DType == abi.U8 {
		rec := lastRow[byte](&a.Y, i)
		n := recordSplit(a.Format, len(x), int(a.Rope))
		encodeRecord(a.Format, int(a.Rope), rec[:n], rec[n:], v)
		return
	}
	switch a.Format {
	case abi.RecA8x32:
		a8Groups(v, v, 32)
	case abi.RecA8x64Rope:
		n := len(v) - int(a.Rope)
		a8Groups(v[:n], v[:n], 64)
	default:
		g := 16
		if a.Format == abi.RecF4E8x32 {
			g = 32
		}
		var code [32]uint8
		for at := 0; at < len(v); at += g {
			p := v[at:min(at+g, len(v))]
			var s float32
			if g == 32 {
				s = E8M0(f4e8(code[:], p))
			} else {
				s = E4M3(f4e4(code[:], p))
			}
			for q := range p {
				p[q] = F(E2M1(code[q]) * s)
			}
		}
	}
	narrow(lastRow[uint16](&a.Y, i), v)
}

// hadamard is the Walsh-Hadamard transform in Sylvester order, times n^-0.5.
func hadamard[F Float](x []F) {
	n := len(x)
	for h := 1; h < n; h *= 2 {
		for b := 0; b < n; b += 2 * h {
			for i := b; i < b+h; i++ {
				x[i], x[i+h] = x[i]+x[i+h], x[i]-x[i+h]
			}
		}
	}
	s := F(1 / math.Sqrt(float64(n)))
	for i := range x {
		x[i] *= s
	}
}

// Hadamard implements backend.Vector.
func (o *Ops[F]) Hadamard(a *abi.HadamardArgs) error {
	c := checker{op: "hadamard"}
	rows, n := c.rows("x", &a.X, abi.BF16)
	c.sameShape(&a.X, &a.Y)
	if c.err == nil && n&(n-1) != 0 {
		c.fail("needs a power of two, x has %d values", n)
	}
	if c.err != nil || rows == 0 {
		return c.err
	}
	o.do(rows, 8*n, o.start(loopHadamard, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) hadamard(sc *scratch[F], i int) {
	a := (*abi.HadamardArgs)(j.p)
	x := lastRow[uint16](&a.X, i)
	v := sc.floats(len(x))
	widen(v, x)
	hadamard(v)
	narrow(lastRow[uint16](&a.Y, i), v)
}

// MHCMix implements backend.Vector.
func (o *Ops[F]) MHCMix(a *abi.MHCMixArgs) error {
	c := checker{op: "mhc_mix"}
	t, hc, h := int(a.H.Dim[0]), int(a.H.Dim[1]), int(a.H.Dim[2])
	c.shape("h", &a.H, abi.BF16, t, hc, h)
	if hc < 1 || hc > 16 {
		c.fail("h has %d streams, must have 1 to 16", hc)
	}
	n, scales := hc*(hc+2), 3
	if a.HeadOnly != 0 {
		n, scales = hc, 1
	} else {
		c.flat("post", &a.Post, floats, t*hc)
		c.flat("comb", &a.Comb, floats, t*hc*hc)
		if a.Iters < 1 {
			c.fail("iters must be at least 1")
		}
	}
	c.flat("pre", &a.Pre, floats, t*hc)
	c.flat("fn", &a.Fn, floats, n*hc*h)
	c.flat("base", &a.Base, floats, n)
	c.flat("scale", &a.Scale, floats, scales)
	if c.err != nil || t == 0 {
		return c.err
	}
	o.a.reset()
	k := hc * h
	fn := readF(&a.Fn, 0, n*k, &o.a)
	if a.Tf32 != 0 {
		r := o.a.floats(n * k)
		for i, v := range fn {
			r[i] = F(tf32(float32(v)))
		}
		fn = r
	}
	z := o.a.floats(t * k)
	for r := range t {
		widen(z[r*k:(r+1)*k], row[uint16](&a.H, r))
	}
	m := o.a.floats(t * n)
	o.gemm = gemmJob[F]{o: o, f: fn, k: k, n: n, groups: 1, rows: t, ldx: k, x: z, out: m}
	o.do(n, t*k, &o.gemm)
	par := o.a.floats(n + scales)
	mark := o.a.fn
	copy(par, readF(&a.Base, 0, n, &o.a))
	copy(par[n:], readF(&a.Scale, 0, scales, &o.a))
	o.a.fn = mark
	o.loop = loopJob[F]{o: o, op: loopMix, p: unsafe.Pointer(a), x: m, y: z}
	o.loop.par = par
	o.do(t, k, &o.loop)
	return nil
}

func (j *loopJob[F]) mix(sc *scratch[F], i int) {
	a := (*abi.MHCMixArgs)(j.p)
	hc, k := int(a.H.Dim[1]), int(a.H.Dim[1]*a.H.Dim[2])
	n := hc * (hc + 2)
	if a.HeadOnly != 0 {
		n = hc
	}
	z := j.y[i*k : (i+1)*k]
	m := j.x[i*n : (i+1)*n]
	base, scale := j.par[:n], j.par[n:]
	r := rsqrt(dot1(z, z)/F(k) + F(a.Eps))
	eps := F(a.HcEps)
	out := sc.floats(hc)
	for c := range hc {
		out[c] = sigmoid(F(m[c]*r*scale[0])+base[c]) + eps
	}
	writeF(&a.Pre, i*hc, out)
	if a.HeadOnly != 0 {
		return
	}
	for c := range hc {
		out[c] = 2 * sigmoid(F(m[hc+c]*r*scale[1])+base[hc+c])
	}
	writeF(&a.Post, i*hc, out)
	comb := sc.floats(hc * hc)
	for c := range comb {
		comb[c] = F(m[2*hc+c]*r*scale[2]) + base[2*hc+c]
	}
	for s := 0; s < hc; s++ {
		w := comb[s*hc : (s+1)*hc]
		top := w[0]
		for _, v := range w[1:] {
			top = max(top, v)
		}
		var sum F
		for c, v := range w {
			w[c] = exp(v - top)
			sum += w[c]
		}
		for c := range w {
			w[c] = w[c]/sum + eps
		}
	}
	columns := func() {
		for c := range hc {
			var sum F
			for s := range hc {
				sum += comb[s*hc+c]
			}
			for s := range hc {
				comb[s*hc+c] /= sum + eps
			}
		}
	}
	columns()
	for range a.Iters - 1 {
		for s := range hc {
			w := comb[s*hc : (s+1)*hc]
			var sum F
			for _, v := range w {
				sum += v
			}
			for c := range w {
				w[c] /= sum + eps
			}
		}
		columns()
	}
	writeF(&a.Comb, i*hc*hc, comb)
}

// MHCCollapse implements backend.Vector.
func (o *Ops[F]) MHCCollapse(a *abi.MHCCollapseArgs) error {
	c := checker{op: "mhc_collapse"}
	t, hc, h := int(a.H.Dim[0]), int(a.H.Dim[1]), int(a.H.Dim[2])
	c.shape("h", &a.H, abi.BF16, t, hc, h)
	c.shape("x", &a.X, abi.BF16, t, h)
	if a.Pre.Present() {
		c.flat("pre", &a.Pre, floats, t*hc)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.do(t, 4*hc*h, o.start(loopCollapse, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) collapse(sc *scratch[F], i int) {
	a := (*abi.MHCCollapseArgs)(j.p)
	hc, d := int(a.H.Dim[1]), int(a.H.Dim[2])
	h, x := row[uint16](&a.H, i), row[uint16](&a.X, i)
	if !a.Pre.Present() {
		copy(x, h[:d])
		return
	}
	pre := readF(&a.Pre, i*hc, hc, &sc.arena)
	for q := range x {
		var s F
		for c, p := range pre {
			s += F(p * F(Wide(h[c*d+q])))
		}
		x[q] = BF16(s)
	}
}

// MHCExpand implements backend.Vector.
func (o *Ops[F]) MHCExpand(a *abi.MHCExpandArgs) error {
	c := checker{op: "mhc_expand"}
	t, hc, h := int(a.H.Dim[0]), int(a.H.Dim[1]), int(a.H.Dim[2])
	c.shape("h", &a.H, abi.BF16, t, hc, h)
	c.shape("out", &a.Out, abi.BF16, t, hc, h)
	c.shape("y", &a.Y, abi.BF16, t, h)
	c.flat("post", &a.Post, floats, t*hc)
	c.flat("comb", &a.Comb, floats, t*hc*hc)
	if hc < 1 || hc > 16 {
		c.fail("h has %d streams, must have 1 to 16", hc)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.do(t, 4*hc*hc*h, o.start(loopExpand, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) expand(sc *scratch[F], i int) {
	a := (*abi.MHCExpandArgs)(j.p)
	hc, d := int(a.H.Dim[1]), int(a.H.Dim[2])
	h, y, out := row[uint16](&a.H, i), row[uint16](&a.Y, i), row[uint16](&a.Out, i)
	post, comb := readF(&a.Post, i*hc, hc, &sc.arena), readF(&a.Comb, i*hc*hc, hc*hc, &sc.arena)
	var in [16]F
	for q, yb := range y {
		yv := F(Wide(yb))
		for s := range hc {
			in[s] = F(Wide(h[s*d+q]))
		}
		for c := range hc {
			v := F(post[c] * yv)
			for s := range hc {
				v += F(comb[s*hc+c] * in[s])
			}
			out[c*d+q] = BF16(v)
		}
	}
}

// MHCMean implements backend.Vector.
func (o *Ops[F]) MHCMean(a *abi.MHCMeanArgs) error {
	c := checker{op: "mhc_mean"}
	t, hc, h := int(a.H.Dim[0]), int(a.H.Dim[1]), int(a.H.Dim[2])
	c.shape("h", &a.H, abi.BF16, t, hc, h)
	c.shape("x", &a.X, abi.BF16, t, h)
	if hc < 1 {
		c.fail("h has no streams")
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.do(t, 2*hc*h, o.start(loopMean, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) mean(i int) {
	a := (*abi.MHCMeanArgs)(j.p)
	hc, d := int(a.H.Dim[1]), int(a.H.Dim[2])
	h, x := row[uint16](&a.H, i), row[uint16](&a.X, i)
	for q := range x {
		var s F
		for c := range hc {
			s += F(Wide(h[c*d+q]))
		}
		x[q] = BF16(s / F(hc))
	}
}

// Router implements backend.Vector.
func (o *Ops[F]) Router(a *abi.RouterArgs) error {
	c := checker{op: "router"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	t, e, h, k := int(a.X.Dim[0]), int(a.W.N), int(a.W.K), int(a.TopK)
	c.shape("x", &a.X, abi.BF16, t, h)
	c.shape("ids", &a.Ids, abi.I32, t, k)
	c.shape("weights", &a.Weights, floats, t, k)
	if k < 1 || k > e {
		c.fail("top_k is %d, must be 1 to %d experts", k, e)
	}
	if a.Temp == 0 || a.Temp != a.Temp {
		c.fail("temp is %v, must not be zero", a.Temp)
	}
	if a.Bias.Present() {
		c.flat("bias", &a.Bias, floats, e)
	}
	if a.BiasVl.Present() {
		c.flat("bias_vl", &a.BiasVl, floats, e)
	}
	if a.Counts.Present() {
		c.flat("counts", &a.Counts, abi.I32, e)
	}
	c.batch(a.Batch, t)
	if a.Tid2eid != nil {
		c.weight("tid2eid", a.Tid2eid)
		if c.err == nil && (a.Tid2eid.Format != abi.WI64 && a.Tid2eid.Format != abi.WI32 || int(a.Tid2eid.K) != k) {
			c.fail("tid2eid has format %d and %d columns, must be I64 or I32 with %d", a.Tid2eid.Format, a.Tid2eid.K, k)
		}
	}
	if c.err != nil {
		return c.err
	}
	var counts []int32
	if a.Counts.Present() {
		counts = abi.Slice[int32](&a.Counts)
		clear(counts)
	}
	if t == 0 {
		return nil
	}
	if a.Tid2eid != nil {
		for i, id := range arr(a.Batch.Token, a.Batch.Rows) {
			if id < 0 || int64(id) >= a.Tid2eid.N {
				return fault("router", "row %d has token %d, tid2eid has %d rows", i, id, a.Tid2eid.N)
			}
			for s := range k {
				if x := intAt(a.Tid2eid, int64(id), int64(s)); x < 0 || x >= int64(e) {
					return fault("router", "tid2eid[%d,%d] is expert %d of %d", id, s, x, e)
				}
			}
		}
	}
	o.a.reset()
	g := &o.gemm
	*g = gemmJob[F]{o: o, w: a.W, values: o.matrix(a.W), k: h, n: e, groups: 1, rows: t, ldx: h}
	g.x = o.loadX(&a.X, t, h, 0, nil, nil, 0)
	g.out = o.a.floats(t * e)
	o.do(e, t*h, g)
	o.loop = loopJob[F]{o: o, op: loopRouter, p: unsafe.Pointer(a), x: g.out}
	if a.Bias.Present() {
		o.loop.y = readF(&a.Bias, 0, e, &o.a)
		o.loop.par = o.loop.y
	}
	if a.BiasVl.Present() {
		o.loop.par = readF(&a.BiasVl, 0, e, &o.a)
	}
	o.do(t, 32*e, &o.loop)
	if counts != nil {
		for i := range t {
			for _, id := range row[int32](&a.Ids, i) {
				counts[id]++
			}
		}
	}
	return nil
}

func (j *loopJob[F]) route(sc *scratch[F], i int) {
	a := (*abi.RouterArgs)(j.p)
	e, k := int(a.W.N), int(a.TopK)
	score := j.x[i*e : (i+1)*e]
	for q, v := range score {
		score[q] = sqrt(softplus(v / F(a.Temp)))
	}
	ids := row[int32](&a.Ids, i)
	if a.Tid2eid != nil {
		tok := int64(arr(a.Batch.Token, a.Batch.Rows)[i])
		for s := range ids {
			ids[s] = int32(intAt(a.Tid2eid, tok, int64(s)))
		}
	} else {
		bias := j.y
		if arr(a.Batch.Flag, a.Batch.Rows)[i]&1 != 0 {
			bias = j.par
		}
		sel := sc.floats(e)
		for q, v := range score {
			if bias != nil {
				v += bias[q]
			}
			sel[q] = lowest(v)
		}
		best(sc, ids, sel, k)
	}
	w := sc.floats(k)
	var sum F
	for s, id := range ids {
		w[s] = score[id]
		sum += w[s]
	}
	for s, v := range w {
		w[s] = F(v/(sum+F(a.DenomEps))) * F(a.Scale)
	}
	writeF(&a.Weights, i*a.Weights.RowStride(), w)
}

// best writes the indices of the k highest values, best first, ties to the lower index. v is consumed.
func best[F Float](sc *scratch[F], ids []int32, v []F, k int) {
	taken := sc.ints(len(v))
	clear(taken)
	for s := range k {
		at := -1
		for q, x := range v {
			if taken[q] == 0 && (at < 0 || x > v[at]) {
				at = q
			}
		}
		taken[at] = 1
		ids[s] = int32(at)
	}
}

// Swiglu implements backend.Vector.
func (o *Ops[F]) Swiglu(a *abi.SwigluArgs) error {
	c := checker{op: "swiglu"}
	r, n := int(a.G.Dim[0]), int(a.G.Dim[1])
	c.shape("g", &a.G, abi.BF16, r, n)
	c.shape("u", &a.U, abi.BF16, r, n)
	c.shape("y", &a.Y, abi.BF16, r, n)
	if a.Weights.Present() != a.Order.Present() && r > 0 {
		c.fail("weights and order must be given together")
	}
	total := 0
	if a.Weights.Present() && r > 0 {
		total = 1
		for i := range min(int(a.Weights.Rank), 4) {
			total *= int(a.Weights.Dim[i])
		}
		c.flat("weights", &a.Weights, floats, total)
		c.flat("order", &a.Order, abi.I32, r)
	}
	if a.OutMode > abi.ActA8 || a.OutMode == abi.ActA8 && a.ActGroup < 1 {
		c.fail("output mode %d with groups of %d is unknown", a.OutMode, a.ActGroup)
	}
	if c.err != nil || r == 0 {
		return c.err
	}
	if a.Order.Present() {
		for i, q := range abi.Slice[int32](&a.Order) {
			if q < 0 || int(q) >= total {
				return fault("swiglu", "order[%d] is %d of %d weights", i, q, total)
			}
		}
	}
	o.do(r, 32*n, o.start(loopSwiglu, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) swiglu(sc *scratch[F], i int) {
	a := (*abi.SwigluArgs)(j.p)
	g, u, y := row[uint16](&a.G, i), row[uint16](&a.U, i), row[uint16](&a.Y, i)
	lim := F(a.Limit)
	v := sc.floats(len(g))
	w := F(1)
	if a.Weights.Present() {
		at := int(abi.Slice[int32](&a.Order)[i])
		w = readF(&a.Weights, at, 1, &sc.arena)[0]
	}
	for q, gb := range g {
		x, up := F(Wide(gb)), F(Wide(u[q]))
		if lim > 0 {
			if x > lim {
				x = lim
			}
			if up > lim {
				up = lim
			} else if up < -lim {
				up = -lim
			}
		}
		v[q] = x / (1 + exp(-x)) * up * w
	}
	if a.OutMode == abi.ActA8 {
		a8Groups(v, v, int(a.ActGroup))
	}
	narrow(y, v)
}

// EngramHash implements backend.Vector.
func (o *Ops[F]) EngramHash(a *abi.EngramHashArgs) error {
	c := checker{op: "engram_hash"}
	c.weight("map", a.Map)
	if c.err != nil {
		return c.err
	}
	if a.Map.Format != abi.WI32 && a.Map.Format != abi.WI64 {
		c.fail("map has format %d, must be I32 or I64", a.Map.Format)
	}
	v := a.Map.N * a.Map.K
	t, cols := int(a.Ids.Dim[0]), int(a.Ids.Dim[1])
	orders := int(a.Mult.Dim[0])
	c.shape("mult", &a.Mult, abi.I64, orders)
	c.shape("prime", &a.Prime, abi.I64, cols)
	c.shape("ids", &a.Ids, abi.I32, t, cols)
	if orders < 2 || orders > 8 || a.Heads < 1 || cols != (orders-1)*int(a.Heads) {
		c.fail("%d columns do not follow from %d heads and orders 2 to %d", cols, a.Heads, orders)
	}
	if int64(a.PadId) >= v {
		c.fail("pad id %d is outside the map of %d", a.PadId, v)
	}
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	b := a.Batch
	if b.NHist < 0 || b.NHist > 0 && (b.Hist == nil || b.HistFlag == nil) {
		return fault("engram_hash", "batch lacks its %d preceding tokens", b.NHist)
	}
	for i, p := range abi.Slice[int64](&a.Prime) {
		if p < 1 {
			return fault("engram_hash", "prime[%d] is %d", i, p)
		}
	}
	for i, id := range arr(b.Token, b.Rows) {
		if id < 0 || int64(id) >= v {
			return fault("engram_hash", "row %d has token %d, the map has %d entries", i, id, v)
		}
	}
	for i, id := range arr(b.Hist, b.Seqs*b.NHist) {
		if arr(b.HistFlag, b.Seqs*b.NHist)[i]&3 == 0 && (id < 0 || int64(id) >= v) {
			return fault("engram_hash", "preceding token %d is %d, the map has %d entries", i, id, v)
		}
	}
	o.do(t, 8*cols, o.start(loopHash, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) hash(sc *scratch[F], i int) {
	a := (*abi.EngramHashArgs)(j.p)
	b := a.Batch
	seq := int(arr(b.Seq, b.Rows)[i])
	first := int(arr(b.SeqFirst, b.Seqs)[seq])
	token, flag := arr(b.Token, b.Rows), arr(b.Flag, b.Rows)
	nh := int(b.NHist)
	mult := abi.Slice[int64](&a.Mult)
	pad := intAt(a.Map, 0, int64(a.PadId))
	var x [8]int64
	blocked := false
	acc := int64(0)
	for s := range mult {
		var id int32
		dead := true
		if at := i - s; at >= first {
			id, dead = token[at], flag[at]&1 != 0
		} else if h := nh - (first - at); h >= 0 {
			id, dead = arr(b.Hist, b.Seqs*b.NHist)[seq*nh+h], arr(b.HistFlag, b.Seqs*b.NHist)[seq*nh+h]&3 != 0
		}
		blocked = blocked || dead
		v := pad
		if !blocked {
			v = intAt(a.Map, 0, int64(id))
		}
		acc ^= v * mult[s]
		x[s] = acc
	}
	off := int64(0)
	out := row[int32](&a.Ids, i)
	for c, p := range abi.Slice[int64](&a.Prime) {
		m := x[c/int(a.Heads)+1] % p
		if m < 0 {
			m += p
		}
		out[c] = int32(m + off)
		off += p
	}
}

// EngramMix implements backend.Vector.
func (o *Ops[F]) EngramMix(a *abi.EngramMixArgs) error {
	c := checker{op: "engram_mix"}
	t, hc, h := int(a.H.Dim[0]), int(a.H.Dim[1]), int(a.H.Dim[2])
	c.shape("h", &a.H, abi.BF16, t, hc, h)
	c.shape("out", &a.Out, abi.BF16, t, hc, h)
	c.shape("kv", &a.Kv, abi.BF16, t, (hc+1)*h)
	c.flat("q_weight", &a.QWeight, floats, hc*h)
	c.flat("k_weight", &a.KWeight, floats, hc*h)
	if a.Gate.Present() {
		c.flat("gate", &a.Gate, floats, t*hc)
	}
	c.batch(a.Batch, t)
	if c.err != nil || t == 0 {
		return c.err
	}
	j := o.start(loopEngram, unsafe.Pointer(a))
	q, k := readF(&a.QWeight, 0, hc*h, &o.a), readF(&a.KWeight, 0, hc*h, &o.a)
	j.x = o.a.floats(hc * h)
	for i := range j.x {
		j.x[i] = q[i] * k[i]
	}
	o.do(t, 8*hc*h, j)
	return nil
}

func (j *loopJob[F]) engram(sc *scratch[F], i int) {
	a := (*abi.EngramMixArgs)(j.p)
	hc, d := int(a.H.Dim[1]), int(a.H.Dim[2])
	h, kv, out := row[uint16](&a.H, i), row[uint16](&a.Kv, i), row[uint16](&a.Out, i)
	hs, key, hw := sc.floats(d), sc.floats(d), sc.floats(d)
	eps := F(a.Eps)
	root := F(1 / math.Sqrt(float64(d)))
	dead := arr(a.Batch.Flag, a.Batch.Rows)[i]&1 != 0
	value := kv[hc*d:]
	gates := sc.floats(hc)
	for c := range hc {
		widen(hs, h[c*d:(c+1)*d])
		widen(key, kv[c*d:(c+1)*d])
		w := j.x[c*d : (c+1)*d]
		for q, v := range hs {
			hw[q] = v * w[q]
		}
		dot := dot1(hw, key) * rsqrt(dot1(hs, hs)/F(d)+eps) * rsqrt(dot1(key, key)/F(d)+eps) * root
		mag := F(math.Abs(float64(dot)))
		if mag < 1e-6 {
			mag = 1e-6
		}
		g := sigmoid(F(math.Copysign(float64(sqrt(mag)), float64(dot))))
		if dead {
			g = 0
		}
		gates[c] = g
		o := out[c*d : (c+1)*d]
		for q, v := range hs {
			o[q] = BF16(v + F(g*F(Wide(value[q]))))
		}
	}
	if a.Gate.Present() {
		writeF(&a.Gate, i*hc, gates)
	}
}

// Markov implements backend.Vector.
func (o *Ops[F]) Markov(a *abi.MarkovArgs) error {
	c := checker{op: "markov"}
	c.weight("embed", a.Embed)
	c.weight("head", a.Head)
	if c.err != nil {
		return c.err
	}
	s, v, k := int(a.Prev.Dim[0]), int(a.Head.N), int(a.Head.K)
	if int(a.Embed.K) != k {
		c.fail("embed has %d columns, head %d: must be equal", a.Embed.K, k)
	}
	c.shape("prev", &a.Prev, abi.I32, s)
	c.shape("base", &a.Base, floats, s, v)
	c.shape("logits", &a.Logits, floats, s, v)
	c.shape("e", &a.E, abi.BF16, s, k)
	if c.err != nil || s == 0 {
		return c.err
	}
	o.a.reset()
	x := o.a.floats(s * k)
	for i, id := range abi.Slice[int32](&a.Prev) {
		if id < 0 || int64(id) >= a.Embed.N {
			return fault("markov", "prev[%d] is token %d of %d", i, id, a.Embed.N)
		}
		xi := x[i*k : (i+1)*k]
		decodeRow(xi, a.Embed, 0, int64(id))
		e := row[uint16](&a.E, i)
		narrow(e, xi)
		widen(xi, e)
	}
	g := &o.gemm
	*g = gemmJob[F]{o: o, w: a.Head, values: o.matrix(a.Head), k: k, n: v, groups: 1, rows: s, ldx: k, x: x, out: o.a.floats(s * v)}
	o.do(v, s*k, g)
	for i := range s {
		mark := o.a.fn
		l := g.out[i*v : (i+1)*v]
		for q, b := range readF(&a.Base, i*a.Base.RowStride(), v, &o.a) {
			l[q] = b + l[q]
		}
		writeF(&a.Logits, i*a.Logits.RowStride(), l)
		o.a.fn = mark
	}
	return nil
}

// Confidence implements backend.Vector.
func (o *Ops[F]) Confidence(a *abi.ConfidenceArgs) error {
	c := checker{op: "confidence"}
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	s, h, k := int(a.X.Dim[0]), int(a.X.Dim[1]), int(a.E.Dim[1])
	c.shape("x", &a.X, abi.BF16, s, h)
	c.shape("e", &a.E, abi.BF16, s, k)
	c.flat("conf", &a.Conf, floats, s)
	if a.W.N != 1 || int(a.W.K) != h+k {
		c.fail("weight w%s is %dx%d, must be 1x%d", nameOf(a.W), a.W.N, a.W.K, h+k)
	}
	if c.err != nil || s == 0 {
		return c.err
	}
	o.a.reset()
	w, x := o.a.floats(h+k), o.a.floats(h+k)
	decodeRow(w, a.W, 0, 0)
	out := o.a.floats(s)
	for i := range s {
		widen(x, row[uint16](&a.X, i))
		widen(x[h:], row[uint16](&a.E, i))
		out[i] = dot1(x, w)
	}
	writeF(&a.Conf, 0, out)
	return nil
}

// Verify implements backend.Vector.
func (o *Ops[F]) Verify(a *abi.VerifyArgs) error {
	c := checker{op: "verify"}
	s, d := int(a.Draft.Dim[0]), int(a.Draft.Dim[1])
	n := int(a.Ids.Dim[0])
	c.shape("ids", &a.Ids, abi.I32, n)
	c.shape("draft", &a.Draft, abi.I32, s, d)
	c.flat("count", &a.Count, abi.I32, s)
	c.flat("first", &a.First, abi.I32, s)
	c.flat("accepted", &a.Accepted, abi.I32, s)
	if c.err != nil || s == 0 {
		return c.err
	}
	ids, out := abi.Slice[int32](&a.Ids), abi.Slice[int32](&a.Accepted)
	first, count := abi.Slice[int32](&a.First), abi.Slice[int32](&a.Count)
	for i := range s {
		if count[i] < 0 || int(count[i]) > d || first[i] < 0 || int(first[i])+int(count[i]) > n {
			return fault("verify", "sequence %d verifies %d drafts of %d from row %d of %d", i, count[i], d, first[i], n)
		}
	}
	for i := range s {
		k := int32(0)
		for k < count[i] && row[int32](&a.Draft, i)[k] == ids[first[i]+k] {
			k++
		}
		out[i] = k
	}
	return nil
}

// Copy implements backend.Vector.
func (o *Ops[F]) Copy(a *abi.CopyArgs) error {
	c := checker{op: "copy"}
	if !a.Index.Present() && !(a.Index.Rank == 1 && a.Index.Dim[0] == 0) {
		c.sameShape(&a.X, &a.Y)
		if c.err != nil {
			return c.err
		}
		for i := range int(a.X.Dim[0]) {
			copyRow(&a.Y, i, &a.X, i)
		}
		return nil
	}
	n := int(a.Index.Dim[0])
	c.shape("index", &a.Index, abi.I32, n)
	if abi.ElemBytes(a.X.DType) == 0 || a.X.DType != a.Y.DType || a.X.Rank < 1 || a.X.Rank > 4 || a.X.Rank != a.Y.Rank {
		c.fail("x is %s of rank %d, y %s of rank %d: must be equal", dtypeName(a.X.DType), a.X.Rank, dtypeName(a.Y.DType), a.Y.Rank)
	}
	c.rows("x", &a.X, a.X.DType)
	c.rows("y", &a.Y, a.Y.DType)
	if c.err == nil && (a.X.Width() != a.Y.Width() || int(a.Y.Dim[0]) != n) {
		c.fail("y has %d rows of %d, must have %d of %d", a.Y.Dim[0], a.Y.Width(), n, a.X.Width())
	}
	if c.err != nil || n == 0 {
		return c.err
	}
	index := abi.Slice[int32](&a.Index)
	for i, r := range index {
		if r < 0 || int64(r) >= a.X.Dim[0] {
			return fault("copy", "index[%d] is row %d of %d", i, r, a.X.Dim[0])
		}
	}
	for i, r := range index {
		copyRow(&a.Y, i, &a.X, int(r))
	}
	return nil
}

// Cast implements backend.Vector.
func (o *Ops[F]) Cast(a *abi.CastArgs) error {
	c := checker{op: "cast"}
	float := func(d uint32) bool { return d == abi.BF16 || d == abi.F32 || d == abi.F64 }
	if !float(a.X.DType) || !float(a.Y.DType) {
		c.fail("x is %s, y %s: must be BF16, F32 or F64", dtypeName(a.X.DType), dtypeName(a.Y.DType))
	}
	rows, n := c.rows("x", &a.X, a.X.DType)
	r2, n2 := c.rows("y", &a.Y, a.Y.DType)
	if c.err == nil && (rows != r2 || n != n2) {
		c.fail("x has %d rows of %d, y %d of %d: must be equal", rows, n, r2, n2)
	}
	if c.err != nil || rows == 0 {
		return c.err
	}
	o.do(rows, 2*n, o.start(loopCast, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) cast(sc *scratch[F], i int) {
	a := (*abi.CastArgs)(j.p)
	n := int(a.X.Dim[a.X.Rank-1])
	for q := range n {
		var v float64
		switch a.X.DType {
		case abi.BF16:
			v = float64(Wide(lastRow[uint16](&a.X, i)[q]))
		case abi.F32:
			v = float64(lastRow[float32](&a.X, i)[q])
		default:
			v = lastRow[float64](&a.X, i)[q]
		}
		switch a.Y.DType {
		case abi.BF16:
			lastRow[uint16](&a.Y, i)[q] = BF16(v)
		case abi.F32:
			lastRow[float32](&a.Y, i)[q] = float32(v)
		default:
			lastRow[float64](&a.Y, i)[q] = v
		}
	}
}

// Add implements backend.Vector.
func (o *Ops[F]) Add(a *abi.AddArgs) error {
	c := checker{op: "add"}
	rows, n := c.rows("a", &a.A, abi.BF16)
	c.sameShape(&a.A, &a.B)
	c.sameShape(&a.A, &a.Y)
	if c.err != nil || rows == 0 {
		return c.err
	}
	o.do(rows, n, o.start(loopAdd, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) add(i int) {
	a := (*abi.AddArgs)(j.p)
	x, b, y := lastRow[uint16](&a.A, i), lastRow[uint16](&a.B, i), lastRow[uint16](&a.Y, i)
	for q, v := range x {
		y[q] = BF16(F(Wide(v)) + F(Wide(b[q])))
	}
}

// Gelu implements backend.Vector.
func (o *Ops[F]) Gelu(a *abi.GeluArgs) error {
	c := checker{op: "gelu"}
	rows, n := c.rows("x", &a.X, abi.BF16)
	c.sameShape(&a.X, &a.Y)
	if c.err != nil || rows == 0 {
		return c.err
	}
	o.do(rows, 32*n, o.start(loopGelu, unsafe.Pointer(a)))
	return nil
}

func (j *loopJob[F]) gelu(i int) {
	a := (*abi.GeluArgs)(j.p)
	y := lastRow[uint16](&a.Y, i)
	for q, v := range lastRow[uint16](&a.X, i) {
		x := float64(Wide(v))
		y[q] = BF16(F(0.5 * x * (1 + math.Erf(x/math.Sqrt2))))
	}
}

// VisionAttend implements backend.Vector.
func (o *Ops[F]) VisionAttend(a *abi.VisionAttendArgs) error {
	c := checker{op: "vision_attend"}
	n, heads := int(a.GridH)*int(a.GridW), int(a.Heads)
	d := int(a.Out.Dim[1])
	c.shape("out", &a.Out, abi.BF16, n, d)
	c.shape("qkv", &a.Qkv, abi.BF16, n, 3*d)
	if heads < 1 || d%heads != 0 || d/heads%4 != 0 {
		c.fail("%d heads do not divide %d values into heads of a multiple of 4", heads, d)
	} else {
		c.shape("freq", &a.Freq, abi.F32, d/heads/4)
	}
	if c.err != nil || n == 0 {
		return c.err
	}
	o.a.reset()
	hd := d / heads
	// q, k, v by head: [3, heads, n, hd]
	x := o.a.floats(3 * n * d)
	freq := abi.Slice[float32](&a.Freq)
	nf := len(freq)
	cs, sn := o.a.floats(2*nf), o.a.floats(2*nf)
	for r := range n {
		cosSin(cs[:nf], sn[:nf], r/int(a.GridW), freq)
		cosSin(cs[nf:], sn[nf:], r%int(a.GridW), freq)
		src := row[uint16](&a.Qkv, r)
		for p := range 3 {
			for h := range heads {
				v := x[((p*heads+h)*n+r)*hd:][:hd]
				widen(v, src[p*d+h*hd:p*d+(h+1)*hd])
				if p == 2 {
					continue
				}
				for i := range 2 * nf {
					u, w := v[i], v[i+hd/2]
					v[i] = roundBF16(F(u*cs[i]) - F(w*sn[i]))
					v[i+hd/2] = roundBF16(F(w*cs[i]) + F(u*sn[i]))
				}
			}
		}
	}
	o.loop = loopJob[F]{o: o, op: loopVision, p: unsafe.Pointer(a), x: x}
	o.do(heads*n, 2*n*hd, &o.loop)
	return nil
}

func (j *loopJob[F]) vision(sc *scratch[F], i int) {
	a := (*abi.VisionAttendArgs)(j.p)
	n, heads := int(a.GridH)*int(a.GridW), int(a.Heads)
	d := int(a.Out.Dim[1])
	hd := d / heads
	h, r := i/n, i%n
	q := j.x[(h*n+r)*hd:][:hd]
	k := j.x[((heads+h)*n)*hd:][:n*hd]
	v := j.x[((2*heads+h)*n)*hd:][:n*hd]
	p, acc := sc.floats(n), sc.floats(hd)
	dots(p, q, k)
	scale := F(1 / math.Sqrt(float64(hd)))
	m := F(math.Inf(-1))
	for t := range p {
		p[t] *= scale
		if p[t] > m || p[t] != p[t] {
			m = p[t]
		}
	}
	var den F
	for t, s := range p {
		p[t] = exp(s - m)
		den += p[t]
	}
	for t := range p {
		p[t] /= den
	}
	weighted(acc, p, v)
	narrow(row[uint16](&a.Out, r)[h*hd:(h+1)*hd], acc)
}

// VisionMerge implements backend.Vector.
func (o *Ops[F]) VisionMerge(a *abi.VisionMergeArgs) error {
	c := checker{op: "vision_merge"}
	r, gh, gw := int(a.R), int(a.GridH), int(a.GridW)
	if r < 1 {
		c.fail("cell size must be at least 1")
		return c.err
	}
	d := int(a.X.Dim[1])
	nh, nw := (gh+r-1)/r, (gw+r-1)/r
	c.shape("x", &a.X, abi.BF16, gh*gw, d)
	c.shape("y", &a.Y, abi.BF16, nh*nw, d*r*r)
	if c.err != nil || gh*gw == 0 {
		return c.err
	}
	for cell := range nh * nw {
		y := row[uint16](&a.Y, cell)
		clear(y)
		for ky := range r {
			for kx := range r {
				py, px := cell/nw*r+ky, cell%nw*r+kx
				if py >= gh || px >= gw {
					continue
				}
				for q, v := range row[uint16](&a.X, py*gw+px) {
					y[q*r*r+ky*r+kx] = v
				}
			}
		}
	}
	return nil
}
