package conformance

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

func size[T any](T) uint32 { var v T; return uint32(unsafe.Sizeof(v)) }

// all builds the whole list.
func all() []Case {
	var l list
	l.gemm()
	l.grouped()
	l.head()
	l.attention()
	l.exchange()
	l.rowwise()
	l.router()
	l.engram()
	l.draft()
	l.sampling()
	l.moves()
	l.vision()
	return l
}

type list []Case

func (l *list) add(op string, build func(m *maker) any, format string, a ...any) {
	*l = append(*l, Case{Op: op, Name: op + " " + fmt.Sprintf(format, a...), build: build})
}

func (l *list) gemm() {
	type form struct {
		name   string
		format uint32
		tile   int
		group  int
	}
	forms := []form{{"bf16", abi.WBF16, 0, 0}, {"f32", abi.WF32, 0, 0}, {"fp8/32", abi.WFP8Tile, 32, 32}, {"fp8/128", abi.WFP8Tile, 128, 128},
		{"fp8/32 unquantised input", abi.WFP8Tile, 32, 0}, {"mxfp4", abi.WMXFP4, 32, 32}}
	for _, f := range forms {
		for _, s := range [][3]int{{0, 8, 32}, {1, 1, 32}, {1, 64, 128}, {2, 65, 96}, {7, 33, 64}, {3, 129, 160}, {33, 40, 288}} {
			t, n, k := s[0], s[1], s[2]
			l.add("gemm", func(m *maker) any {
				a := &abi.GEMMArgs{ActGroup: uint32(f.group), Groups: 1, W: m.weight("w", f.format, f.tile, 1, n, k), X: m.bf16("x", 1, t, k), Y: m.result("y", abi.BF16, Rounded, t, n)}
				a.Size = size(*a)
				return a
			}, "%s %dx%dx%d", f.name, t, n, k)
		}
	}
	for _, t := range []int{1, 5} {
		l.add("gemm", func(m *maker) any {
			a := &abi.GEMMArgs{Groups: 1, W: m.weight("w", abi.WBF16, 0, 1, 31, 67), X: m.bf16("x", 1, t, 67), Y: m.result("y", m.acc, Close, t, 31)}
			a.Size = size(*a)
			return a
		}, "bf16 to accumulation type, odd k, %d rows", t)
		l.add("gemm", func(m *maker) any {
			a := &abi.GEMMArgs{Groups: 1, W: m.weight("w", abi.WBF16, 0, 1, 48, 64), X: m.bf16("x", 1, t, 64), Y: m.result("y", abi.BF16, Rounded, t, 48), Bias: m.f32("bias", 0, 1, 48)}
			a.Size = size(*a)
			return a
		}, "bias, %d rows", t)
		for _, act := range []uint32{0, 32} {
			l.add("gemm", func(m *maker) any {
				a := &abi.GEMMArgs{ActGroup: act, Groups: 4, W: m.weight("w", abi.WFP8Tile, 32, 1, 4*24, 64), X: m.bf16("x", 1, t, 8, 32), Y: m.result("y", abi.BF16, Rounded, t, 4*24)}
				a.Size = size(*a)
				return a
			}, "block diagonal, heads as a dimension, act %d, %d rows", act, t)
		}
	}
	l.add("gemm", func(m *maker) any {
		x := m.bf16("x", 1, 5, 96)
		x.Dim[1], x.Stride = 64, 96
		y := m.result("y", abi.BF16, Rounded, 5, 50)
		y.Dim[1], y.Stride = 40, 50
		a := &abi.GEMMArgs{ActGroup: 32, Groups: 1, W: m.weight("w", abi.WFP8Tile, 32, 1, 40, 64), X: x, Y: y}
		a.Size = size(*a)
		return a
	}, "strided rows")
	l.add("gemm", func(m *maker) any {
		v := make([]uint16, 4*64)
		for i := range v { // quantiser edges: all zero, tiny, huge and mixed groups
			switch i / 32 {
			case 1:
				v[i] = uint16(1 + i) // subnormal BF16
			case 2:
				v[i] = 0x7f00 | uint16(i&1)<<15
			case 3:
				v[i] = []uint16{0x3f80, 0x0001, 0x4300, 0xc380}[i&3]
			}
		}
		a := &abi.GEMMArgs{ActGroup: 32, Groups: 1, W: m.weight("w", abi.WFP8Tile, 32, 1, 16, 64), X: m.tensor("x", abi.BF16, asBytes(v), 4, 64), Y: m.result("y", m.acc, Close, 4, 16)}
		a.Size = size(*a)
		return a
	}, "quantiser edges")
}

