// Package runcli implements `deepinfer run`: one answer, a scored continuation, or a chat in the terminal.
//
// Command is the way in, called by cmd/deepinfer. Text goes to standard output, everything else to standard error. Errors carry an exit code: 2 for
// what is wrong with the call, 1 for what failed. A process runs one command; nothing here is meant for concurrent use.
package runcli
