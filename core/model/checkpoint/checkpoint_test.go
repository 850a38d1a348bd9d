package checkpoint

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

func goldenDir(t testing.TB, set string) string {
	t.Helper()
	if set == "demo" {
		return fixture.Demo(t)
	}
	return filepath.Join(fixture.Dir(t, "model/"+set), "checkpoint")
}

func load(t testing.TB, dir string) (*Checkpoint, *config.Config) {
	t.Helper()
	cfg, err := config.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	ck, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ck.Close() })
	return ck, cfg
}

func releaseConfig(t testing.TB, name string) *config.Config {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "config", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func TestInventoryOfTheRelease(t *testing.T) {
	items := Inventory(releaseConfig(t, "v4.1-flash.json"))
	var total int64
	count, size, params := map[Part]int{}, map[Part]int64{}, map[Part]int64{}
	names := map[string]bool{}
	for _, e := range items {
		total += e.Bytes()
		count[e.Part]++
		size[e.Part] += e.Bytes()
		params[e.Part] += e.Params
		names[e.Name] = true
	}
	if len(items) != 96085 || len(names) != 96085 || total != 510286023000 {
		t.Errorf("%d tensors, %d names, %d bytes", len(items), len(names), total)
	}
	if count[PartRouted] != 92160 || count[PartEngram] != 12 {
		t.Errorf("tensors: %v", count)
	}
	near := func(what string, got int64, unit, want float64) {
		if g := float64(got) / unit; math.Abs(g-want) > 0.006*math.Max(1, want/100) {
			t.Errorf("%s: %.3f, want %.2f", what, g, want)
		}
	}
	for part, want := range map[Part]float64{PartRouted: 288.78, PartEngram: 203.07, PartAttention: 5.15, PartEmbedding: 2.65,
		PartShared: 1.42, PartMix: 0.316, PartDraftExperts: 7.22, PartDraft: 0.71, PartVision: 0.97} {
		near(string(part), size[part], 1e9, want)
	}
	tables := int64(384006168+384016682) * 256
	near("backbone parameters", params[PartRouted]+params[PartEngram]-tables+params[PartAttention]+params[PartEmbedding]+params[PartShared]+params[PartMix], 1e9, 551.88)
	near("table parameters", tables, 1e9, 196.61)
	near("draft parameters", params[PartDraftExperts]+params[PartDraft], 1e9, 14.23)
	near("vision parameters", params[PartVision], 1e9, 0.485)
	perLayer := map[int]int{}
	for _, e := range items {
		if e.Layer >= 0 {
			perLayer[e.Layer]++
		}
	}
	for layer, want := range map[int]int{0: 2334, 1: 2340, 2: 2342, 3: 2334, 8: 2342, 14: 2348, 20: 2341, 24: 2337, 36: 2337, 39: 2334} {
		if perLayer[layer] != want {
			t.Errorf("layer %d has %d tensors, want %d", layer, perLayer[layer], want)
		}
	}
}

// The published sizes of the V4 models are 284 and 1,600 billion parameters.
func TestInventoryOfV4(t *testing.T) {
	for name, want := range map[string]float64{"v4-flash.json": 284.3, "v4-pro.json": 1573} {
		var params int64
		for _, e := range Inventory(releaseConfig(t, name)) {
			params += e.Params
		}
		if got := float64(params) / 1e9; math.Abs(got-want) > want/500 {
			t.Errorf("%s: %.2f billion parameters, want %v", name, got, want)
		}
	}
}

func TestGoldenCheckpointsAreClean(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained", "demo"} {
		ck, cfg := load(t, goldenDir(t, set))
		for _, p := range Verify(ck, cfg) {
			t.Errorf("%s: %v", set, p)
		}
		if n := len(ck.Notes()); n != 0 {
			t.Errorf("%s: notes %v", set, ck.Notes())
		}
		var want int64
		for _, e := range Inventory(cfg) {
			want += e.Bytes()
		}
		if ck.Bytes() != want || len(ck.Names()) != len(Inventory(cfg)) {
			t.Errorf("%s: %d bytes in %d tensors, want %d", set, ck.Bytes(), len(ck.Names()), want)
		}
		embedded, err := OpenFS(os.DirFS(goldenDir(t, set)), set)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range ck.Names() {
			a, _ := ck.Tensor(name)
			b, ok := embedded.Tensor(name)
			if !ok || string(a.Bytes) != string(b.Bytes) || a.Offset != b.Offset || filepath.Base(a.File) != b.File {
				t.Fatalf("%s: %s differs between Open and OpenFS", set, name)
			}
		}
		// The file and offset of a tensor are where its bytes lie.
		a, _ := ck.Tensor("head.weight")
		f, err := os.Open(a.File)
		if err != nil {
			t.Fatal(err)
		}
		at := make([]byte, len(a.Bytes))
		if _, err := f.ReadAt(at, a.Offset); err != nil || string(at) != string(a.Bytes) {
			t.Errorf("%s: head.weight is not at its offset: %v", set, err)
		}
		f.Close()
	}
}

