package refop

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// batch makes one sequence of rows from pos on, with one granule table of width granules.
func oneSeq(rows, pos, width int) *abi.Batch {
	put := func(n int, f func(i int) int32) *int32 {
		v := make([]int32, max(n, 1))
		for i := range v {
			v[i] = f(i)
		}
		return &v[0]
	}
	zero := func(int) int32 { return 0 }
	return &abi.Batch{Rows: int32(rows), Seqs: 1, TableWidth: int32(width), Token: put(rows, zero), Pos: put(rows, func(i int) int32 { return int32(pos + i) }), Seq: put(rows, zero),
		Flag: put(rows, zero), SeqFirst: put(1, zero), SeqRows: put(1, func(int) int32 { return int32(rows) }), SeqSlot: put(1, zero), SeqLow: put(1, zero), SeqWrite: put(1, zero),
		SeqTable: put(width, func(i int) int32 { return int32(i) })}
}

// TestNaNIsLowest checks top-k rules: a NaN score loses to every number but is a visible entry like any other, and ties go to the lower index.
func TestNaNIsLowest(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	negZero := math.Copysign(0, -1)
	for _, c := range []struct {
		score []float64
		k     int
		want  []int32
	}{
		{[]float64{1, nan, 3, 2}, 3, []int32{0, 2, 3}},
		{[]float64{nan, nan, -inf}, 2, []int32{0, 1}},
		{[]float64{0, negZero, 0, negZero}, 2, []int32{0, 1}},
		{[]float64{negZero, 0, 1}, 2, []int32{0, 2}},
		{[]float64{5, 5, 5, 5, 6}, 3, []int32{0, 1, 4}},
		{[]float64{2, 1}, 4, []int32{0, 1, -1, -1}},
		{nil, 2, []int32{-1, -1}},
	} {
		v := slices.Clone(c.score)
		for i := range v {
			v[i] = lowest(v[i])
		}
		out := make([]int32, c.k)
		topAscending(&scratch[float64]{}, out, v, nil)
		if !slices.Equal(out, c.want) {
			t.Errorf("top %d of %v: %v, want %v", c.k, c.score, out, c.want)
		}
	}
	ids := make([]int32, 3)
	best(&scratch[float64]{}, ids, []float64{1, 4, 4, lowest(nan), 2}, 3)
	if !slices.Equal(ids, []int32{1, 2, 4}) {
		t.Errorf("best first: %v", ids)
	}
}

// TestNaNPropagates feeds one NaN to ops that sum: the row it is in must show it, the other row must not.
func TestNaNPropagates(t *testing.T) {
	const n = 64
	x := make([]uint16, 2*n)
	for i := range x {
		x[i] = BF16(float32(i%7) - 3)
	}
	x[5] = 0x7fc0
	xt := of(abi.BF16, x, 2, n)
	isNaN := func(b uint16) bool { return b&0x7fff > 0x7f80 }
	o := New[float32](nil)
	y := make([]uint16, 2*n)
	if err := o.RMSNorm(&abi.RMSNormArgs{X: xt, Y: of(abi.BF16, y, 2, n), Eps: 1e-6}); err != nil {
		t.Fatal(err)
	}
	if !isNaN(y[0]) || isNaN(y[n]) {
		t.Errorf("rms_norm: %#x %#x", y[0], y[n])
	}
	rec := make([]byte, 2*(n+2))
	if err := o.Quantize(&abi.QuantizeArgs{Format: abi.RecA8x32, X: xt, Y: of(abi.U8, rec, 2, n+2)}); err != nil {
		t.Fatal(err)
	}
	v := make([]float32, n)
	decodeRecord(v, abi.RecA8x32, 0, rec[:n], rec[n:n+2])
	if v[0] == v[0] || v[32] != v[32] {
		t.Errorf("the group of the NaN holds %v, its neighbour %v", v[0], v[32])
	}
	w := make([]uint16, 4*n)
	for i := range w {
		w[i] = 0x3f80
	}
	wp := unsafe.Pointer(&w[0])
	out := make([]float32, 8)
	if err := o.GEMM(&abi.GEMMArgs{ActGroup: 32, W: &abi.Weight{Format: abi.WBF16, Parts: 1, N: 4, K: n, Data: unsafe.Pointer(&wp)}, X: xt, Y: of(abi.F32, out, 2, 4)}); err != nil {
		t.Fatal(err)
	}
	if out[0] == out[0] || out[4] != out[4] {
		t.Errorf("gemm: %v", out)
	}
}

