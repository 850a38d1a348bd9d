package model

import (
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/core/model/engram"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// TokenMap is the name under which the weight source offers the Engram token map, I32 [vocabulary].
const TokenMap = "engram.token_map"

// v41 builds the V4.1 backbone: delayed mHC, CSA2 attention over shared caches, Engram, MoE (spec model 3 to 6).
func (b *builder) v41() error {
	c := b.cfg
	var layout *engram.Layout
	if len(c.EngramLayerIDs) > 0 {
		var err error
		if layout, err = engram.NewLayout(c.EngramParams()); err != nil {
			return err
		}
	}
	sel, cand := map[int]ref{}, none // published by index sources
	h, pre := b.start(), none
	for layer := range c.NumHiddenLayers {
		b.label = fmt.Sprintf("layers.%d.", layer)
		if k := c.EngramIndex(layer); k >= 0 {
			h = b.engram(h, &layout.Layers[k])
		}
		aPre, post, comb := b.mix("attn", h)
		x := b.collapse("attn", h, pre)
		y := b.csa2(layer, x, sel, &cand)
		h = b.expand("attn", y, h, post, comb)
		fPre, post, comb := b.mix("ffn", h)
		x = b.collapse("ffn", h, aPre)
		y = b.moe(x, false)
		h = b.expand("ffn", y, h, post, comb)
		pre = fPre
	}
	b.finish(h, pre)
	return nil
}

// csa2 is the attention of one layer: window plus, for ratio > 0, the entries that the layer's index source selected (spec model 4).
func (b *builder) csa2(layer int, x ref, sel map[int]ref, cand *ref) ref {
	c, geo := b.cfg, b.Geometry
	ratio := c.Ratio(layer)
	freq := b.floats(fmt.Sprintf("freq.%d", min(ratio, 1)), c.RopeSpeeds(ratio))
	qr, q := b.queries(x, freq)
	rec := b.window(x, freq, geo.Rings[layer])
	if ratio == 0 {
		return b.attend(layer, q, rec, none, none, freq, false)
	}
	source := c.KVSource(layer)
	main := b.region(program.Cache, fmt.Sprintf("kv.%d", source), geo.Main[source])
	index := b.region(program.Cache, fmt.Sprintf("index.%d", source), geo.Index[source])
	if source == layer {
		b.publish(layer, x, freq, main, index)
	}
	if c.OwnsIndex(layer) {
		sel[layer] = b.selectRows(layer, x, qr, freq, index, cand)
	}
	return b.attend(layer, q, rec, sel[c.IndexSource(layer)], main, freq, false)
}

// publish writes the compressed KV and index keys that this layer owns (spec model 4.5).
func (b *builder) publish(layer int, x, freq, main, index ref) {
	c := b.cfg
	d, ratio := c.HeadDim, c.Ratio(layer)
	k, s, tail := none, none, none
	if ratio == 1 {
		k = b.plain("attn.compressor.wkv", x, d, c.HiddenSize, b.bf16("attn.compressor.k", d))
	} else {
		k = b.plain("attn.compressor.wkv", x, d, c.HiddenSize, b.acc("attn.compressor.k", d))
		s = b.plain("attn.compressor.wgate", x, d, c.HiddenSize, b.acc("attn.compressor.s", d))
		tail = b.region(program.Tail, fmt.Sprintf("tail.%d", layer), b.Geometry.Tails[layer])
	}
	lat := b.bf16("attn.latent", d)
	b.op(program.Compress, "attn.compressor", attrs{"ratio": float64(ratio), "eps": c.RMSNormEps}, operand{"k", k}, operand{"s", s},
		operand{"norm", b.vector(b.label+"attn.compressor.norm.weight", d)}, operand{"freq", freq}, operand{"tail", tail}, operand{"cache", main}, operand{"lat", lat})
	ik := b.plain("attn.indexer.wk", lat, c.IndexHeadDim, d, b.bf16("attn.indexer.k_raw", c.IndexHeadDim))
	ik = b.norm("attn.indexer.k_norm", ik, c.IndexHeadDim, b.bf16("attn.indexer.k", c.IndexHeadDim))
	b.op(program.IndexKey, "attn.indexer.key", nil, operand{"k", ik}, operand{"freq", freq}, operand{"cache", index})
}

// selectRows runs the indexer of a layer (spec model 4.6) and updates the candidate blocks where the layer is their source.
func (b *builder) selectRows(layer int, x, qr, freq, index ref, cand *ref) ref {
	c := b.cfg
	heads, d := c.IndexNHeads, c.IndexHeadDim
	iq := b.fp8("attn.indexer.wq_b", qr, heads*d, c.QLoraRank, b.bf16("attn.indexer.q_raw", heads, d))
	iq = b.rope("attn.indexer.q_rope", iq, freq, 0, b.bf16("attn.indexer.q_rot", heads, d))
	if c.V4() {
		spread := b.bf16("attn.indexer.q_spread", heads, d)
		b.op(program.Hadamard, "attn.indexer.hadamard", nil, operand{"x", iq}, operand{"y", spread})
		iq = spread
	}
	q := b.bf16("attn.indexer.q", heads, d)
	b.op(program.Quantize, "attn.indexer.q_quantize", attrs{"format": abi.RecF4E8x32}, operand{"x", iq}, operand{"y", q})
	w := b.plain("attn.indexer.weights_proj", x, heads, c.HiddenSize, b.bf16("attn.indexer.weights", heads))
	sel := b.temp("attn.selected", abi.I32, program.Rows, c.IndexTopK)
	a := attrs{"top_k": float64(c.IndexTopK), "mode": abi.ScoreF32, "scale": math.Pow(float64(d), -0.5) * math.Pow(float64(heads), -0.5)}
	if b.production {
		a["mode"] = abi.ScoreBF16
	}
	from, to := none, none
	if !c.V4() && c.CandidateSourceLayerID >= 0 {
		a["cand_block"] = float64(c.CandidateBlockSize)
		switch {
		case layer == c.CandidateSourceLayerID:
			to = b.temp("attn.candidates", abi.I32, program.Rows, c.CandidateTopKBlocks)
			*cand = to
		case c.CandidateFiltered(layer):
			from = *cand
		}
	}
	b.op(program.IndexSelect, "attn.indexer.select", a, operand{"q", q}, operand{"w", w}, operand{"cache", index}, operand{"cand_in", from}, operand{"cand_out", to}, operand{"sel", sel})
	return sel
}

// engram injects the n-gram memory into the streams (spec model 6).
func (b *builder) engram(h ref, l *engram.Layer) ref {
	c := b.cfg
	hc, d, cols, dim := c.HCMult, c.HiddenSize, len(l.Primes), c.EngramHeadDim
	ids := b.temp("engram.ids", abi.I32, program.Rows, cols)
	b.op(program.EngramHash, "engram.hash", attrs{"heads": float64(c.EngramNHeads), "pad_id": float64(c.EngramPadTokenID)},
		operand{"map", b.matrix(TokenMap, abi.WI32, c.VocabSize, 1)}, operand{"prime", b.ints(b.label+"engram.primes", l.Primes)},
		operand{"mult", b.ints(b.label+"engram.multipliers", l.Multipliers)}, operand{"ids", ids})
	rows := b.bf16("engram.rows", cols*dim)
	b.op(program.GatherRows, "engram.gather", nil, operand{"w", b.matrix(b.label+"engram.embed.weight", abi.WFP8Row, int(l.Rows), dim)}, operand{"ids", ids}, operand{"y", rows})
	kv := b.fp8("engram.wkv", rows, (hc+1)*d, cols*dim, b.bf16("engram.kv", (hc+1)*d))
	out, gate := b.bf16("engram.h", hc, d), b.acc("engram.gate", hc)
	b.op(program.EngramMix, "engram.mix", attrs{"eps": c.RMSNormEps}, operand{"h", h}, operand{"kv", kv}, operand{"q_weight", b.vector(b.label+"engram.q_weight", hc, d)},
		operand{"k_weight", b.vector(b.label+"engram.k_weight", hc, d)}, operand{"out", out}, operand{"gate", gate})
	return out
}
