package encoding

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

const (
	bos  = "<｜begin▁of▁sentence｜>"
	eos  = "<｜end▁of▁sentence｜>"
	sys  = "<｜System｜>"
	usr  = "<｜User｜>"
	asst = "<｜Assistant｜>"
)

func line(n int) string {
	return fmt.Sprintf("Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n", n)
}

func ptr[T any](v T) *T { return &v }

type msg = conversation.Message

func user(s string) msg      { return msg{Role: conversation.RoleUser, Content: s} }
func system(s string) msg    { return msg{Role: conversation.RoleSystem, Content: s} }
func assistant(s string) msg { return msg{Role: conversation.RoleAssistant, Content: s} }
func reminder(s string) msg  { return msg{Role: conversation.RoleReminder, Content: s} }
func tool(id, s string) msg {
	return msg{Role: conversation.RoleTool, ToolCallID: id, Content: s}
}
func thought(r, s string) msg {
	return msg{Role: conversation.RoleAssistant, Content: s, Reasoning: &r}
}
func call(id, name, args string) conversation.ToolCall {
	return conversation.ToolCall{ID: id, Name: name, Arguments: args}
}

func render(t *testing.T, profile Profile, conv conversation.Conversation, opts Options) *Prompt {
	t.Helper()
	opts.Profile = profile
	p, err := Encode(&conv, tokenizerOf(t, string(profile)), opts)
	if err != nil {
		t.Fatalf("%s: %v", profile, err)
	}
	return p
}

// The demo model renders the reasoning of every earlier turn; with that one switch our prompts are the recorded ones.
func TestDemoPromptsHaveTheRecordedIDs(t *testing.T) {
	tok := tokentest.Load(t, "demo")
	enc, err := New(V41Recipe, tok)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(tokentest.Path("testdata", "demo", "golden.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	n := 0
	for s.Scan() {
		var c struct {
			ID       string
			Messages []struct {
				Role, Content string
				Reasoning     *string
				ToolCalls     []struct {
					Name      string
					Arguments json.RawMessage
				} `json:"tool_calls"`
			}
			Tools []struct {
				Name        string
				Description *string
				Parameters  json.RawMessage
			}
			Thinking       bool
			Effort         int
			ResponseFormat *struct{ Type string } `json:"response_format"`
			IDs            []int32
		}
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatal(err)
		}
		n++
		conv := conversation.Conversation{Thinking: c.Thinking, Effort: conversation.Effort{Numeric: c.Effort}, KeepReasoning: true}
		for _, m := range c.Messages {
			role, _ := conversation.ParseRole(m.Role)
			out := msg{Role: role, Content: m.Content, Reasoning: m.Reasoning}
			for _, tc := range m.ToolCalls {
				out.ToolCalls = append(out.ToolCalls, call("", tc.Name, string(tc.Arguments)))
			}
			conv.Messages = append(conv.Messages, out)
		}
		for _, tl := range c.Tools {
			conv.Tools = append(conv.Tools, conversation.ToolDef{Name: tl.Name, Description: tl.Description, Parameters: tl.Parameters})
		}
		if c.ResponseFormat != nil {
			conv.ResponseFormat.Kind = conversation.FormatJSONObject
		}
		p, err := enc.Encode(&conv, Options{})
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
		} else if !reflect.DeepEqual(p.Tokens, c.IDs) {
			t.Errorf("%s: text%s", c.ID, diff(p.Text, tok.Decode(c.IDs)))
		}
	}
	if n != 40 {
		t.Errorf("%d prompts, want 40", n)
	}
}

