package refop

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// of wraps a slice as an operand.
func of[E any](dtype uint32, v []E, d ...int64) abi.Tensor {
	return abi.Of(unsafe.Pointer(unsafe.SliceData(v)), dtype, d...)
}

func near(t *testing.T, what string, got, want, rel float64) {
	t.Helper()
	if math.Abs(got-want) > rel*math.Abs(want) {
		t.Errorf("%s is %v, want %v", what, got, want)
	}
}

// TestKnownQuantisers holds the quantisers to section 13.4 of the model specification.
func TestKnownQuantisers(t *testing.T) {
	x := make([]float32, 32)
	for i := range x {
		f := 1.0
		if i%3 == 0 {
			f = -1.7
		}
		x[i] = Wide(BF16(0.1 * (float64(i) - 15.5) * f))
	}
	if want := []float32{2.640625, -1.453125, -1.3515625, 2.125, -1.1484375, -1.046875}; !slices.Equal(x[:6], want) {
		t.Fatalf("input %v, want %v", x[:6], want)
	}
	code := make([]uint8, 32)
	if s := a8(code, x); s != 120 || !slices.Equal(code[:6], []uint8{0x7B, 0xF4, 0xF3, 0x78, 0xF1, 0xF0}) {
		t.Errorf("A8: scale %d, codes % X", s, code[:6])
	}
	if s := f4e8(code, x); s != 126 || !slices.Equal(code[:6], []uint8{7, 13, 13, 6, 12, 12}) {
		t.Errorf("F4E8: scale %d, codes %d", s, code[:6])
	}
	if s := f4e4(code, x[:16]); s != 0x2E || !slices.Equal(code[:6], []uint8{7, 13, 13, 6, 13, 12}) {
		t.Errorf("F4E4: scale %#x, codes %d", s, code[:6])
	}
	// Ties where x*fp32(1/s) and x/s differ: the reciprocal is used.
	tie := make([]float32, 16)
	s := float32(15.0 / 512)
	tie[0], tie[1], tie[2], tie[3] = 1.25*s, 2.5*s, 5*s, 6*s
	if b := f4e4(code, tie); b != 0x0F || !slices.Equal(code[:3], []uint8{3, 5, 7}) {
		t.Errorf("F4E4 ties: scale %#x, codes %d, want 0xf and [3 5 7]", b, code[:3])
	}
	if f4e8(code, []float32{-0.0001, 6, float32(math.Copysign(0, -1)), 0}); code[0] != 8 || code[2] != 8 || code[3] != 0 {
		t.Errorf("sign of zero: codes %d, want 8 for -0.0001 and -0, 0 for 0", code[:4])
	}
}

// TestE4M3RoundTrip checks that each code decodes and encodes to itself, and that rounding picks the nearer code, ties to even.
func TestE4M3RoundTrip(t *testing.T) {
	for c := range 256 {
		v := E4M3(uint8(c))
		if c&0x7f == 0x7f {
			if !math.IsNaN(float64(v)) || e4m3Code(v)&0x7f != 0x7f {
				t.Errorf("code %#x is %v", c, v)
			}
			continue
		}
		if got := e4m3Code(v); got != uint8(c) {
			t.Errorf("code %#x is %v, encodes to %#x", c, v, got)
		}
		if c >= 0x7e {
			continue
		}
		next := E4M3(uint8(c + 1))
		mid := (v + next) / 2
		even := uint8(c + c&1)
		if got := e4m3Code(mid); got != even {
			t.Errorf("tie %v between %#x and %#x went to %#x", mid, c, c+1, got)
		}
		if got := e4m3Code(math.Nextafter32(mid, 0)); got != uint8(c) {
			t.Errorf("just below the tie %v went to %#x", mid, got)
		}
		if got := e4m3Code(math.Nextafter32(mid, 1e9)); got != uint8(c+1) {
			t.Errorf("just above the tie %v went to %#x", mid, got)
		}
	}
}

