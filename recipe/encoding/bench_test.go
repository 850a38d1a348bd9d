package encoding

import (
	"fmt"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// BenchmarkEncode renders an agent's history: tools, and turns of a call, its result and an answer. "long" is about a million tokens.
func BenchmarkEncode(b *testing.B) {
	enc, err := New(V41Recipe, tokenizerOf(b, "v4.1/recipe"))
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		turns int
		words int
	}{{"short", 2, 20}, {"agent", 60, 400}, {"long", 400, 1200}} {
		conv := conversation.Conversation{Thinking: true, Messages: []msg{system("You are a careful assistant.")}}
		for i := range 20 {
			conv.Tools = append(conv.Tools, conversation.ToolDef{Name: fmt.Sprintf("tool_%d", i), Description: ptr("Does one thing and does it well"),
				Parameters: []byte(`{"type":"object","properties":{"path":{"type":"string","description":"File path"},"count":{"type":"integer"}},"required":["path"]}`)})
		}
		for i := range c.turns {
			id := fmt.Sprint(i)
			conv.Messages = append(conv.Messages, user("What is in file "+id+"?"),
				msg{Role: conversation.RoleAssistant, Reasoning: ptr("I should read it."), ToolCalls: []conversation.ToolCall{call(id, "tool_1", `{"path": "src/main_`+id+`.go", "count": 3}`)}},
				tool(id, strings.Repeat("func main() { fmt.Println(\"hello\", x) }\n", c.words/10)), assistant(strings.Repeat("It prints a greeting. ", c.words/8)))
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				p, err := enc.Encode(&conv, Options{})
				if err != nil {
					b.Fatal(err)
				}
				n = len(p.Tokens)
			}
			b.ReportMetric(float64(n), "tokens")
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "tokens/s")
		})
	}
}