func (l *list) grouped() {
	for _, counts := range [][]int{{0, 0, 0, 0}, {1, 0, 0, 0}, {0, 3, 1, 0}, {2, 7, 0, 5}, {0, 0, 33, 1}} {
		for _, f := range []struct {
			name   string
			format uint32
		}{{"mxfp4", abi.WMXFP4}, {"fp8", abi.WFP8Tile}} {
			l.add("gemm_grouped", func(m *maker) any {
				offs := []int32{0}
				for _, c := range counts {
					offs = append(offs, offs[len(offs)-1]+int32(c))
				}
				r := int(offs[4])
				a := &abi.GEMMGroupedArgs{ActGroup: 32, W: m.weight("w", f.format, 32, 4, 37, 96), X: m.bf16("x", 1, r, 96), Y: m.result("y", abi.BF16, Rounded, r, 37), Offs: m.i32("offs", offs, 5)}
				a.Size = size(*a)
				return a
			}, "%s contiguous %v", f.name, counts)
			l.add("gemm_grouped", func(m *maker) any {
				offs := make([]int32, 4)
				rows := 1
				for i, c := range counts {
					offs[i] = int32(c)
					rows = max(rows, c)
				}
				a := &abi.GEMMGroupedArgs{ActGroup: 32, Layout: abi.GroupedMasked, W: m.weight("w", f.format, 32, 4, 37, 96), X: m.bf16("x", 1, 4, rows, 96),
					Y: m.result("y", abi.BF16, Rounded, 4, rows, 37), Offs: m.i32("offs", offs, 4)}
				a.Size = size(*a)
				return a
			}, "%s masked %v", f.name, counts)
		}
	}
}

func (l *list) head() {
	for _, pick := range [][]int32{nil, {0}, {4, 4, 0, 2}} {
		l.add("head", func(m *maker) any {
			n := 5
			a := &abi.HeadArgs{W: m.weight("w", abi.WBF16, 0, 1, 131, 64), X: m.bf16("x", 1, 5, 64)}
			if pick != nil {
				n = len(pick)
				a.Rows = m.i32("rows", pick, n)
			}
			a.Y = m.result("y", m.acc, Close, n, 131)
			a.Size = size(*a)
			return a
		}, "rows %v", pick)
	}
}

// batches are the row sets of the attention family: fresh, continued, chunks that straddle ring, granule and group, single rows, bounded windows.
var batches = []struct {
	name string
	seqs []seq
}{
	{"first row", []seq{{0, 1, 0, 0}}},
	{"short prompt", []seq{{0, 7, 0, 0}}},
	{"prompt longer than the ring", []seq{{0, 45, 0, 0}}},
	{"decode", []seq{{300, 1, 0, 0}, {5, 1, 0, 0}, {127, 1, 0, 0}, {128, 1, 0, 0}}},
	{"ragged", []seq{{0, 3, 0, 0}, {37, 1, 0, 0}, {250, 11, 0, 0}, {16, 0, 0, 0}, {19, 2, 0, 0}}},
	{"bounded", []seq{{40, 9, 44, 46}, {200, 20, 190, 0}, {64, 5, 64, 67}}},
	{"no rows", []seq{{9, 0, 0, 0}}},
}

