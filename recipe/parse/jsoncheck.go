package parse

// checker follows a JSON value byte by byte and can close it at any point. The zero value expects a value.
type checker struct {
	stack   []byte // '{' or '['
	st      checkState
	lit     string // what is left of true, false or null
	isKey   bool   // the string being read is a key
	hex     int    // hexadecimal digits still missing in an escape
	started bool
}

type checkState uint8

const (
	ckValue      checkState = iota // a value must come
	ckFirstValue                   // after [: a value or ]
	ckFirstKey                     // after {: a key or }
	ckKey                          // after a comma in an object
	ckColon                        // after a key
	ckNext                         // after a value: a comma, the end of the container, or the end
	ckString
	ckEscape
	ckHex
	ckLiteral
	ckMinus    // after -
	ckZero     // after a leading 0
	ckInt      // digits
	ckPoint    // after the point
	ckFraction // digits behind the point
	ckExp      // after e
	ckExpSign  // after e+ or e-
	ckExpDigit // digits of the exponent
)

const maxCheckDepth = 1000

func digit(b byte) bool { return b >= '0' && b <= '9' }

// feed takes the next byte; false means that no JSON value goes on like this, and the state is as before.
func (c *checker) feed(b byte) bool {
	switch c.st {
	case ckValue, ckFirstValue:
		switch {
		case isBlank(b):
			return true
		case b == ']' && c.st == ckFirstValue:
			return c.pop()
		case b == '{' || b == '[':
			if len(c.stack) >= maxCheckDepth {
				return false
			}
			c.stack = append(c.stack, b)
			c.st = ckFirstKey
			if b == '[' {
				c.st = ckFirstValue
			}
		case b == '"':
			c.st, c.isKey = ckString, false
		case b == '-':
			c.st = ckMinus
		case b == '0':
			c.st = ckZero
		case digit(b):
			c.st = ckInt
		case b == 't':
			c.st, c.lit = ckLiteral, "rue"
		case b == 'f':
			c.st, c.lit = ckLiteral, "alse"
		case b == 'n':
			c.st, c.lit = ckLiteral, "ull"
		default:
			return false
		}
		c.started = true
		return true
	case ckFirstKey, ckKey:
		switch {
		case isBlank(b):
		case b == '"':
			c.st, c.isKey = ckString, true
		case b == '}' && c.st == ckFirstKey:
			return c.pop()
		default:
			return false
		}
		return true
	case ckColon:
		if b == ':' {
			c.st = ckValue
			return true
		}
		return isBlank(b)
	case ckNext:
		if isBlank(b) {
			return true
		}
		if len(c.stack) == 0 {
			return false
		}
		in := c.stack[len(c.stack)-1]
		switch {
		case b == ',' && in == '{':
			c.st = ckKey
		case b == ',':
			c.st = ckValue
		case b == '}' && in == '{', b == ']' && in == '[':
			return c.pop()
		default:
			return false
		}
		return true
	case ckString:
		switch {
		case b == '"':
			c.st = ckNext
			if c.isKey {
				c.st = ckColon
			}
		case b == '\\':
			c.st = ckEscape
		case b < 0x20:
			return false
		}
		return true
	case ckEscape:
		switch b {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			c.st = ckString
		case 'u':
			c.st, c.hex = ckHex, 4
		default:
			return false
		}
		return true
	case ckHex:
		if !digit(b) && (b|0x20 < 'a' || b|0x20 > 'f') {
			return false
		}
		if c.hex--; c.hex == 0 {
			c.st = ckString
		}
		return true
	case ckLiteral:
		if b != c.lit[0] {
			return false
		}
		if c.lit = c.lit[1:]; c.lit == "" {
			c.st = ckNext
		}
		return true
	}
	return c.number(b)
}

func (c *checker) number(b byte) bool {
	switch c.st {
	case ckMinus:
		switch {
		case b == '0':
			c.st = ckZero
		case digit(b):
			c.st = ckInt
		default:
			return false
		}
		return true
	case ckPoint:
		c2 := digit(b)
		if c2 {
			c.st = ckFraction
		}
		return c2
	case ckExp:
		switch {
		case b == '+' || b == '-':
			c.st = ckExpSign
		case digit(b):
			c.st = ckExpDigit
		default:
			return false
		}
		return true
	case ckExpSign:
		if digit(b) {
			c.st = ckExpDigit
			return true
		}
		return false
	}
	switch {
	case digit(b) && c.st != ckZero:
		return true
	case b == '.' && (c.st == ckZero || c.st == ckInt):
		c.st = ckPoint
		return true
	case (b == 'e' || b == 'E') && c.st != ckExpDigit:
		c.st = ckExp
		return true
	}
	was := c.st
	c.st = ckNext
	if c.feed(b) {
		return true
	}
	c.st = was
	return false
}

func (c *checker) pop() bool {
	c.stack = c.stack[:len(c.stack)-1]
	c.st = ckNext
	return true
}

// complete says whether a whole value was read.
func (c *checker) complete() bool {
	if len(c.stack) > 0 {
		return false
	}
	switch c.st {
	case ckNext, ckZero, ckInt, ckFraction, ckExpDigit:
		return true
	}
	return false
}

// closing gives the shortest text that completes the value.
func (c *checker) closing() string {
	var out []byte
	st := c.st
	switch st {
	case ckEscape:
		out, st = append(out, '\\'), ckString
	case ckHex:
		for i := 0; i < c.hex; i++ {
			out = append(out, '0')
		}
		st = ckString
	}
	switch st {
	case ckString:
		out = append(out, '"')
		if c.isKey {
			out = append(out, ": null"...)
		}
	case ckValue:
		out = append(out, "null"...)
	case ckKey:
		out = append(out, `"": null`...)
	case ckColon:
		out = append(out, ": null"...)
	case ckLiteral:
		out = append(out, c.lit...)
	case ckMinus, ckPoint, ckExp, ckExpSign:
		out = append(out, '0')
	}
	for i := len(c.stack) - 1; i >= 0; i-- {
		if c.stack[i] == '{' {
			out = append(out, '}')
		} else {
			out = append(out, ']')
		}
	}
	return string(out)
}

// validJSON says whether b is one JSON value, white space around it allowed.
func validJSON(b []byte) bool {
	var c checker
	for _, x := range b {
		if !c.feed(x) {
			return false
		}
	}
	return c.complete()
}
