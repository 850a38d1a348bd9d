package engine

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Matcher follows what one answer may say; the matcher of recipe/grammar is one. It belongs to the engine from Submit on, which calls it from one
// goroutine at a time. Each call should take microseconds: the step of all requests waits for Mask. A panic fails the request, nothing else.
type Matcher interface {
	// Mask sets the bit of every allowed id (bit i%32 of word i/32), clears all others, and returns how many are allowed. It changes nothing else.
	Mask(dst []uint32) (allowed int)
	// Accept moves on by one id. An error ends the request.
	Accept(id int32) error
	// Done says that the answer is complete: it ends with the id that was accepted last, whatever the model would say next.
	Done() bool
	// Dormant says that every id is allowed at the moment, so no mask is needed.
	Dormant() bool
	// Replay starts anew and accepts ids: after the device was lost, a request is computed again from its tokens.
	Replay(ids []int32) error
}

// Trigger ends a stretch of free text at the start of an answer, for example the thinking part: Request.Matcher holds from the token after it on.
type Trigger struct {
	IDs   []int32 // the text is free until these were drawn one after the other; at least one
	Bound int     // free tokens after which IDs are forced; 0 = no bound
	// Nudge is added to the logit of IDs[0] when at most NudgeTokens free tokens are left of Bound. 0 = off.
	Nudge       float32
	NudgeTokens int
}

// maxTrigger bounds Trigger.IDs.
const maxTrigger = 64

// ConstraintError ends a request that its own matcher, or its own mask and biases, brought to an end.
type ConstraintError struct {
	Pos int // absolute index of the token that could not be drawn
	Err error
}

// Error gives the position and the cause.
func (e *ConstraintError) Error() string {
	return fmt.Sprintf("constrained output at position %d: %v", e.Pos, e.Err)
}

// Unwrap returns the cause: sample.ErrNothingAllowed or what the matcher said.
func (e *ConstraintError) Unwrap() error { return e.Err }

// lead is the state of a Trigger.
type lead struct {
	Trigger
	fail    []int // of the first i+1 ids, the length of the longest proper prefix that is also a suffix
	matched int
	free    int
	over    bool
}

func newLead(t *Trigger, vocab int) (*lead, error) {
	if n := len(t.IDs); n == 0 || n > maxTrigger {
		return nil, &sample.ParamError{Name: "trigger", Value: fmt.Sprintf("of %d ids", n), Want: fmt.Sprintf("1 to %d ids", maxTrigger)}
	}
	for i, id := range t.IDs {
		if id < 0 || int(id) >= vocab {
			return nil, &TokenError{Field: "trigger", Index: i, ID: id, Vocab: vocab}
		}
	}
	if t.Bound < 0 || t.NudgeTokens < 0 {
		return nil, &sample.ParamError{Name: "trigger bound", Value: fmt.Sprintf("%d with %d nudged tokens", t.Bound, t.NudgeTokens), Want: "0 or more"}
	}
	if !(t.Nudge >= -sample.MaxBias && t.Nudge <= sample.MaxBias) {
		return nil, &sample.ParamError{Name: "trigger nudge", Value: t.Nudge, Want: fmt.Sprintf("in [-%d, %d]", sample.MaxBias, sample.MaxBias)}
	}
	l := &lead{Trigger: *t, fail: make([]int, len(t.IDs))}
	l.IDs = slices.Clone(t.IDs)
	for i := 1; i < len(l.IDs); i++ {
		l.fail[i] = l.extend(l.fail[i-1], l.IDs[i])
	}
	return l, nil
}

// extend returns the length of the longest start of IDs that ends with id, when the n ids before it matched.
func (l *lead) extend(n int, id int32) int {
	for n > 0 && l.IDs[n] != id {
		n = l.fail[n-1]
	}
	if l.IDs[n] == id {
		n++
	}
	return n
}

// read takes a token of the free text.
func (l *lead) read(id int32) {
	l.free++
	l.matched = l.extend(l.matched, id)
	l.over = l.matched == len(l.IDs)
}

// next is the id that must come now, -1 when the model may choose.
func (l *lead) next() int32 {
	if l == nil || l.over || l.Bound == 0 || l.free < l.Bound {
		return -1
	}
	return l.IDs[l.matched]
}

// nudge is what to add to the logit of IDs[0].
func (l *lead) nudge() float32 {
	if l == nil || l.over || l.Bound == 0 || l.Bound-l.free > l.NudgeTokens {
		return 0
	}
	return l.Nudge
}

// constraint is what a request brings along to change its draws.
type constraint struct {
	adjust  *sample.Adjuster
	lead    *lead
	matcher Matcher
	from    int   // index of the first token the matcher sees
	stale   bool  // the matcher must read its tokens again
	broken  error // why there is no mask; written by the device goroutine before the step's result
}

// checkConstraint validates what r brings.
func (e *Engine) checkConstraint(r *Request) (c constraint, err error) {
	if len(r.Force) > 0 {
		if r.Matcher != nil || r.Trigger != nil {
			return c, &sample.ParamError{Name: "force", Value: fmt.Sprintf("of %d tokens", len(r.Force)), Want: "without a matcher or trigger: nothing is drawn"}
		}
		return c, nil
	}
	if r.Trigger != nil {
		if c.lead, err = newLead(r.Trigger, e.geo.Vocab); err != nil {
			return c, err
		}
	}
	c.matcher, c.from = r.Matcher, len(r.Prompt)
	c.adjust, err = sample.NewAdjuster(&r.Sampling, e.blocked, e.geo.Vocab, len(r.Prompt))
	return c, err
}

