package parse

import (
	"fmt"
	"math"
	"sort"
	"strings"
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// state is where the parser stands. States that start with c belong to the compatible grammar, with h to the hardened one.
type state uint8

const (
	cReason state = iota
	cContent
	cJSONStart
	cJSONFence
	cJSONBare
	cJSONDone
	cBlock
	cName
	cArgs
	cKey
	cFlag
	cString
	cRaw
	cAfter

	hReason
	hContent
	hJSONStart
	hJSONFence
	hJSONBare
	hJSONDone
	hBetween // inside a block between calls, and after a block
	hArgs    // inside a call between parameters
	hValue   // inside a parameter
	hBody    // inside a call whose body is a JSON object
	hPlain   // no markup at all

	stateCount
)

// Limits of the hardened grammar. They bound what is held back.
const (
	maxNewlines = 64   // line feeds before markup that belong to it
	maxOpener   = 512  // from the opening mark to the end of the first tool name
	maxName     = 256  // a tool name
	maxHeader   = 1024 // a parameter tag
	maxRawHold  = 256  // a raw value before its first byte is shown
)

// Parser turns one choice's output into events. It belongs to one goroutine.
type Parser struct {
	opt     Options
	compat  bool
	st      state
	text    bool // the last push was text: spellings are markup
	lead    bool // at the start of a channel, where line feeds are dropped
	done    bool
	started bool // Text was emitted

	// buf[i] is the byte at offset origin+i of the scanned text. Everything before offset base is dealt with, everything before offset
	// origin+pos is scanned.
	buf    []byte
	origin int64
	base   int64
	pos    int
	node   int16
	stops  *stopMachine
	snode  int32

	nlStart, nlEnd int64 // the last run of line feeds

	cuts  []int64 // compat: offsets at which a pushed piece begins, ascending
	spans []span  // tokens whose bytes are not dealt with yet
	head  int     // first live span

	part   []byte // bytes of an unfinished character
	partIn []span // tokens that gave part, without offsets yet

	out     []Event
	acc     []byte // text of the event being built
	accKind Kind
	accCall int
	accLogs []TokenLogprob

	calls  int
	name   []byte // compat: the name being read
	nparam int
	argbuf []byte // compat: arguments so far

	h hardened

	usage     Usage
	reasoning float64
	thought   []byte // compat with a vocabulary: the whole reasoning, to be counted at the end
	counted   int    // its tokens ...
	countedTo int    // ... up to this length
	countText func(string) []int32
	warnings  []Warning

	idThink, idEndThink, idDSML int32
	illegal                     []int32
	idEOS                       int32
}

// span is the range of bytes that one token, or one text chunk of n tokens, gave.
type span struct {
	start, end int64
	n          int
	token      bool
	counted    bool
	lp         *TokenLogprob
	more       []*TokenLogprob // compat: of the other tokens of the piece
}

// New makes a parser. It fails on options that make no sense.
func New(opt Options) (*Parser, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	p := &Parser{opt: opt, compat: opt.Compat, idThink: -1, idEndThink: -1, idDSML: -1, idEOS: -1}
	if len(opt.StopStrings) > 0 {
		p.stops = compileStops(opt.StopStrings)
	}
	if v := opt.Vocabulary; v != nil {
		id := func(s string) int32 {
			if i, ok := v.ID(s); ok && v.Added(i) {
				return i
			}
			return -1
		}
		p.idThink, p.idEndThink, p.idDSML = id(spellThink), id(spellEndThink), id(spellDSML)
		p.idEOS = id("<｜end▁of▁sentence｜>")
		for _, s := range []string{"<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜System｜>", "<｜latest_reminder｜>"} {
			if i := id(s); i >= 0 {
				p.illegal = append(p.illegal, i)
			}
		}
		if c, ok := v.(interface{ EncodeSpecial(string) []int32 }); ok && opt.Compat {
			p.countText = c.EncodeSpecial
		}
	}
	switch opt.Stage {
	case conversation.StageReasoning:
		p.enter(cReason, hReason)
		p.lead = true
	case conversation.StageReasoningContinuation:
		p.enter(cReason, hReason)
	case conversation.StageContentContinuation:
		p.enterContent()
	default:
		p.enterContent()
		p.lead = true
	}
	if opt.Plain {
		p.compat, p.st, p.lead = false, hPlain, false
		return p, nil
	}
	if opt.StartsInCalls && opt.ToolCalls {
		p.enter(cBlock, hBetween)
		p.h.inBlock = true
		p.lead = false
	}
	return p, nil
}

func (p *Parser) enter(compat, hard state) {
	p.st = hard
	if p.compat {
		p.st = compat
	}
	p.node, p.snode = 0, 0
}

func (p *Parser) enterContent() {
	if p.opt.JSONOutput && (p.compat || p.opt.FilterJSON) {
		p.enter(cJSONStart, hJSONStart)
	} else {
		p.enter(cContent, hContent)
	}
}

// Done says that the output is complete: Finish was called, or the parser itself ended the turn (stop string, end token, one call with
// NoParallelTools) and the engine can be told to stop.
func (p *Parser) Done() bool { return p.done }

// Usage gives the tokens counted so far; it is final once the parser is done.
func (p *Parser) Usage() Usage {
	u := p.usage
	if p.countText != nil {
		if len(p.thought) > p.countedTo { // callers may ask at every step; the reasoning grows only while it lasts
			p.counted, p.countedTo = len(p.countText(string(p.thought))), len(p.thought)
		}
		u.Reasoning = p.counted
	} else {
		u.Reasoning = int(math.Round(p.reasoning))
	}
	return u
}

// Held gives the number of bytes held back.
func (p *Parser) Held() int { return int(p.origin+int64(len(p.buf))-p.base) + len(p.part) }

// Tokens takes the ids of one engine step and appends what became known to dst. logprobs is nil or holds one entry for each id. After
// the parser is done nothing is appended.
func (p *Parser) Tokens(dst []Event, ids []int32, logprobs []Logprob) ([]Event, error) {
	if p.done {
		return dst, nil
	}
	v := p.opt.Vocabulary
	if v == nil {
		return dst, fmt.Errorf("parse: tokens pushed to a parser without a vocabulary")
	}
	if logprobs != nil && len(logprobs) != len(ids) {
		return dst, fmt.Errorf("invalid log probabilities: %d log probabilities for %d token IDs", len(logprobs), len(ids))
	}
	p.begin(dst, false)
	for i, id := range ids {
		if p.done {
			break
		}
		s := span{n: 1, token: true}
		if logprobs != nil {
			s.lp = resolve(v, id, logprobs[i])
		}
		if p.compat {
			p.compatToken(v, id, s)
		} else {
			p.token(v, id, s)
			p.scan() // one at a time, so that no token after the one that ends the turn is counted
		}
	}
	if p.compat {
		p.compatRun()
		p.scan()
	}
	return p.end(), nil
}

// Text takes text that counts as n tokens, from a backend that gives no ids. It may cut characters anywhere.
func (p *Parser) Text(dst []Event, text string, n int) []Event {
	if p.done {
		return dst
	}
	p.begin(dst, true)
	p.usage.Completion += n
	at := p.top()
	p.bytes(text)
	p.addSpan(span{start: at, end: p.top(), n: n})
	if p.top() > at {
		p.cut(at)
	}
	p.scan()
	return p.end()
}

// Finish ends the output. A second call appends nothing.
func (p *Parser) Finish(dst []Event, cause Cause) []Event {
	if p.done {
		return dst
	}
	p.begin(dst, p.text)
	if p.compat && !p.text {
		p.part, p.partIn = p.part[:0], p.partIn[:0] // unfinished characters are lost and not counted
	} else {
		p.flushPart()
	}
	p.scan()
	if !p.done {
		if p.compat {
			p.release(p.top())
			p.closeCompat(cause)
		} else {
			p.closeHardened(cause)
		}
	}
	return p.end()
}

func resolve(v Vocabulary, id int32, lp Logprob) *TokenLogprob {
	t := &TokenLogprob{Bytes: v.Bytes(id), Logprob: lp.Logprob, Top: make([]TokenTop, len(lp.Top))}
	for i, alt := range lp.Top {
		t.Top[i] = TokenTop{Bytes: v.Bytes(alt.ID), Logprob: alt.Logprob}
	}
	return t
}

// begin starts a push.
func (p *Parser) begin(dst []Event, text bool) {
	p.out = dst
	if text != p.text {
		// Other spellings are markup now: what is held is looked at again.
		if p.compat && !p.text {
			p.compatPiece(validUTF8(p.part))
		} else {
			p.flushPart()
		}
		p.text = text
		p.pos, p.node, p.snode = int(p.base-p.origin), 0, 0
	}
	if n := int(p.base - p.origin); n > 0 {
		p.buf = p.buf[:copy(p.buf, p.buf[n:])]
		p.origin, p.pos = p.base, p.pos-n
	}
	if p.head > 64 && p.head*2 > len(p.spans) {
		p.spans = p.spans[:copy(p.spans, p.spans[p.head:])]
		p.head = 0
	}
	if k := sort.Search(len(p.cuts), func(i int) bool { return p.cuts[i] >= p.base }); k > 64 && k*2 > len(p.cuts) {
		p.cuts = p.cuts[:copy(p.cuts, p.cuts[k:])]
	}
}

func (p *Parser) end() []Event {
	p.flush()
	out := p.out
	p.out = nil
	return out
}

func (p *Parser) top() int64 { return p.origin + int64(len(p.buf)) }

func (p *Parser) cut(at int64) {
	if p.compat && (len(p.cuts) == 0 || p.cuts[len(p.cuts)-1] < at) {
		p.cuts = append(p.cuts, at)
	}
}

func (p *Parser) addSpan(s span) { p.spans = append(p.spans, s) }

// token takes one id in the hardened grammar.
func (p *Parser) token(v Vocabulary, id int32, s span) {
	p.usage.Completion++
	mark := byte(0)
	switch {
	case id < 0:
	case id == p.idThink:
		mark = markThink
	case id == p.idEndThink:
		mark = markEndThink
	case id == p.idDSML:
		mark = markDSML
	case id == p.idEOS:
		p.flushPart()
		p.zeroSpan(s)
		p.scan()
		if !p.done {
			p.closeHardened(CauseStop)
		}
		return
	default:
		for _, bad := range p.illegal {
			if id == bad {
				p.flushPart()
				p.zeroSpan(s)
				p.scan()
				if !p.done {
					p.warn(WarnIllegalControl)
					p.closeHardened(CauseStop)
				}
				return
			}
		}
	}
	if mark != 0 {
		p.flushPart()
		at := p.top()
		p.buf = append(p.buf, mark)
		s.start, s.end = at, at+1
		p.addSpan(s)
		return
	}
	text := v.Bytes(id)
	if v.Added(id) {
		p.flushPart()
		if v.Special(id) {
			text = ""
		}
	}
	at := p.top()
	p.partIn = append(p.partIn, s)
	p.bytes(text)
	if p.top() == at && text != "" {
		return // the character is not finished; its tokens get their range when it is
	}
	p.placePart(at)
}

func (p *Parser) zeroSpan(s span) {
	s.start, s.end = p.top(), p.top()
	p.addSpan(s)
}

// placePart gives the waiting tokens the range from at to the top.
func (p *Parser) placePart(at int64) {
	for _, s := range p.partIn {
		s.start, s.end = at, p.top()
		p.addSpan(s)
	}
	p.partIn = p.partIn[:0]
}

// bytes appends bytes to the scan buffer, whole characters only, with one U+FFFD for each maximal invalid part.
func (p *Parser) bytes(s string) {
	for len(p.part) > 0 && s != "" {
		// Extend the unfinished character by one byte and look again.
		p.part = append(p.part, s[0])
		n, whole := runeState(p.part)
		if whole {
			p.buf = append(p.buf, p.part...)
			p.part = p.part[:0]
			s = s[1:]
		} else if n == 0 {
			s = s[1:] // still unfinished
		} else {
			// The new byte does not continue: what was there is one invalid part, the byte starts over.
			p.buf = append(p.buf, "\uFFFD"...)
			p.part = p.part[:0]
		}
	}
	start := 0
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			i++
			continue
		}
		r, size := utf8.DecodeRuneInString(s[i:])
		if r != utf8.RuneError || size > 1 {
			i += size
			continue
		}
		p.buf = append(p.buf, s[start:i]...)
		n := invalidLen(s[i:])
		if n == 0 { // may go on in the next push
			p.part = append(p.part, s[i:]...)
			return
		}
		p.buf = append(p.buf, "\uFFFD"...)
		i += n
		start = i
	}
	p.buf = append(p.buf, s[start:]...)
}

