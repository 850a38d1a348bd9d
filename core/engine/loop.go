package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

type commandKind uint8

const (
	cmdArrive commandKind = iota
	cmdCancel
	cmdImage
	cmdImageCancel
	cmdDrain
	cmdStats
)

// command crosses from the callers to the loop.
type command struct {
	kind  commandKind
	req   *request
	image *imageJob
	idle  chan struct{}
	stats chan Stats // capacity 1
}

// imageJob is one image for the vision program.
type imageJob struct {
	patches      []uint16
	gridH, gridW int
	cells        int
	losses       int
	dropped      bool            // nobody waits for it any more
	reply        chan imageReply // capacity 1, answered once
}

type imageReply struct {
	rows []uint16
	err  error
}

// job is work for the device goroutine: a step with the masks it lacks, or with step nil a recovery.
type job struct {
	step  *program.Step
	masks []maskTask
}

// result is its answer.
type result struct {
	res *program.Result
	err error
}

// loop is the state of the loop goroutine. Everything in it belongs to that goroutine alone.
type loop struct {
	sched    *sched.Scheduler
	reqs     []*request // by handle
	images   []*imageJob
	draining bool
	drainers []chan struct{}

	jobs    chan job    // to the device goroutine
	results chan result // from it, capacity 1
	flight  flight
	started time.Time
	plan    sched.Plan // the step in flight, empty for an image
	image   *imageJob  // the image in flight
	last    flight     // kind of the last step: images and tokens take turns

	step    program.Step // its buffers are reused: one step is in flight at a time
	masks   []maskTask   // to be computed for it
	shared  int          // first of the server's blocked ids in Step.Biases, -1 while no row needs them
	picture program.Step
	out     []sched.Outcome
	seq     uint64
	timer   *time.Timer
	armed   sched.Time
	stats   counters
}

// flight says what the device goroutine is doing.
type flight uint8

const (
	idle flight = iota
	tokens
	picture
	recovery
)

func (l *loop) init(s *sched.Scheduler) {
	l.sched = s
	l.jobs, l.results = make(chan job), make(chan result, 1)
	l.timer = time.NewTimer(time.Hour)
	l.timer.Stop()
}

func (e *Engine) now() sched.Time { return sched.Time(e.clock().UnixNano()) }

// run is the loop goroutine: the only owner of scheduling state. It never waits for the device, a reader or a caller.
func (e *Engine) run() {
	l := &e.loop
	closing := e.closing
	for {
		for more := true; more; { // all that has arrived goes into the next step together
			select {
			case c := <-e.cmds:
				e.handle(c)
			default:
				more = false
			}
		}
		l.sched.Expire(e.now())
		e.settle()
		if l.flight == idle {
			if closing == nil {
				break
			}
			if e.Err() == nil {
				e.launch()
			}
		}
		e.arm()
		select {
		case c := <-e.cmds:
			e.handle(c)
		case r := <-l.results:
			e.retire(r, closing == nil)
		case <-l.timer.C:
			l.armed = 0
		case <-closing:
			closing = nil
			l.draining = true
			e.cancelAll()
		}
	}
	l.timer.Stop()
	close(l.jobs)
	<-l.results   // closed by the device goroutine when it ends
	close(e.done) // callers whose command was not read any more watch it
}

// device is the goroutine that talks to the executor: submit, wait, recover, one after the other.
func (e *Engine) device(ctx context.Context) {
	l := &e.loop
	defer close(l.results)
	masks := newMasker(min(runtime.GOMAXPROCS(0), 8) - 1)
	defer masks.close()
	for j := range l.jobs {
		var r result
		if j.step == nil {
			r.err = e.exec.Recover(ctx)
		} else {
			masks.fill(j.step, j.masks)
			r.res, r.err = e.runStep(ctx, j.step)
		}
		l.results <- r
	}
}

// fullPatience bounds how long an executor may say ErrFull although nothing of ours is in flight.
const fullPatience = 30 * time.Second

