package model

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// GranuleTokens is the number of tokens in one KV granule (spec model 9.2, serving 3.2).
const GranuleTokens = 128

// Options choose the numerics and the state layout of a graph.
type Options struct {
	Numerics string // "reference" (default) or "production", spec model 0.4
	Acc      uint32 // abi.F32 (default) or abi.F64: accumulation tensors
	Drafts   int    // drafts verified per step at most; 0 = the model's block size
}

// Geometry is the layout of everything a sequence leaves behind: its private state slot and its share of the KV granules. Two engines may exchange state
// only if LayoutID and NumericsID agree. All sizes in bytes, all row counts in tokens unless they say entries.
type Geometry struct {
	Window    int // W: keys a row sees locally, itself included
	Backtrack int // B = drafts + 1: tokens that may be taken back
	KeptRows  int // K >= W + B: prompt rows the decoder half must serve under bounded replay
	RingRows  int // W + B rows of every window ring
	NHist     int // tokens before a row that Engram reads

	SlotBytes      int64 // unit stride of the state pool
	GranulePayload int64 // bytes of a granule that carry data
	GranuleStride  int64 // unit stride of the KV pool: a multiple of lcm(128, main record)

	Rings      []program.RegionRef       // per backbone layer, then per draft stage
	Tails      map[int]program.RegionRef // compressor tails by owner layer
	IndexTails map[int]program.RegionRef // V4: tails of the indexers' own compressors
	Main       map[int]program.RegionRef // compressed KV by owner layer
	Index      map[int]program.RegionRef // index keys by owner layer

	LayoutID   string // names record formats and geometry: part of the KV identity
	NumericsID string // profile and accumulation: part of the KV identity
}

// KVBytesPerToken is the shareable cache a token leaves behind, without padding.
func (g *Geometry) KVBytesPerToken() float64 { return float64(g.GranulePayload) / GranuleTokens }

// NewGeometry derives the layout of a model.
func NewGeometry(cfg *config.Config, opt Options) (*Geometry, error) {
	opt, err := opt.withDefaults(cfg)
	if err != nil {
		return nil, err
	}
	g := &Geometry{
		Window: cfg.SlidingWindow, Backtrack: opt.Drafts + 1,
		Tails: map[int]program.RegionRef{}, IndexTails: map[int]program.RegionRef{},
		Main: map[int]program.RegionRef{}, Index: map[int]program.RegionRef{},
	}
	g.RingRows = g.Window + g.Backtrack
	g.KeptRows = g.Window + max(12, g.Backtrack)
	if len(cfg.EngramLayerIDs) > 0 {
		g.NHist = cfg.EngramMaxNgramSize - 1
	}
	d, r := cfg.HeadDim, cfg.QKRopeHeadDim

	windowFormat, mainFormat := uint32(abi.RecA8x32), uint32(abi.RecF4E4x16)
	if cfg.V4() {
		windowFormat, mainFormat = abi.RecA8x64Rope, abi.RecA8x64Rope
	}
	record := abi.RecordBytes(windowFormat, d, r)
	var off int64
	for range cfg.NumHiddenLayers + cfg.DraftStages() {
		g.Rings = append(g.Rings, program.RegionRef{Pool: program.StatePool, Format: windowFormat, Offset: off, Rows: g.RingRows, RowBytes: record, Ratio: 1, Dim: d, Rope: r})
		off += int64(g.RingRows) * int64(record)
	}
	off = up(off, 64)
	acc := int64(abi.ElemBytes(opt.Acc))
	tail := func(ratio, dim int) program.RegionRef {
		rows, width := ratio+g.Backtrack-1, 2*dim
		if cfg.V4() && ratio == config.V4IndexRatio {
			rows, width = 2*ratio+g.Backtrack-1, 4*dim
		}
		t := program.RegionRef{Pool: program.StatePool, Format: abi.RecNone, Offset: off, Rows: rows, RowBytes: width * int(acc), Ratio: ratio, Dim: dim}
		off = up(off+int64(t.Rows)*int64(t.RowBytes), 64)
		return t
	}

	var granule int64
	region := func(format uint32, ratio, dim, rope int, planar bool) program.RegionRef {
		bytes := abi.RecordBytes(format, dim, rope)
		c := program.RegionRef{Pool: program.KVPool, Format: format, Offset: granule, Rows: GranuleTokens / ratio, RowBytes: bytes, Ratio: ratio, Dim: dim, Rope: rope, Planar: planar}
		granule = up(granule+int64(c.Rows)*int64(bytes), 32)
		return c
	}
	for layer := range cfg.NumHiddenLayers {
		if !cfg.OwnsKV(layer) {
			continue
		}
		ratio := cfg.Ratio(layer)
		if ratio > GranuleTokens || GranuleTokens%ratio != 0 {
			return nil, fmt.Errorf("layer %d: compression ratio %d does not divide a granule of %d tokens", layer, ratio, GranuleTokens)
		}
		if ratio > 1 {
			g.Tails[layer] = tail(ratio, d)
		}
		if owns := !cfg.V4() || cfg.OwnsIndex(layer); owns {
			if cfg.V4() {
				g.IndexTails[layer] = tail(ratio, cfg.IndexHeadDim)
			}
			g.Index[layer] = region(abi.RecF4E8x32, ratio, cfg.IndexHeadDim, r, true)
		}
		g.Main[layer] = region(mainFormat, ratio, d, r, false)
	}
	g.SlotBytes = up(off, lcm(int64(record), 32))
	g.GranulePayload = granule
	g.GranuleStride = up(granule, lcm(128, int64(abi.RecordBytes(mainFormat, d, r))))
	g.LayoutID = fmt.Sprintf("v1;window=%d/%d;main=%d;index=%d;ring=%d;granule=%d", windowFormat, d, mainFormat, cfg.IndexHeadDim, g.RingRows, g.GranuleStride)
	g.NumericsID = fmt.Sprintf("%s;acc=%d", opt.Numerics, opt.Acc)
	return g, nil
}

func (o Options) withDefaults(cfg *config.Config) (Options, error) {
	switch o.Numerics {
	case "":
		o.Numerics = "reference"
	case "reference":
	case "production":
		if cfg.V4() {
			return o, fmt.Errorf("numerics %q: the production rounding points are defined for V4.1 only, this is %s; use \"reference\"", o.Numerics, cfg.Architecture)
		}
	default:
		return o, fmt.Errorf("numerics %q: want \"reference\" or \"production\"", o.Numerics)
	}
	if o.Acc == 0 {
		o.Acc = abi.F32
	}
	if o.Acc != abi.F32 && o.Acc != abi.F64 {
		return o, fmt.Errorf("accumulation type %d: want F32 or F64", o.Acc)
	}
	if o.Drafts == 0 {
		o.Drafts = max(cfg.DSparkBlockSize, 1)
	}
	if o.Drafts < 0 || o.Drafts > 64 {
		return o, fmt.Errorf("drafts %d: want 0 to 64", o.Drafts)
	}
	return o, nil
}

func up(n, align int64) int64 { return (n + align - 1) / align * align }

func lcm(a, b int64) int64 {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}