func (l *list) attention() {
	const ringRows, window = 20, 16
	for _, b := range batches {
		for _, f := range []struct {
			name   string
			format uint32
			d, r   int
			main   uint32
		}{{"v4.1", abi.RecA8x32, 64, 32, abi.RecF4E4x16}, {"v4", abi.RecA8x64Rope, 128, 64, abi.RecA8x64Rope}} {
			rb := abi.RecordBytes(f.format, f.d, f.r)
			l.add("kv_store", func(m *maker) any {
				bt := m.batch(0, b.seqs...)
				a := &abi.KVStoreArgs{Batch: bt.Batch, Ring: m.region("ring", f.format, f.d, f.r, 1, ringRows, bt.slots, false, Exact, true),
					Rec: m.tensor("rec", abi.U8, m.records(f.format, bt.t, f.d, f.r), bt.t, rb)}
				a.Size = size(*a)
				return a
			}, "%s %s", f.name, b.name)
			const heads = 4
			attend := func(m *maker, mode uint32, entries string, ratio int) *abi.AttendArgs {
				bt := m.batch(0, b.seqs...)
				a := &abi.AttendArgs{Window: window, OutMode: mode, Batch: bt.Batch, Q: m.bf16("q", 1, bt.t, heads, f.d),
					Rec: m.tensor("rec", abi.U8, m.records(f.format, bt.t, f.d, f.r), bt.t, rb), Sink: m.f32("sink", 0, 1, heads), Freq: m.freq(f.r / 2),
					Scale: 1 / math.Sqrt(float64(f.d)), Ring: m.region("ring", f.format, f.d, f.r, 1, ringRows, bt.slots, false, Exact, false)}
				class := Rounded
				if mode == abi.AttendA8 {
					class = Quantised
				}
				a.Out = m.result("out", abi.BF16, class, bt.t, heads, f.d)
				if entries != "" {
					a.Cache = m.region("cache", f.main, f.d, f.r, ratio, 128/ratio, bt.granules, false, Exact, false)
					if entries == "all" {
						a.AllVisible = 1
					} else {
						const k = 12
						sel := make([]int32, 0, bt.t*k)
						for _, s := range b.seqs {
							for p := range s.rows {
								n := (s.pos + p + 1) / ratio
								row := make([]int32, k)
								for i := range row {
									row[i] = -1
								}
								left := min(k, n)
								if m.IntN(4) == 0 {
									left = m.IntN(left + 1)
								}
								for e, at := 0, 0; e < n && left > 0; e++ { // ascending sample
									if m.IntN(n-e) < left {
										row[at] = int32(e)
										at++
										left--
									}
								}
								sel = append(sel, row...)
							}
						}
						a.Sel = m.i32("sel", sel, bt.t, k)
					}
				}
				a.Size = size(*a)
				return a
			}
			for _, mode := range []uint32{abi.AttendBF16, abi.AttendA8} {
				l.add("attend", func(m *maker) any { return attend(m, mode, "", 0) }, "%s %s, window, mode %d", f.name, b.name, mode)
				l.add("attend", func(m *maker) any { return attend(m, mode, "selected", 2) }, "%s %s, selected entries, mode %d", f.name, b.name, mode)
			}
			l.add("attend", func(m *maker) any { return attend(m, abi.AttendBF16, "all", 16) }, "%s %s, all entries", f.name, b.name)
			l.add("attend_block", func(m *maker) any { return &blockArgs{*attend(m, abi.AttendBF16, "", 0)} }, "%s %s", f.name, b.name)

			for _, r := range []struct{ ratio, overlap, ape int }{{1, 0, 0}, {2, 0, 0}, {4, 1, 1}, {16, 0, 1}} {
				for _, cached := range []bool{true, false} {
					l.add("compress", func(m *maker) any {
						bt := m.batch(0, b.seqs...)
						c := 1 + r.overlap
						w := c * f.d
						a := &abi.CompressArgs{Ratio: uint32(r.ratio), Overlap: uint32(r.overlap), Batch: bt.Batch, Norm: m.f32("norm", 1, 0.1, f.d), Eps: 1e-6}
						if r.ratio == 1 {
							a.K = m.bf16("k", 1, bt.t, f.d)
						} else {
							a.K, a.S = m.accum("k", 0, 1, bt.t, w), m.accum("s", 0, 1, bt.t, w)
							m.blocks[len(m.blocks)-1].class = Spent
							a.Tail = m.tail(2*w, (1+r.overlap)*r.ratio+5, bt.slots, r.ratio)
							if r.ape != 0 {
								a.Ape = m.f32("ape", 0, 0.5, r.ratio, w)
							}
						}
						if cached {
							a.Freq = m.freq(f.r / 2)
							a.Cache = m.region("cache", f.main, f.d, f.r, r.ratio, 128/r.ratio, bt.granules, false, Quantised, true)
						}
						a.Lat = m.result("lat", abi.BF16, Rounded, bt.t, f.d)
						a.Size = size(*a)
						return a
					}, "%s %s, ratio %d, cache %v", f.name, b.name, r.ratio, cached)
				}
			}
		}
		for _, r := range []struct {
			ratio    int
			hadamard uint32
			planar   bool
		}{{1, 0, true}, {2, 0, true}, {4, 1, true}, {2, 0, false}} {
			l.add("index_key", func(m *maker) any {
				bt := m.batch(0, b.seqs...)
				a := &abi.IndexKeyArgs{Hadamard: r.hadamard, Batch: bt.Batch, K: m.bf16("k", 1, bt.t, 64), Freq: m.freq(16),
					Cache: m.region("cache", abi.RecF4E8x32, 64, 32, r.ratio, 128/r.ratio, bt.granules, r.planar, Quantised, true)}
				a.Size = size(*a)
				return a
			}, "%s, ratio %d, hadamard %d, planar %v", b.name, r.ratio, r.hadamard, r.planar)
		}
		for _, mode := range []uint32{abi.ScoreF32, abi.ScoreBF16} {
			for _, r := range []struct {
				what  string
				ratio int
			}{{"plain", 2}, {"source", 1}, {"filtered", 1}, {"ties", 1}} {
				l.add("index_select", func(m *maker) any {
					const heads, d, topk, block, cand = 4, 64, 8, 4, 6
					bt := m.batch(0, b.seqs...)
					a := &abi.IndexSelectArgs{TopK: topk, Mode: mode, Batch: bt.Batch, W: m.bf16("w", 1, bt.t, heads), Scale: 1.0 / 16,
						Cache: m.region("cache", abi.RecF4E8x32, d, 32, r.ratio, 128/r.ratio, bt.granules, true, Exact, false)}
					if r.what == "ties" { // q of zeros of both signs: every score is 0 or -0
						z := make([]uint16, bt.t*heads*d)
						for i := range z {
							z[i] = uint16(m.IntN(2)) << 15
						}
						a.Q = m.tensor("q", abi.BF16, asBytes(z), bt.t, heads, d)
					} else {
						a.Q = m.quantised("q", abi.RecF4E8x32, 1, bt.t, heads, d)
					}
					switch r.what {
					case "source", "ties":
						a.CandBlock = block
						a.CandOut = m.result("cand_out", abi.I32, Exact, bt.t, cand)
					case "filtered":
						a.CandBlock = block
						var in []int32
						for _, s := range b.seqs {
							for p := range s.rows {
								nb := (s.pos + p + 1 + block - 1) / block
								n := min(cand, nb)
								for k := range cand {
									if k < n {
										in = append(in, int32(nb-n+k))
									} else {
										in = append(in, -1)
									}
								}
							}
						}
						a.CandIn = m.i32("cand_in", in, bt.t, cand)
					}
					a.Sel = m.result("sel", abi.I32, Exact, bt.t, topk)
					a.Size = size(*a)
					return a
				}, "%s, %s, mode %d", b.name, r.what, mode)
			}
		}
	}
}

