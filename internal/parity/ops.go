package parity

import (
	"math"
	"slices"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// OpError is how far one op's output on a device lies from the exact one, given exactly the same inputs.
type OpError struct {
	Op       int
	Buffer   string
	Relative float64 // norm of the difference over norm of the exact output; integers and records: share of unequal elements
	Largest  float64 // largest single difference over the largest exact value
	Wrong    int     // elements that differ
	Of       int
}

// CompareOps runs tokens on two sessions of the same model, exact first. On the second run every op's output is compared with the first run's and then replaced
// by it, so that each entry is the error of one op alone.
func CompareOps(exact, other *Session, ids []int32) ([]OpError, error) {
	type saved struct {
		t   abi.Tensor
		raw []byte
	}
	var run []saved
	all := make([]int, len(ids))
	for i := range all {
		all[i] = i
	}
	if _, err := exact.Run([]Part{{Seq: exact.NewSeq(ids, len(ids)), Rows: len(ids), Logits: all}}, func(_ int, _ string, t abi.Tensor) {
		run = append(run, saved{t, slices.Clone(unsafe.Slice((*byte)(t.Data), t.Len()*abi.ElemBytes(t.DType)))})
	}); err != nil {
		return nil, err
	}
	var out []OpError
	next := 0
	_, err := other.Run([]Part{{Seq: other.NewSeq(ids, len(ids)), Rows: len(ids), Logits: all}}, func(op int, name string, t abi.Tensor) {
		want := run[next]
		next++
		want.t.Data = unsafe.Pointer(&want.raw[0])
		e := OpError{Op: op, Buffer: name, Of: t.Len()}
		switch t.DType {
		case abi.BF16, abi.F32, abi.F64:
			a, b := floats64of(want.t), floats64of(t)
			var diff, norm, most float64
			for i := range a {
				d := math.Abs(a[i] - b[i])
				if d != 0 {
					e.Wrong++
				}
				diff, norm, most, e.Largest = diff+d*d, norm+a[i]*a[i], max(most, math.Abs(a[i])), max(e.Largest, d)
			}
			e.Relative, e.Largest = math.Sqrt(diff)/max(math.Sqrt(norm), 1e-300), e.Largest/max(most, 1e-300)
			if t.DType == want.t.DType {
				copy(unsafe.Slice((*byte)(t.Data), len(want.raw)), want.raw)
			} else {
				for i, s := 0, abi.Slice[float32](&t); i < len(a); i++ {
					s[i] = float32(a[i])
				}
			}
		default:
			got := unsafe.Slice((*byte)(t.Data), len(want.raw))
			w := abi.ElemBytes(t.DType)
			for i := 0; i < len(got); i += w {
				if !slices.Equal(got[i:i+w], want.raw[i:i+w]) {
					e.Wrong++
				}
			}
			e.Relative = float64(e.Wrong) / float64(max(e.Of, 1))
			copy(got, want.raw)
		}
		out = append(out, e)
	})
	return out, err
}

func floats64of(t abi.Tensor) []float64 {
	if t.DType == abi.F64 {
		return abi.Slice[float64](&t)
	}
	var out []float64
	for _, v := range floats(t) {
		out = append(out, float64(v))
	}
	return out
}
