//go:build unix

package catalog

import (
	"fmt"
	"os"
	"syscall"
)

// trusted refuses files that somebody else may change: whoever can write a library runs code as this user.
func trusted(path string) error {
	st, err := os.Stat(path)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: owner cannot be read", path)
	}
	uid, gid := os.Geteuid(), os.Getegid()
	switch {
	case sys.Uid != 0 && int(sys.Uid) != uid:
		return fmt.Errorf("%s belongs to user %d; a backend must belong to root or to user %d, who runs this program", path, sys.Uid, uid)
	case st.Mode()&0o002 != 0:
		return fmt.Errorf("%s (%s) is writable for everyone; `chmod o-w %s`", path, st.Mode(), path)
	case st.Mode()&0o020 != 0 && sys.Gid != 0 && int(sys.Gid) != gid:
		return fmt.Errorf("%s (%s) is writable for group %d; `chmod g-w %s`", path, st.Mode(), sys.Gid, path)
	}
	return nil
}
