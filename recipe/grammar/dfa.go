package grammar

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
)

// Limits of one automaton. They bound memory and, with the deadline, the time of a compilation.
const (
	maxPositions = 400_000 // positions of an expression after its repeats are written out
	maxStates    = 60_000  // states of an automaton
	maxSetWork   = 30_000_000
	minimizeUpTo = 4096 // states; larger automata are enumerations, which are nearly minimal
)

const dead = 0xFFFF

var errTooLarge = errors.New("the expression is too large")

// dfa is a deterministic automaton over bytes without useless states. State 0 is the start.
type dfa struct {
	class   [256]uint8
	classes int
	next    []uint16 // [state*classes + class]
	accept  []bool
	live    []byteSet // bytes that lead on from a state

	// A counted automaton repeats one character from head; a byte that leaves head for any state but close is one more character.
	counted     bool
	head, close int32 // close is -1 when the repetition ends without a closing byte
	key         [32]byte
	enumeration bool // large: its states are walked, not tabled
}

func (d *dfa) states() int { return len(d.accept) }

func (d *dfa) step(q int32, b byte) int32 {
	return int32(d.next[int(q)*d.classes+int(d.class[b])])
}

// open says whether an accepting state leads on: the end of the word is then not known from the word.
func (d *dfa) open() bool {
	for q, a := range d.accept {
		if a && !d.live[q].empty() {
			return true
		}
	}
	return false
}

func (d *dfa) match(s string) bool {
	q := int32(0)
	for i := range len(s) {
		if q = d.step(q, s[i]); q == dead {
			return false
		}
	}
	return d.accept[q]
}

func (d *dfa) bytes() int { return 2*len(d.next) + 40*len(d.accept) + 512 }

// nfa is a list of positions: a byte range that leads to out, or (kind split) a fork.
type nfa struct {
	pos []position
}

type position struct {
	kind   uint8
	lo, hi byte
	out    int32
	out2   int32 // split
}

const (
	posRange uint8 = iota
	posSplit
	posMatch
)

func (n *nfa) add(p position) (int32, error) {
	if len(n.pos) >= maxPositions {
		return 0, errTooLarge
	}
	n.pos = append(n.pos, p)
	return int32(len(n.pos) - 1), nil
}

// compile appends positions that match r and then go to next.
func (n *nfa) compile(r *rx, next int32) (start int32, err error) {
	switch r.op {
	case rxLit:
		for i := len(r.lit) - 1; i >= 0; i-- {
			if next, err = n.add(position{kind: posRange, lo: r.lit[i], hi: r.lit[i], out: next}); err != nil {
				return 0, err
			}
		}
		return next, nil
	case rxRange:
		return n.add(position{kind: posRange, lo: r.lo, hi: r.hi, out: next})
	case rxCat:
		for i := len(r.sub) - 1; i >= 0; i-- {
			if next, err = n.compile(r.sub[i], next); err != nil {
				return 0, err
			}
		}
		return next, nil
	case rxAlt:
		if len(r.sub) == 0 { // a range that holds nothing
			return n.add(position{kind: posRange, lo: 1, hi: 0, out: next})
		}
		start, err = n.compile(r.sub[len(r.sub)-1], next)
		for i := len(r.sub) - 2; i >= 0 && err == nil; i-- {
			var s int32
			if s, err = n.compile(r.sub[i], next); err == nil {
				start, err = n.add(position{kind: posSplit, out: s, out2: start})
			}
		}
		return start, err
	case rxRepeat:
		x := r.sub[0]
		if r.max < 0 {
			loop, err := n.add(position{kind: posSplit, out2: next})
			if err != nil {
				return 0, err
			}
			body, err := n.compile(x, loop)
			if err != nil {
				return 0, err
			}
			n.pos[loop].out = body
			start = loop
		} else {
			start = next
			for range r.max - r.min {
				body, err := n.compile(x, start)
				if err != nil {
					return 0, err
				}
				if start, err = n.add(position{kind: posSplit, out: body, out2: next}); err != nil {
					return 0, err
				}
			}
		}
		for range r.min {
			if start, err = n.compile(x, start); err != nil {
				return 0, err
			}
		}
		return start, nil
	}
	return 0, fmt.Errorf("unknown operator %d", r.op)
}

