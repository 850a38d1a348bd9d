package grammar

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// A table says what each token does to one state of an automaton, whatever surrounds the automaton: the tokens that stay inside, and the
// places in the token tree where the automaton may end before the token does. Tables depend on nothing but the automaton and the
// vocabulary, so all grammars share them.
type table struct {
	// Tokens that stay inside: a mask, or a list when there are few.
	mask []uint32
	list []int32

	// Of a counted automaton: the tokens ordered by how many characters they begin, first[k] is the first with k or more; upTo[k] is the
	// mask of those with k or fewer, made when first needed.
	byNeed []int32
	first  []int32
	upTo   []atomic.Pointer[[]uint32]
	// closers are the tokens of a counted automaton that end exactly with its closing byte.
	closers []closer

	// Exits ordered by the first byte after the end: off[i]..off[i+1] are those with bytes[i].
	bytes []byte
	off   []int32
	exits []exit
}

// exit is a node of the token tree, reached with the first byte after the automaton ended, and the characters counted before.
type exit struct {
	node  int32
	count int32
}

// closer is a token and the characters that it begins.
type closer struct{ id, count int32 }

func (t *table) size() int {
	return 8*cap(t.closers) + 4*cap(t.mask) + 4*cap(t.list) + 4*cap(t.byNeed) + 4*cap(t.first) + len(t.bytes) + 4*len(t.off) + int(unsafe.Sizeof(exit{}))*cap(t.exits) + 200
}

// sparse is the number of tokens up to which a list is kept instead of a mask.
const sparse = 1024

// or adds the tokens that stay inside when at most room more characters may begin.
func (t *table) or(dst []uint32, room int32, counted bool) {
	if counted && int(room) < len(t.first)-2 {
		if room < 0 {
			return
		}
		p := t.upTo[room].Load()
		if p == nil {
			m := make([]uint32, len(dst))
			for _, id := range t.byNeed[:t.first[room+1]] {
				setBit(m, id)
			}
			p = &m
			t.upTo[room].Store(p)
		}
		orMask(dst, *p)
		return
	}
	if t.mask != nil {
		orMask(dst, t.mask)
		return
	}
	for _, id := range t.list {
		setBit(dst, id)
	}
}

func orMask(dst, src []uint32) {
	dst = dst[:len(src)]
	for i, w := range src {
		dst[i] |= w
	}
}

type tableKey struct {
	dfa    [32]byte
	follow byteSet
}

// tableSet holds the tables of one automaton, made when first needed.
type tableSet struct {
	v      *Vocabulary
	d      *dfa
	follow byteSet // the bytes that can come after the automaton ended
	mu     sync.Mutex
	tables []atomic.Pointer[table]
	class  []uint16 // the table of each state; nil: its own
	bytes  atomic.Int64
}

// tableSet gives the tables of an automaton, shared with all who ask for an equal one.
func (v *Vocabulary) tableSet(d *dfa, follow byteSet) *tableSet {
	if !d.open() {
		follow = allBytes
	}
	key := tableKey{d.key, follow}
	v.mu.Lock()
	old, ok := v.tables[key]
	v.mu.Unlock()
	if ok {
		return old
	}
	s := &tableSet{v: v, d: d, follow: follow}
	n := d.states()
	if n > 64 && !d.enumeration {
		s.class, n = d.indistinct(v.longest)
	}
	s.tables = make([]atomic.Pointer[table], n)
	v.mu.Lock()
	defer v.mu.Unlock()
	if old, ok := v.tables[key]; ok {
		return old
	}
	if d.enumeration {
		return s // large and hardly ever asked for twice
	}
	v.tables[key] = s
	v.order = append(v.order, key)
	v.bytes += d.bytes()
	for v.bytes > v.limit && len(v.order) > 3 { // the first two are those of strings and raw text
		old := v.order[2]
		v.order = append(v.order[:2], v.order[3:]...)
		v.bytes -= v.tables[old].d.bytes() + int(v.tables[old].bytes.Load())
		delete(v.tables, old)
	}
	return s
}

