package model

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Graph is a model as a flat list of ops over named buffers whose leading dimensions are symbols (rows, logit rows). core/plan binds it to a bucket and
// lays out the workspace. A Graph is built once and then only read.
type Graph struct {
	Name     string // "main", "vision"
	Cfg      *config.Config
	Opt      Options
	Geometry *Geometry // nil for vision
	Buffers  []program.Buffer
	Ops      []program.Op
}

// NewGraph builds the text graph of a model: V4.1 or V4.
func NewGraph(cfg *config.Config, opt Options) (*Graph, error) {
	geo, err := NewGeometry(cfg, opt)
	if err != nil {
		return nil, err
	}
	if opt, err = opt.withDefaults(cfg); err != nil {
		return nil, err
	}
	g := &Graph{Name: "main", Cfg: cfg, Opt: opt, Geometry: geo}
	b := &builder{Graph: g, cfg: cfg, names: map[string]int{}, production: opt.Numerics == "production"}
	if cfg.V4() {
		err = b.v4()
	} else {
		err = b.v41()
	}
	if err != nil {
		return nil, fmt.Errorf("build graph of %s: %w", cfg.Architecture, err)
	}
	return g, nil
}

// builder appends ops to a graph. ref is the index of a buffer, none an absent operand.
type builder struct {
	*Graph
	cfg        *config.Config
	production bool
	names      map[string]int
	label      string // prefix of the current layer: "layers.3."
}

type ref int

const none ref = -1

type operand struct {
	name string
	buf  ref
}

type attrs map[string]float64

// op appends an op. Operands come in the order of its signature; absent ones are dropped.
func (b *builder) op(code program.Code, label string, a attrs, operands ...operand) {
	o := program.Op{Code: code, Label: b.label + label}
	for _, p := range operands {
		if p.buf != none {
			o.Operands = append(o.Operands, program.Operand{Name: p.name, Buf: int(p.buf)})
		}
	}
	for _, name := range program.Signatures[code].Attrs {
		if v, ok := a[name]; ok && v != 0 {
			o.Attrs = append(o.Attrs, program.Attr{Name: name, Value: v})
		}
	}
	b.Ops = append(b.Ops, o)
}

func (b *builder) add(buf program.Buffer) ref {
	if i, ok := b.names[buf.Name]; ok {
		return ref(i)
	}
	b.Buffers = append(b.Buffers, buf)
	b.names[buf.Name] = len(b.Buffers) - 1
	return ref(len(b.Buffers) - 1)
}

// temp is a workspace array of the current layer.
func (b *builder) temp(name string, dtype uint32, domain program.Domain, dims ...int) ref {
	return b.add(program.Buffer{Name: b.label + name, DType: dtype, Domain: domain, Dims: dims})
}

func (b *builder) bf16(name string, dims ...int) ref {
	return b.temp(name, abi.BF16, program.Rows, dims...)
}

// acc is a workspace array of the accumulation type.
func (b *builder) acc(name string, dims ...int) ref {
	return b.temp(name, b.Opt.Acc, program.Rows, dims...)
}

// vector is a small weight, converted to F32 at load. The tensor may be stored as BF16 or F32.
func (b *builder) vector(name string, dims ...int) ref {
	n, k := 1, 1
	for i, d := range dims {
		if i < len(dims)-1 {
			n *= d
		} else {
			k = d
		}
	}
	return b.add(program.Buffer{Name: name, Kind: program.Vector, DType: abi.F32, Dims: dims,
		Weight: &program.WeightRef{Format: abi.WF32, N: n, K: k, Names: []string{name}}})
}

func (b *builder) matrix(name string, format uint32, n, k int) ref {
	return b.add(program.Buffer{Name: name, Kind: program.Weight,
		Weight: &program.WeightRef{Format: format, Tile: b.tile(format), N: n, K: k, Names: []string{name}}})
}

