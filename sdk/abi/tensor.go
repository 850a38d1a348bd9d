package abi

import "unsafe"

// Of describes a dense tensor at p with the given element type and dimensions (one to four).
func Of(p unsafe.Pointer, dtype uint32, dim ...int64) Tensor {
	t := Tensor{Data: p, DType: dtype, Rank: uint32(len(dim))}
	copy(t.Dim[:], dim)
	return t
}

// Present reports whether the operand was given.
func (t *Tensor) Present() bool { return t.Data != nil }

// Width returns the number of elements in one row of dim 0 (the product of the other dimensions, 1 for rank 1).
func (t *Tensor) Width() int {
	n := int64(1)
	for i := 1; i < int(t.Rank); i++ {
		n *= t.Dim[i]
	}
	return int(n)
}

// RowStride returns the distance in elements between rows of dim 0.
func (t *Tensor) RowStride() int {
	if t.Stride != 0 {
		return int(t.Stride)
	}
	return t.Width()
}

// Len returns the number of elements spanned in memory, from the first to the last row.
func (t *Tensor) Len() int {
	if t.Rank == 0 || t.Dim[0] == 0 {
		return 0
	}
	return int(t.Dim[0]-1)*t.RowStride() + t.Width()
}

// Slice views a tensor's memory as elements of E. The caller has checked that E fits t.DType. The view lives as long as the memory.
func Slice[E any](t *Tensor) []E {
	if t.Data == nil || t.Len() == 0 {
		return nil
	}
	return unsafe.Slice((*E)(t.Data), t.Len())
}

// ElemBytes returns the size of one element of a dtype, 0 for an unknown one.
func ElemBytes(dtype uint32) int {
	switch dtype {
	case F32, I32:
		return 4
	case F64, I64:
		return 8
	case BF16:
		return 2
	case U8:
		return 1
	}
	return 0
}

// RecordBytes returns the bytes of one packed record of dim values (rope of them rotary) in a Rec format, 0 for an unknown format.
func RecordBytes(format uint32, dim, rope int) int {
	switch format {
	case RecA8x32:
		return dim + dim/32
	case RecA8x64Rope:
		n := (dim - rope) + 2*rope + (dim-rope+63)/64
		return (n + 7) / 8 * 8
	case RecF4E4x16:
		return dim/2 + dim/16
	case RecF4E8x32:
		return dim/2 + dim/32
	}
	return 0
}