func TestWorkedExamples(t *testing.T) {
	twoPlusTwo := user("What is 2+2?")
	four := thought("Add two and two.", "4")
	for _, c := range []struct {
		name    string
		profile Profile
		conv    conversation.Conversation
		want    string
	}{
		{"E1 user, thinking", V41Recipe, conversation.Conversation{Thinking: true, Messages: []msg{user("Hello")}},
			bos + sys + line(75) + usr + "Hello" + asst + "<think>"},
		{"E2 the same on V4", V4Recipe, conversation.Conversation{Thinking: true, Messages: []msg{user("Hello")}},
			bos + effortA + usr + "Hello" + asst + "<think>"},
		{"E3 system, thinking off", V41Recipe, conversation.Conversation{Messages: []msg{system("You are helpful."), user("Hello")}},
			bos + sys + "You are helpful." + usr + "Hello" + asst + "</think>"},
		{"E4 the same on V4", V4Recipe, conversation.Conversation{Messages: []msg{system("You are helpful."), user("Hello")}},
			bos + "You are helpful." + usr + "Hello" + asst + "</think>"},
		{"E5 effort max", V41Recipe, conversation.Conversation{Thinking: true, Effort: conversation.Effort{Level: conversation.EffortMax}, Messages: []msg{system("sys"), user("Hi")}},
			bos + sys + line(100) + "sys" + usr + "Hi" + asst + "<think>"},
		{"E14 instructions and a call, no tools", V41Recipe, conversation.Conversation{Thinking: true, Messages: []msg{system("Be concise."), user("Hi"),
			{Role: conversation.RoleAssistant, ToolCalls: []conversation.ToolCall{call("call_1", "get_weather", `{"location": "Paris"}`)}}, tool("call_1", "20C")}},
			bos + sys + line(75) + "Be concise." + usr + "Hi" + asst + "</think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"get_weather\">\n<｜DSML｜ parameter name=\"location\" string=\"true\">Paris</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>" +
				eos + usr + "<tool_result>20C</tool_result>" + asst + "<think>"},
		{"E15 json object", V41Recipe, conversation.Conversation{Thinking: true, ResponseFormat: conversation.ResponseFormat{Kind: conversation.FormatJSONObject}, Messages: []msg{system("Answer with json."), user("Give me a number")}},
			bos + sys + line(75) + "Answer with json.\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n{\"type\": \"json_object\"}" + usr + "Give me a number" + asst + "<think>"},
		{"E16 reminder", V41Recipe, conversation.Conversation{Thinking: true, Messages: []msg{user("x"), assistant("y"), reminder("Be brief.")}},
			bos + sys + line(75) + usr + "x" + asst + "</think>y" + eos + "<｜latest_reminder｜>Be brief." + asst + "<think>"},
		{"E17 images", V41Recipe, conversation.Conversation{Images: make([]conversation.Image, 2), Messages: []msg{{Role: conversation.RoleUser,
			Parts: conversation.JoinBlocks([]conversation.Part{conversation.TextPart("What is this?"), conversation.ImagePart(0), conversation.ImagePart(1)})}}},
			bos + usr + "What is this?\n\n<｜image｜>\n\n<｜image｜>" + asst + "</think>"},
		{"E31 system in the middle, V4", V4Recipe, conversation.Conversation{Messages: []msg{user("a"), assistant("b"), system("mid"), user("next")}},
			bos + "mid" + usr + "a" + asst + "</think>b" + eos + usr + "next" + asst + "</think>"},
		{"E31 system in the middle, V4.1", V41Recipe, conversation.Conversation{Messages: []msg{user("a"), assistant("b"), system("mid"), user("next")}},
			bos + usr + "a" + asst + "</think>b" + eos + sys + "mid" + usr + "next" + asst + "</think>"},
		{"E32 assistant first", V41Recipe, conversation.Conversation{Thinking: true, Messages: []msg{assistant("hi"), user("q")}},
			bos + sys + line(75) + asst + "</think>hi" + eos + usr + "q" + asst + "<think>"},

		{"E19 basic", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo}}, bos + usr + "What is 2+2?" + asst + "</think>"},
		{"E19 multi_turn", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo, four, user("And +1?")}},
			bos + usr + "What is 2+2?" + asst + "</think>4" + eos + usr + "And +1?" + asst + "</think>"},
		{"E19 mid_system", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo, assistant("4"), system("Now use French.")}},
			bos + usr + "What is 2+2?" + asst + "</think>4" + eos + sys + "Now use French." + asst + "</think>"},
		{"E19 mid_system_answer", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo, assistant("4"), system("Now use French."), assistant("D accord.")}},
			bos + usr + "What is 2+2?" + asst + "</think>4" + eos + sys + "Now use French." + asst + "</think>D accord." + eos},
		{"E19 thinking_system_low", V41HF, conversation.Conversation{Thinking: true, Effort: conversation.Effort{Level: conversation.EffortLow}, Messages: []msg{system("Be concise."), twoPlusTwo}},
			bos + sys + line(50) + "Be concise." + usr + "What is 2+2?" + asst + "<think>"},
		{"E19 thinking_numeric", V41HF, conversation.Conversation{Thinking: true, Effort: conversation.Effort{Numeric: 64}, Messages: []msg{twoPlusTwo}},
			bos + sys + line(64) + usr + "What is 2+2?" + asst + "<think>"},
		{"E19 thinking_max", V41HF, conversation.Conversation{Thinking: true, Effort: conversation.Effort{Level: conversation.EffortMax}, Messages: []msg{twoPlusTwo}},
			bos + sys + line(100) + usr + "What is 2+2?" + asst + "<think>"},
		{"E19 thinking_drop_old", V41HF, conversation.Conversation{Thinking: true, Messages: []msg{twoPlusTwo, four, user("Why?")}},
			bos + sys + line(75) + usr + "What is 2+2?" + asst + "</think>4" + eos + usr + "Why?" + asst + "<think>"},
		{"E19 thinking_retain_old", V41HF, conversation.Conversation{Thinking: true, KeepReasoning: true, Messages: []msg{twoPlusTwo, four, user("Why?")}},
			bos + sys + line(75) + usr + "What is 2+2?" + asst + "<think>Add two and two.</think>4" + eos + usr + "Why?" + asst + "<think>"},
		{"E19 thinking_final_answer", V41HF, conversation.Conversation{Thinking: true, Messages: []msg{twoPlusTwo, four}},
			bos + sys + line(75) + usr + "What is 2+2?" + asst + "<think>Add two and two.</think>4" + eos},
		{"E19 reminder", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo, reminder("Today is Friday.")}},
			bos + usr + "What is 2+2?" + asst + "</think><｜latest_reminder｜>Today is Friday."},
		{"E19 without_eos", V41HF, conversation.Conversation{Messages: []msg{twoPlusTwo, {Role: conversation.RoleAssistant, Content: "4", Prefix: true}}},
			bos + usr + "What is 2+2?" + asst + "</think>4"},
		{"E19 system_only", V41HF, conversation.Conversation{Messages: []msg{system("Be concise.")}}, bos + sys + "Be concise."},
		{"E19 multiple_systems", V41HF, conversation.Conversation{Messages: []msg{system("Be concise."), system("Also be precise."), twoPlusTwo}},
			bos + sys + "Be concise." + sys + "Also be precise." + usr + "What is 2+2?" + asst + "</think>"},
		{"E19 adjacent_users", V41HF, conversation.Conversation{Messages: []msg{user("A"), user("B")}}, bos + usr + "A\n\nB" + asst + "</think>"},
		{"E19 adjacent_users_thinking", V41HF, conversation.Conversation{Thinking: true, Messages: []msg{user("A"), user(""), user("B")}},
			bos + sys + line(75) + usr + "A\n\n\n\nB" + asst + "<think>"},
		{"adjacent users, V4.1", V41Recipe, conversation.Conversation{Messages: []msg{user("A"), user(""), user("B")}}, bos + usr + "A\n\n\n\nB" + asst + "</think>"},
		{"adjacent users, V4", V4Recipe, conversation.Conversation{Messages: []msg{user("A"), user(""), user("B")}}, bos + usr + "A\n\nB" + asst + "</think>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if p := render(t, c.profile, c.conv, Options{}); p.Text != c.want {
				t.Errorf("text%s", diff(p.Text, c.want))
			}
		})
	}
}

