// Package program is the intermediate form between a model graph and a backend: a flat list of ops over named buffers.
//
// core/plan lowers a model to a Program for one bucket of row counts; sdk/backend.Runner executes it over a device.
// A Program is a value: built once, validated, then only read. Step carries what changes from run to run, Result what
// comes back. The text form (Program.Text) is meant for people and golden diffs; Encode and Decode are the wire form.
//
// Concurrency: everything here is plain data without goroutines or clocks.
package program
