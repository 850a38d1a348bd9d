// Package tokentest gives tests the real tokenizer files of the repository: V4, V4.1, the V4.1 spelling of the reference adapter, and
// the demo model's.
//
// [Load] is the entry point. Each file is read once a process; the tokenizers are safe for concurrent use.
//
//	tok := tokentest.Load(t, "v4.1-recipe")
package tokentest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// Load gives the tokenizer called "v4", "v4.1", "v4.1-recipe" or "demo".
func Load(tb testing.TB, name string) *token.Tokenizer {
	tb.Helper()
	load, ok := loaders[name]
	if !ok {
		tb.Fatalf("tokentest: no tokenizer %q", name)
	}
	t, err := load()
	if err != nil {
		tb.Fatalf("tokentest: %v", err)
	}
	return t
}

// JSON gives the contents of the tokenizer.json called "v4", "v4.1", "v4.1-recipe" or "demo", with the layout of white space not
// preserved. The slice is the caller's.
func JSON(tb testing.TB, name string) []byte {
	tb.Helper()
	data, err := file(name)
	if err != nil {
		tb.Fatalf("tokentest: %v", err)
	}
	return data
}

var loaders = map[string]func() (*token.Tokenizer, error){
	"v4": loader("v4"), "v4.1": loader("v4.1"), "v4.1-recipe": loader("v4.1-recipe"), "demo": loader("demo"),
}

func loader(name string) func() (*token.Tokenizer, error) {
	return sync.OnceValues(func() (*token.Tokenizer, error) {
		data, err := file(name)
		if err != nil {
			return nil, err
		}
		return token.Parse(data)
	})
}

// Path gives the path of a file under the repository's root.
func Path(elem ...string) string {
	_, here, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(here), "..", "..", "..")
	return filepath.Join(append([]string{root}, elem...)...)
}

func file(name string) ([]byte, error) {
	base := "v4"
	if name == "demo" {
		base = name
	}
	f, err := os.Open(Path("testdata", "tokenizer", "tokenizer-"+base+".json.gz"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(z)
	if err != nil {
		return nil, err
	}
	switch name {
	case "v4", "demo":
		return data, nil
	case "v4.1":
		return overlay(data, "v4.1")
	case "v4.1-recipe":
		return overlay(data, "v4.1", "v4.1-recipe")
	}
	return nil, fmt.Errorf("no tokenizer %q", name)
}

// overlay replaces entries of added_tokens by those of the same id in the named lists of overlay.json.
func overlay(data []byte, lists ...string) ([]byte, error) {
	raw, err := os.ReadFile(Path("testdata", "tokenizer", "overlay.json"))
	if err != nil {
		return nil, err
	}
	var over map[string]json.RawMessage
	if err := json.Unmarshal(raw, &over); err != nil {
		return nil, err
	}
	start := bytes.Index(data, []byte(`"added_tokens": [`)) + len(`"added_tokens": `)
	var added []json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data[start:]))
	if err := dec.Decode(&added); err != nil {
		return nil, err
	}
	end := start + int(dec.InputOffset())
	for _, list := range lists {
		var entries []json.RawMessage
		if err := json.Unmarshal(over[list], &entries); err != nil {
			return nil, fmt.Errorf("overlay %s: %w", list, err)
		}
		for _, e := range entries {
			at, err := index(added, e)
			if err != nil {
				return nil, err
			}
			added[at] = e
		}
	}
	list, err := json.Marshal(added)
	if err != nil {
		return nil, err
	}
	return append(append(append([]byte(nil), data[:start]...), list...), data[end:]...), nil
}

func index(added []json.RawMessage, entry json.RawMessage) (int, error) {
	id := func(raw json.RawMessage) (int, error) {
		var v struct{ ID int }
		err := json.Unmarshal(raw, &v)
		return v.ID, err
	}
	want, err := id(entry)
	if err != nil {
		return 0, err
	}
	for i, raw := range added {
		got, err := id(raw)
		if err != nil {
			return 0, err
		}
		if got == want {
			return i, nil
		}
	}
	return 0, fmt.Errorf("no added token with id %d", want)
}