// Public report ggml-org/llama.cpp#26398: one effort table for two V4 checkpoints.
func TestEffortTextsBelongToTheCheckpoint(t *testing.T) {
	max := conversation.Conversation{Thinking: true, Effort: conversation.Effort{Level: conversation.EffortMax}, Messages: []msg{user("Hi")}}
	if p := render(t, V4HFPreview, max, Options{}); p.Text != bos+effortA+usr+"Hi"+asst+"<think>" {
		t.Errorf("preview: %q", p.Text)
	}
	if p := render(t, V4HF0731, max, Options{}); p.Text != bos+effortB+usr+"Hi"+asst+"<think>" {
		t.Errorf("0731: %q", p.Text)
	}
	for _, c := range []struct {
		profile Profile
		effort  conversation.Effort
	}{{V4HFPreview, conversation.Effort{Level: "low"}}, {V4HFPreview, conversation.Effort{Level: "xhigh"}}, {V41HF, conversation.Effort{Level: "xhigh"}},
		{V4Recipe, conversation.Effort{Numeric: 64}}, {V41Recipe, conversation.Effort{Numeric: 101}}} {
		conv := conversation.Conversation{Thinking: true, Effort: c.effort, Messages: []msg{user("Hi")}}
		if p, err := Encode(&conv, tokenizerOf(t, string(c.profile)), Options{Profile: c.profile}); err == nil {
			t.Errorf("%s with effort %+v renders %q", c.profile, c.effort, p.Text)
		}
	}
}