// routed makes K distinct experts per row.
func (m *maker) routed(t, k, e int) []int32 {
	ids := make([]int32, 0, t*k)
	for range t {
		for _, x := range m.Perm(e)[:k] {
			ids = append(ids, int32(x))
		}
	}
	return ids
}

// sorted returns the dispatch order of ids.
func sorted(ids []int32, e int) (order, offs []int32) {
	offs = []int32{0}
	for x := range e {
		for p, id := range ids {
			if int(id) == x {
				order = append(order, int32(p))
			}
		}
		offs = append(offs, int32(len(order)))
	}
	return order, offs
}

func (l *list) exchange() {
	const k, e, h = 3, 11, 40
	for _, t := range []int{0, 1, 7, 33} {
		l.add("dispatch", func(m *maker) any {
			a := &abi.DispatchArgs{Experts: e, X: m.bf16("x", 1, t, h), Ids: m.i32("ids", m.routed(t, k, e), t, k), Xg: m.result("xg", abi.BF16, Exact, t*k, h),
				Order: m.result("order", abi.I32, Exact, t*k), Offs: m.result("offs", abi.I32, Exact, e+1)}
			a.Size = size(*a)
			return a
		}, "%d rows", t)
		for _, mode := range []uint32{abi.CombineExpert, abi.CombineSlot} {
			for _, shared := range []bool{true, false} {
				l.add("combine", func(m *maker) any {
					ids := m.routed(t, k, e)
					order, _ := sorted(ids, e)
					a := &abi.CombineArgs{Mode: mode, Yg: m.bf16("yg", 1, t*k, h), Order: m.i32("order", order, t*k), Ids: m.i32("ids", ids, t, k), Y: m.result("y", abi.BF16, Rounded, t, h)}
					if shared {
						a.Shared = m.bf16("shared", 1, t, h)
					}
					a.Size = size(*a)
					return a
				}, "mode %d, %d rows, shared %v", mode, t, shared)
			}
		}
		for _, f := range []struct {
			name   string
			format uint32
		}{{"fp8 rows", abi.WFP8Row}, {"bf16", abi.WBF16}} {
			l.add("gather_rows", func(m *maker) any {
				a := &abi.GatherRowsArgs{W: m.weight("w", f.format, 32, 1, 53, 64), Ids: m.ints("ids", 53, t, 5), Y: m.result("y", abi.BF16, Exact, t, 5*64)}
				a.Size = size(*a)
				return a
			}, "%s, %d rows", f.name, t)
		}
		l.add("all_gather", func(m *maker) any {
			a := &abi.CollectiveArgs{X: m.accum("x", 0, 1, t, 9), Y: m.result("y", m.acc, Exact, t, 9)}
			a.Size = size(*a)
			return a
		}, "one rank (and all_reduce), %d rows", t)
	}
}

