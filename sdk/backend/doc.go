// Package backend holds the Go interfaces of a hardware backend: the four op families and the device beneath them.
//
// A pure-Go backend implements Backend and Device directly. A shared object implements the same tables in C
// (sdk/abi/di_backend_v1.h); sdk/worker/dl turns those into a Device. Runner walks a program over a Device, so both kinds
// run the same code path.
//
// Concurrency: Device methods that allocate or load may be called from any goroutine; ops and Runner.Run belong to one
// goroutine at a time (one queue).
package backend
