package kv

import (
	"errors"
	"fmt"
)

// Options size a pool.
type Options struct {
	Granules      int // units of the KV pool, 1 to 2^31-1
	Slots         int // state slots, 1 to 2^31-1
	GranuleTokens int // tokens of one granule; 0 = 128
}

// Validate reports every setting that is out of range.
func (o Options) Validate() error {
	var errs []error
	check := func(name string, v int) {
		if v < 1 || v > 1<<31-1 {
			errs = append(errs, fmt.Errorf("kv pool: %s %d: must be in 1..2147483647", name, v))
		}
	}
	check("granules", o.Granules)
	check("slots", o.Slots)
	if o.GranuleTokens != 0 {
		check("granule tokens", o.GranuleTokens)
	}
	return errors.Join(errs...)
}

// Pool is the set of granules and state slots of one device.
//
// Invariants: a granule is either free or held, and its count of holders equals the leases that list it (INV-8); the free granules cover everything that
// was promised (INV-5).
type Pool struct {
	tokens   int
	refs     []int32 // holders of each granule; 0 = free
	free     []int32 // stack of free granules
	promised int     // granules that leases may still bind
	slots    []int32 // stack of free slots
	inUse    []bool  // by slot
}

// NewPool returns a pool with everything free.
func NewPool(o Options) (*Pool, error) {
	if o.GranuleTokens == 0 {
		o.GranuleTokens = 128
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	p := &Pool{
		tokens: o.GranuleTokens,
		refs:   make([]int32, o.Granules), free: make([]int32, o.Granules),
		slots: make([]int32, o.Slots), inUse: make([]bool, o.Slots),
	}
	for i := range p.free {
		p.free[i] = int32(o.Granules - 1 - i)
	}
	for i := range p.slots {
		p.slots[i] = int32(o.Slots - 1 - i)
	}
	return p, nil
}

// Lease is what one request holds: a state slot, the granules of its positions in order, and a promise of more. The zero Lease holds nothing. A Lease
// belongs to one pool and is changed by its methods only; it must not be copied while it holds anything.
type Lease struct {
	slot     int32 // slot + 1; 0 = none
	granules []int32
	promised int
}

// Held reports whether the lease was admitted and not freed.
func (l *Lease) Held() bool { return l.slot != 0 }

// Slot returns the state slot, -1 when nothing is held.
func (l *Lease) Slot() int32 { return l.slot - 1 }

// Table returns the granule ids in order of position: entry i covers tokens i*GranuleTokens and following. The slice belongs to the lease and is valid
// until its next change.
func (l *Lease) Table() []int32 { return l.granules }

// Promised returns how many granules the lease may still bind.
func (l *Lease) Promised() int { return l.promised }

// Need returns the number of granules that hold the given tokens.
func (p *Pool) Need(tokens int) int { return (tokens + p.tokens - 1) / p.tokens }

// Available returns the number of granules that are neither held nor promised.
func (p *Pool) Available() int { return len(p.free) - p.promised }

// Fits reports whether Admit would succeed.
func (p *Pool) Fits(tokens int) bool { return len(p.slots) > 0 && p.Need(tokens) <= p.Available() }

// Admit takes a state slot and promises granules for tokens. It reports false, with nothing changed, when there is no slot or too little is available.
// The lease must hold nothing.
func (p *Pool) Admit(l *Lease, tokens int) bool {
	if l.Held() {
		panic("kv: Admit on a lease that holds a slot")
	}
	if !p.Fits(tokens) {
		return false
	}
	n := len(p.slots) - 1
	s := p.slots[n]
	p.slots = p.slots[:n]
	p.inUse[s] = true
	l.slot = s + 1
	l.promised = p.Need(tokens)
	p.promised += l.promised
	p.verify()
	return true
}

// Extend raises the promise so that the lease may cover tokens. It reports false, with nothing changed, when too little is available.
func (p *Pool) Extend(l *Lease, tokens int) bool {
	more := p.Need(tokens) - len(l.granules) - l.promised
	if more <= 0 {
		return true
	}
	if more > p.Available() {
		return false
	}
	l.promised += more
	p.promised += more
	p.verify()
	return true
}

// Cover binds granules until the table covers positions 0..tokens-1. It panics beyond the promise: the caller planned rows it never reserved.
func (p *Pool) Cover(l *Lease, tokens int) {
	for n := p.Need(tokens); len(l.granules) < n; {
		if l.promised == 0 || len(p.free) == 0 {
			panic(fmt.Sprintf("kv: %d tokens need %d granules, lease has %d and may bind no more", tokens, n, len(l.granules)))
		}
		k := len(p.free) - 1
		g := p.free[k]
		p.free = p.free[:k]
		p.refs[g] = 1
		l.granules = append(l.granules, g)
		l.promised--
		p.promised--
	}
	p.verify()
}

// Share puts granules that another lease holds at the front of an empty table: a common prefix. They count against the lease's promise, which shrinks.
func (p *Pool) Share(l *Lease, ids []int32) error {
	if !l.Held() || len(l.granules) > 0 {
		return fmt.Errorf("kv: share %d granules: the lease must be admitted and its table empty", len(ids))
	}
	for _, g := range ids {
		if g < 0 || int(g) >= len(p.refs) || p.refs[g] == 0 {
			return fmt.Errorf("kv: share granule %d of %d: not held by anyone", g, len(p.refs))
		}
	}
	for _, g := range ids {
		p.refs[g]++
	}
	l.granules = append(l.granules, ids...)
	back := min(l.promised, len(ids))
	l.promised -= back
	p.promised -= back
	p.verify()
	return nil
}

// Free returns everything the lease holds. The caller frees only when no step that names the slot or the granules is in flight. Freeing a lease that
// holds nothing does nothing.
func (p *Pool) Free(l *Lease) {
	if !l.Held() {
		return
	}
	for i := len(l.granules) - 1; i >= 0; i-- { // the first granule is handed out first again: the pool stays dense
		g := l.granules[i]
		p.refs[g]--
		if p.refs[g] == 0 {
			p.free = append(p.free, g)
		}
	}
	p.promised -= l.promised
	p.inUse[l.slot-1] = false
	p.slots = append(p.slots, l.slot-1)
	*l = Lease{granules: l.granules[:0]} // the array is kept for the next admission
	p.verify()
}

// Stats are the counters of a pool.
type Stats struct {
	Granules, FreeGranules, Promised int
	Slots, FreeSlots                 int
}

// Stats returns the counters.
func (p *Pool) Stats() Stats {
	return Stats{Granules: len(p.refs), FreeGranules: len(p.free), Promised: p.promised, Slots: len(p.inUse), FreeSlots: len(p.slots)}
}

func (p *Pool) verify() {
	if !checking {
		return
	}
	if err := p.check(nil); err != nil {
		panic(err.Error())
	}
}

// Check verifies the invariants against the complete list of leases of this pool and names the first one that is broken.
func (p *Pool) Check(leases []*Lease) error {
	if leases == nil {
		leases = []*Lease{}
	}
	return p.check(leases)
}

// check verifies the pool alone when leases is nil.
func (p *Pool) check(leases []*Lease) error {
	free := make([]bool, len(p.refs))
	for _, g := range p.free {
		if free[g] {
			return fmt.Errorf("INV-8: granule %d is twice in the free list", g)
		}
		if p.refs[g] != 0 {
			return fmt.Errorf("INV-8: granule %d is free and has %d holders", g, p.refs[g])
		}
		free[g] = true
	}
	for g, n := range p.refs {
		if n < 0 || n == 0 && !free[g] {
			return fmt.Errorf("INV-8: granule %d has %d holders and is not free", g, n)
		}
	}
	if p.promised < 0 || p.promised > len(p.free) {
		return fmt.Errorf("INV-5: %d granules promised, %d free", p.promised, len(p.free))
	}
	used := 0
	for _, u := range p.inUse {
		if u {
			used++
		}
	}
	for _, s := range p.slots {
		if p.inUse[s] {
			return fmt.Errorf("slot %d is free and in use", s)
		}
	}
	if used+len(p.slots) != len(p.inUse) {
		return fmt.Errorf("%d slots used and %d free of %d", used, len(p.slots), len(p.inUse))
	}
	if leases == nil {
		return nil
	}
	held := make([]int32, len(p.refs))
	owner := make([]bool, len(p.inUse))
	promised, owners := 0, 0
	for _, l := range leases {
		if !l.Held() {
			if len(l.granules) > 0 || l.promised != 0 {
				return fmt.Errorf("a lease without slot holds %d granules and %d promised", len(l.granules), l.promised)
			}
			continue
		}
		if owner[l.slot-1] || !p.inUse[l.slot-1] {
			return fmt.Errorf("slot %d has two leases or is free", l.slot-1)
		}
		owner[l.slot-1] = true
		owners++
		promised += l.promised
		for _, g := range l.granules {
			held[g]++
		}
	}
	for g := range held {
		if held[g] != p.refs[g] {
			return fmt.Errorf("INV-8: granule %d counts %d holders, %d leases list it", g, p.refs[g], held[g])
		}
	}
	if owners != used || promised != p.promised {
		return fmt.Errorf("%d slots used by %d leases; %d granules promised, leases say %d", used, owners, p.promised, promised)
	}
	return nil
}
