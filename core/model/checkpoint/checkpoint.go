package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// IndexFile is the name of the file that says which shard holds which tensor.
const IndexFile = "model.safetensors.index.json"

// maxIndex bounds the index file and other small files beside the shards. The release's index has 8 MB.
const maxIndex = 256 << 20

// Tensor is one tensor of a checkpoint.
type Tensor struct {
	Name   string // without the optional prefix "model."
	DType  DType
	Shape  []int  // row-major
	Bytes  []byte // little endian, read-only; not necessarily aligned to the element size
	File   string // the shard: an absolute path for Open, the name within the file system for OpenFS
	Offset int64  // of the first byte, from the start of File
}

// Elements returns the number of elements.
func (t Tensor) Elements() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= int64(d)
	}
	return n
}

// Shard is one safetensors file of a checkpoint.
type Shard struct {
	File  string // as Tensor.File
	Bytes int64  // size of the file
	Data  []byte // the whole file, read-only, valid until Close
}

// Checkpoint holds the tensors of a directory. Make one with Open or OpenFS.
type Checkpoint struct {
	dir     string
	files   fs.FS
	tensors map[string]Tensor
	names   []string
	shards  []Shard
	notes   []string
	unmap   []func() error
}

// Open maps the checkpoint in the directory dir: the shards that model.safetensors.index.json names or, without an index, every
// *.safetensors file. Damaged or inconsistent files make it fail with all problems joined; what the tensors should be is the business of Verify.
//
// The files must not shrink while the checkpoint is open: reading a page beyond the end of a mapped file kills the process.
func Open(dir string) (*Checkpoint, error) {
	c, problems, err := Scan(dir)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		c.Close()
		return nil, fmt.Errorf("open checkpoint %s:\n%w", dir, Join(problems))
	}
	return c, nil
}

// Scan is Open for a checkpoint that may be damaged: it returns the problems and what could be read nevertheless. The error
// is for a directory that cannot be read or holds no safetensors file at all.
func Scan(dir string) (*Checkpoint, []Problem, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open checkpoint %s: %w", dir, err)
	}
	return scan(os.DirFS(abs), dir, func(c *Checkpoint, name string) (string, []byte, error) {
		path := filepath.Join(abs, name)
		raw, unmap, err := mapFile(path)
		if err == nil {
			c.unmap = append(c.unmap, unmap)
		}
		return path, raw, err
	})
}

// OpenFS reads the checkpoint at the root of a file system, such as an embedded one, into memory. name names it in
// errors; Tensor.File holds names within files.
func OpenFS(files fs.FS, name string) (*Checkpoint, error) {
	c, problems, err := scan(files, name, func(_ *Checkpoint, shard string) (string, []byte, error) {
		raw, err := fs.ReadFile(files, shard)
		return shard, raw, err
	})
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, fmt.Errorf("open checkpoint %s:\n%w", name, Join(problems))
	}
	return c, nil
}

type loader func(c *Checkpoint, name string) (file string, raw []byte, err error)

