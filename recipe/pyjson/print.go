package pyjson

import (
	"strconv"
	"strings"
)

// Style says how numbers are printed. Everything else is the same: ", " and ": " between items, no escape but for the quote, the
// backslash and control characters.
type Style uint8

const (
	// Python prints integers that fit 64 bits as they stand, every other number as the repr of its float64 (1e-05, 1.5e-07, 1e+16).
	Python Style = iota
	// Rust differs in the exponent: no leading zero, and fixed notation down to 0.00001 (1.5e-7, 1e-6).
	Rust
	// Exact is Python with integers of any length as they stand.
	Exact
)

// String prints v.
func (v *Value) String(style Style) string { return string(v.Append(nil, style)) }

// Append appends v as it stands in a prompt.
func (v *Value) Append(dst []byte, style Style) []byte {
	switch v.Kind {
	case Null:
		return append(dst, "null"...)
	case False:
		return append(dst, "false"...)
	case True:
		return append(dst, "true"...)
	case Number:
		return AppendNumber(dst, v.Text, style)
	case String:
		return AppendString(dst, v.Text)
	case Array:
		dst = append(dst, '[')
		for i := range v.Elems {
			if i > 0 {
				dst = append(dst, ", "...)
			}
			dst = v.Elems[i].Append(dst, style)
		}
		return append(dst, ']')
	}
	dst = append(dst, '{')
	for i := range v.Members {
		if i > 0 {
			dst = append(dst, ", "...)
		}
		dst = AppendString(dst, v.Members[i].Key)
		dst = append(dst, ": "...)
		dst = v.Members[i].Value.Append(dst, style)
	}
	return append(dst, '}')
}

// AppendString appends s, which should be valid UTF-8, as a JSON string.
func AppendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 0x20 && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, `\n`...)
		case '\r':
			dst = append(dst, `\r`...)
		case '\t':
			dst = append(dst, `\t`...)
		case '\b':
			dst = append(dst, `\b`...)
		case '\f':
			dst = append(dst, `\f`...)
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"')
}

// AppendNumber appends the number spelled text in a style.
func AppendNumber(dst []byte, text string, style Style) []byte {
	if !strings.ContainsAny(text, ".eE") {
		if style == Exact {
			if text == "-0" { // Python has one integer zero
				text = "0"
			}
			return append(dst, text...)
		}
		if _, err := strconv.ParseUint(text, 10, 64); err == nil {
			return append(dst, text...)
		}
		if v, err := strconv.ParseInt(text, 10, 64); err == nil && v != 0 { // -0 is the float -0.0 in the reference
			return append(dst, text...)
		}
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil { // Parse refuses such numbers; a hand-made Value gets its text back
		return append(dst, text...)
	}
	var buf [32]byte
	sci := string(strconv.AppendFloat(buf[:0], f, 'e', -1, 64))
	mantissa, exponent, _ := strings.Cut(sci, "e")
	exp, _ := strconv.Atoi(exponent)
	least := -4
	if style == Rust {
		least = -5
	}
	if exp >= least && exp < 16 {
		start := len(dst)
		dst = strconv.AppendFloat(dst, f, 'f', -1, 64)
		if !strings.Contains(string(dst[start:]), ".") {
			dst = append(dst, ".0"...)
		}
		return dst
	}
	dst = append(append(dst, mantissa...), 'e')
	if exp < 0 {
		dst, exp = append(dst, '-'), -exp
	} else {
		dst = append(dst, '+')
	}
	if exp < 10 && style != Rust {
		dst = append(dst, '0')
	}
	return strconv.AppendInt(dst, int64(exp), 10)
}
