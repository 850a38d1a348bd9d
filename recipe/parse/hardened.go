package parse

import (
	"bytes"
	"strings"
)

// blockNames are the spellings of a block that are accepted: both families, the older one, and near misses of the models.
var blockNames = []string{"calls>", "tool_calls>", "function_calls>", "toolcalls>", "tool_call>"}

type tagKind uint8

const (
	tagNone  tagKind = iota
	tagOpen          // after "<" mark
	tagClose         // after "</" mark
)

// hardened is the state of the hardened grammar.
type hardened struct {
	inBlock bool
	sawCall bool

	tag     tagKind
	tagFrom int64 // where the tag begins, line feeds that belong to it included
	tagText int64 // behind its mark

	blank []byte // white space between calls

	prev  byte // the last byte given out, to see quotations
	ticks int  // backticks at the start of the current line of reasoning, -1 once something else came
	fence bool // the reasoning is inside a code fence
	quote bool // a quoted opener was seen; its quotation has not ended

	call call
}

func isBlank(b byte) bool { return b == ' ' || b == '\n' || b == '\t' || b == '\r' }

// hardText gives released bytes to the current state.
func (p *Parser) hardText(seg []byte, hi int64) {
	switch p.st {
	case hReason:
		p.track(seg)
		p.open(Reasoning, 0)
		p.advance(hi, true, true)
		p.emit(Reasoning, 0, seg)
	case hContent, hJSONFence, hJSONBare, hPlain:
		p.started = true
		p.seeQuotes(seg)
		p.open(Text, 0)
		p.advance(hi, false, true)
		p.emit(Text, 0, seg)
	case hArgs:
		p.h.call.stray = appendSpelled(p.h.call.stray, seg)
		p.drop(hi)
	case hValue:
		p.drop(hi)
		p.valueText(seg)
	case hBody:
		p.drop(hi)
		p.bodyText(seg)
	default:
		p.drop(hi)
	}
}

// track follows code fences in the reasoning.
func (p *Parser) track(seg []byte) {
	if !p.opt.ToolCalls {
		return
	}
	for _, b := range seg {
		switch {
		case b == '\n':
			p.h.ticks = 0
		case b == '`' && p.h.ticks >= 0:
			if p.h.ticks++; p.h.ticks == 3 {
				p.h.fence = !p.h.fence
			}
		case b != ' ' || p.h.ticks > 0:
			p.h.ticks = -1
		}
	}
	p.seeQuotes(seg)
}

func (p *Parser) seeQuotes(seg []byte) {
	p.h.prev = seg[len(seg)-1]
	if p.h.quote && bytes.IndexByte(seg, '`') >= 0 {
		p.h.quote = false
	}
}

// quoted says whether an opener after so many line feeds is quoted, in backticks or in a code fence of the reasoning, rather than meant.
// A blank line before it tells the real one, which the model always writes so, from a fence that was never closed.
func (p *Parser) quoted(newlines int64) bool {
	if newlines >= 2 {
		return false
	}
	return p.st == hReason && p.h.fence || p.h.quote || newlines == 0 && p.h.prev == '`'
}

// skipBlank passes over white space between tags. It says whether anything else is there.
func (p *Parser) skipBlank() bool {
	i := int(p.base - p.origin)
	for i < len(p.buf) && isBlank(p.buf[i]) {
		if p.st == hBetween && len(p.h.blank) < maxNewlines {
			p.h.blank = append(p.h.blank, p.buf[i])
		} else if p.st == hArgs && len(p.h.call.stray) > 0 {
			p.h.call.stray = append(p.h.call.stray, p.buf[i])
		}
		i++
	}
	if at := p.origin + int64(i); at > p.base {
		p.drop(at)
		p.pos, p.node = i, 0
	}
	if i == len(p.buf) {
		return false
	}
	switch b := p.buf[i]; {
	case p.st == hBetween && b != '<' && b < firstMark:
		p.leaveBlock()
	case p.st == hArgs && b == '{' && p.h.call.canHaveBody():
		p.h.call.beginBody()
		p.enter(0, hBody)
		p.pos = i
	}
	return true
}

// leaveBlock goes from between calls to answer text; everything from base on is looked at again.
func (p *Parser) leaveBlock() {
	blank := p.h.blank
	if !p.started {
		blank = bytes.TrimLeft(blank, "\n")
	}
	if len(blank) > 0 {
		p.started = true
		p.emit(Text, 0, blank)
	}
	p.h.blank = p.h.blank[:0]
	p.enter(0, hContent)
	p.pos = int(p.base - p.origin)
}

