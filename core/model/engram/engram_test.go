package engram

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

var release = Params{LayerIDs: []int{1, 14}, MaxNgram: 4, VocabSize: 16000000, Heads: 8, CompressedVocab: 99092}

func layout(t testing.TB, p Params) *Layout {
	t.Helper()
	l, err := NewLayout(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestReleaseGeometry(t *testing.T) {
	l := layout(t, release)
	want := []Layer{
		{ID: 1, Rows: 384006168, Multipliers: []int64{76632096046245, 4839876093313, 35959672319349, 73987337458391},
			Primes: []int64{16000057, 16000079, 16000081, 16000097, 16000121, 16000129, 16000133, 16000183, 16000189, 16000207, 16000211, 16000253,
				16000277, 16000289, 16000307, 16000321, 16000339, 16000381, 16000393, 16000399, 16000403, 16000409, 16000447, 16000463}},
		{ID: 14, Rows: 384016682, Multipliers: []int64{67716810739261, 51510806800915, 30921347202721, 82619226485591},
			Primes: []int64{16000477, 16000487, 16000499, 16000507, 16000511, 16000573, 16000609, 16000627, 16000667, 16000669, 16000693, 16000697,
				16000711, 16000729, 16000759, 16000769, 16000781, 16000799, 16000813, 16000819, 16000841, 16000877, 16000879, 16000889}},
	}
	for i, w := range want {
		got := l.Layers[i]
		if got.ID != w.ID || got.Rows != w.Rows || !slices.Equal(got.Primes, w.Primes) || !slices.Equal(got.Multipliers, w.Multipliers) {
			t.Errorf("layer %d: %+v", w.ID, got)
		}
		if last := len(got.Primes) - 1; got.Offsets[0] != 0 || got.Offsets[last]+got.Primes[last] != got.Rows {
			t.Errorf("layer %d: offsets %v", w.ID, got.Offsets)
		}
	}
}

func TestReleaseHashIDs(t *testing.T) {
	l := layout(t, release)
	compressed, dead := []int32{100, 2001, 30002, 99091, 5}, make([]bool, 5)
	columns := []int{0, 1, 8, 9, 16, 17, 23}
	for p, want := range [][]int64{
		{4052413, 23667694, 138893193, 154754281, 270913409, 282584305, 378065828},
		{7116452, 23319028, 139119646, 156975410, 269203499, 282885102, 380461278},
		{4962830, 16945260, 128289334, 146061353, 268926914, 283823599, 380222613},
		{10870651, 24443091, 133312455, 158277624, 266924060, 286671747, 368579831},
		{12391924, 30601786, 131790782, 149422759, 269148097, 285100577, 378561936},
	} {
		rows := l.Rows(nil, 0, compressed, dead, p, 2)
		for i, c := range columns {
			if rows[c] != want[i] {
				t.Errorf("position %d column %d: row %d, want %d", p, c, rows[c], want[i])
			}
		}
	}
	want := []int64{743092, 18408009, 41668928, 49698968, 70671423, 85309510, 103753309, 124352426, 137849303, 150360391, 169491346, 183014221,
		195594109, 219200189, 229883136, 252447061, 267080811, 281484280, 298241283, 314720535, 323667433, 341491996, 352028128, 375147200}
	if got := l.Rows(nil, 1, compressed, dead, 4, 2); !slices.Equal(got, want) {
		t.Errorf("layer 14: %v", got)
	}
}

func TestDeadPositionsBlockEverythingBeforeThem(t *testing.T) {
	l := layout(t, Params{LayerIDs: []int{3}, MaxNgram: 4, VocabSize: 300, Heads: 2, CompressedVocab: 128})
	ids := []int32{7, 9, 11, 13, 17}
	row := func(ids []int32, dead ...int) []int64 {
		mask := make([]bool, len(ids))
		for _, d := range dead {
			mask[d] = true
		}
		return l.Rows(nil, 0, ids, mask, len(ids)-1, 2)
	}
	if got, want := row(ids, 3), row([]int32{99, 99, 99, 99, 17}, 3); !slices.Equal(got, want) {
		t.Errorf("what lies before a dead position matters: %v, %v", got, want)
	}
	if got, want := row(ids, 3), row([]int32{17}); !slices.Equal(got, want) {
		t.Errorf("a dead position differs from the start of the sequence: %v, %v", got, want)
	}
	if slices.Equal(row(ids), row(ids, 2)) || !slices.Equal(row(ids, 4), row([]int32{2, 2, 2, 2, 2})) {
		t.Error("a dead position is not the pad token")
	}
	if !slices.Equal(row(ids), row(ids[1:])) {
		t.Error("three preceding positions do not determine the rows")
	}
}

func TestGoldenSets(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-trained"} {
		var config struct {
			Text struct {
				Layers     []int `json:"engram_layer_ids"`
				Max        int   `json:"engram_max_ngram_size"`
				Vocab      int64 `json:"engram_vocab_size"`
				Heads      int   `json:"engram_n_heads"`
				Compressed int   `json:"engram_compressed_vocab_size"`
				Tokens     int   `json:"vocab_size"`
				Pad        int   `json:"engram_pad_token_id"`
			} `json:"text_config"`
			Image int `json:"image_token_id"`
		}
		unmarshal(t, fixture.Read(t, "model/"+set+"/checkpoint/config.json"), &config)
		var golden struct {
			Engram map[string]json.RawMessage
			Trace  struct {
				IDs    []int `json:"ids"`
				Layers []struct {
					Rows [][]int64 `json:"engram_ids"`
				}
			}
			Image *struct {
				IDs  []int                `json:"ids"`
				Rows map[string][][]int64 `json:"engram_ids"`
			}
		}
		unmarshal(t, fixture.Read(t, "model/"+set+"/golden.json"), &golden)
		text := config.Text
		l := layout(t, Params{LayerIDs: text.Layers, MaxNgram: text.Max, VocabSize: text.Vocab, Heads: text.Heads, CompressedVocab: text.Compressed})
		for _, layer := range l.Layers {
			var want struct {
				Primes      []int64
				Multipliers []string
			}
			unmarshal(t, golden.Engram[strconv.Itoa(layer.ID)], &want)
			var multipliers []string
			for _, m := range layer.Multipliers {
				multipliers = append(multipliers, strconv.FormatInt(m, 10))
			}
			if !slices.Equal(layer.Primes, want.Primes) || !slices.Equal(multipliers, want.Multipliers) {
				t.Errorf("%s layer %d: %+v\nwant %+v", set, layer.ID, layer, want)
			}
		}
		tokenMap := SyntheticTokenMap(text.Tokens, text.Compressed)
		check := func(what string, ids []int, k int, want [][]int64) {
			compressed, dead := make([]int32, len(ids)), make([]bool, len(ids))
			for i, id := range ids {
				compressed[i], dead[i] = tokenMap[id], id == config.Image
			}
			if len(want) != len(ids) {
				t.Fatalf("%s %s: %d golden rows for %d ids", set, what, len(want), len(ids))
			}
			for p := range ids {
				if got := l.Rows(nil, k, compressed, dead, p, tokenMap[text.Pad]); !slices.Equal(got, want[p]) {
					t.Errorf("%s %s layer %d position %d: %v, want %v", set, what, l.Layers[k].ID, p, got, want[p])
				}
			}
		}
		for k, layer := range l.Layers {
			check("trace", golden.Trace.IDs, k, golden.Trace.Layers[layer.ID].Rows)
			if golden.Image != nil {
				check("image", golden.Image.IDs, k, golden.Image.Rows[strconv.Itoa(layer.ID)])
			}
		}
	}
}

func unmarshal(t testing.TB, raw []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(raw, into); err != nil {
		t.Fatal(err)
	}
}

// Values of numpy 2.4.6: default_rng(10007).integers(0, bound, 5, int64).
func TestBoundedDrawsAreThoseOfNumpy(t *testing.T) {
	for _, w := range []struct {
		bound uint64
		want  []uint64
	}{
		{1, []uint64{0, 0, 0, 0, 0}},
		{2, []uint64{0, 1, 1, 0, 1}},
		{7, []uint64{1, 5, 4, 0, 3}},
		{1000, []uint64{149, 823, 619, 51, 547}},
		{1 << 31, []uint64{322113305, 1768029216, 1331345946, 111663947, 1176365973}},
		{1<<32 - 1, []uint64{644226610, 3536058431, 2662691892, 223327893, 2352731946}},
		{1 << 32, []uint64{644226611, 3536058432, 2662691893, 223327894, 2352731947}},
		{1<<32 + 1, []uint64{3536058432, 223327894, 1659298245, 3414020522, 1843754792}},
		{3 << 61, []uint64{359694751378967443, 1538764283633127253, 155932486627929098, 4429730739593083823, 6568070154937853261}},
	} {
		rng := newPCG(10007)
		for i, want := range w.want {
			if got := rng.below(w.bound); got != want {
				t.Errorf("bound %d draw %d: %d, want %d", w.bound, i, got, want)
			}
		}
	}
}

func TestPrimalityAgreesWithTheLibrary(t *testing.T) {
	check := func(n uint64) {
		if got, want := isPrime(n), new(big.Int).SetUint64(n).ProbablyPrime(0); got != want {
			t.Errorf("%d: prime %v, want %v", n, got, want)
		}
	}
	for n := range uint64(3000) {
		check(n)
		check(1<<32 - n)
		check(16000000 + n)
	}
	check(3215031751) // strong pseudoprime to bases 2, 3, 5 and 7
	check(1<<64 - 59)
}

func TestBadParametersAreNamedTogether(t *testing.T) {
	_, err := NewLayout(Params{LayerIDs: []int{-1}, MaxNgram: 1, VocabSize: 0, Heads: 0, CompressedVocab: 0})
	for _, key := range []string{"engram_layer_ids", "engram_max_ngram_size", "engram_vocab_size", "engram_n_heads", "engram_compressed_vocab_size"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named in %v", key, err)
		}
	}
	if _, err := NewLayout(Params{LayerIDs: make([]int, 500), MaxNgram: 16, VocabSize: 2, Heads: 256, CompressedVocab: 1}); err == nil {
		t.Error("two million columns were accepted")
	}
}

