package grammar

import (
	"fmt"
	"strconv"
	"strings"
)

// maxLark bounds the source of a grammar, in bytes.
const maxLark = 64 << 10

// compileLark builds a grammar given as text: a regular expression, or the subset of Lark that custom tools use. That is rules and
// terminals with alternatives, groups, [optional] parts, ? * + ~n ~n..m, "strings" and "strings"i, /expressions/ with the flags i, s and
// m, "a".."z", %ignore, comments. Rules may be recursive, but not on the left. Aliases, priorities and the prefixes ? and ! have no
// meaning here and are skipped. %import knows the terminals of Lark's module common; %declare and templates are refused.
func compileLark(b *builder, syntax, text string, enc encode, next int32) (int32, error) {
	switch syntax {
	case "regex":
		r, err := parseRegex(text, enc, false)
		if err != nil {
			return 0, &Error{Kind: Unsupported, Reason: err.Error()}
		}
		d, err := compileRx(b.ctx, r)
		if err != nil {
			return 0, err
		}
		if d == nil {
			return 0, &Error{Kind: Unsatisfiable, Reason: fmt.Sprintf("no text matches the expression %q", clip(text))}
		}
		return b.automaton(d, 0, -1, next), nil
	case "lark", "":
	default:
		return 0, &Error{Kind: Unsupported, Reason: fmt.Sprintf("grammars in the syntax %q are not supported; lark and regex are", syntax)}
	}
	if len(text) > maxLark {
		return 0, &Error{Kind: TooLarge, Reason: fmt.Sprintf("the grammar has %d bytes, at most %d are possible", len(text), maxLark)}
	}
	p := &larkParser{text: text, rules: map[string]*larkExpr{}}
	if err := p.file(); err != nil {
		return 0, err
	}
	c := &larkCompiler{b: b, enc: enc, p: p, rules: map[string]int32{}, terminals: map[string]*rx{}, open: map[string]bool{}}
	if p.rules["start"] == nil {
		return 0, &Error{Kind: Invalid, Reason: "the grammar has no rule called start"}
	}
	if len(p.ignore) > 0 {
		r := alt()
		for _, e := range p.ignore {
			x, err := c.regular(e)
			if err != nil {
				return 0, err
			}
			r.sub = append(r.sub, x)
		}
		c.ignore = star(r)
	}
	r, err := c.rule("start", p.rules["start"])
	if err != nil {
		return 0, err
	}
	n := b.call(r, next)
	if c.ignore != nil {
		n = c.leaf(c.ignore, n)
	}
	return n, nil
}

type larkOp uint8

const (
	larkText   larkOp = iota // text, fold
	larkRegex                // text: an expression with its flags written inside
	larkRange                // text: from, to: two characters
	larkName                 // text
	larkSeq                  // sub
	larkAlt                  // sub
	larkRepeat               // sub[0], min, max
)

type larkExpr struct {
	op       larkOp
	text     string
	fold     bool
	sub      []*larkExpr
	min, max int
	line     int
}

type larkParser struct {
	text   string
	pos    int
	line   int
	depth  int
	rules  map[string]*larkExpr
	ignore []*larkExpr
}

func (p *larkParser) fail(format string, args ...any) error {
	return &Error{Kind: Invalid, Reason: fmt.Sprintf("grammar line %d: ", p.line+1) + fmt.Sprintf(format, args...)}
}

// space skips blanks and comments, and line ends where lines is set.
func (p *larkParser) space(lines bool) {
	for p.pos < len(p.text) {
		switch c := p.text[p.pos]; {
		case c == ' ' || c == '\t' || c == '\r':
			p.pos++
		case c == '\n' && lines:
			p.pos++
			p.line++
		case c == '#' || strings.HasPrefix(p.text[p.pos:], "//"):
			for p.pos < len(p.text) && p.text[p.pos] != '\n' {
				p.pos++
			}
		default:
			return
		}
	}
}