// runeState says whether b is a whole character; n is 0 while it can become one, else the bytes that cannot.
func runeState(b []byte) (n int, whole bool) {
	if utf8.FullRune(b) {
		if r, size := utf8.DecodeRune(b); r != utf8.RuneError || size == 3 {
			return size, size == len(b)
		}
		return 1, false
	}
	return 0, false
}

// invalidLen gives the length of the maximal invalid part at the start of s, or 0 when s is the start of a character.
func invalidLen(s string) int {
	if !utf8.FullRuneInString(s) {
		return 0
	}
	n := 1
	for n < len(s) && n < 4 && !utf8.FullRuneInString(s[:n]) {
		n++
	}
	// s[:n] is the shortest prefix that is decided; its last byte is what broke it unless it is the first.
	if n > 1 {
		return n - 1
	}
	return 1
}

// flushPart ends an unfinished character.
func (p *Parser) flushPart() {
	at := p.top()
	if len(p.part) > 0 {
		p.buf = append(p.buf, "\uFFFD"...)
		p.part = p.part[:0]
	}
	p.placePart(at)
}

// scan looks at everything that was pushed, acts on what is complete and holds back what may still become something.
func (p *Parser) scan() {
	for !p.done {
		if p.h.tag != tagNone {
			if !p.tryTag(false) {
				return
			}
			continue
		}
		if p.lead && !p.dropLead() {
			return
		}
		if (p.st == hBetween || p.st == hArgs) && !p.skipBlank() {
			return
		}
		a := tables()[p.st][index(p.opt.ToolCalls)][index(p.text)]
		stops := p.stops
		if p.st != cContent && p.st != hContent && p.st != hPlain && !p.jsonState() {
			stops = nil
		}
		if act, size, stop := p.find(a, stops); stop > 0 {
			word := stops.words[stop-1]
			end := p.origin + int64(p.pos)
			p.release(end - int64(len(word)))
			p.drop(end)
			p.finish(CauseStopString, word)
			return
		} else if act != actNone {
			if p.compat {
				p.matchCompat(act, size)
			} else {
				p.match(act, size)
			}
			continue
		}
		from := p.holdFrom(a, stops)
		if p.st == hBetween && from > p.base {
			p.leaveBlock()
			continue
		}
		p.release(from)
		return
	}
}

