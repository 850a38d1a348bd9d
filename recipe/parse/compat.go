package parse

import (
	"bytes"
	"strings"
)

// statePatterns lists what each state looks for.
func statePatterns(s state, tools bool) []pattern {
	const (
		open  = "<" + spellDSML
		close = "</" + spellDSML
	)
	var list []pattern
	add := func(act action, texts ...string) {
		for _, t := range texts {
			list = append(list, pattern{t, act})
		}
	}
	switch s {
	case cReason, cContent:
		add(actEndThink, spellEndThink)
	case cJSONStart, hJSONStart:
		add(actFence, "```json\n", "```\n")
		add(actJSON, "{", "[")
	case cJSONFence, hJSONFence:
		add(actFenceEnd, "\n```")
	case cBlock:
		add(actInvoke, `invoke name="`)
		add(actBlockEnd, close+"tool_calls>", close+" calls>")
	case cName:
		add(actQuote, `"`)
	case cArgs:
		add(actParam, "parameter name=")
		add(actClose, close)
	case cKey:
		add(actSpace, " ")
	case cFlag:
		add(actTrue, `true">`)
		add(actFalse, `false">`)
	case cString, cRaw:
		add(actClose, close)
	case hReason, hContent, hBetween:
		add(actThink, spellThink)
		add(actEndThink, spellEndThink)
	case hArgs:
		add(actOpen, open)
		add(actClose, close)
	case hValue, hBody:
		for _, sp := range []string{"", " "} {
			add(actCloseParam, close+sp+"parameter>")
			add(actCloseInvoke, close+sp+"invoke>")
			for _, b := range blockNames {
				add(actCloseBlock, close+sp+b)
			}
			add(actOpenParam, open+sp+`parameter name="`)
			add(actOpenInvoke, open+sp+`invoke name="`)
		}
	}
	if tools {
		switch s {
		case cReason, cContent, cJSONStart, cJSONFence, cJSONBare, cJSONDone, hReason, hJSONStart, hJSONFence, hJSONBare, hJSONDone:
			add(actOpen, open)
		case hContent, hBetween:
			add(actOpen, open)
			add(actClose, close)
		}
	}
	return list
}

// compatToken takes one id: bytes wait until they decode to something that does not end in a replacement character, added tokens are
// pieces of their own, ids without a token vanish.
func (p *Parser) compatToken(v Vocabulary, id int32, s span) {
	if id < 0 || !v.Known(id) {
		return
	}
	if !v.Added(id) {
		p.part = append(p.part, v.Bytes(id)...)
		p.partIn = append(p.partIn, s)
		return
	}
	p.compatPiece(validUTF8(p.part))
	at := p.top()
	switch id {
	case p.idEndThink:
		p.buf = append(p.buf, markEndThink)
	case p.idDSML:
		p.buf = append(p.buf, markDSML)
	default:
		p.buf = append(p.buf, v.Bytes(id)...)
	}
	p.usage.Completion++
	s.start, s.end = at, p.top()
	p.addSpan(s)
	p.cut(at)
}

// compatRun ends the ordinary tokens of a push.
func (p *Parser) compatRun() {
	if len(p.part) == 0 {
		return
	}
	if text := validUTF8(p.part); !strings.HasSuffix(text, "\uFFFD") {
		p.compatPiece(text)
	}
}

func (p *Parser) compatPiece(text string) {
	if len(p.partIn) == 0 {
		return
	}
	at := p.top()
	p.buf = append(p.buf, text...)
	p.usage.Completion += len(p.partIn)
	// The tokens of a piece stand or fall together: one span for all.
	one := p.partIn[0]
	for _, s := range p.partIn[1:] {
		one.n += s.n
		if s.lp != nil {
			one.more = append(one.more, s.lp)
		}
	}
	one.start, one.end = at, p.top()
	p.addSpan(one)
	p.partIn = p.partIn[:0]
	p.part = p.part[:0]
	p.cut(at)
}

// validUTF8 decodes bytes with one U+FFFD for each maximal invalid part.
func validUTF8(b []byte) string {
	var q Parser
	q.bytes(string(b))
	q.flushPart()
	return string(q.buf)
}