func scan(files fs.FS, dir string, load loader) (*Checkpoint, []Problem, error) {
	c := &Checkpoint{dir: dir, files: files, tensors: map[string]Tensor{}}
	present, err := safetensorsFiles(files)
	if err != nil {
		return nil, nil, fmt.Errorf("open checkpoint %s: %w", dir, err)
	}
	index, total, problems, err := readIndex(files)
	if err != nil {
		return nil, nil, fmt.Errorf("open checkpoint %s: %w", dir, err)
	}
	shards := present
	if index != nil {
		named := map[string]bool{}
		for _, file := range index {
			named[file] = true
		}
		shards = sortedKeys(named)
		for _, file := range present {
			if !named[file] {
				c.notes = append(c.notes, fmt.Sprintf("%s is not in the index and was ignored", file))
			}
		}
	}
	if len(shards) == 0 {
		if len(problems) > 0 {
			return c, problems, nil
		}
		return nil, nil, fmt.Errorf("open checkpoint %s: no safetensors file and no %s: %w", dir, IndexFile, fs.ErrNotExist)
	}
	if index == nil {
		problems = append(problems, missingShards(shards)...)
	}
	var sum int64
	raw := map[string]Tensor{} // by the name in the file
	unread := map[string]bool{}
	for _, shard := range shards {
		file, data, err := load(c, shard)
		if err != nil {
			problems = append(problems, Problem{KindFile, shard, shardError(err)})
			unread[shard] = true
			continue
		}
		c.shards = append(c.shards, Shard{File: file, Bytes: int64(len(data)), Data: data})
		entries, payload, bad := parseHeader(shard, data, int64(len(data)))
		problems = append(problems, bad...)
		unread[shard] = len(bad) > 0
		for _, e := range entries {
			if old, ok := raw[e.name]; ok {
				problems = append(problems, Problem{KindFile, e.name, fmt.Sprintf("lies in two shards, %s and %s", filepath.Base(old.File), shard)})
				continue
			}
			if index != nil {
				switch want, ok := index[e.name]; {
				case !ok:
					problems = append(problems, Problem{KindFile, e.name, fmt.Sprintf("lies in %s but is not in %s", shard, IndexFile)})
				case want != shard:
					problems = append(problems, Problem{KindFile, e.name, fmt.Sprintf("lies in %s, but %s says %s", shard, IndexFile, want)})
				}
			}
			raw[e.name] = e.tensor(file, payload, data)
			sum += e.end - e.begin
		}
	}
	for _, name := range sortedKeys(index) {
		// A shard that could not be read has its own problem; naming each of its tensors would bury it.
		if _, ok := raw[name]; !ok && !unread[index[name]] {
			problems = append(problems, Problem{KindFile, name, fmt.Sprintf("is not in %s, where %s puts it", index[name], IndexFile)})
		}
	}
	if total > 0 && total != sum && len(problems) == 0 {
		c.notes = append(c.notes, fmt.Sprintf("%s says total_size %d, the tensors have %d bytes", IndexFile, total, sum))
	}
	problems = append(problems, c.adopt(raw)...)
	return c, problems, nil
}

func shardError(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "the shard is missing"
	}
	return fmt.Sprintf("the shard cannot be read: %v", err)
}

// Copies of the shared embedding and head in a draft stage; official loaders ignore them too.
var sharedCopy = regexp.MustCompile(`^mtp\.\d+\.(embed|head)\.(weight|scale)$`)

// adopt applies the naming rules: an optional model. prefix on all names or none, and no copies of shared tensors.
func (c *Checkpoint) adopt(raw map[string]Tensor) []Problem {
	var with, without string
	for _, name := range sortedKeys(raw) {
		if strings.HasPrefix(name, "model.") {
			with = name
		} else {
			without = name
		}
	}
	var problems []Problem
	if with != "" && without != "" {
		problems = append(problems, Problem{KindName, with, fmt.Sprintf("has the prefix model., %s has not; want it on all names or on none", without)})
	}
	for _, name := range sortedKeys(raw) {
		t := raw[name]
		t.Name = strings.TrimPrefix(name, "model.")
		if sharedCopy.MatchString(t.Name) {
			c.notes = append(c.notes, fmt.Sprintf("%s was ignored: draft stages share the backbone's embedding and head", t.Name))
			continue
		}
		if _, ok := c.tensors[t.Name]; ok {
			continue // both forms of one name; the problem above names the mixture
		}
		c.tensors[t.Name] = t
		c.names = append(c.names, t.Name)
	}
	sort.Strings(c.names)
	return problems
}

