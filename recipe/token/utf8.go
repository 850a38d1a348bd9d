package token

import "unicode/utf8"

// replacement is U+FFFD as it stands for one maximal invalid subpart.
const replacement = "\uFFFD"

// subpart looks at the start of b, which is not empty. ok: a whole rune of n bytes. Otherwise n bytes are one maximal invalid subpart
// (as the Unicode standard and the WHATWG decoder define it), and more says that all of b is a prefix of some valid rune.
func subpart(b []byte) (n int, ok, more bool) {
	lead := b[0]
	lo, hi, size := byte(0x80), byte(0xBF), 0
	switch {
	case lead < 0x80:
		return 1, true, false
	case lead < 0xC2:
		return 1, false, false
	case lead < 0xE0:
		size = 2
	case lead < 0xF0:
		size = 3
		if lead == 0xE0 {
			lo = 0xA0
		} else if lead == 0xED {
			hi = 0x9F
		}
	case lead < 0xF5:
		size = 4
		if lead == 0xF0 {
			lo = 0x90
		} else if lead == 0xF4 {
			hi = 0x8F
		}
	default:
		return 1, false, false
	}
	for n = 1; n < size; n++ {
		if n == len(b) {
			return n, false, true
		}
		if b[n] < lo || b[n] > hi {
			return n, false, false
		}
		lo, hi = 0x80, 0xBF
	}
	return size, true, false
}

// appendValid appends b with one U+FFFD for each maximal invalid subpart. With hold it stops before an unfinished rune at the end and
// gives how many bytes that is; without, it replaces them too.
func appendValid(dst, b []byte, hold bool) (out []byte, held int) {
	for len(b) > 0 {
		n, ok, more := subpart(b)
		switch {
		case ok:
			dst = append(dst, b[:n]...)
		case more && hold:
			return dst, len(b)
		default:
			dst = append(dst, replacement...)
		}
		b = b[n:]
	}
	return dst, 0
}

// ValidUTF8 gives s itself when it is valid UTF-8, else a copy with one U+FFFD for each maximal
// invalid subpart, the way a WHATWG decoder does it.
func ValidUTF8(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	out, _ := appendValid(make([]byte, 0, len(s)+16), []byte(s), false)
	return string(out)
}
