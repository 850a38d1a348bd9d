// Package wire is what passes between the engine process and a worker: the step ring in shared memory, the payload of a step and of its result, the
// hand-over of descriptors, and (in controlpb) the control service. docs/wire.md describes the bytes.
//
// HostRing is the engine's end and WorkerRing the worker's. plugins/remote owns the first, sdk/worker the second.
//
//	file, err := wire.NewRing(epoch)          // host: a sealed memfd, inherited by the worker
//	host, err := wire.OpenHost(file, epoch, policy)
//	err = host.Submit(step, deadline)         // copies the step into the arena partition of its slot, stores the index, rings
//	result, err := host.Wait(poll)            // copies the completion out, checks it, then looks at the payload
//
// Neither side trusts the other: a slot is copied to private memory first and checked afterwards, and whatever does not fit is a *ProtocolError, never
// a fault. Each word of the region has one writer.
//
// Concurrency: HostRing.Submit and HostRing.Wait may run on two goroutines, each on one at a time. WorkerRing belongs to one goroutine (locked to its
// thread) except Beat and Interrupt. Nothing here allocates once buffers have grown to the size of the steps.
package wire