func (l *list) rowwise() {
	for _, t := range []int{0, 1, 5, 33} {
		for _, n := range []int{1, 64, 96, 257} {
			for _, w := range []bool{true, false} {
				l.add("rms_norm", func(m *maker) any {
					a := &abi.RMSNormArgs{X: m.bf16("x", 1, t, n), Y: m.result("y", abi.BF16, Rounded, t, n), Eps: 1e-20}
					if w {
						a.W = m.f32("w", 1, 0.1, n)
					}
					a.Size = size(*a)
					return a
				}, "%dx%d, weight %v", t, n, w)
			}
		}
		l.add("rms_norm", func(m *maker) any {
			a := &abi.RMSNormArgs{X: m.bf16("x", 1e-12, t, 3, 32), Y: m.result("y", abi.BF16, Rounded, t, 3, 32), Eps: 1e-20}
			a.Size = size(*a)
			return a
		}, "%d rows of heads, tiny values", t)
		for _, f := range []struct {
			name   string
			format uint32
			d, r   int
		}{{"a8/32", abi.RecA8x32, 96, 0}, {"a8/64 with rope", abi.RecA8x64Rope, 144, 32}, {"f4e4", abi.RecF4E4x16, 48, 0}, {"f4e8", abi.RecF4E8x32, 64, 0}} {
			l.add("quantize", func(m *maker) any {
				a := &abi.QuantizeArgs{Format: f.format, Rope: uint32(f.r), X: m.edges("x", t, f.d), Y: m.result("y", abi.U8, Exact, t, abi.RecordBytes(f.format, f.d, f.r))}
				a.Size = size(*a)
				return a
			}, "%s records, %d rows", f.name, t)
			l.add("quantize", func(m *maker) any {
				a := &abi.QuantizeArgs{Format: f.format, Rope: uint32(f.r), X: m.edges("x", t, 2, f.d), Y: m.result("y", abi.BF16, Exact, t, 2, f.d)}
				a.Size = size(*a)
				return a
			}, "%s values, %d rows of heads", f.name, t)
		}
		for _, n := range []int{1, 2, 64, 128} {
			l.add("hadamard", func(m *maker) any {
				a := &abi.HadamardArgs{X: m.bf16("x", 1, t, 3, n), Y: m.result("y", abi.BF16, Rounded, t, 3, n)}
				a.Size = size(*a)
				return a
			}, "%d rows of %d", t, n)
		}
		const hc = 4
		for _, h := range []int{1, 31, 96} {
			for _, v := range []struct{ head, tf32 uint32 }{{0, 0}, {0, 1}, {1, 0}} {
				l.add("mhc_mix", func(m *maker) any {
					n, s := hc*(hc+2), 3
					if v.head != 0 {
						n, s = hc, 1
					}
					a := &abi.MHCMixArgs{Iters: 20, HeadOnly: v.head, Tf32: v.tf32, H: m.bf16("h", 1, t, hc, h), Fn: m.f32("fn", 0, 0.1, n, hc*h), Base: m.f32("base", 0, 0.5, n),
						Scale: m.f32("scale", 1, 0.1, s), Pre: m.result("pre", m.acc, Close, t, hc), HcEps: 1e-6, Eps: 1e-20}
					if v.head == 0 {
						a.Post, a.Comb = m.result("post", m.acc, Close, t, hc), m.result("comb", m.acc, Close, t, hc*hc)
					}
					a.Size = size(*a)
					return a
				}, "%dx%d, head %d, tf32 %d", t, h, v.head, v.tf32)
			}
			l.add("mhc_collapse", func(m *maker) any {
				a := &abi.MHCCollapseArgs{H: m.bf16("h", 1, t, hc, h), Pre: m.accum("pre", 0.5, 0.2, t, hc), X: m.result("x", abi.BF16, Rounded, t, h)}
				a.Size = size(*a)
				return a
			}, "%dx%d", t, h)
			l.add("mhc_expand", func(m *maker) any {
				a := &abi.MHCExpandArgs{Y: m.bf16("y", 1, t, h), H: m.bf16("h", 1, t, hc, h), Post: m.accum("post", 1, 0.2, t, hc), Comb: m.accum("comb", 0.25, 0.1, t, hc*hc),
					Out: m.result("out", abi.BF16, Rounded, t, hc, h)}
				a.Size = size(*a)
				return a
			}, "%dx%d", t, h)
			l.add("mhc_mean", func(m *maker) any {
				x := m.result("x", abi.BF16, Rounded, t, 3*h)
				x.Dim[1], x.Stride = int64(h), int64(3*h)
				a := &abi.MHCMeanArgs{H: m.bf16("h", 1, t, hc, h), X: x}
				a.Size = size(*a)
				return a
			}, "%dx%d, strided", t, h)
		}
		for _, v := range []struct {
			mode    uint32
			limit   float64
			weights bool
		}{{abi.ActBF16, 10, true}, {abi.ActBF16, 0, false}, {abi.ActA8, 10, true}} {
			l.add("swiglu", func(m *maker) any {
				const n = 96
				class := Rounded
				if v.mode == abi.ActA8 {
					class = Quantised
				}
				a := &abi.SwigluArgs{OutMode: v.mode, ActGroup: 32, G: m.bf16("g", 6, t, n), U: m.bf16("u", 6, t, n), Y: m.result("y", abi.BF16, class, t, n), Limit: v.limit}
				if v.weights {
					order := make([]int32, t)
					for i, p := range m.Perm(t) {
						order[i] = int32(p)
					}
					a.Weights, a.Order = m.accum("weights", 0.5, 0.1, t, 1), m.i32("order", order, t)
				}
				a.Size = size(*a)
				return a
			}, "%d rows, mode %d, limit %v", t, v.mode, v.limit)
		}
		l.add("add", func(m *maker) any {
			a := &abi.AddArgs{A: m.bf16("a", 1, t, 33), B: m.bf16("b", 1, t, 33), Y: m.result("y", abi.BF16, Exact, t, 33)}
			a.Size = size(*a)
			return a
		}, "%d rows", t)
		l.add("gelu", func(m *maker) any {
			a := &abi.GeluArgs{X: m.bf16("x", 2, t, 33), Y: m.result("y", abi.BF16, Rounded, t, 33)}
			a.Size = size(*a)
			return a
		}, "%d rows", t)
	}
	l.add("mhc_collapse", func(m *maker) any {
		a := &abi.MHCCollapseArgs{H: m.bf16("h", 1, 5, 4, 33), X: m.result("x", abi.BF16, Exact, 5, 33)}
		a.Size = size(*a)
		return a
	}, "first stream")
	for _, b := range batches {
		for _, v := range []struct{ conj, ratio uint32 }{{0, 0}, {1, 0}, {0, 2}} {
			l.add("rope", func(m *maker) any {
				bt := m.batch(0, b.seqs...)
				a := &abi.RopeArgs{Conj: v.conj, Ratio: v.ratio, Batch: bt.Batch, X: m.bf16("x", 1, bt.t, 3, 48), Freq: m.freq(16), Y: m.result("y", abi.BF16, Rounded, bt.t, 3, 48)}
				a.Size = size(*a)
				return a
			}, "%s, conj %d, ratio %d", b.name, v.conj, v.ratio)
		}
	}
	l.add("rope", func(m *maker) any {
		bt := m.batch(0, seq{1048570, 5, 0, 0}, seq{65535, 3, 0, 0})
		a := &abi.RopeArgs{Batch: bt.Batch, X: m.bf16("x", 1, bt.t, 64), Freq: m.freq(32), Y: m.result("y", abi.BF16, Rounded, bt.t, 64)}
		a.Size = size(*a)
		return a
	}, "far positions: the angle is rounded to FP32")
}

