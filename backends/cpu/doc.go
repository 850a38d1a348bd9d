// Package cpu is the home of the CPU backend, a C++ library behind the ABI of sdk/abi. There is no Go code to call: the library is built by the Makefile
// (cpu.so and its manifest cpu.backend.hcl) and loaded by sdk/worker/dl.
//
// src holds the op families: gemm.cc (packed weights, matrix products), attention.cc, alltoall.cc, backend.cc (tables, memory, devices), pool.cc (threads)
// and kernel.inc, the inner loops, which are compiled once per CPU variant. The Vector family is the portable one of sdk/abi/portable. Sums follow the order
// of the reference (blocks of 64 along K), which depends on K alone; no variant fuses multiply and add, so all variants, thread counts and batch
// compositions give the same bits. The configuration is {"cpu": "auto" | "generic" | "avx2", "accumulate": "float32" | "float64"}: the first forces a variant,
// the second chooses the type of sums, for which every op is compiled twice.
//
// The tests here build the library and hold it to sdk/conformance; they skip where there is no C++ compiler. Package cputest builds it for other tests.
package cpu