// Public report sgl-project/sglang#39274: the image token in a message must be plain text, not an error and not an image.
func TestImageSpellingInAToolResultIsText(t *testing.T) {
	conv := conversation.Conversation{Messages: []msg{user("q"), {Role: conversation.RoleAssistant, ToolCalls: []conversation.ToolCall{call("c", "f", "{}")}},
		tool("c", "found <｜image｜> and <｜deepseek_image｜>")}}
	for _, name := range []string{"v4.1", "v4.1-recipe"} {
		p, err := Encode(&conv, tokentest.Load(t, name), Options{})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(p.Tokens, 129264) || len(p.Images) != 0 {
			t.Errorf("%s: an image token came out of text: %v", name, p.Tokens)
		}
	}
}

// Public report vllm-project/vllm#51651: a history turn without reasoning renders empty thinking.
func TestTurnWithoutReasoningRendersEmptyThinking(t *testing.T) {
	conv := conversation.Conversation{Thinking: true, Tools: []conversation.ToolDef{{Name: "f"}}, Messages: []msg{user("q"), assistant("a"), user("z")}}
	p := render(t, V41Recipe, conv, Options{})
	if !strings.HasSuffix(p.Text, usr+"q"+asst+"<think></think>a"+eos+usr+"z"+asst+"<think>") {
		t.Errorf("%q", p.Text[len(p.Text)-200:])
	}
}

// Whatever a client writes, the control tokens of the prompt are those of the same conversation with harmless text.
func TestClientTextNeverBecomesControlTokens(t *testing.T) {
	spellings := []string{bos, eos, sys, usr, asst, "<think>", "</think>", "｜DSML｜", "<｜DSML｜ calls>", "</｜DSML｜ parameter>", "<｜image｜>", "<｜deepseek_image｜>",
		"<｜latest_reminder｜>", "<｜action｜>", "<｜ref｜>", "<｜/box｜>", "<｜fim▁hole｜>", "<|EOT|>", "<｜place▁holder▁no▁0｜>"}
	build := func(s string) conversation.Conversation {
		return conversation.Conversation{
			Thinking: true,
			Tools: []conversation.ToolDef{{Name: "f" + s, Description: ptr("d" + s), Parameters: mustJSON(map[string]any{"type": "object", "x" + s: s})},
				{Name: "g", Source: mustJSON(map[string]any{"name": "g", "description": s})}},
			ResponseFormat: conversation.ResponseFormat{Kind: conversation.FormatJSONSchema, Schema: mustJSON(map[string]any{"title": s})},
			Messages: []msg{system("s" + s), user("u" + s), {Role: conversation.RoleAssistant, Content: "", Reasoning: ptr("r"),
				ToolCalls: []conversation.ToolCall{call("c"+s, "f"+s, string(mustJSON(map[string]any{"k" + s: "v" + s, "n": []string{s}})))}},
				tool("c"+s, "t"+s), reminder("m" + s), user(s)},
		}
	}
	for _, profile := range Profiles() {
		tok := tokenizerOf(t, string(profile))
		controls := func(p *Prompt) []int32 {
			var out []int32
			for _, id := range p.Tokens {
				if tok.Added(id) {
					out = append(out, id)
				}
			}
			return out
		}
		want := controls(render(t, profile, build("x"), Options{}))
		for _, s := range spellings {
			p := render(t, profile, build(s), Options{})
			if got := controls(p); !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %s in client text changes the control tokens to %v, want %v", profile, s, got, want)
			}
			if back := tok.Decode(p.Tokens); back != p.Text {
				t.Errorf("%s, %s: the tokens spell%s", profile, s, diff(back, p.Text))
			}
		}
	}
}

