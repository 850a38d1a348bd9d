// Package messages is the Messages protocol (Anthropic): a request body becomes a conversation and run parameters, parse events become
// events of a stream or one body.
//
// [Decode] reads a request, [NewStream] makes the encoder of its response; use is as in recipe/chat, except that errors are written with
// Error.Anthropic and that the stream ends without a closing line. [CountTokens] is the answer to a count_tokens request, whose body
// Decode reads too.
//
// A Request is read-only after Decode. A Stream belongs to one goroutine.
package messages
