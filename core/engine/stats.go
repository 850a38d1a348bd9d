package engine

import (
	"context"
	"time"

	"github.com/deepinfer-go/deepinfer/core/sched"
)

// StepSeconds are the upper bounds of the step duration histogram, in seconds; one more bucket counts longer steps.
var StepSeconds = [...]float64{0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30}

// Stats is a snapshot of an engine.
type Stats struct {
	sched.Stats            // queue, running, pool, counters of requests
	Images       int       // images that wait for the image tower
	Draining     bool      //
	Recovering   bool      // the device was lost and is being brought back
	Steps        uint64    // steps that delivered
	Rows, Tokens uint64    // rows computed, tokens drawn or scored
	ImageSteps   uint64    // images encoded
	StepFailures uint64    // steps that the device refused
	Losses       uint64    // times the device was lost
	Recoveries   uint64    // times it was brought back
	StepTime     Histogram // duration of steps, from submission to result
}

// Histogram counts durations. Counts[i] holds those up to StepSeconds[i] and above the bound before; the last counts longer ones.
type Histogram struct {
	Counts [len(StepSeconds) + 1]uint64
	Sum    time.Duration
}

// Count returns the number of observations.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

type counters struct {
	steps, rows, tokens, images      uint64
	stepFailures, losses, recoveries uint64
	stepTime                         Histogram
}

func (c *counters) observe(d time.Duration) {
	i := 0
	for i < len(StepSeconds) && d.Seconds() > StepSeconds[i] {
		i++
	}
	c.stepTime.Counts[i]++
	c.stepTime.Sum += d
}

// Stats returns a snapshot. It does not wait for the device. After Close it returns the final counts.
func (e *Engine) Stats() Stats {
	c := command{kind: cmdStats, stats: make(chan Stats, 1)}
	if e.send(context.Background(), c) == nil {
		select {
		case s := <-c.stats:
			return s
		case <-e.done:
		}
	}
	return e.snapshot() // the loop has ended: nothing changes any more
}

func (e *Engine) snapshot() Stats {
	l := &e.loop
	return Stats{
		Stats: l.sched.Stats(), Images: len(l.images), Draining: l.draining, Recovering: l.flight == recovery,
		Steps: l.stats.steps, Rows: l.stats.rows, Tokens: l.stats.tokens, ImageSteps: l.stats.images,
		StepFailures: l.stats.stepFailures, Losses: l.stats.losses, Recoveries: l.stats.recoveries, StepTime: l.stats.stepTime,
	}
}
