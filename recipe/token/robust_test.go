package token_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

func TestAPI(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	if n := tok.VocabSize(); n != 129280 {
		t.Errorf("VocabSize %d", n)
	}
	for _, c := range []struct {
		id             int32
		bytes          string
		added, special bool
	}{
		{0, "<｜begin▁of▁sentence｜>", true, true}, {1, "<｜end▁of▁sentence｜>", true, true}, {128821, "<think>", true, false}, {19923, "Hello", false, false},
		{225, "\x80", false, false}, {-1, "", false, false}, {129280, "", false, false}, {1 << 30, "", false, false},
	} {
		if got := tok.Bytes(c.id); got != c.bytes || tok.Added(c.id) != c.added || tok.Special(c.id) != c.special || tok.Known(c.id) != (c.bytes != "") {
			t.Errorf("id %d: %q, added %v, special %v", c.id, got, tok.Added(c.id), tok.Special(c.id))
		}
		if c.bytes != "" {
			if id, ok := tok.ID(c.bytes); !ok || id != c.id {
				t.Errorf("ID(%q) = %d, %v; want %d", c.bytes, id, ok, c.id)
			}
		}
	}
	if id, ok := tok.ID("no such token at all"); ok {
		t.Errorf("ID of nothing is %d", id)
	}
	if got := tok.Decode([]int32{19923, -5, 999999, 14}); got != "Hello," {
		t.Errorf("ids without a token: %q", got)
	}
	dst := []int32{7}
	if got := tok.AppendEncode(dst, "Hello"); !reflect.DeepEqual(got, []int32{7, 19923}) {
		t.Errorf("AppendEncode: %v", got)
	}
	if got := tok.AppendEncode(dst, ""); !reflect.DeepEqual(got, dst) {
		t.Errorf("AppendEncode of nothing: %v", got)
	}
}

func TestStreamAroundAddedTokens(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	s := token.NewStream(tok)
	push := func(id int32, want string) {
		t.Helper()
		if got := s.Push(id); got != want {
			t.Errorf("Push(%d) = %q, want %q", id, got, want)
		}
	}
	push(28927, "") // first three bytes of an emoji
	if s.Pending() != 3 {
		t.Errorf("%d bytes pending", s.Pending())
	}
	push(128821, "\uFFFD<think>") // a control token ends the character
	push(28927, "")
	push(1, "\uFFFD") // a special one has no text of its own
	push(28927, "")
	push(500000, "") // an id without a token is nothing
	push(225, "😀")
	push(28927, "")
	if got := s.Flush(); got != "\uFFFD" || s.Flush() != "" {
		t.Errorf("Flush = %q", got)
	}
	push(28927, "")
	s.Reset()
	push(19923, "Hello")
}

// Whatever the ids, the pieces of a stream join to the decoding of all bytes, and every piece is valid UTF-8.
func TestStreamEqualsDecodeForRandomIDs(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	const seed = 2
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 3000 {
		ids := make([]int32, 1+rng.IntN(12))
		for i := range ids {
			if ids[i] = 3 + rng.Int32N(127997); rng.IntN(3) > 0 {
				ids[i] = 3 + rng.Int32N(256) // single bytes mostly
			}
		}
		s := token.NewStream(tok)
		var got strings.Builder
		for _, id := range ids {
			piece := s.Push(id)
			if !utf8.ValidString(piece) {
				t.Fatalf("seed %d, ids %v: piece %q", seed, ids, piece)
			}
			if s.Pending() > 3 {
				t.Fatalf("seed %d, ids %v: %d bytes pending", seed, ids, s.Pending())
			}
			got.WriteString(piece)
		}
		got.WriteString(s.Flush())
		if want := tok.Decode(ids); got.String() != want {
			t.Fatalf("seed %d, ids %v: %q, want %q", seed, ids, got.String(), want)
		}
	}
}

// Inputs that make naive scanners or merges quadratic. A quadratic step takes minutes on these, so the test needs no clock.
func TestAdversarialInputs(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	rng := rand.New(rand.NewPCG(3, 3))
	random := make([]byte, 1<<18)
	for i := range random {
		random[i] = "abcdefghijklmnopqrstuvwxyz"[rng.IntN(26)]
	}
	for name, text := range map[string]string{
		"one letter":        strings.Repeat("a", 1<<18),
		"random letters":    string(random),
		"spaces":            strings.Repeat(" ", 1<<18),
		"line breaks":       strings.Repeat("\n", 1<<18),
		"space then breaks": strings.Repeat(" ", 1<<17) + strings.Repeat("\n", 1<<17),
		"breaks then space": strings.Repeat("\n", 1<<17) + strings.Repeat(" ", 1<<17),
		"alternating":       strings.Repeat(" \n", 1<<17),
		"one han":           strings.Repeat("哈", 1<<18/3),
		"controls":          strings.Repeat("\x01", 1<<18),
		"punctuation":       strings.Repeat("!", 1<<18),
		"digits":            strings.Repeat("7", 1<<18),
		"marks":             strings.Repeat("\u0301", 1<<17),
		"broken bytes":      strings.Repeat("\xf0\x9f", 1<<17),
		"half a spelling":   strings.Repeat("<｜place▁holder▁no▁", 1<<18/23),
	} {
		for kind, encode := range map[string]func(string) []int32{"plain": tok.Encode, "special": tok.EncodeSpecial} {
			if got := tok.Decode(encode(text)); got != token.ValidUTF8(text) {
				t.Errorf("%s, %s: does not come back", name, kind)
			}
		}
	}
}

