// Package conversation holds the one internal form of a chat: what recipe/chat, recipe/responses and recipe/messages decode a request
// into, and what recipe/encoding renders as a prompt.
//
// The main type is [Conversation]: messages in order, the images they refer to, the tools, and how the model is asked to answer.
// [Params] carries sampling and run parameters, [Parsing] tells the output parser where it starts. The package has data types and
// checks only: it decodes no protocol, writes no prompt and does no I/O.
//
// Protocol packages build values, encoding and the server read them. Values hold no hidden state: any number of goroutines may read
// one, nobody may change one while it is being read.
//
//	conv := conversation.Conversation{Thinking: true, Messages: []conversation.Message{
//		{Role: conversation.RoleSystem, Content: "Be concise."},
//		{Role: conversation.RoleUser, Content: "Hello"},
//	}}
//	if err := conv.Validate(); err != nil { ... }
package conversation
