package grammar

import (
	"fmt"
	"slices"
	"strings"
)

// frame is where a call goes on when its rule ends. Frames are never changed, so matchers share them.
type frame struct {
	parent *frame
	hash   uint64
	ret    int32
	depth  int32
}

// sameStack compares stacks by their hashes.
func sameStack(a, b *frame) bool {
	return a == b || a != nil && b != nil && a.hash == b.hash && a.depth == b.depth && a.ret == b.ret
}

// thread is one way to read what was accepted: a place in the graph and the calls that led there.
type thread struct {
	stack *frame
	node  int32
	q     int32 // literal: bytes matched; automaton: state
	count int32 // counted automaton: characters begun
}

// level is a set of threads and the bytes that lead on from it.
type level struct {
	threads []thread
	live    byteSet
}

// history is how far Rollback can go back, in tokens.
const history = 64

// Matcher follows one choice of one response. It belongs to one goroutine; Clone gives another one. Copies share the grammar and the parts
// of their state that never change.
type Matcher struct {
	g *Grammar

	// The state.
	threads []thread
	phase   int32 // index of the free phase, -1 in the constrained part
	free    int32 // tokens of free text in this phase
	tail    byte  // last byte of free text; 0 after a control token
	done    bool

	past  [history]saved
	pastN int // states kept
	pastI int // where the next goes

	// Scratch.
	levels  []level
	out     []thread
	seen    []seen
	over    []visit
	gen     uint64
	persist []frame // where frames of accepted tokens come from
	scratch [][]frame
	used    int
	trial   bool // frames are scratch
}

type saved struct {
	threads []thread
	phase   int32
	free    int32
	tail    byte
	done    bool
}

// seen notes the first visit of a node in a step.
type seen struct {
	gen     uint64
	stack   *frame
	emitGen uint64
}

type visit struct {
	node  int32
	stack *frame
}

// Matcher starts a new match.
func (g *Grammar) Matcher() *Matcher {
	m := &Matcher{g: g, seen: make([]seen, len(g.nodes)), levels: make([]level, 2)}
	m.Reset()
	return m
}

// Reset goes back to the start.
func (m *Matcher) Reset() {
	m.threads, m.phase, m.free, m.tail, m.done = m.threads[:0], m.g.phase, 0, 0, false
	m.pastN, m.pastI = 0, 0
	if m.phase < 0 {
		m.enter(m.g.start)
	}
}

// enter starts the constrained part at a node.
func (m *Matcher) enter(n int32) {
	m.phase, m.trial = -1, false
	m.begin(m.threads[:0])
	m.close(n, nil)
	m.threads = m.out
}

// Clone gives an independent matcher in the same state. Its Rollback does not reach back beyond now.
func (m *Matcher) Clone() *Matcher {
	c := &Matcher{g: m.g, seen: make([]seen, len(m.g.nodes)), levels: make([]level, 2)}
	c.threads = append(c.threads, m.threads...)
	c.phase, c.free, c.tail, c.done = m.phase, m.free, m.tail, m.done
	return c
}

// Grammar gives what the matcher matches.
func (m *Matcher) Grammar() *Grammar { return m.g }

// Done says whether the turn has ended: an end token was accepted.
func (m *Matcher) Done() bool { return m.done }

// Dormant says that nothing is constrained at the moment: the text is free and may end. A caller may then leave the mask away, as long as it
// goes on calling Accept.
func (m *Matcher) Dormant() bool {
	return m.phase >= 0 && !m.done && m.g.phases[m.phase].dormant && !m.g.phases[m.phase].exhausted(m.free)
}

// CanEnd says whether an end token is allowed now.
func (m *Matcher) CanEnd() bool {
	if m.done {
		return false
	}
	if m.phase >= 0 {
		p := &m.g.phases[m.phase]
		return p.mayEnd && !p.exhausted(m.free)
	}
	for _, t := range m.threads {
		if m.g.nodes[t.node].kind == nodeReturn {
			return true
		}
	}
	return false
}

// begin starts a step whose threads go to dst.
func (m *Matcher) begin(dst []thread) {
	m.gen++
	m.out, m.over = dst[:0], m.over[:0]
}

