// Package encoding renders a conversation as the prompt of a DeepSeek V4 or V4.1 checkpoint: text, token ids, and which parts of the
// text are control tokens.
//
// The main type is [Encoder], one prompt profile and one tokenizer, made by [New]; [Encode] is the short form. The server and
// `deepinfer recipe encode` call it with what recipe/chat, recipe/responses or recipe/messages decoded.
//
// A prompt is explicit control tokens and plain text. Only the template writes control tokens; a spelling of one inside a message, a
// tool definition or an argument is ordinary characters, so no client text can forge a turn, a tool block or an image.
//
// An Encoder is immutable and safe for any number of goroutines.
//
//	enc, err := encoding.New(encoding.V41Recipe, tok)
//	prompt, err := enc.Encode(&conv, encoding.Options{})
//	// prompt.Text    "<｜begin▁of▁sentence｜><｜User｜>Hello<｜Assistant｜></think>"
//	// prompt.Tokens  0, 128803, 19923, 128804, 128822
package encoding