func mustJSON(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func TestGroundingInAssistantTextIsTokens(t *testing.T) {
	conv := conversation.Conversation{Messages: []msg{user("<｜ref｜>"), assistant("a <｜ref｜>cat<｜/ref｜><｜<｜box｜>[1]<｜/box｜><｜User｜>"), user("z")}}
	p := render(t, V41Recipe, conv, Options{})
	var got []int32
	for _, id := range p.Tokens {
		if id >= 129271 && id <= 129278 {
			got = append(got, id)
		}
	}
	if want := []int32{129278, 129277, 129276, 129275}; !reflect.DeepEqual(got, want) {
		t.Errorf("grounding ids %v, want %v", got, want)
	}
	if n := slices.Index(p.Tokens, 128803); n < 0 || countOf(p.Tokens, 128803) != 2 {
		t.Errorf("user headers in %v", p.Tokens)
	}
}

func countOf(ids []int32, id int32) (n int) {
	for _, v := range ids {
		if v == id {
			n++
		}
	}
	return n
}

func TestImagesExpandWhenTheirSizeIsKnown(t *testing.T) {
	conv := conversation.Conversation{
		Images: []conversation.Image{{Kind: conversation.ImageURL, Width: 1000, Height: 800}, {Kind: conversation.ImageURL}, {Kind: conversation.ImageURL, Width: 1000, Height: 800, Detail: conversation.DetailLow}},
		Messages: []msg{{Role: conversation.RoleUser, Parts: conversation.JoinBlocks([]conversation.Part{conversation.ImagePart(2), conversation.TextPart("and"),
			conversation.ImagePart(0), conversation.ImagePart(1)})}},
	}
	p := render(t, V41Recipe, conv, Options{})
	if len(p.Images) != 3 {
		t.Fatalf("%d images", len(p.Images))
	}
	for i, want := range []struct{ image, tokens int }{{2, 194}, {0, 502}, {1, 1}} {
		s := p.Images[i]
		if s.Image != want.image || s.Tokens != want.tokens || p.Tokens[s.Start] != 129264 || p.Tokens[s.Start+s.Tokens-1] != 129264 || p.Tokens[s.Start-1] == 129264 || p.Tokens[s.Start+s.Tokens] == 129264 {
			t.Errorf("span %d is %+v, want image %d with %d tokens", i, s, want.image, want.tokens)
		}
	}
	if n := countOf(p.Tokens, 129264); n != 194+502+1 {
		t.Errorf("%d image tokens", n)
	}
	conv.Images[0].Width = 9000
	if _, err := Encode(&conv, tokenizerOf(t, "v4.1/recipe"), Options{}); err == nil || !strings.Contains(err.Error(), "9000x800") {
		t.Errorf("image too large: %v", err)
	}
}

func TestHardenedRenderingDiffersWhereSaid(t *testing.T) {
	tools := []conversation.ToolDef{{Name: "f"}}
	for _, c := range []struct {
		name             string
		profile          Profile
		conv             conversation.Conversation
		compat, hardened string // end of the text; "" is an error
	}{
		{"adjacent reminders", V41Recipe, conversation.Conversation{Messages: []msg{reminder("a"), reminder("b")}},
			"<｜latest_reminder｜>a" + asst + "</think>", "<｜latest_reminder｜>a\n\nb" + asst + "</think>"},
		{"forced call with thinking", V41Recipe, conversation.Conversation{Thinking: true, Tools: tools, ToolChoice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, Messages: []msg{user("q")}},
			asst + "<think>\n\n<｜DSML｜ calls>\n", usr + "q" + asst + "<think>"},
		{"forced call without thinking is the same", V41Recipe, conversation.Conversation{Tools: tools, ToolChoice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, Messages: []msg{user("q")}},
			asst + "</think>\n\n<｜DSML｜ calls>\n", asst + "</think>\n\n<｜DSML｜ calls>\n"},
		{"prefix in the middle", V41Recipe, conversation.Conversation{Messages: []msg{{Role: conversation.RoleAssistant, Content: "C", Prefix: true}, user("z")}},
			"</think>C" + usr + "z" + asst + "</think>", ""},
		{"image on V4", V4Recipe, conversation.Conversation{Images: make([]conversation.Image, 1), Messages: []msg{{Role: conversation.RoleUser, Parts: []conversation.Part{conversation.ImagePart(0)}}}},
			usr + "<｜image｜>" + asst + "</think>", ""},
		{"arguments encoded twice", V4Recipe, conversation.Conversation{Messages: []msg{{Role: conversation.RoleAssistant, ToolCalls: []conversation.ToolCall{call("c", "f", `"{\"a\": 1}"`)}}, tool("c", "r")}},
			`name="arguments" string="true">"{\"a\": 1}"</｜DSML｜parameter>` + "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + eos + usr + "<tool_result>r</tool_result>" + asst + "</think>",
			`name="a" string="false">1</｜DSML｜parameter>` + "\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>" + eos + usr + "<tool_result>r</tool_result>" + asst + "</think>"},
		{"failed result", V41Recipe, conversation.Conversation{Messages: []msg{{Role: conversation.RoleTool, Content: "no such file", IsError: true}}},
			"<tool_result>no such file</tool_result>" + asst + "</think>", "<tool_result>Error: no such file</tool_result>" + asst + "</think>"},
		{"failed result that says so", V41Recipe, conversation.Conversation{Messages: []msg{{Role: conversation.RoleTool, Content: "Error: none", IsError: true}}},
			"<tool_result>Error: none</tool_result>" + asst + "</think>", "<tool_result>Error: none</tool_result>" + asst + "</think>"},
		{"system in the middle of V4", V4HFPreview, conversation.Conversation{Messages: []msg{user("a"), assistant("b"), system("mid"), user("c")}},
			"b" + eos + "mid" + usr + "c" + asst + "</think>", "b" + eos + usr + "mid\n\nc" + asst + "</think>"},
		{"tools loaded late, none allowed", V41Recipe, conversation.Conversation{ToolChoice: conversation.ToolChoice{Mode: conversation.ChoiceNone}, Messages: []msg{{Role: conversation.RoleSystem, Content: "S", Tools: tools}}},
			updatedSchemas + `{"name": "f", "description": "", "parameters": {}}` + asst + "</think>", sys + "S" + asst + "</think>"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for compat, want := range map[bool]string{true: c.compat, false: c.hardened} {
				p, err := Encode(&c.conv, tokenizerOf(t, string(c.profile)), Options{Profile: c.profile, Compat: compat})
				switch {
				case want == "":
					if err == nil {
						t.Errorf("compat %v: %q, want an error", compat, p.Text)
					}
				case err != nil:
					t.Errorf("compat %v: %v", compat, err)
				case !strings.HasSuffix(p.Text, want):
					t.Errorf("compat %v: %q does not end in %q", compat, p.Text, want)
				}
			}
		})
	}
}

