// Package parity runs golden sets on a device and compares every recorded number: greedy tokens, logits, and the activations of each layer.
//
// Its tests are the proof behind the word "exact": `ref` in float64 must equal the oracle bit for bit, every other backend must give the same greedy tokens
// on trained weights. Session is the small step builder the tests use; it drives the same Runner and programs as the engine, without a scheduler, so that
// a difference can be bisected to one op (Bisect). Used by tests only; one goroutine.
package parity
