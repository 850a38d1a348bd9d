package responses

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
)

func mustDecode(t *testing.T, body string) *Request {
	t.Helper()
	r, err := Decode([]byte(body), protocol.Options{})
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return r
}

func with(fields string) string { return `{"model":"m","input":"Hi",` + fields + `}` }

func items(list string) string { return `{"model":"m","input":[` + list + `]}` }

// val gives what p points to, or the zero value.
func val[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

const (
	callC1  = `{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}`
	callC2  = `{"type":"function_call","call_id":"c2","name":"f","arguments":"{}"}`
	output1 = `{"type":"function_call_output","call_id":"c1","output":"r"}`
	output2 = `{"type":"function_call_output","call_id":"c2","output":"r"}`
	user    = `{"role":"user","content":"q"}`
)

// TestDefaultDiffersFromCompatWhereSaid has one case for each row of the table in docs/recipe.md.
func TestDefaultDiffersFromCompatWhereSaid(t *testing.T) {
	for _, c := range []struct {
		name, body string
		compat     string // part of the error, "-" accepted with another result
		check      func(r *Request) bool
	}{
		{"thinking is honoured", with(`"thinking":{"type":"disabled"}`), "-", func(r *Request) bool { return !r.Conversation.Thinking }},
		{"no parallel calls", with(`"parallel_tool_calls":false`), "-", func(r *Request) bool { return r.Parsing().NoParallelTools }},
		{"custom tools", with(`"tools":[{"type":"custom","name":"other","format":{"type":"grammar","syntax":"regex","definition":"a+"}}]`), "Only 'apply_patch'", func(r *Request) bool {
			return r.Conversation.Tools[0].Kind == conversation.ToolCustomGrammar
		}},
		{"apply_patch keeps the client's description", with(`"tools":[{"type":"custom","name":"apply_patch","description":"mine"}]`), "-", func(r *Request) bool {
			return val(r.Conversation.Tools[0].Description) == "mine"
		}},
		{"custom tools in a namespace", with(`"tools":[{"type":"namespace","name":"n","tools":[{"type":"custom","name":"c"}]}]`), "not allowed inside a namespace", func(r *Request) bool {
			return r.Conversation.Tools[0].Name == "n::c"
		}},
		{"a choice without its namespace", with(`"reasoning":{"effort":"none"},"tools":[{"type":"namespace","name":"n","tools":[{"type":"function","name":"c"}]}],"tool_choice":{"type":"function","name":"c"}`), "no function named 'c'", func(r *Request) bool {
			return r.Conversation.ToolChoice.Name == "n::c"
		}},
		{"allowed tools", with(`"tools":[{"type":"function","name":"f"}],"tool_choice":{"type":"allowed_tools","mode":"required","tools":[{"type":"function","name":"f"}]}`), "allowed_tools", func(r *Request) bool {
			return fmt.Sprint(r.Conversation.ToolChoice.Allowed) == "[f]" && r.Conversation.ToolChoice.Mode == conversation.ChoiceRequired
		}},
		{"calls keep the model's order", items(user + `,` + callC2 + `,` + callC1 + `,` + output1 + `,` + output2), "-", func(r *Request) bool { return r.Conversation.Messages[1].ToolCalls[0].ID == "c2" }},
		{"reasoning between parallel calls", items(user + `,` + callC1 + `,{"type":"reasoning","content":[{"type":"reasoning_text","text":"R"}]},` + callC2 + `,` + output1 + `,` + output2), "No tool output found", func(r *Request) bool {
			return len(r.Conversation.Messages[1].ToolCalls) == 2 && val(r.Conversation.Messages[1].Reasoning) == "R"
		}},
		{"a summary when there is no reasoning", items(user + `,{"type":"reasoning","summary":[{"type":"summary_text","text":"S"}]},{"role":"assistant","content":"a"}`), "-", func(r *Request) bool {
			return val(r.Conversation.Messages[1].Reasoning) == "S"
		}},
		{"other text parts", items(`{"role":"user","content":[{"type":"text","text":"t"}]}`), "text", func(r *Request) bool { return r.Conversation.Messages[0].Text() == "t" }},
		{"refusal parts", items(user + `,{"role":"assistant","content":[{"type":"refusal","refusal":"no"}]}`), "refusal", func(r *Request) bool { return r.Conversation.Messages[1].Text() == "no" }},
		{"instructions as items", with(`"instructions":[{"role":"developer","content":"D"}]`), "string", func(r *Request) bool { return r.Conversation.Messages[0].Role == conversation.RoleSystem }},
		{"text files", items(`{"role":"user","content":[{"type":"input_file","filename":"a.txt","file_data":"data:text/plain;base64,aGk="}]}`), "-", func(r *Request) bool {
			return strings.Contains(r.Conversation.Messages[0].Text(), "\nhi\n")
		}},
		{"calls without arguments", items(user + `,{"type":"function_call","call_id":"c1","name":"f","arguments":""},` + output1), "-", func(r *Request) bool { return r.Conversation.Messages[1].ToolCalls[0].Arguments == "{}" }},
		{"metadata, store and truncation", with(`"metadata":{"k":"v"},"store":false,"truncation":"auto"`), "-", func(r *Request) bool {
			return r.Metadata["k"] == "v" && !r.Store && r.Truncate
		}},
		{"encrypted reasoning is asked for", with(`"include":["reasoning.encrypted_content"]`), "-", func(r *Request) bool { return r.Encrypted }},
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
			if !c.check(mustDecode(t, c.body)) {
				t.Error("the default does not do what the table says")
			}
		})
	}
	v4, err := Decode([]byte(items(`{"role":"developer","content":"D"},`+user)), protocol.Options{V4: true})
	if err != nil || v4.Conversation.Messages[0].Role != conversation.RoleSystem {
		t.Errorf("developer of V4: %v", err)
	}
}

