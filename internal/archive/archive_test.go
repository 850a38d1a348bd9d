package archive

import (
	"archive/tar"
	"bytes"
	"testing"
	"testing/fstest"

	"github.com/klauspost/compress/zstd"
)

func pack(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var raw bytes.Buffer
	z, err := zstd.NewWriter(&raw)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for name, body := range files {
		if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(body)), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(body)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return raw.Bytes()
}

func TestFileSystem(t *testing.T) {
	f, err := Open(pack(t, map[string]string{"./config.json": "{}", "a/b/c.bin": "xyz", "a/d": ""}))
	if err != nil {
		t.Fatal(err)
	}
	if err := fstest.TestFS(f, "config.json", "a/b/c.bin", "a/d"); err != nil {
		t.Fatal(err)
	}
}

func TestBadArchives(t *testing.T) {
	good := pack(t, map[string]string{"a": "hello, this is a file"})
	for name, raw := range map[string][]byte{"empty": nil, "garbage": []byte("not an archive"), "cut": good[:len(good)-9], "escape": pack(t, map[string]string{"../x": "1"})} {
		if f, err := Open(raw); err == nil && len(f.files) > 0 {
			t.Errorf("%s: accepted with %d files", name, len(f.files))
		}
	}
}