// item is a tensor of a hand-made file.
type item struct {
	name  string
	dtype DType
	shape []int
	raw   []byte
}

func pack(items ...item) []byte {
	header := map[string]any{}
	var payload []byte
	for _, it := range items {
		header[it.name] = map[string]any{"dtype": it.dtype, "shape": it.shape, "data_offsets": []int{len(payload), len(payload) + len(it.raw)}}
		payload = append(payload, it.raw...)
	}
	raw, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return join(string(raw), payload)
}

func join(header string, payload []byte) []byte {
	out := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(out, header...), payload...)
}

func TestDamagedFilesAreNamed(t *testing.T) {
	good := pack(item{"a", F32, []int{2}, make([]byte, 8)}, item{"b", U8, []int{3}, []byte{1, 2, 3}})
	if ts, err := ParseFile("x", good); err != nil || len(ts) != 2 || ts[1].Name != "b" || ts[1].Bytes[2] != 3 {
		t.Fatalf("%v %v", ts, err)
	}
	huge := slices.Clone(good)
	binary.LittleEndian.PutUint64(huge, 1<<63)
	long := slices.Clone(good)
	binary.LittleEndian.PutUint64(long, uint64(len(good)))
	entry := func(s string) string { return `{"a":` + s + `}` }
	for _, c := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"empty", nil, "has 0 bytes"},
		{"cut length", good[:5], "has 5 bytes"},
		{"cut header", good[:20], "the file is truncated"},
		{"cut payload", good[:len(good)-1], "the file is truncated or the header is wrong"},
		{"long payload", append(slices.Clone(good), 0), "1 bytes follow the last tensor"},
		{"huge header", huge, "above the limit"},
		{"long header", long, "truncated"},
		{"no JSON", join("hello", nil), "not a JSON object"},
		{"array", join("[]", nil), "not a JSON object"},
		{"cut JSON", join(`{"a":`, nil), "does not end within the header length"},
		{"cut after a member", join(`{"__metadata__":{}`, nil), "does not end within the header length"},
		{"second object", join(`{}{}`, nil), "follow the JSON object"},
		{"missing dtype", join(entry(`{"shape":[1],"data_offsets":[0,1]}`), []byte{0}), "needs dtype"},
		{"unknown dtype", join(entry(`{"dtype":"F4","shape":[1],"data_offsets":[0,1]}`), []byte{0}), `unknown dtype "F4"`},
		{"unknown key", join(entry(`{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}`), []byte{0}), "unknown field"},
		{"negative dim", join(entry(`{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}`), []byte{0}), "not a shape"},
		{"overflow", join(entry(`{"dtype":"U8","shape":[2147483647,2147483647,2147483647],"data_offsets":[0,1]}`), []byte{0}), "not a shape"},
		{"three offsets", join(entry(`{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}`), []byte{0}), "two data_offsets"},
		{"reverse range", join(entry(`{"dtype":"U8","shape":[1],"data_offsets":[1,0]}`), []byte{0}), "not a range"},
		{"negative range", join(entry(`{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}`), []byte{0}), "not a range"},
		{"out of range", join(entry(`{"dtype":"U8","shape":[9],"data_offsets":[0,9]}`), []byte{0}), "reach beyond the 1 payload bytes"},
		{"size and shape differ", join(entry(`{"dtype":"F32","shape":[1],"data_offsets":[0,2]}`), []byte{0, 0}), "takes 4 bytes"},
		{"float offset", join(entry(`{"dtype":"U8","shape":[1],"data_offsets":[0,1.5]}`), []byte{0}), "header entry"},
		{"overlap", join(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, []byte{0, 0, 0}), "overlap those of a"},
		{"same bytes twice", join(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, []byte{0, 0}), "overlap"},
		{"hole", join(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, []byte{0, 0, 0}), "starts at byte 2"},
		{"duplicate", join(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, []byte{0}), "appears twice"},
		{"metadata", join(`{"__metadata__":3}`, nil), "__metadata__"},
	} {
		_, err := ParseFile("x.safetensors", c.raw)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// copyCheckpoint returns the files of the tiny checkpoint as an editable file system.
func copyCheckpoint(t testing.TB, set string) fstest.MapFS {
	t.Helper()
	out := fstest.MapFS{}
	entries, err := os.ReadDir(goldenDir(t, set))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(goldenDir(t, set), e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = &fstest.MapFile{Data: raw}
	}
	return out
}

// edit rewrites the tensors of the only shard and drops the index.
func edit(t testing.TB, files fstest.MapFS, change func(map[string]item)) {
	t.Helper()
	const shard = "model-00001-of-00001.safetensors"
	tensors, err := ParseFile(shard, files[shard].Data)
	if err != nil {
		t.Fatal(err)
	}
	items := map[string]item{}
	for _, x := range tensors {
		items[x.Name] = item{x.Name, x.DType, x.Shape, slices.Clone(x.Bytes)}
	}
	change(items)
	var list []item
	for _, name := range slices.Sorted(maps.Keys(items)) {
		it := items[name]
		it.name = name
		list = append(list, it)
	}
	delete(files, IndexFile)
	delete(files, shard)
	files["model.safetensors"] = &fstest.MapFile{Data: pack(list...)}
}

func TestVerifyNamesEveryProblemAtOnce(t *testing.T) {
	files := copyCheckpoint(t, "tiny")
	edit(t, files, func(m map[string]item) {
		delete(m, "layers.3.attn.wkv.scale")
		m["layers.0.attn.extra.weight"] = item{"", BF16, []int{1}, []byte{0, 0}}
		x := m["layers.1.attn_norm.weight"]
		x.shape = []int{1, x.shape[0]}
		m["layers.1.attn_norm.weight"] = x
		x = m["layers.2.hc_attn_fn"]
		x.dtype, x.raw = BF16, x.raw[:len(x.raw)/2]
		m["layers.2.hc_attn_fn"] = x
		m["layers.4.attn.wq_a.weight"].raw[77] = 0x7f
		m["layers.4.attn.wq_a.weight"].raw[79] = 0xff
		m["layers.5.attn.wq_a.scale"].raw[1] = 255
		binary.LittleEndian.PutUint16(m["layers.6.ffn_norm.weight"].raw[6:], 0x7f80)
		binary.LittleEndian.PutUint32(m["layers.7.attn.attn_sink"].raw[12:], math.Float32bits(float32(math.NaN())))
		m["layers.0.hc_attn_norm.weight"] = item{"", BF16, []int{1}, []byte{0, 0}}
		m["mtp.1.embed.weight"] = item{"", BF16, []int{1}, []byte{0, 0}}
	})
	files["engram_token_map.i32"] = &fstest.MapFile{Data: make([]byte, 12)}
	ck, err := OpenFS(files, "broken")
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := config.LoadFS(files, "broken")
	if err != nil {
		t.Fatal(err)
	}
	problems := Verify(ck, cfg)
	text := Join(problems).Error()
	for _, want := range []string{
		"missing: layers.3.attn.wkv.scale: want F8_E8M0 [2 3]",
		"extra: layers.0.attn.extra.weight: BF16 [1]",
		"shape: layers.1.attn_norm.weight: found [1 96], want [96]",
		"dtype: layers.2.hc_attn_fn: found BF16, want F32",
		"non-finite: layers.4.attn.wq_a.weight: 2 of 6144 values are NaN, the first at element 77",
		"non-finite: layers.5.attn.wq_a.scale: 1 of 6 values are NaN (scale byte 255), the first at element 1",
		"non-finite: layers.6.ffn_norm.weight: 1 of 96 values are NaN or infinite, the first at element 3",
		"non-finite: layers.7.attn.attn_sink: 1 of 4 values are NaN or infinite, the first at element 3",
		"name: layers.0.hc_attn_norm.weight: the checkpoint is unfolded",
		"tokenizer: engram token map: engram_token_map.i32: found 12 bytes, want 2048",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %q", want)
		}
	}
	if len(problems) != 10 {
		t.Errorf("%d problems (%s):\n%s", len(problems), Summary(problems), text)
	}
	if notes := ck.Notes(); len(notes) != 1 || !strings.Contains(notes[0], "mtp.1.embed.weight") {
		t.Errorf("notes %v", notes)
	}
	if light, err := VerifyWith(context.Background(), ck, cfg, VerifyOptions{SkipValues: true}); err != nil || len(light) != 6 {
		t.Errorf("without values: %d problems, %v", len(light), err)
	}
	stopped, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := VerifyWith(stopped, ck, cfg, VerifyOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled scan gave %v", err)
	}
}