// TestMessages checks that refusals name operand, value and what is accepted.
func TestMessages(t *testing.T) {
	x := make([]uint16, 64)
	y := make([]float32, 64)
	o := New[float32](nil)
	wp := unsafe.Pointer(&x[0])
	w := &abi.Weight{Format: abi.WBF16, Parts: 1, N: 2, K: 32, Data: unsafe.Pointer(&wp)}
	ids := []int32{7}
	for _, c := range []struct {
		err  error
		want string
	}{
		{o.RMSNorm(&abi.RMSNormArgs{X: of(abi.F32, y, 1, 64), Y: of(abi.BF16, x, 1, 64)}), "x is F32, must be BF16"},
		{o.GEMM(&abi.GEMMArgs{W: w, X: of(abi.BF16, x, 1, 33), Y: of(abi.BF16, x, 1, 2)}), "x dimension 1 is 33, must be 32"},
		{o.GEMM(&abi.GEMMArgs{X: of(abi.BF16, x, 1, 32)}), "weight w is absent"},
		{o.GEMM(&abi.GEMMArgs{W: &abi.Weight{Format: 77, Parts: 1, N: 1, K: 1}}), "unknown format"},
		{o.GEMM(&abi.GEMMArgs{W: w, X: of(abi.BF16, x, 1<<40, 32), Y: of(abi.BF16, x, 1<<40, 2)}), "dimension 0 is 1099511627776"},
		{o.GEMM(&abi.GEMMArgs{W: w, X: of(abi.BF16, x, 1<<30, 32), Y: of(abi.BF16, x, 1<<30, 2)}), "more than 2^31"},
		{o.GatherRows(&abi.GatherRowsArgs{W: w, Ids: of(abi.I32, ids, 1, 1), Y: of(abi.BF16, x, 1, 32)}), "ids[0,0] is row 7 of 2"},
		{o.Copy(&abi.CopyArgs{X: of(abi.BF16, x, 2, 32), Index: of(abi.I32, ids, 1), Y: of(abi.BF16, x, 1, 32)}), "index[0] is row 7 of 2"},
		{o.Hadamard(&abi.HadamardArgs{X: of(abi.BF16, x, 1, 48), Y: of(abi.BF16, x, 1, 48)}), "power of two"},
		{o.Quantize(&abi.QuantizeArgs{Format: abi.RecA8x32, X: of(abi.BF16, x, 1, 48), Y: of(abi.U8, make([]byte, 49), 1, 49)}), "multiple of 32"},
		{o.AllReduce(&abi.CollectiveArgs{Group: wp, X: of(abi.F32, y, 1, 64), Y: of(abi.F32, y, 1, 64)}), "one rank"},
		{o.Embed(&abi.EmbedArgs{Batch: &abi.Batch{Rows: 3}, W: w, Y: of(abi.BF16, x, 1, 2, 32)}), "batch has 3 rows"},
	} {
		var be *backend.Error
		if !errors.As(c.err, &be) || !strings.Contains(be.Msg, c.want) || be.Op == "" {
			t.Errorf("error %v does not mention %q", c.err, c.want)
		}
	}
	b := oneSeq(3, 4, 1)
	unsafe.Slice(b.Pos, 3)[2] = 9
	rec := make([]byte, 3*66)
	ring := abi.Region{Format: abi.RecA8x32, Base: unsafe.Pointer(&rec[0]), Rows: 3, RowBytes: 66, Ratio: 1, Dim: 64}
	err := o.KVStore(&abi.KVStoreArgs{Batch: b, Ring: ring, Rec: of(abi.U8, rec, 3, 66)})
	if err == nil || !strings.Contains(err.Error(), "row 2 has position 9") {
		t.Errorf("a gap in the positions gave %v", err)
	}
}

// TestSelectionMustBeVisible checks that attend refuses an entry that the row cannot see yet.
func TestSelectionMustBeVisible(t *testing.T) {
	const d = 64
	q, rec := make([]uint16, d), make([]byte, 66)
	ring, cache, out := make([]byte, 16*66), make([]byte, 128*36), make([]uint16, d)
	sel, sink, freq := []int32{0, 2}, []float32{0}, []float32{1}
	a := &abi.AttendArgs{Window: 8, Batch: oneSeq(1, 3, 1), Q: of(abi.BF16, q, 1, 1, d), Rec: of(abi.U8, rec, 1, 66), Sel: of(abi.I32, sel, 1, 2), Sink: of(abi.F32, sink, 1), Freq: of(abi.F32, freq, 1),
		Scale: 0.125, Ring: abi.Region{Format: abi.RecA8x32, Base: unsafe.Pointer(&ring[0]), Rows: 16, RowBytes: 66, Ratio: 1, Dim: d},
		Cache: abi.Region{Format: abi.RecF4E4x16, Base: unsafe.Pointer(&cache[0]), Rows: 64, RowBytes: 36, Ratio: 2, Dim: d}, Out: of(abi.BF16, out, 1, 1, d)}
	if err := New[float32](nil).Attend(a); err == nil || !strings.Contains(err.Error(), "selects entry 2, position 3 sees 2") {
		t.Errorf("error %v", err)
	}
	sel[1] = 1
	if err := New[float32](nil).Attend(a); err != nil {
		t.Error(err)
	}
}