// matching reports whether the matcher chooses the next token.
func (c *constraint) matching() bool { return c.matcher != nil && (c.lead == nil || c.lead.over) }

// advance takes the token that was drawn at pos. done: the answer ends with it.
func (c *constraint) advance(id int32, pos int) (done bool, err error) {
	if l := c.lead; l != nil && !l.over {
		l.read(id)
		c.from = pos + 1
		return false, nil
	}
	if c.matcher == nil {
		return false, nil
	}
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the matcher panicked: %v", p)
		}
	}()
	if err := c.matcher.Accept(id); err != nil {
		return false, err
	}
	return c.matcher.Done(), nil
}

// asleep asks a matcher whether it needs no mask.
func (c *constraint) asleep() (yes bool) {
	defer func() {
		if recover() != nil {
			yes = false // Mask is asked next, and its panic is reported
		}
	}()
	return c.matcher.Dormant()
}

// draw appends how the token at pos of q is drawn.
func (e *Engine) draw(q *request, pos int) {
	l := &e.loop
	st := &l.step
	if id := q.lead.next(); id >= 0 {
		st.Sampling = append(st.Sampling, sample.ForcedRow(pos, id))
		return
	}
	row := q.params.Row(pos)
	nudge := q.lead.nudge()
	if q.adjust == nil && nudge == 0 {
		if len(e.blocked) > 0 { // one range for all
			if l.shared < 0 {
				l.shared = len(st.Biases)
				st.Biases = append(st.Biases, e.blocks...)
			}
			row.BiasFirst, row.BiasCount = int32(l.shared), int32(len(e.blocks))
		}
	} else {
		first := len(st.Biases)
		if q.adjust != nil {
			st.Biases = q.adjust.Append(st.Biases, q.ids)
		} else {
			st.Biases = append(st.Biases, e.blocks...)
		}
		if nudge != 0 {
			st.Biases = append(st.Biases, abi.Bias{Id: q.lead.IDs[0], Add: nudge})
		}
		row.BiasFirst, row.BiasCount = int32(first), int32(len(st.Biases)-first)
	}
	if q.matching() && !q.asleep() {
		words := (e.geo.Vocab + 31) / 32
		st.MaskWords = words
		n := len(st.Masks)
		st.Masks = slices.Grow(st.Masks, words)[:n+words]
		l.masks = append(l.masks, maskTask{c: &q.constraint, ids: q.ids, at: n})
		row.Mask = int32(n/words) + 1
	}
	st.Sampling = append(st.Sampling, row)
}

// maskTask is one mask to compute before a step runs.
type maskTask struct {
	c   *constraint
	ids []int32 // prompt and answer so far
	at  int     // index of the row's first word in Step.Masks
}

// run computes the mask into dst. What goes wrong leaves the row empty and is noted.
func (t *maskTask) run(dst []uint32) {
	defer func() {
		if p := recover(); p != nil {
			clear(dst)
			t.c.broken = fmt.Errorf("the matcher panicked: %v", p)
		}
	}()
	if t.c.stale {
		if err := t.c.matcher.Replay(t.ids[t.c.from:]); err != nil {
			clear(dst)
			t.c.broken = err
			return
		}
		t.c.stale = false
	}
	if t.c.matcher.Mask(dst) == 0 {
		clear(dst)
	}
}

// masker computes the masks of a step on several goroutines. The device goroutine drives it, so the loop never waits for a matcher.
type masker struct {
	helpers int
	wake    chan struct{}
	end     sync.WaitGroup // helpers that run
	busy    sync.WaitGroup // helpers at work
	next    atomic.Int64
	tasks   []maskTask
	step    *program.Step
}

func newMasker(helpers int) *masker {
	m := &masker{helpers: helpers, wake: make(chan struct{})}
	for range helpers {
		m.end.Go(func() {
			for range m.wake {
				m.work()
				m.busy.Done()
			}
		})
	}
	return m
}

// fill computes all tasks and returns when they are done.
func (m *masker) fill(step *program.Step, tasks []maskTask) {
	if len(tasks) == 0 {
		return
	}
	m.step, m.tasks = step, tasks
	m.next.Store(0)
	n := min(m.helpers, len(tasks)-1)
	m.busy.Add(n)
	for range n {
		m.wake <- struct{}{}
	}
	m.work()
	m.busy.Wait()
	m.step, m.tasks = nil, nil
}

func (m *masker) work() {
	for {
		i := m.next.Add(1) - 1
		if i >= int64(len(m.tasks)) {
			return
		}
		t := &m.tasks[i]
		t.run(m.step.Masks[t.at : t.at+m.step.MaskWords])
	}
}

func (m *masker) close() {
	close(m.wake)
	m.end.Wait()
}

// checkBlocked validates the server's list of ids that are never drawn.
func checkBlocked(ids []int32, vocab int) ([]abi.Bias, error) {
	if len(ids) > sample.MaxBiasIDs {
		return nil, fmt.Errorf("new engine: %d blocked ids: at most %d", len(ids), sample.MaxBiasIDs)
	}
	var out []abi.Bias
	for _, id := range ids {
		if id < 0 || int(id) >= vocab {
			return nil, fmt.Errorf("new engine: blocked id %d outside a vocabulary of %d", id, vocab)
		}
		out = append(out, abi.Block(id))
	}
	return out, nil
}