// edges makes BF16 values whose groups meet the corners of the quantisers: all zero, below the floors, exact ties, outliers.
func (m *maker) edges(name string, d ...int) abi.Tensor {
	v := m.bf16Values(product(d), 1)
	for i := range v {
		switch i / 16 % 7 {
		case 1:
			v[i] = uint16(m.IntN(2)) << 15
		case 2:
			v[i] = uint16(m.IntN(1 << 12)) // far below every floor
		case 3: // multiples of 1/4: ties of E2M1 and E4M3
			v[i] = []uint16{0x3e80, 0x3f40, 0xbfa0, 0x3fe0, 0xc020, 0x4060, 0x40a0, 0x40c0}[m.IntN(8)]
		case 4:
			v[i] = uint16(0x7e00 + m.IntN(0x100)) // near the largest finite
		}
	}
	return m.tensor(name, abi.BF16, asBytes(v), d...)
}

func (l *list) router() {
	for _, t := range []int{0, 1, 7, 33} {
		for _, v := range []string{"bias", "image bias", "no bias", "hash", "ties"} {
			l.add("router", func(m *maker) any {
				const e, h, k = 19, 64, 4
				bt := m.batch(0, seq{0, t, 0, 0})
				a := &abi.RouterArgs{TopK: k, Batch: bt.Batch, W: m.weight("w", abi.WBF16, 0, 1, e, h), X: m.bf16("x", 1, t, h), Ids: m.result("ids", abi.I32, Exact, t, k),
					Weights: m.result("weights", m.acc, Close, t, k), Counts: m.result("counts", abi.I32, Exact, e), Scale: 1.5, DenomEps: 1e-20, Temp: 1}
				switch v {
				case "bias":
					a.Bias = m.f32("bias", 0, 0.1, e)
				case "image bias":
					a.Bias, a.BiasVl = m.f32("bias", 0, 0.1, e), m.f32("bias_vl", 0.5, 0.5, e)
				case "hash":
					ids := m.routed(vocab, k, e)
					v := make([]int64, len(ids))
					for i := range ids {
						v[i] = int64(ids[i])
					}
					a.Tid2eid, a.DenomEps = m.table("tid2eid", abi.WI64, vocab, k, v), 0
				case "ties":
					a.X = m.tensor("x", abi.BF16, make([]byte, 2*t*h), t, h)
				}
				a.Size = size(*a)
				return a
			}, "%s, %d rows", v, t)
		}
	}
}

func (l *list) engram() {
	for _, b := range batches {
		l.add("engram_hash", func(m *maker) any {
			const heads, orders = 4, 4
			bt := m.batch(0, b.seqs...)
			ids := make([]int64, vocab)
			for i := range ids {
				ids[i] = int64(m.IntN(61))
			}
			mult := make([]int64, orders)
			for i := range mult {
				mult[i] = int64(m.Uint64()>>8)/99092 | 1
			}
			prime := []int64{2003, 2011, 2017, 2027, 2029, 2039, 2053, 2063, 2069, 2081, 2083, 2087}
			a := &abi.EngramHashArgs{Heads: heads, PadId: 2, Batch: bt.Batch, Map: m.table("map", abi.WI32, vocab, 1, ids), Prime: m.tensor("prime", abi.I64, asBytes(prime), 12),
				Mult: m.tensor("mult", abi.I64, asBytes(mult), orders), Ids: m.result("ids", abi.I32, Exact, bt.t, 12)}
			a.Size = size(*a)
			return a
		}, "%s", b.name)
		l.add("engram_mix", func(m *maker) any {
			const hc, h = 4, 48
			bt := m.batch(0, b.seqs...)
			a := &abi.EngramMixArgs{Batch: bt.Batch, H: m.bf16("h", 1, bt.t, hc, h), Kv: m.bf16("kv", 1, bt.t, (hc+1)*h), QWeight: m.f32("q_weight", 1, 0.1, hc, h),
				KWeight: m.f32("k_weight", 1, 0.1, hc, h), Out: m.result("out", abi.BF16, Rounded, bt.t, hc, h), Gate: m.result("gate", m.acc, Close, bt.t, hc), Eps: 1e-20}
			a.Size = size(*a)
			return a
		}, "%s", b.name)
		l.add("embed", func(m *maker) any {
			bt := m.batch(5, b.seqs...)
			a := &abi.EmbedArgs{Batch: bt.Batch, W: m.weight("w", abi.WBF16, 0, 1, vocab, 40), Image: m.bf16("image", 1, 5, 40), Y: m.result("y", abi.BF16, Exact, bt.t, 4, 40)}
			a.Size = size(*a)
			return a
		}, "%s", b.name)
	}
}

