package conversation

import (
	"reflect"
	"strings"
	"testing"
)

func TestDecodeReadsEveryField(t *testing.T) {
	got, err := Decode([]byte(`{
		"messages": [
			{"role": "system", "content": "S", "tools": [{"name": "late", "description": "d", "parameters": {"b": 1, "a": 1e5}, "strict": true, "defer_loading": true}]},
			{"role": "user", "content": "a <｜image｜> b <｜image｜><｜image｜>", "images": [{"kind": "url", "url": "https://example.org/1.png", "detail": "low", "path": "p"}, {"kind": "data_url", "data_url": "data:,x"}]},
			{"role": "assistant", "content": "", "reasoning_content": "", "tool_calls": [{"id": "c", "name": "f", "arguments": "{}"}]},
			{"role": "tool", "content": "r", "tool_call_id": "c", "images": [{"kind": "bytes", "data": "AAE="}]},
			{"role": "latest_reminder", "content": "m"},
			{"role": "assistant", "content": "x", "reasoning_content": null, "tool_calls": [], "prefix": true}],
		"thinking_mode": false, "reasoning_effort": 64, "tools": [{"name": "f"}], "tool_choice": {"name": "f"}, "response_regex": "a+"}`))
	if err != nil {
		t.Fatal(err)
	}
	yes := true
	want := Conversation{
		Messages: []Message{
			{Role: RoleSystem, Content: "S", Tools: []ToolDef{{Name: "late", Description: ptr("d"), Parameters: []byte(`{"b": 1, "a": 100000.0}`), Strict: &yes, Deferred: true}}},
			{Role: RoleUser, Parts: []Part{TextPart("a "), ImagePart(0), TextPart(" b "), ImagePart(1), TextPart("<｜image｜>")}},
			{Role: RoleAssistant, Reasoning: ptr(""), ToolCalls: []ToolCall{{ID: "c", Name: "f", Arguments: "{}"}}},
			{Role: RoleTool, Content: "r", ToolCallID: "c"},
			{Role: RoleReminder, Content: "m"},
			{Role: RoleAssistant, Content: "x", ToolCalls: []ToolCall{}, Prefix: true},
		},
		Images: []Image{{Kind: ImageURL, URL: "https://example.org/1.png", Detail: DetailLow, Path: "p"}, {Kind: ImageDataURL, URL: "data:,x", Detail: DetailHigh},
			{Kind: ImageBytes, Data: []byte{0, 1}, Detail: DetailHigh}},
		Effort:         Effort{Numeric: 64},
		Tools:          []ToolDef{{Name: "f", Parameters: []byte("null")}},
		ToolChoice:     ToolChoice{Mode: ChoiceNamed, Name: "f"},
		ResponseFormat: ResponseFormat{Kind: FormatRegex, Pattern: "a+"},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
	m := got.Messages[1]
	if m.Text() != "a  b <｜image｜>" || !m.HasImage() || got.Messages[0].HasImage() || got.Messages[0].Text() != "S" {
		t.Errorf("text %q", m.Text())
	}
	if c, err := Decode([]byte(`{}`)); err != nil || !c.Thinking {
		t.Errorf("an empty object: thinking %v, %v", c.Thinking, err)
	}
	for in, want := range map[string]ResponseFormat{
		`{"response_format": "json_object"}`:       {Kind: FormatJSONObject},
		`{"response_format": "text"}`:              {},
		`{"response_schema": {"type": "object"}}`:  {Kind: FormatJSONSchema, Schema: []byte(`{"type": "object"}`)},
		`{"tool_choice": "none", "tools": null}`:   {},
		`{"tool_choice": "required", "tools": []}`: {},
		`{"reasoning_effort": "max"}`:              {},
	} {
		if c, err := Decode([]byte(in)); err != nil || !reflect.DeepEqual(c.ResponseFormat, want) {
			t.Errorf("%s: %+v, %v", in, c.ResponseFormat, err)
		}
	}
}

func TestDecodeReleaseReadsEveryField(t *testing.T) {
	got, err := DecodeRelease([]byte(`{
		"messages": [
			{"role": "developer", "content": "D", "tools": [{"type": "function", "function": {"name": "f", "x-extra": 1, "parameters": {}}}], "response_format": {"type": "json_object"}},
			{"role": "user", "content": "q", "task": "action"},
			{"role": "assistant", "content": "a", "wo_eos": true, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
			{"role": "system", "content": "S", "response_format": {"type": "object"}}],
		"thinking_mode": "thinking", "reasoning_effort": "high", "drop_thinking": false}`))
	if err != nil {
		t.Fatal(err)
	}
	want := Conversation{Thinking: true, KeepReasoning: true, Effort: Effort{Level: EffortHigh}, Messages: []Message{
		{Role: RoleDeveloper, Content: "D", Tools: []ToolDef{{Name: "f", Parameters: []byte("{}"), Source: []byte(`{"name": "f", "x-extra": 1, "parameters": {}}`)}}, ResponseFormat: ResponseFormat{Kind: FormatJSONObject}},
		{Role: RoleUser, Content: "q", Task: TaskAction},
		{Role: RoleAssistant, Content: "a", Prefix: true, ToolCalls: []ToolCall{{ID: "c", Name: "f", Arguments: "{}"}}},
		{Role: RoleSystem, Content: "S", ResponseFormat: ResponseFormat{Kind: FormatJSONSchema, Schema: []byte(`{"type": "object"}`)}},
	}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\n got %+v\nwant %+v", got, want)
	}
}

func TestDecodeNamesTheFault(t *testing.T) {
	for _, c := range []struct {
		decode   func([]byte) (Conversation, error)
		in, want string
	}{
		{Decode, `[]`, "object"},
		{Decode, `{`, "byte 1"},
		{Decode, `{"mesages": []}`, `"mesages"`},
		{Decode, `{"messages": 7}`, "messages"},
		{Decode, `{"messages": [7]}`, "messages[0]"},
		{Decode, `{"messages": [{"content": "x"}]}`, "messages[0]: role"},
		{Decode, `{"messages": [{"role": "user"}, {"role": "king"}]}`, `messages[1].role: unknown role "king"`},
		{Decode, `{"messages": [{"role": "user", "content": 7}]}`, "messages[0].content"},
		{Decode, `{"messages": [{"role": "user", "colour": "red"}]}`, "messages[0].colour"},
		{Decode, `{"messages": [{"role": "user", "prefix": "yes"}]}`, "messages[0].prefix"},
		{Decode, `{"messages": [{"role": "user", "task": "dance"}]}`, `"dance"`},
		{Decode, `{"messages": [{"role": "user", "images": [{"kind": "film"}]}]}`, `"film"`},
		{Decode, `{"messages": [{"role": "user", "images": [{"kind": "url", "size": "1"}]}]}`, `"size"`},
		{Decode, `{"messages": [{"role": "user", "images": [{"kind": "bytes", "data": "*"}]}]}`, "base64"},
		{Decode, `{"messages": [{"role": "assistant", "tool_calls": [{"nom": "f"}]}]}`, `"nom"`},
		{Decode, `{"messages": [{"role": "assistant", "tool_calls": [7]}]}`, "tool_calls"},
		{Decode, `{"tools": [{"description": "d"}]}`, "name"},
		{Decode, `{"tools": [{"name": "f", "colour": "red"}]}`, "tools.colour"},
		{Decode, `{"tool_choice": "maybe"}`, `"maybe"`},
		{Decode, `{"response_format": "xml"}`, `"xml"`},
		{Decode, `{"reasoning_effort": 0}`, "1 and 100"},
		{Decode, `{"reasoning_effort": 1.5}`, "1.5"},
		{Decode, `{"thinking_mode": "on"}`, "thinking_mode"},
		{DecodeRelease, `{"thinking_mode": "on"}`, `"on"`},
		{DecodeRelease, `{"colour": "red"}`, `"colour"`},
		{DecodeRelease, `{"drop_thinking": 1}`, "drop_thinking"},
	} {
		if _, err := c.decode([]byte(c.in)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one about %s", c.in, err, c.want)
		}
	}
}

func TestSpellings(t *testing.T) {
	if s := (ChoiceNamed).String() + ChoiceAuto.String() + ChoiceNone.String() + ChoiceRequired.String() + ToolChoiceMode(9).String(); s != "namedautononerequiredinvalid" {
		t.Errorf("choices %s", s)
	}
	if s := StageOff.String() + " " + StageReasoning.String() + " " + StageReasoningContinuation.String() + " " + StageContentContinuation.String() + " " + Stage(9).String(); s != "off reasoning_start reasoning_continuation content_continuation invalid" {
		t.Errorf("stages %s", s)
	}
}
