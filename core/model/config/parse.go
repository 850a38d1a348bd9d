package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path"
	"slices"

	"github.com/deepinfer-go/deepinfer/core/model/engram"
)

// maxFile bounds configuration files. The release's is 4 KB.
const maxFile = 16 << 20

// Load reads the configuration of the checkpoint directory dir: config.json or, where that is missing, inference/config.json.
// Errors of reading wrap the operating system's; errors of content are joined [Problem]s, all of them at once.
func Load(dir string) (*Config, error) { return LoadFS(os.DirFS(dir), dir) }

// LoadFS is Load on a file system; name names it in errors.
func LoadFS(files fs.FS, name string) (*Config, error) {
	file := "config.json"
	raw, err := readLimited(files, file)
	if errors.Is(err, fs.ErrNotExist) {
		if flat, flatErr := readLimited(files, "inference/config.json"); flatErr == nil {
			file, raw, err = "inference/config.json", flat, nil
		}
	}
	if err != nil {
		return nil, fmt.Errorf("read the model configuration of %s: %w", name, err)
	}
	cfg, err := Parse(raw)
	if err != nil {
		return nil, fmt.Errorf("%s:\n%w", path.Join(name, file), err)
	}
	return cfg, nil
}

func readLimited(files fs.FS, name string) ([]byte, error) {
	info, err := fs.Stat(files, name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes, more than the limit of %d", name, info.Size(), maxFile)
	}
	return fs.ReadFile(files, name)
}

// Parse reads one configuration document. It returns every problem at once (errors.Join of [Problem]s); a document of another
// architecture gives that one problem alone.
//
// V4 files understate the drafter: builds with DSpark say num_nextn_predict_layers 1 and have three stages. There the number of stages
// is the number of compress_ratios entries beyond the backbone if that is above 1, else num_nextn_predict_layers if that is above 1, else 3;
// a V4 file without dspark_target_layer_ids has no DSpark stage.
func Parse(raw []byte) (*Config, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, fmt.Errorf("parse model configuration: byte %d: %w", syntax.Offset, err)
		}
		return nil, fmt.Errorf("parse model configuration: want one JSON object: %w", err)
	}
	if top == nil {
		return nil, errors.New("parse model configuration: found null, want one JSON object")
	}
	d := &document{values: map[string]value{}}
	_, nested := top["text_config"]
	if nested {
		var text map[string]json.RawMessage
		if json.Unmarshal(top["text_config"], &text) != nil || text == nil {
			d.add("text_config", short(top["text_config"]), "an object")
		}
		d.merge("text_config.", text)
	}
	d.merge("", top)
	flat := false
	for name := range top {
		if _, ok := flatNames[name]; ok && name != "torch_dtype" {
			flat = true
		}
	}
	arch, ok := d.architecture(top, flat)
	if !ok {
		return nil, errors.Join(d.problems...)
	}
	c := &Config{Architecture: arch}
	d.fixed(c, flat)
	d.backbone(c)
	d.attention(c, flat)
	d.experts(c)
	d.engram(c)
	d.draft(c)
	d.tokens(c)
	d.quantization(c, flat)
	d.vision(c)
	if len(d.problems) == 0 {
		d.consistent(c)
	}
	if len(d.problems) > 0 {
		return nil, errors.Join(d.problems...)
	}
	return c, nil
}

const serves = ArchV41 + " and " + ArchV4