func TestErrorsOfTheDefault(t *testing.T) {
	for body, want := range map[string]string{
		with(`"previous_response_id":"resp_9"`):                                  "previous_response_not_found",
		with(`"prompt":{"id":"p"}`):                                              "unsupported_parameter",
		with(`"conversation":"c"`):                                               "unsupported_parameter",
		with(`"background":true,"store":false`):                                  "invalid_request_error",
		with(`"tools":[],"tool_choice":{"type":"file_search"}`):                  "unsupported_value",
		items(user + `,{"type":"item_reference","id":"msg_1"}`):                  "invalid_request_error",
		items(user + `,` + callC1):                                               "invalid_request_error",
		with(`"truncation":"sometimes"`):                                         "invalid_request_error",
		with(`"metadata":{"k":1}`):                                               "invalid_request_error",
		items(`{"role":"user","content":[{"type":"input_file","file_id":"f"}]}`): "unsupported_value",
	} {
		_, err := Decode([]byte(body), protocol.Options{})
		if err == nil {
			t.Errorf("%s: no error", body)
			continue
		}
		var out struct {
			Error struct{ Code, Message string }
		}
		if jerr := json.Unmarshal(protocol.AsError(err).OpenAI(), &out); jerr != nil || out.Error.Code != want || out.Error.Message == "" {
			t.Errorf("%s: %+v, want %s", body, out, want)
		}
	}
}

func TestStoreSeams(t *testing.T) {
	store := Store{
		Items: func(id string) ([]byte, bool) {
			return []byte(`[{"role":"user","content":"q1"},` + callC1 + `]`), id == "resp_1"
		},
		Item: func(id string) ([]byte, bool) { return []byte(`{"role":"assistant","content":"kept"}`), id == "msg_1" },
		Unseal: func(s string) (string, error) {
			if s != "sealed" {
				return "", errors.New("foreign")
			}
			return "opened", nil
		},
	}
	r, err := DecodeWith([]byte(`{"model":"m","previous_response_id":"resp_1","input":[`+output1+`,{"type":"reasoning","encrypted_content":"sealed"},{"type":"item_reference","id":"msg_1"},{"role":"user","content":"z"}]}`), protocol.Options{}, store)
	if err != nil {
		t.Fatal(err)
	}
	m := r.Conversation.Messages
	if len(m) != 5 || m[0].Content != "q1" || m[2].Role != conversation.RoleTool || val(m[3].Reasoning) != "opened" || m[3].Content != "kept" || m[4].Content != "z" {
		t.Fatalf("%+v", m)
	}
	if strings.Contains(string(r.Input), "q1") {
		t.Fatalf("input of this request: %s", r.Input)
	}
	_, err = DecodeWith([]byte(items(`{"type":"reasoning","encrypted_content":"bad"},`+user)), protocol.Options{}, store)
	if e := protocol.AsError(err); e.Code != "invalid_encrypted_content" || e.Param != "input[0].encrypted_content" {
		t.Fatalf("%+v", e)
	}
}