func TestBF16Rounding(t *testing.T) {
	for _, c := range []struct {
		in   float32
		want uint16
	}{{1, 0x3f80}, {1.00390625, 0x3f80}, {1.01171875, 0x3f82}, {float32(math.Copysign(0, -1)), 0x8000}, {float32(math.Inf(1)), 0x7f80}, {math.MaxFloat32, 0x7f80}, {9.1835e-41, 1}} {
		if got := BF16(c.in); got != c.want {
			t.Errorf("%v gives %#04x, want %#04x", c.in, got, c.want)
		}
	}
	if b := BF16(math.Float32frombits(0x7f800001)); b&0x7fff <= 0x7f80 {
		t.Errorf("a NaN became %#04x", b)
	}
	if got := tf32(1 + 0x1p-11 + 0x1p-20); got != 1+0x1p-10 {
		t.Errorf("tf32 gives %v", got)
	}
	if got := tf32(1 + 0x1p-11); got != 1 {
		t.Errorf("tf32 tie gives %v, want 1 (even)", got)
	}
}

// TestKnownMHC holds mhc_mix to section 13.5: the projection is made to give the m of the example.
func TestKnownMHC(t *testing.T) {
	const hc, h = 4, 8
	x := make([]uint16, hc*h) // one 1, so z.fn picks a column and mean(z^2) is 1/32
	x[0] = BF16(1.0)
	r := 1 / math.Sqrt(1.0/(hc*h)+1e-20)
	fn, base := make([]float64, 24*hc*h), make([]float64, 24)
	for i := range 24 {
		fn[i*hc*h] = (0.3*float64(7*i%11) - 1.2) / r
		base[i] = 0.05*float64(5*i%9) - 0.2
	}
	scale := []float64{0.8, 1.1, 0.6}
	pre, post, comb := make([]float64, 4), make([]float64, 4), make([]float64, 16)
	a := &abi.MHCMixArgs{Iters: 20, H: of(abi.BF16, x, 1, hc, h), Fn: of(abi.F64, fn, 24, hc*h), Base: of(abi.F64, base, 24), Scale: of(abi.F64, scale, 3),
		Pre: of(abi.F64, pre, 1, hc), Post: of(abi.F64, post, 1, hc), Comb: of(abi.F64, comb, 1, hc*hc), HcEps: 1e-6, Eps: 1e-20}
	if err := New[float64](nil).MHCMix(a); err != nil {
		t.Fatal(err)
	}
	want := []float64{0.2386683, 0.6835219, 0.4037183, 0.8234657, 1.2729051, 0.7503871, 1.6640368, 1.2589662,
		0.1849517, 0.3682834, 0.2915614, 0.1552026, 0.2709654, 0.0744971, 0.4271556, 0.2273809, 0.2068008, 0.4117906, 0.2078703, 0.1735373, 0.3372811, 0.1454280, 0.0734118, 0.4438782}
	for i, g := range slices.Concat(pre, post, comb) {
		near(t, "value", g, want[i], 1e-6)
	}
	for _, c := range [][2]float64{{-20, 4.539993e-05}, {-2, 0.35626958}, {0, 0.83255461}, {1, 1.1459763}, {3, 1.7460204}, {25, 5}} {
		near(t, "sqrt(softplus)", math.Sqrt(softplus(c[0])), c[1], 1e-6)
	}
}

// TestKnownIndexScore holds the BF16 score chains to section 13.4: eight heads with dots made by one dimension each.
func TestKnownIndexScore(t *testing.T) {
	dots := []float64{1, 2, -3, 0.5, 4, 1.5, 2.25, 8}
	weights := []float64{0.5, -0.25, 1, 2, 0.125, 0.75, -0.5, 0.0625}
	j := selectJob[float64]{a: &abi.IndexSelectArgs{Mode: abi.ScoreBF16}}
	q := make([]float64, 8*32)
	for i, d := range dots {
		q[i*32] = d
	}
	key := make([]float64, 32)
	key[0] = 1
	if got := j.score(q, weights, key); got != 2 {
		t.Errorf("score %v, want 2", got)
	}
}