// architecture decides which model this is. A flat file names none; there the shared caches tell V4.1 from V4.
func (d *document) architecture(top map[string]json.RawMessage, flat bool) (string, bool) {
	kind := ""
	if raw, ok := top["model_type"]; ok && string(raw) != "null" {
		if json.Unmarshal(raw, &kind) != nil {
			d.add("model_type", short(raw), `"deepseek_v41" or "deepseek_v4"`)
			return "", false
		}
	}
	byType := map[string]string{"deepseek_v41": ArchV41, "deepseek_v4": ArchV4}
	if raw, ok := top["architectures"]; ok && string(raw) != "null" {
		var names []string
		if json.Unmarshal(raw, &names) != nil || len(names) != 1 {
			d.add("architectures", short(raw), fmt.Sprintf("an array with one of %q and %q", ArchV41, ArchV4))
			return "", false
		}
		if names[0] != ArchV41 && names[0] != ArchV4 {
			d.problems = append(d.problems, fmt.Errorf("architectures: this is %s; deepinfer serves %s", names[0], serves))
			return "", false
		}
		if kind != "" && byType[kind] != names[0] {
			d.add("model_type", fmt.Sprintf("%q", kind), fmt.Sprintf("the model_type of %s", names[0]))
			return "", false
		}
		return names[0], true
	}
	if arch, ok := byType[kind]; ok {
		return arch, true
	}
	if kind != "" {
		d.problems = append(d.problems, fmt.Errorf("model_type: this is %s; deepinfer serves %s", kind, serves))
		return "", false
	}
	if !flat {
		d.problems = append(d.problems, fmt.Errorf("architectures and model_type: found neither; deepinfer serves %s", serves))
		return "", false
	}
	if v, ok := d.values["kv_source_layer_ids"]; ok && !v.null() {
		return ArchV41, true
	}
	return ArchV4, true
}

// fixed checks the keys whose value the engine does not choose.
func (d *document) fixed(c *Config, flat bool) {
	if flat {
		// In inference/config.json the key names the quantisation.
		d.must("dtype", "fp8", "bfloat16")
	} else {
		d.must("dtype", "bfloat16")
	}
	d.must("hidden_act", "silu")
	d.must("attention_bias", false)
	d.must("attention_dropout", 0)
	d.must("num_key_value_heads", 1)
	d.must("n_shared_experts", 1)
	d.must("norm_topk_prob", true)
	d.must("scoring_func", "sqrtsoftplus")
	d.must("topk_method", "noaux_tc")
	d.must("tie_word_embeddings", false)
	if !c.V4() {
		d.must("use_fp4_sparse_kv", true)
		d.must("hc_shifted", true)
		d.must("dspark_target_attn_input", true)
	}
	c.TokenizerCompatibility = d.text("tokenizer_compatibility", "release")
	if c.TokenizerCompatibility != "release" && c.TokenizerCompatibility != "native" {
		d.addf("tokenizer_compatibility", fmt.Sprintf("%q", c.TokenizerCompatibility), `"release" or "native"`)
	}
}

func (d *document) backbone(c *Config) {
	c.VocabSize = d.count("vocab_size", required, 1, 1<<24)
	c.HiddenSize = d.count("hidden_size", required, 32, 1<<17)
	c.NumHiddenLayers = d.count("num_hidden_layers", required, 1, 512)
	c.RMSNormEps = d.number("rms_norm_eps", required, 1e-37, 1, "a number from 1e-37 to 1")
	c.MaxPositionEmbeddings = d.count("max_position_embeddings", 1<<20, 1, 1<<30)
	c.HCMult = d.count("hc_mult", required, 0, 1<<16)
	if v, ok := d.values["hc_mult"]; ok && !v.null() && c.HCMult != 4 {
		d.addf("hc_mult", c.HCMult, "4 residual streams: the kernels mix exactly four")
	}
	c.HCSinkhornIters = d.count("hc_sinkhorn_iters", required, 1, 1000)
	c.HCEps = d.number("hc_eps", required, 1e-37, 1, "a number from 1e-37 to 1")
	if c.HiddenSize%32 != 0 {
		d.addf("hidden_size", c.HiddenSize, "a multiple of 32, the group of an FP4 scale")
	}
}

