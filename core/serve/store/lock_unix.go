//go:build unix

package store

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock takes the file for this process; the lock ends with the descriptor.
func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
