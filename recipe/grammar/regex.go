package grammar

import (
	"fmt"
	"regexp/syntax"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxPattern bounds the source of one regular expression, in bytes.
const maxPattern = 64 << 10

// parseRegex reads a regular expression (the common subset of RE2 and ECMA-262) and gives an expression for the whole text. With search
// it may match anywhere in the text, as the pattern keyword does; otherwise the text must match from end to end.
func parseRegex(pattern string, enc encode, search bool) (*rx, error) {
	if len(pattern) > maxPattern {
		return nil, fmt.Errorf("the expression has %d bytes, at most %d are possible", len(pattern), maxPattern)
	}
	re, err := syntax.Parse(ecma(pattern), syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("expression %q: %w", clip(pattern), err)
	}
	w := regexWriter{enc: enc, search: search}
	r, err := w.edge(re, true, true)
	if err != nil {
		return nil, fmt.Errorf("expression %q: %w", clip(pattern), err)
	}
	return r, nil
}

// ecma rewrites the escapes of ECMA-262 that RE2 spells differently.
func ecma(p string) string {
	if !strings.Contains(p, `\`) {
		return p
	}
	var b strings.Builder
	for i := 0; i < len(p); i++ {
		if p[i] != '\\' || i+1 == len(p) {
			b.WriteByte(p[i])
			continue
		}
		i++
		switch {
		case p[i] == 'u' && i+4 < len(p) && isHex(p[i+1:i+5]):
			b.WriteString(`\x{` + p[i+1:i+5] + `}`)
			i += 4
		case p[i] == 'u' && i+1 < len(p) && p[i+1] == '{':
			b.WriteString(`\x`)
		case p[i] == 'c' && i+1 < len(p) && (p[i+1]|0x20) >= 'a' && (p[i+1]|0x20) <= 'z':
			fmt.Fprintf(&b, `\x{%x}`, p[i+1]&0x1F)
			i++
		default:
			b.WriteByte('\\')
			b.WriteByte(p[i])
		}
	}
	return b.String()
}

func isHex(s string) bool {
	return strings.Trim(s, "0123456789abcdefABCDEF") == ""
}

func clip(s string) string {
	if len(s) <= 80 {
		return s
	}
	n := 80
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

type regexWriter struct {
	enc    encode
	search bool
}

var everyRune = []rune{0, unicode.MaxRune}

// edge writes an expression that stands at the start of the pattern, at its end, or both: there anchors have a meaning, and in a search
// a side without an anchor may be surrounded by anything.
func (w *regexWriter) edge(re *syntax.Regexp, first, last bool) (*rx, error) {
	switch re.Op {
	case syntax.OpCapture:
		return w.edge(re.Sub[0], first, last)
	case syntax.OpAlternate:
		r := alt()
		for _, s := range re.Sub {
			x, err := w.edge(s, first, last)
			if err != nil {
				return nil, err
			}
			r.sub = append(r.sub, x)
		}
		return r, nil
	case syntax.OpConcat:
		sub := re.Sub
		r := cat()
		for i, s := range sub {
			x, err := w.edge(s, first && i == 0, last && i == len(sub)-1)
			if err != nil {
				return nil, err
			}
			r.sub = append(r.sub, x)
		}
		return r, nil
	case syntax.OpBeginText, syntax.OpBeginLine:
		if !first {
			return nil, fmt.Errorf("^ is possible only at the start")
		}
		if last {
			return w.around(lit(""), false, true), nil
		}
		return lit(""), nil
	case syntax.OpEndText, syntax.OpEndLine:
		if !last {
			return nil, fmt.Errorf("$ is possible only at the end")
		}
		if first {
			return w.around(lit(""), true, false), nil
		}
		return lit(""), nil
	}
	x, err := w.inner(re)
	if err != nil {
		return nil, err
	}
	return w.around(x, first, last), nil
}

func (w *regexWriter) around(x *rx, before, after bool) *rx {
	if !w.search || !before && !after {
		return x
	}
	r := cat()
	if before {
		r.sub = append(r.sub, star(w.enc.runes(everyRune)))
	}
	r.sub = append(r.sub, x)
	if after {
		r.sub = append(r.sub, star(w.enc.runes(everyRune)))
	}
	return r
}

func (w *regexWriter) inner(re *syntax.Regexp) (*rx, error) {
	switch re.Op {
	case syntax.OpNoMatch:
		return alt(), nil
	case syntax.OpEmptyMatch:
		return lit(""), nil
	case syntax.OpLiteral:
		r := cat()
		for _, c := range re.Rune {
			set := []rune{c, c}
			if re.Flags&syntax.FoldCase != 0 {
				for f := unicode.SimpleFold(c); f != c; f = unicode.SimpleFold(f) {
					set = append(set, f, f)
				}
			}
			r.sub = append(r.sub, w.enc.runes(set))
		}
		return r, nil
	case syntax.OpCharClass:
		return w.enc.runes(re.Rune), nil
	case syntax.OpAnyCharNotNL:
		return w.enc.runes([]rune{0, '\n' - 1, '\n' + 1, unicode.MaxRune}), nil
	case syntax.OpAnyChar:
		return w.enc.runes(everyRune), nil
	case syntax.OpCapture:
		return w.inner(re.Sub[0])
	case syntax.OpStar, syntax.OpPlus, syntax.OpQuest, syntax.OpRepeat:
		x, err := w.inner(re.Sub[0])
		if err != nil {
			return nil, err
		}
		switch re.Op {
		case syntax.OpStar:
			return star(x), nil
		case syntax.OpPlus:
			return plus(x), nil
		case syntax.OpQuest:
			return opt(x), nil
		}
		return repeat(x, re.Min, re.Max), nil
	case syntax.OpConcat, syntax.OpAlternate:
		r := &rx{op: rxCat}
		if re.Op == syntax.OpAlternate {
			r.op = rxAlt
		}
		for _, s := range re.Sub {
			x, err := w.inner(s)
			if err != nil {
				return nil, err
			}
			r.sub = append(r.sub, x)
		}
		return r, nil
	case syntax.OpBeginLine, syntax.OpEndLine, syntax.OpBeginText, syntax.OpEndText:
		return nil, fmt.Errorf("an anchor is possible only at the start or the end")
	case syntax.OpWordBoundary, syntax.OpNoWordBoundary:
		return nil, fmt.Errorf(`word boundaries (\b, \B) are not supported`)
	}
	return nil, fmt.Errorf("%v is not supported", re.Op)
}
