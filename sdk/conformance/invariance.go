package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Invariance checks level d1 on the ops whose sums a backend might split by the number of rows: each row, computed alone and beside others, must have the
// same bits. It reports every op that breaks the promise. Run calls it for devices that claim BatchInvariant.
func Invariance(dev backend.Device, opt Options) error {
	if opt.Acc == 0 {
		opt.Acc = abi.F32
	}
	m := &maker{Rand: rand.New(rand.NewPCG(1, opt.Seed)), s: deviceSpace(dev), acc: opt.Acc}
	defer m.close()
	var errs []error
	const t, n, k = 13, 259, 288
	part := func(x abi.Tensor, from, rows int) abi.Tensor {
		x.Data = unsafe.Add(x.Data, from*x.RowStride()*abi.ElemBytes(x.DType))
		x.Dim[0] = int64(rows)
		return x
	}
	// check runs call over all rows and then over pieces of every length up to 4.
	check := func(name string, y abi.Tensor, call func(from, rows int) error) {
		if m.err != nil {
			return
		}
		bytesOf := func() ([]byte, error) {
			b := make([]byte, y.Len()*abi.ElemBytes(y.DType))
			return b, errors.Join(m.s.sync(), m.s.download(b, y.Data))
		}
		whole, err := []byte(nil), call(0, t)
		if err == nil {
			whole, err = bytesOf()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s, %d rows: %w", name, t, err))
			return
		}
		for rows := 1; rows <= 4; rows++ {
			if err := m.s.upload(y.Data, make([]byte, len(whole))); err != nil {
				errs = append(errs, err)
				return
			}
			for from := 0; from < t; from += rows {
				if err := call(from, min(rows, t-from)); err != nil {
					errs = append(errs, fmt.Errorf("%s, rows %d+%d: %w", name, from, rows, err))
					return
				}
			}
			got, err := bytesOf()
			if err != nil {
				errs = append(errs, err)
				return
			}
			if !bytes.Equal(got, whole) {
				at := 0
				for got[at] == whole[at] {
					at++
				}
				width := len(whole) / t
				errs = append(errs, fmt.Errorf("%s: row %d has other bits in a call of %d rows than in one of %d", name, at/width, rows, t))
				return
			}
		}
	}
	x := m.bf16("x", 1, t, k)
	for _, f := range []struct {
		name   string
		format uint32
		tile   int
		group  uint32
	}{{"bf16", abi.WBF16, 0, 0}, {"fp8", abi.WFP8Tile, 32, 32}, {"mxfp4", abi.WMXFP4, 32, 32}} {
		w := m.weight("w", f.format, f.tile, 1, n, k)
		y := m.result("y", m.acc, Exact, t, n)
		check("gemm "+f.name, y, func(from, rows int) error {
			a := &abi.GEMMArgs{ActGroup: f.group, Groups: 1, W: w, X: part(x, from, rows), Y: part(y, from, rows)}
			a.Size = size(*a)
			return m.s.gemm.GEMM(a)
		})
		stack := m.weight("w", f.format, f.tile, 3, n, k)
		yg := m.result("y", abi.BF16, Exact, t, n)
		bounds := []int{0, 4, 4, t} // rows of the three experts
		check("gemm_grouped "+f.name, yg, func(from, rows int) error {
			offs := make([]int32, 4)
			for e := range offs {
				offs[e] = int32(min(max(bounds[e]-from, 0), rows))
			}
			a := &abi.GEMMGroupedArgs{ActGroup: f.group, W: stack, X: part(x, from, rows), Y: part(yg, from, rows), Offs: m.i32("offs", offs, 4)}
			a.Size = size(*a)
			return m.s.gemm.GEMMGrouped(a)
		})
	}
	hw := m.weight("head", abi.WBF16, 0, 1, n, k)
	hy := m.result("y", m.acc, Exact, t, n)
	check("head", hy, func(from, rows int) error {
		a := &abi.HeadArgs{W: hw, X: part(x, from, rows), Y: part(hy, from, rows)}
		a.Size = size(*a)
		return m.s.gemm.Head(a)
	})
	ry := m.result("y", abi.BF16, Exact, t, k)
	check("rms_norm", ry, func(from, rows int) error {
		a := &abi.RMSNormArgs{X: part(x, from, rows), Y: part(ry, from, rows), Eps: 1e-6}
		a.Size = size(*a)
		return m.s.vec.RMSNorm(a)
	})

	// Attention: one sequence's rows in one step or in several, the earlier rows then coming from the ring.
	const heads, d, r, window, ring = 4, 64, 32, 16, 40
	q := m.bf16("q", 1, t, heads, d)
	rb := abi.RecordBytes(abi.RecA8x32, d, r)
	rec := m.tensor("rec", abi.U8, m.records(abi.RecA8x32, t, d, r), t, rb)
	sink, freq := m.f32("sink", 0, 1, heads), m.freq(r/2)
	reg := m.region("ring", abi.RecA8x32, d, r, 1, ring, 1, false, Exact, true)
	cache := m.region("cache", abi.RecF4E4x16, d, r, 2, 64, 2, false, Exact, false)
	o := m.result("out", abi.BF16, Exact, t, heads, d)
	const pos0 = 150
	check("attend", o, func(from, rows int) error {
		seq := func(v ...int32) *int32 { return (*int32)(m.place("batch", asBytes(v), abi.I32, 1, Exact, false)) }
		pos, zero := make([]int32, rows), make([]int32, rows)
		for i := range pos {
			pos[i] = int32(pos0 + from + i)
		}
		b := &abi.Batch{Rows: int32(rows), Seqs: 1, TableWidth: 2, Token: seq(zero...), Pos: seq(pos...), Seq: seq(zero...), Flag: seq(zero...), ImageRow: seq(zero...),
			SeqFirst: seq(0), SeqRows: seq(int32(rows)), SeqSlot: seq(0), SeqLow: seq(0), SeqWrite: seq(0), SeqTable: seq(1, 0)}
		b.Size = size(*b)
		a := &abi.AttendArgs{Window: window, AllVisible: 1, Batch: b, Q: part(q, from, rows), Rec: part(rec, from, rows), Sink: sink, Freq: freq, Scale: 0.125, Ring: reg,
			Cache: cache, Out: part(o, from, rows)}
		a.Size = size(*a)
		if err := m.s.attn.Attend(a); err != nil {
			return err
		}
		if rows == t { // the pieces must find the ring as it was before
			return nil
		}
		s := &abi.KVStoreArgs{Batch: b, Ring: reg, Rec: part(rec, from, rows)}
		s.Size = size(*s)
		return m.s.attn.KVStore(s)
	})
	return errors.Join(append(errs, m.err)...)
}
