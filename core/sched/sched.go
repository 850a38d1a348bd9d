package sched

import (
	"fmt"
	"slices"

	"github.com/deepinfer-go/deepinfer/core/kv"
)

// Time is an instant in nanoseconds of the caller's clock. Zero means "none" where a deadline is expected.
type Time int64

// Handle names a live request. It is an index: small, dense, used again after TakeEnded returned it.
type Handle int32

// State is where a request stands (serving 1.2; the states of tiers and hand-off come with those).
type State uint8

// States.
const (
	Free      State = iota // the handle is not in use
	Queued                 // waits for admission, holds nothing; also after a loss
	Prefill                // resident, more than one row to compute
	Decode                 // resident, one row to compute
	Aborting               // cancelled while its rows are in a step; holds everything until the step retires
	Ended                  // waits for TakeEnded, holds nothing
	lastState = Ended
)

var stateNames = [...]string{"free", "queued", "prefill", "decode", "aborting", "ended"}

// String is the state's name.
func (s State) String() string {
	if s <= lastState {
		return stateNames[s]
	}
	return fmt.Sprintf("state(%d)", uint8(s))
}

// Reason says how a request ended.
type Reason uint8

// Reasons.
const (
	Stop      Reason = iota + 1 // an outcome said so
	Length                      // everything that was asked for was delivered
	Cancelled                   // by Cancel
	Expired                     // waited past its deadline
	Failed                      // Err says why
)

var reasonNames = [...]string{"", "stop", "length", "cancelled", "expired", "failed"}

// String is the reason's name.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return fmt.Sprintf("reason(%d)", uint8(r))
}

// Request is what the scheduler must know of a request.
type Request struct {
	Rows       int  // rows known now: the prompt; for scoring, all rows that must be computed
	LogitsFrom int  // first row whose logits are wanted: the last one of a prompt, or the row that predicts the first scored token
	Generate   int  // tokens to draw after the rows; 0 = score only
	Deadline   Time // the request ends as Expired when it still waits for its first admission then; 0 = waits for ever
}

// Part is the share of one request in a step: rows [From, To), logits for rows [LogitsFrom, To).
type Part struct {
	Handle     Handle
	From, To   int
	LogitsFrom int // == To: none
}

// Logits returns how many rows want logits.
func (p Part) Logits() int { return p.To - p.LogitsFrom }

// Plan is one step. Scheduler.Plan fills it, reusing its slice; it does not change until it is handed back.
type Plan struct {
	Step   uint64 // grows by one with each plan that has parts
	Parts  []Part // decodes first, each request at most once
	Rows   int
	Logits int
}

// Outcome is what a step did for one part.
type Outcome struct {
	Tokens int   // tokens drawn and accepted; 0 for scored rows and for chunks without logits
	Stop   bool  // the last of them ends the request
	Err    error // ends the request as Failed
}

// End reports a request that reached its end.
type End struct {
	Handle Handle
	Reason Reason
	Err    error // for Failed and Expired
}

type seq struct {
	state    State
	arrival  uint64
	rows     int // rows known: prompt and drawn tokens
	done     int // rows that are in the cache
	emit     int // first row whose logits are still wanted
	left     int // tokens that may still be drawn
	total    int // rows and tokens at most: what is reserved
	deadline Time

	flying  bool // in a step in flight
	again   bool // was resident before
	losses  int  // losses since the last progress
	charges int  // lost steps that held it
	suspect bool // runs alone until row crash is computed
	crash   int

	lease kv.Lease
}

// Counters count requests since the start. Accepted = Done + Cancelled + Failed + Expired + live (INV-1).
type Counters struct {
	Accepted, Rejected, Done, Cancelled, Failed, Expired uint64
	Preempted                                            uint64 // returns to the queue after a loss
	Losses, StepFailures                                 uint64
}

// Stats is a snapshot.
type Stats struct {
	Counters
	Queued, Running int
	PendingTokens   int // prompt rows of queued requests and of prompts in prefill
	Pool            kv.Stats
}

// Scheduler is the state machine. Make it with New.
type Scheduler struct {
	lim      Limits
	align    bool
	pool     *kv.Pool
	seqs     []seq // by handle
	free     []Handle
	queue    []Handle // by arrival
	running  []Handle // by admission
	ended    []End
	taken    []End
	arrivals uint64
	step     uint64
	pending  int // see Stats.PendingTokens
	count    Counters
}