func TestParserStartsWhereThePromptEnds(t *testing.T) {
	tools := []conversation.ToolDef{{Name: "f"}}
	required := conversation.ToolChoice{Mode: conversation.ChoiceRequired}
	for _, c := range []struct {
		conv   conversation.Conversation
		compat bool
		stage  conversation.Stage
		forced bool
	}{
		{conversation.Conversation{}, false, conversation.StageOff, false},
		{conversation.Conversation{Thinking: true}, false, conversation.StageReasoning, false},
		{conversation.Conversation{Tools: tools, ToolChoice: required}, false, conversation.StageOff, true},
		{conversation.Conversation{Thinking: true, Tools: tools, ToolChoice: required}, false, conversation.StageReasoning, false},
		{conversation.Conversation{Thinking: true, Tools: tools, ToolChoice: required}, true, conversation.StageReasoning, true},
	} {
		p := render(t, V41Recipe, c.conv, Options{Compat: c.compat})
		if p.Parsing.Stage != c.stage || p.Parsing.StartsInCalls != c.forced || strings.HasSuffix(p.Text, "calls>\n") != c.forced {
			t.Errorf("%+v: parsing %+v after %q", c.conv, p.Parsing, p.Text[max(0, len(p.Text)-60):])
		}
	}
}

func TestSampledIDsAreReplayed(t *testing.T) {
	tok := tokenizerOf(t, "v4.1/recipe")
	// "He" + "llo" instead of the one token of "Hello".
	odd := append(tok.Encode("He"), tok.Encode("llo")...)
	think, endThink := int32(128821), int32(128822)
	conv := conversation.Conversation{Messages: []msg{user("q"), {Role: conversation.RoleAssistant, Content: "Hello", ReplayIDs: odd}, user("z")}}
	p := render(t, V41Recipe, conv, Options{})
	want := slices.Concat([]int32{0, 128803}, tok.Encode("q"), []int32{128804, endThink}, odd, []int32{1, 128803}, tok.Encode("z"), []int32{128804, endThink})
	if !reflect.DeepEqual(p.Tokens, want) {
		t.Errorf("tokens %v, want %v", p.Tokens, want)
	}
	// Sampled with thinking, rendered without: the ids do not fit and must not be used.
	conv.Messages[1].ReplayIDs = slices.Concat(tok.Encode("R"), []int32{endThink}, odd, []int32{1})
	if p := render(t, V41Recipe, conv, Options{}); countOf(p.Tokens, endThink) != 2 || !slices.Contains(p.Tokens, 19923) {
		t.Errorf("tokens %v", p.Tokens)
	}
	conv.Thinking, conv.KeepReasoning, conv.Messages[1].Reasoning = true, true, ptr("R")
	p = render(t, V41Recipe, conv, Options{})
	if i := slices.Index(p.Tokens, think); i < 0 || !reflect.DeepEqual(p.Tokens[i+1:i+1+len(conv.Messages[1].ReplayIDs)], conv.Messages[1].ReplayIDs) {
		t.Errorf("tokens %v", p.Tokens)
	}
	conv.Messages[1].ReplayIDs = []int32{5, 99999999}
	if p := render(t, V41Recipe, conv, Options{}); slices.Contains(p.Tokens, 99999999) {
		t.Error("an id outside the vocabulary is replayed")
	}
}

