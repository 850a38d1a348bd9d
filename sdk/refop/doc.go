// Package refop is the reference of op set 1: every op of sdk/abi in plain Go, over the argument structs of that package.
//
// Ops is the main type. Ops[float64] sums and evaluates element-wise functions in float64 and equals the PyTorch oracle in every
// code, id and BF16 value; Ops[float32] is what the ref backend serves with. Whatever the accumulation type, quantisers, rotation
// speeds and angles are FP32 and cos and sin are rounded to FP32.
//
// backends/ref wraps it as a device, sdk/conformance compares other backends with it, and sdk/worker/dl serves Vector ops with it
// that a host-memory backend leaves out.
//
// Sums run in an order that depends on the summed dimension alone, so a row's result does not depend on the other rows of a call,
// nor on the number of workers behind Ops.Parallel.
//
// Concurrency: the ops of one Ops value belong to one goroutine at a time (they share scratch memory); Prepare and Release may be
// called from any goroutine, but not for a weight that a running op reads.
//
//	ops := refop.New[float32](nil)
//	err := ops.RMSNorm(&abi.RMSNormArgs{Size: ..., X: x, W: w, Y: y, Eps: 1e-6})
package refop