// New returns a scheduler without requests.
func New(l Limits) (*Scheduler, error) {
	l = l.withDefaults()
	if err := l.Validate(); err != nil {
		return nil, err
	}
	pool, err := kv.NewPool(kv.Options{Granules: l.Granules, Slots: l.Slots, GranuleTokens: l.GranuleTokens})
	if err != nil {
		return nil, err
	}
	n := l.Slots + l.MaxQueue
	return &Scheduler{
		lim: l, align: l.aligned(), pool: pool,
		queue: make([]Handle, 0, n), running: make([]Handle, 0, l.Slots), ended: make([]End, 0, l.Slots), taken: make([]End, 0, l.Slots),
	}, nil
}

// Limits returns the limits with defaults applied.
func (s *Scheduler) Limits() Limits { return s.lim }

// Arrive accepts a request into the queue. It refuses with *CapacityError when the request can never fit and with *OverloadError when too much waits.
func (s *Scheduler) Arrive(now Time, r Request) (Handle, error) {
	if r.Rows < 1 || r.LogitsFrom < 0 || r.LogitsFrom >= r.Rows || r.Generate < 0 || r.Generate > 0 && r.LogitsFrom != r.Rows-1 {
		s.count.Rejected++
		return -1, fmt.Errorf("scheduler: request of %d rows, logits from %d, %d tokens to draw: not a request", r.Rows, r.LogitsFrom, r.Generate)
	}
	total := r.Rows + r.Generate
	if need := s.pool.Need(total); need > s.lim.Granules {
		s.count.Rejected++
		return -1, &CapacityError{Tokens: total, Need: need, Granules: s.lim.Granules, GranuleTokens: s.lim.GranuleTokens}
	}
	if len(s.queue) >= s.lim.MaxQueue {
		s.count.Rejected++
		return -1, &OverloadError{Queued: len(s.queue), Limit: s.lim.MaxQueue}
	}
	if m := s.lim.MaxQueueTokens; m > 0 && s.pending > 0 && s.pending+r.Rows > m {
		s.count.Rejected++
		return -1, &OverloadError{Queued: len(s.queue), Limit: s.lim.MaxQueue, QueuedTokens: s.pending, MaxTokens: m}
	}
	var h Handle
	if n := len(s.free); n > 0 {
		h = s.free[n-1]
		s.free = s.free[:n-1]
	} else {
		h = Handle(len(s.seqs))
		s.seqs = append(s.seqs, seq{})
	}
	s.arrivals++
	q := &s.seqs[h]
	*q = seq{state: Queued, arrival: s.arrivals, rows: r.Rows, emit: r.LogitsFrom, left: r.Generate, total: total, deadline: r.Deadline, lease: q.lease}
	s.pending += r.Rows
	s.queue = append(s.queue, h)
	s.count.Accepted++
	return h, nil
}

// Cancel ends a request in any state. If its rows are in a step, it ends when that step is handed back. Unknown and ended handles are ignored.
func (s *Scheduler) Cancel(h Handle) {
	if h < 0 || int(h) >= len(s.seqs) {
		return
	}
	q := &s.seqs[h]
	switch q.state {
	case Queued:
		s.end(h, Cancelled, nil)
	case Prefill, Decode:
		if !q.flying {
			s.end(h, Cancelled, nil)
			return
		}
		s.waiting(q, -1)
		q.state = Aborting
	}
}

// FailAll ends every request with err, whatever is in flight: the device is gone for good.
func (s *Scheduler) FailAll(err error) {
	for h := range s.seqs {
		q := &s.seqs[h]
		switch q.state {
		case Queued, Prefill, Decode:
			s.end(Handle(h), Failed, err)
		case Aborting:
			s.end(Handle(h), Cancelled, nil)
		}
	}
}

// Expire ends requests whose deadline passed before their first admission. A request that ran before keeps its place: its client has tokens already.
func (s *Scheduler) Expire(now Time) {
	for i := 0; i < len(s.queue); {
		h := s.queue[i]
		if q := &s.seqs[h]; q.deadline != 0 && q.deadline <= now && !q.again {
			s.end(h, Expired, ErrExpired)
			continue
		}
		i++
	}
}

// NextDeadline returns the earliest instant at which Expire would end a request, 0 = none.
func (s *Scheduler) NextDeadline() Time {
	var t Time
	for _, h := range s.queue {
		if q := &s.seqs[h]; q.deadline != 0 && !q.again && (t == 0 || q.deadline < t) {
			t = q.deadline
		}
	}
	return t
}

