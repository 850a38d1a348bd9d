package refop

import (
	"encoding/binary"
	"math"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// parts views the per-part pointers of a weight.
func ptrs(p unsafe.Pointer, n uint32) []unsafe.Pointer {
	if p == nil {
		return nil
	}
	return unsafe.Slice((*unsafe.Pointer)(p), n)
}

// weightProblem says what is wrong with a weight, "" when it can be decoded.
func weightProblem(w *abi.Weight) string {
	if w == nil {
		return "is absent"
	}
	if w.Parts < 1 || w.N < 1 || w.K < 1 || w.N > 1<<40 || w.K > 1<<40 {
		return "needs at least one part, row and column"
	}
	scaled := false
	switch w.Format {
	case abi.WBF16, abi.WF32, abi.WI64, abi.WI32:
	case abi.WFP8Tile, abi.WFP8Row:
		if w.Tile < 1 {
			return "needs a scale tile of at least 1"
		}
		scaled = true
	case abi.WMXFP4:
		if w.K%32 != 0 {
			return "MXFP4 needs a multiple of 32 columns"
		}
		scaled = true
	default:
		return "has an unknown format"
	}
	if w.Data == nil || scaled && w.Scale == nil {
		return "has no data or no scales"
	}
	for _, p := range ptrs(w.Data, w.Parts) {
		if p == nil {
			return "has a part without data"
		}
	}
	if scaled {
		for _, p := range ptrs(w.Scale, w.Parts) {
			if p == nil {
				return "has a part without scales"
			}
		}
	}
	return ""
}

func bytesAt(p unsafe.Pointer, off, n int64) []byte {
	return unsafe.Slice((*byte)(unsafe.Add(p, off)), n)
}

// decodeRow writes row n of a part into y ([K]).
func decodeRow[F Float](y []F, w *abi.Weight, part int, n int64) {
	data := ptrs(w.Data, w.Parts)[part]
	k := w.K
	y = y[:k]
	switch w.Format {
	case abi.WBF16:
		b := bytesAt(data, n*k*2, k*2)
		for i := range y {
			y[i] = F(Wide(binary.LittleEndian.Uint16(b[2*i:])))
		}
	case abi.WF32:
		b := bytesAt(data, n*k*4, k*4)
		for i := range y {
			y[i] = F(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		}
	case abi.WFP8Tile, abi.WFP8Row:
		t := int64(w.Tile)
		cols, row := (k+t-1)/t, n
		if w.Format == abi.WFP8Tile {
			row = n / t
		}
		b := bytesAt(data, n*k, k)
		s := bytesAt(ptrs(w.Scale, w.Parts)[part], row*cols, cols)
		for g, sb := range s {
			lo, hi := int64(g)*t, min(int64(g)*t+t, k)
			f, o := E8M0(sb), y[lo:hi]
			for i, c := range b[lo:hi] {
				o[i] = F(e4m3Table[c] * f)
			}
		}
	case abi.WMXFP4:
		b := bytesAt(data, n*k/2, k/2)
		s := bytesAt(ptrs(w.Scale, w.Parts)[part], n*(k/32), k/32)
		for g, sb := range s {
			decodeNibbles(y[g*32:g*32+32], b[g*16:g*16+16], E8M0(sb))
		}
	case abi.WI64:
		b := bytesAt(data, n*k*8, k*8)
		for i := range y {
			y[i] = F(int64(binary.LittleEndian.Uint64(b[8*i:])))
		}
	case abi.WI32:
		b := bytesAt(data, n*k*4, k*4)
		for i := range y {
			y[i] = F(int32(binary.LittleEndian.Uint32(b[4*i:])))
		}
	}
}

// intAt reads element i of row n of an integer weight.
func intAt(w *abi.Weight, n, i int64) int64 {
	data := ptrs(w.Data, w.Parts)[0]
	at := n*w.K + i
	if w.Format == abi.WI64 {
		return int64(binary.LittleEndian.Uint64(bytesAt(data, at*8, 8)))
	}
	return int64(int32(binary.LittleEndian.Uint32(bytesAt(data, at*4, 4))))
}

// DecodeWeight returns one part of a weight as [N,K] values: the exact product of code and scale.
func DecodeWeight[F Float](w *abi.Weight, part int) []F {
	y := make([]F, w.N*w.K)
	for n := range w.N {
		decodeRow(y[n*w.K:(n+1)*w.K], w, part, n)
	}
	return y
}

// packed is a weight held as values of F, part after part.
type packed[F Float] struct{ f []F }

// Prepare remembers a weight as long-lived: the first matrix product with it keeps its values in F (4 or 8 bytes each). Lookup tables
// (embed, gather_rows) are never expanded, their rows are decoded when asked for.
func (o *Ops[F]) Prepare(w *abi.Weight) error {
	if p := weightProblem(w); p != "" {
		return fault("prepare", "weight%s %s", nameOf(w), p)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.weights == nil {
		o.weights = map[*abi.Weight]*packed[F]{}
	}
	if _, ok := o.weights[w]; !ok {
		o.weights[w] = &packed[F]{}
	}
	return nil
}

// Release forgets a weight and its expanded values.
func (o *Ops[F]) Release(w *abi.Weight) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.weights, w)
	return nil
}

// PreparedBytes is the memory held for expanded weights.
func (o *Ops[F]) PreparedBytes() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := int64(0)
	for _, p := range o.weights {
		n += int64(len(p.f)) * int64(unsafe.Sizeof(F(0)))
	}
	return n
}

// matrix returns the expanded values of a prepared weight, nil for a weight that was not prepared.
func (o *Ops[F]) matrix(w *abi.Weight) []F {
	o.mu.Lock()
	p := o.weights[w]
	o.mu.Unlock()
	if p == nil {
		return nil
	}
	if p.f == nil {
		f := make([]F, int64(w.Parts)*w.N*w.K)
		for i := range int(w.Parts) {
			for n := range w.N {
				at := (int64(i)*w.N + n) * w.K
				decodeRow(f[at:at+w.K], w, i, n)
			}
		}
		o.mu.Lock()
		p.f = f
		o.mu.Unlock()
	}
	return p.f
}

func nameOf(w *abi.Weight) string {
	if w == nil || w.Name.Ptr == nil || w.Name.Len == 0 || w.Name.Len > 4096 {
		return ""
	}
	return " " + unsafe.String((*byte)(w.Name.Ptr), int(w.Name.Len))
}