func (l *list) draft() {
	for _, s := range []int{0, 1, 5} {
		l.add("markov", func(m *maker) any {
			const r, v = 32, 131
			a := &abi.MarkovArgs{Embed: m.weight("embed", abi.WBF16, 0, 1, v, r), Head: m.weight("head", abi.WBF16, 0, 1, v, r), Prev: m.ints("prev", v, s), Base: m.accum("base", 0, 1, s, v),
				Logits: m.result("logits", m.acc, Close, s, v), E: m.result("e", abi.BF16, Exact, s, r)}
			a.Size = size(*a)
			return a
		}, "%d rows", s)
		l.add("confidence", func(m *maker) any {
			a := &abi.ConfidenceArgs{W: m.weight("w", abi.WBF16, 0, 1, 1, 96+32), X: m.bf16("x", 1, s, 96), E: m.bf16("e", 1, s, 32), Conf: m.result("conf", m.acc, Close, s)}
			a.Size = size(*a)
			return a
		}, "%d rows", s)
		l.add("verify", func(m *maker) any {
			const d = 5
			var ids, draft, count, first []int32
			for range s {
				n := m.IntN(d + 1)
				agree := m.IntN(n + 1)
				first, count = append(first, int32(len(ids))), append(count, int32(n))
				for i := range d {
					x := int32(m.IntN(7))
					draft = append(draft, x)
					if i < n {
						if i == agree {
							x++
						}
						ids = append(ids, x)
					}
				}
				ids = append(ids, 3)
			}
			a := &abi.VerifyArgs{Ids: m.i32("ids", ids, len(ids)), Draft: m.i32("draft", draft, s, d), Count: m.i32("count", count, s), First: m.i32("first", first, s),
				Accepted: m.result("accepted", abi.I32, Exact, s)}
			a.Size = size(*a)
			return a
		}, "%d sequences", s)
	}
}

func (l *list) sampling() {
	for _, v := range []int{1, 97, 4099} {
		l.add("sample", func(m *maker) any {
			base := abi.Sampling{Seed: 0x123456789abcdef, Pos: 17, Forced: -1}
			var p []abi.Sampling
			add := func(f func(s *abi.Sampling)) { s := base; f(&s); p = append(p, s) }
			add(func(s *abi.Sampling) {})
			add(func(s *abi.Sampling) { s.Temperature = 1 })
			add(func(s *abi.Sampling) { s.Temperature, s.Salt = 1, 3 })
			add(func(s *abi.Sampling) { s.Temperature, s.Seed = 0.6, math.MaxUint64 })
			add(func(s *abi.Sampling) { s.Temperature, s.TopK = 1.3, 1 })
			add(func(s *abi.Sampling) { s.Temperature, s.TopK = 1.3, 40 })
			add(func(s *abi.Sampling) { s.Temperature, s.TopP = 1, 0.9 })
			add(func(s *abi.Sampling) { s.Temperature, s.TopP = 2, 0.05 })
			add(func(s *abi.Sampling) { s.Temperature, s.MinP = 1, 0.3 })
			add(func(s *abi.Sampling) { s.Temperature, s.TopK, s.TopP, s.MinP, s.Pos = 0.9, 50, 0.8, 0.01, 123456 })
			add(func(s *abi.Sampling) { s.Forced = int32(m.IntN(v)) })
			logits := make([]float64, len(p)*v)
			for i := range logits {
				logits[i] = math.Round(m.gauss()*2*1024) / 1024 // some ties
			}
			n := min(5, v)
			a := &abi.SampleArgs{TopN: uint32(n), Logits: m.accumOf("logits", logits, len(p), v), Params: (*abi.Sampling)(m.place("params", asBytes(p), abi.U8, 48, Exact, false)),
				Ids: m.result("ids", abi.I32, Exact, len(p)), Logprob: m.result("logprob", abi.F32, Close, len(p)), TopIds: m.result("top_ids", abi.I32, Exact, len(p), n),
				TopLogprob: m.result("top_logprob", abi.F32, Close, len(p), n)}
			a.Size = size(*a)
			return a
		}, "vocabulary of %d", v)
		l.add("sample", func(m *maker) any { // many draws, no filters, no top list
			n := 64
			p := make([]abi.Sampling, n)
			for i := range p {
				p[i] = abi.Sampling{Seed: m.Uint64(), Pos: int32(m.IntN(1 << 20)), Temperature: 1, Forced: -1, TopP: 1}
			}
			a := &abi.SampleArgs{Logits: m.accum("logits", 0, 1, n, v), Params: (*abi.Sampling)(m.place("params", asBytes(p), abi.U8, 48, Exact, false)),
				Ids: m.result("ids", abi.I32, Exact, n), Logprob: m.result("logprob", abi.F32, Close, n)}
			a.Size = size(*a)
			return a
		}, "draws over %d", v)
		l.add("sample", func(m *maker) any { // masks, biases, repetition, and both, greedy and drawn
			inf := float32(math.Inf(1))
			var p []abi.Sampling
			var masks []uint32
			var biases []abi.Bias
			words := (v+31)/32 + 1 // a word more than needed
			for i := range 24 {
				s := abi.Sampling{Seed: m.Uint64(), Pos: int32(i), Forced: -1, Temperature: float32(i%3) * 0.6}
				if i%4 == 3 {
					s.TopK, s.TopP, s.MinP = 7, 0.8, 0.02
				}
				if i%2 == 0 {
					s.Mask = int32(len(masks)/words) + 1
					for range words {
						masks = append(masks, m.Uint32()&m.Uint32())
					}
				}
				if i%3 != 2 {
					s.BiasFirst = int32(len(biases))
					for range m.IntN(12) {
						id := int32(m.IntN(v))
						biases = append(biases, abi.Bias{Id: id, Add: float32(m.gauss() * 3)})
						switch m.IntN(4) {
						case 0:
							biases = append(biases, abi.Bias{Id: ^id, Add: 1.25})
						case 1:
							biases = append(biases, abi.Bias{Id: int32(m.IntN(v)), Add: -inf})
						}
					}
					s.BiasCount = int32(len(biases)) - s.BiasFirst
				}
				p = append(p, s)
			}
			p[20].Mask = int32(len(masks)/words) + 1 // nothing allowed
			masks = append(masks, make([]uint32, words)...)
			p[21].Forced, p[22].Mask = 0, p[20].Mask
			logits := make([]float64, len(p)*v)
			for i := range logits {
				logits[i] = math.Round(m.gauss()*2*1024) / 1024
			}
			a := &abi.SampleArgs{Logits: m.accumOf("logits", logits, len(p), v), Params: (*abi.Sampling)(m.place("params", asBytes(p), abi.U8, 48, Exact, false)),
				Ids: m.result("ids", abi.I32, Exact, len(p)), Logprob: m.result("logprob", abi.F32, Close, len(p)),
				Masks: (*uint32)(m.place("masks", asBytes(masks), abi.I32, words, Exact, false)), Biases: (*abi.Bias)(m.place("biases", asBytes(biases), abi.U8, 8, Exact, false)),
				MaskRows: uint32(len(masks) / words), MaskWords: uint32(words), BiasRows: uint32(len(biases))}
			a.Size = size(*a)
			return a
		}, "masks and biases over %d", v)
	}
}

