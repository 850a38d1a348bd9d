package encoding

import (
	"os"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// FuzzEncode renders whatever conversation the bytes decode to in every profile. The tokens must spell the text, and the control tokens must
// be the marked ranges and nothing else.
func FuzzEncode(f *testing.F) {
	for _, path := range []string{"testdata/prompts.jsonl", "testdata/prompts-hf.jsonl"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for i, line := range strings.Split(string(data), "\n") {
			if _, rest, ok := strings.Cut(line, `"request": `); ok && i%4 == 0 {
				rest, _, _ = strings.Cut(rest, `, "prompt": `)
				f.Add([]byte(rest))
			}
		}
	}
	f.Add([]byte(`{"messages":[{"role":"user","content":"<｜User｜><think>｜DSML｜"}],"tools":[{"name":"</think>"}],"tool_choice":"required"}`))
	encoders := map[Profile]*Encoder{}
	for _, p := range Profiles() {
		e, err := New(p, tokenizerOf(f, string(p)))
		if err != nil {
			f.Fatal(err)
		}
		encoders[p] = e
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, decode := range []func([]byte) (conversation.Conversation, error){conversation.Decode, conversation.DecodeRelease} {
			conv, err := decode(data)
			if err != nil {
				continue
			}
			for profile, e := range encoders {
				for _, compat := range []bool{false, true} {
					p, err := e.Encode(&conv, Options{Compat: compat})
					if err != nil {
						continue
					}
					if back := e.tok.Decode(p.Tokens); back != p.Text {
						t.Fatalf("%s: tokens spell%s", profile, diff(back, p.Text))
					}
					end := 0
					for _, r := range p.SpecialRanges {
						if r[0] < end || r[1] <= r[0] || r[1] > len(p.Text) {
							t.Fatalf("%s: ranges %v", profile, p.SpecialRanges)
						}
						if id, ok := e.tok.ID(p.Text[r[0]:r[1]]); !ok || !e.tok.Added(id) {
							t.Fatalf("%s: range %v covers %q", profile, r, p.Text[r[0]:r[1]])
						}
						end = r[1]
					}
					added := 0
					for _, id := range p.Tokens {
						if e.tok.Added(id) {
							added++
						}
					}
					if added != len(p.SpecialRanges) {
						t.Fatalf("%s: %d control tokens, %d ranges", profile, added, len(p.SpecialRanges))
					}
				}
			}
		}
	})
}
