// Package serve is the HTTP front: it turns requests of the public APIs into engine requests and token streams into their answers.
//
// Server is the main type; cmd/deepinfer makes one and gives its Handler to an http.Server. The server answers from the first moment: until SetModel it
// says that it is loading and how far, after Drain that it is going away.
//
//	s, err := serve.New(serve.Options{Logger: log})
//	go http.Serve(listener, s.Handler())
//	s.SetProgress("loading weights", done, total)
//	err = s.SetModel(serve.Model{Name: "spark-mini", Engine: e, Model: m, Tokenizer: t, Encoder: enc, Context: 16384})
//	...
//	err = s.Drain(ctx) // no new requests; returns when the running ones have ended
//
// A request is decoded by recipe/chat, rendered by recipe/encoding, run by core/engine, split by recipe/parse and written by recipe/chat. A goroutine for each choice
// reads the engine's stream and the handler writes, so a slow client delays nobody but itself. The log carries no prompts and no answers.
//
// A Server is safe for concurrent use.
package serve
