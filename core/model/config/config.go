package config

import (
	"math"

	"github.com/deepinfer-go/deepinfer/core/model/engram"
)

// Architecture names as config.json spells them.
const (
	ArchV41 = "DeepseekV41ForCausalLM"
	ArchV4  = "DeepseekV4ForCausalLM"
)

// Config is a validated model configuration. Fields carry the names of the nested config.json keys; counts are plain
// numbers, ids are token ids, layer lists hold layer numbers from 0.
type Config struct {
	Architecture string // ArchV41 or ArchV4

	VocabSize             int
	HiddenSize            int
	NumHiddenLayers       int // backbone layers, without draft stages
	NumAttentionHeads     int
	HeadDim               int // dims of a head; the shared KV latent has the same width
	QKRopeHeadDim         int // the last dims of a head that rotate
	QLoraRank             int
	OGroups               int
	OLoraRank             int
	SlidingWindow         int     // window in tokens, the current one included
	RMSNormEps            float64 // every text norm, mHC and Engram statistics
	SwigluLimit           float64
	MaxPositionEmbeddings int // context limit in tokens

	RopeTheta         float64 // layers with ratio 0 and draft stages
	CompressRopeTheta float64 // layers with ratio > 0
	Yarn              Yarn    // applied to layers with ratio > 0 only

	CompressRatios         []int // backbone layers, then draft stages (always 0)
	KVSourceLayerIDs       []int // V4.1: layers that own a compressor and a global cache; nil on V4
	IndexSourceLayerIDs    []int // V4.1: layers that run an indexer; nil on V4
	CandidateSourceLayerID int   // V4.1: producer of candidate blocks; -1 is off
	CandidateTopKBlocks    int
	CandidateBlockSize     int
	IndexNHeads            int
	IndexHeadDim           int
	IndexTopK              int

	NRoutedExperts      int
	NumExpertsPerTok    int
	MoEIntermediateSize int
	RoutedScalingFactor float64
	GateTemp            float64
	NumHashLayers       int // V4: first layers route by token id

	HCMult          int // residual streams
	HCSinkhornIters int
	HCEps           float64

	EngramLayerIDs            []int // empty: no Engram
	EngramNumEmbeddings       []int64
	EngramMaxNgramSize        int
	EngramVocabSize           int64
	EngramNHeads              int
	EngramHeadDim             int
	EngramPadTokenID          int
	EngramCompressedVocabSize int

	NumNextnPredictLayers  int // as configured; see DraftStages
	DSparkBlockSize        int
	DSparkNoiseTokenID     int
	DSparkTargetLayerIDs   []int // V4.1: layer inputs; V4: layer outputs
	DSparkMarkovRank       int
	DSparkNRoutedExperts   int // 0: as the backbone; see DraftExperts
	DSparkNumExpertsPerTok int // 0: as the backbone; see DraftTopK
	TokenizerCompatibility string
	BOSTokenID             int
	EOSTokenID             int   // the first of EOSTokenIDs
	EOSTokenIDs            []int // never empty
	PadTokenID             int
	ImageTokenID           int // -1: none configured
	WeightBlock            int // side of an FP8 weight tile: 32 on V4.1, 128 on V4
	Vision                 *Vision
	draftStages            int
}

// Yarn holds the rotary scaling of layers that read compressed entries. Factor 1 means no scaling.
type Yarn struct {
	Factor                        float64
	BetaFast                      float64
	BetaSlow                      float64
	OriginalMaxPositionEmbeddings int
}

// Vision is the vision tower. Sizes are in pixels where they describe the image and in tokens for MaxImageTokens.
type Vision struct {
	NumHiddenLayers   int
	HiddenSize        int
	NumAttentionHeads int
	IntermediateSize  int
	PatchSize         int
	RopeTheta         float64
	DownsampleRatio   int
	MaxImageTokens    int     // cost limit of one image, delimiters and newlines included
	MinPixels         int     // smaller images are scaled up to this area
	MaxWHRatio        float64 // 0: no limit
}

// V4 reports whether this is the V4 architecture, with per-layer compressors and same-sublayer mHC.
func (c *Config) V4() bool { return c.Architecture == ArchV4 }

// Ratio returns the compression ratio of a layer: on V4.1 of the shared cache it reads, on V4 of its own compressor. 0 means
// that it attends to its window alone; draft stages (layer >= NumHiddenLayers) give 0.
func (c *Config) Ratio(layer int) int {
	if layer < 0 || layer >= len(c.CompressRatios) {
		return 0
	}
	return c.CompressRatios[layer]
}

// KVSource returns the layer whose global cache the layer reads, or -1 if it reads none. On V4 that is the layer itself.
func (c *Config) KVSource(layer int) int {
	if c.Ratio(layer) == 0 {
		return -1
	}
	if c.V4() {
		return layer
	}
	return latest(c.KVSourceLayerIDs, layer)
}

