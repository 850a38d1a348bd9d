//go:build !unix

package checkpoint

import "os"

// mapFile reads a whole file into memory where there is no mmap.
func mapFile(path string) ([]byte, func() error, error) {
	raw, err := os.ReadFile(path)
	return raw, func() error { return nil }, err
}
