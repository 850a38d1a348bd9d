// Package completion is the legacy Completions protocol: text in, text out, without turns, and fill-in-the-middle when there is a suffix.
//
// [Decode] reads a request, [NewStream] makes the encoder of its response; use is as in recipe/chat. The prompt is rendered by
// encoding.Encoder.EncodeCompletion, the output is parsed with parse.Options.Plain: it is text up to a stop string.
//
// A Request is read-only after Decode. A Stream belongs to one goroutine.
package completion
