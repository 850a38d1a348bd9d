// Package engine runs requests on a model: it owns the step loop, asks core/sched for the next step, lays it out for the Executor, and turns results
// into token streams.
//
// Engine is the main type. core/serve and the run command submit requests:
//
//	exec := ...                                   // plugins/local or plugins/remote
//	err := exec.Load(ctx, engine.ModelSpec{...})  // weights and pools
//	e, err := engine.New(engine.Options{Executor: exec, Geometry: g, Programs: programs, Limits: sched.Limits{Slots: 16, Granules: 4096}})
//	s, err := e.Submit(ctx, engine.Request{Prompt: ids, MaxTokens: 100, Sampling: sample.Default()})
//	for {
//		ev, err := s.Next(ctx)
//		if err == io.EOF {
//			break // s.Finish() is stop or length
//		}
//		...
//	}
//	err = e.Drain(ctx)
//	err = e.Close(ctx)
//	err = exec.Close(ctx)
//
// An answer may be constrained: Request.Matcher masks ids token by token, Request.Trigger bounds the free text before it, Request.Sampling carries
// penalties, logit bias and blocked ids. All of it is a function of the request's own tokens.
//
// Two goroutines: the loop owns all scheduling state and never waits for anything but events; the other one computes the masks of a step, with helpers,
// and makes the blocking executor calls (submit, wait, recover), one step at a time. Requests, cancellation and statistics reach the loop through a
// channel, so they are answered while a step runs. Tokens go to a buffer per stream, so a slow reader delays nobody.
//
// Drawing is keyed by (seed, position) and rows are recomputed from token ids, so the tokens of a request do not depend on what else runs, on how its
// prompt is cut, or on how often the device is lost.
//
// The Executor interface is implemented by plugins/local (in process) and plugins/remote (worker process); this package imports neither.
package engine
