package testdata

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/deepinfer-go/deepinfer/internal/archive"
)

// unpacked returns a folder with the content of an archive. It lives under the temporary directory, named by the archive's hash, and is shared by all test
// processes of this machine: the first one to need it makes it.
func unpacked(t testing.TB, file string) string {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("test data: %v", err)
	}
	sum := sha256.Sum256(raw)
	dir := filepath.Join(os.TempDir(), "deepinfer-testdata-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	files, err := archive.Open(raw)
	if err != nil {
		t.Fatalf("test data %s: %v", file, err)
	}
	tmp, err := os.MkdirTemp(os.TempDir(), "deepinfer-unpack-")
	if err != nil {
		t.Fatalf("unpack test data: %v", err)
	}
	if err := os.CopyFS(tmp, fs.FS(files)); err != nil {
		t.Fatalf("unpack test data: %v", err)
	}
	if err := os.Rename(tmp, dir); err != nil { // another process was faster
		os.RemoveAll(tmp)
		if _, err := os.Stat(dir); err != nil {
			t.Fatalf("unpack test data: %v", err)
		}
	}
	return dir
}
