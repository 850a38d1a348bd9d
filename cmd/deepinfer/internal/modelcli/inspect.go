package modelcli

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/model/checkpoint"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// ExpertSkew is the share of routed rows, relative to the mean, that the busiest device of an expert-parallel group must
// have room for.
const ExpertSkew = 1.8

// FitOptions say for which devices Inspect computes what fits.
type FitOptions struct {
	Memory         int64 // bytes of one device; 0: no fit is computed
	Devices        int   // that share the weights evenly. 1 or more
	ChunkRows      int   // rows of the largest prefill chunk. 1 to 65536
	Sequences      int   // running at the same time. 1 to 65536
	TablesOnDevice bool  // Engram tables in device memory; otherwise in host memory
}

// Validate returns all problems of the options at once.
func (o FitOptions) Validate() error {
	var problems []error
	within := func(name string, n, low, high int) {
		if n < low || n > high {
			problems = append(problems, fmt.Errorf("%s: found %d, want %d to %d", name, n, low, high))
		}
	}
	within("--devices", o.Devices, 1, 1<<16)
	within("--chunk", o.ChunkRows, 1, 1<<16)
	within("--sequences", o.Sequences, 1, 1<<16)
	return errors.Join(problems...)
}

// Report is what `model inspect` shows. Sizes are in bytes.
type Report struct {
	Dir          string       `json:"dir"`
	Architecture string       `json:"architecture"`
	Shape        Shape        `json:"shape"`
	Weights      Weights      `json:"weights"`
	Parameters   Parameters   `json:"parameters"`
	Parts        []PartSize   `json:"parts"`
	Formats      []FormatSize `json:"formats"`
	Cache        Cache        `json:"cache"`
	State        State        `json:"state"`
	Activation   Activation   `json:"activation"`
	Fit          *Fit         `json:"fit,omitempty"`
}

// Shape lists the dimensions a reader looks for first.
type Shape struct {
	Layers          int  `json:"layers"`
	DecoderStart    int  `json:"decoder_start"`
	HiddenSize      int  `json:"hidden_size"`
	Heads           int  `json:"heads"`
	HeadDim         int  `json:"head_dim"`
	Window          int  `json:"sliding_window"`
	Experts         int  `json:"routed_experts"`
	ExpertsPerToken int  `json:"experts_per_token"`
	DraftStages     int  `json:"draft_stages"`
	DraftBlock      int  `json:"draft_block"`
	EngramLayers    int  `json:"engram_layers"`
	VocabSize       int  `json:"vocab_size"`
	MaxContext      int  `json:"max_context"`
	Vision          bool `json:"vision"`
	MaxImageTokens  int  `json:"max_image_tokens,omitempty"`
}

// Weights compares the inventory with what lies in the directory.
type Weights struct {
	Found    bool     `json:"found"`
	Tensors  int      `json:"tensors"` // that the configuration calls for
	Bytes    int64    `json:"bytes"`
	Shards   int      `json:"shards"`
	Problems []string `json:"problems,omitempty"` // names, types and shapes; values are the business of verify
}

// Parameters counts model parameters. Active counts those that multiply one token.
type Parameters struct {
	Total         int64 `json:"total"`
	Backbone      int64 `json:"backbone"`
	EngramTables  int64 `json:"engram_tables"`
	Draft         int64 `json:"draft"`
	Vision        int64 `json:"vision"`
	ActiveDecode  int64 `json:"active_decode"`
	ActivePrefill int64 `json:"active_prefill"` // with the decoder half limited to the end of the prompt, where the model allows it
}

