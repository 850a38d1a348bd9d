package conf

import (
	"strings"
	"time"
)

// durationText prints 10m, not 10m0s, and us in ASCII.
func durationText(d time.Duration) string {
	s := strings.Replace(d.String(), "µ", "u", 1)
	if strings.HasSuffix(s, "m0s") {
		s = s[:len(s)-2]
	}
	if strings.HasSuffix(s, "h0m") {
		s = s[:len(s)-2]
	}
	return s
}
