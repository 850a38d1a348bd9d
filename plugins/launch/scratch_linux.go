package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	scratchPrefix = "deepinfer-worker-"
	sweepAge      = time.Minute // a directory younger than this may be about to be claimed
)

// claim locks a scratch directory for as long as the file stays open. The lock goes with this process, however it ends.
func claim(dir string) (*os.File, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// sweep removes scratch directories of engines that were killed before they could. Those of live engines are locked; those of other users are left alone.
func sweep(tmp string, now time.Time) {
	list, err := os.ReadDir(tmp)
	if err != nil {
		return // sweeping is a courtesy
	}
	for _, e := range list {
		if !e.IsDir() || !strings.HasPrefix(e.Name(), scratchPrefix) {
			continue
		}
		path := filepath.Join(tmp, e.Name())
		var st unix.Stat_t
		if unix.Lstat(path, &st) != nil || int(st.Uid) != os.Geteuid() || now.Sub(time.Unix(st.Mtim.Unix())) < sweepAge {
			continue
		}
		if f, err := claim(path); err == nil {
			os.RemoveAll(path)
			f.Close()
		}
	}
}