// rows is a plain matrix made of some rows of a tensor.
func (b *builder) rows(name string, format uint32, from, n, k int) ref {
	return b.add(program.Buffer{Name: fmt.Sprintf("%s[%d:%d]", name, from, from+n), Kind: program.Weight,
		Weight: &program.WeightRef{Format: format, N: n, K: k, From: from, Names: []string{name}}})
}

func (b *builder) tile(format uint32) int {
	switch format {
	case abi.WFP8Tile:
		return b.cfg.WeightBlock
	case abi.WFP8Row, abi.WMXFP4:
		return 32
	}
	return 0
}

// experts stacks one matrix of every routed expert.
func (b *builder) experts(prefix, which string, count, n, k int) ref {
	names := make([]string, count)
	for e := range names {
		names[e] = fmt.Sprintf("%s.%d.%s.weight", prefix, e, which)
	}
	return b.add(program.Buffer{Name: prefix + ".*." + which, Kind: program.Weight,
		Weight: &program.WeightRef{Format: abi.WMXFP4, Tile: 32, N: n, K: k, Names: names}})
}

func (b *builder) region(kind program.Kind, name string, r program.RegionRef) ref {
	return b.add(program.Buffer{Name: name, Kind: kind, Region: &r})
}

func (b *builder) floats(name string, v []float32) ref {
	data := make([]byte, 0, 4*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	return b.add(program.Buffer{Name: name, Kind: program.Const, DType: abi.F32, Dims: []int{len(v)}, Data: data})
}

func (b *builder) ints(name string, v []int64) ref {
	data := make([]byte, 0, 8*len(v))
	for _, x := range v {
		data = binary.LittleEndian.AppendUint64(data, uint64(x))
	}
	return b.add(program.Buffer{Name: name, Kind: program.Const, DType: abi.I64, Dims: []int{len(v)}, Data: data})
}

// ---- pieces that V4.1, V4, and later the draft stages share ----

// fp8 is a linear layer with quantised weight and input; fp8 weights lie at name.weight with name.scale.
func (b *builder) fp8(label string, x ref, n, k int, y ref) ref {
	w := b.matrix(b.label+label+".weight", abi.WFP8Tile, n, k)
	b.op(program.GEMM, label, attrs{"act_group": float64(b.cfg.ActGroup())}, operand{"x", x}, operand{"w", w}, operand{"y", y})
	return y
}

// plain is a linear layer with a BF16 weight: no quantised input.
func (b *builder) plain(label string, x ref, n, k int, y ref) ref {
	w := b.matrix(b.label+label+".weight", abi.WBF16, n, k)
	b.op(program.GEMM, label, nil, operand{"x", x}, operand{"w", w}, operand{"y", y})
	return y
}

func (b *builder) norm(label string, x ref, width int, y ref) ref {
	b.op(program.RMSNorm, label, attrs{"eps": b.cfg.RMSNormEps}, operand{"x", x}, operand{"w", b.vector(b.label+label+".weight", width)}, operand{"y", y})
	return y
}

func (b *builder) rope(label string, x ref, freq ref, ratio int, y ref) ref {
	b.op(program.Rope, label, attrs{"ratio": float64(ratio)}, operand{"x", x}, operand{"freq", freq}, operand{"y", y})
	return y
}

// mix computes the hyper-connection coefficients of one sublayer.
func (b *builder) mix(part string, h ref) (pre, post, comb ref) {
	hc, d := b.cfg.HCMult, b.cfg.HiddenSize
	pre, post, comb = b.acc(part+".pre", hc), b.acc(part+".post", hc), b.acc(part+".comb", hc*hc)
	b.op(program.MHCMix, part+".mix", attrs{"iters": float64(b.cfg.HCSinkhornIters), "hc_eps": b.cfg.HCEps, "eps": b.cfg.RMSNormEps, "tf32": flag(b.production)},
		operand{"h", h}, operand{"fn", b.vector(b.label+"hc_"+part+"_fn", hc*(hc+2), hc*d)}, operand{"base", b.vector(b.label+"hc_"+part+"_base", hc*(hc+2))},
		operand{"scale", b.vector(b.label+"hc_"+part+"_scale", 3)}, operand{"pre", pre}, operand{"post", post}, operand{"comb", comb})
	return pre, post, comb
}

// collapse gives the normalised input of a sublayer.
func (b *builder) collapse(part string, h, pre ref) ref {
	d := b.cfg.HiddenSize
	x, y := b.bf16(part+".collapsed", d), b.bf16(part+".in", d)
	b.op(program.MHCCollapse, part+".collapse", nil, operand{"h", h}, operand{"pre", pre}, operand{"x", x})
	return b.norm(part+"_norm", x, d, y)
}

func (b *builder) expand(part string, y, h, post, comb ref) ref {
	out := b.bf16(part+".h", b.cfg.HCMult, b.cfg.HiddenSize)
	b.op(program.MHCExpand, part+".expand", nil, operand{"y", y}, operand{"h", h}, operand{"post", post}, operand{"comb", comb}, operand{"out", out})
	return out
}

// queries computes the low-rank query path up to the rotated heads: qr [T, q_lora], q [T, heads, D].
func (b *builder) queries(x, freq ref) (qr, q ref) {
	c := b.cfg
	qa := b.fp8("attn.wq_a", x, c.QLoraRank, c.HiddenSize, b.bf16("attn.qa", c.QLoraRank))
	qr = b.norm("attn.q_norm", qa, c.QLoraRank, b.bf16("attn.qr", c.QLoraRank))
	q = b.fp8("attn.wq_b", qr, c.NumAttentionHeads*c.HeadDim, c.QLoraRank, b.bf16("attn.q_raw", c.NumAttentionHeads, c.HeadDim))
	if c.V4() {
		n := b.bf16("attn.q_normed", c.NumAttentionHeads, c.HeadDim)
		b.op(program.RMSNorm, "attn.q_head_norm", attrs{"eps": c.RMSNormEps}, operand{"x", q}, operand{"y", n})
		q = n
	}
	return qr, b.rope("attn.q_rope", q, freq, 0, b.bf16("attn.q", c.NumAttentionHeads, c.HeadDim))
}

// window computes the packed window record of each row.
func (b *builder) window(x, freq ref, ring program.RegionRef) ref {
	c := b.cfg
	kv := b.fp8("attn.wkv", x, c.HeadDim, c.HiddenSize, b.bf16("attn.kv_raw", c.HeadDim))
	kv = b.norm("attn.kv_norm", kv, c.HeadDim, b.bf16("attn.kv_normed", c.HeadDim))
	kv = b.rope("attn.kv_rope", kv, freq, 0, b.bf16("attn.kv", c.HeadDim))
	rec := b.temp("attn.window_kv", abi.U8, program.Rows, ring.RowBytes)
	b.op(program.Quantize, "attn.kv_quantize", attrs{"format": float64(ring.Format), "rope": float64(ring.Rope)}, operand{"x", kv}, operand{"y", rec})
	return rec
}

// attend runs the attention core, the output projection and the ring commit.
func (b *builder) attend(layer int, q, rec, sel, cache, freq ref, all bool) ref {
	c := b.cfg
	heads, d := c.NumAttentionHeads, c.HeadDim
	ring := b.region(program.Ring, fmt.Sprintf("ring.%d", layer), b.Geometry.Rings[layer])
	o := b.bf16("attn.o", heads, d)
	mode, act := abi.AttendBF16, 0
	if b.production {
		mode, act = abi.AttendA8, c.ActGroup()
	}
	b.op(program.Attend, "attn.core", attrs{"window": float64(c.SlidingWindow), "out_mode": float64(mode), "all_visible": flag(all), "scale": math.Pow(float64(d), -0.5)},
		operand{"q", q}, operand{"rec", rec}, operand{"sel", sel}, operand{"sink", b.vector(b.label+"attn.attn_sink", heads)}, operand{"freq", freq},
		operand{"ring", ring}, operand{"cache", cache}, operand{"out", o})
	groups, rank := c.OGroups, c.OLoraRank
	u := b.bf16("attn.u", groups*rank)
	w := b.matrix(b.label+"attn.wo_a.weight", abi.WFP8Tile, groups*rank, heads*d/groups)
	b.op(program.GEMM, "attn.wo_a", attrs{"act_group": float64(act), "groups": float64(groups)}, operand{"x", o}, operand{"w", w}, operand{"y", u})
	y := b.fp8("attn.wo_b", u, c.HiddenSize, groups*rank, b.bf16("attn.out", c.HiddenSize))
	b.op(program.KVStore, "attn.kv_store", nil, operand{"rec", rec}, operand{"ring", ring})
	return y
}

// moe runs router, routed experts and the shared expert.
func (b *builder) moe(x ref, hashed bool) ref {
	c := b.cfg
	d, inner, experts, k := c.HiddenSize, c.MoEIntermediateSize, c.NRoutedExperts, c.NumExpertsPerTok
	act := float64(c.ActGroup())
	ids := b.temp("ffn.ids", abi.I32, program.Rows, k)
	weights := b.acc("ffn.weights", k)
	route := []operand{{"x", x}, {"w", b.matrix(b.label+"ffn.gate.weight", abi.WBF16, experts, d)}}
	eps := 1e-20
	if c.V4() {
		eps = 0
	}
	switch {
	case hashed:
		route = append(route, operand{"tid2eid", b.matrix(b.label+"ffn.gate.tid2eid", abi.WI64, c.VocabSize, k)})
	case c.V4():
		route = append(route, operand{"bias", b.vector(b.label+"ffn.gate.bias", experts)})
	default:
		route = append(route, operand{"bias", b.vector(b.label+"ffn.gate.bias", experts)}, operand{"bias_vl", b.vector(b.label+"ffn.gate.bias_vl", experts)})
	}
	b.op(program.Router, "ffn.router", attrs{"top_k": float64(k), "scale": c.RoutedScalingFactor, "denom_eps": eps, "temp": c.GateTemp},
		append(route, operand{"ids", ids}, operand{"weights", weights})...)

	per := func(name string, width int) ref {
		return b.add(program.Buffer{Name: b.label + name, DType: abi.BF16, Domain: program.Rows, Mul: k, Dims: []int{width}})
	}
	xg := per("ffn.xg", d)
	order := b.add(program.Buffer{Name: b.label + "ffn.order", DType: abi.I32, Domain: program.Rows, Mul: k})
	offs := b.temp("ffn.offs", abi.I32, program.Fixed, experts+1)
	b.op(program.Dispatch, "ffn.dispatch", attrs{"experts": float64(experts)}, operand{"x", x}, operand{"ids", ids}, operand{"xg", xg}, operand{"order", order}, operand{"offs", offs})
	grouped := func(which string, x ref, n, k int, y ref) ref {
		w := b.experts(b.label+"ffn.experts", which, experts, n, k)
		b.op(program.GEMMGrouped, "ffn.experts."+which, attrs{"act_group": act}, operand{"x", x}, operand{"w", w}, operand{"offs", offs}, operand{"y", y})
		return y
	}
	gate, upp := grouped("w1", xg, inner, d, per("ffn.gate", inner)), grouped("w3", xg, inner, d, per("ffn.up", inner))
	mode := attrs{"out_mode": abi.ActBF16, "act_group": act, "limit": c.SwigluLimit}
	if b.production {
		mode["out_mode"] = abi.ActA8
	}
	a := per("ffn.act", inner)
	b.op(program.Swiglu, "ffn.experts.act", mode, operand{"g", gate}, operand{"u", upp}, operand{"weights", weights}, operand{"order", order}, operand{"y", a})
	yg := grouped("w2", a, d, inner, per("ffn.yg", d))

	sg := b.fp8("ffn.shared_experts.w1", x, inner, d, b.bf16("ffn.shared_gate", inner))
	su := b.fp8("ffn.shared_experts.w3", x, inner, d, b.bf16("ffn.shared_up", inner))
	sa := b.bf16("ffn.shared_act", inner)
	b.op(program.Swiglu, "ffn.shared_experts.act", mode, operand{"g", sg}, operand{"u", su}, operand{"y", sa})
	sy := b.fp8("ffn.shared_experts.w2", sa, d, inner, b.bf16("ffn.shared", d))

	y := b.bf16("ffn.out", d)
	order2 := abi.CombineExpert
	if b.production {
		order2 = abi.CombineSlot
	}
	b.op(program.Combine, "ffn.combine", attrs{"mode": float64(order2)}, operand{"yg", yg}, operand{"order", order}, operand{"ids", ids}, operand{"shared", sy}, operand{"y", y})
	return y
}

// start embeds the rows and copies them to the streams.
func (b *builder) start() ref {
	c := b.cfg
	image := none
	if !c.V4() && c.Vision != nil {
		image = b.add(program.Buffer{Name: program.InputName, Kind: program.Input, DType: abi.BF16, Domain: program.Rows, Dims: []int{c.HiddenSize}})
	}
	h := b.bf16("h", c.HCMult, c.HiddenSize)
	b.op(program.Embed, "embed", nil, operand{"w", b.matrix("embed.weight", abi.WBF16, c.VocabSize, c.HiddenSize)}, operand{"image", image}, operand{"y", h})
	return h
}

// finish gathers the wanted rows, applies the head and samples. pre is the last FFN's (V4.1) or none (V4: the hyper head computes it).
func (b *builder) finish(h, pre ref) {
	c := b.cfg
	hc, d := c.HCMult, c.HiddenSize
	b.label = ""
	index := b.add(program.Buffer{Name: program.LogitsIndex, Kind: program.Input, DType: abi.I32, Domain: program.Logits})
	hl := b.temp("head.h", abi.BF16, program.Logits, hc, d)
	b.op(program.Copy, "head.rows", nil, operand{"x", h}, operand{"index", index}, operand{"y", hl})
	pl := b.temp("head.pre", b.Opt.Acc, program.Logits, hc)
	if pre != none {
		b.op(program.Copy, "head.pre_rows", nil, operand{"x", pre}, operand{"index", index}, operand{"y", pl})
	} else {
		b.op(program.MHCMix, "head.mix", attrs{"head_only": 1, "hc_eps": c.HCEps, "eps": c.RMSNormEps}, operand{"h", hl},
			operand{"fn", b.vector("hc_head_fn", hc, hc*d)}, operand{"base", b.vector("hc_head_base", hc)}, operand{"scale", b.vector("hc_head_scale", 1)}, operand{"pre", pl})
	}
	x, y := b.temp("head.x", abi.BF16, program.Logits, d), b.temp("head.y", abi.BF16, program.Logits, d)
	b.op(program.MHCCollapse, "head.collapse", nil, operand{"h", hl}, operand{"pre", pl}, operand{"x", x})
	b.norm("norm", x, d, y)
	logits := b.temp("logits", b.Opt.Acc, program.Logits, c.VocabSize)
	b.op(program.Head, "head", nil, operand{"x", y}, operand{"w", b.matrix("head.weight", abi.WBF16, c.VocabSize, d)}, operand{"y", logits})
	output := func(name string, dtype uint32, dims ...int) ref {
		return b.add(program.Buffer{Name: name, Kind: program.Output, DType: dtype, Domain: program.Logits, Dims: dims})
	}
	b.op(program.Sample, "sample", nil, operand{"logits", logits}, operand{"ids", output(program.OutIDs, abi.I32)}, operand{"logprob", output(program.OutLogProb, abi.F32)},
		operand{"top_ids", output(program.OutTopIDs, abi.I32, TopN)}, operand{"top_logprob", output(program.OutTopLogProb, abi.F32, TopN)})
}

// TopN is the capacity of a step for the best log-probabilities per row.
const TopN = 20

func flag(v bool) float64 {
	if v {
		return 1
	}
	return 0
}
