package supervise

// Poison finds requests that crash workers. Every crash is charged to the requests of its step; a request charged twice runs alone once, and when the worker dies
// of that too, it fails. Ids are the engine's request numbers.
type Poison struct {
	charges map[uint64]int
	alone   map[uint64]bool // waiting for, or in, its lone run
}

// Fate of a request after a crash.
type Fate uint8

// Fates: Retry among others, RunAlone in the next step by itself, Fail with an error.
const (
	Retry Fate = iota
	RunAlone
	Fail
)

// chargesToIsolate is the number of crashes after which a request runs alone.
const chargesToIsolate = 2

// NewPoison returns an empty ledger.
func NewPoison() *Poison {
	return &Poison{charges: map[uint64]int{}, alone: map[uint64]bool{}}
}

// Crash charges a crash to the requests of the lost step and returns their fates, in order. A request that was alone in its lone run is guilty; one that shared the step may be
// a bystander and is at most isolated.
func (p *Poison) Crash(ids []uint64) []Fate {
	out := make([]Fate, len(ids))
	for i, id := range ids {
		p.charges[id]++
		switch {
		case p.alone[id] && len(ids) == 1:
			out[i] = Fail
			p.Forget(id)
		case p.charges[id] >= chargesToIsolate:
			out[i] = RunAlone
			p.alone[id] = true
		}
	}
	return out
}

// Alone reports whether a request must run by itself.
func (p *Poison) Alone(id uint64) bool { return p.alone[id] }

// Survived notes that a step with these requests came back: a lone run is passed, and the request rejoins the others with one charge left, so that a third crash isolates it again.
func (p *Poison) Survived(ids []uint64) {
	for _, id := range ids {
		if p.alone[id] && len(ids) == 1 {
			delete(p.alone, id)
			p.charges[id] = chargesToIsolate - 1
		}
	}
}

// Forget drops a finished request.
func (p *Poison) Forget(id uint64) {
	delete(p.charges, id)
	delete(p.alone, id)
}

// Len is the number of requests with charges.
func (p *Poison) Len() int { return len(p.charges) }
