// Package null is the backend that computes nothing: it measures everything around the device.
//
// New returns it. Every op is accepted and leaves its outputs alone, except sample, which writes a token that depends on (seed, position,
// choice) alone, and verify, which compares. Memory is real host memory, so uploads and downloads cost what they cost. Tokens are the same whatever the
// batch, chunking or order of steps, so engine tests on it can demand exact output.
//
// Concurrency: as backend.Device says; it starts no goroutines.
package null
