// Package progress shows on a terminal how far a long start is: one line that is redrawn, and gone when the work is done.
//
// New returns a Bar; `deepinfer run` and `serve` report stages to it. Nothing is drawn in the first second, so that a quick start stays quiet, and nothing
// at all where the output is no terminal. A Bar is safe for concurrent use; Close ends its goroutine.
package progress