func (e *Engine) runStep(ctx context.Context, step *program.Step) (*program.Result, error) {
	for waited := time.Duration(0); ; waited += time.Millisecond {
		err := e.exec.Submit(step)
		if err == nil {
			break
		}
		if !errors.Is(err, ErrFull) {
			var se *StepError
			if !errors.Is(err, ErrLost) && !errors.As(err, &se) && ctx.Err() == nil {
				err = &StepError{Seq: step.Seq, Scope: backend.ScopeStep, Err: err} // it was refused before anything ran
			}
			return nil, err
		}
		// A step of an earlier life may still drain. Rare: the engine keeps one step in flight.
		if waited > fullPatience {
			return nil, fmt.Errorf("%w: all step slots stayed in use for %s", ErrLost, fullPatience)
		}
		t := time.NewTimer(time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, ctx.Err()
		}
	}
	for {
		res, err := e.exec.Wait(ctx)
		if err != nil {
			var se *StepError
			if errors.As(err, &se) && se.Seq < step.Seq && !errors.Is(err, ErrLost) {
				continue // of a step that was given up earlier
			}
			return nil, err
		}
		if res.Seq < step.Seq {
			continue
		}
		if res.Seq > step.Seq {
			return nil, fmt.Errorf("%w: result of step %d while step %d is the newest", ErrLost, res.Seq, step.Seq)
		}
		return res, nil
	}
}

func (e *Engine) handle(c command) {
	l := &e.loop
	switch c.kind {
	case cmdArrive:
		if err := e.refusal(); err != nil {
			e.refuse(c, err)
			return
		}
		q := c.req
		r := sched.Request{Rows: q.prompt, LogitsFrom: q.prompt - 1, Generate: q.max}
		if q.forced {
			r.Rows, r.Generate = len(q.ids)-1, 0 // the last forced id predicts nothing
		}
		now := e.now()
		if e.queueTimeout > 0 {
			r.Deadline = now + sched.Time(e.queueTimeout)
		}
		h, err := l.sched.Arrive(now, r)
		if err == nil {
			q.handle = h
			for len(l.reqs) <= int(h) {
				l.reqs = append(l.reqs, nil)
			}
			l.reqs[h] = q
		}
		q.reply <- err
	case cmdCancel:
		if h := c.req.handle; h >= 0 && l.reqs[h] == c.req {
			l.sched.Cancel(h)
		}
	case cmdImage:
		if err := e.refusal(); err != nil {
			e.refuse(c, err)
			return
		}
		if m := l.sched.Limits().MaxQueue; len(l.images) >= m {
			e.refuse(c, &sched.OverloadError{Queued: len(l.images), Limit: m})
			return
		}
		l.images = append(l.images, c.image)
	case cmdImageCancel:
		c.image.dropped = true
		if i := slices.Index(l.images, c.image); i >= 0 {
			l.images = slices.Delete(l.images, i, i+1)
		}
	case cmdDrain:
		l.draining = true
		l.drainers = append(l.drainers, c.idle)
	case cmdStats:
		c.stats <- e.snapshot()
	}
}

// refusal says why nothing new is accepted, nil when it is.
func (e *Engine) refusal() error {
	if err := e.Err(); err != nil {
		return err
	}
	if e.loop.draining {
		select {
		case <-e.closing:
			return ErrClosed
		default:
			return ErrDraining
		}
	}
	return nil
}

func (e *Engine) refuse(c command, err error) {
	switch c.kind {
	case cmdArrive:
		c.req.reply <- err
	case cmdImage:
		c.image.reply <- imageReply{err: err}
	}
}

// settle tells streams about requests that ended, and drainers that nothing is left.
func (e *Engine) settle() {
	l := &e.loop
	for _, end := range l.sched.TakeEnded() {
		q := l.reqs[end.Handle]
		l.reqs[end.Handle] = nil
		q.stream.ended(end, l.draining && e.isClosing())
		q.handle = -1
		if end.Reason == sched.Failed {
			e.log.Warn("request failed", "request", q.id, "error", end.Err)
		}
	}
	if checking {
		if err := l.sched.Check(); err != nil {
			panic(err.Error())
		}
	}
	if len(l.drainers) > 0 && l.sched.Live() == 0 && len(l.images) == 0 && l.image == nil {
		for _, d := range l.drainers {
			close(d)
		}
		l.drainers = nil
	}
}

func (e *Engine) isClosing() bool {
	select {
	case <-e.closing:
		return true
	default:
		return false
	}
}

func (e *Engine) cancelAll() {
	l := &e.loop
	for h, q := range l.reqs {
		if q != nil {
			l.sched.Cancel(sched.Handle(h))
			q.stream.end(FinishAbort, fmt.Errorf("%w: %w", ErrCancelled, ErrClosed))
		}
	}
	e.failImages(ErrClosed)
}

