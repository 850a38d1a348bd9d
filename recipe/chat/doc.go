// Package chat is the Chat Completions protocol: a request body becomes a conversation and run parameters, parse events become chunks of
// an event stream or one body.
//
// [Decode] reads a request, [NewStream] makes the encoder of its response. A server does no more than this:
//
//	req, err := chat.Decode(body, opts)                    // protocol.AsError(err): Status, OpenAI
//	s := chat.NewStream(req, header)
//	out := s.Start(nil)                                    // the role chunk of each choice
//	out = s.Events(out[:0], choice, events, parser.Usage()) // after each engine step
//	out = s.Close(out[:0])                                 // data: [DONE]
//
// Without streaming the same calls are made, their output is thrown away, and [Stream.Body] gives the response: both paths are one.
//
// A Request is read-only after Decode. A Stream belongs to one goroutine.
package chat
