package messages

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
)

func mustDecode(t *testing.T, body string, opts protocol.Options) *Request {
	t.Helper()
	r, err := Decode([]byte(body), opts)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func with(fields string) string {
	if fields != "" {
		fields = "," + fields
	}
	return `{"model":"m","max_tokens":100,"messages":[{"role":"user","content":"Hi"}]` + fields + `}`
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

const use1 = `{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{}}]}`

// TestDefaultDiffersFromCompatWhereSaid has one case for each row of the table in docs/recipe.md.
func TestDefaultDiffersFromCompatWhereSaid(t *testing.T) {
	tools := `"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}]`
	for _, c := range []struct {
		name, body string
		compat     string // part of the error, "-" accepted with another result
		check      func(r *Request) bool
	}{
		{"top_k", with(`"top_k":5`), "-", func(r *Request) bool { return val(r.Params.TopK) == 5 }},
		{"any asks for a call", with(tools + `,"tool_choice":{"type":"any"}`), "-", func(r *Request) bool { return r.Conversation.ToolChoice.Mode == conversation.ChoiceRequired }},
		{"named while thinking", with(tools + `,"tool_choice":{"type":"tool","name":"f"}`), "Thinking mode does not support", func(r *Request) bool { return r.Conversation.ForcesCall() }},
		{"one call only", with(tools + `,"tool_choice":{"type":"auto","disable_parallel_tool_use":true}`), "-", func(r *Request) bool { return r.Parsing().NoParallelTools }},
		{"tools of type custom", with(`"tools":[{"type":"custom","name":"f","input_schema":{"type":"object","properties":{}}}]`), "server tools", func(r *Request) bool { return len(r.Conversation.Tools) == 1 }},
		{"web search is left out", with(`"tools":[{"type":"web_search_20250305","name":"web_search"}]`), "server tools", func(r *Request) bool { return len(r.Conversation.Tools) == 0 && len(r.Warnings) == 1 }},
		{"strict tools", with(`"tools":[{"name":"f","strict":true,"input_schema":{"type":"object","properties":{}}}]`), "-", func(r *Request) bool { return val(r.Conversation.Tools[0].Strict) }},
		{"output format", with(`"output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}}`), "-", func(r *Request) bool { return r.Constraint != nil && r.Constraint.Kind == protocol.ConstrainJSON }},
		{"thinking budget", with(`"thinking":{"type":"enabled","budget_tokens":99}`), "-", func(r *Request) bool { return val(r.Params.ThinkingBudget) == 99 }},
		{"user", with(`"metadata":{"user_id":"u"}`), "-", func(r *Request) bool { return r.User == "u" }},
		{"redacted thinking", history(`{"role":"assistant","content":[{"type":"redacted_thinking","data":"x"},{"type":"text","text":"a"}]},{"role":"user","content":"z"}`), "redacted_thinking", func(r *Request) bool { return r.Conversation.Messages[1].Text() == "a" }},
		{"text after a call", history(`{"role":"assistant","content":[{"type":"tool_use","id":"t1","name":"f","input":{}},{"type":"text","text":"late"}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":"r"}]}`), "tool_use", func(r *Request) bool { return r.Conversation.Messages[1].Text() == "late" }},
		{"text before the results", history(use1 + `,{"role":"user","content":[{"type":"text","text":"note"},{"type":"tool_result","tool_use_id":"t1","content":"r"}]}`), "tool_use", func(r *Request) bool {
			return r.Conversation.Messages[2].Text() == "note" && r.Conversation.Messages[3].Role == conversation.RoleTool
		}},
		{"search results", with(`"messages":[{"role":"user","content":[{"type":"search_result","source":"s","title":"t","content":[{"type":"text","text":"x"}]}]}]`), "search_result", func(r *Request) bool { return r.Conversation.Messages[0].Text() == "t\ns\nx" }},
		{"text documents", with(`"messages":[{"role":"user","content":[{"type":"document","title":"T","source":{"type":"text","media_type":"text/plain","data":"doc"}}]}]`), "-", func(r *Request) bool {
			return r.Conversation.Messages[0].Text() == "<document name=\"T\">\ndoc\n</document>"
		}},
		{"base64 without padding", with(`"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/png","data":"YQ"}}]}]`), "base64", func(r *Request) bool {
			return r.Conversation.Images[0].URL == "data:image/png;base64,YQ=="
		}},
		{"an empty system prompt is none", with(`"system":""`), "-", func(r *Request) bool { return len(r.Conversation.Messages) == 1 }},
		{"the billing line is dropped from a string too", with(`"system":"x-anthropic-billing-header: cch=1\nreal"`), "-", func(r *Request) bool { return r.Conversation.Messages[0].Content == "real" }},
	} {
		t.Run(c.name, func(t *testing.T) {
			compat, err := Decode([]byte(c.body), protocol.Options{Compat: true, Models: map[string]protocol.Model{"m": {Name: "m"}}})
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

func TestErrorsHaveTheShapeOfTheProtocol(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m","messages":[]}`: `{"type":"error","error":{"type":"invalid_request_error","message":"messages: at least one message is required"},"request_id":"req_1"}`,
		`{"model":"m"}`:               `{"type":"error","error":{"type":"invalid_request_error","message":"invalid request body: missing field ` + "`messages`" + `"},"request_id":"req_1"}`,
	} {
		_, err := Decode([]byte(body), protocol.Options{})
		if got := string(protocol.AsError(err).Anthropic("req_1")); got != want {
			t.Errorf("%s\n got %s\nwant %s", body, got, want)
		}
	}
	for status, want := range map[int]string{401: "authentication_error", 402: "billing_error", 403: "permission_error", 404: "not_found_error",
		413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error", 504: "timeout_error", 529: "overloaded_error", 400: "invalid_request_error"} {
		if got := protocol.NewError(status, "x").AnthropicType(); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
		}
	}
}

func respond(t *testing.T, r *Request, text string, cause parse.Cause) (*Stream, string) {
	t.Helper()
	s := NewStream(r, protocol.Header{ID: "msg_1", Model: "m", Prompt: 12, Cached: 5})
	p, err := parse.New(parse.Options{Parsing: r.Parsing(), Tools: parse.ToolsOf(&r.Conversation)})
	if err != nil {
		t.Fatal(err)
	}
	out := s.Start(nil)
	evs := p.Text(nil, text, 3)
	evs = p.Finish(evs, cause)
	return s, string(s.Events(out, 0, evs, p.Usage()))
}

const callF = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

func TestBugLitellm34692CallWithoutText(t *testing.T) {
	r := mustDecode(t, with(`"thinking":{"type":"disabled"},"stream":true,"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}]`), protocol.Options{})
	_, out := respond(t, r, callF, parse.CauseStop)
	if !strings.Contains(out, `"index":0,"content_block":{"type":"tool_use"`) || strings.Contains(out, `"text"`) || !strings.Contains(out, `"stop_reason":"tool_use"`) {
		t.Fatal(out)
	}
}

func TestBugLitellm24176UsageInMessageStart(t *testing.T) {
	r := mustDecode(t, with(`"stream":true`), protocol.Options{})
	s := NewStream(r, protocol.Header{ID: "msg_1", Prompt: 12, Cached: 5})
	if out := string(s.Start(nil)); !strings.Contains(out, `"usage":{"input_tokens":7,"cache_creation_input_tokens":0,"cache_read_input_tokens":5,"output_tokens":0`) {
		t.Fatal(out)
	}
}

func TestBugLitellm31439OrderOfBlocksRoundTrips(t *testing.T) {
	tools := `"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}},{"name":"g","input_schema":{"type":"object","properties":{}}}]`
	r := mustDecode(t, with(tools), protocol.Options{})
	tok := protocoltest.Tokenizer(t, false)
	first, err := encoding.Encode(&r.Conversation, tok, encoding.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const said = "why</think>look\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"g\">\n\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"f\">\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"
	s, _ := respond(t, r, said, parse.CauseStop)
	var body struct {
		Content []struct{ Type, ID string }
		Raw     json.RawMessage `json:"-"`
	}
	if err := json.Unmarshal(s.Body(), &body); err != nil {
		t.Fatal(err)
	}
	var kinds, results []string
	for _, b := range body.Content {
		kinds = append(kinds, b.Type)
		if b.Type == "tool_use" {
			results = append(results, `{"type":"tool_result","tool_use_id":"`+b.ID+`","content":"r"}`)
		}
	}
	if strings.Join(kinds, " ") != "thinking text tool_use tool_use" {
		t.Fatalf("blocks %v", kinds)
	}
	var raw struct{ Content json.RawMessage }
	if err := json.Unmarshal(s.Body(), &raw); err != nil {
		t.Fatal(err)
	}
	next := `{"model":"m","messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":` + string(raw.Content) + `},{"role":"user","content":[` + strings.Join(results, ",") + `]}],` + tools + `}`
	second, err := encoding.Encode(&mustDecode(t, next, protocol.Options{}).Conversation, tok, encoding.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The second prompt goes on exactly where the model stopped: what it wrote is in it token by token.
	want := append(append([]int32(nil), first.Tokens...), tok.EncodeSpecial(said+"<｜end▁of▁sentence｜>")...)
	if len(second.Tokens) < len(want) || !reflect.DeepEqual(second.Tokens[:len(want)], want) {
		t.Fatalf("prompt %q does not go on from %q", second.Text, first.Text+said)
	}
}

func TestBugClaudeCode68900BillingLine(t *testing.T) {
	prompt := func(system string, opts protocol.Options) string {
		p, err := encoding.Encode(&mustDecode(t, with(`"system":`+system), opts).Conversation, protocoltest.Tokenizer(t, false), encoding.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Text
	}
	a := prompt(`[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"real"}]`, protocol.Options{})
	b := prompt(`[{"type":"text","text":"x-anthropic-billing-header: cch=2;"},{"type":"text","text":"real"}]`, protocol.Options{})
	if a != b || strings.Contains(a, "billing") {
		t.Errorf("%q\n%q", a, b)
	}
	if kept := prompt(`[{"type":"text","text":"x-anthropic-billing-header: cch=1;"},{"type":"text","text":"real"}]`, protocol.Options{KeepBillingHeader: true}); !strings.Contains(kept, "billing") {
		t.Errorf("not kept: %q", kept)
	}
	if later := prompt(`[{"type":"text","text":"real"},{"type":"text","text":"x-anthropic-billing-header: quoted"}]`, protocol.Options{}); !strings.Contains(later, "quoted") {
		t.Errorf("a later block was dropped: %q", later)
	}
}

func TestBugSglang36877CacheControlLeavesThePromptAlone(t *testing.T) {
	tok := protocoltest.Tokenizer(t, false)
	ids := func(mark string) []int32 {
		r := mustDecode(t, with(`"system":[{"type":"text","text":"S"`+mark+`}],"messages":[{"role":"user","content":[{"type":"text","text":"Hi"`+mark+`}]}]`), protocol.Options{})
		p, err := encoding.Encode(&r.Conversation, tok, encoding.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Tokens
	}
	if !reflect.DeepEqual(ids(""), ids(`,"cache_control":{"type":"ephemeral"}`)) {
		t.Fatal("cache_control changed the prompt")
	}
}

func TestBugLmstudio1399SystemMessageInTheMiddle(t *testing.T) {
	r := mustDecode(t, history(`{"role":"assistant","content":"a"},{"role":"system","content":"new rule"},{"role":"user","content":"z"}`), protocol.Options{})
	if m := r.Conversation.Messages[2]; m.Role != conversation.RoleSystem || m.Content != "new rule" {
		t.Fatalf("%+v", m)
	}
}

func TestBugVllm54677ThreeProtocolsOnePrompt(t *testing.T) {
	tok := protocoltest.Tokenizer(t, false)
	var prompts []string
	encode := func(c *conversation.Conversation, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		p, err := encoding.Encode(c, tok, encoding.Options{})
		if err != nil {
			t.Fatal(err)
		}
		prompts = append(prompts, p.Text)
	}
	m, err := Decode([]byte(with("")), protocol.Options{})
	encode(&m.Conversation, err)
	c, err := chat.Decode([]byte(`{"model":"m","messages":[{"role":"user","content":"Hi"}]}`), protocol.Options{})
	encode(&c.Conversation, err)
	r, err := responses.Decode([]byte(`{"model":"m","input":"Hi"}`), protocol.Options{})
	encode(&r.Conversation, err)
	if prompts[0] != prompts[1] || prompts[1] != prompts[2] {
		t.Fatalf("%q", prompts)
	}
}

func TestBugLitellm30043CountTokensIsTheSameConversion(t *testing.T) {
	body := `"system":[{"type":"text","text":"S"}],"tools":[{"name":"f","input_schema":{"type":"object","properties":{}}}]`
	count := mustDecode(t, `{"model":"m","messages":[{"role":"user","content":"Hi"}],`+body+`}`, protocol.Options{}) // no max_tokens
	real := mustDecode(t, with(body), protocol.Options{})
	if !reflect.DeepEqual(count.Conversation, real.Conversation) {
		t.Fatal("the count would be of another prompt")
	}
	if got := string(CountTokens(42)); got != `{"input_tokens":42}` {
		t.Fatal(got)
	}
}

func TestEndsOfMessages(t *testing.T) {
	tools := `,"tools":[{"name":"f","input_schema":{"type":"object","properties":{"a":{"type":"string"}}}}]`
	r := mustDecode(t, with(`"thinking":{"type":"disabled"}`+tools), protocol.Options{})
	cut := strings.TrimSuffix(callF, "\n\n</｜DSML｜ invoke>\n</｜DSML｜ calls>") + "\n<｜DSML｜ parameter name=\"a\" string=\"true\">Par"
	s, _ := respond(t, r, cut, parse.CauseLength)
	if b := string(s.Body()); !strings.Contains(b, `"input":{"a":"Par"}`) || !strings.Contains(b, `"stop_reason":"max_tokens"`) {
		t.Error(b)
	}
	for cause, want := range map[parse.Cause]string{parse.CauseContextFull: "model_context_window_exceeded", parse.CauseContentFilter: "refusal", parse.CauseStop: "end_turn"} {
		s, _ := respond(t, r, "x", cause)
		if b := string(s.Body()); !strings.Contains(b, `"stop_reason":"`+want+`"`) {
			t.Errorf("%v: %s", cause, b)
		}
	}
	_, out := respond(t, r, "x", parse.CauseResources)
	if !strings.Contains(out, `"error":{"type":"overloaded_error"`) || strings.Contains(out, "message_stop") {
		t.Error(out)
	}
}

func TestSignaturesDependOnTextAndKey(t *testing.T) {
	r := mustDecode(t, with(""), protocol.Options{})
	sign := func(key, text string) string {
		s := NewStream(r, protocol.Header{ID: "msg_1", Model: "m"})
		s.SetKey([]byte(key))
		return s.sign([]byte(text))
	}
	if a := sign("k", "x"); a != sign("k", "x") || a == sign("k", "y") || a == sign("l", "x") {
		t.Fatal("signatures do not tell texts and keys apart")
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range protocoltest.Read(f, "prompts.jsonl.gz") {
		if c.API == "messages" && len(c.Request) < 2000 {
			f.Add(c.RawBody(), false)
			f.Add(c.RawBody(), true)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, compat bool) {
		r, err := Decode(body, protocol.Options{Compat: compat})
		if err != nil {
			if e := protocol.AsError(err); e.Status() < 400 || e.Status() > 499 || !json.Valid(e.Anthropic("req")) {
				t.Fatalf("%d %s", e.Status(), e.Anthropic("req"))
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
