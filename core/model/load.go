package model

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"

	"github.com/deepinfer-go/deepinfer/core/model/checkpoint"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Model is an opened checkpoint directory: configuration, weights and what belongs to them.
type Model struct {
	Config     *config.Config
	Generation config.Generation // defaults of generation_config.json
	Checkpoint *checkpoint.Checkpoint
	Weights    *Weights
	Files      fs.FS  // the directory, for tokenizer.json
	Digest     string // identity of the weights: config, shard headers and sizes (hex)
}

// Load opens the checkpoint in dir. Shards are mapped, nothing is read yet. Close it after the last use of its weights.
func Load(dir string) (*Model, error) {
	info, err := os.Stat(dir)
	if err == nil && !info.IsDir() {
		err = errors.New("not a directory")
	}
	if err != nil {
		return nil, fmt.Errorf("open model %s: %w; give the directory that holds config.json and the safetensors files", dir, err)
	}
	cfg, err := config.Load(dir)
	if err != nil {
		return nil, err
	}
	ck, err := checkpoint.Open(dir)
	if err != nil {
		return nil, err
	}
	return load(cfg, ck, os.DirFS(dir), dir)
}

// LoadFS opens a checkpoint at the root of a file system, such as the embedded demo, into memory. name appears in errors.
func LoadFS(files fs.FS, name string) (*Model, error) {
	cfg, err := config.LoadFS(files, name)
	if err != nil {
		return nil, err
	}
	ck, err := checkpoint.OpenFS(files, name)
	if err != nil {
		return nil, err
	}
	return load(cfg, ck, files, name)
}

func load(cfg *config.Config, ck *checkpoint.Checkpoint, files fs.FS, name string) (m *Model, err error) {
	defer func() {
		if err != nil {
			ck.Close()
		}
	}()
	m = &Model{Config: cfg, Checkpoint: ck, Files: files}
	if m.Generation, err = config.LoadGenerationFS(files, name, cfg); err != nil {
		return nil, err
	}
	if err = complete(ck, cfg); err != nil {
		return nil, fmt.Errorf("open model %s: %w\n(`deepinfer model verify` checks every value)", name, err)
	}
	if m.Weights, err = newWeights(ck, cfg); err != nil {
		return nil, fmt.Errorf("open model %s: %w", name, err)
	}
	m.Digest = digest(ck, cfg)
	return m, nil
}

// complete checks names, dtypes and shapes of every tensor against the configuration, without reading values.
func complete(ck *checkpoint.Checkpoint, cfg *config.Config) error {
	const show = 8
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	for _, e := range checkpoint.Inventory(cfg) {
		t, ok := ck.Tensor(e.Name)
		switch {
		case !ok:
			bad("tensor %s is missing", e.Name)
		case t.DType != e.DType || !sameShape(t.Shape, e.Shape):
			bad("tensor %s is %s %v, the configuration needs %s %v", e.Name, t.DType, t.Shape, e.DType, e.Shape)
		}
	}
	if n := len(errs); n > show {
		errs = append(errs[:show], fmt.Errorf("and %d more", n-show))
	}
	return errors.Join(errs...)
}

func sameShape(a, b []int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// Close unmaps the shards.
func (m *Model) Close() error { return m.Checkpoint.Close() }

// digest hashes what identifies the weights without reading them all: configuration, tensor table, and a sample of each tensor's bytes.
func digest(ck *checkpoint.Checkpoint, cfg *config.Config) string {
	h := sha256.New()
	fmt.Fprintf(h, "di-model-v1|%+v\n", *cfg)
	names := ck.Names()
	sort.Strings(names)
	for _, n := range names {
		t, _ := ck.Tensor(n)
		fmt.Fprintf(h, "%s|%s|%v|%d\n", n, t.DType, t.Shape, len(t.Bytes))
		for at := 0; at < len(t.Bytes); at += max(len(t.Bytes)/4, 1) {
			h.Write(t.Bytes[at:min(at+32, len(t.Bytes))])
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Weights offers a checkpoint's tensors, and the Engram token map as one more, to executors. It implements backend.WeightSource.
type Weights struct {
	ck    *checkpoint.Checkpoint
	files []backend.WeightFile
	index map[string]int // file name to index
	extra map[string]backend.TensorInfo
}

func newWeights(ck *checkpoint.Checkpoint, cfg *config.Config) (*Weights, error) {
	w := &Weights{ck: ck, index: map[string]int{}, extra: map[string]backend.TensorInfo{}}
	for _, s := range ck.Shards() {
		f := backend.WeightFile{Name: filepath.Base(s.File), Data: s.Data}
		if filepath.IsAbs(s.File) {
			f.Path = s.File
		}
		w.index[s.File] = len(w.files)
		w.files = append(w.files, f)
	}
	if len(cfg.EngramLayerIDs) > 0 {
		ids, err := ck.TokenMap(cfg)
		if err != nil {
			return nil, err
		}
		raw := make([]byte, 0, 4*len(ids))
		for _, id := range ids {
			raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
		}
		w.extra[TokenMap] = backend.TensorInfo{Name: TokenMap, DType: "I32", Shape: []int64{int64(len(ids))}, File: len(w.files), Size: int64(len(raw))}
		w.files = append(w.files, backend.WeightFile{Name: TokenMap, Data: raw})
	}
	return w, nil
}

// Tensor finds a tensor by its name without the prefix "model.".
func (w *Weights) Tensor(name string) (backend.TensorInfo, bool) {
	if t, ok := w.extra[name]; ok {
		return t, true
	}
	t, ok := w.ck.Tensor(name)
	if !ok {
		return backend.TensorInfo{}, false
	}
	shape := make([]int64, len(t.Shape))
	for i, d := range t.Shape {
		shape[i] = int64(d)
	}
	return backend.TensorInfo{Name: name, DType: string(t.DType), Shape: shape, File: w.index[t.File], Offset: t.Offset, Size: int64(len(t.Bytes))}, true
}

// Files returns the shards in order, then the computed tables.
func (w *Weights) Files() []backend.WeightFile { return w.files }

// Names lists every tensor, computed tables included.
func (w *Weights) Names() []string {
	names := w.ck.Names()
	for n := range w.extra {
		names = append(names, n)
	}
	return names
}