// has says whether the table of a state is made.
func (s *tableSet) has(q int32) bool {
	if s.class != nil {
		q = int32(s.class[q])
	}
	return s.tables[q].Load() != nil
}

// at gives the table of a state.
func (s *tableSet) at(q int32) *table {
	from := q
	if s.class != nil {
		q = int32(s.class[q])
	}
	if t := s.tables[q].Load(); t != nil {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.tables[q].Load(); t != nil {
		return t
	}
	t := s.build(from)
	size := int64(t.size())
	s.bytes.Add(size)
	s.v.mu.Lock()
	if s.v.tables[tableKey{s.d.key, s.follow}] == s {
		s.v.bytes += int(size)
	}
	s.v.mu.Unlock()
	s.tables[q].Store(t)
	return t
}

// build walks the whole token tree from a state; subtrees are skipped where the automaton fails.
func (s *tableSet) build(start int32) *table {
	v, d := s.v, s.d
	type level struct {
		end   int32
		q     int32
		count int32
	}
	path := make([]level, 1, v.longest+2)
	path[0] = level{end: int32(len(v.char)), q: start}
	type inside struct{ id, need int32 }
	var ins []inside
	var closers []closer
	type out struct {
		exit
		b byte
	}
	var outs []out
	leave := func(node, count int32) {
		for c := node + 1; c < v.skip[node]; c = v.skip[c] {
			if s.follow.has(v.char[c]) {
				outs = append(outs, out{exit{c, count}, v.char[c]})
			}
		}
	}
	// An automaton that accepts at once may end before the token begins: that is not an exit of the automaton, because the state set
	// already holds what comes after it.
	maxNeed := int32(0)
	for i := int32(1); i < int32(len(v.char)); {
		for i >= path[len(path)-1].end {
			path = path[:len(path)-1]
		}
		at := path[len(path)-1]
		q := d.step(at.q, v.char[i])
		if q == dead {
			i = v.skip[i]
			continue
		}
		count := at.count
		if d.counted && at.q == d.head && q != d.close {
			count++
		}
		end := func(id int32) {
			if d.counted && q == d.close {
				closers = append(closers, closer{id, count})
				return
			}
			ins = append(ins, inside{id, count})
			maxNeed = max(maxNeed, count)
		}
		switch t := v.tok[i]; {
		case t >= 0:
			end(t)
		case t < -1:
			for _, id := range v.same[-2-t] {
				end(id)
			}
		}
		if v.skip[i] > i+1 {
			if d.accept[q] {
				leave(i, count)
			}
			path = append(path, level{end: v.skip[i], q: q, count: count})
		}
		i++
	}

	t := &table{closers: closers}
	if len(ins) <= sparse {
		t.list = make([]int32, len(ins))
		for i, x := range ins {
			t.list[i] = x.id
		}
	} else {
		t.mask = make([]uint32, v.words)
		for _, x := range ins {
			setBit(t.mask, x.id)
		}
	}
	if d.counted {
		// Counting sort by need.
		t.first = make([]int32, maxNeed+2)
		for _, x := range ins {
			t.first[x.need+1]++
		}
		for k := 1; k < len(t.first); k++ {
			t.first[k] += t.first[k-1]
		}
		t.byNeed = make([]int32, len(ins))
		fill := append([]int32(nil), t.first...)
		for _, x := range ins {
			t.byNeed[fill[x.need]] = x.id
			fill[x.need]++
		}
		t.upTo = make([]atomic.Pointer[[]uint32], maxNeed+1)
	}
	if len(outs) > 0 {
		var n [257]int32
		for _, o := range outs {
			n[int(o.b)+1]++
		}
		for b := range 256 {
			if n[b+1] > 0 {
				t.bytes = append(t.bytes, byte(b))
				t.off = append(t.off, n[b])
			}
			n[b+1] += n[b]
		}
		t.off = append(t.off, int32(len(outs)))
		t.exits = make([]exit, len(outs))
		for _, o := range outs {
			t.exits[n[o.b]] = o.exit
			n[o.b]++
		}
	}
	return t
}
