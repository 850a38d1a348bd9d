package model

import (
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// visionEps is the RMS epsilon of the vision tower in every release (spec model 7.3).
const visionEps = 1e-6

// NewVisionGraph builds vision tower and aligner (spec model 7.3, 7.4): the Rows domain counts patches, the Logits domain merged cells. Input: BF16 patches
// [patches, 3*p*p]; output: BF16 rows [cells, hidden].
func NewVisionGraph(cfg *config.Config, opt Options) (*Graph, error) {
	v := cfg.Vision
	if v == nil {
		return nil, fmt.Errorf("build vision graph: this model has no vision_config")
	}
	opt, err := opt.withDefaults(cfg)
	if err != nil {
		return nil, err
	}
	b := &builder{Graph: &Graph{Name: "vision", Cfg: cfg, Opt: opt}, cfg: cfg, names: map[string]int{}}
	d, inner, heads := v.HiddenSize, v.IntermediateSize, v.NumAttentionHeads
	patch := 3 * v.PatchSize * v.PatchSize
	in := b.add(program.Buffer{Name: program.InputName, Kind: program.Input, DType: abi.BF16, Domain: program.Rows, Dims: []int{patch}})
	freq := b.floats("vision.freq", visionSpeeds(v))
	biased := func(label string, x ref, n, k int, domain program.Domain, kind program.Kind, name string) ref {
		y := b.add(program.Buffer{Name: name, Kind: kind, DType: abi.BF16, Domain: domain, Dims: []int{n}})
		b.op(program.GEMM, label, nil, operand{"x", x}, operand{"w", b.matrix(b.label+label+".weight", abi.WBF16, n, k)}, operand{"bias", b.vector(b.label+label+".bias", n)}, operand{"y", y})
		return y
	}
	rms := func(label string, x ref) ref {
		y := b.bf16(label+".y", d)
		b.op(program.RMSNorm, label, attrs{"eps": visionEps}, operand{"x", x}, operand{"w", b.vector(b.label+label+".weight", d)}, operand{"y", y})
		return y
	}
	sum := func(label string, x, y ref) ref {
		z := b.bf16(label, d)
		b.op(program.Add, label, nil, operand{"a", x}, operand{"b", y}, operand{"y", z})
		return z
	}
	b.label = "vision.patch_embed."
	x := biased("proj", in, d, patch, program.Rows, program.Temp, "vision.patch_embed.x")
	for block := range v.NumHiddenLayers {
		b.label = fmt.Sprintf("vision.blocks.%d.", block)
		qkv := biased("attn.wqkv", rms("norm1", x), 3*d, d, program.Rows, program.Temp, b.label+"qkv")
		o := b.bf16("attn.o", d)
		b.op(program.VisionAttend, "attn.core", attrs{"heads": float64(heads)}, operand{"qkv", qkv}, operand{"freq", freq}, operand{"out", o})
		x = sum("attn.sum", x, biased("attn.wo", o, d, d, program.Rows, program.Temp, b.label+"attn.out"))
		n := rms("norm2", x)
		half := func(name string, from int) ref {
			y := b.bf16(name, inner)
			b.op(program.GEMM, "mlp.w1."+name, nil, operand{"x", n}, operand{"w", b.rows(b.label+"mlp.w1.weight", abi.WBF16, from, inner, d)}, operand{"y", y})
			return y
		}
		gate, upp := half("gate", 0), half("up", inner)
		a := b.bf16("mlp.act", inner)
		b.op(program.Swiglu, "mlp.act", nil, operand{"g", gate}, operand{"u", upp}, operand{"y", a})
		x = sum("mlp.sum", x, b.plain("mlp.w2", a, d, inner, b.bf16("mlp.out", d)))
	}
	b.label = "vision."
	x = rms("norm", x)
	b.label = "aligner."
	r := v.DownsampleRatio
	cells := b.temp("cells", abi.BF16, program.Logits, d*r*r)
	b.op(program.VisionMerge, "merge", attrs{"r": float64(r)}, operand{"x", x}, operand{"y", cells})
	u := biased("w1", cells, cfg.HiddenSize, d*r*r, program.Logits, program.Temp, "aligner.u")
	a := b.temp("act", abi.BF16, program.Logits, cfg.HiddenSize)
	b.op(program.Gelu, "act", nil, operand{"x", u}, operand{"y", a})
	biased("w2", a, cfg.HiddenSize, cfg.HiddenSize, program.Logits, program.Output, program.OutRows)
	return b.Graph, nil
}

// visionSpeeds are the FP32 rotation speeds of one axis, head dim / 4 values: theta^(-2i/(hd/2)).
func visionSpeeds(v *config.Vision) []float32 {
	half := v.HiddenSize / v.NumAttentionHeads / 2
	w := make([]float32, half/2)
	for i := range w {
		w[i] = float32(math.Pow(v.RopeTheta, float64(-float32(2*i)/float32(half))))
	}
	return w
}
