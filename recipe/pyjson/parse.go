package pyjson

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxDepth is the deepest nesting of arrays and objects that Parse accepts, the limit of the reference adapter's JSON reader.
const MaxDepth = 127

// Kind is the type of a JSON value.
type Kind uint8

// The kinds. The zero Value is null.
const (
	Null Kind = iota
	False
	True
	Number
	String
	Array
	Object
)

// Value is one JSON value.
type Value struct {
	Kind    Kind
	Text    string   // Number: its spelling in the source; String: the decoded text, valid UTF-8
	Elems   []Value  // Array
	Members []Member // Object, in the order of first appearance; of equal keys the last value counts
}

// Member is one key and value of an object.
type Member struct {
	Key   string
	Value Value
}

// Get gives the value of a key of an object, nil when it is absent or v is no object.
func (v *Value) Get(key string) *Value {
	for i := range v.Members {
		if v.Members[i].Key == key {
			return &v.Members[i].Value
		}
	}
	return nil
}

// Parse reads one JSON value and nothing else. Besides malformed text it refuses what has no value here: invalid UTF-8, lone surrogate
// escapes, numbers beyond float64, nesting beyond MaxDepth. Errors name the byte offset. src is not kept.
func Parse(src []byte) (Value, error) {
	p := parser{src: src}
	v := p.value(0)
	p.space()
	if p.err == nil && p.pos < len(src) {
		p.fail("something follows the value")
	}
	if p.err != nil {
		return Value{}, p.err
	}
	return v, nil
}

type parser struct {
	src []byte
	pos int
	err error
}

func (p *parser) fail(what string) {
	if p.err == nil {
		p.err = fmt.Errorf("invalid JSON at byte %d: %s", p.pos, what)
	}
}

func (p *parser) space() {
	for p.pos < len(p.src) {
		switch p.src[p.pos] {
		case ' ', '\t', '\n', '\r':
			p.pos++
		default:
			return
		}
	}
}

// peek skips white space and gives the next byte, 0 at the end.
func (p *parser) peek() byte {
	p.space()
	if p.pos < len(p.src) {
		return p.src[p.pos]
	}
	return 0
}

func (p *parser) value(depth int) Value {
	c := p.peek()
	switch {
	case c == '{' || c == '[':
		if depth == MaxDepth {
			p.fail("nested too deeply")
			return Value{}
		}
		p.pos++
		if c == '[' {
			return p.array(depth + 1)
		}
		return p.object(depth + 1)
	case c == '"':
		return Value{Kind: String, Text: p.str()}
	case c == '-' || c >= '0' && c <= '9':
		return p.number()
	case c == 't':
		return p.word("true", True)
	case c == 'f':
		return p.word("false", False)
	case c == 'n':
		return p.word("null", Null)
	case p.pos >= len(p.src):
		p.fail("a value is missing")
	default:
		p.fail(fmt.Sprintf("unexpected %q", c))
	}
	return Value{}
}

func (p *parser) word(w string, k Kind) Value {
	if len(p.src)-p.pos < len(w) || string(p.src[p.pos:p.pos+len(w)]) != w {
		p.fail("unknown word")
		return Value{}
	}
	p.pos += len(w)
	return Value{Kind: k}
}

func (p *parser) array(depth int) Value {
	v := Value{Kind: Array}
	if p.peek() == ']' {
		p.pos++
		return v
	}
	for p.err == nil {
		v.Elems = append(v.Elems, p.value(depth))
		switch p.peek() {
		case ',':
			p.pos++
		case ']':
			p.pos++
			return v
		default:
			p.fail("',' or ']' is missing")
		}
	}
	return v
}

