package refop

import (
	"math"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// record locates row j of unit u: its value bytes and its scale bytes.
func record(g *abi.Region, u, j int) (val, scale []byte) {
	base := unsafe.Add(g.Base, int64(u)*g.UnitStride+g.Offset)
	v := recordSplit(g.Format, int(g.Dim), int(g.Rope))
	rb := int(g.RowBytes)
	if g.Planar != 0 {
		val = unsafe.Slice((*byte)(unsafe.Add(base, j*v)), v)
		scale = unsafe.Slice((*byte)(unsafe.Add(base, int(g.Rows)*v+j*(rb-v))), rb-v)
		return
	}
	r := unsafe.Slice((*byte)(unsafe.Add(base, j*rb)), rb)
	return r[:v:v], r[v:]
}

// entry locates cache entry j of a sequence through its granule table.
func entry(b *abi.Batch, g *abi.Region, seq, j int) (val, scale []byte) {
	at := seq*int(b.TableWidth) + j/int(g.Rows)
	gran := *(*int32)(unsafe.Add(unsafe.Pointer(b.SeqTable), at*4))
	return record(g, int(gran), j%int(g.Rows))
}

// cosSin writes cos and sin of the FP32 angle pos*freq, rounded to FP32.
func cosSin[F Float](cs, sn []F, pos int, freq []float32) {
	p := float32(pos)
	for i, f := range freq {
		ang := float64(float32(p * f))
		cs[i], sn[i] = F(float32(math.Cos(ang))), F(float32(math.Sin(ang)))
	}
}

// rotate turns the last 2*len(cs) values as interleaved pairs, by the conjugate when conj; values stay in F.
func rotate[F Float](x, cs, sn []F, conj bool) {
	x = x[len(x)-2*len(cs):]
	for i, c := range cs {
		s := sn[i]
		if conj {
			s = -s
		}
		a, b := x[2*i], x[2*i+1]
		x[2*i] = F(a*c) - F(b*s)
		x[2*i+1] = F(a*s) + F(b*c)
	}
}

// roundTail rounds the last n values to BF16.
func roundTail[F Float](x []F, n int) {
	x = x[len(x)-n:]
	for i, v := range x {
		x[i] = roundBF16(v)
	}
}

// KVStore implements backend.Attention.
func (o *Ops[F]) KVStore(a *abi.KVStoreArgs) error {
	c := checker{op: "kv_store"}
	t := int(a.Rec.Dim[0])
	c.region("ring", &a.Ring)
	c.shape("rec", &a.Rec, abi.U8, t, int(a.Ring.RowBytes))
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	b := a.Batch
	pos := arr(b.Pos, b.Rows)
	for s := range int(b.Seqs) {
		first, n := int(arr(b.SeqFirst, b.Seqs)[s]), int(arr(b.SeqRows, b.Seqs)[s])
		low, slot := arr(b.SeqLow, b.Seqs)[s], int(arr(b.SeqSlot, b.Seqs)[s])
		for r := first + max(0, n-int(a.Ring.Rows)); r < first+n; r++ {
			if pos[r] < low {
				continue
			}
			val, scale := record(&a.Ring, slot, int(pos[r])%int(a.Ring.Rows))
			rec := row[byte](&a.Rec, r)
			copy(val, rec)
			copy(scale, rec[len(val):])
		}
	}
	return nil
}

// store rotates, quantises and writes one cache row.
func storeEntry[F Float](b *abi.Batch, g *abi.Region, seq, j int, x []F) {
	val, scale := entry(b, g, seq, j)
	encodeRecord(g.Format, int(g.Rope), val, scale, x)
}

// checkFreq checks the rotation speeds against a vector of dim values.
func (c *checker) freq(t *abi.Tensor, dim int) {
	c.shape("freq", t, abi.F32, -1)
	if c.err == nil && 2*int(t.Dim[0]) > dim {
		c.fail("freq rotates %d of %d values", 2*t.Dim[0], dim)
	}
}

// Compress implements backend.Attention.
func (o *Ops[F]) Compress(a *abi.CompressArgs) error {
	c := checker{op: "compress"}
	t, d := int(a.Lat.Dim[0]), int(a.Lat.Dim[1])
	r := int(a.Ratio)
	coff := 1
	if a.Overlap != 0 {
		coff = 2
	}
	c.shape("lat", &a.Lat, abi.BF16, t, d)
	c.flat("norm", &a.Norm, floats, d)
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
	}
	switch {
	case r < 1:
		c.fail("ratio must be at least 1")
	case r == 1:
		c.shape("k", &a.K, abi.BF16, t, d)
	default:
		c.shape("k", &a.K, floats, t, coff*d)
		c.shape("s", &a.S, floats, t, coff*d)
		if a.Ape.Present() {
			c.flat("ape", &a.Ape, floats, r*coff*d)
		}
		if g := &a.Tail; c.err == nil && (g.Base == nil || g.Rows < 1 || int(g.RowBytes) != 2*coff*d*int(unsafe.Sizeof(F(0)))) {
			c.fail("tail has %d rows of %d bytes, needs rows of %d values of the accumulation type (%d bytes)", g.Rows, g.RowBytes, 2*coff*d, 2*coff*d*int(unsafe.Sizeof(F(0))))
		} else if c.err == nil && (uintptr(g.Base)|uintptr(g.UnitStride)|uintptr(g.Offset))%unsafe.Sizeof(F(0)) != 0 {
			c.fail("tail rows are not aligned to the accumulation type")
		} else if c.err == nil && int(g.Rows) < coff*r-1 {
			c.fail("tail keeps %d rows, a group reaches back over %d", g.Rows, coff*r-1)
		}
	}
	cached := a.Cache.Format != abi.RecNone
	if cached {
		c.region("cache", &a.Cache)
		c.freq(&a.Freq, d)
		if c.err == nil && (int(a.Cache.Dim) != d || int(a.Cache.Ratio) != r) {
			c.fail("cache holds %d values at ratio %d, latents have %d at ratio %d", a.Cache.Dim, a.Cache.Ratio, d, r)
		}
		if c.err == nil {
			c.table(a.Batch, &a.Cache)
		}
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	b := a.Batch
	o.a.reset()
	var scores []F // [t, coff*d], ape added
	if r > 1 {
		w := coff * d
		scores = o.a.floats(t * w)
		var ape []F
		if a.Ape.Present() {
			ape = readF(&a.Ape, 0, r*w, &o.a)
		}
		pos := arr(b.Pos, b.Rows)
		for i := range t {
			mark := o.a.fn
			s := scores[i*w : (i+1)*w]
			copy(s, readF(&a.S, i*a.S.RowStride(), w, &o.a))
			o.a.fn = mark
			if ape != nil {
				e := ape[int(pos[i])%r*w:]
				for q := range s {
					s[q] += e[q]
				}
			}
		}
	}
	o.loop = loopJob[F]{o: o, op: loopCompress, p: unsafe.Pointer(a), x: readF(&a.Norm, 0, d, &o.a), y: scores}
	o.do(t, 16*d, &o.loop)
	if r > 1 {
		for s := range int(b.Seqs) {
			first, n := int(arr(b.SeqFirst, b.Seqs)[s]), int(arr(b.SeqRows, b.Seqs)[s])
			for i := first + max(0, n-int(a.Tail.Rows)); i < first+n; i++ {
				k, sc := tailRow[F](&a.Tail, int(arr(b.SeqSlot, b.Seqs)[s]), int(arr(b.Pos, b.Rows)[i]))
				m := o.a.fn
				copy(k, readF(&a.K, i*a.K.RowStride(), coff*d, &o.a))
				o.a.fn = m
				copy(sc, scores[i*coff*d:(i+1)*coff*d])
			}
		}
	}
	return nil
}

// tailRow views the kept (k, s) of a position.
func tailRow[F Float](g *abi.Region, slot, pos int) (k, s []F) {
	p := unsafe.Add(g.Base, int64(slot)*g.UnitStride+g.Offset+int64(pos%int(g.Rows))*int64(g.RowBytes))
	v := unsafe.Slice((*F)(p), int(g.RowBytes)/int(unsafe.Sizeof(F(0))))
	return v[:len(v)/2], v[len(v)/2:]
}

func (j *loopJob[F]) compress(sc *scratch[F], i int) {
	a := (*abi.CompressArgs)(j.p)
	b := a.Batch
	d, r := int(a.Lat.Dim[1]), int(a.Ratio)
	pos, seq := int(arr(b.Pos, b.Rows)[i]), int(arr(b.Seq, b.Rows)[i])
	lat := row[uint16](&a.Lat, i)
	if (pos+1)%r != 0 {
		clear(lat)
		return
	}
	x := sc.floats(d)
	if r == 1 {
		widen(x, row[uint16](&a.K, i))
	} else {
		j.pool(sc, x, i, pos, seq)
		for q, v := range x {
			x[q] = roundBF16(v)
		}
	}
	rms(x, x, j.x, F(a.Eps))
	narrow(lat, x)
	if a.Cache.Format == abi.RecNone || pos < int(arr(b.SeqWrite, b.Seqs)[seq]) {
		return
	}
	widen(x, lat)
	freq := abi.Slice[float32](&a.Freq)
	cs, sn := sc.floats(len(freq)), sc.floats(len(freq))
	cosSin(cs, sn, pos+1-r, freq)
	rotate(x, cs, sn, false)
	roundTail(x, 2*len(freq))
	storeEntry(b, &a.Cache, seq, (pos+1)/r-1, x)
}

// pool writes the softmax-weighted sum of the group that ends at row i.
func (j *loopJob[F]) pool(sc *scratch[F], x []F, i, pos, seq int) {
	a := (*abi.CompressArgs)(j.p)
	b := a.Batch
	d, r := len(x), int(a.Ratio)
	first := int(arr(b.SeqFirst, b.Seqs)[seq])
	p0 := int(arr(b.Pos, b.Rows)[first])
	slot := int(arr(b.SeqSlot, b.Seqs)[seq])
	back, w := r, d // tokens that take part, width of k and s
	if a.Overlap != 0 {
		back, w = 2*r, 2*d
	}
	back = min(back, pos+1) // before the first group there is nothing
	// item returns the d channels of k and s with which position p takes part: of its row in this step, or of the tail.
	item := func(p int) (k, s []F) {
		if p >= p0 {
			at := first + p - p0
			k, s = readF(&a.K, at*a.K.RowStride(), w, &sc.arena), j.y[at*w:(at+1)*w]
		} else {
			k, s = tailRow[F](&a.Tail, slot, p)
		}
		if a.Overlap != 0 && p > pos-r { // this group: second half
			return k[d:], s[d:]
		}
		return k[:d], s[:d]
	}
	m, den := sc.floats(d), sc.floats(d)
	for q := range m {
		m[q], den[q], x[q] = F(math.Inf(-1)), 0, 0
	}
	mark := sc.fn
	for p := pos - back + 1; p <= pos; p++ {
		_, s := item(p)
		for q, v := range s {
			if v > m[q] || v != v {
				m[q] = v
			}
		}
		sc.fn = mark
	}
	for p := pos - back + 1; p <= pos; p++ {
		_, s := item(p)
		for q, v := range s {
			den[q] += exp(v - m[q])
		}
		sc.fn = mark
	}
	for p := pos - back + 1; p <= pos; p++ {
		k, s := item(p)
		for q := range x {
			x[q] += F(exp(s[q]-m[q]) / den[q] * k[q])
		}
		sc.fn = mark
	}
}

// IndexKey implements backend.Attention.
func (o *Ops[F]) IndexKey(a *abi.IndexKeyArgs) error {
	c := checker{op: "index_key"}
	t, d := int(a.K.Dim[0]), int(a.K.Dim[1])
	c.shape("k", &a.K, abi.BF16, t, d)
	c.region("cache", &a.Cache)
	c.freq(&a.Freq, d)
	if c.err == nil && int(a.Cache.Dim) != d {
		c.fail("cache holds %d values, k has %d", a.Cache.Dim, d)
	}
	if a.Hadamard != 0 && d&(d-1) != 0 {
		c.fail("hadamard needs a power of two, k has %d values", d)
	}
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
		c.table(a.Batch, &a.Cache)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.loop = loopJob[F]{o: o, op: loopIndexKey, p: unsafe.Pointer(a)}
	o.do(t, 32*d, &o.loop)
	return nil
}

func (j *loopJob[F]) indexKey(sc *scratch[F], i int) {
	a := (*abi.IndexKeyArgs)(j.p)
	b, r := a.Batch, int(a.Cache.Ratio)
	pos, seq := int(arr(b.Pos, b.Rows)[i]), int(arr(b.Seq, b.Rows)[i])
	if (pos+1)%r != 0 || pos < int(arr(b.SeqWrite, b.Seqs)[seq]) {
		return
	}
	x := sc.floats(int(a.K.Dim[1]))
	widen(x, row[uint16](&a.K, i))
	freq := abi.Slice[float32](&a.Freq)
	cs, sn := sc.floats(len(freq)), sc.floats(len(freq))
	cosSin(cs, sn, pos+1-r, freq)
	rotate(x, cs, sn, false)
	roundTail(x, 2*len(freq))
	if a.Hadamard != 0 {
		hadamard(x)
		roundTail(x, len(x))
	}
	storeEntry(b, &a.Cache, seq, (pos+1)/r-1, x)
}

// selectRows is how many rows share one pass over the decoded keys.
const selectRows = 8

type selectJob[F Float] struct {
	o *Ops[F]
	a *abi.IndexSelectArgs
}

// IndexSelect implements backend.Attention.
func (o *Ops[F]) IndexSelect(a *abi.IndexSelectArgs) error {
	c := checker{op: "index_select"}
	t, h, d := int(a.Q.Dim[0]), int(a.Q.Dim[1]), int(a.Q.Dim[2])
	c.shape("q", &a.Q, abi.BF16, t, h, d)
	c.shape("w", &a.W, abi.BF16, t, h)
	c.shape("sel", &a.Sel, abi.I32, t, int(a.TopK))
	c.region("cache", &a.Cache)
	if c.err == nil && int(a.Cache.Dim) != d {
		c.fail("cache holds %d values, q has %d", a.Cache.Dim, d)
	}
	if a.TopK < 1 {
		c.fail("top_k must be at least 1")
	}
	if a.Mode > abi.ScoreBF16 {
		c.fail("unknown score mode %d", a.Mode)
	}
	if (a.CandIn.Present() || a.CandOut.Present()) && a.CandBlock < 1 {
		c.fail("candidate blocks need cand_block of at least 1")
	}
	if a.CandIn.Present() {
		c.shape("cand_in", &a.CandIn, abi.I32, t, -1)
	}
	if a.CandOut.Present() {
		c.shape("cand_out", &a.CandOut, abi.I32, t, -1)
	}
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
		c.table(a.Batch, &a.Cache)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	n := int(arr(a.Batch.Pos, a.Batch.Rows)[t-1]+1) / int(a.Cache.Ratio)
	o.sel = selectJob[F]{o: o, a: a}
	o.do((t+selectRows-1)/selectRows, selectRows*n*h*d, &o.sel)
	return nil
}

func (j *selectJob[F]) run(lo, hi int) {
	sc := j.o.take()
	t := int(j.a.Q.Dim[0])
	seq := arr(j.a.Batch.Seq, j.a.Batch.Rows)
	for g := lo; g < hi; g++ {
		for r, end := g*selectRows, min((g+1)*selectRows, t); r < end; {
			e := r + 1
			for e < end && seq[e] == seq[r] {
				e++
			}
			sc.reset()
			j.rows(sc, r, e)
			r = e
		}
	}
	j.o.give(sc)
}

// rows selects for rows r0..r1-1 of one sequence.
func (j *selectJob[F]) rows(sc *scratch[F], r0, r1 int) {
	a := j.a
	b := a.Batch
	h, d := int(a.Q.Dim[1]), int(a.Q.Dim[2])
	pos := arr(b.Pos, b.Rows)
	seq := int(arr(b.Seq, b.Rows)[r0])
	nmax := int(pos[r1-1]+1) / int(a.Cache.Ratio)
	topk := int(a.TopK)
	need := a.CandOut.Present() || a.CandIn.Present() || nmax > topk
	if !need {
		for r := r0; r < r1; r++ {
			sel := row[int32](&a.Sel, r)
			for i := range sel {
				sel[i] = -1
			}
			for i := range int(pos[r]+1) / int(a.Cache.Ratio) {
				sel[i] = int32(i)
			}
		}
		return
	}
	q := sc.floats((r1 - r0) * h * d)
	w := sc.floats((r1 - r0) * h)
	for r := r0; r < r1; r++ {
		widen(q[(r-r0)*h*d:], row[uint16](&a.Q, r))
		widen(w[(r-r0)*h:], row[uint16](&a.W, r))
	}
	if a.Mode == abi.ScoreF32 {
		for i := range w {
			w[i] *= F(a.Scale)
		}
	}
	score := sc.floats((r1 - r0) * nmax)
	key := sc.floats(d)
	for e := range nmax {
		val, scale := entry(b, &a.Cache, seq, e)
		decodeRecord(key, a.Cache.Format, int(a.Cache.Rope), val, scale)
		for r := r0; r < r1; r++ {
			if e >= int(pos[r]+1)/int(a.Cache.Ratio) {
				continue
			}
			score[(r-r0)*nmax+e] = j.score(q[(r-r0)*h*d:(r-r0+1)*h*d], w[(r-r0)*h:(r-r0+1)*h], key)
		}
	}
	for r := r0; r < r1; r++ {
		n := int(pos[r]+1) / int(a.Cache.Ratio)
		mark, imark := sc.fn, sc.in
		j.pick(sc, r, score[(r-r0)*nmax:(r-r0)*nmax+n])
		sc.fn, sc.in = mark, imark
	}
}

// score of one query row against one key.
func (j *selectJob[F]) score(q, w, key []F) F {
	d := len(key)
	if j.a.Mode == abi.ScoreBF16 {
		var acc [4]F
		for i, wi := range w {
			s := dot1(q[i*d:(i+1)*d], key)
			if s < 0 {
				s = 0
			}
			s = roundBF16(s)
			acc[i&3] = roundBF16(fma(wi, s, acc[i&3]))
		}
		return roundBF16(roundBF16(acc[0]+acc[2]) + roundBF16(acc[1]+acc[3]))
	}
	var sum F
	for i, wi := range w {
		s := dot1(q[i*d:(i+1)*d], key)
		if s < 0 {
			s = 0
		}
		sum += F(wi * s)
	}
	return sum
}

// fma is a*b+c for BF16 operands; a*b is exact in float64, so one rounding to F remains before the caller's to BF16.
func fma[F Float](a, b, c F) F { return F(float64(a)*float64(b) + float64(c)) }

// lowest maps NaN below everything else.
func lowest[F Float](x F) F {
	if x != x {
		return F(math.Inf(-1))
	}
	return x
}

// pick writes the selection, and the candidate blocks, of one row from the scores of its visible entries.
func (j *selectJob[F]) pick(sc *scratch[F], r int, score []F) {
	a := j.a
	n := len(score)
	sel := row[int32](&a.Sel, r)
	for i, s := range score {
		score[i] = lowest(s)
	}
	bs := int(a.CandBlock)
	if a.CandOut.Present() {
		out := row[int32](&a.CandOut, r)
		nb := 0
		if n > 0 {
			nb = (n + bs - 1) / bs
		}
		best := sc.floats(nb)
		for b := range best {
			m := F(math.Inf(-1))
			for _, s := range score[b*bs : min(b*bs+bs, n)] {
				m = max(m, s)
			}
			if a.Mode == abi.ScoreBF16 {
				m = min(m, F(Wide(0x7f7f)))
			}
			best[b] = m
		}
		if nb > 0 {
			best[nb-1] = F(math.Inf(1))
		}
		topAscending(sc, out, best, nil)
	}
	if !a.CandIn.Present() {
		topAscending(sc, sel, score, nil)
		return
	}
	ids := sc.ints(n)[:0]
	vals := sc.floats(n)[:0]
	for _, b := range row[int32](&a.CandIn, r) {
		if b < 0 {
			break
		}
		for e := int(b) * bs; e < min(int(b)*bs+bs, n); e++ {
			if len(ids) < n {
				ids, vals = append(ids, int32(e)), append(vals, score[e])
			}
		}
	}
	topAscending(sc, sel, vals, ids)
}

// topAscending writes the indices (or ids) of the len(out) highest values in ascending order, then -1. Among equal values the lower
// index wins; -0 equals 0.
func topAscending[F Float](sc *scratch[F], out []int32, v []F, ids []int32) {
	k := min(len(out), len(v))
	var thr F
	ties := k
	if k > 0 && k < len(v) {
		tmp := sc.floats(len(v))
		copy(tmp, v)
		thr = kth(tmp, k)
		for _, x := range v {
			if x > thr {
				ties--
			}
		}
	}
	n := 0
	for i, x := range v {
		if n == k {
			break
		}
		take := k == len(v)
		if !take {
			if x > thr {
				take = true
			} else if x == thr && ties > 0 {
				take = true
				ties--
			}
		}
		if take {
			id := int32(i)
			if ids != nil {
				id = ids[i]
			}
			out[n] = id
			n++
		}
	}
	for ; n < len(out); n++ {
		out[n] = -1
	}
}

// kth returns the k-th highest value (k >= 1) of v without NaN, reordering v.
func kth[F Float](v []F, k int) F {
	lo, hi := 0, len(v)-1
	k--
	for lo < hi {
		a, b, c := v[lo], v[(lo+hi)/2], v[hi]
		p := max(min(a, b), min(max(a, b), c))
		i, j := lo, hi
		for i <= j {
			for v[i] > p {
				i++
			}
			for v[j] < p {
				j--
			}
			if i <= j {
				v[i], v[j] = v[j], v[i]
				i++
				j--
			}
		}
		if k <= j {
			hi = j
		} else if k >= i {
			lo = i
		} else {
			break
		}
	}
	return v[k]
}

type attendJob[F Float] struct {
	o      *Ops[F]
	a      *abi.AttendArgs
	sink   []F
	freq   []float32
	block  bool
	splits int // head ranges per row
}

// Attend implements backend.Attention.
func (o *Ops[F]) Attend(a *abi.AttendArgs) error { return o.attention("attend", a, false) }

// AttendBlock implements backend.Attention.
func (o *Ops[F]) AttendBlock(a *abi.AttendArgs) error { return o.attention("attend_block", a, true) }

func (o *Ops[F]) attention(op string, a *abi.AttendArgs, blockwise bool) error {
	c := checker{op: op}
	t, h, d := int(a.Q.Dim[0]), int(a.Q.Dim[1]), int(a.Q.Dim[2])
	c.shape("q", &a.Q, abi.BF16, t, h, d)
	c.shape("out", &a.Out, abi.BF16, t, h, d)
	c.flat("sink", &a.Sink, floats, h)
	c.freq(&a.Freq, d)
	c.region("ring", &a.Ring)
	c.shape("rec", &a.Rec, abi.U8, t, int(a.Ring.RowBytes))
	if c.err == nil && int(a.Ring.Dim) != d {
		c.fail("ring holds %d values, q has %d", a.Ring.Dim, d)
	}
	if a.Window < 1 {
		c.fail("window must be at least 1")
	}
	if a.OutMode > abi.AttendA8 {
		c.fail("unknown output mode %d", a.OutMode)
	}
	need := int(a.Window) - 1 // earlier rows the ring must still hold
	if blockwise {
		need++
	}
	if c.err == nil && int(a.Ring.Rows) < need {
		c.fail("ring of %d rows is below the window %d", a.Ring.Rows, a.Window)
	}
	cached := a.Cache.Format != abi.RecNone
	if cached {
		c.region("cache", &a.Cache)
		if c.err == nil && int(a.Cache.Dim) != d {
			c.fail("cache holds %d values, q has %d", a.Cache.Dim, d)
		}
		if a.AllVisible == 0 {
			c.shape("sel", &a.Sel, abi.I32, t, -1)
		}
	}
	c.batch(a.Batch, t)
	if c.err == nil {
		c.seqs(a.Batch)
		if cached {
			c.table(a.Batch, &a.Cache)
		}
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	keys := int(a.Window)
	if cached {
		if a.AllVisible == 0 {
			keys += int(a.Sel.Dim[1])
			if err := checkSel(op, a); err != nil {
				return err
			}
		} else {
			keys += int(arr(a.Batch.Pos, a.Batch.Rows)[t-1]+1) / int(a.Cache.Ratio)
		}
	}
	o.a.reset()
	j := &o.attend
	*j = attendJob[F]{o: o, a: a, sink: readF(&a.Sink, 0, h, &o.a), freq: abi.Slice[float32](&a.Freq), block: blockwise, splits: 1}
	if t < 4 && h >= 8 { // few rows: spread the heads, at the price of decoding the keys once per range
		j.splits = 2
	}
	o.do(t*j.splits, 2*keys*h*d/j.splits, j)
	return nil
}

// checkSel refuses selections outside the visible entries.
func checkSel(op string, a *abi.AttendArgs) error {
	pos := arr(a.Batch.Pos, a.Batch.Rows)
	for r, p := range pos {
		n := (p + 1) / a.Cache.Ratio
		for _, e := range row[int32](&a.Sel, r) {
			if e < 0 {
				break
			}
			if e >= n {
				return fault(op, "row %d selects entry %d, position %d sees %d", r, e, p, n)
			}
		}
	}
	return nil
}

func (j *attendJob[F]) run(lo, hi int) {
	sc := j.o.take()
	h := int(j.a.Q.Dim[1])
	for u := lo; u < hi; u++ {
		sc.reset()
		s := u % j.splits
		j.row(sc, u/j.splits, s*h/j.splits, (s+1)*h/j.splits)
	}
	j.o.give(sc)
}

// keys decodes the keys of a row in the order of the sums and returns [n,d].
func (j *attendJob[F]) keys(sc *scratch[F], r int) []F {
	a := j.a
	b := a.Batch
	d := int(a.Q.Dim[2])
	seq := int(arr(b.Seq, b.Rows)[r])
	pos := int(arr(b.Pos, b.Rows)[r])
	first := int(arr(b.SeqFirst, b.Seqs)[seq])
	rows := int(arr(b.SeqRows, b.Seqs)[seq])
	p0 := int(arr(b.Pos, b.Rows)[first])
	low := int(arr(b.SeqLow, b.Seqs)[seq])
	slot := int(arr(b.SeqSlot, b.Seqs)[seq])
	var from, to int // window positions
	if j.block {
		from, to = max(0, low, p0-int(a.Window)), p0+rows-1
		from = min(from, p0)
	} else {
		from, to = max(0, low, pos-int(a.Window)+1), pos
		if pos < low {
			from = pos
		}
	}
	var sel []int32
	n := 0
	if a.Cache.Format != abi.RecNone {
		if a.AllVisible != 0 {
			n = (pos + 1) / int(a.Cache.Ratio)
		} else {
			sel = row[int32](&a.Sel, r)
			for n < len(sel) && sel[n] >= 0 {
				n++
			}
		}
	}
	k := sc.floats((to - from + 1 + n) * d)
	at := 0
	split := recordSplit(a.Ring.Format, d, int(a.Ring.Rope))
	for p := from; p <= to; p++ {
		var val, scale []byte
		if p >= p0 {
			rec := row[byte](&a.Rec, first+p-p0)
			val, scale = rec[:split], rec[split:]
		} else {
			val, scale = record(&a.Ring, slot, p%int(a.Ring.Rows))
		}
		decodeRecord(k[at:at+d], a.Ring.Format, int(a.Ring.Rope), val, scale)
		at += d
	}
	for i := range n {
		e := i
		if sel != nil {
			e = int(sel[i])
		}
		val, scale := entry(b, &a.Cache, seq, e)
		decodeRecord(k[at:at+d], a.Cache.Format, int(a.Cache.Rope), val, scale)
		at += d
	}
	return k
}

func (j *attendJob[F]) row(sc *scratch[F], r, h0, h1 int) {
	a := j.a
	d := int(a.Q.Dim[2])
	keys := j.keys(sc, r)
	n := len(keys) / d
	q, p, acc := sc.floats(d), sc.floats(n), sc.floats(d)
	cs, sn := sc.floats(len(j.freq)), sc.floats(len(j.freq))
	cosSin(cs, sn, int(arr(a.Batch.Pos, a.Batch.Rows)[r]), j.freq)
	qr, out := row[uint16](&a.Q, r), row[uint16](&a.Out, r)
	scale := F(a.Scale)
	for h := h0; h < h1; h++ {
		widen(q, qr[h*d:(h+1)*d])
		dots(p, q, keys)
		m := F(math.Inf(-1))
		for i, s := range p {
			s *= scale
			p[i] = s
			if s > m || s != s {
				m = s
			}
		}
		var den F
		for i, s := range p {
			e := exp(s - m)
			den += e
			p[i] = roundBF16(e)
		}
		den += exp(j.sink[h] - m)
		weighted(acc, p, keys)
		for i, v := range acc {
			acc[i] = v / den
		}
		if a.OutMode == abi.AttendBF16 {
			roundTail(acc, d)
			rotate(acc, cs, sn, true)
		} else {
			rotate(acc, cs, sn, true)
			a8Groups(acc, acc, 32)
		}
		narrow(out[h*d:(h+1)*d], acc)
	}
}

// dots writes q . key for each key of [len(p), len(q)].
func dots[F Float](p, q, keys []F) {
	d := len(q)
	i := 0
	for ; i+4 <= len(p); i += 4 {
		k := keys[i*d : (i+4)*d]
		p[i], p[i+1], p[i+2], p[i+3] = dot4(q, k[:d], k[d:2*d], k[2*d:3*d], k[3*d:4*d])
	}
	for ; i < len(p); i++ {
		p[i] = dot1(q, keys[i*d:(i+1)*d])
	}
}

// weighted writes the sum over keys of p times key, keys in order.
func weighted[F Float](acc, p, keys []F) {
	d := len(acc)
	clear(acc)
	i := 0
	for ; i+4 <= len(p); i += 4 {
		k := keys[i*d : (i+4)*d]
		k0, k1, k2, k3 := k[:d], k[d:2*d], k[2*d:3*d], k[3*d:4*d]
		k0, k1, k2, k3 = k0[:len(acc)], k1[:len(acc)], k2[:len(acc)], k3[:len(acc)]
		p0, p1, p2, p3 := p[i], p[i+1], p[i+2], p[i+3]
		for x, v := range acc {
			v += F(p0 * k0[x])
			v += F(p1 * k1[x])
			v += F(p2 * k2[x])
			v += F(p3 * k3[x])
			acc[x] = v
		}
	}
	for ; i < len(p); i++ {
		k := keys[i*d : (i+1)*d]
		k = k[:len(acc)]
		w := p[i]
		for x := range acc {
			acc[x] += F(w * k[x])
		}
	}
}