func (d *document) attention(c *Config, flat bool) {
	c.NumAttentionHeads = d.count("num_attention_heads", required, 1, 4096)
	c.HeadDim = d.count("head_dim", required, 2, 1<<14)
	c.QKRopeHeadDim = d.count("qk_rope_head_dim", required, 2, 1<<14)
	c.QLoraRank = d.count("q_lora_rank", required, 1, 1<<17)
	c.OGroups = d.count("o_groups", required, 1, 4096)
	c.OLoraRank = d.count("o_lora_rank", required, 1, 1<<17)
	c.SlidingWindow = d.count("sliding_window", required, 1, 1<<20)
	c.RopeTheta = d.number("rope_theta", required, 1, 1e12, "a number from 1 to 1e12")
	c.CompressRopeTheta = d.number("compress_rope_theta", required, 1, 1e12, "a number from 1 to 1e12")
	c.IndexNHeads = d.count("index_n_heads", required, 1, 4096)
	c.IndexHeadDim = d.count("index_head_dim", required, 2, 1<<14)
	c.IndexTopK = d.count("index_topk", required, 1, 1<<20)
	d.yarn(c, flat)
	c.CompressRatios = d.ints("compress_ratios", true, 0)
	c.CandidateSourceLayerID = -1
	if !c.V4() {
		c.KVSourceLayerIDs = d.ints("kv_source_layer_ids", true, 0)
		c.IndexSourceLayerIDs = d.ints("index_source_layer_ids", true, 0)
		c.CandidateSourceLayerID = max(-1, d.count("candidate_source_layer_id", -1, math.MinInt32, 1<<16))
		if c.CandidateSourceLayerID >= 0 {
			c.CandidateTopKBlocks = d.count("candidate_topk_blocks", required, 1, 1<<20)
			c.CandidateBlockSize = d.count("candidate_block_size", required, 1, 1<<16)
		}
		if own := d.ints("index_k_source_layer_ids", false, 0); own != nil && !slices.Equal(own, c.KVSourceLayerIDs) {
			d.addf("index_k_source_layer_ids", own, "only the value of kv_source_layer_ids, %v", c.KVSourceLayerIDs)
		}
	}
}

func (d *document) yarn(c *Config, flat bool) {
	c.Yarn.Factor = 1
	from := d.object("rope_scaling")
	if from == nil && flat {
		// The flat file has the members side by side and prefixes the factor.
		from = &document{values: map[string]value{}}
		for name, key := range map[string]string{
			"rope_factor": "factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow", "original_seq_len": "original_max_position_embeddings",
		} {
			if v, ok := d.values[name]; ok {
				from.values[key] = v
			}
		}
		if _, ok := from.values["factor"]; !ok {
			return
		}
	}
	if from == nil {
		return
	}
	defer d.done(from)
	for _, key := range []string{"rope_type", "type"} {
		if kind := from.text(key, "yarn"); kind != "yarn" {
			from.addf(key, fmt.Sprintf("%q", kind), `only "yarn"`)
			return
		}
	}
	c.Yarn.Factor = from.number("factor", required, 1, 1e6, "a number from 1 to 1e6")
	c.Yarn.BetaFast = from.number("beta_fast", 32, 1e-6, 1e6, "a number from 1e-6 to 1e6")
	c.Yarn.BetaSlow = from.number("beta_slow", 1, 1e-6, 1e6, "a number from 1e-6 to 1e6")
	c.Yarn.OriginalMaxPositionEmbeddings = from.count("original_max_position_embeddings", required, 1, 1<<30)
}

func (d *document) experts(c *Config) {
	c.NRoutedExperts = d.count("n_routed_experts", required, 1, 4096)
	c.NumExpertsPerTok = d.count("num_experts_per_tok", required, 1, 64)
	c.MoEIntermediateSize = d.count("moe_intermediate_size", required, 32, 1<<17)
	c.RoutedScalingFactor = d.number("routed_scaling_factor", required, 1e-6, 1e6, "a number from 1e-6 to 1e6")
	c.SwigluLimit = d.number("swiglu_limit", required, 1e-6, 1e30, "a positive number")
	c.GateTemp = d.number("gate_temp", 1, 1e-6, 1e6, "a number from 1e-6 to 1e6")
	c.NumHashLayers = d.count("num_hash_layers", 0, 0, 512)
	if !c.V4() && c.NumHashLayers != 0 {
		d.addf("num_hash_layers", c.NumHashLayers, "0: V4.1 routes every layer by score")
	}
	if c.NumExpertsPerTok > c.NRoutedExperts {
		d.addf("num_experts_per_tok", c.NumExpertsPerTok, "at most n_routed_experts, %d", c.NRoutedExperts)
	}
	if c.MoEIntermediateSize%32 != 0 {
		d.addf("moe_intermediate_size", c.MoEIntermediateSize, "a multiple of 32, the group of an FP4 scale")
	}
}

