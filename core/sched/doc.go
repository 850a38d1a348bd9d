// Package sched decides what the next step computes: which requests run, which rows of each, and which rows want logits.
//
// Scheduler is the main type, a pure state machine in the manner of a consensus core: events go in as calls (Arrive, Cancel, Expire, StepDone, StepFailed,
// Lost), a Plan comes out, and ended requests are collected with TakeEnded. It knows counts, never token ids, bytes or the device; time arrives as a value.
//
//	s, _ := sched.New(limits)
//	h, err := s.Arrive(now, sched.Request{Rows: len(prompt), LogitsFrom: len(prompt) - 1, Generate: maxTokens})
//	for {
//		s.Plan(now, &plan)              // lay plan out, run it
//		s.StepDone(now, &plan, results) // one Outcome per part
//		for _, e := range s.TakeEnded() { ... }
//	}
//
// Policy of this version: first come, first served; every decode gets its row first, then resident prompts in order of admission, then new ones; prompts are
// cut into chunks; a request is admitted when a state slot is free and the granules for its whole life can be reserved, so nothing is ever evicted for
// space. A request is in at most one step in flight.
//
// Loss of the device returns all running requests to the queue with their tokens kept; only their rows are computed again. Requests that were in the lost
// step are charged. Twice charged, a request runs alone, and a third loss ends it: it is the likely cause.
//
// core/engine is the only caller. No clock, goroutine or I/O; one caller at a time; no allocation in Plan and StepDone once the slices have grown.
package sched
