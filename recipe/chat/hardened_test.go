package chat

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
)

func mustDecode(t *testing.T, body string, opts protocol.Options) *Request {
	t.Helper()
	r, err := Decode([]byte(body), opts)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

// with puts fields into a request with one user message.
func with(fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return `{"model":"m","messages":[{"role":"user","content":"json"}]` + fields + `}`
}

func history(messages string) string {
	return `{"model":"m","messages":[{"role":"user","content":"q"},` + messages + `]}`
}

// val gives what p points to, or the zero value.
func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

const call1 = `{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]}`

// TestDefaultDiffersFromCompatWhereSaid has one case for each row of the table in docs/recipe.md: what compat says, and what the default makes
// of it.
func TestDefaultDiffersFromCompatWhereSaid(t *testing.T) {
	for _, c := range []struct {
		name, body string
		compat     string // part of the error, "" accepted
		check      func(r *Request) bool
	}{
		{"any model name", with(""), "supported API model names", func(r *Request) bool { return r.Model == "m" }},
		{"max_completion_tokens is max_tokens", with(`"max_completion_tokens":7`), "-", func(r *Request) bool { return val(r.Params.MaxTokens) == 7 }},
		{"n up to 16", with(`"n":3`), "Invalid n value", func(r *Request) bool { return r.Params.N == 3 }},
		{"penalties", with(`"frequency_penalty":1,"presence_penalty":-1`), "-", func(r *Request) bool {
			return val(r.Params.FrequencyPenalty) == 1 && val(r.Params.PresencePenalty) == -1
		}},
		{"logit_bias", with(`"logit_bias":{"5":-100}`), "-", func(r *Request) bool { return r.Params.LogitBias[5] == -100 }},
		{"numeric effort", with(`"reasoning_effort":64`), "", func(r *Request) bool { return r.Conversation.Effort.Numeric == 64 && r.Conversation.Thinking }},
		{"thinking budget", with(`"thinking":{"type":"enabled","budget_tokens":99}`), "-", func(r *Request) bool { return val(r.Params.ThinkingBudget) == 99 }},
		{"template switches", with(`"chat_template_kwargs":{"enable_thinking":false}`), "-", func(r *Request) bool { return !r.Conversation.Thinking }},
		{"top-level switch", with(`"enable_thinking":false`), "-", func(r *Request) bool { return !r.Conversation.Thinking }},
		{"no parallel calls", with(`"parallel_tool_calls":false`), "-", func(r *Request) bool { return r.Parsing().NoParallelTools }},
		{"sampling as asked while thinking", with(`"temperature":0.3,"top_p":0.2`), "-", func(r *Request) bool { a, b := r.Sampling(); return a == 0.3 && b == 0.2 }},
		{"role developer", history(`{"role":"developer","content":"D"},{"role":"user","content":"z"}`), "role", func(r *Request) bool { return r.Conversation.Messages[1].Role == conversation.RoleSystem }},
		{"empty tool_calls", history(`{"role":"assistant","content":"x","tool_calls":[]},{"role":"user","content":"z"}`), "empty array", func(r *Request) bool { return r.Conversation.Messages[1].ToolCalls == nil }},
		{"content null with reasoning", history(`{"role":"assistant","content":null,"reasoning_content":"R"},{"role":"user","content":"z"}`), "content or tool_calls", func(r *Request) bool { return val(r.Conversation.Messages[1].Reasoning) == "R" }},
		{"reasoning under its other name", history(`{"role":"assistant","content":"x","reasoning":"R"},{"role":"user","content":"z"}`), "-", func(r *Request) bool { return val(r.Conversation.Messages[1].Reasoning) == "R" }},
		{"tool content null", history(call1 + `,{"role":"tool","tool_call_id":"c1","content":null}`), "string or a list", func(r *Request) bool { return r.Conversation.Messages[2].Text() == "" }},
		{"arguments as an object", history(`{"role":"assistant","tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":{"a":1.0}}}]},{"role":"tool","tool_call_id":"c1","content":"x"}`), "string", func(r *Request) bool { return r.Conversation.Messages[1].ToolCalls[0].Arguments == `{"a":1.0}` }},
		{"blocks of other protocols", with(`"messages":[{"role":"user","content":[{"type":"input_text","text":"a"}]}]`), "input_text", func(r *Request) bool { return r.Conversation.Messages[0].Text() == "a" }},
		{"refusal blocks", history(`{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]},{"role":"user","content":"z"}`), "refusal", func(r *Request) bool { return r.Conversation.Messages[1].Text() == "no" }},
		{"text files", with(`"messages":[{"role":"user","content":[{"type":"file","file":{"filename":"a.txt","file_data":"data:text/plain;base64,aGk="}}]}]`), "file_id or file_data", func(r *Request) bool {
			return r.Conversation.Messages[0].Text() == "<document name=\"a.txt\">\nhi\n</document>"
		}},
		{"custom tools", with(`"tools":[{"type":"custom","custom":{"name":"p","description":"d","format":{"type":"grammar","grammar":{"syntax":"lark","definition":"start: \"x\""}}}}]`), "custom", func(r *Request) bool {
			tool := r.Conversation.Tools[0]
			return tool.Kind == conversation.ToolCustomGrammar && tool.Grammar.Definition == `start: "x"` && strings.Contains(*tool.Description, "lark grammar:\nstart")
		}},
		{"schema without type", with(`"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]`), "type: null", func(r *Request) bool { return len(r.Conversation.Tools) == 1 }},
		{"call required while thinking", with(`"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`), "Thinking mode does not support", func(r *Request) bool {
			return r.Constraint.Kind == protocol.ConstrainOneBlock && !r.Parsing().StartsInCalls
		}},
		{"allowed tools", with(`"tools":[{"type":"function","function":{"name":"f"}},{"type":"function","function":{"name":"g"}}],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function","function":{"name":"g"}}]}}`), "allowed_tools", func(r *Request) bool {
			return fmt.Sprint(r.Conversation.ToolChoice.Allowed) == "[g]"
		}},
		{"legacy functions", with(`"functions":[{"name":"f","parameters":{"type":"object","properties":{}}}],"function_call":{"name":"f"}`), "-", func(r *Request) bool {
			return r.Functions && r.Conversation.ToolChoice.Name == "f"
		}},
		{"grammar format", with(`"response_format":{"type":"grammar","grammar":"root"}`), "grammar", func(r *Request) bool { return r.Constraint.Kind == protocol.ConstrainGrammar }},
		{"lone surrogates", with(`"messages":[{"role":"user","content":"a\ud83d b"}]`), "JSON", func(r *Request) bool { return r.Conversation.Messages[0].Text() == "a\uFFFD b" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := protocol.Options{Compat: true, Models: map[string]protocol.Model{"m": {Name: "m"}}}
			if c.name == "any model name" {
				opts.Models = nil
			}
			compat, err := Decode([]byte(c.body), opts)
			switch {
			case c.compat == "-" && err != nil:
				t.Errorf("compat: %v", err)
			case c.compat == "-" && c.check(compat):
				t.Error("compat does not differ")
			case c.compat != "-" && (err == nil || !strings.Contains(err.Error(), c.compat)):
				t.Errorf("compat: %v, want %s", err, c.compat)
			}
			if !c.check(mustDecode(t, c.body, protocol.Options{})) {
				t.Error("the default does not do what the table says")
			}
		})
	}
}

func TestErrorsNameTheFieldAndTheCode(t *testing.T) {
	for _, c := range []struct {
		body, param, code string
		status            int
	}{
		{`{"model":"m","messages":[]}`, "messages", "invalid_request_error", 400},
		{`{"messages":[]}`, "model", "invalid_request_error", 400},
		{`[`, "", "invalid_request_error", 400},
		{with(`"temperature":9`), "temperature", "invalid_request_error", 400},
		{with(`"max_tokens":1,"max_completion_tokens":2`), "max_completion_tokens", "invalid_request_error", 400},
		{with(`"modalities":["text","audio"]`), "modalities[1]", "unsupported_parameter", 400},
		{with(`"audio":{}`), "audio", "unsupported_parameter", 400},
		{with(`"logit_bias":{"x":1}`), "logit_bias.x", "invalid_request_error", 400},
		{with(`"tools":[{"type":"function","function":{"name":"bad name"}}]`), "tools[0].function.name", "invalid_request_error", 400},
		{with(`"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"strin"}}}}}]`), "tools[0].function.parameters", "invalid_request_error", 400},
		{with(`"tool_choice":{"type":"function","function":{"name":"zz"}},"tools":[{"type":"function","function":{"name":"f"}}]`), "tool_choice", "invalid_request_error", 400},
		{with(`"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"ftp://x"}}]}]`), "messages[0].content[0].image_url", "invalid_request_error", 400},
		{with(`"messages":[{"role":"user","content":7}]`), "messages[0].content", "invalid_request_error", 400},
		{history(`{"role":"tool","tool_call_id":"c9","content":"x"}`), "messages[1].tool_call_id", "invalid_request_error", 400},
	} {
		_, err := Decode([]byte(c.body), protocol.Options{})
		if err == nil {
			t.Errorf("%s: no error", c.body)
			continue
		}
		e := protocol.AsError(err)
		var body struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		if jerr := json.Unmarshal(e.OpenAI(), &body); jerr != nil {
			t.Fatal(jerr)
		}
		param := ""
		if body.Error.Param != nil {
			param = *body.Error.Param
		}
		if e.Status() != c.status || param != c.param || body.Error.Code != c.code || body.Error.Type != "invalid_request_error" || body.Error.Message == "" {
			t.Errorf("%s: %d %s", c.body, e.Status(), e.OpenAI())
		}
	}
	_, err := Decode([]byte(with("")), protocol.Options{Models: map[string]protocol.Model{"a": {Name: "a"}}})
	if e := protocol.AsError(err); e.Status() != 404 || e.Code != "model_not_found" {
		t.Errorf("unknown model: %v", err)
	}
	_, err = Decode([]byte(with("")), protocol.Options{MaxBody: 10})
	if e := protocol.AsError(err); e.Status() != 413 {
		t.Errorf("large body: %v", err)
	}
}

func TestBugSglang39274ImageTokenInAToolResultIsText(t *testing.T) {
	r := mustDecode(t, history(call1+`,{"role":"tool","tool_call_id":"c1","content":"<｜image｜>"}`), protocol.Options{})
	p, err := encoding.Encode(&r.Conversation, protocoltest.Tokenizer(t, false), encoding.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range p.Tokens {
		if id == 129264 {
			t.Fatal("the prompt has the image token")
		}
	}
}

func TestBugDeepseekV3100EveryWayToTurnThinkingOff(t *testing.T) {
	for _, off := range []string{`"thinking":{"type":"disabled"}`, `"reasoning_effort":"none"`, `"enable_thinking":false`, `"chat_template_kwargs":{"thinking":false}`, `"chat_template_kwargs":{"enable_thinking":false}`} {
		r := mustDecode(t, with(off), protocol.Options{})
		out := respond(t, r, protocol.Header{ID: "x"}, "hi")
		if s := string(out.Body()); !strings.Contains(s, `"content":"hi"`) || strings.Contains(s, "reasoning_content") {
			t.Errorf("%s: %s", off, s)
		}
	}
}

func TestBugMistralCommon324AssistantContentVariants(t *testing.T) {
	var prompts []string
	for _, head := range []string{`"content":null,`, ``, `"content":"",`, `"content":[],`} {
		body := history(`{"role":"assistant",` + head + `"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"r"}]}`)
		r := mustDecode(t, body, protocol.Options{})
		p, err := encoding.Encode(&r.Conversation, protocoltest.Tokenizer(t, false), encoding.Options{})
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, p.Text)
	}
	for _, p := range prompts[1:] {
		if p != prompts[0] {
			t.Errorf("%q\n%q", p, prompts[0])
		}
	}
}

// respond runs text through parser and stream.
func respond(t *testing.T, r *Request, h protocol.Header, texts ...string) *Stream {
	t.Helper()
	s := NewStream(r, h)
	for i, text := range texts {
		p, err := parse.New(parse.Options{Parsing: r.Parsing(), Tools: parse.ToolsOf(&r.Conversation)})
		if err != nil {
			t.Fatal(err)
		}
		evs := p.Text(nil, text, 3)
		evs = p.Finish(evs, parse.CauseStop)
		s.Events(nil, i, evs, p.Usage())
	}
	return s
}

func TestBugLitellm41049ReasoningAndItsTokens(t *testing.T) {
	r := mustDecode(t, with(`"stream":true`), protocol.Options{})
	s := NewStream(r, protocol.Header{ID: "x"})
	p, err := parse.New(parse.Options{Parsing: r.Parsing(), Vocabulary: protocoltest.Tokenizer(t, false)})
	if err != nil {
		t.Fatal(err)
	}
	out := s.Start(nil)
	evs, err := p.Tokens(nil, []int32{19923, 128822, 23166, 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	out = s.Events(out, 0, evs, p.Usage())
	if s := string(out); !strings.Contains(s, `"reasoning_content":"Hello"`) || strings.Index(s, `"reasoning_content":"Hello"`) > strings.Index(s, `"content":"Hi"`) ||
		!strings.Contains(s, `"reasoning_tokens":2`) || !strings.Contains(s, `"completion_tokens":4`) {
		t.Fatal(s)
	}
}

func TestChoicesKeepTheirOwnCallsAndShareTheUsage(t *testing.T) {
	r := mustDecode(t, with(`"n":2,"thinking":{"type":"disabled"},"tools":[{"type":"function","function":{"name":"f"}}]`), protocol.Options{})
	call := "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
	s := respond(t, r, protocol.Header{ID: "chatcmpl-9", Prompt: 10}, call, call)
	var body struct {
		Choices []struct {
			Index   int
			Message struct {
				Content   *string
				ToolCalls []struct{ ID string } `json:"tool_calls"`
			}
		}
		Usage struct {
			PromptTokens     int `json:"prompt_tokens"`
			CompletionTokens int `json:"completion_tokens"`
		}
	}
	if err := json.Unmarshal(s.Body(), &body); err != nil {
		t.Fatal(err)
	}
	if len(body.Choices) != 2 || body.Choices[0].Message.ToolCalls[0].ID == body.Choices[1].Message.ToolCalls[0].ID || body.Choices[1].Index != 1 ||
		body.Choices[0].Message.Content != nil || body.Usage.PromptTokens != 10 || body.Usage.CompletionTokens != 6 {
		t.Fatalf("%s", s.Body())
	}
}

func TestCustomAndLegacyCallShapes(t *testing.T) {
	block := func(params string) string {
		return "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"p\">\n" + params + "\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
	}
	r := mustDecode(t, with(`"thinking":{"type":"disabled"},"tools":[{"type":"custom","custom":{"name":"p"}}]`), protocol.Options{})
	s := respond(t, r, protocol.Header{ID: "x"}, block("<｜DSML｜ parameter name=\"input\" string=\"true\">a\"b</｜DSML｜ parameter>"))
	if b := string(s.Body()); !strings.Contains(b, `"type":"custom","custom":{"name":"p","input":"a\"b"}`) {
		t.Error(b)
	}
	r = mustDecode(t, with(`"thinking":{"type":"disabled"},"functions":[{"name":"p"}]`), protocol.Options{})
	s = respond(t, r, protocol.Header{ID: "x"}, block(""))
	if b := string(s.Body()); !strings.Contains(b, `"function_call":{"name":"p","arguments":"{}"}`) || !strings.Contains(b, `"finish_reason":"function_call"`) || strings.Contains(b, "tool_calls") {
		t.Error(b)
	}
}

func TestFailureInTheMiddleOfAStream(t *testing.T) {
	r := mustDecode(t, with(`"stream":true`), protocol.Options{})
	s := NewStream(r, protocol.Header{ID: "x"})
	out := s.Start(nil)
	out = s.Fail(out, protocol.NewError(500, "worker lost"))
	out = s.Events(out, 0, []parse.Event{{Kind: parse.Text, Text: "late"}}, parse.Usage{})
	out = s.Close(out)
	if text := string(out); !strings.HasSuffix(text, "data: {\"error\":{\"message\":\"worker lost\",\"type\":\"server_error\",\"param\":null,\"code\":\"internal_error\"}}\n\ndata: [DONE]\n\n") || strings.Contains(text, "late") {
		t.Fatal(text)
	}
}

func TestAFilterBeforeAnyTextIsARefusal(t *testing.T) {
	r := mustDecode(t, with(`"stream":true,"thinking":{"type":"disabled"}`), protocol.Options{})
	finish := []parse.Event{{Kind: parse.Finish, Cause: parse.CauseContentFilter}}
	s := NewStream(r, protocol.Header{ID: "x"})
	out := string(s.Events(nil, 0, finish, parse.Usage{}))
	if !strings.Contains(out, `"delta":{"refusal":"The answer`) || !strings.Contains(out, `"finish_reason":"content_filter"`) || !strings.Contains(string(s.Body()), `"refusal":"The answer`) {
		t.Error(out)
	}
	s = NewStream(r, protocol.Header{ID: "x"})
	s.Events(nil, 0, append([]parse.Event{{Kind: parse.Text, Text: "some"}}, finish...), parse.Usage{})
	if b := string(s.Body()); !strings.Contains(b, `"content":"some","refusal":null`) {
		t.Error(b)
	}
}

func TestUsagePlaces(t *testing.T) {
	for place, want := range map[UsagePlace]int{UsageAtFinish: 0, UsageSeparate: 1, UsageBoth: 1} {
		r := mustDecode(t, with(`"stream":true,"stream_options":{"include_usage":true},"thinking":{"type":"disabled"}`), protocol.Options{})
		s := NewStream(r, protocol.Header{ID: "x"})
		s.SetUsagePlace(place)
		out := string(s.Events(nil, 0, []parse.Event{{Kind: parse.Finish, Cause: parse.CauseStop}}, parse.Usage{}))
		if strings.Count(out, `"choices":[]`) != want || strings.Contains(out, `"finish_reason":"stop"}],"usage":{`) != (place != UsageSeparate) {
			t.Errorf("place %d: %s", place, out)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range protocoltest.Read(f, "prompts.jsonl.gz") {
		if c.API == "chat" && len(c.Request) < 2000 {
			f.Add(c.RawBody(), false)
			f.Add(c.RawBody(), true)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, compat bool) {
		r, err := Decode(body, protocol.Options{Compat: compat})
		if err != nil {
			if e := protocol.AsError(err); e.Status() < 400 || e.Status() > 499 || !json.Valid(e.OpenAI()) || !json.Valid(e.Anthropic("req")) {
				t.Fatalf("%d %s", e.Status(), e.OpenAI())
			}
			return
		}
		if err := r.Conversation.Validate(); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if s := NewStream(r, protocol.Header{ID: "x"}); !json.Valid(s.Body()) {
			t.Fatalf("body %s", s.Body())
		}
	})
}
