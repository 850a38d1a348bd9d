// Package protocol holds what the three request protocols share: errors with a status and a body, reading and writing ordered JSON, the
// rules for thinking, sampling, token limits, tools and images.
//
// recipe/chat, recipe/responses and recipe/messages are written with it; a server uses [Options], [Error], [Request] and [Usage] from it
// and nothing else. Everything is a value or a pure function; a [Request] may be read by any number of goroutines.
//
//	req, err := chat.Decode(body, protocol.Options{})
//	if err != nil {
//		e := protocol.AsError(err)
//		w.WriteHeader(e.Status())
//		w.Write(e.OpenAI())
//	}
//
// Options.Compat makes every decision and every error text that of the reference adapter (deepseek-recipe 0.2.0).
package protocol
