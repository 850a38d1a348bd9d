package conversation

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Placeholder is how an image is spelled in the text of the JSON form and in prompts. In a Message an image is a part and this spelling
// is ordinary text.
const Placeholder = "<｜image｜>"

// decoder walks a JSON value and remembers the first fault.
type decoder struct {
	c   *Conversation
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf(format, args...)
	}
}

// Decode reads the JSON form of a conversation:
//
//	{"messages": [{"role", "content", "images"?, "reasoning_content"?, "tool_calls"?, "tool_call_id"?, "prefix"?, "tools"?}],
//	 "thinking_mode"?: true, "reasoning_effort"?: "high" | 64, "tools"?: [{"name", "description"?, "parameters"?, "strict"?, "defer_loading"?}],
//	 "tool_choice"?: "auto" | "none" | "required" | {"name"}, "response_format"?: "text" | "json_object", "response_schema"?, "response_regex"?}
//
// The first len(images) placeholders in a content are those images; more of them are ordinary text. Parameters that are absent are null.
func Decode(src []byte) (Conversation, error) {
	v, err := object(src)
	if err != nil {
		return Conversation{}, err
	}
	c := Conversation{Thinking: true}
	d := &decoder{c: &c}
	for i := range v.Members {
		key, val := v.Members[i].Key, &v.Members[i].Value
		if val.Kind == pyjson.Null {
			continue
		}
		switch key {
		case "messages":
			for i, m := range d.list(val, key) {
				c.Messages = append(c.Messages, d.message(&m, fmt.Sprintf("messages[%d]", i)))
			}
		case "thinking_mode":
			c.Thinking = d.flag(val, key)
		case "reasoning_effort":
			c.Effort = d.effort(val)
		case "tools":
			c.Tools = d.tools(val, key)
		case "tool_choice":
			c.ToolChoice = d.choice(val)
		case "response_format":
			switch f := d.text(val, key); f {
			case "text":
			case "json_object":
				c.ResponseFormat.Kind = FormatJSONObject
			default:
				d.fail(`response_format %q: want "text" or "json_object"`, f)
			}
		case "response_schema":
			c.ResponseFormat = ResponseFormat{Kind: FormatJSONSchema, Schema: raw(val)}
		case "response_regex":
			c.ResponseFormat = ResponseFormat{Kind: FormatRegex, Pattern: d.text(val, key)}
		default:
			d.fail("unknown key %q", key)
		}
	}
	return c, wrap(d.err)
}

// DecodeRelease reads the JSON form of the encoder in the model release: messages with content text, reasoning_content, tools and
// response_format on system and developer messages, tool_calls in the shape of Chat Completions, task and wo_eos; beside them
// thinking_mode ("thinking" or "chat"), reasoning_effort, drop_thinking.
func DecodeRelease(src []byte) (Conversation, error) {
	v, err := object(src)
	if err != nil {
		return Conversation{}, err
	}
	c := Conversation{}
	d := &decoder{c: &c}
	for i := range v.Members {
		key, val := v.Members[i].Key, &v.Members[i].Value
		if val.Kind == pyjson.Null {
			continue
		}
		switch key {
		case "messages":
			for i, m := range d.list(val, key) {
				c.Messages = append(c.Messages, d.message(&m, fmt.Sprintf("messages[%d]", i)))
			}
		case "thinking_mode":
			switch mode := d.text(val, key); mode {
			case "thinking":
				c.Thinking = true
			case "chat":
			default:
				d.fail(`thinking_mode %q: want "thinking" or "chat"`, mode)
			}
		case "reasoning_effort":
			c.Effort = d.effort(val)
		case "drop_thinking":
			c.KeepReasoning = !d.flag(val, key)
		default:
			d.fail("unknown key %q", key)
		}
	}
	return c, wrap(d.err)
}