func (d *document) engram(c *Config) {
	if c.V4() {
		return
	}
	c.EngramLayerIDs = d.ints("engram_layer_ids", false, 0)
	if len(c.EngramLayerIDs) == 0 {
		c.EngramLayerIDs = nil
		return
	}
	c.EngramNumEmbeddings = d.wholes("engram_num_embeddings", false, 1)
	c.EngramMaxNgramSize = d.count("engram_max_ngram_size", required, 2, 16)
	c.EngramVocabSize = d.integer("engram_vocab_size", required, 2, 1<<32)
	c.EngramNHeads = d.count("engram_n_heads", required, 1, 256)
	c.EngramHeadDim = d.count("engram_head_dim", required, 32, 1<<14)
	c.EngramPadTokenID = d.count("engram_pad_token_id", required, 0, 1<<24)
	c.EngramCompressedVocabSize = d.count("engram_compressed_vocab_size", required, 1, 1<<24)
	if c.EngramHeadDim%32 != 0 {
		d.addf("engram_head_dim", c.EngramHeadDim, "a multiple of 32, the group of a table scale")
	}
}

func (d *document) draft(c *Config) {
	c.NumNextnPredictLayers = d.count("num_nextn_predict_layers", 0, 0, 64)
	targets := d.ints("dspark_target_layer_ids", false, 0)
	c.draftStages = c.NumNextnPredictLayers
	if c.V4() {
		c.draftStages = 0
		if len(targets) > 0 {
			switch extra := len(c.CompressRatios) - c.NumHiddenLayers; {
			case extra > 1:
				c.draftStages = extra
			case c.NumNextnPredictLayers > 1:
				c.draftStages = c.NumNextnPredictLayers
			default:
				c.draftStages = 3
			}
		}
	}
	if c.draftStages == 0 {
		return
	}
	c.DSparkTargetLayerIDs = targets
	if len(targets) == 0 {
		d.add(d.path("dspark_target_layer_ids"), "nothing", "the layers that feed the draft stages")
	}
	c.DSparkBlockSize = d.count("dspark_block_size", required, 1, 64)
	c.DSparkNoiseTokenID = d.count("dspark_noise_token_id", required, 0, 1<<24)
	c.DSparkMarkovRank = d.count("dspark_markov_rank", required, 1, 1<<14)
	if c.V4() {
		return
	}
	c.DSparkNRoutedExperts = d.count("dspark_n_routed_experts", 0, 0, 4096)
	c.DSparkNumExpertsPerTok = d.count("dspark_num_experts_per_tok", 0, 0, 64)
	if c.DraftTopK() > c.DraftExperts() {
		d.addf("dspark_num_experts_per_tok", c.DraftTopK(), "at most dspark_n_routed_experts, %d", c.DraftExperts())
	}
}

func (d *document) tokens(c *Config) {
	last := max(c.VocabSize-1, 0)
	c.BOSTokenID = d.count("bos_token_id", 0, 0, last)
	c.PadTokenID = d.count("pad_token_id", float64(min(2, last)), 0, last)
	c.ImageTokenID = d.count("image_token_id", -1, 0, last)
	c.EOSTokenIDs = d.eos(min(1, last), last)
	c.EOSTokenID = c.EOSTokenIDs[0]
	if len(c.EngramLayerIDs) > 0 && c.EngramPadTokenID > last {
		d.addf("engram_pad_token_id", c.EngramPadTokenID, "a token id up to %d", last)
	}
	if len(c.EngramLayerIDs) > 0 && c.EngramCompressedVocabSize > c.VocabSize {
		d.addf("engram_compressed_vocab_size", c.EngramCompressedVocabSize, "at most vocab_size, %d", c.VocabSize)
	}
	if c.draftStages > 0 && c.DSparkNoiseTokenID > last {
		d.addf("dspark_noise_token_id", c.DSparkNoiseTokenID, "a token id up to %d", last)
	}
}

// eos reads eos_token_id: one id or an array of ids.
func (d *document) eos(def, last int) []int {
	v, ok := d.values["eos_token_id"]
	if !ok || v.null() {
		return []int{def}
	}
	var many []json.RawMessage
	if json.Unmarshal(v.raw, &many) != nil {
		many = []json.RawMessage{v.raw}
	}
	var out []int
	for _, raw := range many {
		n, ok := whole(raw)
		if !ok || n < 0 || n > int64(last) {
			d.add(v.path, short(v.raw), fmt.Sprintf("a token id from 0 to %d, or an array of them", last))
			return []int{def}
		}
		out = append(out, int(n))
	}
	if len(out) == 0 {
		d.add(v.path, short(v.raw), "at least one token id")
		return []int{def}
	}
	return out
}

