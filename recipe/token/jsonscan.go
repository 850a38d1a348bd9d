package token

import (
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// jsonScan reads JSON from a byte slice, left to right, without building values. A tokenizer.json has a quarter of a million strings;
// reading them one by one is an order of magnitude faster than decoding into maps. The first error sticks in err and every later call
// does nothing, so callers check once.
type jsonScan struct {
	data []byte
	pos  int
	err  error
	buf  []byte // scratch for strings with escapes
}

// maxDepth bounds nesting in skip, so that a hostile file cannot exhaust the stack.
const maxDepth = 200

func (s *jsonScan) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("byte %d: "+format, append([]any{s.pos}, args...)...)
	}
}

// peek skips white space and gives the next byte without taking it, 0 at the end.
func (s *jsonScan) peek() byte {
	for s.err == nil && s.pos < len(s.data) {
		switch c := s.data[s.pos]; c {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return c
		}
	}
	return 0
}

func (s *jsonScan) expect(c byte) {
	if got := s.peek(); got != c || c == 0 {
		s.unexpected(string(rune(c)))
		return
	}
	s.pos++
}

func (s *jsonScan) unexpected(want string) {
	if s.pos >= len(s.data) {
		s.fail("the file ends where %s is expected", want)
		return
	}
	s.fail("found %q where %s is expected", s.data[s.pos], want)
}

// object calls f for each member; f must consume the value. The key is valid during the call only.
func (s *jsonScan) object(f func(key []byte)) {
	s.expect('{')
	if s.peek() == '}' {
		s.pos++
		return
	}
	for s.err == nil {
		key := s.str()
		s.expect(':')
		if s.err != nil {
			return
		}
		f(key)
		switch s.peek() {
		case ',':
			s.pos++
		case '}':
			s.pos++
			return
		default:
			s.unexpected("',' or '}'")
		}
	}
}

// array calls f at each element; f must consume it.
func (s *jsonScan) array(f func(i int)) {
	s.expect('[')
	if s.peek() == ']' {
		s.pos++
		return
	}
	for i := 0; s.err == nil; i++ {
		f(i)
		switch s.peek() {
		case ',':
			s.pos++
		case ']':
			s.pos++
			return
		default:
			s.unexpected("',' or ']'")
		}
	}
}

// str reads a string. The result is valid until the next call.
func (s *jsonScan) str() []byte {
	if s.peek() != '"' {
		s.unexpected("a string")
		return nil
	}
	s.pos++
	start := s.pos
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		if c == '"' {
			s.pos++
			out := s.data[start : s.pos-1]
			if !utf8.Valid(out) {
				s.fail("the string that ends here is not UTF-8")
				return nil
			}
			return out
		}
		if c == '\\' {
			return s.escaped(start)
		}
		if c < 0x20 {
			s.fail("control character %#x in a string", c)
			return nil
		}
		s.pos++
	}
	s.fail("the file ends inside a string")
	return nil
}

// escaped reads the rest of a string whose first escape is at pos.
func (s *jsonScan) escaped(start int) []byte {
	s.buf = append(s.buf[:0], s.data[start:s.pos]...)
	for s.pos < len(s.data) {
		c := s.data[s.pos]
		switch {
		case c == '"':
			s.pos++
			if !utf8.Valid(s.buf) {
				s.fail("the string that ends here is not UTF-8")
				return nil
			}
			return s.buf
		case c < 0x20:
			s.fail("control character %#x in a string", c)
			return nil
		case c != '\\':
			s.buf = append(s.buf, c)
			s.pos++
			continue
		}
		if s.pos+1 >= len(s.data) {
			break
		}
		s.pos += 2
		switch e := s.data[s.pos-1]; e {
		case '"', '\\', '/':
			s.buf = append(s.buf, e)
		case 'b':
			s.buf = append(s.buf, '\b')
		case 'f':
			s.buf = append(s.buf, '\f')
		case 'n':
			s.buf = append(s.buf, '\n')
		case 'r':
			s.buf = append(s.buf, '\r')
		case 't':
			s.buf = append(s.buf, '\t')
		case 'u':
			r := s.hex4()
			if utf16.IsSurrogate(r) {
				if s.pos+1 >= len(s.data) || s.data[s.pos] != '\\' || s.data[s.pos+1] != 'u' {
					s.fail("lone surrogate escape in a string")
					return nil
				}
				s.pos += 2
				if r = utf16.DecodeRune(r, s.hex4()); r == utf8.RuneError {
					s.fail("lone surrogate escape in a string")
					return nil
				}
			}
			if s.err != nil {
				return nil
			}
			s.buf = utf8.AppendRune(s.buf, r)
		default:
			s.fail("unknown escape \\%c in a string", e)
			return nil
		}
	}
	s.fail("the file ends inside a string")
	return nil
}

func (s *jsonScan) hex4() rune {
	if s.pos+4 > len(s.data) {
		s.fail("the file ends inside an escape")
		return 0
	}
	v, err := strconv.ParseUint(string(s.data[s.pos:s.pos+4]), 16, 32)
	if err != nil {
		s.fail("bad escape \\u%q", s.data[s.pos:s.pos+4])
		return 0
	}
	s.pos += 4
	return rune(v)
}

// integer reads a non-negative integer of at most nine digits.
func (s *jsonScan) integer() int {
	s.peek()
	start, v := s.pos, 0
	for s.err == nil && s.pos < len(s.data) && s.data[s.pos] >= '0' && s.data[s.pos] <= '9' {
		if s.pos-start == 9 {
			s.fail("the number is too large for a token id")
			return 0
		}
		v = v*10 + int(s.data[s.pos]-'0')
		s.pos++
	}
	if s.pos == start {
		s.unexpected("a token id")
	}
	return v
}

// boolean reads true or false.
func (s *jsonScan) boolean() bool {
	switch s.peek() {
	case 't':
		s.word("true")
		return true
	case 'f':
		s.word("false")
	default:
		s.unexpected("true or false")
	}
	return false
}

// null takes a null and says whether there was one.
func (s *jsonScan) null() bool {
	if s.peek() != 'n' {
		return false
	}
	s.word("null")
	return true
}

func (s *jsonScan) word(w string) {
	if s.pos+len(w) > len(s.data) || string(s.data[s.pos:s.pos+len(w)]) != w {
		s.unexpected(w)
		return
	}
	s.pos += len(w)
}

// skip takes any value.
func (s *jsonScan) skip(depth int) {
	if depth > maxDepth {
		s.fail("nested deeper than %d", maxDepth)
		return
	}
	switch c := s.peek(); {
	case c == '{':
		s.object(func([]byte) { s.skip(depth + 1) })
	case c == '[':
		s.array(func(int) { s.skip(depth + 1) })
	case c == '"':
		s.str()
	case c == 't' || c == 'f':
		s.boolean()
	case c == 'n':
		s.null()
	case c == '-' || c >= '0' && c <= '9':
		for s.pos < len(s.data) {
			switch c := s.data[s.pos]; {
			case c >= '0' && c <= '9', c == '-', c == '+', c == '.', c == 'e', c == 'E':
				s.pos++
				continue
			}
			break
		}
	default:
		s.unexpected("a value")
	}
}