// match acts on a complete pattern.
func (p *Parser) match(act action, size int) {
	end := p.origin + int64(p.pos)
	start := end - int64(size)
	if p.st == hBetween && start > p.base {
		p.leaveBlock()
		return
	}
	switch p.st {
	case hReason:
		switch act {
		case actThink:
			p.release(start)
			p.drop(end)
		case actEndThink:
			p.release(p.before(start))
			p.advance(end, true, false)
			p.put(Event{Kind: ReasoningEnd})
			p.enterContent()
			p.lead = true
			p.h.prev = 0
		case actOpen:
			p.openTag(start, end)
		}
	case hContent, hBetween, hJSONStart, hJSONFence, hJSONBare, hJSONDone:
		switch act {
		case actThink:
			p.release(start)
			p.drop(end)
			if !p.text {
				p.enter(0, hReason)
				p.lead, p.h.ticks, p.h.fence = true, 0, false
			}
		case actEndThink:
			p.release(start)
			p.drop(end)
			p.lead = !p.started && p.st != hBetween
		case actOpen:
			p.openTag(start, end)
		case actClose:
			if !p.h.sawCall && !p.h.inBlock {
				if p.st == hBetween {
					p.leaveBlock()
				}
				p.release(end)
				p.pos = int(end - p.origin)
				return
			}
			p.release(start)
			p.h.tag, p.h.tagFrom, p.h.tagText = tagClose, start, end
		case actFence:
			p.release(start)
			p.drop(end)
			p.enter(0, hJSONFence)
		case actJSON:
			p.release(start)
			p.enter(0, hJSONBare)
			p.pos = int(start - p.origin)
		case actFenceEnd:
			p.release(start)
			p.drop(end)
			p.enter(0, hJSONDone)
		}
	case hArgs:
		p.release(start)
		p.h.tagFrom, p.h.tagText = start, end
		p.h.tag = tagOpen
		if act == actClose {
			p.h.tag = tagClose
		}
	case hValue, hBody:
		p.release(start)
		if p.st == hBody && act == actCloseParam {
			p.drop(end)
			return
		}
		if act != actCloseParam {
			p.h.call.warn(WarnMissingClose)
		}
		if p.st == hValue {
			p.endParam(false)
		} else {
			p.endBody(false)
		}
		switch act {
		case actCloseParam:
			p.drop(end)
			p.enter(0, hArgs)
		case actCloseInvoke, actCloseBlock:
			p.drop(end)
			p.endCall(true)
			if act == actCloseBlock {
				p.h.inBlock = false
			}
		case actOpenParam, actOpenInvoke:
			p.enter(0, hArgs)
			p.pos = int(start - p.origin)
		}
	}
}

// openTag handles "<" mark in front of which text may stand.
func (p *Parser) openTag(start, end int64) {
	from := p.before(start)
	if p.st == hBetween {
		from = start
	}
	p.release(from)
	if p.st != hBetween && p.quoted(start-from) {
		p.release(end)
		p.h.quote = true
		return
	}
	p.h.tag, p.h.tagFrom, p.h.tagText = tagOpen, from, end
}