func (d *document) quantization(c *Config, flat bool) {
	c.WeightBlock = 32
	if c.V4() {
		c.WeightBlock = 128
	}
	d.must("expert_dtype", "fp4")
	q := d.object("quantization_config")
	if q == nil {
		if _, there := d.values["quantization_config"]; flat {
			d.must("scale_fmt", "ue8m0")
		} else if v := d.values["quantization_config"]; !there || v.null() {
			d.add("quantization_config", "nothing", "the settings of the quantised weights; unquantised checkpoints are not served")
		}
		return
	}
	defer d.done(q)
	q.must("quant_method", "fp8")
	q.must("activation_scheme", "dynamic")
	q.must("weight_block_size", []int{c.WeightBlock, c.WeightBlock})
	q.must("scale_fmt", "ue8m0")
	q.must("expert_dtype", "fp4")
	q.must("fmt", "e4m3")
	keys := []string{"quant_method", "weight_block_size"}
	if !c.V4() {
		keys = append(keys, "activation_scheme", "scale_fmt", "expert_dtype")
	}
	for _, key := range keys {
		if v, ok := q.values[key]; !ok || v.null() {
			q.add("quantization_config."+key, "nothing", map[string]string{
				"quant_method": `"fp8"`, "activation_scheme": `"dynamic"`, "scale_fmt": `"ue8m0"`, "expert_dtype": `"fp4"`,
				"weight_block_size": fmt.Sprintf("[%d,%d]", c.WeightBlock, c.WeightBlock),
			}[key])
		}
	}
}

// visionNames gives, for each key of vision_config, the spellings of the flat file beyond "vision_" + key.
var visionNames = map[string][]string{
	"num_hidden_layers":   {"vision_n_layers"},
	"hidden_size":         {"vision_dim"},
	"num_attention_heads": {"vision_n_heads"},
	"intermediate_size":   {"vision_inter_dim"},
	"max_image_tokens":    {"vision_max_n_token"},
}

// vision reads the tower. Its sizes are optional: the official code has those of the release compiled in.
func (d *document) vision(c *Config) {
	v := d.object("vision_config")
	if v == nil {
		v = &document{values: map[string]value{}}
		for _, key := range []string{"num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "patch_size",
			"rope_theta", "downsample_ratio", "max_image_tokens", "min_pixels", "max_wh_ratio"} {
			for _, name := range append(visionNames[key], "vision_"+key) {
				if found, ok := d.values[name]; ok {
					v.values[key] = found
				}
			}
		}
		if len(v.values) == 0 {
			return
		}
	}
	defer d.done(v)
	t := &Vision{
		NumHiddenLayers:   v.count("num_hidden_layers", 32, 1, 512),
		HiddenSize:        v.count("hidden_size", 1024, 4, 1<<16),
		NumAttentionHeads: v.count("num_attention_heads", 16, 1, 1024),
		PatchSize:         v.count("patch_size", 14, 1, 256),
		RopeTheta:         v.number("rope_theta", 10000, 1, 1e12, "a number from 1 to 1e12"),
		DownsampleRatio:   v.count("downsample_ratio", 3, 1, 32),
		MaxImageTokens:    v.count("max_image_tokens", 1024, 4, 1<<20),
		MinPixels:         v.count("min_pixels", 295936, 0, 1<<30),
		MaxWHRatio:        v.number("max_wh_ratio", 0, 1e-3, 1e6, "null or a number from 0.001 to 1e6"),
	}
	// The released tower has an MLP of 2.7 times its width, truncated, rounded up to a multiple of 128.
	t.IntermediateSize = v.count("intermediate_size", float64((t.HiddenSize*27/10+127)/128*128), 1, 1<<18)
	if t.HiddenSize%t.NumAttentionHeads != 0 || t.HiddenSize/t.NumAttentionHeads%4 != 0 {
		v.addf("hidden_size", t.HiddenSize, "a multiple of 4 times num_attention_heads (%d): 2-D rotary pairs fill a head", t.NumAttentionHeads)
	}
	if c.ImageTokenID < 0 {
		d.add(d.path("image_token_id"), "nothing", "a token id, because there is a vision tower")
	}
	c.Vision = t
}

