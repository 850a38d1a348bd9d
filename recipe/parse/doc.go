// Package parse splits what the model writes into reasoning, answer text and tool calls while it is being written.
//
// The main type is [Parser], one for each choice of a response. The server pushes token ids (or text, from a backend that gives no
// ids) and gets [Event] values; recipe/chat, recipe/responses and recipe/messages turn those into their wire formats. The result never
// depends on how the output was cut into pushes: whatever could still become markup, a stop string or the rest of a character is held
// back, and nothing more.
//
//	p, err := parse.New(parse.Options{Parsing: conv.Parsing(stop), Tools: parse.ToolsOf(&conv), Vocabulary: tok})
//	for ids := range steps {
//		events, err = p.Tokens(events[:0], ids, nil)
//		... // encode events; stop the engine when p.Done()
//	}
//	events = p.Finish(events[:0], parse.CauseStop)
//
// There are two grammars. The default is hardened: malformed markup is repaired or given back as text, arguments are always a JSON
// object. Options.Compat gives the behaviour of the reference adapter, warts included.
//
// A Parser belongs to one goroutine. It does no I/O, never panics on any input and takes time linear in the input.
package parse