func (l *list) moves() {
	for _, dt := range []uint32{abi.F32, abi.BF16, abi.I32, abi.I64, abi.U8} {
		for _, indexed := range []bool{true, false} {
			l.add("copy", func(m *maker) any {
				raw := make([]byte, 7*3*5*abi.ElemBytes(dt))
				for i := range raw {
					raw[i] = byte(m.Uint32())
				}
				n := 7
				a := &abi.CopyArgs{X: m.tensor("x", dt, raw, 7, 3, 5)}
				if indexed {
					n = 9
					a.Index = m.ints("index", 7, n)
				}
				a.Y = m.result("y", dt, Exact, n, 3, 5)
				a.Size = size(*a)
				return a
			}, "dtype %d, indexed %v", dt, indexed)
		}
	}
	for _, t := range []int{0, 1, 7} {
		l.add("cast", func(m *maker) any {
			a := &abi.CastArgs{X: m.accum("x", 0, 1, t, 33), Y: m.result("y", abi.BF16, Exact, t, 33)}
			a.Size = size(*a)
			return a
		}, "to bf16, %d rows", t)
		l.add("cast", func(m *maker) any {
			a := &abi.CastArgs{X: m.bf16("x", 1, t, 33), Y: m.result("y", m.acc, Exact, t, 33)}
			a.Size = size(*a)
			return a
		}, "from bf16, %d rows", t)
	}
	l.add("cast", func(m *maker) any {
		v := []float32{0, float32(math.Copysign(0, -1)), 1, 1.00390625, 1.01171875, 3.4028235e38, -3.4e38, float32(math.Inf(1)), float32(math.Inf(-1)), 1e-40, 9.1835e-41}
		a := &abi.CastArgs{X: m.tensor("x", abi.F32, asBytes(v), 1, len(v)), Y: m.result("y", abi.BF16, Exact, 1, len(v))}
		a.Size = size(*a)
		return a
	}, "ties, overflow, subnormal")
}

func (l *list) vision() {
	for _, g := range [][2]int{{1, 1}, {3, 5}, {4, 4}} {
		gh, gw := g[0], g[1]
		l.add("vision_attend", func(m *maker) any {
			const d, heads = 64, 4
			a := &abi.VisionAttendArgs{Heads: heads, GridH: uint32(gh), GridW: uint32(gw), Qkv: m.bf16("qkv", 1, gh*gw, 3*d), Freq: m.freq(d / heads / 4), Out: m.result("out", abi.BF16, Rounded, gh*gw, d)}
			a.Size = size(*a)
			return a
		}, "%dx%d", gh, gw)
		l.add("vision_merge", func(m *maker) any {
			const d, r = 7, 3
			a := &abi.VisionMergeArgs{R: r, GridH: uint32(gh), GridW: uint32(gw), X: m.bf16("x", 1, gh*gw, d), Y: m.result("y", abi.BF16, Exact, ((gh+r-1)/r)*((gw+r-1)/r), d*r*r)}
			a.Size = size(*a)
			return a
		}, "%dx%d", gh, gw)
	}
}
