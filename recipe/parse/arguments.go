package parse

import (
	"bytes"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// valueMode is how the value being read becomes JSON.
type valueMode uint8

const (
	valueDrop   valueMode = iota // of a parameter that is not kept
	valueString                  // text, escaped as it comes
	valueSniff                   // text of a string parameter marked as JSON: a JSON string literal is taken as such
	valueRaw                     // JSON, checked as it comes
	valueHold                    // kept until it is complete, then JSON if it parses, else text
)

// call is the call being read.
type call struct {
	index    int
	name     string
	tool     *Tool
	schema   *schema
	args     []byte // all of ToolArgs so far
	count    int    // parameters written
	seen     map[string]bool
	warnings []Warning
	stray    []byte

	mode   valueMode
	hold   []byte  // bytes of the value that are not shown
	check  checker // valueRaw and the body, once bytes are shown
	shown  bool    // bytes of the value were shown
	broken bool    // the value stopped being JSON; the rest is lost

	wrap     bool // a lone undeclared "arguments" or "input" is in hold
	wrapKey  string
	wrapFlag stringFlag

	body bool // the call has a JSON object as body
}

func (c *call) warn(w Warning) {
	for _, have := range c.warnings {
		if have == w {
			return
		}
	}
	c.warnings = append(c.warnings, w)
}

func (p *Parser) beginCall(written string) {
	name := strings.TrimSpace(written)
	c := call{index: p.calls, name: name, seen: map[string]bool{}, args: p.h.call.args[:0]}
	if t, ok := p.opt.resolve(name); ok {
		c.tool, c.name = t, t.Name
		c.schema = compileSchema(t)
	} else if len(p.opt.Tools) > 0 {
		c.warn(WarnUnknownTool)
	}
	p.flush()
	p.h.call = c
	p.calls++
	p.h.sawCall = true
	p.put(Event{Kind: ToolStart, Call: Call{Index: c.index, Name: c.name}})
	p.enter(0, hArgs)
	p.pos = int(p.base - p.origin)
}

func (p *Parser) arg(text string) { p.emit(ToolArgs, p.h.call.index, []byte(text)) }

// endCall ends the call and goes back between calls. complete is false when the end of the output cut it.
func (p *Parser) endCall(complete bool) {
	c := &p.h.call
	p.unwrap()
	if !c.body {
		if c.count == 0 {
			p.arg("{}")
		} else if complete || !p.opt.KeepTruncatedArgs {
			p.arg("}")
		}
	}
	stray := bytes.TrimRight(c.stray, " \n\t\r")
	if len(bytes.TrimSpace(stray)) > 0 {
		c.warn(WarnStray)
	}
	p.flush()
	p.put(Event{Kind: ToolEnd, Call: Call{Index: c.index, Name: c.name, Arguments: string(c.args), Complete: complete, Warnings: c.warnings}})
	if len(bytes.TrimSpace(stray)) > 0 {
		p.started = true
		p.emit(Text, 0, stray)
	}
	p.enter(0, hBetween)
	p.pos = int(p.base - p.origin)
	if p.opt.NoParallelTools && complete {
		p.finish(CauseStop, "")
	}
}

// beginParam starts a parameter.
func (p *Parser) beginParam(key string, flag stringFlag) {
	c := &p.h.call
	p.unwrapPlain()
	c.hold, c.shown, c.broken, c.check = c.hold[:0], false, false, checker{}
	if c.body || c.seen[key] {
		c.warn(WarnDuplicate)
		c.mode = valueDrop
		return
	}
	c.seen[key] = true
	types, declared := c.schema.property(key)
	if c.schema != nil && !declared {
		if c.count == 0 && (key == "arguments" || key == "input") && len(c.schema.props) > 0 {
			c.wrap, c.wrapKey, c.wrapFlag, c.mode = true, key, flag, valueHold
			return
		}
		if c.schema.closed {
			c.warn(WarnUnknownParam)
		}
	}
	if p.opt.NoCoerce {
		types = 0
	}
	p.writeKey(key)
	c.mode = modeOf(flag, types)
}

func modeOf(flag stringFlag, types typeSet) valueMode {
	switch {
	case flag == flagTrue && (types == 0 || types&typeString != 0):
		return valueString
	case flag == flagTrue:
		return valueRaw
	case flag == flagFalse && types == typeString:
		return valueSniff
	case flag == flagFalse:
		return valueRaw
	case types == typeString:
		return valueString
	case types != 0 && types&typeString == 0:
		return valueRaw
	}
	return valueHold
}

func (p *Parser) writeKey(key string) {
	c := &p.h.call
	if c.count == 0 {
		p.arg("{")
	} else {
		p.arg(", ")
	}
	c.count++
	p.emit(ToolArgs, c.index, append(appendEscaped([]byte{'"'}, []byte(key)), `": `...))
}

// valueText takes a piece of the value.
func (p *Parser) valueText(seg []byte) {
	c := &p.h.call
	switch c.mode {
	case valueString:
		if !c.shown {
			c.shown = true
			p.arg(`"`)
		}
		p.emit(ToolArgs, c.index, appendEscaped(nil, seg))
	case valueSniff:
		c.hold = append(c.hold, seg...)
		t := bytes.TrimLeft(c.hold[:min(len(c.hold), maxRawHold)], " \n\t\r")
		if len(t) > 0 && t[0] != '"' || len(t) == 0 && len(c.hold) >= maxRawHold {
			held := c.hold
			c.mode, c.hold = valueString, nil
			p.valueText(held)
		}
	case valueRaw:
		p.rawText(seg)
	case valueHold:
		c.hold = append(c.hold, seg...)
	}
}

// rawText shows JSON as far as it is JSON. While nothing is shown, what turns out not to be JSON becomes a string.
func (p *Parser) rawText(seg []byte) {
	c := &p.h.call
	if c.broken {
		c.stray = appendSpelled(c.stray, seg)
		return
	}
	if !c.shown {
		n := min(len(seg), maxRawHold+1-len(c.hold))
		c.hold, seg = append(c.hold, seg[:n]...), seg[n:]
		if len(c.hold) <= maxRawHold {
			return
		}
		held := c.hold
		if c.check.run(held) < len(held) {
			c.mode, c.hold = valueString, nil
			c.check = checker{}
			c.warn(WarnRepaired)
			p.valueText(held)
			p.valueText(seg)
			return
		}
		c.hold, c.shown = nil, true
		p.emit(ToolArgs, c.index, held)
	}
	n := c.check.run(seg)
	p.emit(ToolArgs, c.index, seg[:n])
	if n < len(seg) {
		c.broken = true
		c.stray = appendSpelled(c.stray, seg[n:])
		c.warn(WarnRepaired)
	}
}

// run feeds bytes and gives the number taken. Marks are text; they can stand inside strings only.
func (c *checker) run(seg []byte) int {
	for i, b := range seg {
		if !c.feed(b) {
			return i
		}
	}
	return len(seg)
}

// endParam ends the value. cut is set when the end of the output did.
func (p *Parser) endParam(cut bool) {
	c := &p.h.call
	keep := cut && p.opt.KeepTruncatedArgs
	switch c.mode {
	case valueString:
		if !c.shown {
			p.arg(`"`)
		}
		if !keep {
			p.arg(`"`)
		}
	case valueSniff:
		if t := bytes.TrimSpace(c.hold); validJSON(t) {
			p.emit(ToolArgs, c.index, t)
		} else {
			p.quote(c.hold)
		}
	case valueRaw:
		if c.shown {
			if !c.check.complete() && !keep {
				c.warn(WarnRepaired)
				p.arg(c.check.closing())
			}
		} else {
			p.wholeRaw(c.hold, cut)
		}
	case valueHold:
		if c.wrap {
			return // decided when the call goes on or ends
		}
		p.wholeRaw(c.hold, cut)
	}
	c.hold = nil
}

func (p *Parser) quote(text []byte) {
	p.emit(ToolArgs, p.h.call.index, append(appendEscaped([]byte{'"'}, text), '"'))
}

// wholeRaw writes a value that is known as a whole: JSON as it stands, a Python literal as JSON, a cut document closed, anything else as
// a string.
func (p *Parser) wholeRaw(text []byte, cut bool) {
	c := &p.h.call
	if validJSON(text) {
		p.emit(ToolArgs, c.index, text)
		return
	}
	if c.mode == valueRaw {
		c.warn(WarnRepaired)
	}
	t := bytes.TrimSpace(text)
	switch string(t) {
	case "True":
		p.arg("true")
		return
	case "False":
		p.arg("false")
		return
	case "None":
		p.arg("null")
		return
	}
	if n := len(t); n >= 2 && t[0] == '\'' && t[n-1] == '\'' && bytes.IndexByte(t[1:n-1], '\'') < 0 {
		p.quote(t[1 : n-1])
		return
	}
	if cut && len(t) > 0 && (t[0] == '{' || t[0] == '[' || t[0] == '"') {
		var check checker
		if check.run(t) == len(t) {
			p.emit(ToolArgs, c.index, t)
			p.arg(check.closing())
			return
		}
	}
	p.quote(text)
}

// unwrap decides about a lone undeclared wrapper at the end of the call: an object of declared properties is the arguments themselves.
func (p *Parser) unwrap() {
	c := &p.h.call
	if !c.wrap {
		return
	}
	if v, err := pyjson.Parse(appendSpelled(nil, bytes.TrimSpace(c.hold))); err == nil && v.Kind == pyjson.Object && len(v.Members) > 0 {
		all := true
		for _, m := range v.Members {
			if _, ok := c.schema.property(m.Key); !ok {
				all = false
			}
		}
		if all {
			p.emit(ToolArgs, c.index, bytes.TrimSpace(c.hold))
			c.warn(WarnUnwrapped)
			c.wrap, c.hold, c.body = false, nil, true
			return
		}
	}
	p.unwrapPlain()
}

// unwrapPlain writes the held wrapper as the ordinary parameter that it is.
func (p *Parser) unwrapPlain() {
	c := &p.h.call
	if !c.wrap {
		return
	}
	c.wrap = false
	if c.schema.closed {
		c.warn(WarnUnknownParam)
	}
	p.writeKey(c.wrapKey)
	if c.wrapFlag == flagTrue {
		p.quote(c.hold)
	} else {
		p.wholeRaw(c.hold, false)
	}
	c.hold = nil
}

func (c *call) canHaveBody() bool {
	return c.count == 0 && !c.wrap && !c.body && len(bytes.TrimSpace(c.stray)) == 0
}

func (c *call) beginBody() {
	c.hold, c.shown, c.broken, c.check = nil, false, false, checker{}
	c.body = true
}

// bodyText takes a piece of a call whose body is a JSON object. The object is shown as it comes; what follows it is answer text.
func (p *Parser) bodyText(seg []byte) {
	c := &p.h.call
	n := 0
	for !c.broken && n < len(seg) && !(c.check.started && c.check.complete()) && c.check.feed(seg[n]) {
		n++
	}
	p.emit(ToolArgs, c.index, seg[:n])
	if n == len(seg) {
		return
	}
	if rest := seg[n:]; len(c.stray) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		if !c.check.complete() {
			c.broken = true
			c.warn(WarnRepaired)
		}
		c.stray = appendSpelled(c.stray, rest)
	}
}

func (p *Parser) endBody(cut bool) {
	c := &p.h.call
	if !c.check.complete() && !(cut && p.opt.KeepTruncatedArgs) {
		if !cut {
			c.warn(WarnRepaired)
		}
		p.arg(c.check.closing())
	}
}