func (e *Engine) failImages(err error) {
	l := &e.loop
	if l.image != nil && !l.image.dropped {
		l.image.dropped = true
		l.image.reply <- imageReply{err: err}
	}
	for _, j := range l.images {
		j.reply <- imageReply{err: err}
	}
	l.images = nil
}

// arm sets the timer to the next queue deadline.
func (e *Engine) arm() {
	l := &e.loop
	t := l.sched.NextDeadline()
	if t == l.armed {
		return
	}
	l.armed = t
	if t == 0 {
		l.timer.Stop()
		return
	}
	l.timer.Reset(max(time.Duration(t-e.now()), time.Millisecond))
}

// launch starts the next step, if there is anything to run.
func (e *Engine) launch() {
	l := &e.loop
	if len(l.images) > 0 && (l.last != picture || l.sched.Live() == 0) {
		e.launchImage()
		return
	}
	l.sched.Plan(e.now(), &l.plan)
	if len(l.plan.Parts) == 0 {
		if len(l.images) > 0 {
			e.launchImage()
		}
		return
	}
	if checking {
		if err := l.sched.CheckPlan(&l.plan); err != nil {
			panic(err.Error())
		}
	}
	e.start(tokens, e.layout(), l.masks)
}

func (e *Engine) launchImage() {
	l := &e.loop
	l.image = l.images[0]
	l.images = slices.Delete(l.images, 0, 1)
	l.seq++
	l.picture = program.Step{Seq: l.seq, Program: e.vision.id, Input: l.image.patches, GridH: l.image.gridH, GridW: l.image.gridW, Cells: l.image.cells}
	e.start(picture, &l.picture, nil)
}

func (e *Engine) start(kind flight, step *program.Step, masks []maskTask) {
	l := &e.loop
	l.flight, l.last = kind, kind
	l.started = e.clock()
	l.jobs <- job{step: step, masks: masks} // the device goroutine is idle: this is a hand-over, not a wait
}

// fault says what an error of the executor spoiled.
type fault uint8

const (
	noFault fault = iota
	stepFault
	deviceFault
)

func classify(err error) fault {
	if err == nil {
		return noFault
	}
	if errors.Is(err, ErrLost) {
		return deviceFault
	}
	var se *StepError
	if errors.As(err, &se) && se.Scope < backend.ScopeDevice {
		return stepFault
	}
	var be *backend.Error
	if errors.As(err, &be) && be.Scope > 0 && be.Scope < backend.ScopeDevice {
		return stepFault
	}
	return deviceFault // unknown: trusting the device's memory could corrupt answers
}

// retire takes the answer of the device goroutine.
func (e *Engine) retire(r result, closing bool) {
	l := &e.loop
	kind := l.flight
	l.flight = idle
	if closing { // whatever it was: nobody waits for it
		l.sched.Lost(e.now(), &l.plan, ErrClosed)
		l.sched.FailAll(ErrClosed)
		l.image = nil
		return
	}
	if kind == recovery {
		if r.err != nil {
			e.die(fmt.Errorf("the device was lost and could not be brought back: %w", r.err))
			return
		}
		l.stats.recoveries++
		e.log.Info("device recovered", "queued", l.sched.Stats().Queued)
		return
	}
	l.stats.observe(e.clock().Sub(l.started))
	err := r.err
	if err == nil && kind == tokens {
		if err = sample.CheckResult(r.res, len(l.step.Logits), l.step.TopN); err != nil {
			err = fmt.Errorf("%w: %w", ErrLost, err) // an executor that answers nonsense is not trusted with its memory
		}
	}
	switch f := classify(err); {
	case f == noFault && kind == tokens:
		e.deliver(r.res)
	case f == noFault:
		e.deliverImage(r.res)
	case f == stepFault:
		l.stats.stepFailures++
		e.log.Warn("step failed", "step", l.seq, "requests", len(l.plan.Parts), "error", err)
		if kind == tokens {
			if len(l.plan.Parts) > 1 {
				e.countPreempted(l.plan.Parts)
			}
			l.sched.StepFailed(e.now(), &l.plan, fmt.Errorf("the device refused the step: %w", err))
		} else {
			e.answerImage(imageReply{err: fmt.Errorf("the device refused the image: %w", err)})
		}
	default:
		e.lost(err)
	}
}

