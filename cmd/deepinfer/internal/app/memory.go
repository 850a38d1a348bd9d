package app

import (
	"os"
	"strconv"
	"strings"
)

// memoryTotal is main memory in bytes, 0 where the system does not say.
func memoryTotal() int64 {
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(raw)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(f[1], 10, 64)
			if err == nil {
				return kib << 10
			}
		}
	}
	return 0
}