func (p *larkParser) peek() byte {
	if p.pos < len(p.text) {
		return p.text[p.pos]
	}
	return 0
}

func wordByte(c byte) bool {
	return c == '_' || c >= '0' && c <= '9' || c|0x20 >= 'a' && c|0x20 <= 'z'
}

func (p *larkParser) word() string {
	start := p.pos
	for p.pos < len(p.text) && wordByte(p.text[p.pos]) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// larkCommon are the terminals of Lark's module common, each as one expression.
var larkCommon = map[string]string{
	"DIGIT": `[0-9]`, "HEXDIGIT": `[0-9a-fA-F]`, "INT": `[0-9]+`, "SIGNED_INT": `[+-]?[0-9]+`,
	"DECIMAL":       `[0-9]+\.[0-9]*|\.[0-9]+`,
	"FLOAT":         `[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"NUMBER":        `([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"SIGNED_FLOAT":  `[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)`,
	"SIGNED_NUMBER": `[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?`,
	"LCASE_LETTER":  `[a-z]`, "UCASE_LETTER": `[A-Z]`, "LETTER": `[a-zA-Z]`, "WORD": `[a-zA-Z]+`, "CNAME": `[a-zA-Z_][a-zA-Z_0-9]*`,
	"ESCAPED_STRING": `"([^"\\\n]|\\[^\n])*"`,
	"WS_INLINE":      `[ \t]+`, "WS": `[ \t\f\r\n]+`, "CR": `\r`, "LF": `\n`, "NEWLINE": `(\r?\n)+`,
}

// imports reads what follows %import: common.NAME, common.NAME -> ALIAS, common (NAME, NAME).
func (p *larkParser) imports() error {
	p.space(false)
	if module := p.word(); module != "common" {
		return &Error{Kind: Unsupported, Reason: fmt.Sprintf("grammar line %d: only terminals of common can be imported, not of %q", p.line+1, module)}
	}
	one := func(list bool) error {
		p.space(false)
		name := p.word()
		text, ok := larkCommon[name]
		if !ok {
			return &Error{Kind: Unsupported, Reason: fmt.Sprintf("grammar line %d: there is no terminal common.%s", p.line+1, name)}
		}
		p.space(false)
		if !list && strings.HasPrefix(p.text[p.pos:], "->") {
			p.pos += 2
			p.space(false)
			if name = p.word(); name == "" {
				return p.fail("an alias is missing after ->")
			}
		}
		if p.rules[name] != nil {
			return p.fail("%s is defined twice", name)
		}
		p.rules[name] = &larkExpr{op: larkRegex, text: text, line: p.line}
		return nil
	}
	if p.peek() == '.' {
		p.pos++
		return one(false)
	}
	p.space(false)
	if p.peek() != '(' {
		return p.fail("after %%import common comes a name or a list of names")
	}
	for {
		p.pos++
		if err := one(true); err != nil {
			return err
		}
		switch p.peek() {
		case ',':
		case ')':
			p.pos++
			return nil
		default:
			return p.fail("a list of names ends with )")
		}
	}
}

func (p *larkParser) file() error {
	for {
		p.space(true)
		if p.pos >= len(p.text) {
			return nil
		}
		if p.peek() == '%' {
			p.pos++
			w := p.word()
			if w == "import" {
				if err := p.imports(); err != nil {
					return err
				}
				continue
			}
			if w != "ignore" {
				return &Error{Kind: Unsupported, Reason: fmt.Sprintf("grammar line %d: %%%s is not supported", p.line+1, w)}
			}
			e, err := p.alternatives()
			if err != nil {
				return err
			}
			p.ignore = append(p.ignore, e)
			continue
		}
		for p.peek() == '?' || p.peek() == '!' {
			p.pos++
		}
		name := p.word()
		if name == "" {
			return p.fail("a rule begins with its name, not with %q", clip(p.text[p.pos:min(len(p.text), p.pos+20)]))
		}
		p.space(false)
		if p.peek() == '{' {
			return &Error{Kind: Unsupported, Reason: fmt.Sprintf("grammar line %d: templates are not supported", p.line+1)}
		}
		if p.peek() == '.' { // priority
			p.pos++
			if p.peek() == '-' {
				p.pos++
			}
			p.word()
			p.space(false)
		}
		if p.peek() != ':' {
			return p.fail("after the name %s a colon is needed", name)
		}
		p.pos++
		e, err := p.alternatives()
		if err != nil {
			return err
		}
		if p.rules[name] != nil {
			return p.fail("%s is defined twice", name)
		}
		p.rules[name] = e
	}
}

// alternatives reads up to the end of the definition or a closing bracket. A line that begins with | goes on.
func (p *larkParser) alternatives() (*larkExpr, error) {
	if p.depth++; p.depth > 100 {
		return nil, &Error{Kind: TooLarge, Reason: fmt.Sprintf("grammar line %d: brackets are nested more than 100 deep", p.line+1)}
	}
	defer func() { p.depth-- }()
	e := &larkExpr{op: larkAlt, line: p.line}
	for {
		seq := &larkExpr{op: larkSeq, line: p.line}
		for {
			p.space(p.depth > 1)
			x, err := p.item()
			if err != nil {
				return nil, err
			}
			if x == nil {
				break
			}
			seq.sub = append(seq.sub, x)
		}
		if strings.HasPrefix(p.text[p.pos:], "->") {
			p.pos += 2
			p.space(false)
			p.word()
			p.space(p.depth > 1)
		}
		e.sub = append(e.sub, seq)
		pos, line := p.pos, p.line
		p.space(true)
		if p.peek() != '|' {
			p.pos, p.line = pos, line
			return e, nil
		}
		p.pos++
	}
}

// item reads one element with its quantifier; nil is the end of a sequence.
func (p *larkParser) item() (*larkExpr, error) {
	var e *larkExpr
	var err error
	switch c := p.peek(); {
	case c == '(' || c == '[':
		p.pos++
		if e, err = p.alternatives(); err != nil {
			return nil, err
		}
		p.space(true)
		want := byte(')')
		if c == '[' {
			want = ']'
			e = &larkExpr{op: larkRepeat, sub: []*larkExpr{e}, max: 1, line: p.line}
		}
		if p.peek() != want {
			return nil, p.fail("a closing %c is missing", want)
		}
		p.pos++
	case c == '"':
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		e = &larkExpr{op: larkText, text: s, line: p.line}
		if p.peek() == 'i' && (p.pos+1 == len(p.text) || !wordByte(p.text[p.pos+1])) {
			p.pos++
			e.fold = true
		}
		if strings.HasPrefix(p.text[p.pos:], "..") {
			p.pos += 2
			to, err := p.str()
			if err != nil {
				return nil, err
			}
			if len([]rune(s)) != 1 || len([]rune(to)) != 1 || []rune(s)[0] > []rune(to)[0] {
				return nil, p.fail("the range %q..%q is not one of two single characters in order", s, to)
			}
			e = &larkExpr{op: larkRange, text: s + to, line: p.line}
		}
	case c == '/':
		end := p.pos + 1
		for class := false; ; end++ {
			if end >= len(p.text) || p.text[end] == '\n' {
				return nil, p.fail("an expression does not end")
			}
			if p.text[end] == '\\' {
				end++
			} else if p.text[end] == '[' {
				class = true
			} else if p.text[end] == ']' {
				class = false
			} else if p.text[end] == '/' && !class {
				break
			}
		}
		x := p.text[p.pos+1 : end]
		p.pos = end + 1
		flags := ""
		for strings.IndexByte("imsux", p.peek()) >= 0 && p.peek() != 0 {
			switch f := p.text[p.pos]; f {
			case 'i', 's', 'm':
				flags += string(f)
			case 'x':
				return nil, p.fail("the flag x of an expression is not supported")
			}
			p.pos++
		}
		if flags != "" {
			x = "(?" + flags + ":" + x + ")"
		}
		e = &larkExpr{op: larkRegex, text: x, line: p.line}
	case wordByte(c):
		e = &larkExpr{op: larkName, text: p.word(), line: p.line}
	case c == 0 || c == '\n' || c == '|' || c == ')' || c == ']' || c == '-':
		return nil, nil
	default:
		return nil, p.fail("%q is not expected here", clip(p.text[p.pos:min(len(p.text), p.pos+20)]))
	}
	p.space(false)
	rep := func(min, max int) {
		e = &larkExpr{op: larkRepeat, sub: []*larkExpr{e}, min: min, max: max, line: p.line}
	}
	switch p.peek() {
	case '?':
		p.pos++
		rep(0, 1)
	case '*':
		p.pos++
		rep(0, -1)
	case '+':
		p.pos++
		rep(1, -1)
	case '~':
		p.pos++
		p.space(false)
		lo, err := strconv.Atoi(p.word())
		hi := lo
		if err == nil && strings.HasPrefix(p.text[p.pos:], "..") {
			p.pos += 2
			hi, err = strconv.Atoi(p.word())
		}
		if err != nil || lo < 0 || hi < lo {
			return nil, p.fail("a repetition is ~n or ~n..m")
		}
		if hi > MaxRepeat {
			return nil, &Error{Kind: TooLarge, Reason: fmt.Sprintf("grammar line %d: %d repetitions, at most %d are possible", p.line+1, hi, MaxRepeat)}
		}
		rep(lo, hi)
	}
	return e, nil
}

func (p *larkParser) str() (string, error) {
	if p.peek() != '"' {
		return "", p.fail("a string is needed")
	}
	for i := p.pos + 1; i < len(p.text) && p.text[i] != '\n'; i++ {
		switch p.text[i] {
		case '\\':
			i++
		case '"':
			s, err := strconv.Unquote(p.text[p.pos : i+1])
			if err != nil {
				return "", p.fail("the string %s is malformed", clip(p.text[p.pos:i+1]))
			}
			p.pos = i + 1
			return s, nil
		}
	}
	return "", p.fail("a string does not end")
}

type larkCompiler struct {
	b         *builder
	enc       encode
	p         *larkParser
	rules     map[string]int32
	terminals map[string]*rx
	open      map[string]bool
	ignore    *rx
	size      int
}

func terminalName(name string) bool {
	for i := range len(name) {
		if c := name[i]; c != '_' && (c < '0' || c > '9') {
			return c < 'a'
		}
	}
	return false
}

func (c *larkCompiler) fail(e *larkExpr, format string, args ...any) error {
	return &Error{Kind: Invalid, Reason: fmt.Sprintf("grammar line %d: ", e.line+1) + fmt.Sprintf(format, args...)}
}

func (c *larkCompiler) rule(name string, e *larkExpr) (int32, error) {
	if r, ok := c.rules[name]; ok {
		return r, nil
	}
	r := c.b.newRule()
	c.rules[name] = r
	n, err := c.build(e, returnNode)
	if err != nil {
		return 0, err
	}
	c.b.rules[r].start = n
	return r, nil
}

func (c *larkCompiler) leaf(r *rx, next int32) int32 {
	d, err := compileRx(c.b.ctx, r)
	if err != nil {
		c.b.fail(err)
	}
	return c.b.automaton(d, 0, -1, next)
}

// terminal puts a terminal, and what is ignored after it, before a node.
func (c *larkCompiler) terminal(r *rx, next int32) int32 {
	if c.ignore != nil {
		r = cat(r, c.ignore)
	}
	return c.leaf(r, next)
}

func (c *larkCompiler) build(e *larkExpr, next int32) (int32, error) {
	switch e.op {
	case larkText, larkRegex, larkRange:
		r, err := c.regular(e)
		if err != nil {
			return 0, err
		}
		if e.op == larkText && !e.fold && c.enc == encodeRaw && c.ignore == nil {
			return c.b.literal(e.text, next), nil
		}
		return c.terminal(r, next), nil
	case larkName:
		def := c.p.rules[e.text]
		if def == nil {
			return 0, c.fail(e, "%s is not defined", e.text)
		}
		if terminalName(e.text) {
			r, err := c.regular(e)
			if err != nil {
				return 0, err
			}
			return c.terminal(r, next), nil
		}
		r, err := c.rule(e.text, def)
		if err != nil {
			return 0, err
		}
		return c.b.call(r, next), nil
	case larkSeq:
		for i := len(e.sub) - 1; i >= 0; i-- {
			var err error
			if next, err = c.build(e.sub[i], next); err != nil {
				return 0, err
			}
		}
		return next, nil
	case larkAlt:
		outs := make([]int32, 0, len(e.sub))
		for _, x := range e.sub {
			n, err := c.build(x, next)
			if err != nil {
				return 0, err
			}
			outs = append(outs, n)
		}
		return c.b.split(outs...), nil
	}
	// Repetition.
	x := e.sub[0]
	if e.max < 0 {
		loop := c.b.add(node{kind: nodeSplit})
		body, err := c.build(x, loop)
		if err != nil {
			return 0, err
		}
		c.b.nodes[loop].outs = []int32{body, next}
		next = loop
	} else {
		end := next
		for range e.max - e.min {
			n, err := c.build(x, next)
			if err != nil {
				return 0, err
			}
			next = c.b.split(n, end)
		}
	}
	for range e.min {
		n, err := c.build(x, next)
		if err != nil {
			return 0, err
		}
		next = n
	}
	return next, nil
}

// regular gives the expression of a terminal.
func (c *larkCompiler) regular(e *larkExpr) (*rx, error) {
	if c.size++; c.size > 100_000 {
		return nil, &Error{Kind: TooLarge, Reason: "the grammar's terminals are too large"}
	}
	switch e.op {
	case larkText:
		if !e.fold && c.enc == encodeRaw {
			return lit(e.text), nil
		}
		x := "(?s:" + quoteRegex(e.text) + ")"
		if e.fold {
			x = "(?i:" + quoteRegex(e.text) + ")"
		}
		return parseRegex(x, c.enc, false)
	case larkRegex:
		r, err := parseRegex(e.text, c.enc, false)
		if err != nil {
			return nil, c.fail(e, "%v", err)
		}
		return r, nil
	case larkRange:
		x := []rune(e.text)
		return c.enc.runes(x), nil
	case larkName:
		def := c.p.rules[e.text]
		switch {
		case def == nil:
			return nil, c.fail(e, "%s is not defined", e.text)
		case !terminalName(e.text):
			return nil, c.fail(e, "a terminal cannot use the rule %s", e.text)
		case c.open[e.text]:
			return nil, c.fail(e, "the terminal %s uses itself", e.text)
		}
		if r, ok := c.terminals[e.text]; ok {
			return r, nil
		}
		c.open[e.text] = true
		r, err := c.regular(def)
		delete(c.open, e.text)
		c.terminals[e.text] = r
		return r, err
	case larkRepeat:
		x, err := c.regular(e.sub[0])
		if err != nil {
			return nil, err
		}
		return repeat(x, e.min, e.max), nil
	}
	r := cat()
	if e.op == larkAlt {
		r = alt()
	}
	for _, s := range e.sub {
		x, err := c.regular(s)
		if err != nil {
			return nil, err
		}
		r.sub = append(r.sub, x)
	}
	return r, nil
}

func quoteRegex(s string) string {
	var b strings.Builder
	for _, c := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, c) {
			b.WriteByte('\\')
		}
		b.WriteRune(c)
	}
	return b.String()
}