// TestPhilox checks the published vectors of Philox-4x32-10.
func TestPhilox(t *testing.T) {
	for _, c := range []struct {
		key           uint64
		counter, want [4]uint32
	}{
		{0, [4]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{math.MaxUint64, [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{0x299f31d0a4093822, [4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := Philox(c.key, c.counter); got != c.want {
			t.Errorf("key %#x: %#x, want %#x", c.key, got, c.want)
		}
	}
	if lo, hi := Gumbel(0), Gumbel(math.MaxUint32); !(lo < -3) || !(hi > 16 && hi < gumbelMax) {
		t.Errorf("extreme noise %v and %v", lo, hi)
	}
}

// draws samples n times from one logit row and counts ids.
func draws(t *testing.T, logits []float32, p abi.Sampling, n int) []int {
	t.Helper()
	o := New[float32](nil)
	count := make([]int, len(logits))
	const chunk = 1000
	rows := make([]float32, 0, chunk*len(logits))
	for range chunk {
		rows = append(rows, logits...)
	}
	params, ids, lp := make([]abi.Sampling, chunk), make([]int32, chunk), make([]float32, chunk)
	for at := 0; at < n; at += chunk {
		for i := range params {
			params[i] = p
			params[i].Pos = int32(at + i)
		}
		a := &abi.SampleArgs{Params: &params[0], Logits: of(abi.F32, rows, chunk, int64(len(logits))), Ids: of(abi.I32, ids, chunk), Logprob: of(abi.F32, lp, chunk)}
		if err := o.Sample(a); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids {
			count[id]++
		}
	}
	return count
}

// TestSampleFollowsProbabilities is a chi-square test of drawn ids against the filtered, tempered distribution. The seeds are fixed, so the verdict is too.
func TestSampleFollowsProbabilities(t *testing.T) {
	logits := []float32{1, 0.5, 3, -1, 2.5, 0, 2, 1.5, -2, 2.9, 0.1, -0.5, 1.1}
	for _, c := range []struct {
		name string
		p    abi.Sampling
		keep func(order []int, prob []float64) []int // ids that stay, given ids by falling probability
	}{
		{"plain", abi.Sampling{Temperature: 1}, func(o []int, _ []float64) []int { return o }},
		{"warm", abi.Sampling{Temperature: 2}, func(o []int, _ []float64) []int { return o }},
		{"top-k", abi.Sampling{Temperature: 1, TopK: 4}, func(o []int, _ []float64) []int { return o[:4] }},
		{"top-p", abi.Sampling{Temperature: 1, TopP: 0.7}, func(o []int, p []float64) []int {
			sum := 0.0
			for i, id := range o {
				if sum += p[id]; sum >= 0.7 {
					return o[:i+1]
				}
			}
			return o
		}},
		{"min-p", abi.Sampling{Temperature: 1, MinP: 0.3}, func(o []int, p []float64) []int {
			n := 0
			for n < len(o) && p[o[n]] >= 0.3*p[o[0]] {
				n++
			}
			return o[:n]
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			prob := make([]float64, len(logits))
			sum := 0.0
			for i, l := range logits {
				prob[i] = math.Exp(float64(l) / float64(c.p.Temperature))
				sum += prob[i]
			}
			order := make([]int, len(logits))
			for i := range prob {
				prob[i] /= sum
				order[i] = i
			}
			slices.SortFunc(order, func(a, b int) int { return int(math.Copysign(1, prob[b]-prob[a])) })
			keep := c.keep(order, prob)
			total := 0.0
			for _, id := range keep {
				total += prob[id]
			}
			const n = 60000
			c.p.Seed, c.p.Forced = 99, -1
			got := draws(t, logits, c.p, n)
			chi := 0.0
			for i, g := range got {
				if !slices.Contains(keep, i) {
					if g > 0 {
						t.Errorf("id %d was filtered and drawn %d times", i, g)
					}
					continue
				}
				want := n * prob[i] / total
				chi += (float64(g) - want) * (float64(g) - want) / want
			}
			// Mean of chi-square is df, deviation sqrt(2 df): five deviations above it.
			df := float64(len(keep) - 1)
			if chi > df+5*math.Sqrt(2*df) {
				t.Errorf("chi-square %.1f with %v degrees of freedom: %v", chi, df, got)
			}
		})
	}
}

// TestSampleBoundaries checks greedy ties, forced ids, filters that keep one id, NaN, and log-probabilities.
func TestSampleBoundaries(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		logits []float32
		p      abi.Sampling
		want   int32
	}{
		{"greedy takes the lowest of equal ids", []float32{1, 3, 3, 2}, abi.Sampling{Forced: -1}, 1},
		{"greedy passes over NaN", []float32{nan, 1, 2, nan}, abi.Sampling{Forced: -1}, 2},
		{"all NaN gives id 0", []float32{nan, nan}, abi.Sampling{Forced: -1}, 0},
		{"minus infinity is never drawn", []float32{-inf, -inf, 0, -inf}, abi.Sampling{Temperature: 5, Forced: -1}, 2},
		{"top-k of 1 is greedy", []float32{0, 1, 1, 0}, abi.Sampling{Temperature: 9, TopK: 1, Forced: -1}, 1},
		{"a tiny top-p is greedy", []float32{0, 1, 1, 0}, abi.Sampling{Temperature: 9, TopP: 1e-6, Forced: -1}, 1},
		{"min-p of 1 keeps the best", []float32{0, 1, 0.5, 0}, abi.Sampling{Temperature: 9, MinP: 1, Forced: -1}, 1},
		{"forced", []float32{0, 9}, abi.Sampling{Temperature: 1, Forced: 0}, 0},
	} {
		ids, lp := []int32{-7}, []float32{0}
		a := &abi.SampleArgs{Params: &c.p, Logits: of(abi.F32, c.logits, 1, int64(len(c.logits))), Ids: of(abi.I32, ids, 1), Logprob: of(abi.F32, lp, 1)}
		if err := New[float32](nil).Sample(a); err != nil {
			t.Fatal(err)
		}
		if ids[0] != c.want {
			t.Errorf("%s: id %d, want %d", c.name, ids[0], c.want)
		}
	}
	logits := []float32{0, float32(math.Log(2)), float32(math.Log(5))}
	p := abi.Sampling{Forced: 0}
	ids, lp, top, topLP := []int32{0}, []float32{0}, make([]int32, 2), make([]float32, 2)
	a := &abi.SampleArgs{TopN: 2, Params: &p, Logits: of(abi.F32, logits, 1, 3), Ids: of(abi.I32, ids, 1), Logprob: of(abi.F32, lp, 1), TopIds: of(abi.I32, top, 1, 2), TopLogprob: of(abi.F32, topLP, 1, 2)}
	if err := New[float32](nil).Sample(a); err != nil {
		t.Fatal(err)
	}
	near(t, "log-probability of the forced id", float64(lp[0]), math.Log(1.0/8), 1e-6)
	near(t, "best log-probability", float64(topLP[0]), math.Log(5.0/8), 1e-6)
	if top[0] != 2 || top[1] != 1 {
		t.Errorf("best ids %v, want [2 1]", top)
	}
	for _, bad := range []abi.Sampling{{Temperature: -1, Forced: -1}, {Temperature: nan, Forced: -1}, {TopP: 1.5, Forced: -1}, {MinP: -1, Forced: -1}, {TopK: -1, Forced: -1}, {Forced: 3}} {
		a.Params = &bad
		var be *backend.Error
		if err := New[float32](nil).Sample(a); !errors.As(err, &be) || be.Code != abi.InvalidArgument || be.Scope != backend.ScopeStep {
			t.Errorf("%+v gave %v", bad, err)
		}
	}
}

// adjusted samples one row with masks and biases.
func adjusted(t *testing.T, logits []float32, p abi.Sampling, masks []uint32, biases []abi.Bias) (id int32, lp float32, err error) {
	t.Helper()
	ids, lps := []int32{-7}, []float32{7}
	words := (len(logits) + 31) / 32
	a := &abi.SampleArgs{Params: &p, Logits: of(abi.F32, logits, 1, int64(len(logits))), Ids: of(abi.I32, ids, 1), Logprob: of(abi.F32, lps, 1),
		MaskRows: uint32(len(masks) / words), MaskWords: uint32(words), BiasRows: uint32(len(biases)), Masks: unsafe.SliceData(masks), Biases: unsafe.SliceData(biases)}
	a.Size = uint32(unsafe.Sizeof(*a))
	err = New[float32](nil).Sample(a)
	wide := make([]float64, len(logits))
	for i, x := range logits {
		wide[i] = float64(x)
	}
	wid, wlp := []int32{-7}, []float64{7}
	b := *a
	b.Logits, b.Ids, b.Logprob = of(abi.F64, wide, 1, int64(len(wide))), of(abi.I32, wid, 1), of(abi.F64, wlp, 1)
	if werr := New[float64](nil).Sample(&b); (werr == nil) != (err == nil) || wid[0] != ids[0] {
		t.Errorf("wide sums give id %d (%v), narrow ones %d (%v)", wid[0], werr, ids[0], err)
	}
	return ids[0], lps[0], err
}

// TestSampleAdjustments checks masks, biases and penalties, and that the log-probability is that of the logits before them.
func TestSampleAdjustments(t *testing.T) {
	inf := float32(math.Inf(1))
	logits := []float32{1, 4, 3, 2, -1}
	norm := 0.0
	for _, x := range logits {
		norm += math.Exp(float64(x))
	}
	greedy := abi.Sampling{Forced: -1}
	for _, c := range []struct {
		name   string
		p      abi.Sampling
		masks  []uint32
		biases []abi.Bias
		want   int32
	}{
		{"a mask takes the best id away", abi.Sampling{Forced: -1, Mask: 1}, []uint32{0b11101}, nil, 2},
		{"the second mask row", abi.Sampling{Forced: -1, Mask: 2}, []uint32{0, 0b01001, 0}, nil, 3},
		{"mask 0 is none", greedy, []uint32{0}, nil, 1},
		{"bits beyond the vocabulary mean nothing", abi.Sampling{Forced: -1, Mask: 1}, []uint32{0xffffffe0}, nil, -1},
		{"an empty mask gives no id", abi.Sampling{Forced: -1, Mask: 1, Temperature: 1, TopP: 0.9, TopK: 2, MinP: 0.1}, []uint32{0}, nil, -1},
		{"a mask survives every filter", abi.Sampling{Forced: -1, Mask: 1, Temperature: 3, TopP: 0.5, TopK: 3, MinP: 0.2}, []uint32{0b10000}, nil, 4},
		{"a bias lifts an id", abi.Sampling{Forced: -1, BiasCount: 1}, nil, []abi.Bias{{Id: 4, Add: 6}}, 4},
		{"biases of one id add up", abi.Sampling{Forced: -1, BiasFirst: 1, BiasCount: 2}, nil, []abi.Bias{{Id: 2, Add: 99}, {Id: 0, Add: 2}, {Id: 0, Add: 1.5}}, 0},
		{"minus infinity blocks", abi.Sampling{Forced: -1, BiasCount: 2, Temperature: 0.01}, nil, []abi.Bias{{Id: 1, Add: -inf}, {Id: 2, Add: -inf}}, 3},
		{"blocking all gives no id", abi.Sampling{Forced: -1, BiasCount: 5}, nil, []abi.Bias{{Id: 0, Add: -inf}, {Id: 1, Add: -inf}, {Id: 2, Add: -inf}, {Id: 3, Add: -inf}, {Id: 4, Add: -inf}}, -1},
		{"a bias cannot lift a masked id", abi.Sampling{Forced: -1, Mask: 1, BiasCount: 1}, []uint32{0b00111}, []abi.Bias{{Id: 4, Add: 100}}, 1},
		{"repetition divides what is positive", abi.Sampling{Forced: -1, BiasCount: 1}, nil, []abi.Bias{{Id: ^1, Add: 2}}, 2},
		{"repetition multiplies what is negative", abi.Sampling{Forced: -1, Mask: 1, BiasCount: 2}, []uint32{0b10001}, []abi.Bias{{Id: 0, Add: -1.5}, {Id: ^4, Add: 0.25}}, 4},
		{"repetition sees the bias before it", abi.Sampling{Forced: -1, Mask: 1, BiasCount: 2}, []uint32{0b01010}, []abi.Bias{{Id: 1, Add: -6}, {Id: ^1, Add: 3}}, 3},
		{"a forced id ignores both", abi.Sampling{Forced: 2, Mask: 1, BiasCount: 1}, []uint32{1}, []abi.Bias{{Id: 2, Add: -inf}}, 2},
	} {
		id, lp, err := adjusted(t, logits, c.p, c.masks, c.biases)
		if err != nil || id != c.want {
			t.Errorf("%s: id %d, want %d (%v)", c.name, id, c.want, err)
			continue
		}
		if id < 0 {
			if !math.IsInf(float64(lp), -1) {
				t.Errorf("%s: log-probability %v, want -Inf", c.name, lp)
			}
			continue
		}
		near(t, c.name, float64(lp), float64(logits[id])-math.Log(norm), 1e-6)
	}
	nan := float32(math.NaN())
	if id, lp, err := adjusted(t, []float32{nan, nan}, abi.Sampling{Forced: -1, Mask: 1}, []uint32{3}, nil); err != nil || id != -1 || lp == lp {
		t.Errorf("NaN under a mask: id %d, log-probability %v, %v", id, lp, err)
	}
	for name, c := range map[string]struct {
		p      abi.Sampling
		masks  []uint32
		biases []abi.Bias
	}{
		"mask beyond the table":  {abi.Sampling{Forced: -1, Mask: 2}, []uint32{1}, nil},
		"negative mask":          {abi.Sampling{Forced: -1, Mask: -1}, []uint32{1}, nil},
		"no table":               {abi.Sampling{Forced: -1, Mask: 1}, nil, nil},
		"biases beyond":          {abi.Sampling{Forced: -1, BiasFirst: 1, BiasCount: 1}, nil, []abi.Bias{{Id: 0, Add: 1}}},
		"negative count":         {abi.Sampling{Forced: -1, BiasCount: -1}, nil, []abi.Bias{{Id: 0, Add: 1}}},
		"count overflows":        {abi.Sampling{Forced: -1, BiasFirst: math.MaxInt32, BiasCount: math.MaxInt32}, nil, []abi.Bias{{Id: 0, Add: 1}}},
		"id beyond":              {greedy, nil, []abi.Bias{{Id: 5, Add: 1}}},
		"repeated id beyond":     {greedy, nil, []abi.Bias{{Id: ^5, Add: 1}}},
		"NaN":                    {greedy, nil, []abi.Bias{{Id: 0, Add: nan}}},
		"plus infinity":          {greedy, nil, []abi.Bias{{Id: 0, Add: inf}}},
		"factor 0":               {greedy, nil, []abi.Bias{{Id: ^0, Add: 0}}},
		"factor below 0":         {greedy, nil, []abi.Bias{{Id: ^0, Add: -inf}}},
		"factor plus infinity":   {greedy, nil, []abi.Bias{{Id: ^0, Add: inf}}},
		"lowest id of all there": {greedy, nil, []abi.Bias{{Id: math.MinInt32, Add: 1}}},
	} {
		var be *backend.Error
		if _, _, err := adjusted(t, logits, c.p, c.masks, c.biases); !errors.As(err, &be) || be.Scope != backend.ScopeStep {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// TestMaskedDrawsFollowProbabilities: a mask renormalises what it leaves, under the same noise.
func TestMaskedDrawsFollowProbabilities(t *testing.T) {
	logits := []float32{1, 0.5, 3, -1, 2.5, 0}
	masks := []uint32{0b010110}
	count := map[int32]int{}
	const n = 4000
	for i := range n {
		id, _, err := adjusted(t, logits, abi.Sampling{Seed: 3, Pos: int32(i), Temperature: 1, Forced: -1, Mask: 1}, masks, nil)
		if err != nil {
			t.Fatal(err)
		}
		count[id]++
	}
	sum := math.Exp(0.5) + math.Exp(3) + math.Exp(2.5)
	for id, l := range map[int32]float64{1: 0.5, 2: 3, 4: 2.5} {
		want := n * math.Exp(l) / sum
		if d := float64(count[id]) - want; math.Abs(d) > 5*math.Sqrt(want) {
			t.Errorf("id %d drawn %d times, want about %.0f", id, count[id], want)
		}
	}
	if len(count) != 3 {
		t.Errorf("drawn: %v", count)
	}
}

// TestNucleusMatchesFullSort compares the progressive top-p with a plain sort over random rows.
func TestNucleusMatchesFullSort(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for trial := range 200 {
		v := 1 + r.IntN(3000)
		e := make([]float32, v)
		for i := range e {
			e[i] = float32(math.Exp(-float64(r.IntN(40)) / 8)) // many ties
		}
		e[r.IntN(v)] = 1
		topP := float32(r.Float64())*0.98 + 0.01
		z := slices.Clone(e)
		nucleus(&scratch[float32]{}, z, e, topP)
		order := make([]int, v)
		for i := range order {
			order[i] = i
		}
		slices.SortStableFunc(order, func(a, b int) int {
			switch {
			case e[a] > e[b]:
				return -1
			case e[a] < e[b]:
				return 1
			}
			return 0
		})
		var sum, cum float32
		for at := 0; at < v; at += foldBlock {
			var s float32
			for _, x := range e[at:min(at+foldBlock, v)] {
				s += x
			}
			sum += s
		}
		done := false
		for _, id := range order {
			if kept := !math.IsInf(float64(z[id]), -1); kept == done {
				t.Fatalf("trial %d: id %d kept %v, the sum before it is %v of %v", trial, id, kept, cum, topP)
			}
			if cum += e[id] / sum; cum >= topP {
				done = true
			}
		}
	}
}

// TestKth compares the selection with sorting.
func TestKth(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		n := 1 + r.IntN(50)
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(r.IntN(12))
			if r.IntN(20) == 0 {
				v[i] = math.Inf(-1)
			}
		}
		k := 1 + r.IntN(n)
		s := slices.Clone(v)
		slices.Sort(s)
		if got := kth(slices.Clone(v), k); got != s[n-k] {
			t.Fatalf("%d-th of %v is %v, want %v", k, v, got, s[n-k])
		}
	}
}

// TestDotOrder checks that every kernel shape adds in the same order: a product does not depend on its neighbours.
func TestDotOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, k := range []int{1, 31, 63, 64, 65, 128, 200} {
		v := make([][]float32, 6)
		for i := range v {
			v[i] = make([]float32, k)
			for j := range v[i] {
				v[i][j] = float32(r.NormFloat64())
			}
		}
		s0, s1, s2, s3 := dot4(v[0], v[2], v[3], v[4], v[5])
		for i, got := range []float32{s0, s1, s2, s3} {
			if want := dot1(v[0], v[2+i]); got != want {
				t.Errorf("k=%d column %d: %v, dot1 gives %v", k, i, got, want)
			}
		}
	}
}