func TestNormalize(t *testing.T) {
	for in, want := range map[string]string{
		"Hello": "hello", " \t\n": " ", "  a  b ": "a b", "É": "e", "ﬁ": "fi", "Å": "a", "\u3000x\u3000": "x", "\u0301": "", "\ue000": " ",
		"İ": "i", "ΣΑΣ": "σασ", "\u001c": "\u001c", "\u00a0": " ", "\u2003\u2003": " ", "한": "\u1112\u1161\u11ab", "ｶﾞ": "カ",
		"\u20e3": "", "\u0903": "", "": "",
	} {
		if got := Normalize(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestMapOfTheDemoTokenizer(t *testing.T) {
	dir := fixture.Demo(t)
	raw, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	stored, err := os.ReadFile(filepath.Join(dir, TokenMapFile))
	if err != nil {
		t.Fatal(err)
	}
	want, err := ReadTokenMap(stored, 12288, 9175)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := ReadVocabulary(raw)
	if err != nil || vocabulary.Size() != 12288 {
		t.Fatalf("%v, %v", vocabulary.Size(), err)
	}
	got, distinct, err := BuildTokenMap(vocabulary, 12288, 2)
	if err != nil || distinct != 9175 {
		t.Fatalf("%d distinct ids, %v", distinct, err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("token %d maps to %d, want %d", i, got[i], want[i])
		}
	}
	if Distinct(got) != 9175 {
		t.Errorf("%d distinct ids", Distinct(got))
	}
}

func TestTokenMapFileIsChecked(t *testing.T) {
	if _, err := ReadTokenMap(make([]byte, 7), 2, 5); err == nil || !strings.Contains(err.Error(), "found 7 bytes, want 8") {
		t.Errorf("size: %v", err)
	}
	if _, err := ReadTokenMap([]byte{0, 0, 0, 0, 5, 0, 0, 0}, 2, 5); err == nil || !strings.Contains(err.Error(), "token 1 maps to 5") {
		t.Errorf("range: %v", err)
	}
	if _, err := ReadTokenMap([]byte{0, 0, 0, 0, 255, 255, 255, 255}, 2, 5); err == nil {
		t.Error("a negative entry was accepted")
	}
	if _, _, err := BuildTokenMap(&Vocabulary{}, 10, 2); err == nil {
		t.Error("a pad token outside the tokenizer was accepted")
	}
	if got := SyntheticTokenMap(5, 3); !slices.Equal(got, []int32{0, 1, 2, 0, 1}) {
		t.Errorf("synthetic map %v", got)
	}
}

func TestBadVocabularies(t *testing.T) {
	for _, raw := range []string{"", "{}", `{"model":{"vocab":{"a":-1}}}`, `{"model":{"vocab":{"a":1e9}}}`, `{"model":{"vocab":{"a":0}},"added_tokens":[{"id":999999999}]}`} {
		if _, err := ReadVocabulary([]byte(raw)); err == nil {
			t.Errorf("%s was accepted", raw)
		}
	}
}

// The V4 and V4.1 tokenizers give the same map; its hash was computed with the library that the reference uses.
func TestMapOfTheReleaseTokenizer(t *testing.T) {
	file, err := os.Open(filepath.Join(fixture.Root(t), "recipe", "token", "release", "tokenizer-v4.json.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	packed, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	vocabulary, err := ReadVocabulary(raw)
	if err != nil {
		t.Fatal(err)
	}
	got, distinct, err := BuildTokenMap(vocabulary, 129280, 2)
	if err != nil || distinct != 99092 || got[2] != 2 || HashTokenMap(got) != ReleaseTokenMapSHA256 {
		t.Errorf("%d distinct ids, pad is %d, hash %s, %v", distinct, got[2], HashTokenMap(got), err)
	}
}
