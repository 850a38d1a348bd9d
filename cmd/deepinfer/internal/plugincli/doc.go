// Package plugincli is `deepinfer plugin`: which backends there are, why one is refused, what devices each finds, and the lock file that pins them.
//
// Command returns the cobra command with list, probe, lock and verify; cmd/deepinfer adds it to its root. New is the same with other defaults.
//
// Concurrency: a command runs once, from main.
package plugincli
