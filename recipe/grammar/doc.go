// Package grammar constrains what a model may write: a JSON Schema, any JSON object, a regular expression, one of a list, a grammar, or a
// whole assistant turn with tool calls. It turns such a [Spec] into masks over the vocabulary.
//
// The main types are [Vocabulary] (a tokenizer prepared once for each model), [Grammar] (a compiled Spec, shared) and [Matcher] (one choice
// of one response). The server compiles with a [Compiler] while a request is prepared; the sampler asks the Matcher for a mask before
// each token and tells it the token after.
//
//	vocab, err := grammar.NewVocabulary(tok, grammar.VocabularyOptions{Width: 129280})
//	compiler := grammar.NewCompiler(vocab, grammar.CompilerOptions{})
//
//	g, err := compiler.Compile(ctx, grammar.Spec{Kind: grammar.KindJSONSchema, Schema: schema}) // *grammar.Error: this request fails
//	m := g.Matcher()
//	for !m.Done() {
//		if !m.Dormant() {
//			m.Mask(mask)
//		}
//		id := sample(logits, mask)
//		err = m.Accept(id)
//	}
//
// A request that was preempted gets its matcher back with [Matcher.Replay]; speculative tokens are accepted one by one and taken back with
// [Matcher.Rollback].
//
// A grammar is a graph over bytes, not over tokens: rules that call each other, and between the calls automata and literals. A matcher
// holds all ways to read what was written so far, each a place in the graph and a stack of calls. What a token does inside one automaton
// does not depend on what surrounds it; those verdicts are tables, shared by all grammars of a vocabulary. Only tokens that reach beyond the end of
// an automaton are tried when a mask is made.
//
// Vocabulary, Compiler and Grammar are safe for any number of goroutines; a Matcher belongs to one. Mask allocates nothing once its
// scratch space has grown.
package grammar
