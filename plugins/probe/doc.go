// Package probe asks a backend what it finds, in a process of its own that is thrown away: a library that crashes, hangs or prints is a line in the report, never an outage.
//
// The main function is Run; `deepinfer plugin probe` prints its reports, and start-up uses it before a worker is trusted with a model.
//
// Concurrency: Run may be called from several goroutines; each call has its own process.
package probe
