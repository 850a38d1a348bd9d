package conformance

import (
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/refop"
)

// seq is one sequence of a batch.
type seq struct{ pos, rows, low, write int }

const (
	vocab = 97 // tokens of the batches
	nHist = 3
)

// rows is a batch together with what the cases need to size their operands.
type rows struct {
	*abi.Batch
	t        int
	slots    int
	granules int
}

// batch makes the rows of some sequences. Slots and granules are handed out in a scattered order; images > 0 makes some rows show image rows.
func (m *maker) batch(images int, seqs ...seq) rows {
	r := rows{slots: len(seqs) + 2}
	width := 1
	for _, s := range seqs {
		r.t += s.rows
		width = max(width, (s.pos+s.rows+127)/128)
	}
	width++
	r.granules = width*len(seqs) + 1
	slots, grans := m.Perm(r.slots), m.Perm(r.granules)
	var token, pos, owner, flag, image, first, count, slot, low, write, table, hist, histFlag []int32
	for i, s := range seqs {
		first, count = append(first, int32(len(token))), append(count, int32(s.rows))
		slot, low, write = append(slot, int32(slots[i])), append(low, int32(s.low)), append(write, int32(s.write))
		for g := range width {
			table = append(table, int32(grans[i*width+g]))
		}
		for h := range nHist {
			hist = append(hist, int32(m.IntN(vocab)))
			f := int32(0)
			if s.pos-nHist+h < 0 {
				f = 2
			} else if m.IntN(5) == 0 {
				f = 1
			}
			histFlag = append(histFlag, f)
		}
		for p := range s.rows {
			f, im := int32(0), int32(-1)
			if m.IntN(4) == 0 {
				f = 1
				if images > 0 {
					im = int32(m.IntN(images))
				}
			}
			token, pos, owner = append(token, int32(m.IntN(vocab))), append(pos, int32(s.pos+p)), append(owner, int32(i))
			flag, image = append(flag, f), append(image, im)
		}
	}
	put := func(v []int32) *int32 {
		return (*int32)(m.place("batch", asBytes(v), abi.I32, max(len(v), 1), Exact, false))
	}
	r.Batch = &abi.Batch{Rows: int32(r.t), Seqs: int32(len(seqs)), TableWidth: int32(width), Token: put(token), Pos: put(pos), Seq: put(owner), Flag: put(flag),
		ImageRow: put(image), SeqFirst: put(first), SeqRows: put(count), SeqSlot: put(slot), SeqLow: put(low), SeqWrite: put(write), SeqTable: put(table),
		Hist: put(hist), HistFlag: put(histFlag), NHist: nHist}
	r.Size = uint32(unsafe.Sizeof(*r.Batch))
	return r
}

// records packs n random vectors.
func (m *maker) records(format uint32, n, dim, rope int) []byte {
	out := make([]byte, n*abi.RecordBytes(format, dim, rope))
	if n == 0 {
		return out
	}
	x := m.bf16Values(n*dim, 1)
	a := &abi.QuantizeArgs{Format: format, Rope: uint32(rope), X: abi.Of(unsafe.Pointer(&x[0]), abi.BF16, int64(n), int64(dim)),
		Y: abi.Of(unsafe.Pointer(&out[0]), abi.U8, int64(n), int64(abi.RecordBytes(format, dim, rope)))}
	if err := refop.New[float32](nil).Quantize(a); err != nil && m.err == nil {
		m.err = err
	}
	return out
}

// quantised makes BF16 values that are quantised already.
func (m *maker) quantised(name string, format uint32, scale float64, d ...int) abi.Tensor {
	x := m.bf16Values(product(d), scale)
	if len(x) > 0 {
		dim := d[len(d)-1]
		t := abi.Of(unsafe.Pointer(&x[0]), abi.BF16, int64(len(x)/dim), int64(dim))
		if err := refop.New[float32](nil).Quantize(&abi.QuantizeArgs{Format: format, X: t, Y: t}); err != nil && m.err == nil {
			m.err = err
		}
	}
	return m.tensor(name, abi.BF16, asBytes(x), d...)
}

// region places units of records with gaps around them. All records are valid.
func (m *maker) region(name string, format uint32, dim, rope, ratio, count, units int, planar bool, class Class, out bool) abi.Region {
	rb := abi.RecordBytes(format, dim, rope)
	const offset = 64
	stride := (offset + count*rb + 96 + 63) / 64 * 64
	pool := make([]byte, units*stride)
	for i := range pool {
		pool[i] = 0x5a
	}
	vals := dim / 2
	for u := range units {
		rec := m.records(format, count, dim, rope)
		at := pool[u*stride+offset:]
		if !planar {
			copy(at, rec)
			continue
		}
		for j := range count {
			copy(at[j*vals:(j+1)*vals], rec[j*rb:])
			copy(at[count*vals+j*(rb-vals):][:rb-vals], rec[j*rb+vals:])
		}
	}
	g := abi.Region{Format: format, Base: m.place(name, pool, abi.U8, stride, class, out), UnitStride: int64(stride), Offset: offset, Rows: int32(count), RowBytes: int32(rb),
		Ratio: int32(ratio), Dim: int32(dim), Rope: int32(rope)}
	g.Size = uint32(unsafe.Sizeof(g))
	if planar {
		g.Planar = 1
	}
	return g
}

// tail places compressor tails: rows of width values of the accumulation type.
func (m *maker) tail(width, count, units, ratio int) abi.Region {
	e := abi.ElemBytes(m.acc)
	stride := count*width*e + 128
	pool := make([]byte, units*stride)
	for u := range units {
		v := make([]float64, count*width)
		for i := range v {
			v[i] = m.gauss()
		}
		at := pool[u*stride+64:]
		if m.acc == abi.F64 {
			copy(at, asBytes(v))
		} else {
			f := make([]float32, len(v))
			for i := range v {
				f[i] = float32(v[i])
			}
			copy(at, asBytes(f))
		}
	}
	g := abi.Region{Base: m.place("tail", pool, abi.U8, stride, Exact, true), UnitStride: int64(stride), Offset: 64, Rows: int32(count), RowBytes: int32(width * e),
		Ratio: int32(ratio), Dim: int32(width / 2)}
	g.Size = uint32(unsafe.Sizeof(g))
	return g
}
