package token

import (
	"sync"
	"unicode"
)

// Character classes of the pre-tokenizer's expressions, one bit each.
const (
	classN    = 1 << iota // \p{N}
	classCJK              // [一-龥぀-ゟ゠-ヿ]
	classL                // \p{L}
	classM                // \p{M}
	classPS               // [\p{P}\p{S}]
	classW                // \s
	classCRLF             // [\r\n]
)

// classes maps a code point to its class bits. A flat table of one byte a code point is 1.1 MB, of which a text touches a few lines;
// the tables of package unicode would cost a binary search per character. Built once, on the first use of a tokenizer.
var classes = sync.OnceValue(func() *[unicode.MaxRune + 1]uint8 {
	t := new([unicode.MaxRune + 1]uint8)
	set := func(bits uint8, tables ...*unicode.RangeTable) {
		for _, table := range tables {
			for _, r := range table.R16 {
				for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
					t[c] |= bits
				}
			}
			for _, r := range table.R32 {
				for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
					t[c] |= bits
				}
			}
		}
	}
	set(classN, unicode.N)
	set(classL, unicode.L)
	set(classM, unicode.M)
	set(classPS, unicode.P, unicode.S)
	set(classW, unicode.White_Space)
	for _, r := range [][2]rune{{0x4E00, 0x9FA5}, {0x3040, 0x30FF}} {
		for c := r[0]; c <= r[1]; c++ {
			t[c] |= classCJK
		}
	}
	t['\r'] |= classCRLF
	t['\n'] |= classCRLF
	return t
})

func asciiLetter(c byte) bool { c |= 0x20; return c >= 'a' && c <= 'z' }

// asciiPunct says whether c is one of the 32 printable ASCII characters that are neither letter, digit nor space.
func asciiPunct(c byte) bool {
	return c >= '!' && c <= '/' || c >= ':' && c <= '@' || c >= '[' && c <= '`' || c >= '{' && c <= '~'
}