// tryTag reads the tag that began. It says whether it could be decided; final is set when nothing more will come.
func (p *Parser) tryTag(final bool) bool {
	// Only so much is looked at, whatever was pushed at once: the decision must not depend on that.
	limit := maxOpener
	if p.st == hArgs {
		limit = maxHeader
	}
	c := cursor{b: p.buf[p.h.tagText-p.origin:], text: p.text}
	if len(c.b) >= limit {
		c.b, final = c.b[:limit], true
	}
	kind := p.h.tag
	switch {
	case p.st == hArgs && kind == tagOpen:
		key, flag, ok := c.parameter()
		if ok {
			p.tagDone(c.i)
			p.beginParam(key, flag)
			p.enter(0, hValue)
			p.pos = int(p.base - p.origin)
			return true
		}
		if !c.more {
			c.i = 0
			if name, ok := c.invoke(); ok {
				p.h.call.warn(WarnMissingClose)
				p.endCall(true)
				if p.done {
					return true
				}
				p.tagDone(c.i)
				p.beginCall(name)
				return true
			}
		}
	case p.st == hArgs:
		if name, ok := c.closer(); ok {
			p.tagDone(c.i)
			switch name {
			case "parameter":
			case "invoke":
				p.endCall(true)
			default:
				p.h.call.warn(WarnMissingClose)
				p.endCall(true)
				p.h.inBlock = false
			}
			return true
		}
	case kind == tagClose:
		if name, ok := c.closer(); ok {
			p.tagDone(c.i)
			if name == "block" {
				p.h.inBlock = false
			}
			return true
		}
	default:
		o, ok := c.opener()
		if ok && !o.empty && p.text && !p.h.inBlock && len(p.opt.Tools) > 0 {
			_, ok = p.opt.resolve(strings.TrimSpace(o.name)) // prose may quote the markup; a declared name is the proof
		}
		if ok {
			if p.st == hReason {
				p.put(Event{Kind: ReasoningEnd})
			}
			p.tagDone(c.i)
			p.h.blank = p.h.blank[:0]
			if o.empty {
				p.warn(WarnEmptyBlock)
				p.h.sawCall = true
				p.enter(0, hBetween)
				p.pos = int(p.base - p.origin)
				return true
			}
			p.h.inBlock = o.block || p.h.inBlock
			p.beginCall(o.name)
			return true
		}
	}
	if c.more && !final {
		return false
	}
	// Not a tag: its first part is text, the rest is looked at again.
	p.h.tag = tagNone
	if p.st == hArgs {
		p.release(p.h.tagText)
	} else {
		p.warn(WarnMalformed)
		if p.st == hBetween {
			p.leaveBlock()
		}
		p.release(p.h.tagText)
	}
	p.pos, p.node = int(p.h.tagText-p.origin), 0
	return true
}

// tagDone consumes the tag and n bytes behind its mark.
func (p *Parser) tagDone(n int) {
	p.drop(p.h.tagText + int64(n))
	p.pos, p.node = int(p.base-p.origin), 0
	p.h.tag = tagNone
}

// closeHardened ends the output.
func (p *Parser) closeHardened(cause Cause) {
	cut := cause != CauseStop && cause != CauseEnd
	for !p.done && p.h.tag != tagNone {
		switch {
		case p.st == hArgs:
			p.h.call.warn(truncation(cut))
			p.drop(p.top())
			p.h.tag = tagNone
		case p.h.tag == tagClose:
			p.drop(p.top())
			p.h.tag = tagNone
		case cut && p.openerCut():
			p.warn(WarnTruncated)
			p.drop(p.top())
			p.h.tag = tagNone
		default:
			p.tryTag(true)
			p.scan()
		}
	}
	if p.done {
		return
	}
	switch p.st {
	case hValue, hBody:
		held := p.buf[p.base-p.origin:]
		if i := bytes.IndexByte(held, '<'); i >= 0 && len(bytes.TrimPrefix(held[i+1:], []byte("/"))) > 0 {
			p.drop(p.top()) // the start of a closing tag, its mark included
		}
		p.release(p.top())
		if p.st == hValue {
			p.endParam(true)
		} else {
			p.endBody(true)
		}
		p.h.call.warn(truncation(cut))
		p.endCall(!cut)
	case hArgs:
		if !bytes.HasPrefix(p.buf[p.base-p.origin:], []byte("<")) {
			p.release(p.top())
		}
		p.drop(p.top())
		p.h.call.warn(truncation(cut))
		p.endCall(!cut)
	case hBetween:
		if p.top() > p.base {
			p.leaveBlock()
			p.release(p.top())
		}
	default:
		p.release(p.top())
	}
	if !p.done {
		p.finish(cause, "")
	}
}

func truncation(cut bool) Warning {
	if cut {
		return WarnTruncated
	}
	return WarnMissingClose
}

// openerCut says whether the pending opener is certainly one that the end of the output cut.
func (p *Parser) openerCut() bool {
	if p.h.inBlock {
		return true
	}
	c := cursor{b: p.buf[p.h.tagText-p.origin:], text: p.text}
	c.spaces()
	_, block := c.blockName()
	if !block {
		return false
	}
	c.opener()
	return c.more
}

// cursor reads a tag that may not be complete. A method that fails sets more when more input could make it succeed.
type cursor struct {
	b    []byte
	i    int
	text bool
	more bool
}

func (c *cursor) lit(s string) bool {
	rest := c.b[c.i:]
	if len(rest) < len(s) {
		if string(rest) == s[:len(rest)] {
			c.more = true
		}
		return false
	}
	if string(rest[:len(s)]) != s {
		return false
	}
	c.i += len(s)
	return true
}