// IndexSource returns the layer whose top-k selection the layer uses, or -1 if it selects nothing: it has ratio 0 or, on V4,
// attends to all its entries (every ratio but 4).
func (c *Config) IndexSource(layer int) int {
	switch ratio := c.Ratio(layer); {
	case ratio == 0:
		return -1
	case c.V4() && ratio == V4IndexRatio:
		return layer
	case c.V4():
		return -1
	}
	return latest(c.IndexSourceLayerIDs, layer)
}

// V4IndexRatio is the only ratio at which a V4 layer has an indexer and overlapping compression windows.
const V4IndexRatio = 4

// OwnsKV reports whether the layer has a compressor and writes a global cache.
func (c *Config) OwnsKV(layer int) bool { return layer >= 0 && c.KVSource(layer) == layer }

// OwnsIndex reports whether the layer runs an indexer of its own.
func (c *Config) OwnsIndex(layer int) bool { return layer >= 0 && c.IndexSource(layer) == layer }

// CandidateFiltered reports whether the layer's indexer considers only the blocks published by the candidate source.
func (c *Config) CandidateFiltered(layer int) bool {
	return c.CandidateSourceLayerID >= 0 && layer > c.CandidateSourceLayerID && c.OwnsIndex(layer)
}

// DecoderStart returns the first layer of the decoder half, the first with ratio 1, or NumHiddenLayers where there is none (V4).
func (c *Config) DecoderStart() int {
	if !c.V4() {
		for layer := range c.NumHiddenLayers {
			if c.Ratio(layer) == 1 {
				return layer
			}
		}
	}
	return c.NumHiddenLayers
}

// ActGroup returns the group size of the FP8 quantiser on linear inputs; it equals the weight tile.
func (c *Config) ActGroup() int { return c.WeightBlock }

// DraftStages returns the number of DSpark stages; 0 means no drafter. V4 configurations understate it: see Parse.
func (c *Config) DraftStages() int { return c.draftStages }

// DraftExperts returns the number of routed experts of a draft stage.
func (c *Config) DraftExperts() int {
	if c.DSparkNRoutedExperts > 0 {
		return c.DSparkNRoutedExperts
	}
	return c.NRoutedExperts
}

// DraftTopK returns the number of routed experts a token uses in a draft stage.
func (c *Config) DraftTopK() int {
	if c.DSparkNumExpertsPerTok > 0 {
		return c.DSparkNumExpertsPerTok
	}
	return c.NumExpertsPerTok
}

// EngramIndex returns the index of a layer in EngramLayerIDs, or -1.
func (c *Config) EngramIndex(layer int) int {
	for i, id := range c.EngramLayerIDs {
		if id == layer {
			return i
		}
	}
	return -1
}

// EngramParams returns what determines the hash geometry.
func (c *Config) EngramParams() engram.Params {
	return engram.Params{
		LayerIDs: c.EngramLayerIDs, MaxNgram: c.EngramMaxNgramSize, VocabSize: c.EngramVocabSize,
		Heads: c.EngramNHeads, CompressedVocab: c.EngramCompressedVocabSize,
	}
}

// EngramColumns returns the number of table rows a token looks up in one Engram layer.
func (c *Config) EngramColumns() int {
	if len(c.EngramLayerIDs) == 0 {
		return 0
	}
	return (c.EngramMaxNgramSize - 1) * c.EngramNHeads
}

// HashRouted reports whether the layer routes by token id (V4, first NumHashLayers layers).
func (c *Config) HashRouted(layer int) bool { return layer >= 0 && layer < c.NumHashLayers }

// RopeSpeeds returns the FP32 rotation speeds of the layers with the given ratio, QKRopeHeadDim/2 values: theta^(-2i/R), with YaRN for
// ratio > 0. The arithmetic is FP32 at every step, in the order that gives the official values bit for bit.
func (c *Config) RopeSpeeds(ratio int) []float32 {
	half := c.QKRopeHeadDim / 2
	out := make([]float32, half)
	theta := c.RopeTheta
	if ratio > 0 {
		theta = c.CompressRopeTheta
	}
	for i := range out {
		exponent := float32(2*i) / float32(c.QKRopeHeadDim)
		out[i] = 1 / float32(math.Pow(theta, float64(exponent)))
	}
	if ratio == 0 || c.Yarn.Factor == 1 {
		return out
	}
	dim := float64(c.QKRopeHeadDim)
	at := func(turns float64) float64 {
		return dim * math.Log(float64(c.Yarn.OriginalMaxPositionEmbeddings)/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	low := math.Max(math.Floor(at(c.Yarn.BetaFast)), 0)
	high := math.Min(math.Ceil(at(c.Yarn.BetaSlow)), dim-1)
	span := float32(math.Max(high-low, 1e-3))
	for i, f := range out {
		ramp := min(max((float32(i)-float32(low))/span, 0), 1)
		// The conversions keep the compiler from fusing multiply and add, which would round differently.
		out[i] = float32(f/float32(c.Yarn.Factor)*ramp) + float32(f*(1-ramp))
	}
	return out
}

func latest(ids []int, layer int) int {
	best := -1
	for _, id := range ids {
		if id <= layer {
			best = max(best, id)
		}
	}
	return best
}