func safetensorsFiles(files fs.FS) ([]string, error) {
	entries, err := fs.ReadDir(files, ".")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if !e.IsDir() && strings.HasSuffix(e.Name(), ".safetensors") {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

var numbered = regexp.MustCompile(`^(.*)-(\d{5})-of-(\d{5})\.safetensors$`)

// missingShards checks the numbering of shards without an index: name-0000i-of-0000n must be complete.
func missingShards(shards []string) []Problem {
	var problems []Problem
	for _, shard := range shards {
		m := numbered.FindStringSubmatch(shard)
		if m == nil {
			continue
		}
		var n int
		if fmt.Sscanf(m[3], "%d", &n); n > len(shards)+1000 {
			n = len(shards) + 1000
		}
		for i := 1; i <= n; i++ {
			if want := fmt.Sprintf("%s-%05d-of-%s.safetensors", m[1], i, m[3]); !slices.Contains(shards, want) {
				problems = append(problems, Problem{KindFile, want, "the shard is missing"})
			}
		}
		return problems
	}
	return nil
}

// readIndex reads the index file; a nil map means there is none.
func readIndex(files fs.FS) (index map[string]string, total int64, problems []Problem, err error) {
	info, err := fs.Stat(files, IndexFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil, nil
	}
	if err != nil {
		return nil, 0, nil, err
	}
	if info.Size() > maxIndex {
		return map[string]string{}, 0, []Problem{{KindFile, IndexFile, fmt.Sprintf("has %d bytes, more than the limit of %d", info.Size(), maxIndex)}}, nil
	}
	raw, err := fs.ReadFile(files, IndexFile)
	if err != nil {
		return nil, 0, nil, err
	}
	var doc struct {
		Metadata struct {
			Total json.Number `json:"total_size"`
		} `json:"metadata"`
		Map map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return map[string]string{}, 0, []Problem{{KindFile, IndexFile, fmt.Sprintf("is not an index: %v", err)}}, nil
	}
	if len(doc.Map) == 0 {
		return map[string]string{}, 0, []Problem{{KindFile, IndexFile, "weight_map is empty or missing"}}, nil
	}
	for _, name := range sortedKeys(doc.Map) {
		// A shard is a file of the same directory; anything else could leave it.
		if file := doc.Map[name]; strings.ContainsAny(file, `/\`) || !strings.HasSuffix(file, ".safetensors") || !fs.ValidPath(file) {
			problems = append(problems, Problem{KindFile, name, fmt.Sprintf("%s puts it in %q, want a .safetensors file of the same directory", IndexFile, file)})
			delete(doc.Map, name)
		}
	}
	total, _ = doc.Metadata.Total.Int64()
	return doc.Map, total, problems, nil
}

// Tensor returns a tensor by name, without the optional prefix "model.".
func (c *Checkpoint) Tensor(name string) (Tensor, bool) {
	t, ok := c.tensors[name]
	return t, ok
}

// Names returns all tensor names in lexical order. The slice is the caller's.
func (c *Checkpoint) Names() []string { return slices.Clone(c.names) }

// Shards returns the files of the checkpoint in order of their names.
func (c *Checkpoint) Shards() []Shard { return slices.Clone(c.shards) }

// Notes returns remarks about things that were ignored, such as files outside the index.
func (c *Checkpoint) Notes() []string { return slices.Clone(c.notes) }

// Dir returns the directory or name the checkpoint was opened with.
func (c *Checkpoint) Dir() string { return c.dir }

// Files returns the file system the checkpoint lies in, for config.json, tokenizer.json and the like.
func (c *Checkpoint) Files() fs.FS { return c.files }

// Bytes returns the bytes of all tensors.
func (c *Checkpoint) Bytes() int64 {
	var n int64
	for _, t := range c.tensors {
		n += int64(len(t.Bytes))
	}
	return n
}

// Close unmaps the files. Tensor bytes must not be used afterwards. It may be called more than once.
func (c *Checkpoint) Close() error {
	var errs []error
	for _, unmap := range c.unmap {
		errs = append(errs, unmap())
	}
	c.unmap, c.tensors, c.names = nil, nil, nil
	return errors.Join(errs...)
}

func sortedKeys[V any](m map[string]V) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	sort.Strings(out)
	return out
}