func TestExpertNumbersAreChecked(t *testing.T) {
	files := copyCheckpoint(t, "tiny-v4")
	edit(t, files, func(m map[string]item) {
		binary.LittleEndian.PutUint64(m["layers.1.ffn.gate.tid2eid"].raw[16:], 12)
	})
	ck, err := OpenFS(files, "v4")
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := config.LoadFS(files, "v4")
	if text := Join(Verify(ck, cfg)); text == nil || text.Error() != "range: layers.1.ffn.gate.tid2eid: element 2 is 12, want an expert from 0 to 11" {
		t.Errorf("%v", text)
	}
}

func TestPrefixOnAllNamesOrNone(t *testing.T) {
	files := copyCheckpoint(t, "tiny")
	edit(t, files, func(m map[string]item) {
		for name, it := range maps.Clone(m) {
			delete(m, name)
			m["model."+name] = it
		}
	})
	ck, err := OpenFS(files, "prefixed")
	if err != nil {
		t.Fatal(err)
	}
	cfg, _ := config.LoadFS(files, "prefixed")
	if problems := Verify(ck, cfg); len(problems) != 0 {
		t.Errorf("%v", Join(problems))
	}
	files = copyCheckpoint(t, "tiny")
	edit(t, files, func(m map[string]item) {
		m["model.norm.weight"] = m["norm.weight"]
		delete(m, "norm.weight")
	})
	if _, err := OpenFS(files, "mixed"); err == nil || !strings.Contains(err.Error(), "name: model.norm.weight: has the prefix model.") {
		t.Errorf("mixture: %v", err)
	}
}

