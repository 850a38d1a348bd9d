// Package local runs programs on a backend inside this process: engine.Executor over a backend.Backend and a backend.Runner. It serves ref, null and fault.
//
// The main type is Executor; cmd creates one per backend block and hands it to core/engine. A device error that poisons the device shows as engine.ErrLost, and
// Recover opens the device again, as with a worker process. What it cannot do is survive a crash or end a hang of the backend: that is what plugins/remote is for.
//
// Concurrency: as engine.Executor says. One goroutine, locked to its thread, owns the device; it ends with Close.
package local
