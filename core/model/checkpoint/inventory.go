package checkpoint

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/core/model/config"
)

// Part says what a tensor belongs to, for accounts of bytes and parameters.
type Part string

// Parts, in the order in which reports list them.
const (
	PartRouted       Part = "routed experts"
	PartEngram       Part = "engram"
	PartAttention    Part = "attention, index, compressor"
	PartEmbedding    Part = "embedding, head, norm"
	PartShared       Part = "shared experts"
	PartMix          Part = "mHC, gates, norms"
	PartDraftExperts Part = "draft experts"
	PartDraft        Part = "draft, rest"
	PartVision       Part = "vision"
)

// Parts lists all parts in report order.
func Parts() []Part {
	return []Part{PartRouted, PartEngram, PartAttention, PartEmbedding, PartShared, PartMix, PartDraftExperts, PartDraft, PartVision}
}

// Expected is one tensor that a configuration calls for.
type Expected struct {
	Name   string
	DType  DType
	Shape  []int
	Part   Part
	Layer  int   // backbone layer, or -1
	Params int64 // model parameters the tensor holds: packed FP4 counts two a byte, scales count none
	Linear bool  // a matrix that multiplies the activations of a token (experts: of the tokens routed to it)
}

// Bytes returns the size of the tensor in the file.
func (e Expected) Bytes() int64 { return elements(e.Shape) * e.DType.Size() }

func elements(shape []int) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= int64(d)
	}
	return n
}

// Inventory returns every tensor that a checkpoint of the configuration holds, backbone layers first, each once.
// The release of V4.1-Flash has 96,085 tensors.
func Inventory(cfg *config.Config) []Expected {
	b := &builder{cfg: cfg}
	b.top()
	for layer := range cfg.NumHiddenLayers {
		b.layer(layer)
	}
	for stage := range cfg.DraftStages() {
		b.stage(stage)
	}
	if cfg.Vision != nil {
		b.vision(cfg.Vision)
	}
	return b.out
}

type builder struct {
	cfg     *config.Config
	out     []Expected
	layerNo int
}

func (b *builder) add(part Part, name string, dtype DType, shape ...int) *Expected {
	b.out = append(b.out, Expected{Name: name, DType: dtype, Shape: shape, Part: part, Layer: b.layerNo, Params: elements(shape)})
	return &b.out[len(b.out)-1]
}

// linear adds a BF16 matrix [n,k] that tokens are multiplied with.
func (b *builder) linear(part Part, name string, n, k int) {
	b.add(part, name, BF16, n, k).Linear = true
}

// fp8 adds an E4M3 matrix [n,k] and its scales, one for each square tile.
func (b *builder) fp8(part Part, name string, n, k int) {
	b.add(part, name+".weight", F8E4M3, n, k).Linear = true
	b.add(part, name+".scale", F8E8M0, ceil(n, b.cfg.WeightBlock), ceil(k, b.cfg.WeightBlock)).Params = 0
}

// fp4 adds a packed E2M1 matrix [n,k] and its scales, one for each 32 columns of a row.
func (b *builder) fp4(part Part, name string, n, k int) {
	w := b.add(part, name+".weight", I8, n, k/2)
	w.Params, w.Linear = int64(n)*int64(k), true
	b.add(part, name+".scale", F8E8M0, n, k/32).Params = 0
}

func (b *builder) top() {
	c := b.cfg
	b.layerNo = -1
	b.add(PartEmbedding, "embed.weight", BF16, c.VocabSize, c.HiddenSize)
	b.add(PartEmbedding, "norm.weight", BF16, c.HiddenSize)
	b.linear(PartEmbedding, "head.weight", c.VocabSize, c.HiddenSize)
	if c.V4() {
		b.hyperHead(PartMix, "")
	}
}

// hyperHead adds the learned collapse before the head that V4 has.
func (b *builder) hyperHead(part Part, prefix string) {
	c := b.cfg
	b.add(part, prefix+"hc_head_fn", F32, c.HCMult, c.HCMult*c.HiddenSize).Linear = true
	b.add(part, prefix+"hc_head_base", F32, c.HCMult)
	b.add(part, prefix+"hc_head_scale", F32, 1)
}

func (b *builder) layer(layer int) {
	c := b.cfg
	b.layerNo = layer
	prefix := fmt.Sprintf("layers.%d.", layer)
	b.mixes(PartMix, prefix)
	b.attention(PartAttention, PartMix, prefix)
	switch {
	case c.V4():
		b.compressorV4(prefix, layer)
	case c.OwnsKV(layer) || c.OwnsIndex(layer):
		b.compressor(prefix, layer)
	}
	b.gate(PartMix, prefix, c.NRoutedExperts, c.HashRouted(layer))
	b.shared(PartShared, prefix)
	b.experts(PartRouted, prefix, c.NRoutedExperts)
	if k := c.EngramIndex(layer); k >= 0 {
		b.engram(prefix, k)
	}
}