func TestCompletions(t *testing.T) {
	tok := tokenizerOf(t, "v4.1/recipe")
	e, err := New(V41Recipe, tok)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		in   conversation.Completion
		want []int32
	}{
		{"plain", conversation.Completion{Prompt: "<think>"}, []int32{0, 30, 37947, 32}},
		{"trusted", conversation.Completion{Prompt: "<think>", AllowSpecial: true}, []int32{0, 128821}},
		{"ids are the whole prompt", conversation.Completion{PromptIDs: []int32{5, 6, 7}}, []int32{5, 6, 7}},
		{"ids with suffix", conversation.Completion{PromptIDs: []int32{5}, Suffix: ptr("Hello")}, []int32{0, 128801, 5, 128800, 19923, 128802}},
	} {
		p, err := e.EncodeCompletion(&c.in, Options{})
		if err != nil || !reflect.DeepEqual(p.Tokens, c.want) {
			t.Errorf("%s: %v, %v, want %v", c.name, p, err, c.want)
		}
	}
	if _, err := e.EncodeCompletion(&conversation.Completion{PromptIDs: []int32{200000}}, Options{}); err == nil {
		t.Error("an id outside the vocabulary is accepted")
	}
}

func TestWrongTokenizerIsRefused(t *testing.T) {
	_, err := New(V41Recipe, tokentest.Load(t, "v4"))
	if err == nil || !strings.Contains(err.Error(), "<｜System｜>") {
		t.Errorf("V4 tokenizer for V4.1: %v", err)
	}
	if _, err := New("v5/recipe", tokentest.Load(t, "v4")); err == nil || !strings.Contains(err.Error(), "v4.1/hf") {
		t.Errorf("unknown profile: %v", err)
	}
	if _, err := New(V4Recipe, nil); err == nil {
		t.Error("no tokenizer is accepted")
	}
	// The demo tokenizer has no grounding tokens: that is fine.
	if _, err := New(V41Recipe, tokentest.Load(t, "demo")); err != nil {
		t.Error(err)
	}
}