func object(src []byte) (pyjson.Value, error) {
	v, err := pyjson.Parse(src)
	if err == nil && v.Kind != pyjson.Object {
		err = fmt.Errorf("want a JSON object")
	}
	return v, wrap(err)
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("decode conversation: %w", err)
	}
	return nil
}

func raw(v *pyjson.Value) json.RawMessage { return v.Append(nil, pyjson.Exact) }

func (d *decoder) text(v *pyjson.Value, where string) string {
	if v.Kind != pyjson.String {
		d.fail("%s: want a string", where)
	}
	return v.Text
}

func (d *decoder) flag(v *pyjson.Value, where string) bool {
	if v.Kind != pyjson.True && v.Kind != pyjson.False {
		d.fail("%s: want true or false", where)
	}
	return v.Kind == pyjson.True
}

func (d *decoder) list(v *pyjson.Value, where string) []pyjson.Value {
	if v.Kind != pyjson.Array {
		d.fail("%s: want an array", where)
	}
	return v.Elems
}

func (d *decoder) effort(v *pyjson.Value) Effort {
	if v.Kind != pyjson.Number {
		return Effort{Level: EffortLevel(d.text(v, "reasoning_effort"))}
	}
	var n int
	if _, err := fmt.Sscanf(v.Text, "%d", &n); err != nil || fmt.Sprint(n) != v.Text || n < 1 || n > 100 {
		d.fail("reasoning_effort %s: want an integer between 1 and 100", v.Text)
	}
	return Effort{Numeric: n}
}

func (d *decoder) choice(v *pyjson.Value) ToolChoice {
	if v.Kind == pyjson.Object {
		if name := v.Get("name"); name != nil {
			return ToolChoice{Mode: ChoiceNamed, Name: d.text(name, "tool_choice.name")}
		}
	}
	switch s := d.text(v, "tool_choice"); s {
	case "auto":
	case "none":
		return ToolChoice{Mode: ChoiceNone}
	case "required":
		return ToolChoice{Mode: ChoiceRequired}
	default:
		d.fail(`tool_choice %q: want "auto", "none", "required" or an object with a name`, s)
	}
	return ToolChoice{}
}

func (d *decoder) message(v *pyjson.Value, where string) Message {
	m := Message{}
	if v.Kind != pyjson.Object {
		d.fail("%s: want an object", where)
		return m
	}
	var images []Image
	seenRole := false
	for i := range v.Members {
		key, val := v.Members[i].Key, &v.Members[i].Value
		at := where + "." + key
		if val.Kind == pyjson.Null {
			continue
		}
		switch key {
		case "role":
			role := d.text(val, at)
			if m.Role, seenRole = ParseRole(role); !seenRole {
				d.fail("%s: unknown role %q", at, role)
			}
		case "content":
			m.Content = d.text(val, at)
		case "images":
			for _, e := range d.list(val, at) {
				images = append(images, d.image(&e, at))
			}
		case "reasoning_content":
			text := d.text(val, at)
			m.Reasoning = &text
		case "tool_calls":
			m.ToolCalls = []ToolCall{}
			for _, e := range d.list(val, at) {
				m.ToolCalls = append(m.ToolCalls, d.call(&e, at))
			}
		case "tool_call_id":
			m.ToolCallID = d.text(val, at)
		case "prefix", "wo_eos":
			m.Prefix = d.flag(val, at)
		case "task":
			m.Task = Task(d.text(val, at))
			if !m.Task.Valid() {
				d.fail("%s: unknown task %q", at, m.Task)
			}
		case "tools":
			m.Tools = d.tools(val, at)
		case "response_format":
			m.ResponseFormat = ResponseFormat{Kind: FormatJSONSchema, Schema: raw(val)}
			if t := val.Get("type"); t != nil && t.Text == "json_object" && len(val.Members) == 1 {
				m.ResponseFormat = ResponseFormat{Kind: FormatJSONObject}
			}
		default:
			d.fail("%s: unknown key", at)
		}
	}
	if !seenRole {
		d.fail("%s: role is missing", where)
	}
	d.place(&m, images)
	return m
}

