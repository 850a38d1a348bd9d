package parity

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// traced maps a buffer of the program to the golden tensor it must equal; %d is the layer. Golden tensors in rowsOnly hold some rows only.
var traced = map[string]string{
	"attn.qr": "qr", "attn.q": "q", "attn.window_kv": "window_kv", "attn.indexer.q": "index_q", "attn.pre": "attn_pre", "attn.post": "attn_post", "attn.comb": "attn_comb",
	"attn.in": "attn_in", "attn.out": "attn_out", "ffn.pre": "ffn_pre", "ffn.in": "ffn_in", "ffn.weights": "router_weights", "ffn.shared": "moe_shared", "ffn.out": "ffn_out",
	"ffn.h": "h", "engram.gate": "engram_gate", "attn.latent": "latent",
}

var rowsOnly = []string{"q", "attn_o", "index_q", "moe_shared", "attn_in", "ffn_in"}

var layerName = regexp.MustCompile(`^layers\.(\d+)\.(.+)$`)

// Trace runs the traced prompt of a golden set in one piece and compares every recorded tensor in the order in which ops produce them. With forced set, each
// recorded tensor is put in place of the computed one after the comparison, so that every difference belongs to the ops since the last recorded tensor.
// spoil, when not nil, may damage tensors before they are compared (to test the bisecting itself). It returns the first difference, or nil, and the number
// of tensors compared.
func (s *Session) Trace(g *Golden, tol Tolerance, forced bool, spoil func(name string, t abi.Tensor)) (first *Difference, compared int, err error) {
	q := s.NewSeq(g.Trace.IDs, len(g.Trace.IDs))
	all := make([]int, len(g.Trace.IDs))
	for i := range all {
		all[i] = i
	}
	report := func(op int, name string, row int, worst float64, detail string) {
		if detail != "" && first == nil {
			first = &Difference{Op: op, Buffer: name, Row: row, Worst: worst, Detail: detail}
		}
	}
	_, err = s.Run([]Part{{Seq: q, Rows: len(all), Logits: all}}, func(op int, name string, t abi.Tensor) {
		if spoil != nil {
			spoil(name, t)
		}
		switch name {
		case "head.x", "head.y":
			want, shape := g.Floats("trace." + name[5:])
			row, worst, detail := tol.check(floats(t), want, true, shape[1])
			report(op, name, row, worst, detail)
			compared++
			return
		}
		m := layerName.FindStringSubmatch(name)
		if m == nil {
			return
		}
		layer, _ := strconv.Atoi(m[1])
		tl := g.Trace.Layers[layer]
		ints := func(want [][]int, sorted bool) {
			if want == nil {
				return
			}
			compared++
			got := lists(t)
			bad := 0
			for r := range want {
				a, b := got[r], want[r]
				if sorted {
					a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
				}
				if !slices.Equal(a, b) {
					if bad == 0 && (tol.Exact || forced) {
						report(op, name, r, 1, fmt.Sprintf("%v, recorded %v", a, b))
					}
					bad++
				}
			}
		}
		switch m[2] {
		case "ffn.ids":
			ints(tl.RouterIDs, false)
		case "engram.ids":
			ints(tl.EngramIDs, false)
		case "attn.selected":
			ints(tl.Selected, true)
		case "attn.candidates":
			ints(tl.Candidates, true)
		}
		golden, ok := traced[m[2]]
		key := fmt.Sprintf("trace.%d.%s", layer, golden)
		if !ok || !g.Has(key) {
			return
		}
		want, shape := g.Floats(key)
		width := len(want) / shape[0]
		var got []float32
		switch golden {
		case "window_kv":
			r := s.Geometry.Rings[layer]
			got = decodeRecords(abi.Slice[byte](&t), r.Format, r.Dim, r.Rope)
		case "latent": // rows that end a group
			ratio := s.Cfg.Ratio(layer)
			full := floats(t)
			for r := ratio - 1; r < len(all); r += ratio {
				got = append(got, full[r*width:(r+1)*width]...)
			}
		default:
			got = floats(t)
		}
		if slices.Contains(rowsOnly, golden) {
			full := got
			got = nil
			for _, r := range g.Trace.Rows {
				got = append(got, full[r*width:(r+1)*width]...)
			}
		}
		row, worst, detail := tol.check(got, want, g.IsBF16(key), width)
		report(op, name, row, worst, detail)
		compared++
		if forced && len(want) == t.Len() && t.DType != abi.U8 {
			overwrite(t, want)
		}
	})
	if err != nil {
		return first, compared, err
	}
	for layer := range g.Trace.Layers {
		if !s.Cfg.OwnsKV(layer) {
			continue
		}
		for name, golden := range map[string]string{"main": "compressed_kv", "index": "index_k"} {
			key := fmt.Sprintf("trace.%d.%s", layer, golden)
			if !g.Has(key) {
				continue
			}
			want, shape := g.Floats(key)
			row, worst, detail := tol.check(s.cacheRows(q, name, layer, shape[0]), want, true, shape[1])
			report(-1, fmt.Sprintf("layers.%d.%s cache", layer, name), row, worst, detail)
			compared++
		}
	}
	return first, compared, nil
}