// compileRx builds the smallest automaton of an expression. A language without words gives nil.
func compileRx(ctx context.Context, r *rx) (*dfa, error) {
	var n nfa
	match, err := n.add(position{kind: posMatch})
	if err != nil {
		return nil, err
	}
	start, err := n.compile(r, match)
	if err != nil {
		return nil, err
	}

	// Bytes that no range tells apart are one class.
	var edge [257]bool
	for _, p := range n.pos {
		if p.kind == posRange && p.lo <= p.hi {
			edge[p.lo], edge[int(p.hi)+1] = true, true
		}
	}
	d := &dfa{head: -1, close: -1}
	for b := 1; b < 256; b++ {
		d.class[b] = d.class[b-1]
		if edge[b] {
			d.class[b]++
		}
	}
	d.classes = int(d.class[255]) + 1

	var sets [][]int32
	index := map[string]int32{}
	mark := make([]uint32, len(n.pos))
	gen := uint32(0)
	var stack, set []int32
	var key []byte
	work := 0
	closure := func(from []int32) (int32, error) {
		gen++
		set, stack = set[:0], append(stack[:0], from...)
		for len(stack) > 0 {
			p := stack[len(stack)-1]
			stack = stack[:len(stack)-1]
			if mark[p] == gen {
				continue
			}
			mark[p] = gen
			if n.pos[p].kind == posSplit {
				stack = append(stack, n.pos[p].out2, n.pos[p].out)
			} else {
				set = append(set, p)
			}
			work++
		}
		// Order does not matter to the meaning, only to the key: a fixed traversal gives equal orders for equal sources, and minimizing
		// joins what is left.
		key = key[:0]
		for _, p := range set {
			key = binary.LittleEndian.AppendUint32(key, uint32(p))
		}
		if q, ok := index[string(key)]; ok {
			return q, nil
		}
		if len(sets) >= maxStates || work > maxSetWork {
			return 0, errTooLarge
		}
		q := int32(len(sets))
		index[string(key)] = q
		sets = append(sets, append([]int32(nil), set...))
		return q, nil
	}
	if _, err := closure([]int32{start}); err != nil {
		return nil, err
	}
	buckets := make([][]int32, d.classes)
	for q := 0; q < len(sets); q++ {
		if q&63 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		accept := false
		for _, p := range sets[q] {
			switch x := n.pos[p]; {
			case x.kind == posMatch:
				accept = true
			case x.lo <= x.hi:
				for c := d.class[x.lo]; ; c++ {
					buckets[c] = append(buckets[c], x.out)
					work++
					if c == d.class[x.hi] {
						break
					}
				}
			}
		}
		d.accept = append(d.accept, accept)
		for c := range buckets {
			to := int32(dead)
			if len(buckets[c]) > 0 {
				if c > 0 && sameIDs(buckets[c], buckets[c-1]) {
					to = int32(d.next[len(d.next)-1])
				} else if to, err = closure(buckets[c]); err != nil {
					return nil, err
				}
			}
			d.next = append(d.next, uint16(to))
		}
		for c := range buckets {
			buckets[c] = buckets[c][:0]
		}
	}
	return d.finish(ctx)
}

