package config

import (
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

func file(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func parse(t testing.TB, name string) *Config {
	t.Helper()
	c, err := Parse(file(t, name))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return c
}

func TestReleaseFormsDescribeTheSameModel(t *testing.T) {
	nested, flat := parse(t, "v4.1-flash.json"), parse(t, "v4.1-flash-inference.json")
	if !reflect.DeepEqual(nested, flat) {
		t.Errorf("nested\n%+v\nflat\n%+v", nested, flat)
	}
}

func TestReleaseStructure(t *testing.T) {
	c := parse(t, "v4.1-flash.json")
	if c.V4() || c.DecoderStart() != 20 || c.ActGroup() != 32 || c.DraftStages() != 3 || c.DraftExperts() != 128 || c.DraftTopK() != 3 {
		t.Errorf("V4 %v, decoder start %d, group %d, stages %d, draft experts %d top %d",
			c.V4(), c.DecoderStart(), c.ActGroup(), c.DraftStages(), c.DraftExperts(), c.DraftTopK())
	}
	// layer: ratio, kv source, index source, owns kv, owns index, candidate filtered
	for _, w := range []struct {
		layer, ratio, kv, index int
		ownKV, ownIndex, filter bool
	}{
		{0, 0, -1, -1, false, false, false}, {1, 0, -1, -1, false, false, false}, {2, 2, 2, 2, true, true, false}, {7, 2, 2, 2, false, false, false},
		{8, 2, 8, 8, true, true, false}, {19, 2, 14, 14, false, false, false}, {20, 1, 20, 20, true, true, false}, {23, 1, 20, 20, false, false, false},
		{24, 1, 20, 24, false, true, true}, {39, 1, 20, 36, false, false, false}, {40, 0, -1, -1, false, false, false}, {-1, 0, -1, -1, false, false, false},
	} {
		if c.Ratio(w.layer) != w.ratio || c.KVSource(w.layer) != w.kv || c.IndexSource(w.layer) != w.index ||
			c.OwnsKV(w.layer) != w.ownKV || c.OwnsIndex(w.layer) != w.ownIndex || c.CandidateFiltered(w.layer) != w.filter {
			t.Errorf("layer %d: ratio %d, kv %d %v, index %d %v, filtered %v", w.layer, c.Ratio(w.layer), c.KVSource(w.layer), c.OwnsKV(w.layer),
				c.IndexSource(w.layer), c.OwnsIndex(w.layer), c.CandidateFiltered(w.layer))
		}
	}
	if c.EngramIndex(14) != 1 || c.EngramIndex(2) != -1 || c.EngramColumns() != 24 {
		t.Errorf("engram index %d %d, columns %d", c.EngramIndex(14), c.EngramIndex(2), c.EngramColumns())
	}
	if c.Vision == nil || c.Vision.IntermediateSize != 2816 || c.Vision.MaxWHRatio != 0 {
		t.Errorf("vision %+v", c.Vision)
	}
}

func TestV4Forms(t *testing.T) {
	for _, w := range []struct {
		name                                      string
		layers, stages, hashed, experts, kv3, ix4 int
	}{
		{"v4-flash.json", 43, 0, 3, 256, 3, 4}, {"v4-flash-0731.json", 43, 3, 3, 256, 3, 4}, {"v4-pro.json", 61, 0, 3, 384, 3, 4},
	} {
		c := parse(t, w.name)
		if !c.V4() || c.NumHiddenLayers != w.layers || c.DraftStages() != w.stages || c.NumHashLayers != w.hashed ||
			c.DraftExperts() != w.experts || c.KVSource(3) != w.kv3 || c.IndexSource(4) != w.ix4 || c.IndexSource(3) != -1 ||
			c.DecoderStart() != w.layers || c.ActGroup() != 128 {
			t.Errorf("%s: %+v stages %d", w.name, c, c.DraftStages())
		}
	}
	// A DSpark build may list one draft entry and still have three stages.
	one := mutate(t, "v4-flash-0731.json", func(m map[string]any) {
		m["compress_ratios"] = m["compress_ratios"].([]any)[:44]
	})
	c, err := Parse(one)
	if err != nil || c.DraftStages() != 3 {
		t.Errorf("stages %v, %v", c, err)
	}
}

func TestGoldenCheckpoints(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained"} {
		c, err := Load(filepath.Join(fixture.Dir(t, "model/"+set), "checkpoint"))
		if err != nil {
			t.Fatalf("%s: %v", set, err)
		}
		if c.V4() != (set == "tiny-v4") || c.DraftStages() != 3 || c.VocabSize != 512 || (c.Vision != nil) != (set == "tiny") {
			t.Errorf("%s: %+v", set, c)
		}
	}
	c, err := Load(fixture.Demo(t))
	if err != nil {
		t.Fatal(err)
	}
	g, err := LoadGeneration(fixture.Demo(t), c)
	if err != nil || !g.Found || g.Temperature != 0.7 || g.TopP != 0.95 || !g.DoSample || g.EOSTokenIDs[0] != 1 {
		t.Errorf("%+v %v", g, err)
	}
	if g, err := LoadGeneration(filepath.Join(fixture.Dir(t, "model/tiny"), "checkpoint"), c); err != nil || g.Found || g.Temperature != 1 {
		t.Errorf("no file: %+v %v", g, err)
	}
}

func mutate(t testing.TB, name string, change func(map[string]any)) []byte {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal(file(t, name), &m); err != nil {
		t.Fatal(err)
	}
	change(m)
	raw, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestEveryProblemIsNamed(t *testing.T) {
	set := func(path string, v any) func(map[string]any) {
		return func(m map[string]any) {
			keys := strings.Split(path, ".")
			for _, k := range keys[:len(keys)-1] {
				m = m[k].(map[string]any)
			}
			if v == nil {
				delete(m, keys[len(keys)-1])
				return
			}
			m[keys[len(keys)-1]] = v
		}
	}
	text := func(key string, v any) func(map[string]any) { return set("text_config."+key, v) }
	ratios := func(layer, ratio int) func(map[string]any) {
		return func(m map[string]any) {
			m["text_config"].(map[string]any)["compress_ratios"].([]any)[layer] = ratio
		}
	}
	for _, c := range []struct {
		name   string
		change func(map[string]any)
		want   string // part of the message: key, found, accepted
	}{
		{"missing dimension", text("hidden_size", nil), "hidden_size: found nothing, want a whole number"},
		{"string for a number", text("hidden_size", "5120"), `text_config.hidden_size: found "5120", want a whole number from 32`},
		{"fraction for a number", text("head_dim", 512.5), "text_config.head_dim: found 512.5"},
		{"negative", text("q_lora_rank", -1), "text_config.q_lora_rank: found -1"},
		{"number for an array", text("compress_ratios", 2), "text_config.compress_ratios: found 2, want an array"},
		{"text in an array", text("kv_source_layer_ids", []any{2, "8"}), `text_config.kv_source_layer_ids[1]: found "8"`},
		{"too few ratios", text("compress_ratios", []int{0, 0, 2}), "compress_ratios: found 3 entries, want 43: num_hidden_layers 40 + num_nextn_predict_layers 3"},
		{"draft entry", ratios(41, 1), "compress_ratios[41]: found 1, want 0"},
		{"unknown ratio", ratios(3, 4), "compress_ratios[3]: found 4, want 0, 1 or 2"},
		{"ratio without source", ratios(1, 2), "compress_ratios[1]: found 2, want 0, or a kv source at or before layer 1"},
		{"ratio of another source", ratios(21, 2), "compress_ratios[21]: found 2, want 1, the ratio of its kv source, layer 20"},
		{"source with ratio 0", ratios(2, 0), "kv_source_layer_ids[0]: found 2, want a layer whose compress_ratios entry is above 0"},
		{"source is no index source", text("index_source_layer_ids", []int{2, 8, 20}), "kv_source_layer_ids[2]: found 14"},
		{"source order", text("kv_source_layer_ids", []int{2, 14, 8, 20}), "kv_source_layer_ids[2]: found 8, want ascending layers"},
		{"source out of range", text("index_source_layer_ids", []int{2, 8, 14, 20, 40}), "index_source_layer_ids[4]: found 40, want a layer below num_hidden_layers, 40"},
		{"decoder without source", func(m map[string]any) { ratios(19, 1)(m); text("kv_source_layer_ids", []int{2, 8, 14, 20})(m) }, "decoder half starts there"},
		{"candidate source", text("candidate_source_layer_id", 21), "candidate_source_layer_id: found 21, want one of index_source_layer_ids"},
		{"candidate ratio", text("candidate_source_layer_id", 14), "candidate_source_layer_id: found 14, want a source with the ratio"},
		{"too few candidates", text("candidate_topk_blocks", 63), "candidate_topk_blocks: found 63"},
		{"engram layer", text("engram_layer_ids", []int{1, 40}), "engram_layer_ids[1]: found 40"},
		{"engram rows", text("engram_num_embeddings", []int{384006168, 384016681}), "want [384006168 384016682], the sums of the hash primes"},
		{"engram pad", text("engram_pad_token_id", 129280), "engram_pad_token_id: found 129280"},
		{"target layer", text("dspark_target_layer_ids", []int{37, 38, 40}), "dspark_target_layer_ids[2]: found 40"},
		{"draft top-k", text("dspark_num_experts_per_tok", 60), ""},
		{"draft top-k above experts", func(m map[string]any) {
			text("dspark_num_experts_per_tok", 60)(m)
			text("dspark_n_routed_experts", 32)(m)
		}, "dspark_num_experts_per_tok: found 60, want at most dspark_n_routed_experts, 32"},
		{"activation", text("hidden_act", "gelu"), `text_config.hidden_act: found "gelu", want only "silu"`},
		{"bias", text("attention_bias", true), "attention_bias: found true, want only false"},
		{"dropout", text("attention_dropout", 0.1), "attention_dropout: found 0.1"},
		{"kv heads", text("num_key_value_heads", 2), "num_key_value_heads: found 2, want only 1"},
		{"scoring", text("scoring_func", "softmax"), `scoring_func: found "softmax"`},
		{"router", text("topk_method", "greedy"), "topk_method"},
		{"router norm", text("norm_topk_prob", false), "norm_topk_prob: found false"},
		{"tied head", text("tie_word_embeddings", true), "tie_word_embeddings: found true"},
		{"kv format", text("use_fp4_sparse_kv", false), "use_fp4_sparse_kv: found false, want only true"},
		{"mHC order", text("hc_shifted", false), "hc_shifted: found false"},
		{"draft input", text("dspark_target_attn_input", false), "dspark_target_attn_input: found false"},
		{"index keys elsewhere", text("index_k_source_layer_ids", []int{2, 8, 14, 20, 24}), "index_k_source_layer_ids: found [2 8 14 20 24], want only the value of kv_source_layer_ids"},
		{"index keys as usual", text("index_k_source_layer_ids", []int{2, 8, 14, 20}), ""},
		{"tokenizer policy", text("tokenizer_compatibility", "other"), `tokenizer_compatibility: found "other"`},
		{"streams", text("hc_mult", 2), "hc_mult: found 2, want 4"},
		{"hash layers", text("num_hash_layers", 3), "num_hash_layers: found 3, want 0"},
		{"storage type", set("dtype", "float16"), `dtype: found "float16", want only "bfloat16"`},
		{"rope kind", text("rope_scaling", map[string]any{"type": "linear", "factor": 2}), `text_config.rope_scaling.type: found "linear", want only "yarn"`},
		{"rope factor", text("rope_scaling", map[string]any{"rope_type": "yarn"}), "factor: found nothing"},
		{"no rope scaling", text("rope_scaling", nil), ""},
		{"tile", set("quantization_config.weight_block_size", []int{128, 128}), "quantization_config.weight_block_size: found [128,128], want only [32,32]"},
		{"scale format", set("quantization_config.scale_fmt", "float"), "quantization_config.scale_fmt"},
		{"expert type", set("quantization_config.expert_dtype", nil), `quantization_config.expert_dtype: found nothing, want "fp4"`},
		{"unquantised", set("quantization_config", nil), "quantization_config: found nothing"},
		{"no image token", set("image_token_id", nil), "image_token_id: found nothing, want a token id"},
		{"vision heads", set("vision_config.num_attention_heads", 3), "vision_config.hidden_size: found 1024"},
		{"vision type", set("vision_config.patch_size", "14"), `vision_config.patch_size: found "14"`},
		{"heads and groups", text("o_groups", 7), "o_groups: found 7, want a divisor of num_attention_heads, 64"},
		{"rotary dims", text("qk_rope_head_dim", 192), "qk_rope_head_dim: found 192"},
		{"top-k experts", func(m map[string]any) { text("num_experts_per_tok", 6)(m); text("n_routed_experts", 4)(m) }, "num_experts_per_tok: found 6, want at most n_routed_experts, 4"},
		{"expert width", text("moe_intermediate_size", 2300), "moe_intermediate_size: found 2300, want a multiple of 32"},
		{"eps", text("rms_norm_eps", 0), "rms_norm_eps: found 0"},
		{"end token", set("eos_token_id", 129280), "eos_token_id: found 129280"},
		{"end tokens", set("eos_token_id", []int{1, 5}), ""},
		{"contradiction", set("hidden_size", 4096), "hidden_size: found 4096, want the same value as text_config.hidden_size, which is 5120"},
		{"both spellings agree", text("dim", 5120), ""},
		{"other architecture", set("architectures", []string{"LlamaForCausalLM"}), "this is LlamaForCausalLM; deepinfer serves DeepseekV41ForCausalLM and DeepseekV4ForCausalLM"},
		{"V3", func(m map[string]any) {
			set("architectures", nil)(m)
			set("model_type", "deepseek_v3")(m)
		}, "this is deepseek_v3; deepinfer serves"},
		{"type and architecture differ", set("model_type", "deepseek_v4"), `model_type: found "deepseek_v4"`},
		{"neither type nor architecture", func(m map[string]any) { set("architectures", nil)(m); set("model_type", nil)(m) }, "found neither"},
		{"text config is no object", set("text_config", 3), "text_config: found 3, want an object"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse(mutate(t, "v4.1-flash.json", c.change))
			switch {
			case c.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
}

func TestAllProblemsAtOnce(t *testing.T) {
	_, err := Parse(mutate(t, "v4.1-flash.json", func(m map[string]any) {
		text := m["text_config"].(map[string]any)
		delete(text, "head_dim")
		text["hidden_act"] = "relu"
		text["vocab_size"] = []int{1}
		m["quantization_config"].(map[string]any)["quant_method"] = "awq"
		m["vision_config"].(map[string]any)["patch_size"] = 0
	}))
	var p *Problem
	if !errors.As(err, &p) {
		t.Fatalf("no Problem in %v", err)
	}
	for _, key := range []string{"head_dim", "hidden_act", "vocab_size", "quant_method", "patch_size"} {
		if !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in\n%v", key, err)
		}
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	if _, err := Load(dir); !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), dir) {
		t.Errorf("empty directory: %v", err)
	}
	for _, raw := range []string{"", "{", "[]", "null", "3", `{"text_config":[]}`, "\x00\xff"} {
		if _, err := Parse([]byte(raw)); err == nil {
			t.Errorf("%q was accepted", raw)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "inference"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "inference", "config.json"), file(t, "v4.1-flash-inference.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if c, err := Load(dir); err != nil || c.HiddenSize != 5120 {
		t.Errorf("flat file alone: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"temperature":-1,"top_p":"x","eos_token_id":[1,"a"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := LoadGeneration(dir, parse(t, "v4.1-flash.json"))
	for _, key := range []string{"temperature", "top_p", "eos_token_id"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in %v", key, err)
		}
	}
}

func TestRopeSpeedsOfTheRelease(t *testing.T) {
	c := parse(t, "v4.1-flash.json")
	want := []float64{1, 0.687656022, 0.472870805, 0.325172456, 0.223606798, 0.153764561, 0.105737126, 0.0727107717, 0.05, 0.0343828011,
		0.0236435402, 0.0162586228, 0.0111803399, 0.00768822805, 0.00528685632, 0.00363553858, 0.002265625, 0.00139680129, 0.000849689727,
		0.000508081963, 0.000296977778, 0.000168179989, 9.0867843e-05, 4.54442323e-05, 1.953125e-05, 5.37231267e-06, 3.69430316e-06,
		2.54040981e-06, 1.74692811e-06, 1.20128563e-06, 8.260713e-07, 5.68052904e-07}
	got := c.RopeSpeeds(1)
	for i, w := range want {
		if math.Abs(float64(got[i])-w) > 1e-6*w {
			t.Errorf("table B %d: %v, want %v", i, got[i], w)
		}
	}
	a := c.RopeSpeeds(0)
	for i, w := range map[int]float64{0: 1, 1: 0.749894209, 2: 0.562341325, 3: 0.421696503, 31: 0.000133352143} {
		if math.Abs(float64(a[i])-w) > 1e-6*w {
			t.Errorf("table A %d: %v, want %v", i, a[i], w)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"v4.1-flash.json", "v4.1-flash-inference.json", "v4-flash-0731.json"} {
		f.Add(file(f, name))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := Parse(raw)
		if (c == nil) == (err == nil) {
			t.Fatalf("config %v, error %v", c, err)
		}
		if err != nil {
			return
		}
		for layer := range c.NumHiddenLayers {
			if r := c.Ratio(layer); r > 0 && (c.KVSource(layer) < 0 || c.KVSource(layer) > layer) {
				t.Fatalf("layer %d with ratio %d has kv source %d", layer, r, c.KVSource(layer))
			}
		}
	})
}