// mixes adds the mHC projections and the two sublayer norms.
func (b *builder) mixes(part Part, prefix string) {
	c := b.cfg
	n := (2 + c.HCMult) * c.HCMult
	b.add(part, prefix+"attn_norm.weight", BF16, c.HiddenSize)
	b.add(part, prefix+"ffn_norm.weight", BF16, c.HiddenSize)
	for _, sub := range []string{"attn", "ffn"} {
		b.add(part, prefix+"hc_"+sub+"_fn", F32, n, c.HCMult*c.HiddenSize).Linear = true
		b.add(part, prefix+"hc_"+sub+"_base", F32, n)
		b.add(part, prefix+"hc_"+sub+"_scale", F32, 3)
	}
}

func (b *builder) attention(part, norms Part, prefix string) {
	c := b.cfg
	b.fp8(part, prefix+"attn.wq_a", c.QLoraRank, c.HiddenSize)
	b.add(norms, prefix+"attn.q_norm.weight", BF16, c.QLoraRank)
	b.fp8(part, prefix+"attn.wq_b", c.NumAttentionHeads*c.HeadDim, c.QLoraRank)
	b.fp8(part, prefix+"attn.wkv", c.HeadDim, c.HiddenSize)
	b.add(norms, prefix+"attn.kv_norm.weight", BF16, c.HeadDim)
	b.add(part, prefix+"attn.attn_sink", F32, c.NumAttentionHeads)
	b.fp8(part, prefix+"attn.wo_a", c.OGroups*c.OLoraRank, c.NumAttentionHeads*c.HeadDim/c.OGroups)
	b.fp8(part, prefix+"attn.wo_b", c.HiddenSize, c.OGroups*c.OLoraRank)
}

func (b *builder) compressor(prefix string, layer int) {
	c := b.cfg
	const part = PartAttention
	if c.OwnsKV(layer) {
		b.linear(part, prefix+"attn.compressor.wkv.weight", c.HeadDim, c.HiddenSize)
		if c.Ratio(layer) > 1 {
			b.linear(part, prefix+"attn.compressor.wgate.weight", c.HeadDim, c.HiddenSize)
		}
		b.add(part, prefix+"attn.compressor.norm.weight", BF16, c.HeadDim)
		b.linear(part, prefix+"attn.indexer.wk.weight", c.IndexHeadDim, c.HeadDim)
		b.add(part, prefix+"attn.indexer.k_norm.weight", BF16, c.IndexHeadDim)
	}
	b.fp8(part, prefix+"attn.indexer.wq_b", c.IndexNHeads*c.IndexHeadDim, c.QLoraRank)
	b.linear(part, prefix+"attn.indexer.weights_proj.weight", c.IndexNHeads, c.HiddenSize)
}

func (b *builder) compressorV4(prefix string, layer int) {
	c := b.cfg
	ratio := c.Ratio(layer)
	if ratio == 0 {
		return
	}
	own := func(name string, dim int) {
		width := dim
		if ratio == config.V4IndexRatio {
			width = 2 * dim // windows overlap: each token has a channel set for its own and for the next entry
		}
		b.add(PartAttention, prefix+name+".ape", F32, ratio, width)
		b.linear(PartAttention, prefix+name+".wkv.weight", width, c.HiddenSize)
		b.linear(PartAttention, prefix+name+".wgate.weight", width, c.HiddenSize)
		b.add(PartAttention, prefix+name+".norm.weight", BF16, dim)
	}
	own("attn.compressor", c.HeadDim)
	if c.OwnsIndex(layer) {
		own("attn.indexer.compressor", c.IndexHeadDim)
		b.fp8(PartAttention, prefix+"attn.indexer.wq_b", c.IndexNHeads*c.IndexHeadDim, c.QLoraRank)
		b.linear(PartAttention, prefix+"attn.indexer.weights_proj.weight", c.IndexNHeads, c.HiddenSize)
	}
}

func (b *builder) gate(part Part, prefix string, experts int, hashed bool) {
	c := b.cfg
	b.linear(part, prefix+"ffn.gate.weight", experts, c.HiddenSize)
	if hashed {
		b.add(part, prefix+"ffn.gate.tid2eid", I64, c.VocabSize, c.NumExpertsPerTok).Params = 0
	} else {
		b.add(part, prefix+"ffn.gate.bias", F32, experts)
	}
	if !c.V4() || c.Vision != nil && b.layerNo >= 0 {
		b.add(part, prefix+"ffn.gate.bias_vl", F32, experts)
	}
}