func sameIDs(a, b []int32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// finish drops useless states, minimizes, numbers the states in breadth-first order and derives the rest. It gives nil for a language
// without words.
func (d *dfa) finish(ctx context.Context) (*dfa, error) {
	n, k := d.states(), d.classes
	// Useful states reach an accepting one.
	into := make([][]int32, n)
	for q := range n {
		for c := range k {
			if to := d.next[q*k+c]; to != dead && (c == 0 || to != d.next[q*k+c-1]) {
				into[to] = append(into[to], int32(q))
			}
		}
	}
	useful := make([]bool, n)
	var todo []int32
	for q, a := range d.accept {
		if a {
			useful[q] = true
			todo = append(todo, int32(q))
		}
	}
	for len(todo) > 0 {
		q := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for _, p := range into[q] {
			if !useful[p] {
				useful[p] = true
				todo = append(todo, p)
			}
		}
	}
	if n == 0 || !useful[0] {
		return nil, nil
	}
	for i, to := range d.next {
		if to != dead && !useful[to] {
			d.next[i] = dead
		}
	}

	// Moore's refinement: split blocks by the blocks of the successors until nothing changes.
	block := make([]uint16, n)
	for q := range n {
		switch {
		case !useful[q]:
			block[q] = dead
		case d.accept[q]:
			block[q] = 1
		}
	}
	if n <= minimizeUpTo {
		fresh := make([]uint16, n)
		ids := make(map[uint64]uint16, n)
		for count := 0; ; {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			clear(ids)
			for q := range n {
				if !useful[q] {
					fresh[q] = dead
					continue
				}
				h := mix(seed, uint64(block[q]))
				for _, to := range d.next[q*k : (q+1)*k] {
					if to != dead {
						to = block[to]
					}
					h = mix(h, uint64(to))
				}
				id, ok := ids[h]
				if !ok {
					id = uint16(len(ids))
					ids[h] = id
				}
				fresh[q] = id
			}
			block, fresh = fresh, block
			if len(ids) == count {
				break
			}
			count = len(ids)
		}
	} else {
		for q := range n {
			if useful[q] {
				block[q] = uint16(q)
			}
		}
	}

	// Number the blocks from the start.
	number := map[uint16]int32{block[0]: 0}
	order := []int32{0}
	out := &dfa{class: d.class, classes: k, head: -1, close: -1}
	for i := 0; i < len(order); i++ {
		q := order[i]
		out.accept = append(out.accept, d.accept[q])
		for c := range k {
			to := d.next[int(q)*k+c]
			if to != dead {
				id, ok := number[block[to]]
				if !ok {
					id = int32(len(order))
					number[block[to]] = id
					order = append(order, int32(to))
				}
				to = uint16(id)
			}
			out.next = append(out.next, to)
		}
	}
	out.canonical()
	out.live = make([]byteSet, out.states())
	for q := range out.live {
		for b := range 256 {
			if out.step(int32(q), byte(b)) != dead {
				out.live[q].add(byte(b))
			}
		}
	}
	if out.states() > 512 && out.acyclic() {
		wide := 0
		for q := range out.live {
			if out.live[q].count() > 40 {
				wide++
			}
		}
		out.enumeration = wide <= 64
	}
	out.identify()
	return out, nil
}

// seed starts the hashes of state signatures. It differs from process to process, so that nobody can write a schema whose states collide.
var seed = rand.Uint64()

// mix adds a value to a hash.
func mix(h, x uint64) uint64 {
	h = (h ^ x) * 0x9E3779B97F4A7C15
	return h ^ h>>29
}

// canonical joins classes with equal columns, so that equal languages have equal tables.
func (d *dfa) canonical() {
	k := d.classes
	ids := map[string]uint8{}
	var to [256]uint8
	var keep []int
	col := make([]byte, 2*d.states())
	var class [256]uint8
	seen := make([]bool, k)
	for b := range 256 {
		c := int(d.class[b])
		if !seen[c] {
			seen[c] = true
			for q := range d.states() {
				binary.LittleEndian.PutUint16(col[2*q:], d.next[q*k+c])
			}
			id, ok := ids[string(col)]
			if !ok {
				id = uint8(len(keep))
				ids[string(col)] = id
				keep = append(keep, c)
			}
			to[c] = id
		}
		class[b] = to[c]
	}
	next := make([]uint16, 0, d.states()*len(keep))
	for q := range d.states() {
		for _, c := range keep {
			next = append(next, d.next[q*k+c])
		}
	}
	d.class, d.classes, d.next = class, len(keep), next
}

func (d *dfa) acyclic() bool {
	state := make([]uint8, d.states()) // 1 on the path, 2 done
	type visit struct {
		q int32
		c int
	}
	stack := []visit{{0, 0}}
	state[0] = 1
	for len(stack) > 0 {
		v := &stack[len(stack)-1]
		if v.c == d.classes {
			state[v.q] = 2
			stack = stack[:len(stack)-1]
			continue
		}
		to := d.next[int(v.q)*d.classes+v.c]
		v.c++
		if to == dead || state[to] == 2 {
			continue
		}
		if state[to] == 1 {
			return false
		}
		state[to] = 1
		stack = append(stack, visit{int32(to), 0})
	}
	return true
}

// identify sets the key: equal automata share the token tables.
func (d *dfa) identify() {
	h := sha256.New()
	var b [8]byte
	binary.LittleEndian.PutUint32(b[:], uint32(d.states()))
	if d.counted {
		binary.LittleEndian.PutUint32(b[4:], uint32(d.head+1)|uint32(d.close+1)<<16)
	}
	h.Write(b[:])
	h.Write(d.class[:])
	buf := make([]byte, 0, 4096)
	for _, x := range d.next {
		if buf = binary.LittleEndian.AppendUint16(buf, x); len(buf) >= 4000 {
			h.Write(buf)
			buf = buf[:0]
		}
	}
	for _, a := range d.accept {
		if a {
			buf = append(buf, 1)
		} else {
			buf = append(buf, 0)
		}
	}
	h.Write(buf)
	h.Sum(d.key[:0])
}

// withCount makes a counted copy of an automaton that repeats characters from head until close (-1: until it ends).
func (d *dfa) withCount(head, close int32) *dfa {
	c := *d
	c.counted, c.head, c.close = true, head, close
	c.identify()
	return &c
}

// product builds the automaton of the words for which keep(in a, in b) holds. b may leave early, a may not. nil: no such word.
func product(ctx context.Context, a, b *dfa, keep func(inA, inB bool) bool) (*dfa, error) {
	d := &dfa{}
	type pair struct{ a, b uint16 }
	joint := map[[2]uint8]uint8{}
	var reps []byte
	for x := range 256 {
		key := [2]uint8{a.class[x], b.class[x]}
		id, ok := joint[key]
		if !ok {
			id = uint8(len(reps))
			joint[key] = id
			reps = append(reps, byte(x))
		}
		d.class[x] = id
	}
	d.classes = len(reps)
	index := map[pair]uint16{{0, 0}: 0}
	list := []pair{{0, 0}}
	for i := 0; i < len(list); i++ {
		if i&255 == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		p := list[i]
		d.accept = append(d.accept, keep(a.accept[p.a], p.b != dead && b.accept[p.b]))
		for _, x := range reps {
			to := pair{uint16(a.step(int32(p.a), x)), dead}
			if to.a == dead {
				d.next = append(d.next, dead)
				continue
			}
			if p.b != dead {
				to.b = uint16(b.step(int32(p.b), x))
			}
			id, ok := index[to]
			if !ok {
				if len(list) >= maxStates {
					return nil, errTooLarge
				}
				id = uint16(len(list))
				index[to] = id
				list = append(list, to)
			}
			d.next = append(d.next, id)
		}
	}
	return d.finish(ctx)
}

// intersect gives the words of both, nil when there is none.
func intersect(ctx context.Context, a, b *dfa) (*dfa, error) {
	return product(ctx, a, b, func(x, y bool) bool { return x && y })
}

// subtract gives the words of a that are not of b, nil when there is none.
func subtract(ctx context.Context, a, b *dfa) (*dfa, error) {
	return product(ctx, a, b, func(x, y bool) bool { return x && !y })
}

// indistinct gives states the same number when no word of up to steps bytes tells them apart, and how many numbers there are. Long repeats
// have many such states: far from either end all places are alike to a token.
func (d *dfa) indistinct(steps int) (class []uint16, count int) {
	n := d.states()
	block, fresh := make([]uint16, n), make([]uint16, n)
	for q := range n {
		if d.accept[q] {
			block[q] |= 1
		}
		if d.counted && int32(q) == d.head {
			block[q] |= 2
		}
		if d.counted && int32(q) == d.close {
			block[q] |= 4
		}
	}
	ids := make(map[uint64]uint16, n)
	for range steps {
		clear(ids)
		for q := range n {
			h := mix(seed, uint64(block[q]))
			for _, to := range d.next[q*d.classes : (q+1)*d.classes] {
				if to != dead {
					to = block[to]
				}
				h = mix(h, uint64(to))
			}
			id, ok := ids[h]
			if !ok {
				id = uint16(len(ids))
				ids[h] = id
			}
			fresh[q] = id
		}
		block, fresh = fresh, block
		if len(ids) == n || len(ids) == count {
			return block, len(ids)
		}
		count = len(ids)
	}
	return block, count
}