func (p *parser) object(depth int) Value {
	v := Value{Kind: Object}
	if p.peek() == '}' {
		p.pos++
		return v
	}
	var index map[string]int // only for large objects; small ones are searched
	for p.err == nil {
		if p.peek() != '"' {
			p.fail("a key is missing")
			break
		}
		key := p.str()
		if p.peek() != ':' {
			p.fail("':' is missing")
			break
		}
		p.pos++
		m := Member{key, p.value(depth)}
		at := -1
		if index == nil {
			for i := range v.Members {
				if v.Members[i].Key == key {
					at = i
					break
				}
			}
			if len(v.Members) == 16 {
				index = make(map[string]int)
				for i := range v.Members {
					index[v.Members[i].Key] = i
				}
			}
		} else if i, ok := index[key]; ok {
			at = i
		}
		if at >= 0 {
			v.Members[at] = m
		} else {
			if index != nil {
				index[key] = len(v.Members)
			}
			v.Members = append(v.Members, m)
		}
		switch p.peek() {
		case ',':
			p.pos++
		case '}':
			p.pos++
			return v
		default:
			p.fail("',' or '}' is missing")
		}
	}
	return v
}

func (p *parser) number() Value {
	start := p.pos
	at := func(c byte) bool { return p.pos < len(p.src) && p.src[p.pos] == c }
	digits := func() bool {
		from := p.pos
		for p.pos < len(p.src) && p.src[p.pos] >= '0' && p.src[p.pos] <= '9' {
			p.pos++
		}
		return p.pos > from
	}
	if at('-') {
		p.pos++
	}
	if at('0') {
		p.pos++
	} else if !digits() {
		p.fail("a digit is missing")
	}
	if at('.') {
		p.pos++
		if !digits() {
			p.fail("a digit is missing")
		}
	}
	if at('e') || at('E') {
		p.pos++
		if at('+') || at('-') {
			p.pos++
		}
		if !digits() {
			p.fail("a digit is missing")
		}
	}
	text := string(p.src[start:p.pos])
	if f, err := strconv.ParseFloat(text, 64); p.err == nil && (err != nil || math.IsInf(f, 0)) {
		p.fail("the number is out of range")
	}
	return Value{Kind: Number, Text: text}
}

// str reads a string whose opening quote is at pos.
func (p *parser) str() string {
	p.pos++
	start := p.pos
	for p.pos < len(p.src) {
		switch c := p.src[p.pos]; {
		case c == '"':
			s := p.src[start:p.pos]
			p.pos++
			if !utf8.Valid(s) {
				p.fail("a string is not UTF-8")
				return ""
			}
			return string(s)
		case c == '\\':
			return p.escaped(start)
		case c < 0x20:
			p.fail("control character in a string")
			return ""
		}
		p.pos++
	}
	p.fail("a string does not end")
	return ""
}

func (p *parser) escaped(start int) string {
	buf := append([]byte(nil), p.src[start:p.pos]...)
	for p.pos < len(p.src) {
		c := p.src[p.pos]
		switch {
		case c == '"':
			p.pos++
			if !utf8.Valid(buf) {
				p.fail("a string is not UTF-8")
				return ""
			}
			return string(buf)
		case c < 0x20:
			p.fail("control character in a string")
			return ""
		case c != '\\':
			buf = append(buf, c)
			p.pos++
			continue
		}
		p.pos++
		if p.pos == len(p.src) {
			break
		}
		p.pos++
		switch e := p.src[p.pos-1]; e {
		case '"', '\\', '/':
			buf = append(buf, e)
		case 'b':
			buf = append(buf, '\b')
		case 'f':
			buf = append(buf, '\f')
		case 'n':
			buf = append(buf, '\n')
		case 'r':
			buf = append(buf, '\r')
		case 't':
			buf = append(buf, '\t')
		case 'u':
			r := p.hex4()
			if utf16.IsSurrogate(r) {
				low := rune(-1)
				if p.pos+1 < len(p.src) && p.src[p.pos] == '\\' && p.src[p.pos+1] == 'u' {
					p.pos += 2
					low = p.hex4()
				}
				if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
					p.fail("lone surrogate escape")
				}
			}
			if p.err != nil {
				return ""
			}
			buf = utf8.AppendRune(buf, r)
		default:
			p.fail("unknown escape")
			return ""
		}
	}
	p.fail("a string does not end")
	return ""
}

func (p *parser) hex4() rune {
	if p.pos+4 > len(p.src) {
		p.fail("an escape does not end")
		return 0
	}
	v, err := strconv.ParseUint(string(p.src[p.pos:p.pos+4]), 16, 32)
	if err != nil {
		p.fail("an escape needs four hexadecimal digits")
		return 0
	}
	p.pos += 4
	return rune(v)
}
