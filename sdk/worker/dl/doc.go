// Package dl loads a hardware backend, a shared object that exports di_backend_v1 (sdk/abi/di_backend_v1.h), and presents it as backend.Backend.
//
// Open checks the file before any of its code runs (ELF, machine, exported ABI major), loads it with all other symbols hidden, calls the entry point and
// holds the tables to what a device needs. The worker calls it; so do tests that drive a backend in their own process. Nothing ever calls back from the
// library into Go. The library is code of this process: a crash in it ends the process, which is why workers and probes are processes of their own.
//
// A Library and the methods Alloc, Free, Prepare and Release of its devices are safe for concurrent use; everything else of a device belongs to one
// goroutine at a time, as sdk/backend says.
//
//	lib, err := dl.Open("bin/backends/cpu.so", dl.Options{})
//	dev, err := lib.Open(ctx, 0, backend.OpenOptions{})
package dl
