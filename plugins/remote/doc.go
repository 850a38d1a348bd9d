// Package remote runs programs in a worker process: engine.Executor over the control service and the step ring.
//
// The main type is Executor; cmd creates one per backend block that names a shared object and hands it to core/engine. The worker may die at any moment: Wait then
// returns engine.ErrLost within milliseconds, and Recover starts the next life, loads the same weights and compiles the same programs under the same ids. A named backend that
// cannot start is an error, never a silent change to another one.
//
//	x, err := remote.New(remote.Options{Worker: "bin/deepinfer-worker", Backend: "cpu", Library: entry.LibPath, PluginDir: entry.Dir})
//	err = x.Load(ctx, spec)
//	id, err := x.Compile(ctx, program)
//
// Concurrency: as engine.Executor says; Status is safe from any goroutine. Close leaves no process, descriptor, mapping or goroutine behind.
package remote