func (b *builder) shared(part Part, prefix string) {
	c := b.cfg
	b.fp8(part, prefix+"ffn.shared_experts.w1", c.MoEIntermediateSize, c.HiddenSize)
	b.fp8(part, prefix+"ffn.shared_experts.w3", c.MoEIntermediateSize, c.HiddenSize)
	b.fp8(part, prefix+"ffn.shared_experts.w2", c.HiddenSize, c.MoEIntermediateSize)
}

func (b *builder) experts(part Part, prefix string, n int) {
	c := b.cfg
	for e := range n {
		name := fmt.Sprintf("%sffn.experts.%d.", prefix, e)
		b.fp4(part, name+"w1", c.MoEIntermediateSize, c.HiddenSize)
		b.fp4(part, name+"w3", c.MoEIntermediateSize, c.HiddenSize)
		b.fp4(part, name+"w2", c.HiddenSize, c.MoEIntermediateSize)
	}
}

func (b *builder) engram(prefix string, k int) {
	c := b.cfg
	const part = PartEngram
	rows := int(c.EngramNumEmbeddings[k])
	b.add(part, prefix+"engram.embed.weight", F8E4M3, rows, c.EngramHeadDim)
	b.add(part, prefix+"engram.embed.scale", F8E8M0, rows, c.EngramHeadDim/32).Params = 0
	b.fp8(part, prefix+"engram.wkv", (c.HCMult+1)*c.HiddenSize, c.EngramColumns()*c.EngramHeadDim)
	b.add(part, prefix+"engram.q_weight", BF16, c.HCMult, c.HiddenSize)
	b.add(part, prefix+"engram.k_weight", BF16, c.HCMult, c.HiddenSize)
}

func (b *builder) stage(stage int) {
	c := b.cfg
	b.layerNo = -1
	const part = PartDraft
	prefix := fmt.Sprintf("mtp.%d.", stage)
	b.mixes(part, prefix)
	b.attention(part, part, prefix)
	b.gate(part, prefix, c.DraftExperts(), false)
	b.shared(part, prefix)
	b.experts(PartDraftExperts, prefix, c.DraftExperts())
	if stage == 0 {
		b.fp8(part, prefix+"main_proj", c.HiddenSize, len(c.DSparkTargetLayerIDs)*c.HiddenSize)
		b.add(part, prefix+"main_norm.weight", BF16, c.HiddenSize)
	}
	if stage != c.DraftStages()-1 {
		return
	}
	b.add(part, prefix+"norm.weight", BF16, c.HiddenSize)
	embed, head := "markov_head.embed.weight", "markov_head.head.weight"
	if c.V4() {
		b.hyperHead(part, prefix)
		embed, head = "markov_head.markov_w1.weight", "markov_head.markov_w2.weight"
	}
	b.add(part, prefix+embed, BF16, c.VocabSize, c.DSparkMarkovRank)
	b.linear(part, prefix+head, c.VocabSize, c.DSparkMarkovRank)
	b.linear(part, prefix+"confidence_head.proj.weight", 1, c.HiddenSize+c.DSparkMarkovRank)
}

func (b *builder) vision(v *config.Vision) {
	c := b.cfg
	b.layerNo = -1
	const part = PartVision
	biased := func(name string, n, k int) {
		b.linear(part, name+".weight", n, k)
		b.add(part, name+".bias", BF16, n)
	}
	d := v.HiddenSize
	biased("vision.patch_embed.proj", d, 3*v.PatchSize*v.PatchSize)
	for block := range v.NumHiddenLayers {
		prefix := fmt.Sprintf("vision.blocks.%d.", block)
		b.add(part, prefix+"norm1.weight", BF16, d)
		b.add(part, prefix+"norm2.weight", BF16, d)
		biased(prefix+"attn.wqkv", 3*d, d)
		biased(prefix+"attn.wo", d, d)
		b.linear(part, prefix+"mlp.w1.weight", 2*v.IntermediateSize, d)
		b.linear(part, prefix+"mlp.w2.weight", d, v.IntermediateSize)
	}
	b.add(part, "vision.norm.weight", BF16, d)
	biased("aligner.w1", c.HiddenSize, d*v.DownsampleRatio*v.DownsampleRatio)
	biased("aligner.w2", c.HiddenSize, c.HiddenSize)
	for _, name := range []string{"image_start", "image_end", "image_newline"} {
		b.add(part, name, BF16, c.HiddenSize)
	}
}
