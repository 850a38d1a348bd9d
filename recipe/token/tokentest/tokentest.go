// Package tokentest gives tests the real tokenizers: V4, V4.1, the V4.1 spelling of the reference adapter, and the demo model's.
//
// [Load] is the entry point. Each is built once a process; all are safe for concurrent use.
//
//	tok := tokentest.Load(t, "v4.1-recipe")
package tokentest

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"io"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/release"
)

// tokenizer-demo.json.gz is the tokenizer of the embedded demo model, here once more so that tests of recipe need not unpack the model.
//
//go:embed tokenizer-demo.json.gz
var demo []byte

var loadDemo = sync.OnceValues(func() (*token.Tokenizer, error) {
	data, err := unpackDemo()
	if err != nil {
		return nil, err
	}
	return token.Parse(data)
})

// Load gives the tokenizer called "v4", "v4.1", "v4.1-recipe" or "demo".
func Load(tb testing.TB, name string) *token.Tokenizer {
	tb.Helper()
	load := loadDemo
	if name != "demo" {
		load = func() (*token.Tokenizer, error) { return release.Load(name) }
	}
	t, err := load()
	if err != nil {
		tb.Fatalf("tokentest: %v", err)
	}
	return t
}

// JSON gives the tokenizer.json called "v4" or "demo". The slice is the caller's.
func JSON(tb testing.TB, name string) []byte {
	tb.Helper()
	unpack := unpackDemo
	if name != "demo" {
		unpack = release.JSON
	}
	data, err := unpack()
	if err != nil {
		tb.Fatalf("tokentest: %v", err)
	}
	return data
}

func unpackDemo() ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(demo))
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

// Path gives the path of a file under the repository's root.
func Path(elem ...string) string {
	_, here, _, _ := runtime.Caller(0)
	root := filepath.Join(filepath.Dir(here), "..", "..", "..")
	return filepath.Join(append([]string{root}, elem...)...)
}