func (c *cursor) mark() bool {
	if c.i < len(c.b) && c.b[c.i] == markDSML {
		c.i++
		return true
	}
	if c.text || c.i == len(c.b) {
		return c.lit(spellDSML)
	}
	return false
}

func (c *cursor) spaces() {
	for n := 0; n < 4 && c.i < len(c.b) && c.b[c.i] == ' '; n++ {
		c.i++
	}
}

func (c *cursor) blockName() (string, bool) {
	for _, w := range blockNames {
		if c.lit(w) {
			c.more = false
			return w, true
		}
	}
	return "", false
}

type opener struct {
	name  string
	block bool // a block opener stood before the call
	empty bool // the block was closed at once
}

// opener reads a block opener with its first call, a call without a block, or an empty block.
func (c *cursor) opener() (o opener, ok bool) {
	c.spaces()
	if _, o.block = c.blockName(); o.block {
		for n := 0; n < maxNewlines && c.i < len(c.b) && isBlank(c.b[c.i]); n++ {
			c.i++
		}
		if !c.lit("<") {
			return o, false
		}
		if c.lit("/") {
			if !c.mark() {
				return o, false
			}
			c.spaces()
			_, o.empty = c.blockName()
			return o, o.empty
		}
		if !c.mark() {
			return o, false
		}
		c.more = false
	}
	o.name, ok = c.invoke()
	return o, ok
}

// invoke reads ` invoke name="NAME">`.
func (c *cursor) invoke() (string, bool) {
	c.spaces()
	if !c.lit(`invoke name="`) {
		return "", false
	}
	c.more = false
	rest := c.b[c.i:]
	k := bytes.Index(rest, []byte(`">`))
	if k < 0 {
		c.more = len(rest) < maxName+2
		return "", false
	}
	if k > maxName || bytes.IndexByte(rest[:k], markDSML) >= 0 || bytes.Contains(rest[:k], []byte("<")) {
		return "", false
	}
	c.i += k + 2
	return string(rest[:k]), true
}

// closer reads the rest of a closing tag.
func (c *cursor) closer() (string, bool) {
	c.spaces()
	for _, w := range []string{"parameter", "invoke"} {
		if c.lit(w + ">") {
			return w, true
		}
	}
	if _, ok := c.blockName(); ok {
		return "block", true
	}
	return "", false
}

type stringFlag uint8

const (
	flagMissing stringFlag = iota
	flagTrue
	flagFalse
)

func parseFlag(b []byte) stringFlag {
	if k := bytes.LastIndex(b, []byte(`string="`)); k >= 0 {
		b = b[k+len(`string="`):]
	}
	switch strings.ToLower(string(bytes.TrimSpace(b))) {
	case "true":
		return flagTrue
	case "false":
		return flagFalse
	}
	return flagMissing
}

// parameter reads ` parameter name="KEY" string="FLAG">`. The key may hold quotes: it ends at the first `" string="`, or without that
// attribute at `">`. The attributes may also come in the other order.
func (c *cursor) parameter() (key string, flag stringFlag, ok bool) {
	c.spaces()
	if !c.lit("parameter") {
		return "", 0, false
	}
	c.more = false
	quoteEnd, attr := []byte(`">`), []byte(`" string="`)
	wait := func() (string, stringFlag, bool) {
		c.more = true
		return "", 0, false
	}
	if c.lit(` name="`) {
		rest := c.b[c.i:]
		g, k := bytes.Index(rest, quoteEnd), bytes.Index(rest, attr)
		switch {
		case g < 0 && k < 0:
			return wait()
		case k < 0 || g >= 0 && g < k:
			c.i += g + 2
			return text(rest[:g]), flagMissing, true
		}
		value := rest[k+len(attr):]
		g = bytes.Index(value, quoteEnd)
		if g < 0 {
			return wait()
		}
		c.i += k + len(attr) + g + 2
		return text(rest[:k]), parseFlag(value[:g]), true
	}
	if c.lit(` string="`) {
		c.more = false
		rest := c.b[c.i:]
		k := bytes.Index(rest, []byte(`" name="`))
		if k < 0 {
			return wait()
		}
		name := rest[k+len(`" name="`):]
		g := bytes.Index(name, quoteEnd)
		if g < 0 {
			return wait()
		}
		c.i += k + len(`" name="`) + g + 2
		return text(name[:g]), parseFlag(rest[:k]), true
	}
	return "", 0, false
}

func text(b []byte) string { return string(appendSpelled(nil, b)) }
