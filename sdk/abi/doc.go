// Package abi is the C contract between the worker and a hardware backend, and its Go mirror.
//
// di_backend_v1.h is the source. consts.go and structs.go repeat it for Go; layout.golden pins the offset and size of
// every field, and tests on both sides compare with it. The argument structs double as the Go-side arguments of the
// interfaces in sdk/backend, so that a pure-Go backend and a shared object are driven by the same code.
//
// Pointers in these structs point at memory of the device that executes the op (for `ref` and `cpu`: host memory).
// Values are plain data; a struct may be reused between calls by one goroutine at a time.
package abi