// Plan decides the next step. Requests in a step in flight are left out, so the plan may be empty while something runs. An empty plan has no step number.
func (s *Scheduler) Plan(now Time, p *Plan) {
	p.Parts, p.Rows, p.Logits, p.Step = p.Parts[:0], 0, 0, 0
	s.Expire(now)
	if len(s.queue) > 0 {
		// A suspect at the head does not wait until the others have finished: it only must not share a step with them.
		if q := &s.seqs[s.queue[0]]; q.suspect && s.pool.Admit(&q.lease, q.total) {
			s.admit(s.queue[0])
		}
	}
	if h := s.alone(); h >= 0 {
		if !s.seqs[h].flying {
			s.add(p, h)
		}
		s.seal(p)
		return
	}
	for _, h := range s.running { // decodes first: a prompt never delays them
		if q := &s.seqs[h]; q.state == Decode && !q.flying {
			s.add(p, h)
		}
	}
	for _, h := range s.running {
		if q := &s.seqs[h]; q.state == Prefill && !q.flying {
			s.add(p, h)
		}
	}
	for len(s.queue) > 0 {
		h := s.queue[0]
		q := &s.seqs[h]
		if q.suspect || s.chunk(q, p) == 0 || !s.pool.Admit(&q.lease, q.total) {
			break // no one overtakes the head
		}
		s.admit(h)
		s.add(p, h)
	}
	s.seal(p)
}

// admit moves the head of the queue, whose lease was just granted, to the running requests.
func (s *Scheduler) admit(h Handle) {
	q := &s.seqs[h]
	s.queue = slices.Delete(s.queue, 0, 1)
	s.running = append(s.running, h)
	q.again = true
	q.state = Prefill
	s.resident(q)
}

// resident moves a request from Prefill to Decode when at most one of its known rows is missing.
func (s *Scheduler) resident(q *seq) {
	if q.state == Prefill && q.rows-q.done <= 1 {
		s.waiting(q, -1)
		q.state = Decode
	}
}

func (s *Scheduler) seal(p *Plan) {
	if len(p.Parts) > 0 {
		s.step++
		p.Step = s.step
	}
}

// alone returns the resident request that must run by itself, -1 when there is none.
func (s *Scheduler) alone() Handle {
	for _, h := range s.running {
		if s.seqs[h].suspect {
			return h
		}
	}
	return -1
}

// chunk returns the rows that q would get in p.
func (s *Scheduler) chunk(q *seq, p *Plan) int {
	if len(p.Parts) >= s.lim.MaxSeqs {
		return 0
	}
	budget := s.lim.MaxRows - p.Rows
	n := min(q.rows-q.done, budget)
	if s.align {
		n = Chunk(q.done, q.rows, budget, 0, s.lim.Window, s.lim.GranuleTokens)
	}
	// Rows before emit cost no logits.
	return min(n, max(q.emit-q.done, 0)+s.lim.MaxLogits-p.Logits)
}

func (s *Scheduler) add(p *Plan, h Handle) {
	q := &s.seqs[h]
	n := s.chunk(q, p)
	if n <= 0 {
		return
	}
	to := q.done + n
	s.pool.Cover(&q.lease, to)
	part := Part{Handle: h, From: q.done, To: to, LogitsFrom: min(max(q.emit, q.done), to)}
	p.Parts = append(p.Parts, part)
	p.Rows += n
	p.Logits += part.Logits()
	q.flying = true
}

// StepDone hands a plan back that ran. out has one entry per part.
func (s *Scheduler) StepDone(now Time, p *Plan, out []Outcome) {
	if len(out) != len(p.Parts) {
		panic(fmt.Sprintf("sched: step %d has %d parts, %d outcomes given", p.Step, len(p.Parts), len(out)))
	}
	for i := range p.Parts {
		part, o := &p.Parts[i], &out[i]
		h := part.Handle
		q := &s.seqs[h]
		if !q.flying {
			continue // ended by FailAll
		}
		q.flying = false
		if q.state == Aborting {
			s.end(h, Cancelled, nil)
			continue
		}
		draws := q.left > 0
		q.done = part.To
		s.resident(q) // before rows grows: it is what was counted as pending
		if part.Logits() > 0 {
			q.emit = part.To
			q.losses = 0
		}
		if draws && o.Tokens > 0 {
			n := min(o.Tokens, q.left)
			q.rows += n
			q.left -= n
			q.emit = q.rows - 1
		}
		if q.suspect && q.done >= q.crash {
			q.suspect, q.charges = false, 0 // it passed the point where the device was lost: not the cause
		}
		switch {
		case o.Err != nil:
			s.end(h, Failed, o.Err)
		case o.Stop:
			s.end(h, Stop, nil)
		case draws && q.left == 0, !draws && q.done == q.rows:
			s.end(h, Length, nil)
		}
	}
}