// consistent checks how keys depend on each other. It runs only when every key by itself is fine.
func (d *document) consistent(c *Config) {
	n := c.NumHiddenLayers
	if c.NumAttentionHeads%c.OGroups != 0 {
		d.addf("o_groups", c.OGroups, "a divisor of num_attention_heads, %d", c.NumAttentionHeads)
	}
	if c.QKRopeHeadDim%2 != 0 || c.QKRopeHeadDim > c.HeadDim || c.QKRopeHeadDim > c.IndexHeadDim {
		d.addf("qk_rope_head_dim", c.QKRopeHeadDim, "an even number, at most head_dim (%d) and index_head_dim (%d)", c.HeadDim, c.IndexHeadDim)
	}
	if c.IndexHeadDim%32 != 0 {
		d.addf("index_head_dim", c.IndexHeadDim, "a multiple of 32, the group of an index key scale")
	}
	if c.V4() {
		d.consistentV4(c)
	} else {
		d.consistentV41(c)
	}
	seen := map[int]bool{}
	for i, layer := range c.DSparkTargetLayerIDs {
		if layer >= n || seen[layer] {
			d.add(fmt.Sprintf("%s[%d]", d.path("dspark_target_layer_ids"), i), fmt.Sprint(layer), fmt.Sprintf("distinct layers below %d", n))
		}
		seen[layer] = true
	}
}

func (d *document) consistentV4(c *Config) {
	n := c.NumHiddenLayers
	path := d.path("compress_ratios")
	if (c.HeadDim-c.QKRopeHeadDim)%64 != 0 || c.HeadDim == c.QKRopeHeadDim {
		d.addf("head_dim", c.HeadDim, "qk_rope_head_dim (%d) plus a multiple of 64, the group of a KV scale", c.QKRopeHeadDim)
	}
	if c.IndexHeadDim&(c.IndexHeadDim-1) != 0 {
		d.addf("index_head_dim", c.IndexHeadDim, "a power of two: index vectors pass a Hadamard transform")
	}
	if len(c.CompressRatios) < n {
		d.add(path, fmt.Sprintf("%d entries", len(c.CompressRatios)), fmt.Sprintf("at least num_hidden_layers, %d", n))
	}
	for i, r := range c.CompressRatios {
		switch {
		case i >= n && r != 0:
			d.add(fmt.Sprintf("%s[%d]", path, i), fmt.Sprint(r), "0: draft stages compress nothing")
		case r != 0 && r != V4IndexRatio && (r < 8 || r > 4096):
			d.add(fmt.Sprintf("%s[%d]", path, i), fmt.Sprint(r), "0, 4 (overlapping, with indexer) or 8 to 4096 (disjoint)")
		}
	}
	if c.draftStages > 64 {
		d.add(path, fmt.Sprintf("%d entries", len(c.CompressRatios)), "at most 64 draft stages beyond the backbone")
	}
	if c.NumHashLayers > n {
		d.addf("num_hash_layers", c.NumHashLayers, "at most num_hidden_layers, %d", n)
	}
}

func (d *document) consistentV41(c *Config) {
	n := c.NumHiddenLayers
	path := d.path("compress_ratios")
	if c.HeadDim%32 != 0 {
		d.addf("head_dim", c.HeadDim, "a multiple of 32, the group of a window KV scale")
	}
	if want := n + c.NumNextnPredictLayers; len(c.CompressRatios) != want {
		d.add(path, fmt.Sprintf("%d entries", len(c.CompressRatios)),
			fmt.Sprintf("%d: num_hidden_layers %d + num_nextn_predict_layers %d", want, n, c.NumNextnPredictLayers))
	}
	for i, r := range c.CompressRatios {
		switch {
		case i >= n && r != 0:
			d.add(fmt.Sprintf("%s[%d]", path, i), fmt.Sprint(r), "0: draft stages read no shared cache")
		case r > 2:
			d.add(fmt.Sprintf("%s[%d]", path, i), fmt.Sprint(r), "0, 1 or 2")
		}
	}
	d.sources(c, "kv_source_layer_ids", c.KVSourceLayerIDs)
	d.sources(c, "index_source_layer_ids", c.IndexSourceLayerIDs)
	for i, layer := range c.KVSourceLayerIDs {
		if !slices.Contains(c.IndexSourceLayerIDs, layer) {
			d.add(fmt.Sprintf("%s[%d]", d.path("kv_source_layer_ids"), i), fmt.Sprint(layer),
				fmt.Sprintf("a layer of index_source_layer_ids %v: a cache is searched through its own index keys", c.IndexSourceLayerIDs))
		}
	}
	for layer := range min(n, len(c.CompressRatios)) {
		r := c.Ratio(layer)
		if r == 0 {
			continue
		}
		at := fmt.Sprintf("%s[%d]", path, layer)
		switch src := c.KVSource(layer); {
		case src < 0:
			d.add(at, fmt.Sprint(r), fmt.Sprintf("0, or a kv source at or before layer %d; kv_source_layer_ids is %v", layer, c.KVSourceLayerIDs))
		case c.Ratio(src) != r:
			d.add(at, fmt.Sprint(r), fmt.Sprintf("%d, the ratio of its kv source, layer %d", c.Ratio(src), src))
		}
	}
	if start := c.DecoderStart(); start < n && !slices.Contains(c.KVSourceLayerIDs, start) {
		d.addf("kv_source_layer_ids", c.KVSourceLayerIDs, "layer %d among them: the decoder half starts there, the first layer with ratio 1", start)
	}
	d.candidates(c)
	d.engramTables(c)
}

