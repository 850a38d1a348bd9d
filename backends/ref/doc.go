// Package ref is the reference backend: every op in plain Go, in host memory, on a pool of goroutines.
//
// New returns the backend; core and cmd open it like any other. With {"accumulate":"float64"} it equals the PyTorch oracle exactly
// and is what other backends are compared with; the default float32 serves the embedded demo model. The numerics are those of
// sdk/refop. It claims level d1: a row's result does not depend on the rows beside it, nor on the number of threads.
//
// Concurrency: as backend.Device says. Ops run to completion before they return, so Sync has nothing to wait for. Close ends the
// worker goroutines and returns when they are gone.
package ref
