package refop

import (
	"cmp"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Philox is Philox-4x32-10: four random words of a 64-bit key and a 128-bit counter, without state.
func Philox(key uint64, counter [4]uint32) [4]uint32 {
	k0, k1 := uint32(key), uint32(key>>32)
	c0, c1, c2, c3 := counter[0], counter[1], counter[2], counter[3]
	for range 10 {
		h0, l0 := bits.Mul32(0xD2511F53, c0)
		h1, l1 := bits.Mul32(0xCD9E8D57, c2)
		c0, c1, c2, c3 = h1^c1^k0, l1, h0^c3^k1, l0
		k0 += 0x9E3779B9
		k1 += 0xBB67AE85
	}
	return [4]uint32{c0, c1, c2, c3}
}

// Gumbel turns a random word into Gumbel noise in FP32: u = (x+0.5)*2^-32, at most 1-2^-24; g = -log(-log(u)).
func Gumbel(x uint32) float32 {
	u := min((float32(x)+0.5)*0x1p-32, 1-0x1p-24)
	t := -float32(math.Log(float64(u)))
	return -float32(math.Log(float64(t)))
}

// gumbelMax is above every value of Gumbel (16.64): an id that cannot win even with it needs no draw.
const gumbelMax = 16.7

// foldBlock is the width of the partial sums of a softmax over the vocabulary.
const foldBlock = 2048

// Sample implements backend.Vector.
func (o *Ops[F]) Sample(a *abi.SampleArgs) error {
	c := checker{op: "sample"}
	l, v, n := int(a.Logits.Dim[0]), int(a.Logits.Dim[1]), int(a.TopN)
	c.shape("logits", &a.Logits, floats, l, v)
	c.flat("ids", &a.Ids, abi.I32, l)
	c.flat("logprob", &a.Logprob, floats, l)
	if n > 0 {
		c.shape("top_ids", &a.TopIds, abi.I32, l, -1)
		c.shape("top_logprob", &a.TopLogprob, floats, l, -1)
		if c.err == nil && l > 0 && (int(a.TopIds.Dim[1]) < n || int(a.TopLogprob.Dim[1]) < n || n > v) {
			c.fail("top_n is %d, the outputs have room for %d and %d, the vocabulary has %d", n, a.TopIds.Dim[1], a.TopLogprob.Dim[1], v)
		}
	}
	if c.err != nil || l == 0 {
		return c.err
	}
	if v < 1 {
		return fault("sample", "logits have no columns")
	}
	if a.Params == nil {
		return fault("sample", "params is absent")
	}
	for i, p := range unsafe.Slice(a.Params, l) {
		switch {
		case int(p.Forced) >= v:
			return fault("sample", "row %d: forced id %d, the vocabulary has %d", i, p.Forced, v)
		case !(p.Temperature >= 0) || math.IsInf(float64(p.Temperature), 0):
			return fault("sample", "row %d: temperature %v, must be finite and not negative", i, p.Temperature)
		case !(p.TopP >= 0 && p.TopP <= 1) || !(p.MinP >= 0 && p.MinP <= 1) || p.TopK < 0:
			return fault("sample", "row %d: top_p %v, min_p %v, top_k %d: out of range", i, p.TopP, p.MinP, p.TopK)
		case p.Mask < 0 || int64(p.Mask) > int64(a.MaskRows) || p.Mask > 0 && (a.Masks == nil || 32*int64(a.MaskWords) < int64(v)):
			return fault("sample", "row %d: mask %d of %d with %d words each for a vocabulary of %d", i, p.Mask, a.MaskRows, a.MaskWords, v)
		case p.BiasFirst < 0 || p.BiasCount < 0 || int64(p.BiasFirst)+int64(p.BiasCount) > int64(a.BiasRows) || p.BiasCount > 0 && a.Biases == nil:
			return fault("sample", "row %d: %d biases from %d, the table has %d", i, p.BiasCount, p.BiasFirst, a.BiasRows)
		}
	}
	for i := range int(a.BiasRows) {
		if a.Biases == nil {
			break // no row has one
		}
		b := unsafe.Slice(a.Biases, a.BiasRows)[i]
		if err := b.Check(v); err != nil {
			return fault("sample", "bias %d: %v", i, err)
		}
	}
	o.do(l, 8*v, o.start(loopSample, unsafe.Pointer(a)))
	return nil
}

// adjust applies the biases and the mask of a row to a copy of its logits, nil when it has neither.
func adjust[F Float](sc *scratch[F], logits []F, a *abi.SampleArgs, p *abi.Sampling) []F {
	if p.Mask == 0 && p.BiasCount == 0 {
		return nil
	}
	neg := F(math.Inf(-1))
	z := sc.floats(len(logits))
	copy(z, logits)
	if p.BiasCount > 0 {
		for _, b := range unsafe.Slice(a.Biases, a.BiasRows)[p.BiasFirst:][:p.BiasCount] {
			switch id := b.Id; {
			case id >= 0:
				z[id] += F(b.Add)
			case z[^id] > 0:
				z[^id] /= F(b.Add)
			default:
				z[^id] *= F(b.Add)
			}
		}
	}
	if p.Mask > 0 {
		words := int(a.MaskWords)
		for at, w := range unsafe.Slice(a.Masks, int(a.MaskRows)*words)[int(p.Mask-1)*words:][:words] {
			if w == math.MaxUint32 {
				continue
			}
			for i := at * 32; i < min(at*32+32, len(z)); i++ {
				if w>>(i&31)&1 == 0 {
					z[i] = neg
				}
			}
		}
	}
	return z
}

func (j *loopJob[F]) sample(sc *scratch[F], i int) {
	a := (*abi.SampleArgs)(j.p)
	v := int(a.Logits.Dim[1])
	p := &unsafe.Slice(a.Params, i+1)[i]
	logits := readF(&a.Logits, i*a.Logits.RowStride(), v, &sc.arena)
	top, id := argmax(logits)
	id = max(id, 0)
	if p.Forced >= 0 {
		id = int(p.Forced)
	} else {
		z := logits
		if y := adjust(sc, logits, a, p); y != nil {
			z = y
			_, id = argmax(z)
		}
		if p.Temperature > 0 && id >= 0 {
			if d := draw(sc, z, p); d >= 0 {
				id = d
			}
		}
	}
	abi.Slice[int32](&a.Ids)[i] = int32(id)
	var sum F
	for at := 0; at < v; at += foldBlock {
		var s F
		for _, x := range logits[at:min(at+foldBlock, v)] {
			s += exp(x - top)
		}
		sum += s
	}
	norm := F(math.Log(float64(sum)))
	lp := sc.floats(1)
	lp[0] = F(math.Inf(-1))
	if id >= 0 {
		lp[0] = logits[id]
	}
	lp[0] = (lp[0] - top) - norm // NaN stays NaN without an id
	writeF(&a.Logprob, i, lp)
	n := int(a.TopN)
	if n == 0 {
		return
	}
	ids := row[int32](&a.TopIds, i)[:n]
	val := sc.floats(n)
	have := 0
	for q, x := range logits {
		x = lowest(x)
		if have == n && !(x > val[n-1]) {
			continue
		}
		at := min(have, n-1)
		for at > 0 && x > val[at-1] {
			val[at], ids[at] = val[at-1], ids[at-1]
			at--
		}
		val[at], ids[at] = x, int32(q)
		have = min(have+1, n)
	}
	for q := range val {
		val[q] = (val[q] - top) - norm
	}
	writeF(&a.TopLogprob, i*a.TopLogprob.RowStride(), val)
}

// argmax returns the highest value and its lowest id, -1 when no value is above minus infinity.
func argmax[F Float](z []F) (top F, id int) {
	top, id = F(math.Inf(-1)), -1
	for q, x := range z {
		if x > top {
			top, id = x, q
		}
	}
	return top, id
}

// draw applies the filters and takes the Gumbel maximum; -1 when no id has a finite score.
func draw[F Float](sc *scratch[F], logits []F, p *abi.Sampling) int {
	v := len(logits)
	neg := F(math.Inf(-1))
	z := sc.floats(v) // FP32 values
	for i, x := range logits {
		z[i] = lowest(F(float32(x) / p.Temperature))
	}
	if k := int(p.TopK); k > 0 && k < v {
		tmp := sc.floats(v)
		copy(tmp, z)
		thr := kth(tmp, k)
		for _, x := range z {
			if x > thr {
				k--
			}
		}
		for i, x := range z { // of the values equal to the threshold the lowest ids stay
			switch {
			case x > thr:
			case x == thr && k > 0:
				k--
			default:
				z[i] = neg
			}
		}
	}
	if p.TopP > 0 && p.TopP < 1 || p.MinP > 0 {
		top := neg
		for _, x := range z {
			top = max(top, x)
		}
		e := sc.floats(v)
		for i, x := range z {
			e[i] = F(float32(math.Exp(float64(float32(x) - float32(top)))))
		}
		if p.TopP > 0 && p.TopP < 1 {
			nucleus(sc, z, e, p.TopP)
		}
		if p.MinP > 0 { // the highest probability belongs to e = 1
			for i, x := range e {
				if !(float32(x) >= p.MinP) {
					z[i] = neg
				}
			}
		}
	}
	best, id := float32(math.Inf(-1)), -1
	for at := 0; at < v; at += 4 {
		q := z[at:min(at+4, v)]
		drawn := false
		var r [4]uint32
		for i, x := range q {
			if x == neg || float32(x)+gumbelMax < best {
				continue
			}
			if !drawn {
				r = Philox(p.Seed, [4]uint32{uint32(at / 4), uint32(p.Pos), 0, p.Salt})
				drawn = true
			}
			if s := float32(x) + Gumbel(r[i]); s > best || id < 0 {
				best, id = s, at+i
			}
		}
	}
	return id
}

// nucleus drops from z the ids outside the smallest set, by falling probability and rising id, whose FP32 probabilities e/sum(e)
// reach topP.
func nucleus[F Float](sc *scratch[F], z, e []F, topP float32) {
	v := len(e)
	var sum float32
	for at := 0; at < v; at += foldBlock {
		var s float32
		for _, x := range e[at:min(at+foldBlock, v)] {
			s += float32(x)
		}
		sum += s
	}
	ids := sc.ints(v)
	tmp := sc.floats(v)
	// Most draws need few ids: sort the best 64, then 1024, then all, until the sum is reached.
	for m := 64; ; m *= 16 {
		thr := F(0)
		if m < v {
			copy(tmp, e)
			thr = kth(tmp, m)
		}
		list := ids[:0]
		for i, x := range e {
			if x >= thr {
				list = append(list, int32(i))
			}
		}
		slices.SortFunc(list, func(a, b int32) int {
			if c := cmp.Compare(e[b], e[a]); c != 0 {
				return c
			}
			return cmp.Compare(a, b)
		})
		var cum float32
		for _, id := range list {
			cum += float32(e[id]) / sum
			if cum >= topP {
				last, lastID := e[id], id
				for i, x := range e {
					if x < last || x == last && int32(i) > lastID {
						z[i] = F(math.Inf(-1))
					}
				}
				return
			}
		}
		if m >= v {
			return // rounding kept the sum below topP: all stay
		}
	}
}
