// Package release carries the tokenizers of the V4 and V4.1 model releases inside the program, for work without a checkpoint at hand:
// `deepinfer recipe` without --tokenizer, and tests. A server reads the tokenizer.json of its checkpoint instead.
//
// [Load] is the whole of it. Each tokenizer is built once a process; all are safe for concurrent use.
//
//	tok, err := release.Load(release.V41)
package release

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"

	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// Names of the tokenizers.
const (
	V4        = "v4"          // V4 releases
	V41       = "v4.1"        // V4.1 release
	V41Recipe = "v4.1-recipe" // V4.1 with the image token spelled <｜image｜>, as the reference adapter has it
)

//go:embed tokenizer-v4.json.gz
var packed []byte

//go:embed overlay.json
var overlays []byte

var (
	loadV4 = sync.OnceValues(func() (*token.Tokenizer, error) {
		data, err := JSON()
		if err != nil {
			return nil, err
		}
		return token.Parse(data)
	})
	loadV41       = sync.OnceValues(func() (*token.Tokenizer, error) { return over(loadV4, V41) })
	loadV41Recipe = sync.OnceValues(func() (*token.Tokenizer, error) { return over(loadV41, V41Recipe) })
)

// Load gives the tokenizer called name, one of the constants.
func Load(name string) (*token.Tokenizer, error) {
	var load func() (*token.Tokenizer, error)
	switch name {
	case V4:
		load = loadV4
	case V41:
		load = loadV41
	case V41Recipe:
		load = loadV41Recipe
	default:
		return nil, fmt.Errorf("built-in tokenizer %q: want %s, %s or %s", name, V4, V41, V41Recipe)
	}
	t, err := load()
	if err != nil {
		return nil, fmt.Errorf("built-in tokenizer %s: %w", name, err)
	}
	return t, nil
}

// Fit gives the tokenizer for a prompt of the V4.1 family (v41) or the V4 family when tok comes from a release of the other one: the
// same with the added tokens of the right family. Any other tokenizer, the right one included, is returned as it is.
func Fit(tok *token.Tokenizer, v41 bool) (*token.Tokenizer, error) {
	const id = 128799 // <｜System｜> in V4.1, the last placeholder in V4
	from := "<｜System｜>"
	if v41 {
		from = "<｜place▁holder▁no▁799｜>"
	}
	if tok.VocabSize() != 129280 || tok.Bytes(id) != from || tok.Bytes(19923) != "Hello" {
		return tok, nil
	}
	base, err := Overlay(V41)
	if err != nil {
		return nil, err
	}
	if v41 {
		image, err := Overlay(V41Recipe)
		if err != nil {
			return nil, err
		}
		if tok, err = tok.WithAdded(base...); err != nil {
			return nil, err
		}
		return tok.WithAdded(image...)
	}
	v4, err := Load(V4)
	if err != nil {
		return nil, err
	}
	var back []token.Added
	for _, old := range v4.AddedTokens() {
		if slices.ContainsFunc(base, func(a token.Added) bool { return a.ID == old.ID }) {
			back = append(back, old)
		}
	}
	return tok.WithAdded(back...)
}

// JSON gives the tokenizer.json of the V4 releases, byte for byte.
func JSON() ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// Overlay gives the added tokens in which the tokenizer called name differs from the one it is made from: V41 from V4, V41Recipe from
// V41.
func Overlay(name string) ([]token.Added, error) {
	var lists map[string]json.RawMessage
	if err := json.Unmarshal(overlays, &lists); err != nil {
		return nil, fmt.Errorf("tokenizer overlay: %w", err)
	}
	var list []token.Added
	if err := json.Unmarshal(lists[name], &list); err != nil {
		return nil, fmt.Errorf("tokenizer overlay %q: %w", name, err)
	}
	return list, nil
}

func over(base func() (*token.Tokenizer, error), name string) (*token.Tokenizer, error) {
	t, err := base()
	if err != nil {
		return nil, err
	}
	list, err := Overlay(name)
	if err != nil {
		return nil, err
	}
	return t.WithAdded(list...)
}