func TestBrokenDirectories(t *testing.T) {
	type files = fstest.MapFS
	index := func(m map[string]string) *fstest.MapFile {
		raw, _ := json.Marshal(map[string]any{"weight_map": m})
		return &fstest.MapFile{Data: raw}
	}
	a := &fstest.MapFile{Data: pack(item{"a", U8, []int{1}, []byte{0}})}
	b := &fstest.MapFile{Data: pack(item{"b", U8, []int{1}, []byte{0}})}
	for _, c := range []struct {
		name  string
		files files
		want  []string
	}{
		{"empty directory", files{}, []string{"no safetensors file and no model.safetensors.index.json"}},
		{"shard missing", files{IndexFile: index(map[string]string{"a": "1.safetensors", "b": "2.safetensors"}), "1.safetensors": a}, []string{"file: 2.safetensors: the shard is missing"}},
		{"wrong shard", files{IndexFile: index(map[string]string{"a": "2.safetensors", "b": "2.safetensors"}), "1.safetensors": a, "2.safetensors": b}, []string{"file: a: is not in 2.safetensors"}},
		{"swapped shards", files{IndexFile: index(map[string]string{"a": "2.safetensors", "b": "1.safetensors"}), "1.safetensors": a, "2.safetensors": b},
			[]string{"file: a: lies in 1.safetensors, but model.safetensors.index.json says 2.safetensors", "file: b: lies in 2.safetensors"}},
		{"not in the index", files{IndexFile: index(map[string]string{"a": "1.safetensors"}), "1.safetensors": &fstest.MapFile{Data: pack(item{"a", U8, []int{1}, []byte{0}}, item{"z", U8, []int{1}, []byte{0}})}},
			[]string{"file: z: lies in 1.safetensors but is not in model.safetensors.index.json"}},
		{"twice", files{IndexFile: index(map[string]string{"a": "1.safetensors", "b": "2.safetensors"}), "1.safetensors": a, "2.safetensors": &fstest.MapFile{Data: pack(item{"a", U8, []int{1}, []byte{0}}, item{"b", U8, []int{1}, []byte{0}})}},
			[]string{"file: a: lies in two shards, 1.safetensors and 2.safetensors"}},
		{"path in the index", files{IndexFile: index(map[string]string{"a": "../1.safetensors"}), "1.safetensors": a}, []string{`puts it in "../1.safetensors"`}},
		{"no index content", files{IndexFile: &fstest.MapFile{Data: []byte("{}")}, "1.safetensors": a}, []string{"weight_map is empty"}},
		{"no JSON", files{IndexFile: &fstest.MapFile{Data: []byte("x")}, "1.safetensors": a}, []string{"is not an index"}},
		{"numbering", files{"m-00001-of-00003.safetensors": a, "m-00003-of-00003.safetensors": b}, []string{"file: m-00002-of-00003.safetensors: the shard is missing"}},
		{"damaged shard", files{IndexFile: index(map[string]string{"a": "1.safetensors", "b": "2.safetensors"}), "1.safetensors": a, "2.safetensors": &fstest.MapFile{Data: b.Data[:len(b.Data)-1]}},
			[]string{"file: b: in 2.safetensors", "the file is truncated"}},
	} {
		_, err := OpenFS(c.files, c.name)
		for _, want := range c.want {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v\nwant %q", c.name, err, want)
			}
		}
		dir := t.TempDir()
		for name, f := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Open(dir); err == nil {
			t.Errorf("%s: Open accepted it", c.name)
		}
	}
	ck, err := OpenFS(files{"1.safetensors": a, "2.safetensors": b}, "no index")
	if err != nil || !slices.Equal(ck.Names(), []string{"a", "b"}) {
		t.Errorf("two shards without index: %v %v", ck, err)
	}
	ck, err = OpenFS(files{IndexFile: &fstest.MapFile{Data: []byte(`{"metadata":{"total_size":5},"weight_map":{"a":"1.safetensors"}}`)}, "1.safetensors": a, "2.safetensors": b}, "notes")
	if err != nil || len(ck.Notes()) != 2 || len(ck.Names()) != 1 {
		t.Errorf("notes: %v", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing directory: %v", err)
	}
}

