// Package engram holds the integer side of Engram, the n-gram memory of DeepSeek-V4.1: which primes size the hash buckets,
// which multipliers mix the token ids, how token ids are compressed, and which table rows a position looks up. The floating
// point side (gate and injection) is an operation of a backend.
//
// The main type is [Layout], made once per checkpoint by [NewLayout] from [Params]; [Layout.Rows] gives the table rows of
// a position and [BuildTokenMap] or [ReadTokenMap] gives the map of ids. core/model/config checks the table sizes with it,
// core/model feeds primes, multipliers and map to the engram_hash operation.
//
// A Layout and a token map are read-only after construction and safe for concurrent use.
//
//	layout, err := engram.NewLayout(cfg.EngramParams())
//	tokenMap := engram.SyntheticTokenMap(cfg.VocabSize, cfg.EngramCompressedVocabSize)
//	rows := layout.Rows(nil, 0, compressed, dead, pos, tokenMap[cfg.EngramPadTokenID])
package engram