// StepFailed hands a plan back whose step was refused or failed without spoiling the device. A request that was alone in it fails with err; several go
// back to the queue and each runs alone through the rows of this step, so that only the one that causes the failure is ended.
func (s *Scheduler) StepFailed(now Time, p *Plan, err error) {
	s.count.StepFailures++
	single := len(p.Parts) == 1
	for i := range p.Parts {
		part := &p.Parts[i]
		q := &s.seqs[part.Handle]
		if !q.flying {
			continue
		}
		q.flying = false
		switch {
		case q.state == Aborting:
			s.end(part.Handle, Cancelled, nil)
		case single:
			s.end(part.Handle, Failed, err)
		default:
			q.suspect, q.crash = true, max(q.crash, part.To)
			s.requeue(part.Handle, err)
		}
	}
}

// Lost reports that the device state is gone. p is the plan that was in flight; an empty one charges nobody. All running requests return to the queue in
// their order of arrival, with their tokens kept.
func (s *Scheduler) Lost(now Time, p *Plan, cause error) {
	s.count.Losses++
	for i := range p.Parts {
		part := &p.Parts[i]
		q := &s.seqs[part.Handle]
		if !q.flying || q.state == Aborting {
			continue
		}
		q.charges++
		if q.suspect && len(p.Parts) == 1 {
			s.end(part.Handle, Failed, &PoisonError{Charges: q.charges, Cause: cause})
			continue
		}
		q.crash = max(q.crash, part.To)
		q.suspect = q.suspect || q.charges >= 2
	}
	for len(s.running) > 0 {
		h := s.running[len(s.running)-1]
		q := &s.seqs[h]
		q.flying = false
		if q.state == Aborting {
			s.end(h, Cancelled, nil)
			continue
		}
		s.requeue(h, cause)
	}
}

// requeue takes a resident request's device state away and puts it back into the queue by its arrival.
func (s *Scheduler) requeue(h Handle, cause error) {
	q := &s.seqs[h]
	q.losses++
	if q.losses > s.lim.MaxRetries {
		s.end(h, Failed, &RetryError{Losses: q.losses, Cause: cause})
		return
	}
	s.pool.Free(&q.lease)
	s.running = remove(s.running, h)
	s.waiting(q, -1)
	q.state, q.done = Queued, 0
	s.waiting(q, +1)
	s.count.Preempted++
	at, _ := slices.BinarySearchFunc(s.queue, q.arrival, func(g Handle, a uint64) int {
		if s.seqs[g].arrival < a {
			return -1
		}
		return 1
	})
	s.queue = slices.Insert(s.queue, at, h)
}

// waiting adds q's rows to, or takes them from, the tokens that wait or are in prefill.
func (s *Scheduler) waiting(q *seq, sign int) {
	if q.state == Queued || q.state == Prefill {
		s.pending += sign * q.rows
	}
}

func (s *Scheduler) end(h Handle, why Reason, err error) {
	q := &s.seqs[h]
	switch q.state {
	case Queued:
		s.queue = remove(s.queue, h)
	case Prefill, Decode, Aborting:
		s.running = remove(s.running, h)
	default:
		return
	}
	s.waiting(q, -1)
	s.pool.Free(&q.lease)
	q.state, q.flying = Ended, false
	switch why {
	case Stop, Length:
		s.count.Done++
	case Cancelled:
		s.count.Cancelled++
	case Expired:
		s.count.Expired++
	case Failed:
		s.count.Failed++
	}
	s.ended = append(s.ended, End{Handle: h, Reason: why, Err: err})
}

func remove(l []Handle, h Handle) []Handle {
	if i := slices.Index(l, h); i >= 0 {
		return slices.Delete(l, i, i+1)
	}
	return l
}

// TakeEnded returns the requests that ended since the last call, in order. Their handles are free for the next Arrive. The slice is valid until the next
// call.
func (s *Scheduler) TakeEnded() []End {
	s.taken, s.ended = s.ended, s.taken[:0]
	for _, e := range s.taken {
		s.seqs[e.Handle].state = Free
		s.free = append(s.free, e.Handle)
	}
	return s.taken
}

// Slot returns the state slot of a resident request, -1 otherwise.
func (s *Scheduler) Slot(h Handle) int32 { return s.seqs[h].lease.Slot() }