func TestTokenMapSources(t *testing.T) {
	ck, cfg := load(t, goldenDir(t, "demo"))
	stored, err := ck.TokenMap(cfg)
	if err != nil {
		t.Fatal(err)
	}
	// Without the map file the tokenizer gives the same map; without either it is synthetic.
	files := fstest.MapFS{"tokenizer.json": {Data: read(t, filepath.Join(goldenDir(t, "demo"), "tokenizer.json"))}}
	built, err := (&Checkpoint{files: files}).TokenMap(cfg)
	if err != nil || !slices.Equal(built, stored) {
		t.Errorf("built map differs: %v", err)
	}
	synthetic, err := (&Checkpoint{files: fstest.MapFS{}}).TokenMap(cfg)
	if err != nil || synthetic[9175] != 0 || synthetic[9174] != 9174 {
		t.Errorf("synthetic map: %v", err)
	}
	other := *cfg
	other.EngramCompressedVocabSize = 9000
	if _, err := (&Checkpoint{files: files}).TokenMap(&other); err == nil || !strings.Contains(err.Error(), "compresses to 9175 ids") {
		t.Errorf("another tokenizer: %v", err)
	}
	if _, err := (&Checkpoint{files: fstest.MapFS{}}).TokenMap(releaseConfig(t, "v4.1-flash.json")); err == nil || !strings.Contains(err.Error(), "SHA-256") {
		t.Errorf("the release without its tokenizer: %v", err)
	}
	small := *cfg
	small.VocabSize = 100
	files["model.safetensors"] = &fstest.MapFile{Data: pack()}
	opened, err := OpenFS(files, "small")
	if err != nil {
		t.Fatal(err)
	}
	if text := Join(verifyTokens(opened, &small)); text == nil || !strings.Contains(text.Error(), "has ids up to 12287, but vocab_size is 100") {
		t.Errorf("tokenizer larger than the vocabulary: %v", text)
	}
}

