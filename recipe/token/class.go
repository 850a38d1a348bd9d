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

// unicode16 holds the characters that Unicode 15.1 and 16.0 added to 15.0, the version of package unicode in Go 1.26. The reference library
// (tokenizers 0.23.3) knows them. The table was read off it: every assigned code point outside the large uniform blocks was compared.
// Marks count as letters, which makes no difference to any piece.
var unicode16 = []struct {
	lo, hi rune
	class  uint8
}{
	{0x897, 0x897, classL}, {0x1B4E, 0x1B4F, classPS}, {0x1B7F, 0x1B7F, classPS}, {0x1C89, 0x1C8A, classL}, {0x2427, 0x2429, classPS},
	{0x2FFC, 0x2FFF, classPS}, {0x31E4, 0x31E5, classPS}, {0x31EF, 0x31EF, classPS}, {0xA7CB, 0xA7CD, classL}, {0xA7DA, 0xA7DC, classL},
	{0x105C0, 0x105F3, classL}, {0x10D40, 0x10D49, classN}, {0x10D4A, 0x10D65, classL}, {0x10D69, 0x10D6D, classL}, {0x10D6E, 0x10D6E, classPS},
	{0x10D6F, 0x10D85, classL}, {0x10D8E, 0x10D8F, classPS}, {0x10EC2, 0x10EC4, classL}, {0x10EFC, 0x10EFC, classL}, {0x11380, 0x11389, classL},
	{0x1138B, 0x1138B, classL}, {0x1138E, 0x1138E, classL}, {0x11390, 0x113B5, classL}, {0x113B7, 0x113C0, classL}, {0x113C2, 0x113C2, classL},
	{0x113C5, 0x113C5, classL}, {0x113C7, 0x113CA, classL}, {0x113CC, 0x113D3, classL}, {0x113D4, 0x113D5, classPS}, {0x113D7, 0x113D8, classPS},
	{0x113E1, 0x113E2, classL}, {0x116D0, 0x116E3, classN}, {0x11BC0, 0x11BE0, classL}, {0x11BE1, 0x11BE1, classPS}, {0x11BF0, 0x11BF9, classN},
	{0x11F5A, 0x11F5A, classL}, {0x13460, 0x143FA, classL}, {0x16100, 0x1612F, classL}, {0x16130, 0x16139, classN}, {0x16D40, 0x16D6C, classL},
	{0x16D6D, 0x16D6F, classPS}, {0x16D70, 0x16D79, classN}, {0x18CFF, 0x18CFF, classL}, {0x1CC00, 0x1CCEF, classPS}, {0x1CCF0, 0x1CCF9, classN},
	{0x1CD00, 0x1CEB3, classPS}, {0x1E5D0, 0x1E5F0, classL}, {0x1E5F1, 0x1E5FA, classN}, {0x1E5FF, 0x1E5FF, classPS}, {0x1F8B2, 0x1F8BB, classPS},
	{0x1F8C0, 0x1F8C1, classPS}, {0x1FA89, 0x1FA89, classPS}, {0x1FA8F, 0x1FA8F, classPS}, {0x1FABE, 0x1FABE, classPS}, {0x1FAC6, 0x1FAC6, classPS},
	{0x1FADC, 0x1FADC, classPS}, {0x1FADF, 0x1FADF, classPS}, {0x1FAE9, 0x1FAE9, classPS}, {0x1FBCB, 0x1FBEF, classPS}, {0x2EBF0, 0x2EE5D, classL},
}

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
	for _, r := range unicode16 {
		for c := r.lo; c <= r.hi; c++ {
			t[c] |= r.class
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