// Table returns the granules of a resident request in order of position. The slice belongs to the scheduler and is valid until the next call that changes
// the request.
func (s *Scheduler) Table(h Handle) []int32 { return s.seqs[h].lease.Table() }

// State returns the state of a handle.
func (s *Scheduler) State(h Handle) State {
	if h < 0 || int(h) >= len(s.seqs) {
		return Free
	}
	return s.seqs[h].state
}

// Live returns how many requests have not ended.
func (s *Scheduler) Live() int { return len(s.queue) + len(s.running) }

// Stats returns a snapshot.
func (s *Scheduler) Stats() Stats {
	return Stats{Counters: s.count, Queued: len(s.queue), Running: len(s.running), PendingTokens: s.pending, Pool: s.pool.Stats()}
}

// Check verifies every invariant of the scheduler and its pool and names the first one that is broken. It allocates: for tests and debug builds.
func (s *Scheduler) Check() error {
	c := &s.count
	if c.Accepted != c.Done+c.Cancelled+c.Failed+c.Expired+uint64(s.Live()) {
		return fmt.Errorf("INV-1: %d accepted, %d done, %d cancelled, %d failed, %d expired, %d live", c.Accepted, c.Done, c.Cancelled, c.Failed, c.Expired, s.Live())
	}
	live := map[Handle]bool{}
	for i, h := range s.queue {
		q := &s.seqs[h]
		if q.state != Queued || q.lease.Held() || q.flying || q.done != 0 || live[h] {
			return fmt.Errorf("queued request %d: state %s, resident %v, in flight %v, %d rows done", h, q.state, q.lease.Held(), q.flying, q.done)
		}
		if i > 0 && s.seqs[s.queue[i-1]].arrival >= q.arrival {
			return fmt.Errorf("queue is not in order of arrival at %d", i)
		}
		live[h] = true
	}
	for _, h := range s.running {
		q := &s.seqs[h]
		if q.state != Prefill && q.state != Decode && q.state != Aborting || !q.lease.Held() || live[h] {
			return fmt.Errorf("running request %d: state %s, resident %v", h, q.state, q.lease.Held())
		}
		if q.state == Aborting && !q.flying {
			return fmt.Errorf("request %d is aborting and no step holds it", h)
		}
		live[h] = true
	}
	pending := 0
	leases := make([]*kv.Lease, 0, len(s.seqs))
	for h := range s.seqs {
		q := &s.seqs[h]
		if (q.state == Queued || q.state == Prefill || q.state == Decode || q.state == Aborting) != live[Handle(h)] {
			return fmt.Errorf("request %d: state %s, in a list %v", h, q.state, live[Handle(h)])
		}
		if q.state == Queued || q.state == Prefill {
			pending += q.rows
		}
		if live[Handle(h)] && (q.done >= q.rows || q.emit >= q.rows || q.rows+q.left > q.total) {
			return fmt.Errorf("request %d: %d rows done, logits from %d, %d rows known, %d to draw, %d reserved", h, q.done, q.emit, q.rows, q.left, q.total)
		}
		leases = append(leases, &q.lease)
	}
	if pending != s.pending {
		return fmt.Errorf("%d prompt tokens pending, counted %d", pending, s.pending)
	}
	return s.pool.Check(leases)
}

// CheckPlan verifies the row accounting of a plan (INV-4).
func (s *Scheduler) CheckPlan(p *Plan) error {
	rows, logits := 0, 0
	seen := map[Handle]bool{}
	for _, part := range p.Parts {
		if seen[part.Handle] || part.To <= part.From || part.LogitsFrom < part.From || part.LogitsFrom > part.To {
			return fmt.Errorf("INV-4: step %d: request %d twice or a bad part %+v", p.Step, part.Handle, part)
		}
		seen[part.Handle] = true
		if n := s.pool.Need(part.To); n > len(s.Table(part.Handle)) || s.Slot(part.Handle) < 0 {
			return fmt.Errorf("INV-4: step %d: request %d has %d granules for %d rows", p.Step, part.Handle, len(s.Table(part.Handle)), part.To)
		}
		rows += part.To - part.From
		logits += part.Logits()
	}
	if rows != p.Rows || logits != p.Logits || rows > s.lim.MaxRows || logits > s.lim.MaxLogits || len(p.Parts) > s.lim.MaxSeqs || len(p.Parts) > s.lim.Slots {
		return fmt.Errorf("INV-4: step %d: %d parts, %d rows (says %d), %d logits (says %d); limits %+v", p.Step, len(p.Parts), rows, p.Rows, logits, p.Logits, s.lim)
	}
	return nil
}
