package program

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

var dtypeNames = map[uint32]string{abi.F32: "f32", abi.F64: "f64", abi.BF16: "bf16", abi.I32: "i32", abi.I64: "i64", abi.U8: "u8"}
var formatNames = map[uint32]string{abi.WBF16: "bf16", abi.WF32: "f32", abi.WFP8Tile: "fp8", abi.WFP8Row: "fp8row", abi.WMXFP4: "mxfp4", abi.WI64: "i64", abi.WI32: "i32"}
var recordNames = map[uint32]string{abi.RecNone: "float", abi.RecA8x32: "a8x32", abi.RecA8x64Rope: "a8x64+rope", abi.RecF4E4x16: "f4e4x16", abi.RecF4E8x32: "f4e8x32"}

// Shape renders dtype and dimensions: "bf16[T,4,256]", "f32[6T]".
func (b *Buffer) Shape() string {
	var d []string
	if b.Domain != Fixed {
		s := b.Domain.String()
		if b.RowsMul() > 1 {
			s = strconv.Itoa(b.RowsMul()) + s
		}
		d = append(d, s)
	}
	for _, n := range b.Dims {
		d = append(d, strconv.Itoa(n))
	}
	return dtypeNames[b.DType] + "[" + strings.Join(d, ",") + "]"
}

// Text renders the program for reading: regions and workspace first, then one op per line with its result shapes, operands and attributes.
// Two lowerings of one model differ in the lines where they differ.
func (p *Program) Text() string {
	var s strings.Builder
	fmt.Fprintf(&s, "program %s  op_set=%d profile=%s acc=%s  rows<=%d seqs<=%d logits<=%d  workspace=%d slot=%d granule=%d\n",
		p.Name, p.OpSet, p.Profile, dtypeNames[p.Acc], p.Bucket.Rows, p.Bucket.Seqs, p.Bucket.Logits, p.Workspace, p.SlotBytes, p.Granule)
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if r := b.Region; r != nil {
			planar := ""
			if r.Planar {
				planar = " planar"
			}
			fmt.Fprintf(&s, "%-5s %s  %s[%d] x%d rows of %d B at %d  ratio=%d%s\n", b.Kind, b.Name, recordNames[r.Format], r.Dim, r.Rows, r.RowBytes, r.Offset, r.Ratio, planar)
		}
	}
	last := ""
	for i := range p.Ops {
		o := &p.Ops[i]
		if !o.Code.Known() {
			fmt.Fprintf(&s, "  %s?\n", o.Code)
			continue
		}
		if l := section(o.Label); l != last {
			last = l
			fmt.Fprintf(&s, "%s:\n", l)
		}
		var outs, ins []string
		for _, slot := range Signatures[o.Code].Slots {
			q := o.Buf(slot.Name)
			if q < 0 || q >= len(p.Buffers) {
				continue
			}
			b := &p.Buffers[q]
			switch {
			case b.Kind == Weight || b.Kind == Vector:
				ins = append(ins, slot.Name+"="+weightText(b))
			case slot.Out && b.Region != nil:
				ins = append(ins, slot.Name+"->"+b.Name)
			case slot.Out:
				outs = append(outs, b.Name+":"+b.Shape())
			default:
				ins = append(ins, slot.Name+"="+b.Name)
			}
		}
		var attrs string
		for _, a := range o.Attrs {
			attrs += " " + a.Name + "=" + strconv.FormatFloat(a.Value, 'g', -1, 64)
		}
		left := strings.Join(outs, ", ")
		if left != "" {
			left += " = "
		}
		fmt.Fprintf(&s, "  %s%s(%s)%s\n", left, o.Code, strings.Join(ins, ", "), attrs)
	}
	return s.String()
}

func section(label string) string {
	parts := strings.SplitN(label, ".", 3)
	if len(parts) >= 2 && (parts[0] == "layers" || parts[0] == "mtp" || parts[0] == "vision") {
		return parts[0] + "." + parts[1]
	}
	return parts[0]
}

func weightText(b *Buffer) string {
	w := b.Weight
	name := b.Name
	f := formatNames[w.Format]
	if w.Tile > 0 {
		f += "/" + strconv.Itoa(w.Tile)
	}
	parts := ""
	if len(w.Names) > 1 {
		parts = strconv.Itoa(len(w.Names)) + "x"
	}
	return fmt.Sprintf("%s<%s%s %dx%d>", name, parts, f, w.N, w.K)
}
