// Package archive reads the tar.zst files in which this repository carries model data: the embedded demo checkpoint and the golden sets.
//
// Open unpacks an archive into a read-only file system in memory. Used by cmd/deepinfer/demo and internal/fixture. The result is safe for concurrent use.
// docs/golden.md says how the archives are made.
package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"time"

	"github.com/klauspost/compress/zstd"
)

// maxBytes bounds what an archive may unpack to.
const maxBytes = 1 << 30

// FS is an unpacked archive.
type FS struct {
	files map[string][]byte
	dirs  map[string][]fs.DirEntry
}

// Open unpacks data.
func Open(data []byte) (*FS, error) {
	dec, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(0))
	if err != nil {
		return nil, fmt.Errorf("open archive: %w", err)
	}
	defer dec.Close()
	f := &FS{files: map[string][]byte{}, dirs: map[string][]fs.DirEntry{".": nil}}
	var total int64
	for r := tar.NewReader(dec); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read archive: %w", err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if !fs.ValidPath(name) || h.Size < 0 || total+h.Size > maxBytes {
			return nil, fmt.Errorf("read archive: entry %q of %d bytes", h.Name, h.Size)
		}
		total += h.Size
		b := make([]byte, h.Size)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, fmt.Errorf("read archive: %s: %w", name, err)
		}
		f.add(name, b)
	}
	for _, list := range f.dirs {
		sort.Slice(list, func(i, j int) bool { return list[i].Name() < list[j].Name() })
	}
	return f, nil
}

func (f *FS) add(name string, b []byte) {
	f.files[name] = b
	entry := fs.FileInfoToDirEntry(info{name: path.Base(name), size: int64(len(b))})
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		_, known := f.dirs[dir]
		f.dirs[dir] = append(f.dirs[dir], entry)
		if known || dir == "." {
			return
		}
		entry = fs.FileInfoToDirEntry(info{name: path.Base(dir), dir: true})
	}
}

// Open implements fs.FS.
func (f *FS) Open(name string) (fs.File, error) {
	if b, ok := f.files[name]; ok {
		return &file{Reader: *bytes.NewReader(b), info: info{name: path.Base(name), size: int64(len(b))}}, nil
	}
	if list, ok := f.dirs[name]; ok {
		return &dir{info: info{name: path.Base(name), dir: true}, rest: list}, nil
	}
	return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
}

// ReadFile implements fs.ReadFileFS; the caller owns the bytes.
func (f *FS) ReadFile(name string) ([]byte, error) {
	if b, ok := f.files[name]; ok {
		return bytes.Clone(b), nil
	}
	return nil, &fs.PathError{Op: "read", Path: name, Err: fs.ErrNotExist}
}

type info struct {
	name string
	size int64
	dir  bool
}

func (i info) Name() string { return i.name }
func (i info) Size() int64  { return i.size }
func (i info) Mode() fs.FileMode {
	if i.dir {
		return fs.ModeDir | 0o555
	}
	return 0o444
}
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return i.dir }
func (i info) Sys() any           { return nil }

type file struct {
	bytes.Reader
	info info
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

type dir struct {
	info info
	rest []fs.DirEntry
}

func (d *dir) Stat() (fs.FileInfo, error) { return d.info, nil }
func (d *dir) Close() error               { return nil }
func (d *dir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: d.info.name, Err: errors.New("is a directory")}
}

// ReadDir implements fs.ReadDirFile.
func (d *dir) ReadDir(n int) ([]fs.DirEntry, error) {
	if n <= 0 {
		list := d.rest
		d.rest = nil
		return list, nil
	}
	if len(d.rest) == 0 {
		return nil, io.EOF
	}
	n = min(n, len(d.rest))
	list := d.rest[:n]
	d.rest = d.rest[n:]
	return list, nil
}