// push makes a frame.
func (m *Matcher) push(ret int32, parent *frame) *frame {
	var f *frame
	if m.trial {
		const chunk = 256
		if m.used == len(m.scratch)*chunk {
			m.scratch = append(m.scratch, make([]frame, chunk))
		}
		f = &m.scratch[m.used/chunk][m.used%chunk]
		m.used++
	} else {
		if len(m.persist) == 0 {
			m.persist = make([]frame, 16)
		}
		f = &m.persist[0]
		m.persist = m.persist[1:]
	}
	h := uint64(ret)*0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019
	f.depth = 1
	if parent != nil {
		h ^= parent.hash
		f.depth = parent.depth + 1
	}
	h ^= h >> 29
	h *= 0xBF58476D1CE4E5B9
	h ^= h >> 32
	f.parent, f.ret, f.hash = parent, ret, h
	return f
}

// close adds the threads that are reached from a node without reading anything.
func (m *Matcher) close(n int32, stack *frame) {
	for {
		x := &m.g.nodes[n]
		s := &m.seen[n]
		if s.gen != m.gen {
			s.gen, s.stack = m.gen, stack
		} else {
			if sameStack(s.stack, stack) {
				return
			}
			for _, o := range m.over {
				if o.node == n && sameStack(o.stack, stack) {
					return
				}
			}
			m.over = append(m.over, visit{n, stack})
		}
		switch x.kind {
		case nodeReturn:
			if stack == nil {
				m.emit(thread{node: n})
				return
			}
			n, stack = stack.ret, stack.parent
		case nodeSplit:
			if len(x.outs) == 0 {
				return
			}
			for _, o := range x.outs[:len(x.outs)-1] {
				m.close(o, stack)
			}
			n = x.outs[len(x.outs)-1]
		case nodeCall:
			r := &m.g.rules[x.rule]
			if m.g.nodes[x.next].kind != nodeReturn {
				depth := int32(1)
				if stack != nil {
					depth += stack.depth
				}
				if depth+r.height > m.g.frames {
					return
				}
				stack = m.push(x.next, stack)
			}
			n = r.start
		case nodeAutomaton:
			m.emit(thread{node: n, stack: stack})
			if !x.d.accept[0] || x.min > 0 {
				return
			}
			n = x.next
		default:
			m.emit(thread{node: n, stack: stack})
			return
		}
	}
}

// emit adds a thread to the step's set.
func (m *Matcher) emit(t thread) {
	s := &m.seen[t.node]
	if s.emitGen == m.gen {
		for i := range m.out {
			o := &m.out[i]
			if o.node == t.node && o.q == t.q && o.count == t.count && sameStack(o.stack, t.stack) {
				return
			}
		}
	}
	s.emitGen = m.gen
	m.out = append(m.out, t)
}

// step reads one byte: the threads of from that can read it, and what follows them, become dst.
func (m *Matcher) step(from []thread, b byte, dst []thread) []thread {
	m.begin(dst)
	for i := range from {
		t := &from[i]
		x := &m.g.nodes[t.node]
		switch x.kind {
		case nodeLiteral:
			if x.lit[t.q] != b {
				continue
			}
			if int(t.q)+1 < len(x.lit) {
				// No two threads come to the same place inside a literal, because none are in the same place before it.
				m.out = append(m.out, thread{node: t.node, stack: t.stack, q: t.q + 1})
			} else {
				m.close(x.next, t.stack)
			}
		case nodeAutomaton:
			d := x.d
			q := d.step(t.q, b)
			if q == dead {
				continue
			}
			count := t.count
			if d.counted && t.q == d.head {
				if q == d.close {
					if count < x.min {
						continue
					}
				} else if count++; x.max >= 0 && count > x.max {
					continue
				}
			}
			if !d.live[q].empty() {
				m.emit(thread{node: t.node, stack: t.stack, q: q, count: count})
			}
			if d.accept[q] && count >= x.min {
				m.close(x.next, t.stack)
			}
		}
	}
	return m.out
}

