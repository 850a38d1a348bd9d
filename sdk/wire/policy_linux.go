package wire

import (
	"bytes"
	"os"
	"path"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Policy says how a side waits on the ring.
type Policy struct {
	Spin    bool          // false: only ever park
	SpinCap time.Duration // longest spin at a time
}

// DefaultSpinCap is the longest spin unless the configuration says otherwise.
const DefaultSpinCap = 200 * time.Microsecond

// DefaultPolicy spins only where the peer can run at the same time: GOMAXPROCS and the affinity mask allow two CPUs and no cgroup quota is below two.
// Measured: with one CPU each side burns its whole spin while the other cannot run (104 us a round trip instead of 4).
func DefaultPolicy(cap time.Duration) Policy {
	if cap <= 0 {
		cap = DefaultSpinCap
	}
	return Policy{Spin: runtime.GOMAXPROCS(0) >= 2 && affinity() >= 2 && quota() >= 2, SpinCap: cap}
}

func affinity() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return set.Count()
}

// quota is the CPU quota of this process's cgroup and its parents, in CPUs; large when there is none or it cannot be read.
func quota() float64 {
	const none = 1 << 20
	best := float64(none)
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return best
	}
	for line := range strings.SplitSeq(strings.TrimSpace(string(b)), "\n") {
		f := strings.SplitN(line, ":", 3)
		if len(f) != 3 {
			continue
		}
		switch {
		case f[0] == "0": // cgroup v2
			for p := f[2]; ; p = path.Dir(p) {
				if b, err := os.ReadFile(path.Join("/sys/fs/cgroup", p, "cpu.max")); err == nil {
					best = min(best, parseMax(b, none))
				}
				if p == "/" || p == "." {
					break
				}
			}
		case strings.Contains(","+f[1]+",", ",cpu,"): // cgroup v1
			dir := path.Join("/sys/fs/cgroup/cpu", f[2])
			q, err1 := os.ReadFile(path.Join(dir, "cpu.cfs_quota_us"))
			p, err2 := os.ReadFile(path.Join(dir, "cpu.cfs_period_us"))
			if err1 == nil && err2 == nil {
				best = min(best, parseMax(bytes.Join([][]byte{bytes.TrimSpace(q), bytes.TrimSpace(p)}, []byte(" ")), none))
			}
		}
	}
	return best
}

// parseMax reads "QUOTA PERIOD"; "max" or a negative quota means none.
func parseMax(b []byte, none float64) float64 {
	f := strings.Fields(string(b))
	if len(f) != 2 {
		return none
	}
	q, err1 := strconv.ParseFloat(f[0], 64)
	p, err2 := strconv.ParseFloat(f[1], 64)
	if err1 != nil || err2 != nil || q <= 0 || p <= 0 {
		return none
	}
	return q / p
}