func respond(t *testing.T, r *Request, text string, cause parse.Cause) (*Stream, []protocoltest.Event) {
	t.Helper()
	s := NewStream(r, protocol.Header{ID: "resp_1", Model: "m", Created: 5})
	s.SetSeal(func(text string) string { return "sealed " + text })
	s.SetClock(func() int64 { return 7 })
	p, err := parse.New(parse.Options{Parsing: r.Parsing(), Tools: parse.ToolsOf(&r.Conversation)})
	if err != nil {
		t.Fatal(err)
	}
	out := s.Start(nil)
	for _, part := range strings.SplitAfter(text, " ") {
		out = s.Events(out, 0, p.Text(nil, part, 1), p.Usage())
	}
	out = s.Events(out, 0, p.Finish(nil, cause), p.Usage())
	evs, err := protocoltest.Frames(s.Close(out))
	if err != nil {
		t.Fatal(err)
	}
	return s, evs
}

func names(evs []protocoltest.Event) string {
	var out []string
	for _, ev := range evs {
		if n := len(out); n == 0 || out[n-1] != ev.Event {
			out = append(out, ev.Event)
		}
	}
	return strings.ReplaceAll(strings.Join(out, " "), "response.", "")
}

func TestBugAwesomeIntegration738SummaryEvents(t *testing.T) {
	r := mustDecode(t, with(`"stream":true,"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"]`))
	s, evs := respond(t, r, "think it over</think>done", parse.CauseStop)
	want := "created in_progress output_item.added content_part.added reasoning_summary_part.added reasoning_text.delta reasoning_summary_text.delta " +
		"reasoning_text.delta reasoning_summary_text.delta reasoning_text.delta reasoning_summary_text.delta reasoning_text.done content_part.done reasoning_summary_text.done " +
		"reasoning_summary_part.done output_item.done output_item.added content_part.added output_text.delta output_text.done content_part.done output_item.done completed"
	if got := names(evs); got != want {
		t.Errorf("events\n got %s\nwant %s", got, want)
	}
	if b := string(s.Body()); !strings.Contains(b, `"summary":[{"type":"summary_text","text":"think it over"}],"encrypted_content":"sealed think it over"`) || !strings.Contains(b, `"completed_at":7`) {
		t.Error(b)
	}
}

const callF = "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"a\" string=\"true\">x</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"

func TestBugDs4OnSpark20FunctionCallItems(t *testing.T) {
	r := mustDecode(t, with(`"tools":[{"type":"function","name":"f"}]`))
	s, evs := respond(t, r, "why</think>look\n\n"+callF, parse.CauseStop)
	var body struct {
		Output []struct{ Type, Name, Arguments, Phase string }
	}
	if err := json.Unmarshal(s.Body(), &body); err != nil {
		t.Fatal(err)
	}
	if o := body.Output; len(o) != 3 || o[1].Phase != "commentary" || o[2].Type != "function_call" || o[2].Arguments != `{"a": "x"}` {
		t.Fatalf("%s", s.Body())
	}
	for _, ev := range evs {
		if strings.Contains(string(ev.Data), "DSML") {
			t.Fatalf("markup in %s", ev.Data)
		}
	}
}

