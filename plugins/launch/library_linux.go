package launch

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// Library is a sealed private copy of a backend library: the bytes that were hashed are the bytes that will be loaded, whatever happens to the path. It serves any
// number of worker lives until Close.
type Library struct {
	Path   string // where it was read
	Dir    string // directory of its manifest, told to the library as plugin_dir
	SHA256 string // of the sealed bytes, hex
	Bytes  int64

	file *os.File
}

// SealLibrary copies a library into a memfd that nobody can change, hashing on the way. dir is the manifest's directory. want, when not empty, is the pinned
// SHA-256 in hex; other content is refused.
func SealLibrary(path, dir, want string) (*Library, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("backend library: %w", err)
	}
	defer src.Close()
	if st, err := src.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, fmt.Errorf("backend library %s: not a regular file (%v)", path, err)
	}
	fd, err := unix.MemfdCreate("deepinfer-library", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_EXEC)
	if errors.Is(err, unix.EINVAL) { // kernels before 6.3 do not know MFD_EXEC and allow it anyway
		fd, err = unix.MemfdCreate("deepinfer-library", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("backend library %s: memfd_create: %w", path, err)
	}
	l := &Library{Path: path, Dir: dir, file: os.NewFile(uintptr(fd), path)}
	sum := sha256.New()
	if l.Bytes, err = io.Copy(io.MultiWriter(l.file, sum), src); err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_WRITE|unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
		l.file.Close()
		return nil, fmt.Errorf("backend library %s: seal a copy: %w", path, err)
	}
	l.SHA256 = hex.EncodeToString(sum.Sum(nil))
	if want != "" && want != l.SHA256 {
		l.file.Close()
		return nil, fmt.Errorf("backend library %s (%d bytes): sha256 is %s, pinned is %s; run `deepinfer plugin lock` if the change is wanted", path, l.Bytes, l.SHA256, want)
	}
	return l, nil
}

// ReaderAt gives the sealed bytes, for checks before loading.
func (l *Library) ReaderAt() io.ReaderAt { return l.file }

// Close drops the copy. Workers that have it loaded keep it.
func (l *Library) Close() error { return l.file.Close() }
