package responses

import "unicode/utf8"

// inputDecoder decodes the value of parameter input from the arguments of a custom tool's call while they arrive. Arguments of any other
// form are given as they are.
type inputDecoder struct {
	state inputState
	seen  int    // bytes of inputHead seen
	held  []byte // an unfinished escape
	high  rune   // first half of a surrogate pair
}

type inputState uint8

const (
	inInput inputState = iota // in inputHead
	inString
	inRest // after the string
	inRaw  // some other form
)

const inputHead = `{"input": "`

// take gives the text that the next piece of the arguments adds to the input.
func (d *inputDecoder) take(s string) string {
	var out []byte
	for i := 0; i < len(s); i++ {
		switch d.state {
		case inInput:
			if s[i] != inputHead[d.seen] {
				d.state = inRaw
				return string(append(out, inputHead[:d.seen]+s[i:]...))
			}
			if d.seen++; d.seen == len(inputHead) {
				d.state = inString
			}
		case inString:
			out = d.char(out, s[i])
		case inRaw:
			return string(append(out, s[i:]...))
		}
	}
	return string(out)
}

// char decodes one byte of a JSON string.
func (d *inputDecoder) char(out []byte, b byte) []byte {
	if len(d.held) == 0 {
		switch b {
		case '\\':
			d.held = append(d.held, b)
		case '"':
			d.state = inRest
			out = d.flushHigh(out)
		default:
			out = append(d.flushHigh(out), b)
		}
		return out
	}
	d.held = append(d.held, b)
	if d.held[1] != 'u' {
		d.held = d.held[:0]
		out = d.flushHigh(out)
		switch b {
		case 'n':
			b = '\n'
		case 't':
			b = '\t'
		case 'r':
			b = '\r'
		case 'b':
			b = '\b'
		case 'f':
			b = '\f'
		}
		return append(out, b)
	}
	if len(d.held) < 6 {
		return out
	}
	var r rune
	for _, h := range d.held[2:] {
		r <<= 4
		switch {
		case h >= '0' && h <= '9':
			r |= rune(h - '0')
		case h|0x20 >= 'a' && h|0x20 <= 'f':
			r |= rune(h|0x20-'a') + 10
		}
	}
	d.held = d.held[:0]
	switch {
	case r >= 0xD800 && r < 0xDC00:
		out = d.flushHigh(out)
		d.high = r
	case r >= 0xDC00 && r < 0xE000 && d.high != 0:
		out = utf8.AppendRune(out, 0x10000+(d.high-0xD800)<<10+(r-0xDC00))
		d.high = 0
	default:
		out = utf8.AppendRune(d.flushHigh(out), r) // a lone half becomes U+FFFD
	}
	return out
}

func (d *inputDecoder) flushHigh(out []byte) []byte {
	if d.high != 0 {
		d.high = 0
		out = utf8.AppendRune(out, utf8.RuneError)
	}
	return out
}

// end gives what was held when the arguments end early: the head, if that is all there was and it is no input.
func (d *inputDecoder) end() string {
	if d.state == inInput && d.seen > 0 {
		return inputHead[:d.seen]
	}
	return string(d.flushHigh(nil))
}