// lost returns everything to the queue and starts the recovery.
func (e *Engine) lost(err error) {
	l := &e.loop
	l.stats.losses++
	st := l.sched.Stats()
	e.log.Error("device lost", "step", l.seq, "running", st.Running, "error", err)
	for h, q := range l.reqs {
		if s := l.sched.State(sched.Handle(h)); q != nil && (s == sched.Prefill || s == sched.Decode) {
			q.preempted()
		}
	}
	if j := l.image; j != nil {
		l.image = nil
		j.losses++
		switch {
		case j.dropped:
		case j.losses > 2: // same rule as for requests; an image always has the step to itself
			j.reply <- imageReply{err: &sched.PoisonError{Charges: j.losses, Cause: err}}
		default:
			l.images = slices.Insert(l.images, 0, j)
		}
		l.plan.Parts = l.plan.Parts[:0]
	}
	l.sched.Lost(e.now(), &l.plan, err)
	l.plan.Parts = l.plan.Parts[:0]
	l.step = program.Step{} // whoever still holds the lost step keeps its buffers
	l.flight = recovery
	l.jobs <- job{}
}

// die ends everything: there is no device any more.
func (e *Engine) die(err error) {
	e.fatal.Store(&err)
	e.log.Error("engine stopped", "error", err)
	e.loop.sched.FailAll(err)
	e.failImages(err)
}

// preempted notes that the rows of a request will be computed again, and that its matcher has to read its tokens again.
func (q *request) preempted() {
	q.stale = true
	q.stream.preempted()
}

func (e *Engine) countPreempted(parts []sched.Part) {
	for _, p := range parts {
		e.loop.reqs[p.Handle].preempted()
	}
}

// deliver hands the tokens of a step to their streams and the plan back to the scheduler.
func (e *Engine) deliver(res *program.Result) {
	l := &e.loop
	l.out = l.out[:0]
	li, topN := 0, l.step.TopN
	drawn := 0
	for _, part := range l.plan.Parts {
		q := l.reqs[part.Handle]
		var o sched.Outcome
		n := part.Logits()
		if l.sched.State(part.Handle) == sched.Aborting {
			n = 0
		}
		for k := range n {
			pos := part.LogitsFrom + k + 1
			tok, err := sample.Assemble(res, li+k, topN, q.topN, e.geo.Vocab)
			if err == nil && q.forced && tok.ID != q.ids[pos] {
				err = fmt.Errorf("the backend scored token %d at position %d, asked for %d", tok.ID, pos, q.ids[pos])
			}
			if want := q.lead.next(); err == nil && want >= 0 && tok.ID != want {
				err = fmt.Errorf("the backend gave token %d, %d was forced", tok.ID, want)
			}
			if q.broken != nil {
				o.Err = &ConstraintError{Pos: pos, Err: q.broken}
				break
			}
			if row := &l.step.Sampling[li+k]; errors.Is(err, sample.ErrNothingAllowed) && (row.Mask > 0 || row.BiasCount > 0) {
				o.Err = &ConstraintError{Pos: pos, Err: err}
				break
			}
			if err != nil {
				o.Err = fmt.Errorf("position %d: %w", pos, err)
				break
			}
			ev := Event{Token: tok, Pos: pos}
			if !q.forced {
				done, err := q.advance(tok.ID, pos)
				if err != nil {
					o.Err = &ConstraintError{Pos: pos, Err: err}
					break
				}
				q.ids = append(q.ids, tok.ID)
				o.Tokens++
				ev.Stop = q.stop.Hit(tok.ID)
				o.Stop = ev.Stop || done
			}
			if !q.stream.push(ev) {
				o.Err = ErrSlowConsumer
				break
			}
			drawn++
		}
		li += part.Logits()
		l.out = append(l.out, o)
	}
	l.stats.steps++
	l.stats.rows += uint64(l.plan.Rows)
	l.stats.tokens += uint64(drawn)
	l.sched.StepDone(e.now(), &l.plan, l.out)
}

func (e *Engine) deliverImage(res *program.Result) {
	l := &e.loop
	l.stats.images++
	want := l.image.cells * e.hidden
	if len(res.Rows) < want {
		e.answerImage(imageReply{err: fmt.Errorf("the image tower returned %d values, %d were expected", len(res.Rows), want)})
		return
	}
	e.answerImage(imageReply{rows: slices.Clone(res.Rows[:want])})
}

func (e *Engine) answerImage(r imageReply) {
	j := e.loop.image
	e.loop.image = nil
	if !j.dropped {
		j.reply <- r
	}
}