// PartSize is one line of the account by part.
type PartSize struct {
	Part    string `json:"part"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
	Params  int64  `json:"parameters"`
}

// FormatSize is one line of the account by element type.
type FormatSize struct {
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
	Bytes   int64  `json:"bytes"`
}

// Cache is the shareable KV cache.
type Cache struct {
	BytesPerToken float64       `json:"bytes_per_token"`
	GranuleTokens int           `json:"granule_tokens"`
	GranuleBytes  int64         `json:"granule_bytes"` // stride, with padding
	Layers        []CacheLayer  `json:"layers"`
	Others        []OtherFormat `json:"other_formats,omitempty"` // for comparison with other engines; not used here
}

// CacheLayer is one layer that owns a cache.
type CacheLayer struct {
	Layer           int     `json:"layer"`
	EntriesPerToken float64 `json:"entries_per_token"`
	MainBytes       int     `json:"main_bytes"`
	IndexBytes      int     `json:"index_bytes"` // 0: the layer has no index
}

// OtherFormat is the cache size under record formats of other engines.
type OtherFormat struct {
	Main          string  `json:"main"`
	Index         string  `json:"index"`
	BytesPerToken float64 `json:"bytes_per_token"`
}

// State is what a running sequence keeps beside the cache.
type State struct {
	BytesPerSequence int64 `json:"bytes_per_sequence"`
	Rings            int   `json:"rings"`
	RingRows         int   `json:"ring_rows"`
	RingBytes        int64 `json:"ring_bytes"`
	TailBytes        int64 `json:"tail_bytes"`
}

// Activation is the workspace of one step on one device.
type Activation struct {
	ChunkRows int     `json:"chunk_rows"`
	LogitRows int     `json:"logit_rows"`
	Balanced  int64   `json:"balanced"`
	Skewed    int64   `json:"skewed"` // upper bound when a device of an expert-parallel group gets Skew times its share of routed rows
	Skew      float64 `json:"skew"`
}

// Fit says what fits on the devices, before the overhead of driver and runtime.
type Fit struct {
	Devices        int    `json:"devices"`
	Memory         int64  `json:"memory_per_device"`
	Weights        int64  `json:"weights"` // on all devices together
	HostTables     int64  `json:"host_tables"`
	Balanced       Budget `json:"balanced"`
	Skewed         Budget `json:"skewed"`
	DevicesAtLeast int    `json:"devices_at_least"` // for weights and skewed activations alone; 0: no number of such devices is enough
}

// Budget is what is left for caches under one assumption about the experts.
type Budget struct {
	Fits      bool           `json:"fits"`
	Left      int64          `json:"left"`      // negative: missing
	Sequences int            `json:"sequences"` // whose private state was taken from Left
	KVTokens  int64          `json:"kv_tokens"` // that fit beside those sequences
	AtContext []ContextCount `json:"at_context"`
}

// ContextCount is the number of sequences of one length that fit.
type ContextCount struct {
	Context   int   `json:"context"`
	Sequences int64 `json:"sequences"`
}

// Inspect describes the model in dir.
func Inspect(dir string, opt FitOptions) (*Report, error) {
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	r := &Report{Dir: dir, Architecture: cfg.Architecture, Shape: shape(cfg)}
	items := checkpoint.Inventory(cfg)
	r.account(cfg, items)
	if err := r.weights(dir, cfg); err != nil {
		return nil, err
	}
	graph, err := model.NewGraph(cfg, model.Options{})
	if err != nil {
		return nil, err
	}
	r.cache(cfg, graph.Geometry)
	if err := r.activation(graph, opt); err != nil {
		return nil, err
	}
	if opt.Memory > 0 {
		r.fit(cfg, graph.Geometry, opt)
	}
	return r, nil
}

func shape(cfg *config.Config) Shape {
	s := Shape{
		Layers: cfg.NumHiddenLayers, DecoderStart: cfg.DecoderStart(), HiddenSize: cfg.HiddenSize, Heads: cfg.NumAttentionHeads, HeadDim: cfg.HeadDim,
		Window: cfg.SlidingWindow, Experts: cfg.NRoutedExperts, ExpertsPerToken: cfg.NumExpertsPerTok, DraftStages: cfg.DraftStages(),
		DraftBlock: cfg.DSparkBlockSize, EngramLayers: len(cfg.EngramLayerIDs), VocabSize: cfg.VocabSize, MaxContext: cfg.MaxPositionEmbeddings,
	}
	if cfg.Vision != nil {
		s.Vision, s.MaxImageTokens = true, cfg.Vision.MaxImageTokens
	}
	return s
}

// account sums bytes and parameters by part and by element type.
func (r *Report) account(cfg *config.Config, items []checkpoint.Expected) {
	parts := map[checkpoint.Part]*PartSize{}
	formats := map[checkpoint.DType]*FormatSize{}
	p := &r.Parameters
	for _, e := range items {
		if parts[e.Part] == nil {
			parts[e.Part] = &PartSize{Part: string(e.Part)}
		}
		if formats[e.DType] == nil {
			formats[e.DType] = &FormatSize{Format: formatName(e.DType)}
		}
		parts[e.Part].Tensors++
		parts[e.Part].Bytes += e.Bytes()
		parts[e.Part].Params += e.Params
		formats[e.DType].Tensors++
		formats[e.DType].Bytes += e.Bytes()
		r.Weights.Tensors++
		r.Weights.Bytes += e.Bytes()
		p.Total += e.Params
		switch {
		case isTable(e):
			p.EngramTables += e.Params
		case e.Part == checkpoint.PartDraft || e.Part == checkpoint.PartDraftExperts:
			p.Draft += e.Params
		case e.Part == checkpoint.PartVision:
			p.Vision += e.Params
		default:
			p.Backbone += e.Params
			p.active(cfg, e)
		}
	}
	for _, part := range checkpoint.Parts() {
		if s := parts[part]; s != nil {
			r.Parts = append(r.Parts, *s)
		}
	}
	for _, d := range []checkpoint.DType{checkpoint.I8, checkpoint.F8E4M3, checkpoint.F8E8M0, checkpoint.BF16, checkpoint.F32, checkpoint.I64} {
		if s := formats[d]; s != nil {
			r.Formats = append(r.Formats, *s)
		}
	}
}

func isTable(e checkpoint.Expected) bool {
	return e.Part == checkpoint.PartEngram && strings.Contains(e.Name, ".engram.embed.")
}

func formatName(d checkpoint.DType) string {
	switch d {
	case checkpoint.I8:
		return "FP4 E2M1, packed"
	case checkpoint.F8E4M3:
		return "FP8 E4M3"
	case checkpoint.F8E8M0:
		return "UE8M0 scales"
	}
	return string(d)
}

// active adds the parameters of a backbone tensor that multiply one token. In a prefill where only the end of the prompt runs
// through the decoder half, a token passes the layers before it and what the first decoder layer needs to write its cache.
func (p *Parameters) active(cfg *config.Config, e checkpoint.Expected) {
	if !e.Linear {
		return
	}
	n := e.Params
	if e.Part == checkpoint.PartRouted {
		// Summed per expert, so the share must not round: experts of a layer are alike.
		if expertNumber(e.Name) >= cfg.NumExpertsPerTok {
			return
		}
	}
	p.ActiveDecode += n
	start := cfg.DecoderStart()
	switch {
	case e.Layer < 0: // head
	case e.Layer < start:
		p.ActivePrefill += n
	case e.Layer == start:
		for _, part := range []string{".attn.wkv.", ".attn.compressor.", ".attn.indexer.wk."} {
			if strings.Contains(e.Name, part) {
				p.ActivePrefill += n
			}
		}
	}
}

func expertNumber(name string) int {
	_, rest, _ := strings.Cut(name, ".experts.")
	n := 0
	for _, c := range rest {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// weights compares names, types and shapes with the files; a directory without safetensors files is fine.
func (r *Report) weights(dir string, cfg *config.Config) error {
	ck, problems, err := checkpoint.Scan(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer ck.Close()
	r.Weights.Found, r.Weights.Shards = true, len(ck.Shards())
	problems = append(problems, unexplained(problems, structure(ck, cfg))...)
	for _, p := range problems {
		r.Weights.Problems = append(r.Weights.Problems, p.Error())
	}
	return nil
}

func (r *Report) cache(cfg *config.Config, g *model.Geometry) {
	c := &r.Cache
	c.BytesPerToken, c.GranuleTokens, c.GranuleBytes = g.KVBytesPerToken(), model.GranuleTokens, g.GranuleStride
	entries := 0.0
	for layer := range cfg.NumHiddenLayers {
		main, ok := g.Main[layer]
		if !ok {
			continue
		}
		l := CacheLayer{Layer: layer, EntriesPerToken: 1 / float64(main.Ratio), MainBytes: main.RowBytes}
		if index, ok := g.Index[layer]; ok {
			l.IndexBytes = index.RowBytes
		}
		entries += l.EntriesPerToken
		c.Layers = append(c.Layers, l)
	}
	if !cfg.V4() {
		d, i := float64(cfg.HeadDim), float64(cfg.IndexHeadDim)
		for _, o := range []struct {
			main, index string
			bytes       float64
		}{
			{"MXFP8", "FP4", d + d/32 + i/2 + i/32},
			{"MXFP8", "FP8", d + d/32 + i + 4},
			{"BF16", "BF16", 2*d + 2*i},
		} {
			c.Others = append(c.Others, OtherFormat{o.main, o.index, entries * o.bytes})
		}
	}
	s := &r.State
	s.BytesPerSequence, s.Rings, s.RingRows = g.SlotBytes, len(g.Rings), g.RingRows
	for _, ring := range g.Rings {
		s.RingBytes += int64(ring.Rows) * int64(ring.RowBytes)
	}
	for _, tails := range []map[int]program.RegionRef{g.Tails, g.IndexTails} {
		for _, t := range tails {
			s.TailBytes += int64(t.Rows) * int64(t.RowBytes)
		}
	}
}

// activation lowers the graph for the chunk and reads the workspace off the memory plan. Skewed routing enlarges the arrays
// with a row for each routed (token, expert) pair; the bound adds their growth at the op where most of them are alive.
func (r *Report) activation(graph *model.Graph, opt FitOptions) error {
	bucket := program.Bucket{Rows: opt.ChunkRows, Seqs: min(opt.Sequences, opt.ChunkRows), Logits: min(opt.Sequences, opt.ChunkRows)}
	p, err := plan.Lower(graph, bucket)
	if err != nil {
		return err
	}
	a := &r.Activation
	a.ChunkRows, a.LogitRows, a.Skew, a.Balanced = bucket.Rows, bucket.Logits, ExpertSkew, p.Workspace
	a.Skewed = a.Balanced + int64((ExpertSkew-1)*float64(routedPeak(p)))
	return nil
}

// routedPeak returns the most bytes of per-pair arrays alive at one op. Those are the only arrays with several rows a token.
func routedPeak(p *program.Program) int64 {
	change := make([]int64, len(p.Ops)+1)
	first, last := make([]int, len(p.Buffers)), make([]int, len(p.Buffers))
	for i := range first {
		first[i] = -1
	}
	for i := range p.Ops {
		for _, q := range p.Ops[i].Operands {
			if first[q.Buf] < 0 {
				first[q.Buf] = i
			}
			last[q.Buf] = i
		}
	}
	for i := range p.Buffers {
		b := &p.Buffers[i]
		if b.Kind != program.Temp || b.Domain != program.Rows || b.Mul <= 1 || first[i] < 0 {
			continue
		}
		n := b.Bytes(p.Bucket.Rows)
		change[first[i]] += n
		change[last[i]+1] -= n
	}
	var alive, peak int64
	for _, d := range change {
		alive += d
		peak = max(peak, alive)
	}
	return peak
}

func (r *Report) fit(cfg *config.Config, g *model.Geometry, opt FitOptions) {
	f := &Fit{Devices: opt.Devices, Memory: opt.Memory, Weights: r.Weights.Bytes}
	if !opt.TablesOnDevice {
		for _, e := range checkpoint.Inventory(cfg) {
			if isTable(e) {
				f.HostTables += e.Bytes()
			}
		}
		f.Weights -= f.HostTables
	}
	budget := func(activation int64) Budget {
		b := Budget{Left: int64(opt.Devices)*(opt.Memory-activation) - f.Weights, Sequences: opt.Sequences}
		room := b.Left - int64(opt.Sequences)*g.SlotBytes
		b.Fits = room >= 0
		if b.Fits {
			b.KVTokens = room / g.GranuleStride * model.GranuleTokens
		}
		for _, context := range contexts(cfg.MaxPositionEmbeddings) {
			granules := int64(context+model.GranuleTokens-1) / model.GranuleTokens
			b.AtContext = append(b.AtContext, ContextCount{context, max(b.Left, 0) / (g.SlotBytes + granules*g.GranuleStride)})
		}
		return b
	}
	f.Balanced, f.Skewed = budget(r.Activation.Balanced), budget(r.Activation.Skewed)
	if room := opt.Memory - r.Activation.Skewed; room > 0 {
		f.DevicesAtLeast = int((f.Weights + room - 1) / room)
	}
	r.Fit = f
}

// contexts are the lengths for which sequences are counted: 8 Ki, 128 Ki, and the model's limit.
func contexts(limit int) []int {
	var out []int
	for _, n := range []int{8 << 10, 128 << 10} {
		if n < limit {
			out = append(out, n)
		}
	}
	return append(out, limit)
}
