// Package responses is the Responses protocol: a request body becomes a conversation and run parameters, parse events become numbered
// events of a stream or one response object.
//
// [Decode] reads a request, [NewStream] makes the encoder of its response; use is as in recipe/chat, except that the stream ends without
// a closing line. [InputTokens] is the answer to an input_tokens request, whose body Decode reads too.
//
// Nothing is stored here. [Store] is the seam: a server that keeps responses gives [DecodeWith] functions that find the items of an
// earlier response and open sealed reasoning, and seals reasoning with [Stream.SetSeal].
//
// A Request is read-only after Decode. A Stream belongs to one goroutine.
package responses
