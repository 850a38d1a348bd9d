// Package store keeps the responses of the Responses API, so that later requests can read them, delete them and go on from them.
//
// A Store lives in memory, or with Options.Dir in one append-only file of checksummed records, which is compacted when half of it is garbage. Both are bounded by
// bytes and by age; the oldest responses go first. core/serve is the caller.
//
//	st, err := store.Open(store.Options{Dir: "/var/lib/deepinfer/responses"})
//	err = st.Put(&store.Record{ID: "resp_1", Status: store.Completed, Response: body, Input: input, Output: output})
//	chain, err := st.Chain("", "resp_1", 0) // oldest first
//
// Put returns when the record is on disk. After a crash a half-written last record is dropped; damage anywhere else is an error that names file and offset.
// A Store is safe for concurrent use. One process at a time may have a directory open.
package store
