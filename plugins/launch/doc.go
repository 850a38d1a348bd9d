// Package launch starts worker processes and ends them: environment from nothing, descriptors in the order of the wire contract, library bytes hashed while they are
// sealed, and nothing left behind.
//
// The main type is Process, one worker life. plugins/remote and plugins/probe call Start; both pass a Spec and call Stop or Kill exactly when they are done.
//
//	lib, err := launch.SealLibrary(path)
//	p, err := launch.Start(ctx, launch.Spec{Worker: "/usr/lib/deepinfer/deepinfer-worker", Backend: "cpu", Library: lib, Epoch: 1})
//	defer p.Stop(ctx)
//	reply, err := p.Control.Fingerprint(ctx, &controlpb.FingerprintRequest{})
//
// Concurrency: Start may run several times at once. A Process's Kill, Exited and Err are safe from any goroutine; Stop runs once, after all users of Ring are gone.
package launch
