// Package token is a byte-exact tokenizer for DeepSeek V4 and V4.1: byte-level BPE read from the tokenizer.json of a model release.
//
// The main type is [Tokenizer], made by [Load] or [Parse]. recipe/encoding, the engine and the command line use it. It gives the ids
// that the Hugging Face tokenizers library gives for the same file, without a regular-expression engine: the pre-tokenizer is a
// hand-written scanner, the merges live in one flat hash table, and the cost of any input is O(n log n).
//
// A Tokenizer is immutable and safe for any number of goroutines. A [Stream] belongs to one goroutine.
//
//	t, err := token.Load("model/tokenizer.json")
//	ids := t.Encode("Hello, world!")      // plain text: "<think>" in it is seven characters
//	ids = t.EncodeSpecial("<think>Hi")    // spellings of added tokens become those tokens
//	s := token.NewStream(t)
//	for _, id := range ids { fmt.Print(s.Push(id)) } // never half a character
//	fmt.Print(s.Flush())
package token
