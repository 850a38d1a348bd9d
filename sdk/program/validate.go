package program

import (
	"errors"
	"fmt"
	"slices"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Validate checks the whole program and returns every problem found: unknown ops and operands, kinds that do not fit, use before definition,
// buffers outside the workspace, regions outside their unit.
func (p *Program) Validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if p.Bucket.Rows < 1 || p.Bucket.Seqs < 1 || p.Bucket.Logits < 0 || p.Bucket.Rows > 1<<20 || p.Bucket.Seqs > 1<<20 || p.Bucket.Logits > 1<<20 {
		bad("bucket %+v: counts must be 1 to 2^20", p.Bucket)
		return errors.Join(errs...)
	}
	if p.Acc != abi.F32 && p.Acc != abi.F64 {
		bad("accumulation type %d: must be F32 or F64", p.Acc)
	}
	names := map[string]int{}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if j, dup := names[b.Name]; dup || b.Name == "" {
			bad("buffer %d: name %q already names buffer %d", i, b.Name, j)
		}
		names[b.Name] = i
		for _, d := range b.Dims {
			if d < 0 || d > 1<<31 {
				bad("buffer %s: dimension %d", b.Name, d)
			}
		}
		if len(b.Dims) > 4 || b.Domain != Fixed && len(b.Dims) > 3 || b.Domain > Logits || b.Mul < 0 {
			bad("buffer %s: more than four dimensions, or a bad domain", b.Name)
			continue
		}
		switch b.Kind {
		case Weight, Vector:
			if b.Weight == nil || len(b.Weight.Names) == 0 || b.Weight.N < 1 || b.Weight.K < 1 {
				bad("buffer %s: a weight needs tensor names and a shape", b.Name)
			}
		case Ring, Tail, Cache:
			r := b.Region
			if r == nil || r.Rows < 1 || r.RowBytes < 1 || r.Offset < 0 || r.Ratio < 1 || r.Dim < 1 {
				bad("buffer %s: incomplete region", b.Name)
				continue
			}
			unit := p.SlotBytes
			if r.Pool == KVPool {
				unit = p.Granule
			}
			if r.Offset+int64(r.Rows)*int64(r.RowBytes) > unit {
				bad("buffer %s: rows end at byte %d of a unit of %d", b.Name, r.Offset+int64(r.Rows)*int64(r.RowBytes), unit)
			}
			if want := abi.RecordBytes(r.Format, r.Dim, r.Rope); r.Format != abi.RecNone && want != r.RowBytes {
				bad("buffer %s: %d bytes a row, format %d of %d values has %d", b.Name, r.RowBytes, r.Format, r.Dim, want)
			}
		case Const:
			if int64(len(b.Data)) != b.Bytes(1) || b.Domain != Fixed {
				bad("buffer %s: %d bytes of data, shape needs %d", b.Name, len(b.Data), b.Bytes(1))
			}
		case Temp, Input, Output:
			if abi.ElemBytes(b.DType) == 0 {
				bad("buffer %s: unknown dtype %d", b.Name, b.DType)
			}
			if end := b.Offset + b.Bytes(p.Bucket.Count(b.Domain)); b.Offset < 0 || b.Offset%64 != 0 || end > p.Workspace {
				bad("buffer %s: bytes %d..%d of a workspace of %d", b.Name, b.Offset, end, p.Workspace)
			}
		default:
			bad("buffer %s: unknown kind %d", b.Name, b.Kind)
		}
	}
	defined := make([]bool, len(p.Buffers))
	for i := range p.Buffers {
		defined[i] = p.Buffers[i].Kind != Temp && p.Buffers[i].Kind != Output
	}
	for i := range p.Ops {
		o := &p.Ops[i]
		where := fmt.Sprintf("op %d %s %s", i, o.Code, o.Label)
		if !o.Code.Known() {
			bad("%s: not in op set %d", where, abi.OpSet)
			continue
		}
		sig := &Signatures[o.Code]
		for _, a := range o.Attrs {
			if !slices.Contains(sig.Attrs, a.Name) {
				bad("%s: unknown attribute %q, known: %v", where, a.Name, sig.Attrs)
			}
		}
		seen := map[string]bool{}
		for _, q := range o.Operands {
			k := slices.IndexFunc(sig.Slots, func(s Slot) bool { return s.Name == q.Name })
			if k < 0 || seen[q.Name] {
				bad("%s: operand %q is unknown or given twice", where, q.Name)
				continue
			}
			seen[q.Name] = true
			if q.Buf < 0 || q.Buf >= len(p.Buffers) {
				bad("%s: operand %s names buffer %d of %d", where, q.Name, q.Buf, len(p.Buffers))
				continue
			}
			b, s := &p.Buffers[q.Buf], &sig.Slots[k]
			if s.Kinds != nil && !slices.Contains(s.Kinds, b.Kind) {
				bad("%s: operand %s is %s %s, must be %v", where, q.Name, b.Kind, b.Name, s.Kinds)
			}
			if s.Kinds == nil && (b.Kind == Weight || b.Kind == Ring || b.Kind == Tail || b.Kind == Cache) {
				bad("%s: operand %s is %s %s, must be a dense array", where, q.Name, b.Kind, b.Name)
			}
			if !s.Out && !defined[q.Buf] {
				bad("%s: operand %s reads %s before anything wrote it", where, q.Name, b.Name)
			}
			if s.Out && (b.Kind == Const || b.Kind == Vector || b.Kind == Weight || b.Kind == Input) {
				bad("%s: writes %s %s", where, b.Kind, b.Name)
			}
		}
		for _, q := range o.Operands {
			if k := slices.IndexFunc(sig.Slots, func(s Slot) bool { return s.Name == q.Name }); k >= 0 && sig.Slots[k].Out && q.Buf >= 0 && q.Buf < len(defined) {
				defined[q.Buf] = true
			}
		}
		for _, s := range sig.Slots {
			if !s.Optional && !seen[s.Name] {
				bad("%s: operand %s is missing", where, s.Name)
			}
		}
	}
	return errors.Join(errs...)
}
