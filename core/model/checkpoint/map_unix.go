//go:build unix

package checkpoint

import (
	"fmt"
	"os"
	"syscall"
)

// mapFile maps a whole file read-only. The mapping is shared, so all processes that map a shard use the same pages.
func mapFile(path string) ([]byte, func() error, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, fmt.Errorf("%s is not a regular file", path)
	}
	size := info.Size()
	if size == 0 {
		return nil, func() error { return nil }, nil
	}
	if size != int64(int(size)) {
		return nil, nil, fmt.Errorf("%s has %d bytes, too many for this platform's address space", path, size)
	}
	raw, err := syscall.Mmap(int(f.Fd()), 0, int(size), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, nil, fmt.Errorf("map %s (%d bytes): %w", path, size, err)
	}
	return raw, func() error { return syscall.Munmap(raw) }, nil
}