// sources checks a list of layers that own a cache or an indexer: ascending, in range, with ratio > 0.
func (d *document) sources(c *Config, key string, ids []int) {
	for i, layer := range ids {
		at := fmt.Sprintf("%s[%d]", d.path(key), i)
		switch {
		case layer >= c.NumHiddenLayers:
			d.add(at, fmt.Sprint(layer), fmt.Sprintf("a layer below num_hidden_layers, %d", c.NumHiddenLayers))
		case i > 0 && layer <= ids[i-1]:
			d.add(at, fmt.Sprint(layer), "ascending layers, each once")
		case c.Ratio(layer) == 0:
			d.add(at, fmt.Sprint(layer), "a layer whose compress_ratios entry is above 0")
		}
	}
}

func (d *document) candidates(c *Config) {
	source := c.CandidateSourceLayerID
	if source < 0 {
		return
	}
	if !slices.Contains(c.IndexSourceLayerIDs, source) {
		d.addf("candidate_source_layer_id", source, "one of index_source_layer_ids %v, or null", c.IndexSourceLayerIDs)
		return
	}
	for _, layer := range c.IndexSourceLayerIDs {
		if layer > source && c.Ratio(layer) != c.Ratio(source) {
			d.addf("candidate_source_layer_id", source,
				"a source with the ratio of every later index source: layer %d has %d, layer %d has %d", source, c.Ratio(source), layer, c.Ratio(layer))
		}
	}
	if c.CandidateTopKBlocks*c.CandidateBlockSize < c.IndexTopK {
		d.addf("candidate_topk_blocks", c.CandidateTopKBlocks, "candidate_topk_blocks x candidate_block_size (%d) of at least index_topk, %d",
			c.CandidateBlockSize, c.IndexTopK)
	}
}

func (d *document) engramTables(c *Config) {
	if len(c.EngramLayerIDs) == 0 {
		return
	}
	seen := map[int]bool{}
	for i, layer := range c.EngramLayerIDs {
		if layer >= c.NumHiddenLayers || seen[layer] {
			d.add(fmt.Sprintf("%s[%d]", d.path("engram_layer_ids"), i), fmt.Sprint(layer), fmt.Sprintf("distinct layers below num_hidden_layers, %d", c.NumHiddenLayers))
			return
		}
		seen[layer] = true
	}
	layout, err := engram.NewLayout(c.EngramParams())
	if err != nil {
		d.problems = append(d.problems, err)
		return
	}
	rows := make([]int64, len(layout.Layers))
	for i, layer := range layout.Layers {
		rows[i] = layer.Rows
	}
	if c.EngramNumEmbeddings != nil && !slices.Equal(c.EngramNumEmbeddings, rows) {
		d.addf("engram_num_embeddings", c.EngramNumEmbeddings, "%v, the sums of the hash primes that engram_vocab_size %d, %d heads and orders 2 to %d give",
			rows, c.EngramVocabSize, c.EngramNHeads, c.EngramMaxNgramSize)
	}
	c.EngramNumEmbeddings = rows
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
