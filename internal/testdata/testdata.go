// Package testdata finds the golden data that several packages share: the folder testdata/ at the root of the module,
// and the embedded demo checkpoint of cmd/deepinfer/demo. Both lie in the tree as tar.zst archives and are unpacked on first
// use into a folder of the temporary directory that is named by their hash.
//
// The functions are for tests only. They take a [testing.TB] and fail the test, with the path that was looked for, when
// something is missing. They keep no state and may be called from any goroutine that may call t.Fatal.
//
//	dir := testdata.Dir(t, "model/tiny")              // golden set: checkpoint/, golden.json, golden.safetensors
//	raw := testdata.Read(t, "image/images.json")
//	demo := testdata.Demo(t)                          // the demo checkpoint
package testdata

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"
)

// Root returns the absolute path of the module root: the nearest folder at or above the working directory that holds
// go.mod. Tests run in the folder of their package, so it lies inside the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatalf("working directory: %v", err)
	}
	for at := dir; ; {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return at
		}
		up := filepath.Dir(at)
		if up == at {
			t.Fatalf("no go.mod at or above %s", dir)
		}
		at = up
	}
}

// Dir returns the absolute path of name (slash separated, for example "model/tiny") below testdata/ of the module root.
func Dir(t testing.TB, name string) string {
	t.Helper()
	root := filepath.Join(Root(t), "testdata")
	// Golden sets are archives: model/tiny.tar.zst holds model/tiny.
	for set := name; set != "." && set != "/"; set = path.Dir(set) {
		if file := filepath.Join(root, filepath.FromSlash(set)+".tar.zst"); exists(file) {
			return existing(t, filepath.Join(unpacked(t, file), filepath.FromSlash(strings.TrimPrefix(strings.TrimPrefix(name, set), "/"))))
		}
	}
	return existing(t, filepath.Join(root, filepath.FromSlash(name)))
}

// Demo returns the absolute path of the demo checkpoint folder.
func Demo(t testing.TB) string {
	t.Helper()
	return unpacked(t, filepath.Join(Root(t), "cmd", "deepinfer", "demo", "model.tar.zst"))
}

// Read returns the content of the file name below testdata/ of the module root.
func Read(t testing.TB, name string) []byte {
	t.Helper()
	raw, err := os.ReadFile(Dir(t, name))
	if err != nil {
		t.Fatalf("read test data: %v", err)
	}
	return raw
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

func existing(t testing.TB, path string) string {
	t.Helper()
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("test data: %v", err)
	}
	return path
}