// liveBytes collects the bytes that some thread can read. It may hold a byte too many where characters are counted.
func (m *Matcher) liveBytes(threads []thread) (live byteSet) {
	for i := range threads {
		t := &threads[i]
		switch x := &m.g.nodes[t.node]; x.kind {
		case nodeLiteral:
			live.add(x.lit[t.q])
		case nodeAutomaton:
			live.or(&x.d.live[t.q])
		}
	}
	return live
}

// Mask sets the bit of every allowed id in dst (bit i of word i/32, lowest bit first) and clears all others. dst has Vocabulary.Words words
// or more; what is beyond is cleared. It gives the number of allowed ids: 0 only after the end, or when the vocabulary lacks a byte that
// the grammar needs.
func (m *Matcher) Mask(dst []uint32) int {
	clear(dst)
	if len(dst) < m.g.v.words {
		panic(fmt.Sprintf("grammar: a mask of %d words for a vocabulary of %d", len(dst), m.g.v.words))
	}
	if m.done {
		return 0
	}
	if m.phase >= 0 {
		p := &m.g.phases[m.phase]
		if p.exhausted(m.free) {
			setBit(dst, p.closing)
			return 1
		}
		copy(dst, p.mask)
		return p.allowed
	}
	m.trial, m.used = true, 0
	direct := m.levels[0].threads[:0]
	for i := range m.threads {
		t := m.threads[i]
		switch x := &m.g.nodes[t.node]; x.kind {
		case nodeReturn:
			for _, id := range m.g.v.eos {
				setBit(dst, id)
			}
		case nodeToken:
			setBit(dst, x.id)
		case nodeLiteral:
			direct = append(direct, t)
		case nodeAutomaton:
			if d := x.d; d.enumeration && d.live[t.q].count() < 8 {
				direct = append(direct, t)
				continue
			}
			m.levels[0].threads = direct
			m.tableMask(dst, t, x)
			direct = m.levels[0].threads
		}
	}
	m.levels[0].threads = direct
	if len(direct) > 0 {
		m.levels[0].live = m.liveBytes(direct)
		m.walk(dst, 0, 0)
	}
	m.trial = false
	return countBits(dst[:m.g.v.words])
}

// tableMask adds the tokens that a thread in an automaton allows. It uses levels from 1 on.
func (m *Matcher) tableMask(dst []uint32, t thread, x *node) {
	tab := x.set.at(t.q)
	room := int32(1) << 30
	if x.max >= 0 {
		room = x.max - t.count
	}
	tab.or(dst[:m.g.v.words], room, x.d.counted)
	for _, c := range tab.closers {
		if n := t.count + c.count; n >= x.min && (x.max < 0 || n <= x.max) {
			setBit(dst, c.id)
		}
	}
	if len(tab.bytes) == 0 {
		return
	}
	m.grow(2)
	l := &m.levels[1]
	m.begin(l.threads)
	m.close(x.next, t.stack)
	l.threads = m.out
	live := m.liveBytes(l.threads)
	for i, b := range tab.bytes {
		if !live.has(b) {
			continue
		}
		next := &m.levels[2]
		next.threads = m.step(m.levels[1].threads, b, next.threads)
		if len(next.threads) == 0 {
			continue
		}
		next.live = m.liveBytes(next.threads)
		for _, e := range tab.exits[tab.off[i]:tab.off[i+1]] {
			if n := t.count + e.count; n < x.min || x.max >= 0 && n > x.max {
				continue
			}
			m.g.v.markNode(dst, e.node)
			if m.g.v.skip[e.node] > e.node+1 {
				m.walk(dst, e.node, 2)
			}
		}
	}
}

func (m *Matcher) grow(n int) {
	for len(m.levels) <= n {
		m.levels = append(m.levels, level{})
	}
}

// walk marks the tokens below a node of the token tree that the threads of a level can read.
func (m *Matcher) walk(dst []uint32, at int32, depth int) {
	v := m.g.v
	if m.levels[depth].live.empty() {
		return
	}
	m.grow(depth + 1)
	for c, end := at+1, v.skip[at]; c < end; c = v.skip[c] {
		b := v.char[c]
		if !m.levels[depth].live.has(b) {
			continue
		}
		next := &m.levels[depth+1]
		next.threads = m.step(m.levels[depth].threads, b, next.threads)
		if len(next.threads) == 0 {
			continue
		}
		v.markNode(dst, c)
		if v.skip[c] > c+1 {
			m.levels[depth+1].live = m.liveBytes(m.levels[depth+1].threads)
			m.walk(dst, c, depth+1)
		}
	}
}