func read(t testing.TB, path string) []byte {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func TestDecodersAgainstTheOracle(t *testing.T) {
	tensors, err := ParseFile("golden", fixture.Read(t, "model/tiny/golden.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]Tensor{}
	for _, x := range tensors {
		byName[x.Name] = x
	}
	for _, c := range []struct {
		name       string
		dtype      DType
		rows, cols int
	}{{"w8_32", F8E4M3, 32, 32}, {"w8_128", F8E4M3, 128, 128}, {"w4", I8, 1, 32}, {"rows8", F8E4M3, 1, 32}, {"a8_32", F8E4M3, 1, 32}} {
		codes, scale := byName["quant."+c.name+".codes"], byName["quant."+c.name+".scale"]
		codes.DType = c.dtype
		got, err := Dequantize(codes, scale, c.rows, c.cols)
		if err != nil {
			t.Fatal(err)
		}
		want, err := byName["quant."+c.name+".value"].Float32s()
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: values differ", c.name)
		}
		if _, err := Dequantize(codes, byName["quant.x"], c.rows, c.cols); err == nil {
			t.Errorf("%s: scales of another shape were accepted", c.name)
		}
	}
	for b, want := range map[byte]float32{0: 0, 1: 1.0 / 512, 7: 7.0 / 512, 8: 1.0 / 64, 0x38: 1, 0x7e: 448, 0xfe: -448, 0xb9: -1.125} {
		if got := DecodeE4M3(b); got != want {
			t.Errorf("E4M3 %#x: %v, want %v", b, got, want)
		}
	}
	if DecodeE8M0(127) != 1 || DecodeE8M0(0) != float32(math.Ldexp(1, -127)) || DecodeE8M0(254) != float32(math.Ldexp(1, 127)) || DecodeE8M0(255) == DecodeE8M0(255) {
		t.Error("E8M0")
	}
	if v := DecodeE4M3(0x7f); v == v {
		t.Error("0x7f is not NaN")
	}
	if math.Float32bits(DecodeE2M1(8)) != 1<<31 || DecodeE2M1(15) != -6 {
		t.Error("E2M1")
	}
}

func TestScanLanesFindEveryForbiddenCode(t *testing.T) {
	for dtype, l := range lanes {
		size := int(dtype.Size())
		for at := range 11 {
			raw := make([]byte, 11*size)
			for i := range raw {
				raw[i] = 0x3e // finite in every type
			}
			if n, _ := l.count(raw); n != 0 {
				t.Errorf("%s: %d forbidden codes in clean data", dtype, n)
			}
			for i := range size {
				raw[at*size+i] = 0xff
			}
			if n, first := l.count(raw); n != 1 || first/size != at {
				t.Errorf("%s element %d: %d found, first at byte %d", dtype, at, n, first)
			}
		}
	}
	if n, _ := lanes[F8E8M0].count([]byte{0x7f, 0xfe, 0}); n != 0 {
		t.Error("E8M0 127 and 254 are finite")
	}
	if n, _ := lanes[F8E4M3].count([]byte{0x7f, 0xff, 0x7e, 0xfe}); n != 2 {
		t.Error("E4M3 0x7f and 0xff are NaN")
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add(pack(item{"a", F32, []int{2}, make([]byte, 8)}, item{"b", U8, []int{3}, []byte{1, 2, 3}}))
	f.Add(join(`{"__metadata__":{"format":"pt"},"a":{"dtype":"BF16","shape":[],"data_offsets":[0,2]}}   `, []byte{0, 0}))
	f.Add([]byte("\xff\xff\xff\xff\xff\xff\xff\x7f{}"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		tensors, err := ParseFile("fuzz", raw)
		if err != nil {
			return
		}
		var sum int64
		for _, x := range tensors {
			if int64(len(x.Bytes)) != x.Elements()*x.DType.Size() {
				t.Fatalf("%s has %d bytes for %d elements of %s", x.Name, len(x.Bytes), x.Elements(), x.DType)
			}
			sum += int64(len(x.Bytes))
		}
		if n := int64(binary.LittleEndian.Uint64(raw)); sum != int64(len(raw))-8-n {
			t.Fatalf("tensors cover %d of %d payload bytes", sum, int64(len(raw))-8-n)
		}
	})
}

func BenchmarkScanValues(b *testing.B) {
	raw := make([]byte, 16<<20)
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		lanes[F8E4M3].count(raw)
	}
}
