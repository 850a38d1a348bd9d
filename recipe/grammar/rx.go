package grammar

import (
	"math/bits"
	"unicode/utf8"
)

// byteSet is a set of byte values.
type byteSet [4]uint64

func (s *byteSet) add(b byte)      { s[b>>6] |= 1 << (b & 63) }
func (s *byteSet) has(b byte) bool { return s[b>>6]&(1<<(b&63)) != 0 }
func (s *byteSet) or(o *byteSet) {
	s[0] |= o[0]
	s[1] |= o[1]
	s[2] |= o[2]
	s[3] |= o[3]
}
func (s *byteSet) empty() bool { return s[0]|s[1]|s[2]|s[3] == 0 }
func (s *byteSet) count() int {
	return bits.OnesCount64(s[0]) + bits.OnesCount64(s[1]) + bits.OnesCount64(s[2]) + bits.OnesCount64(s[3])
}

var allBytes = byteSet{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}

// rx is a regular expression over bytes.
type rx struct {
	op       rxOp
	lo, hi   byte // rxRange
	lit      string
	sub      []*rx
	min, max int // rxRepeat; max < 0 is no bound
}

type rxOp uint8

const (
	rxLit rxOp = iota // the zero rx is the empty word
	rxRange
	rxCat
	rxAlt // without alternatives: nothing matches
	rxRepeat
)

func lit(s string) *rx          { return &rx{op: rxLit, lit: s} }
func byteRange(lo, hi byte) *rx { return &rx{op: rxRange, lo: lo, hi: hi} }
func cat(sub ...*rx) *rx        { return &rx{op: rxCat, sub: sub} }
func alt(sub ...*rx) *rx        { return &rx{op: rxAlt, sub: sub} }
func repeat(x *rx, min, max int) *rx {
	return &rx{op: rxRepeat, sub: []*rx{x}, min: min, max: max}
}
func star(x *rx) *rx { return repeat(x, 0, -1) }
func plus(x *rx) *rx { return repeat(x, 1, -1) }
func opt(x *rx) *rx  { return repeat(x, 0, 1) }

// oneOf matches one of the bytes of s.
func oneOf(s string) *rx {
	r := alt()
	for i := range len(s) {
		r.sub = append(r.sub, byteRange(s[i], s[i]))
	}
	return r
}

// utf8Range appends the UTF-8 forms of the scalar values lo..hi to dst, one byte sequence of ranges each.
func utf8Range(dst []*rx, lo, hi rune) []*rx {
	if lo > hi {
		return dst
	}
	if lo < 0xD800 && hi > 0xDFFF { // surrogates have no form
		return utf8Range(utf8Range(dst, lo, 0xD7FF), 0xE000, hi)
	}
	if lo >= 0xD800 && lo <= 0xDFFF {
		lo = 0xE000
	}
	if hi >= 0xD800 && hi <= 0xDFFF {
		hi = 0xD7FF
	}
	if lo > hi {
		return dst
	}
	for _, edge := range [...]rune{0x7F, 0x7FF, 0xFFFF} {
		if lo <= edge && hi > edge {
			return utf8Range(utf8Range(dst, lo, edge), edge+1, hi)
		}
	}
	if hi <= 0x7F {
		return append(dst, byteRange(byte(lo), byte(hi)))
	}
	// Cut until all trailing bytes span their whole range or the leading ones are equal.
	for i := 1; i < utf8.UTFMax; i++ {
		m := rune(1)<<(6*i) - 1
		if lo&^m != hi&^m {
			if lo&m != 0 {
				return utf8Range(utf8Range(dst, lo, lo|m), (lo|m)+1, hi)
			}
			if hi&m != m {
				return utf8Range(utf8Range(dst, lo, (hi&^m)-1), hi&^m, hi)
			}
		}
	}
	var a, b [utf8.UTFMax]byte
	n := utf8.EncodeRune(a[:], lo)
	utf8.EncodeRune(b[:], hi)
	seq := cat()
	for i := range n {
		seq.sub = append(seq.sub, byteRange(a[i], b[i]))
	}
	return append(dst, seq)
}

// encode says how the characters of a text stand in the output.
type encode uint8

const (
	encodeRaw  encode = iota // UTF-8
	encodeJSON               // inside a JSON string: UTF-8, what must be escaped is escaped
)

// escapes are the characters with an escape of two bytes that must not stand raw.
var escapes = [...]struct {
	r    rune
	form string
}{{'"', `\"`}, {'\\', `\\`}, {'\b', `\b`}, {'\t', `\t`}, {'\n', `\n`}, {'\f', `\f`}, {'\r', `\r`}}

// runes matches one character of the ranges (lo, hi, lo, hi, …).
func (e encode) runes(ranges []rune) *rx {
	r := alt()
	for i := 0; i+1 < len(ranges); i += 2 {
		lo, hi := ranges[i], min(ranges[i+1], utf8.MaxRune)
		if e == encodeRaw {
			r.sub = utf8Range(r.sub, lo, hi)
			continue
		}
		for _, x := range escapes {
			if lo <= x.r && x.r <= hi {
				r.sub = append(r.sub, lit(x.form))
			}
		}
		for c := lo; c <= hi && c < 0x20; c++ {
			r.sub = append(r.sub, cat(lit(`\u00`), byteRange('0'+byte(c>>4), '0'+byte(c>>4)), hexDigit(byte(c&15))))
		}
		from := max(lo, 0x20)
		for _, x := range [...]rune{'"', '\\'} {
			if from <= x && x <= hi {
				r.sub = utf8Range(r.sub, from, x-1)
				from = x + 1
			}
		}
		r.sub = utf8Range(r.sub, from, hi)
	}
	return r
}

// hexDigit matches a hexadecimal digit in either case.
func hexDigit(v byte) *rx {
	if v < 10 {
		return byteRange('0'+v, '0'+v)
	}
	return alt(byteRange('a'+v-10, 'a'+v-10), byteRange('A'+v-10, 'A'+v-10))
}

// anyHex matches any hexadecimal digit.
func anyHex() *rx { return alt(byteRange('0', '9'), byteRange('a', 'f'), byteRange('A', 'F')) }

// jsonChar matches one character of a JSON string in any form: raw, short escape, \uXXXX, or a pair of surrogates. Lone surrogates have
// no character and do not match.
func jsonChar() *rx {
	h := anyHex()
	r := alt(cat(lit(`\`), oneOf(`"\/bfnrt`)),
		cat(lit(`\u`), alt(
			cat(alt(byteRange('0', '9'), oneOf("abcefABCEF")), h, h, h),
			cat(oneOf("dD"), byteRange('0', '7'), h, h),
			cat(oneOf("dD"), oneOf("89abAB"), h, h, lit(`\u`), oneOf("dD"), oneOf("cdefCDEF"), h, h))))
	r.sub = utf8Range(r.sub, 0x20, '"'-1)
	r.sub = utf8Range(r.sub, '"'+1, '\\'-1)
	r.sub = utf8Range(r.sub, '\\'+1, utf8.MaxRune)
	return r
}

// rawChar matches one character of raw text.
func rawChar() *rx { return alt(utf8Range(nil, 0, utf8.MaxRune)...) }
