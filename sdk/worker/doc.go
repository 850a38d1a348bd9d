// Package worker is the main of a worker process: it serves the control service, runs the step thread over a backend.Backend, and leaves when the engine does.
//
// A backend author in Go calls Main from a main package of their own; cmd/deepinfer-worker is the stock worker, which loads shared objects.
//
//	func main() {
//		worker.Main(func(name string) (backend.Backend, error) { return mybackend.New(), nil })
//	}
//
// Nothing of the backend runs before the handshake is over: resolve is called by the first Fingerprint or Open, on the step thread.
//
// Concurrency: control calls arrive on goroutines of their own; everything that touches the device runs on one goroutine locked to its thread, in the order
// it was asked for. Main is called once per process.
package worker