func index(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p *Parser) jsonState() bool {
	return p.st >= cJSONStart && p.st <= cJSONDone || p.st >= hJSONStart && p.st <= hJSONDone
}

// dropLead drops line feeds at the start of a channel; it says whether anything else came.
func (p *Parser) dropLead() bool {
	i := int(p.base - p.origin)
	for i < len(p.buf) && p.buf[i] == '\n' {
		i++
	}
	p.drop(p.origin + int64(i))
	p.pos, p.node, p.snode = i, 0, 0
	if i == len(p.buf) {
		return false
	}
	p.lead = false
	return true
}

// find scans on until a pattern or a stop string (its index plus one) completes.
func (p *Parser) find(a *automaton, stops *stopMachine) (act action, size int, stop int32) {
	buf, i, node, snode := p.buf, p.pos, p.node, p.snode
	for i < len(buf) {
		if node == 0 && snode == 0 {
			for i < len(buf) && !a.begin[buf[i]] && buf[i] != '\n' && (stops == nil || stops.root[buf[i]] == 0) {
				i++
			}
			if i == len(buf) {
				break
			}
		}
		b := buf[i]
		if b == '\n' {
			at := p.origin + int64(i)
			if p.nlEnd != at {
				p.nlStart = at
			}
			p.nlEnd = at + 1
		}
		node = a.step(node, b)
		i++
		if stops != nil {
			snode = stops.step(snode, b)
			if w := stops.nodes[snode].out; w != 0 {
				p.pos, p.node, p.snode = i, 0, 0
				return actNone, 0, w
			}
		}
		if a.out[node] != actNone {
			p.pos, p.node, p.snode = i, 0, 0
			return a.out[node], int(a.size[node]), 0
		}
	}
	p.pos, p.node, p.snode = i, node, snode
	return actNone, 0, 0
}

