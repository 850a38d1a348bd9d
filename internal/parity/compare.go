package parity

import (
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Difference is the first recorded number that a run did not reproduce.
type Difference struct {
	Op     int    // index in the program
	Buffer string // "layers.3.attn.out"
	Row    int
	Worst  float64 // relative error of the tensor, or the count of wrong integers
	Detail string
}

// Error names layer and buffer.
func (d *Difference) Error() string {
	return fmt.Sprintf("op %d, %s, first at row %d: %s (worst %.3g)", d.Op, d.Buffer, d.Row, d.Detail, d.Worst)
}

// Tolerance decides when a tensor counts as reproduced.
type Tolerance struct {
	Exact    bool    // BF16 tensors bit for bit, other floats to 1e-6 of the tensor's largest value
	Relative float64 // otherwise: norm of the difference over norm of the golden tensor
}

// check compares got with want and returns "" when it holds.
func (tol Tolerance) check(got, want []float32, bf16 bool, width int) (row int, worst float64, detail string) {
	if len(got) != len(want) {
		return 0, math.Inf(1), fmt.Sprintf("%d values, recorded %d", len(got), len(want))
	}
	var diff, norm, most float64
	for i := range want {
		d := float64(got[i]) - float64(want[i])
		diff += d * d
		norm += float64(want[i]) * float64(want[i])
		most = max(most, math.Abs(float64(want[i])))
	}
	rel := math.Sqrt(diff) / max(math.Sqrt(norm), 1e-30)
	if !tol.Exact {
		if rel <= tol.Relative {
			return 0, rel, ""
		}
		return 0, rel, fmt.Sprintf("relative error %.3g, tolerance %.3g", rel, tol.Relative)
	}
	bad := 0
	for i := range want {
		same := got[i] == want[i]
		if !bf16 {
			same = math.Abs(float64(got[i])-float64(want[i])) <= 1e-6*most
		}
		if !same {
			if bad == 0 {
				row, detail = i/width, fmt.Sprintf("element %d is %v, recorded %v", i%width, got[i], want[i])
			}
			bad++
		}
	}
	if bad > 0 {
		return row, rel, fmt.Sprintf("%s; %d of %d differ", detail, bad, len(want))
	}
	return 0, rel, ""
}

// floats copies a host-memory tensor as float32.
func floats(t abi.Tensor) []float32 {
	n := t.Len()
	out := make([]float32, n)
	switch t.DType {
	case abi.BF16:
		for i, v := range abi.Slice[uint16](&t) {
			out[i] = math.Float32frombits(uint32(v) << 16)
		}
	case abi.F32:
		copy(out, abi.Slice[float32](&t))
	case abi.F64:
		for i, v := range abi.Slice[float64](&t) {
			out[i] = float32(v)
		}
	default:
		panic(fmt.Sprintf("dtype %d", t.DType))
	}
	return out
}

// overwrite replaces the content of a host-memory tensor, so that the next op starts from a recorded input.
func overwrite(t abi.Tensor, v []float32) {
	switch t.DType {
	case abi.BF16:
		for i, s := 0, abi.Slice[uint16](&t); i < len(v); i++ {
			s[i] = uint16(math.Float32bits(v[i]) >> 16)
		}
	case abi.F32:
		copy(abi.Slice[float32](&t), v)
	case abi.F64:
		for i, s := 0, abi.Slice[float64](&t); i < len(v); i++ {
			s[i] = float64(v[i])
		}
	}
}

// lists turns an I32 [rows, k] tensor with -1 endings into lists.
func lists(t abi.Tensor) [][]int {
	k := t.Width()
	s := abi.Slice[int32](&t)
	out := make([][]int, t.Dim[0])
	for r := range out {
		for _, v := range s[r*k : (r+1)*k] {
			if v >= 0 {
				out[r] = append(out[r], int(v))
			}
		}
	}
	return out
}

// decodeRecords returns the values of packed window records.
func decodeRecords(raw []byte, format uint32, dim, rope int) []float32 {
	bytes := abi.RecordBytes(format, dim, rope)
	var out []float32
	for at := 0; at+bytes <= len(raw); at += bytes {
		out = append(out, decodeRecord(raw[at:at+bytes], format, dim, rope)...)
	}
	return out
}

func decodeRecord(r []byte, format uint32, dim, rope int) []float32 {
	out := make([]float32, dim)
	switch format {
	case abi.RecA8x32:
		for i := range dim {
			out[i] = e4m3(r[i]) * e8m0(r[dim+i/32])
		}
	case abi.RecA8x64Rope:
		n := dim - rope
		for i := range n {
			out[i] = e4m3(r[i]) * e8m0(r[n+2*rope+i/64])
		}
		for i := range rope {
			out[n+i] = math.Float32frombits(uint32(r[n+2*i])<<16 | uint32(r[n+2*i+1])<<24)
		}
	case abi.RecF4E4x16:
		for i := range dim {
			out[i] = e2m1(r[i/2]>>(4*(i%2))) * e4m3(r[dim/2+i/16])
		}
	case abi.RecF4E8x32:
		for i := range dim {
			out[i] = e2m1(r[i/2]>>(4*(i%2))) * e8m0(r[dim/2+i/32])
		}
	}
	return out
}

func e2m1(c byte) float32 {
	v := [...]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6}[c&7]
	if c&8 != 0 {
		return float32(math.Copysign(float64(v), -1))
	}
	return v
}

func e8m0(b byte) float32 { return float32(math.Ldexp(1, int(b)-127)) }

func e4m3(c byte) float32 {
	e, m := int(c>>3)&15, float64(c&7)
	v := math.Ldexp(1+m/8, e-7)
	if e == 0 {
		v = math.Ldexp(m/8, -6)
	}
	if c&0x80 != 0 {
		v = -v
	}
	return float32(v)
}

// cacheRows reads the first n entries of a sequence's region from the KV pool, decoded.
func (s *Session) cacheRows(q *Seq, name string, layer, n int) []float32 {
	r := s.Geometry.Main[layer]
	if name == "index" {
		r = s.Geometry.Index[layer]
	}
	_, kv := s.Runner.Pools()
	var out []float32
	for j := range n {
		unit := unsafe.Add(kv, int64(q.table[j/r.Rows])*s.Geometry.GranuleStride+r.Offset)
		raw := unsafe.Slice((*byte)(unit), r.Rows*r.RowBytes)
		k := j % r.Rows
		rec := raw[k*r.RowBytes : (k+1)*r.RowBytes]
		if r.Planar {
			vals := r.Dim / 2
			scales := r.RowBytes - vals
			rec = slices.Concat(raw[k*vals:(k+1)*vals], raw[r.Rows*vals+k*scales:r.Rows*vals+(k+1)*scales])
		}
		out = append(out, decodeRecord(rec, r.Format, r.Dim, r.Rope)...)
	}
	return out
}