// place turns the placeholders of a content into image parts, as many as there are images.
func (d *decoder) place(m *Message, images []Image) {
	first := len(d.c.Images)
	d.c.Images = append(d.c.Images, images...)
	rest := m.Content
	for i := range images {
		before, after, found := strings.Cut(rest, Placeholder)
		if !found {
			break
		}
		if before != "" {
			m.Parts = append(m.Parts, TextPart(before))
		}
		m.Parts = append(m.Parts, ImagePart(first+i))
		rest = after
	}
	if m.Parts != nil {
		m.Content = ""
		if rest != "" {
			m.Parts = append(m.Parts, TextPart(rest))
		}
	}
}

func (d *decoder) image(v *pyjson.Value, where string) Image {
	img := Image{Detail: DetailHigh}
	kind := ""
	for i := range v.Members {
		key, val := v.Members[i].Key, &v.Members[i].Value
		if val.Kind == pyjson.Null {
			continue
		}
		s := d.text(val, where+"."+key)
		switch key {
		case "kind":
			kind = s
		case "url", "data_url":
			img.URL = s
		case "data":
			data, err := base64.StdEncoding.DecodeString(s)
			if err != nil {
				d.fail("%s.data: %w", where, err)
			}
			img.Data = data
		case "detail":
			img.Detail = Detail(s)
		case "path":
			img.Path = s
		default:
			d.fail("%s: unknown key %q", where, key)
		}
	}
	switch kind {
	case "url":
		img.Kind = ImageURL
	case "data_url":
		img.Kind = ImageDataURL
	case "bytes":
		img.Kind = ImageBytes
	default:
		d.fail(`%s: image kind %q: want "url", "data_url" or "bytes"`, where, kind)
	}
	return img
}

// call reads {"id", "name", "arguments"}, with the last two in a "function" object or not.
func (d *decoder) call(v *pyjson.Value, where string) ToolCall {
	var c ToolCall
	if v.Kind != pyjson.Object {
		d.fail("%s: want objects", where)
	}
	for i := range v.Members {
		key, val := v.Members[i].Key, &v.Members[i].Value
		switch key {
		case "id":
			c.ID = d.text(val, where+".id")
		case "type":
		case "name":
			c.Name = d.text(val, where+".name")
		case "arguments":
			c.Arguments = d.text(val, where+".arguments")
		case "function":
			inner := d.call(val, where+".function")
			c.Name, c.Arguments = inner.Name, inner.Arguments
		default:
			d.fail("%s: unknown key %q", where, key)
		}
	}
	return c
}

// tools reads definitions, each either the function itself or {"type": "function", "function": {…}}.
func (d *decoder) tools(v *pyjson.Value, where string) []ToolDef {
	var out []ToolDef
	for _, e := range d.list(v, where) {
		f, wrapped := &e, false
		if inner := e.Get("function"); inner != nil {
			f, wrapped = inner, true
		}
		t := ToolDef{Parameters: json.RawMessage("null")}
		if wrapped {
			t.Source = raw(f)
			t.Parameters = nil
		}
		for i := range f.Members {
			key, val := f.Members[i].Key, &f.Members[i].Value
			at := where + "." + key
			switch {
			case key == "parameters":
				t.Parameters = raw(val)
			case val.Kind == pyjson.Null:
			case key == "name":
				t.Name = d.text(val, at)
			case key == "description":
				text := d.text(val, at)
				t.Description = &text
			case key == "strict":
				on := d.flag(val, at)
				t.Strict = &on
			case key == "defer_loading":
				t.Deferred = d.flag(val, at)
			case !wrapped:
				d.fail("%s: unknown key", at)
			}
		}
		if f.Kind != pyjson.Object || t.Name == "" {
			d.fail("%s: every tool needs a name", where)
		}
		out = append(out, t)
	}
	return out
}