// compatText gives one piece to the current state.
func (p *Parser) compatText(seg []byte, hi int64) {
	switch p.st {
	case cReason:
		p.flush()
		p.open(Reasoning, 0)
		p.advance(hi, true, true)
		p.emit(Reasoning, 0, seg)
		p.flush()
	case cContent, cJSONFence, cJSONBare:
		p.flush()
		p.open(Text, 0)
		p.advance(hi, false, true)
		p.emit(Text, 0, seg)
		p.flush()
	case cJSONStart, cJSONDone:
		p.drop(hi)
		p.flush()
		p.emit(Text, 0, []byte{' '})
		p.flush()
	case cName:
		p.name = appendSpelled(p.name, seg)
		p.drop(hi)
	case cKey, cRaw:
		p.drop(hi)
		p.emit(ToolArgs, p.calls-1, seg)
	case cString:
		p.drop(hi)
		p.emit(ToolArgs, p.calls-1, appendEscaped(nil, seg))
	default:
		p.drop(hi)
	}
}

func (p *Parser) args(text string) { p.emit(ToolArgs, p.calls-1, []byte(text)) }

func (p *Parser) matchCompat(act action, size int) {
	end := p.origin + int64(p.pos)
	start := end - int64(size)
	to := start
	if act == actOpen && p.swallows() || act == actEndThink && p.st == cReason {
		to = p.before(start)
	}
	was := p.st
	p.release(to)
	if act != actJSON {
		p.drop(end)
	}
	switch was {
	case cReason:
		p.put(Event{Kind: ReasoningEnd})
		if act == actEndThink {
			p.enterContent()
			p.lead = true
		} else {
			p.enter(cBlock, 0)
		}
	case cContent, cJSONStart, cJSONFence, cJSONBare, cJSONDone:
		switch act {
		case actOpen:
			p.enter(cBlock, 0)
		case actFence:
			p.enter(cJSONFence, 0)
		case actJSON:
			p.enter(cJSONBare, 0)
			p.pos = int(start - p.origin)
		case actFenceEnd:
			p.enter(cJSONDone, 0)
		}
	case cBlock:
		if act == actInvoke {
			p.name = p.name[:0]
			p.enter(cName, 0)
		} else {
			p.enter(cAfter, 0)
		}
	case cName:
		p.put(Event{Kind: ToolStart, Call: Call{Index: p.calls, Name: string(p.name)}})
		p.calls++
		p.nparam, p.argbuf = 0, p.argbuf[:0]
		p.enter(cArgs, 0)
	case cArgs:
		switch {
		case act == actParam && p.nparam == 0:
			p.args("{")
		case act == actParam:
			p.args(", ")
		case p.nparam == 0:
			p.args("{}")
		default:
			p.args("}")
		}
		if act == actParam {
			p.nparam++
			p.enter(cKey, 0)
		} else {
			p.endCompatCall(true)
			p.enter(cBlock, 0)
		}
	case cKey:
		p.args(": ")
		p.enter(cFlag, 0)
	case cFlag:
		if act == actTrue {
			p.args(`"`)
			p.enter(cString, 0)
		} else {
			p.enter(cRaw, 0)
		}
	case cString:
		p.args(`"`)
		p.enter(cArgs, 0)
	case cRaw:
		p.enter(cArgs, 0)
	}
}

func (p *Parser) endCompatCall(complete bool) {
	p.flush()
	p.put(Event{Kind: ToolEnd, Call: Call{Index: p.calls - 1, Name: string(p.name), Arguments: string(p.argbuf), Complete: complete}})
}

func (p *Parser) closeCompat(cause Cause) {
	if p.st >= cArgs && p.st <= cRaw {
		p.endCompatCall(false)
	}
	p.finish(cause, "")
}

func appendSpelled(dst, seg []byte) []byte {
	for _, b := range seg {
		if b >= firstMark {
			dst = append(dst, spelling(b)...)
		} else {
			dst = append(dst, b)
		}
	}
	return dst
}

const hexDigits = "0123456789abcdef"

// appendEscaped appends text as the inside of a JSON string. Escapes never depend on a neighbour, so a string can be escaped in parts.
func appendEscaped(dst, seg []byte) []byte {
	if !bytes.ContainsFunc(seg, func(r rune) bool { return r < 0x20 || r == '"' || r == '\\' }) {
		return appendSpelled(dst, seg)
	}
	for _, b := range seg {
		switch {
		case b == '"' || b == '\\':
			dst = append(dst, '\\', b)
		case b == '\n':
			dst = append(dst, '\\', 'n')
		case b == '\r':
			dst = append(dst, '\\', 'r')
		case b == '\t':
			dst = append(dst, '\\', 't')
		case b == '\b':
			dst = append(dst, '\\', 'b')
		case b == '\f':
			dst = append(dst, '\\', 'f')
		case b < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
		case b >= firstMark:
			dst = append(dst, spelling(b)...)
		default:
			dst = append(dst, b)
		}
	}
	return dst
}