// swallows says whether line feeds before markup belong to the markup in this state.
func (p *Parser) swallows() bool {
	switch p.st {
	case cReason, hReason:
		return true
	case cContent, cJSONStart, cJSONFence, cJSONBare, cJSONDone, hContent, hJSONStart, hJSONFence, hJSONBare, hJSONDone:
		return p.opt.ToolCalls
	}
	return false
}

// before gives the start of the line feeds that stand before offset at and belong to it.
func (p *Parser) before(at int64) int64 {
	if p.nlEnd != at || at == p.base {
		return at
	}
	start := max(p.nlStart, p.base)
	if !p.compat {
		start = max(start, at-maxNewlines)
	}
	return start
}

// holdFrom gives the offset from which everything may still become something.
func (p *Parser) holdFrom(a *automaton, stops *stopMachine) int64 {
	end := p.top()
	from := end - int64(a.depth[p.node])
	if p.swallows() {
		from = p.before(from)
	}
	if stops != nil {
		from = min(from, end-int64(stops.nodes[p.snode].depth))
	}
	if p.compat && from < end {
		// The reference holds the whole piece in which a candidate starts.
		if k := sort.Search(len(p.cuts), func(i int) bool { return p.cuts[i] > from }); k > 0 {
			from = p.cuts[k-1]
		} else {
			from = p.base
		}
	}
	return max(from, p.base)
}