func TestBadToolJSONNamesTheTool(t *testing.T) {
	conv := conversation.Conversation{Tools: []conversation.ToolDef{{Name: "broken", Parameters: json.RawMessage(`{"type":`)}}, Messages: []msg{user("q")}}
	_, err := Encode(&conv, tokenizerOf(t, "v4.1/recipe"), Options{})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error %v", err)
	}
}

// A long prompt is tokenised in parts; every part begins after a control token, so nothing may change.
func TestLongPromptsEncodeAsTheWhole(t *testing.T) {
	conv := conversation.Conversation{Images: make([]conversation.Image, 40)}
	for i := range 120 {
		if i%3 == 0 {
			conv.Images[i/3] = conversation.Image{Kind: conversation.ImageURL, Width: 100 + i, Height: 50}
			conv.Messages = append(conv.Messages, msg{Role: conversation.RoleUser, Parts: conversation.JoinBlocks([]conversation.Part{conversation.TextPart(strings.Repeat("look 12\n", i*9)), conversation.ImagePart(i / 3)})})
		} else {
			conv.Messages = append(conv.Messages, assistant(strings.Repeat("wörter 你好 ", i*30)), user(" x"))
		}
	}
	p := render(t, V41Recipe, conv, Options{})
	if len(p.Text) < 2*parallelBytes {
		t.Fatalf("only %d bytes of text", len(p.Text))
	}
	e, err := New(V41Recipe, tokenizerOf(t, "v4.1/recipe"))
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{e: e, conv: &conv}
	if err := w.recipe(); err != nil {
		t.Fatal(err)
	}
	whole := stretch{text: p.Text, marks: w.marks, end: len(p.Text)}
	if err := whole.encode(w); err != nil {
		t.Fatal(err)
	}
	parts := whole.cut()
	if len(parts) < 3 {
		t.Fatalf("%d parts", len(parts))
	}
	var tokens []int32
	var images []ImageSpan
	for i := range parts {
		if err := parts[i].encode(w); err != nil {
			t.Fatal(err)
		}
		for _, span := range parts[i].images {
			span.Start += len(tokens)
			images = append(images, span)
		}
		tokens = append(tokens, parts[i].tokens...)
	}
	for name, got := range map[string]struct {
		tokens []int32
		images []ImageSpan
	}{"parts": {tokens, images}, "Encode": {p.Tokens, p.Images}} {
		if !reflect.DeepEqual(got.tokens, whole.tokens) || !reflect.DeepEqual(got.images, whole.images) {
			t.Errorf("%s: the result differs from the whole", name)
		}
	}
	conv.Images[20].Width = 9000
	if _, err := e.Encode(&conv, Options{}); err == nil {
		t.Error("an image too large in the middle is accepted")
	}
}

func TestEncoderIsSafeForConcurrentUse(t *testing.T) {
	e, err := New(V41Recipe, tokenizerOf(t, "v4.1/recipe"))
	if err != nil {
		t.Fatal(err)
	}
	conv := conversation.Conversation{Thinking: true, Tools: []conversation.ToolDef{{Name: "f"}}, Messages: []msg{system("s"), user("q"), assistant("a"), user("b"), user("c")}}
	want, err := e.Encode(&conv, Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 20 {
				if p, err := e.Encode(&conv, Options{}); err != nil || !reflect.DeepEqual(p, want) {
					t.Errorf("%v, %+v", err, p)
					return
				}
			}
		}()
	}
	wg.Wait()
}
