// Package recipecli is the command `deepinfer recipe`: prompts, tokens and output parsing from the shell, JSON lines in and JSON lines out.
//
// [Command] is the entry point; cmd/deepinfer adds it to its root. Every subcommand reads one JSON object a line from standard input and
// writes one object for each, in input order. What is wrong with a request stands in its answer; the exit code is 1 only when a line could not
// be read at all. A process runs one command; nothing here is meant for concurrent use.
//
// Each subcommand is a function from one line to one answer, run by lineCommand. The formats are those of the golden files of
// the adapter.
package recipecli
