package conf

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Size is a number of bytes. It is written as a string with a unit, "2GiB" or "512MB" (powers of 1024 and of 1000), or as a plain number of bytes.
type Size int64

var sizeUnits = []struct {
	name   string
	factor float64
}{
	{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10},
	{"TB", 1e12}, {"GB", 1e9}, {"MB", 1e6}, {"kB", 1e3}, {"KB", 1e3}, {"B", 1}, {"", 1},
}

// ParseSize reads "2GiB", "1.5 GB", "65536". Negative numbers, unknown units and sizes of 8 EiB or more are errors.
func ParseSize(s string) (Size, error) {
	text := strings.TrimSpace(s)
	digits := strings.TrimRight(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
	unit := text[len(digits):]
	digits = strings.TrimSpace(digits)
	for _, u := range sizeUnits {
		if !strings.EqualFold(u.name, unit) {
			continue
		}
		if n, err := strconv.ParseInt(digits, 10, 64); err == nil && n >= 0 && float64(n)*u.factor < math.MaxInt64 {
			return Size(n * int64(u.factor)), nil
		}
		f, err := strconv.ParseFloat(digits, 64)
		if err != nil || strings.ContainsAny(digits, "xXpP_") || f < 0 || math.IsNaN(f) || f*u.factor >= math.MaxInt64 {
			break
		}
		return Size(math.Round(f * u.factor)), nil
	}
	return 0, fmt.Errorf("%q is not a size; write a number with a unit, like \"2GiB\" or \"512MB\"", s)
}

// String prints the largest unit that divides the size, so that ParseSize gives the same number back.
func (s Size) String() string {
	if s == 0 {
		return "0B"
	}
	for _, u := range sizeUnits {
		f := int64(u.factor)
		if u.name != "KB" && int64(s)%f == 0 {
			// 1000 and 1024 both divide some sizes: the shorter text reads better.
			if text := strconv.FormatInt(int64(s)/f, 10) + u.name; f == 1 || len(text) <= 8 {
				return text
			}
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}