func TestEncodeDoesNotAllocate(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	text := strings.Repeat("The quick brown fox, 你好 and 😀🎉; supercalifragilisticexpialidocious 12345. ", 20)
	dst := make([]int32, 0, len(text))
	if n := testing.AllocsPerRun(50, func() { dst = tok.AppendEncode(dst[:0], text) }); n > 0.1 { // the pool may be emptied once by the collector
		t.Errorf("%v allocations a call", n)
	}
	ids := tok.Encode("plain words, one after the other")
	s := token.NewStream(tok)
	if n := testing.AllocsPerRun(50, func() {
		for _, id := range ids {
			s.Push(id)
		}
	}); n != 0 {
		t.Errorf("%v allocations for %d whole-character tokens", n, len(ids))
	}
}

func TestConcurrentUse(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	texts := []string{"Hello, world!", strings.Repeat("abcdefgh", 5000), "<think>你好</think>", strings.Repeat("x y ", 3000)}
	want := make([][]int32, len(texts))
	for i, s := range texts {
		want[i] = tok.EncodeSpecial(s)
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := range 40 {
				i := (n + g) % len(texts)
				if got := tok.EncodeSpecial(texts[i]); !reflect.DeepEqual(got, want[i]) {
					t.Errorf("text %d differs under concurrency", i)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// A small valid file, to break in many ways.
func tiny(t testing.TB) map[string]any {
	t.Helper()
	var doc map[string]any
	if err := json.Unmarshal(token.SmallFile(), &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func TestCorruptedFilesGiveOneClearError(t *testing.T) {
	model := func(d map[string]any) map[string]any { return d["model"].(map[string]any) }
	added := func(d map[string]any, i int) map[string]any {
		return d["added_tokens"].([]any)[i].(map[string]any)
	}
	step := func(d map[string]any, i int) map[string]any {
		return d["pre_tokenizer"].(map[string]any)["pretokenizers"].([]any)[i].(map[string]any)
	}
	for _, c := range []struct {
		name string
		edit func(d map[string]any)
		want string
	}{
		{"no model", func(d map[string]any) { delete(d, "model") }, `no "model"`},
		{"no added tokens", func(d map[string]any) { delete(d, "added_tokens") }, `no "added_tokens"`},
		{"no pre-tokenizer", func(d map[string]any) { d["pre_tokenizer"] = nil }, "pre-tokenizer"},
		{"unigram", func(d map[string]any) { model(d)["type"] = "Unigram" }, `"Unigram"`},
		{"byte fallback", func(d map[string]any) { model(d)["byte_fallback"] = true }, "byte_fallback"},
		{"unknown token", func(d map[string]any) { model(d)["unk_token"] = "x" }, "unk_token"},
		{"dropout", func(d map[string]any) { model(d)["dropout"] = 0.1 }, "dropout"},
		{"a byte without token", func(d map[string]any) { delete(model(d)["vocab"].(map[string]any), "Ā"); model(d)["merges"] = []any{} }, "byte 0x00"},
		{"merge of nothing", func(d map[string]any) { model(d)["merges"] = []any{[]any{"a", "zzzzzz"}} }, `merge 0 joins "a" and "zzzzzz"`},
		{"merge with three parts", func(d map[string]any) { model(d)["merges"] = []any{"a b c"} }, `"a b c"`},
		{"merge with one part", func(d map[string]any) { model(d)["merges"] = []any{[]any{"a"}} }, "1 parts"},
		{"id twice", func(d map[string]any) {
			model(d)["vocab"].(map[string]any)["a"] = model(d)["vocab"].(map[string]any)["b"]
		}, "two tokens"},
		{"negative id", func(d map[string]any) { model(d)["vocab"].(map[string]any)["a"] = -1 }, "token id"},
		{"id as text", func(d map[string]any) { model(d)["vocab"].(map[string]any)["a"] = "7" }, "token id"},
		{"huge id", func(d map[string]any) { model(d)["vocab"].(map[string]any)["a"] = 1 << 25 }, "largest supported"},
		{"id beyond all", func(d map[string]any) { model(d)["vocab"].(map[string]any)["a"] = 1e12 }, "too large"},
		{"lstrip", func(d map[string]any) { added(d, 0)["lstrip"] = true }, "lstrip"},
		{"added without id", func(d map[string]any) { delete(added(d, 0), "id") }, "needs an id"},
		{"added id twice", func(d map[string]any) { added(d, 0)["id"] = added(d, 1)["id"] }, "two added tokens"},
		{"added spelling twice", func(d map[string]any) { added(d, 0)["content"] = added(d, 1)["content"] }, "two ids"},
		{"other split", func(d map[string]any) { step(d, 0)["pattern"] = map[string]any{"Regex": `\d`} }, `split 1`},
		{"literal split", func(d map[string]any) { step(d, 0)["pattern"] = map[string]any{"String": " "} }, `"String"`},
		{"other behaviour", func(d map[string]any) { step(d, 1)["behavior"] = "Removed" }, `"Removed"`},
		{"prefix space", func(d map[string]any) { step(d, 3)["add_prefix_space"] = true }, "ByteLevel"},
		{"normalizer", func(d map[string]any) { d["normalizer"] = map[string]any{"type": "NFC"} }, `"NFC"`},
		{"normalizer in a sequence", func(d map[string]any) {
			d["normalizer"] = map[string]any{"type": "Sequence", "normalizers": []any{map[string]any{"type": "NFC"}}}
		}, "normalizer"},
	} {
		d := tiny(t)
		c.edit(d)
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		// Key order of a Go map puts merges before vocab, as real files do not.
		data = []byte(strings.Replace(string(data), `"merges":`, `"zz_merges":`, 1))
		data = reorder(t, data)
		if _, err := token.Parse(data); err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "tokenizer.json: ") {
			t.Errorf("%s: error %v, want one about %s", c.name, err, c.want)
		}
	}
}

// reorder moves the merges, renamed so that they sort last in model, back to their name.
func reorder(t *testing.T, data []byte) []byte {
	t.Helper()
	var d map[string]json.RawMessage
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	if d["model"] != nil {
		var m map[string]any
		if err := json.Unmarshal(d["model"], &m); err != nil {
			t.Fatal(err)
		}
		sorted, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		d["model"] = json.RawMessage(strings.Replace(string(sorted), `"zz_merges":`, `"merges":`, 1))
	}
	out, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTruncatedFilesAreRefused(t *testing.T) {
	data := tokentest.JSON(t, "demo")
	for _, n := range []int{0, 1, 2, 100, 5000, len(data) / 3, len(data) / 2, len(data) - 2} {
		if _, err := token.Parse(data[:n]); err == nil {
			t.Errorf("the first %d of %d bytes are accepted", n, len(data))
		}
	}
	if _, err := token.Parse(append(data[:len(data):len(data)], "{}"...)); err == nil {
		t.Error("bytes after the end are accepted")
	}
	if _, err := token.Load("no/such/tokenizer.json"); err == nil || !strings.Contains(err.Error(), "no/such/tokenizer.json") {
		t.Errorf("missing file: %v", err)
	}
	// One byte changed anywhere: an error or a tokenizer that still works, never a panic.
	rng := rand.New(rand.NewPCG(4, 4))
	data = token.SmallFile()
	for range 2000 {
		broken := append([]byte(nil), data...)
		broken[rng.IntN(len(broken))] ^= byte(1 + rng.IntN(255))
		if tok, err := token.Parse(broken); err == nil {
			tok.Decode(tok.EncodeSpecial("Hello <think> 你好 123"))
		}
	}
}

func TestWithAddedReplacesAndRefuses(t *testing.T) {
	v4 := tokentest.Load(t, "v4")
	tok, err := v4.WithAdded(token.Added{ID: 128000, Content: "<new>"})
	if err != nil {
		t.Fatal(err)
	}
	if got := tok.EncodeSpecial("<new>"); !reflect.DeepEqual(got, []int32{128000}) || tok.Special(128000) {
		t.Errorf("new spelling gives %v", got)
	}
	if _, ok := tok.ID("<｜place▁holder▁no▁0｜>"); ok {
		t.Error("the old spelling is still there")
	}
	if got := v4.EncodeSpecial("<new>"); len(got) < 2 {
		t.Errorf("the original changed: %v", got)
	}
	for _, a := range []token.Added{{ID: 5, Content: "x"}, {ID: 128000}, {ID: 128000, Content: "<think>"}} {
		if _, err := v4.WithAdded(a); err == nil {
			t.Errorf("%+v is accepted", a)
		}
	}
}
