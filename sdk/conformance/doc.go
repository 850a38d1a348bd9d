// Package conformance judges a backend op by op against sdk/refop.
//
// Cases is the list: every op of op set 1 at shapes 0, 1, prime and around block sizes, with ragged batches, windows and rings that wrap,
// ties, strided operands, and arguments that must be refused. Inputs are made from a seed by integer generators, so a failure repeats
// everywhere. Run plugs the list into go test; Check runs one case and returns what was wrong, for tools.
//
// Every output has a class: Exact (integers, codes, ids, copies: each byte), Rounded (BF16 of an FP32 sum: one unit in the last
// place, in few elements), Quantised (codes behind such a sum: few elements, one step of the quantiser), Close (floats: relative to the
// largest value of the row). Outputs lie between guard bytes that must stay untouched.
//
// The device must not run other work meanwhile: it is driven from the calling goroutine.
//
//	dev, _ := b.Open(ctx, 0, backend.OpenOptions{})
//	conformance.Run(t, dev, conformance.Options{})
package conformance
