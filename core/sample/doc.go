// Package sample is the host side of sampling: it checks a request's parameters, turns them into the rows a backend draws by, recognises the end of an
// answer, and assembles log-probabilities.
//
// Params are the parameters of one request; Params.Row gives the abi.Sampling of one position. Drawing itself happens on the device and is a pure function
// of (logits, seed, position): nothing is saved, rewound or shared between requests, so batching, preemption and retry cannot change an answer.
//
// An Adjuster turns penalties, logit bias and blocked ids into the bias entries of each position, from the tokens of its own request alone.
//
//	p := sample.Default()
//	p.Temperature = 0.7
//	if err := p.Validate(); err != nil { ... }
//	row := p.Row(len(context)) // draws the token with that absolute index
//
// core/engine is the caller; core/serve uses Params and Validate. Plain values, safe to share (an Adjuster belongs to one request); no clock, goroutine
// or random source inside.
package sample