// Refused is the error of Accept: a token that the grammar does not allow here. The matcher is unchanged.
type Refused struct {
	ID     int32
	Offset int    // byte of the token that does not fit; 0 for a control token
	Bytes  string // the token
	Why    string
}

// Error says which token was refused and why.
func (e *Refused) Error() string {
	return fmt.Sprintf("grammar: token %d %q is not allowed: %s", e.ID, clip(e.Bytes), e.Why)
}

// Accept reads a token. After an error the matcher is unchanged.
func (m *Matcher) Accept(id int32) error {
	v := m.g.v
	refuse := func(offset int, why string) error {
		e := &Refused{ID: id, Offset: offset, Why: why}
		if id >= 0 && int(id) < v.source.VocabSize() {
			e.Bytes = v.source.Bytes(id)
		}
		return e
	}
	switch {
	case id < 0 || int(id) >= v.width || !v.source.Known(id) && !m.Dormant():
		return refuse(0, fmt.Sprintf("there is no such token among %d", v.width))
	case m.done:
		return refuse(0, "the turn has ended")
	}
	if v.isEOS(id) {
		if !m.CanEnd() && !m.Dormant() {
			return refuse(0, "the text is not complete")
		}
		m.save()
		m.done = true
		return nil
	}
	if m.phase >= 0 {
		return m.acceptFree(id, refuse)
	}
	if v.source.Added(id) {
		m.trial = false
		m.begin(m.levels[0].threads)
		for i := range m.threads {
			if x := &m.g.nodes[m.threads[i].node]; x.kind == nodeToken && x.id == id {
				m.close(x.next, m.threads[i].stack)
			}
		}
		if len(m.out) == 0 {
			return refuse(0, "a control token does not fit here")
		}
		m.take(0)
		return nil
	}
	text := v.source.Bytes(id)
	if text == "" {
		return refuse(0, "the token has no bytes")
	}
	if offset := m.read(text); offset < len(text) {
		return refuse(offset, fmt.Sprintf("byte %d does not fit", offset))
	}
	return nil
}

// read steps through bytes. It gives the number of bytes read; when that is all of them the state has moved on.
func (m *Matcher) read(text string) int {
	m.trial = false
	from := m.threads
	for i := range len(text) {
		l := &m.levels[i&1]
		l.threads = m.step(from, text[i], l.threads)
		from = l.threads
		if len(from) == 0 {
			return i
		}
	}
	m.out = from
	m.take((len(text) - 1) & 1)
	return len(text)
}

// take makes m.out, which lives in a level, the state.
func (m *Matcher) take(l int) {
	m.save()
	m.levels[l].threads = m.out
	m.threads, m.levels[l].threads = m.levels[l].threads, m.threads
	if b := &m.g.bound; b.limit > 0 {
		if m.free++; m.free >= b.limit {
			m.forceTrigger(b)
		}
	}
}

// forceTrigger ends free text whose bound was reached: what may follow is the rest of the trigger.
func (m *Matcher) forceTrigger(b *textBound) {
	for _, t := range m.threads {
		if t.node == b.free {
			m.threads = append(m.threads[:0], thread{node: b.literal, stack: t.stack, q: b.matched[t.q]})
			return
		}
	}
}

// save keeps the state for Rollback.
func (m *Matcher) save() {
	p := &m.past[m.pastI]
	p.threads = append(p.threads[:0], m.threads...)
	p.phase, p.free, p.tail, p.done = m.phase, m.free, m.tail, m.done
	m.pastI = (m.pastI + 1) % history
	m.pastN = min(m.pastN+1, history)
}

// Rollback takes back the last n accepted tokens, at most the last 64.
func (m *Matcher) Rollback(n int) error {
	if n < 0 || n > m.pastN {
		return fmt.Errorf("grammar: roll back %d tokens: %d are kept", n, m.pastN)
	}
	if n == 0 {
		return nil
	}
	m.pastI = (m.pastI - n + history) % history
	m.pastN -= n
	p := &m.past[m.pastI]
	m.threads = append(m.threads[:0], p.threads...)
	m.phase, m.free, m.tail, m.done = p.phase, p.free, p.tail, p.done
	return nil
}

