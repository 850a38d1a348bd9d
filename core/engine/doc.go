// Package engine runs requests on a model: it owns the step loop, asks core/sched for the next step, lays it out for the Executor, and turns results
// into token streams.
//
// Engine is the main type. core/serve and the run command submit requests; one goroutine owns all scheduling state, requests and events cross it through
// channels. The Executor interface is implemented by plugins/local (in process) and plugins/remote (worker process); this package imports neither.
package engine