// release gives the bytes up to offset hi to the current state as text.
func (p *Parser) release(hi int64) {
	if hi <= p.base {
		return
	}
	if !p.compat {
		seg := p.buf[p.base-p.origin : hi-p.origin]
		p.hardText(seg, hi)
		return
	}
	for p.base < hi {
		to := hi
		if k := sort.Search(len(p.cuts), func(i int) bool { return p.cuts[i] > p.base }); k < len(p.cuts) && p.cuts[k] < hi {
			to = p.cuts[k]
		}
		p.compatText(p.buf[p.base-p.origin:to-p.origin], to)
	}
}

// drop passes over the bytes up to offset hi.
func (p *Parser) drop(hi int64) { p.advance(hi, false, false) }

// advance moves base to hi and settles the tokens on the way: as reasoning or not, with log-probabilities attached to the event being
// built or lost.
func (p *Parser) advance(hi int64, reasoning, attach bool) {
	for i := p.head; i < len(p.spans); i++ {
		s := &p.spans[i]
		if s.start >= hi && s.end > hi || s.start > hi {
			break
		}
		if s.token {
			if !s.counted && reasoning {
				p.reasoning++
			}
			s.counted = true
		} else if reasoning {
			if s.end > s.start {
				p.reasoning += float64(s.n) * float64(min(hi, s.end)-max(p.base, s.start)) / float64(s.end-s.start)
			} else {
				p.reasoning += float64(s.n)
			}
		}
		if attach && s.lp != nil {
			p.accLogs = append(p.accLogs, *s.lp)
			for _, lp := range s.more {
				p.accLogs = append(p.accLogs, *lp)
			}
			s.lp, s.more = nil, nil
		}
		if s.end <= hi && i == p.head {
			p.head++
		}
	}
	p.base = hi
}

// emit appends text to the event being built, or starts another one.
func (p *Parser) emit(kind Kind, call int, text []byte) {
	if len(text) == 0 {
		return
	}
	p.open(kind, call)
	for i, b := range text {
		if b >= firstMark {
			p.acc = append(p.acc, text[:i]...)
			p.acc = append(p.acc, spelling(b)...)
			p.emitRest(text[i+1:])
			return
		}
	}
	p.acc = append(p.acc, text...)
}

func (p *Parser) emitRest(text []byte) {
	for _, b := range text {
		if b >= firstMark {
			p.acc = append(p.acc, spelling(b)...)
		} else {
			p.acc = append(p.acc, b)
		}
	}
}

// open makes sure that the event being built is of a kind.
func (p *Parser) open(kind Kind, call int) {
	if p.accKind != kind || p.accCall != call {
		p.flush()
		p.accKind, p.accCall = kind, call
	}
}

// flush hands out the event being built.
func (p *Parser) flush() {
	if len(p.acc) > 0 {
		ev := Event{Kind: p.accKind, Text: string(p.acc)}
		switch p.accKind {
		case ToolArgs:
			ev.Call = Call{Index: p.accCall}
			if p.compat {
				p.argbuf = append(p.argbuf, p.acc...)
			} else {
				p.h.call.args = append(p.h.call.args, p.acc...)
			}
		case Reasoning:
			if p.countText != nil {
				p.thought = append(p.thought, p.acc...)
			}
		}
		if p.accLogs != nil && p.accKind != ToolArgs {
			ev.Logprobs = append([]TokenLogprob(nil), p.accLogs...)
		}
		p.out = append(p.out, ev)
	}
	p.acc, p.accKind, p.accLogs = p.acc[:0], 0, p.accLogs[:0]
}

// put hands out an event of its own.
func (p *Parser) put(ev Event) {
	p.flush()
	p.out = append(p.out, ev)
}

func (p *Parser) warn(w Warning) { p.warnings = append(p.warnings, w) }

// finish ends the turn. A normal end after a call is CauseToolCalls.
func (p *Parser) finish(cause Cause, stop string) {
	if p.calls > 0 && (cause == CauseStop || cause == CauseEnd && !p.compat) {
		cause = CauseToolCalls
	}
	p.put(Event{Kind: Finish, Cause: cause, Stop: strings.Clone(stop), Call: Call{Index: -1, Warnings: p.warnings}})
	p.drop(p.top())
	p.done = true
}