func TestBugVllm56285DoneItemsEqualTheOutput(t *testing.T) {
	r := mustDecode(t, with(`"tools":[{"type":"function","name":"f"},{"type":"custom","name":"p"}]`))
	s, evs := respond(t, r, "why</think>look\n\n"+callF+callF, parse.CauseLength)
	var done []any
	for _, ev := range evs {
		if ev.Event == "response.output_item.done" {
			var d struct{ Item any }
			if err := json.Unmarshal(ev.Data, &d); err != nil {
				t.Fatal(err)
			}
			done = append(done, d.Item)
		}
	}
	var body struct{ Output []any }
	if err := json.Unmarshal(s.Body(), &body); err != nil {
		t.Fatal(err)
	}
	if len(done) != 4 || !reflect.DeepEqual(done, body.Output) {
		t.Fatalf("done %v\noutput %v", done, body.Output)
	}
}

func TestCustomInputsAreDecodedAsTheyArrive(t *testing.T) {
	for arguments, want := range map[string]string{
		`{"input": "a\"b\\c\n\té\u00e9\ud83d\ude00"}`: "a\"b\\c\n\téé😀",
		`{"input": ""}`:             "",
		`{"input": "x", "more": 1}`: "x",
		`{"wrong": "x"}`:            `{"wrong": "x"}`,
		`{"input": {"a":1}}`:        `{"input": {"a":1}}`,
		`{}`:                        `{}`,
		`{"input": "lone \ud83d."}`: "lone \uFFFD.",
	} {
		for k := 1; k <= len(arguments); k++ {
			var d inputDecoder
			got := ""
			for i := 0; i < len(arguments); i += k {
				got += d.take(arguments[i:min(i+k, len(arguments))])
			}
			if got += d.end(); got != want {
				t.Errorf("%s in pieces of %d: %q, want %q", arguments, k, got, want)
			}
		}
	}
}

func TestEndsOfResponses(t *testing.T) {
	r := mustDecode(t, with(`"reasoning":{"effort":"none"}`))
	_, evs := respond(t, r, "", parse.CauseStop)
	if got := names(evs); got != "created in_progress output_item.added content_part.added output_text.done content_part.done output_item.done completed" {
		t.Errorf("nothing generated: %s", got)
	}
	s, evs := respond(t, r, "", parse.CauseContentFilter)
	if got := names(evs); !strings.Contains(got, "refusal.delta refusal.done") || !strings.HasSuffix(got, "incomplete") || !strings.Contains(string(s.Body()), `"type":"refusal"`) {
		t.Errorf("filtered: %s", got)
	}
	s, evs = respond(t, r, "part", parse.CauseResources)
	if got := names(evs); !strings.HasSuffix(got, "output_text.delta failed") || !strings.Contains(string(s.Body()), `"status":"failed"`) || !strings.Contains(string(s.Body()), `"code":"server_error"`) {
		t.Errorf("failed: %s %s", got, s.Body())
	}
	s = NewStream(r, protocol.Header{ID: "resp_1"})
	evs, err := protocoltest.Frames(s.Fail(nil, protocol.NewError(500, "worker lost")))
	if err != nil || len(evs) != 1 || evs[0].Event != "error" {
		t.Errorf("failure before the start: %v %v", evs, err)
	}
}

func TestBugVllm51651HistoryWithoutReasoningRendersEmptyThinking(t *testing.T) {
	r := mustDecode(t, `{"model":"m","input":[`+user+`,`+callC1+`,`+output1+`],"tools":[{"type":"function","name":"f"}]}`)
	p, err := encoding.Encode(&r.Conversation, protocoltest.Tokenizer(t, false), encoding.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.Text, "<｜Assistant｜><think></think>\n\n<｜DSML｜") {
		t.Fatal(p.Text)
	}
}

func TestInputTokens(t *testing.T) {
	if got := string(InputTokens(3)); got != `{"object":"response.input_tokens","input_tokens":3}` {
		t.Fatal(got)
	}
}

func FuzzDecode(f *testing.F) {
	for _, c := range protocoltest.Read(f, "prompts.jsonl.gz") {
		if c.API == "responses" && len(c.Request) < 2000 {
			f.Add(c.RawBody(), false)
			f.Add(c.RawBody(), true)
		}
	}
	f.Fuzz(func(t *testing.T, body []byte, compat bool) {
		r, err := Decode(body, protocol.Options{Compat: compat})
		if err != nil {
			if e := protocol.AsError(err); e.Status() < 400 || e.Status() > 499 || !json.Valid(e.OpenAI()) {
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
