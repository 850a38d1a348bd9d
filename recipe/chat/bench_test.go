package chat

import (
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
)

// BenchmarkToken is the cost of one sampled token of an answer, from id to event.
func BenchmarkToken(b *testing.B) {
	r, err := Decode([]byte(with(`"stream":true,"thinking":{"type":"disabled"},"tools":[{"type":"function","function":{"name":"f"}}]`)), protocol.Options{})
	if err != nil {
		b.Fatal(err)
	}
	tok := protocoltest.Tokenizer(b, false)
	ids := tok.Encode(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 20))
	var evs []parse.Event
	var out []byte
	n := 0
	b.ReportAllocs()
	p, s := (*parse.Parser)(nil), (*Stream)(nil)
	for b.Loop() {
		if n%len(ids) == 0 {
			if p, err = parse.New(parse.Options{Parsing: r.Parsing(), Tools: parse.ToolsOf(&r.Conversation), Vocabulary: tok}); err != nil {
				b.Fatal(err)
			}
			s = NewStream(r, protocol.Header{ID: "chatcmpl-1", Model: "m"})
		}
		k := n % len(ids)
		evs, _ = p.Tokens(evs[:0], ids[k:k+1], nil)
		out = s.Events(out[:0], 0, evs, p.Usage())
		n++
	}
}
