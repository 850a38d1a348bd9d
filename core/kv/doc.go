// Package kv keeps the books of device memory that sequences occupy: granules of the shared KV pool and private state slots.
//
// Pool is the main type. A granule is GranuleTokens tokens of global KV (128 in every released model), ref-counted, written once; a state slot holds one
// running request's window rings and compressor tails. The package moves ids and counters only: it never sees bytes, tokens or a device.
//
// A request reserves all granules it can ever need when it is admitted (Pool.Admit), which is a counter; ids are bound when rows are about to be written
// (Pool.Cover). Therefore binding cannot fail, and a request that was admitted never waits for memory.
//
//	p, _ := kv.NewPool(kv.Options{Granules: 64, Slots: 4, GranuleTokens: 128})
//	var l kv.Lease
//	if p.Admit(&l, prompt+maxTokens) {
//		p.Cover(&l, prompt) // l.Table() now names the granules of positions 0..prompt-1
//		p.Free(&l)
//	}
//
// core/sched is the only caller. Pure: no clock, goroutine or I/O; one caller at a time. The build tag invariants checks the whole pool after each change.
package kv
