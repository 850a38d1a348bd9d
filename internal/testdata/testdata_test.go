package testdata

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSharedDataIsThere(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained"} {
		dir := Dir(t, "model/"+set)
		for _, file := range []string{"checkpoint/config.json", "checkpoint/model.safetensors.index.json", "golden.json", "golden.safetensors"} {
			if _, err := os.Stat(filepath.Join(dir, filepath.FromSlash(file))); err != nil {
				t.Error(err)
			}
		}
	}
	if len(Read(t, "image/images.json")) == 0 || len(Read(t, "demo/golden.jsonl")) == 0 {
		t.Error("empty golden files")
	}
	if _, err := os.Stat(filepath.Join(Demo(t), "tokenizer.json")); err != nil {
		t.Error(err)
	}
}