// Replay goes back to the start and reads ids: a request that was preempted gets its matcher back. The error names the first id that is
// refused; the ids before it have been read.
func (m *Matcher) Replay(ids []int32) error {
	m.Reset()
	for i, id := range ids {
		if err := m.Accept(id); err != nil {
			return fmt.Errorf("replay token %d of %d: %w", i, len(ids), err)
		}
	}
	return nil
}

// acceptFree reads a token of a free phase.
func (m *Matcher) acceptFree(id int32, refuse func(int, string) error) error {
	p := &m.g.phases[m.phase]
	if p.exhausted(m.free) && id != p.closing {
		return refuse(0, fmt.Sprintf("the free text has reached its bound of %d tokens", p.bound))
	}
	if !hasBit(p.mask, id) && !p.dormant {
		return refuse(0, "a control token does not fit here")
	}
	for i := range p.triggers {
		t := &p.triggers[i]
		if t.id != id || t.after != 0 && t.after != m.tail {
			continue
		}
		m.save()
		m.free, m.tail = 0, 0
		if t.phase >= 0 {
			m.phase = t.phase
		} else {
			m.enter(t.start)
		}
		return nil
	}
	m.save()
	m.free++
	m.tail = 0
	if b := m.g.v.source.Bytes(id); b != "" && !m.g.v.source.Added(id) {
		m.tail = b[len(b)-1]
	}
	return nil
}

// ForcedBytes gives the bytes that must come next, whatever the model prefers, at most limit.
func (m *Matcher) ForcedBytes(limit int) []byte {
	if m.done || m.phase >= 0 {
		return nil
	}
	m.trial, m.used = true, 0
	defer func() { m.trial = false }()
	var text []byte
	from := m.threads
	for i := 0; len(text) < limit; i++ {
		var only byte
		for _, t := range from {
			if k := m.g.nodes[t.node].kind; k == nodeReturn || k == nodeToken {
				return text
			}
		}
		live := m.liveBytes(from)
		if live.count() != 1 {
			return text
		}
		for b := range 256 {
			if live.has(byte(b)) {
				only = byte(b)
			}
		}
		l := &m.levels[i&1]
		l.threads = m.step(from, only, l.threads)
		if from = l.threads; len(from) == 0 {
			return text
		}
		text = append(text, only)
	}
	return text
}

// Forced gives ids that may be appended without asking the model: a control token that must come next, or the usual tokens of a long text
// that must come next. The last token of such a text is left to the model, unless a control token follows: it could be one that
// reaches further. Accept the ids as if they had been sampled.
func (m *Matcher) Forced() []int32 {
	if m.done {
		return nil
	}
	if m.phase >= 0 {
		if p := &m.g.phases[m.phase]; p.exhausted(m.free) {
			return []int32{p.closing}
		}
		return nil
	}
	only := func(threads []thread) (id int32, ok bool) {
		id = -1
		for _, t := range threads {
			x := &m.g.nodes[t.node]
			if x.kind != nodeToken || id >= 0 && x.id != id {
				return -1, false
			}
			id = x.id
		}
		return id, id >= 0
	}
	if id, ok := only(m.threads); ok {
		return []int32{id}
	}
	text := m.ForcedBytes(4096)
	if len(text) == 0 {
		return nil
	}
	after := m.Clone()
	after.read(string(text))
	id, control := only(after.threads)
	if !control && len(text) < 8 {
		return nil
	}
	ids := m.g.v.source.Encode(strings.ToValidUTF8(string(text), "\uFFFD"))
	if control {
		return append(ids, id)
	}
	ids = ids[:len(ids)-1]
	for i, id := range ids { // the last piece of a cut character must not become U+FFFD
		if c := after.g.v.source.Bytes(id); strings.Contains(c, "\uFFFD") && !strings.Contains(string(text), "\uFFFD") {
			return slices.Clip(ids[:i])
		}
	}
	return ids
}
