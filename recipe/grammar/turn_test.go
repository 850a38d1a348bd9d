package grammar_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/token"
)

func tool(name, parameters string, strict bool) conversation.ToolDef {
	d := conversation.ToolDef{Name: name, Strict: &strict}
	if parameters != "" {
		d.Parameters = []byte(parameters)
	}
	return d
}

const (
	weatherTool = `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7},"unit":{"enum":["c","f"]},"extra":{"type":["string","null","object"]}},"required":["city"],"additionalProperties":false}`
	call        = "<｜DSML｜ invoke name=\"weather\">\n"
	callEnd     = "\n</｜DSML｜ invoke>"
	block       = "<｜DSML｜ calls>\n"
	blockEnd    = "\n</｜DSML｜ calls>"
)

func param(key, str, value string) string {
	return `<｜DSML｜ parameter name="` + key + `" string="` + str + `">` + value + `</｜DSML｜ parameter>`
}

// follow feeds a text with control spellings as tokens; each must be allowed. It gives what was refused, "" when all fits and the turn may end.
func follow(t *testing.T, g *grammar.Grammar, tok *token.Tokenizer, text string) string {
	t.Helper()
	m := g.Matcher()
	mask := make([]uint32, g.Vocabulary().Words())
	ids := tok.EncodeSpecial(text)
	for i, id := range ids {
		dormant := m.Dormant()
		m.Mask(mask)
		err := m.Accept(id)
		if !dormant && (err == nil) != allowed(mask, id) {
			t.Fatalf("%q token %d %q: mask says %v, Accept says %v", text, i, tok.Bytes(id), allowed(mask, id), err)
		}
		if err != nil {
			return tok.Decode(ids[i:])
		}
	}
	m.Mask(mask)
	if m.CanEnd() != allowed(mask, 1) {
		t.Fatalf("%q: CanEnd says %v, the mask %v", text, m.CanEnd(), allowed(mask, 1))
	}
	if !m.CanEnd() {
		return "(the end)"
	}
	return ""
}

