package model

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// v4 builds the V4 backbone (spec model appendix A): each sublayer uses its own mHC coefficients, every layer with ratio > 0 owns its compressor, ratio-4
// layers own an indexer with a compressor of its own, the other ratios attend to all entries, the first layers route by token id, and a hyper head ends it.
func (b *builder) v4() error {
	c := b.cfg
	h := b.start()
	for layer := range c.NumHiddenLayers {
		b.label = fmt.Sprintf("layers.%d.", layer)
		pre, post, comb := b.mix("attn", h)
		x := b.collapse("attn", h, pre)
		y := b.v4Attention(layer, x)
		h = b.expand("attn", y, h, post, comb)
		pre, post, comb = b.mix("ffn", h)
		x = b.collapse("ffn", h, pre)
		y = b.moe(x, c.HashRouted(layer))
		h = b.expand("ffn", y, h, post, comb)
	}
	b.finish(h, none)
	return nil
}

func (b *builder) v4Attention(layer int, x ref) ref {
	c, geo := b.cfg, b.Geometry
	ratio := c.Ratio(layer)
	freq := b.floats(fmt.Sprintf("freq.%d", min(ratio, 1)), c.RopeSpeeds(ratio))
	qr, q := b.queries(x, freq)
	rec := b.window(x, freq, geo.Rings[layer])
	if ratio == 0 {
		return b.attend(layer, q, rec, none, none, freq, false)
	}
	main := b.region(program.Cache, fmt.Sprintf("kv.%d", layer), geo.Main[layer])
	b.v4Compress("attn.compressor", ratio, c.HeadDim, x, freq, b.region(program.Tail, fmt.Sprintf("tail.%d", layer), geo.Tails[layer]), main)
	if !c.OwnsIndex(layer) {
		return b.attend(layer, q, rec, none, main, freq, true)
	}
	index := b.region(program.Cache, fmt.Sprintf("index.%d", layer), geo.Index[layer])
	lat := b.v4Compress("attn.indexer.compressor", ratio, c.IndexHeadDim, x, none, b.region(program.Tail, fmt.Sprintf("index_tail.%d", layer), geo.IndexTails[layer]), none)
	b.op(program.IndexKey, "attn.indexer.key", attrs{"hadamard": 1}, operand{"k", lat}, operand{"freq", freq}, operand{"cache", index})
	unused := none
	sel := b.selectRows(layer, x, qr, freq, index, &unused)
	return b.attend(layer, q, rec, sel, main, freq, false)
}

// v4Compress pools groups with an additive position term; ratio 4 overlaps with the previous group.
func (b *builder) v4Compress(name string, ratio, dim int, x, freq, tail, cache ref) ref {
	c := b.cfg
	width, overlap := dim, ratio == config.V4IndexRatio
	if overlap {
		width = 2 * dim
	}
	k := b.plain(name+".wkv", x, width, c.HiddenSize, b.acc(name+".k", width))
	s := b.plain(name+".wgate", x, width, c.HiddenSize, b.acc(name+".s", width))
	lat := b.bf16(name+".latent", dim)
	b.op(program.Compress, name, attrs{"ratio": float64(ratio), "overlap": flag(overlap), "eps": c.RMSNormEps}, operand{"k", k}, operand{"s", s},
		operand{"ape", b.vector(b.label+name+".ape", ratio, width)}, operand{"norm", b.vector(b.label+name+".norm.weight", dim)}, operand{"freq", freq},
		operand{"tail", tail}, operand{"cache", cache}, operand{"lat", lat})
	return lat
}