func TestTurns(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	strict := []conversation.ToolDef{tool("weather", weatherTool, true), tool("now", "", true)}
	loose := []conversation.ToolDef{tool("weather", weatherTool, false), tool("now", "", false)}
	required := conversation.ToolChoice{Mode: conversation.ChoiceRequired}
	weather := call + param("city", "true", "Paris, \"<b>\"\n</div> ") + "\n" + param("days", "false", "3") + callEnd
	now := "<｜DSML｜ invoke name=\"now\">\n" + callEnd
	format := conversation.ResponseFormat{Kind: conversation.FormatJSONSchema, Schema: []byte(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`), Strict: true}
	customGrammar := conversation.ToolDef{Name: "calc", Kind: conversation.ToolCustomGrammar, Grammar: &conversation.Grammar{Syntax: "lark", Definition: "start: NUM (OP NUM)*\nNUM: /[0-9]+/\nOP: \"+\" | \"-\"\n"}}
	customRegex := conversation.ToolDef{Name: "code", Kind: conversation.ToolCustomGrammar, Grammar: &conversation.Grammar{Syntax: "regex", Definition: `[A-Z]{3}`}}
	customText := conversation.ToolDef{Name: "patch", Kind: conversation.ToolCustomText}
	for _, c := range []struct {
		name string
		turn grammar.Turn
		yes  []string
		no   map[string]string // text to the start of what is refused
	}{
		{"auto", grammar.Turn{Tools: strict},
			[]string{"", "Hello < world </b> and more.", "Let me look.\n\n" + block + weather + blockEnd, "\n\n" + block + now + "\n" + weather + blockEnd, "the mark ｜DSML｜ in prose", block + now + blockEnd},
			map[string]string{
				"\n\n<｜DSML｜ cals>":                                                                      "als",
				block + "<｜DSML｜ invoke name=\"wether\"":                                                 "",
				block + call + param("town", "true", "x"):                                                "",
				block + call + param("days", "false", "3"):                                               "",
				block + call + param("city", "false", `"x"`):                                             "",
				block + call + param("city", "true", "x") + "\n" + param("days", "false", "9") + callEnd: "",
				block + call + callEnd:                                                                   "",
				block + now + blockEnd + " more text":                                                    " more",
				block + blockEnd:                                                                         "",
			}},
		{"unions of strings and others", grammar.Turn{Tools: strict},
			[]string{block + call + param("city", "true", "x") + "\n" + param("unit", "true", "c") + "\n" + param("extra", "true", "raw") + callEnd + blockEnd,
				block + call + param("city", "true", "") + "\n" + param("extra", "false", "null") + callEnd + blockEnd,
				block + call + param("city", "true", "x") + "\n" + param("extra", "false", `{"k": "v"}`) + callEnd + blockEnd},
			map[string]string{block + call + param("city", "true", "x") + "\n" + param("unit", "true", "k"): "k",
				block + call + param("city", "true", "x") + "\n" + param("extra", "false", "1"): "1"}},
		{"loose tools take any parameters", grammar.Turn{Tools: loose},
			[]string{"text", block + call + param("town", "true", "x") + "\n" + param("n", "false", `[1, {"a": null}]`) + callEnd + blockEnd, block + call + callEnd + blockEnd},
			map[string]string{block + "<｜DSML｜ invoke name=\"other\">": "", block + call + param("n", "false", `[1,`): ""}},
		{"required, thinking", grammar.Turn{Tools: strict, Choice: required, Thinking: true},
			[]string{"I think.\nIndeed</think>\n\n" + block + weather + blockEnd, "</think>\n\n" + block + now + blockEnd, "hm " + block + now + blockEnd},
			map[string]string{"thought": "(the end)", "thought</think>Hello": "Hello", "thought</think>\n\n<b>": ""}},
		{"required, opener in the prompt", grammar.Turn{Tools: strict, Choice: required, InBlock: true},
			[]string{weather + blockEnd, now + "\n" + now + blockEnd}, map[string]string{"Hello": "Hello", "\n\n" + block: "\n\n"}},
		{"one call", grammar.Turn{Tools: strict, Choice: required, InBlock: true, NoParallel: true}, []string{now + blockEnd}, map[string]string{now + "\n" + now: ""}},
		{"named", grammar.Turn{Tools: strict, Choice: conversation.ToolChoice{Mode: conversation.ChoiceNamed, Name: "now"}, InBlock: true}, []string{now + blockEnd}, map[string]string{weather: "", "<｜DSML｜ invoke name=\"now\">\n" + param("x", "true", "y"): ""}},
		{"allowed tools", grammar.Turn{Tools: strict, Choice: conversation.ToolChoice{Allowed: []string{"now"}}}, []string{block + now + blockEnd}, map[string]string{block + weather: ""}},
		{"format and thinking", grammar.Turn{Format: format, Thinking: true},
			[]string{"Let me think {\"a\": \"free\"} …</think>{\"a\": 1}", "mark <｜DSML｜ in thought</think>{\"a\": 1}"},
			map[string]string{"x</think>\n\n{": "\n\n", "x</think>{\"a\": \"": " \"", "only thought": "(the end)", "x<｜User｜>": "<｜User｜>"}},
		{"format without thinking", grammar.Turn{Format: format}, []string{`{"a": 12}`}, map[string]string{"Sure": "Sure", "": "(the end)"}},
		{"format and tools", grammar.Turn{Format: format, Tools: strict, Thinking: true},
			[]string{"t</think>{\"a\": 1}", "t</think>\n\n" + block + now + blockEnd, "t <" + strings.TrimPrefix(block, "<") + now + blockEnd},
			map[string]string{"t</think>Hello": "Hello", "t</think>\n\n{": "{"}},
		{"choice none", grammar.Turn{Tools: strict, Choice: conversation.ToolChoice{Mode: conversation.ChoiceNone}}, []string{"text <｜DSML｜ anything"}, nil},
		{"custom lark", grammar.Turn{Tools: []conversation.ToolDef{customGrammar}},
			[]string{block + "<｜DSML｜ invoke name=\"calc\">\n" + param("input", "true", "12+3-4") + callEnd + blockEnd},
			map[string]string{block + "<｜DSML｜ invoke name=\"calc\">\n" + param("input", "true", "12*3"): "*", block + "<｜DSML｜ invoke name=\"calc\">\n" + callEnd: ""}},
		{"custom regex", grammar.Turn{Tools: []conversation.ToolDef{customRegex}},
			[]string{block + "<｜DSML｜ invoke name=\"code\">\n" + param("input", "true", "ABC") + callEnd + blockEnd},
			map[string]string{block + "<｜DSML｜ invoke name=\"code\">\n" + param("input", "true", "ABc"): ""}},
		{"custom text", grammar.Turn{Tools: []conversation.ToolDef{customText}},
			[]string{block + "<｜DSML｜ invoke name=\"patch\">\n" + param("input", "true", "*** Begin\n</x> < 😀\n") + callEnd + blockEnd}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := compile(t, v, grammar.Spec{Kind: grammar.KindTurn, Turn: &c.turn})
			for _, text := range c.yes {
				if at := follow(t, g, tok, text); at != "" {
					t.Errorf("%q is refused at %q", text, at)
				}
			}
			for text, want := range c.no {
				at := follow(t, g, tok, text)
				if at == "" || !strings.HasPrefix(at, want) {
					t.Errorf("%q: refused at %q, want %q", text, at, want)
				}
			}
		})
	}
}

func TestTheV4MarkupHasNoSpaces(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	g := compile(t, v, grammar.Spec{Kind: grammar.KindTurn, Turn: &grammar.Turn{V4: true, Tools: []conversation.ToolDef{tool("now", "", true)}}})
	for _, text := range []string{
		"\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
		"\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
	} {
		if at := follow(t, g, tok, text); at != "" {
			t.Errorf("%q is refused at %q", text, at)
		}
	}
	if at := follow(t, g, tok, "\n\n<｜DSML｜ calls>"); !strings.HasPrefix(at, " calls") {
		t.Errorf("the V4.1 opener is refused at %q", at)
	}
}

// Whatever a model writes under the structural grammar, the output parser finds calls of declared tools whose arguments satisfy the schema.
func TestRandomTurnsParse(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	tools := []conversation.ToolDef{tool("weather", weatherTool, true), tool("now", "", true), tool("any", `{"type":"object"}`, false)}
	turn := grammar.Turn{Tools: tools, Choice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, InBlock: true}
	g := compile(t, v, grammar.Spec{Kind: grammar.KindTurn, Turn: &turn})
	weather := decodeSchema([]byte(weatherTool))
	r := rand.New(rand.NewPCG(*seed, 2))
	done := 0
	for range 60 {
		m := g.Matcher()
		ids, ok := walk(t, m, tok, r, 400)
		if !ok {
			continue
		}
		done++
		p, err := parse.New(parse.Options{Parsing: conversation.Parsing{ToolCalls: true, StartsInCalls: true}, Vocabulary: tok,
			Tools: []parse.Tool{{Name: "weather", Parameters: []byte(weatherTool)}, {Name: "now"}, {Name: "any"}}})
		if err != nil {
			t.Fatal(err)
		}
		events, err := p.Tokens(nil, ids, nil)
		if err != nil {
			t.Fatal(err)
		}
		events = p.Finish(events, parse.CauseStop)
		calls := 0
		for _, e := range events {
			if e.Kind != parse.ToolEnd {
				continue
			}
			calls++
			if len(e.Call.Warnings) > 0 && e.Call.Name != "any" {
				t.Errorf("%q: %v", tok.Decode(ids), e.Call.Warnings)
			}
			if e.Call.Name == "weather" {
				if err := validate(weather, e.Call.Arguments); err != nil {
					t.Errorf("%q: arguments %s: %v", tok.Decode(ids), e.Call.Arguments, err)
				}
			}
		}
		if calls == 0 {
			t.Errorf("%q has no call", tok.Decode(ids))
		}
	}
	if done < 10 {
		t.Errorf("only %d walks ended", done)
	}
	t.Logf("%d turns", done)
}

func TestThinkingIsFreeThenJSONIsForced(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	spec := schema(`{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`)
	spec.Activation = grammar.Activation{Thinking: true, ThinkingBound: 10}
	g := compile(t, v, spec)
	if at := follow(t, g, tok, `Hm, "x"?</think>{"a": 5}`); at != "" {
		t.Errorf("refused at %q", at)
	}
	m := g.Matcher()
	mask := make([]uint32, v.Words())
	word := tok.Encode(" so")[0]
	for i := range 10 {
		if n := m.Mask(mask); n < 120_000 || allowed(mask, 1) {
			t.Fatalf("token %d of the thinking part: %d ids allowed, the end %v", i, n, allowed(mask, 1))
		}
		if err := m.Accept(word); err != nil {
			t.Fatal(err)
		}
	}
	end := v.Control().EndThink
	if n := m.Mask(mask); n != 1 || !allowed(mask, end) {
		t.Fatalf("at the bound %d ids are allowed, </think> %v", n, allowed(mask, end))
	}
	if f := m.Forced(); len(f) != 1 || f[0] != end {
		t.Errorf("forced %v", f)
	}
	if err := m.Accept(word); err == nil {
		t.Error("thinking goes on beyond the bound")
	}
	if err := m.Accept(end); err != nil {
		t.Fatal(err)
	}
	if got := string(m.ForcedBytes(100)); got != `{"a": ` {
		t.Errorf("after thinking %q is forced", got)
	}
}

func TestATriggerActivates(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	spec := schema(`{"type":"array","items":{"type":"integer"}}`)
	spec.Activation = grammar.Activation{Trigger: "```json\n"}
	g := compile(t, v, spec)
	for text, want := range map[string]string{
		"Here: ```json\n[1, 2]":          "",
		"``` ```js ```json\n[]":          "",
		"{\"free\"} ````json\n[3]":       "",
		"no trigger":                     "(the end)",
		"```json\n{\"a\": 1}":            "",
		"```json\n[1] and more":          " and",
		"x</think>```json\n[1]":          "</think>",
		"日本 \xf0\x9f\x98\x80```json\n[]": "",
	} {
		at := follow(t, g, tok, text)
		switch {
		case text == "```json\n{\"a\": 1}":
			if at == "" {
				t.Errorf("%q is allowed", text)
			}
		case want == "" && at != "" || want != "" && !strings.HasPrefix(at, want):
			t.Errorf("%q: refused at %q, want %q", text, at, want)
		}
	}

	spec.Activation = grammar.Activation{Trigger: "Answer: ", TriggerBound: 6, Optional: true}
	g = compile(t, v, spec)
	if at := follow(t, g, tok, "Just text."); at != "" {
		t.Errorf("text without the trigger is refused at %q", at)
	}
	m := g.Matcher()
	for _, id := range tok.Encode("one two three four five An")[:6] {
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(m.ForcedBytes(100)); got != "swer: [" && got != "Answer: [" {
		t.Errorf("at the bound %q is forced", got)
	}
	if m.CanEnd() {
		t.Error("the text may end although the trigger is due")
	}
}

func TestTurnOf(t *testing.T) {
	budget := int64(100)
	c := conversation.Conversation{Thinking: true, Tools: []conversation.ToolDef{tool("now", "", true)}, ToolChoice: conversation.ToolChoice{Mode: conversation.ChoiceRequired},
		Messages: []conversation.Message{{Role: conversation.RoleUser, Content: "x"}}}
	turn := grammar.TurnOf(&c, &conversation.Params{NoParallelTools: true, ThinkingBudget: &budget}, false)
	if !turn.Thinking || turn.InBlock || !turn.NoParallel || turn.ThinkingBound != 100 || !turn.Constrains() {
		t.Errorf("thinking: %+v", turn)
	}
	c.Thinking = false
	if turn = grammar.TurnOf(&c, &conversation.Params{}, false); turn.Thinking || !turn.InBlock {
		t.Errorf("not thinking: %+v", turn)
	}
	c.Tools = nil
	if turn = grammar.TurnOf(&c, &conversation.Params{}, false); turn.Constrains() {
		t.Error("free text is constrained")
	}
	v, _ := vocabulary(t, "v4.1")
	var e *grammar.Error
	if _, err := grammar.Compile(t.Context(), grammar.Spec{Kind: grammar.KindTurn, Turn: &turn}, v); !errors.As(err, &e) || e.Kind != grammar.Unsatisfiable {
		t.Errorf("a required call without tools: %v", err)
	}
}
