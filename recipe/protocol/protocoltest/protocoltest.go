// Package protocoltest holds the protocol packages to the recorded behaviour of the reference adapter. Tests of recipe/chat,
// recipe/responses and recipe/messages call [Prompts], [Limits] and [Streams] with their decoder and encoder; nothing else uses it.
//
// A line of prompts.jsonl is {id, api, profile, options?, request} with either error {stage, status, message} or prompt, special_ranges,
// tokens, conversation, images, inference and parsing. stage "decode" promises the status only, "convert" the text too. A request that is
// a string is the raw body. streams.jsonl adds chunks, finish and what came of them: sse, done and body.
//
// The functions read files of the repository and are safe for parallel tests.
package protocoltest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

// Case is a line of any of the files.
type Case struct {
	ID      string
	API     string
	Profile string
	Options *struct {
		DefaultThinkingMode      *bool             `json:"default_thinking_mode"`
		ReasoningContentBehavior string            `json:"reasoning_content_behavior"`
		ResponsesWebSearch       string            `json:"responses_web_search"`
		MessagesWebSearch        string            `json:"messages_web_search"`
		ThinkingBound            int64             `json:"thinking_max_tokens_upper_bound"`
		PlainBound               int64             `json:"non_thinking_max_tokens_upper_bound"`
		Aliases                  map[string]string `json:"aliases"`
	}
	Request json.RawMessage
	Error   *struct {
		Stage   string
		Status  int
		Message string
	}
	Prompt        string
	SpecialRanges [][2]int `json:"special_ranges"`
	Tokens        []int32
	Conversation  *struct {
		ThinkingMode    bool    `json:"thinking_mode"`
		ReasoningEffort *string `json:"reasoning_effort"`
		ToolChoice      string  `json:"tool_choice"`
		ResponseFormat  string  `json:"response_format"`
		Tools           []string
		Roles           []string
	}
	Images []struct {
		Kind    string
		Detail  string
		Path    string
		URL     string
		DataURL string `json:"data_url"`
	}
	Inference *struct {
		MaxTokens   *int64 `json:"max_tokens"`
		Temperature *float64
		TopP        *float64 `json:"top_p"`
		Logprobs    bool
		TopLogprobs *int `json:"top_logprobs"`
		Seed        *int64
		Constraint  *struct {
			Kind   string
			Schema string
		}
	}
	ParsingOptions *struct {
		ParseToolCalls    bool     `json:"parse_tool_calls"`
		StartsInToolCalls bool     `json:"starts_in_tool_calls"`
		ParseJSONOutput   bool     `json:"parse_json_output"`
		Stage             string   `json:"thinking_initial_stage"`
		StopSequences     []string `json:"stop_sequences"`
	} `json:"parsing"`
	Stream          *bool
	NamespaceTools  map[string][2]string `json:"namespace_tools"`
	ResolvedProfile string               `json:"resolved_profile"`

	PromptTokens int64  `json:"prompt_tokens"`
	ContextLimit int64  `json:"context_limit"`
	MaxTokens    *int64 `json:"max_tokens"`

	PromptUsage struct {
		PromptTokens int64 `json:"prompt_tokens"`
		Cached       int64 `json:"prompt_cache_hit_tokens"`
	} `json:"prompt_usage"`
	SystemFingerprint *string `json:"system_fingerprint"`
	Chunks            []json.RawMessage
	Finish            *string
	Signature         *string
	Ready             *bool
	SSE               []Event
	Done              *string
	Body              json.RawMessage
	Consumed          *int
}

// Event is one event of a recorded stream.
type Event struct {
	Step  int
	Event string
	Data  json.RawMessage
}

// Read reads a file of testdata/recipe.
func Read(t testing.TB, name string) []Case {
	t.Helper()
	data, err := os.ReadFile(tokentest.Path("testdata", "recipe", name))
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".gz") {
		z, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if data, err = io.ReadAll(z); err != nil {
			t.Fatal(err)
		}
	}
	var cases []Case
	for _, line := range strings.Split(string(data), "\n") {
		if line == "" {
			continue
		}
		var c Case
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatalf("%s: %v", line[:min(len(line), 80)], err)
		}
		cases = append(cases, c)
	}
	return cases
}

// RawBody is the request's body. Strings in a request that is JSON keep their escapes, so lone surrogates stay what they are.
func (c *Case) RawBody() []byte {
	if c.Request[0] == '"' {
		var s string
		if json.Unmarshal(c.Request, &s) == nil {
			return []byte(s)
		}
	}
	return c.Request
}

// Decoding gives the options of the case.
func (c *Case) Decoding() protocol.Options {
	o := protocol.Options{Compat: true}
	if c.Options == nil {
		return o
	}
	o.ThinkingOff = c.Options.DefaultThinkingMode != nil && !*c.Options.DefaultThinkingMode
	o.RequireReasoning = c.Options.ReasoningContentBehavior == "reject"
	switch c.Options.ResponsesWebSearch + c.Options.MessagesWebSearch {
	case "reject":
		o.WebSearch = protocol.WebSearchReject
	case "drop":
		o.WebSearch = protocol.WebSearchDrop
	}
	o.ThinkingMaxTokens, o.PlainMaxTokens = c.Options.ThinkingBound, c.Options.PlainBound
	for name, profile := range c.Options.Aliases {
		if o.Models == nil {
			o.Models = map[string]protocol.Model{}
		}
		o.Models[name] = protocol.Model{Name: name, V4: profile == "v4/recipe"}
	}
	return o
}

// Tokenizer is the one that the recording used.
func Tokenizer(t testing.TB, v4 bool) *token.Tokenizer {
	if v4 {
		return tokentest.Load(t, "v4")
	}
	return tokentest.Load(t, "v4.1-recipe")
}

// Decode is the decoder under test.
type Decode func(body []byte, opts protocol.Options) (*protocol.Request, error)

func (c *Case) checkError(err error) string {
	e := protocol.AsError(err)
	if e.Status() != c.Error.Status {
		return fmt.Sprintf("status %d (%v), want %d %s", e.Status(), err, c.Error.Status, c.Error.Message)
	}
	if c.Error.Stage == "convert" {
		var body struct {
			Error struct {
				Message, Type, Code string
				Param               *string
			}
		}
		if err := json.Unmarshal(e.OpenAI(), &body); err != nil {
			return err.Error()
		}
		if b := body.Error; b.Message != c.Error.Message || b.Type != "invalid_request_error" || b.Code != b.Type || b.Param != nil {
			return fmt.Sprintf("%s\n got %s\nwant %s", c.Request[:min(len(c.Request), 600)], b.Message, c.Error.Message)
		}
	}
	return ""
}

// Prompts runs every recorded request of one protocol.
func Prompts(t *testing.T, api string, want int, decode Decode) {
	ran := 0
	for _, c := range Read(t, "prompts.jsonl.gz") {
		if c.API != api {
			continue
		}
		ran++
		t.Run(c.ID, func(t *testing.T) {
			r, err := decode(c.RawBody(), c.Decoding())
			switch {
			case c.Error != nil && err == nil:
				t.Fatalf("no error, want %s %s\n%s", c.Error.Stage, c.Error.Message, c.Request[:min(len(c.Request), 900)])
			case c.Error != nil:
				if problem := c.checkError(err); problem != "" {
					t.Fatal(problem)
				}
				return
			case err != nil:
				t.Fatalf("%v\n%s", err, c.Request[:min(len(c.Request), 900)])
			}
			c.check(t, r)
		})
	}
	if ran != want {
		t.Fatalf("%d cases of %s, want %d", ran, api, want)
	}
}

func (c *Case) check(t *testing.T, r *protocol.Request) {
	conv := &r.Conversation
	if c.Conversation != nil {
		effort := ""
		if c.Conversation.ReasoningEffort != nil {
			effort = *c.Conversation.ReasoningEffort
		}
		if conv.Thinking != c.Conversation.ThinkingMode || string(conv.Effort.Level) != effort {
			t.Errorf("thinking %v %q, want %v %q", conv.Thinking, conv.Effort.Level, c.Conversation.ThinkingMode, effort)
		}
		choice := conv.ToolChoice.Mode.String()
		if choice == "named" {
			choice = "required"
		}
		if choice != c.Conversation.ToolChoice {
			t.Errorf("tool choice %s, want %s", choice, c.Conversation.ToolChoice)
		}
		if f := [...]string{"text", "json_object", "json_schema", "regex"}[conv.ResponseFormat.Kind]; f != c.Conversation.ResponseFormat {
			t.Errorf("format %s, want %s", f, c.Conversation.ResponseFormat)
		}
		var names, roles []string
		for _, tool := range conv.ActiveTools() {
			names = append(names, tool.Name)
		}
		for i := range conv.Messages {
			roles = append(roles, conv.Messages[i].Role.String())
		}
		if strings.Join(names, " ") != strings.Join(c.Conversation.Tools, " ") {
			t.Errorf("tools %v, want %v", names, c.Conversation.Tools)
		}
		if strings.Join(roles, " ") != strings.Join(c.Conversation.Roles, " ") {
			t.Errorf("roles %v, want %v", roles, c.Conversation.Roles)
		}
	}
	if in := c.Inference; in != nil {
		temperature, topP := r.Sampling()
		if in.Temperature == nil || in.TopP == nil || temperature != *in.Temperature || topP != *in.TopP {
			t.Errorf("temperature %v, top_p %v, want %v", temperature, topP, in)
		}
		if !reflect.DeepEqual(r.Params.MaxTokens, in.MaxTokens) {
			t.Errorf("max_tokens differ")
		}
		if r.Params.Logprobs != in.Logprobs || !reflect.DeepEqual(r.Params.TopLogprobs, in.TopLogprobs) || !reflect.DeepEqual(r.Params.Seed, in.Seed) {
			t.Errorf("logprobs %v %v, seed %v, want %+v", r.Params.Logprobs, r.Params.TopLogprobs, r.Params.Seed, in)
		}
		switch {
		case in.Constraint == nil && r.Constraint != nil, in.Constraint != nil && r.Constraint == nil:
			t.Errorf("constraint %+v, want %+v", r.Constraint, in.Constraint)
		case in.Constraint != nil && (string(r.Constraint.Kind) != in.Constraint.Kind || r.Constraint.Schema != in.Constraint.Schema):
			t.Errorf("constraint\n got %+v\nwant %+v", *r.Constraint, *in.Constraint)
		}
	}
	if want := c.ParsingOptions; want != nil {
		p := r.Parsing()
		if p.ToolCalls != want.ParseToolCalls || p.StartsInCalls != want.StartsInToolCalls || p.JSONOutput != want.ParseJSONOutput ||
			p.Stage.String() != want.Stage || strings.Join(p.StopStrings, "\x00") != strings.Join(want.StopSequences, "\x00") {
			t.Errorf("parsing %+v, want %+v", p, *want)
		}
	}
	if c.Stream != nil && r.Stream != *c.Stream {
		t.Errorf("stream %v", r.Stream)
	}
	profile := c.Profile
	if c.ResolvedProfile != "" {
		profile = c.ResolvedProfile
	}
	if r.Target.V4 != (profile == "v4/recipe") {
		t.Errorf("family of %s, want %s", r.Model, profile)
	}
	p, err := encoding.Encode(conv, Tokenizer(t, r.Target.V4), encoding.Options{Profile: encoding.Profile(profile), Compat: true})
	if err != nil {
		t.Fatal(err)
	}
	if p.Text != c.Prompt {
		i := 0
		for i < len(p.Text) && i < len(c.Prompt) && p.Text[i] == c.Prompt[i] {
			i++
		}
		i = max(0, i-40)
		t.Fatalf("prompt\n got …%q\nwant …%q", p.Text[i:min(len(p.Text), i+200)], c.Prompt[i:min(len(c.Prompt), i+200)])
	}
	if !reflect.DeepEqual(p.Tokens, c.Tokens) {
		t.Errorf("tokens differ")
	}
	if len(p.SpecialRanges) != len(c.SpecialRanges) || len(c.SpecialRanges) > 0 && !reflect.DeepEqual(p.SpecialRanges, c.SpecialRanges) {
		t.Errorf("special ranges differ")
	}
	if len(p.Images) != len(c.Images) {
		t.Fatalf("%d images, want %d", len(p.Images), len(c.Images))
	}
	for i, span := range p.Images {
		img, want := conv.Images[span.Image], c.Images[i]
		kind := "url"
		if img.Kind == conversation.ImageDataURL {
			kind = "data_url"
		}
		if kind != want.Kind || string(img.Detail) != want.Detail || img.Path != want.Path || img.URL != want.URL+want.DataURL {
			t.Errorf("image %d: %+v, want %+v", i, img, want)
		}
	}
}

// Limits runs the recorded token budgets of one protocol.
func Limits(t *testing.T, api string, want int, decode Decode) {
	ran := 0
	for _, c := range Read(t, "limits.jsonl") {
		if c.API != api {
			continue
		}
		ran++
		r, err := decode(c.RawBody(), c.Decoding())
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			continue
		}
		n, err := r.ResolveMaxTokens(c.PromptTokens, c.ContextLimit)
		switch {
		case c.Error != nil && err == nil:
			t.Errorf("%s: %d, want an error", c.ID, n)
		case c.Error != nil:
			if problem := c.checkError(err); problem != "" {
				t.Errorf("%s: %s", c.ID, problem)
			}
		case err != nil || n != *c.MaxTokens:
			t.Errorf("%s: %d, %v, want %d", c.ID, n, err, *c.MaxTokens)
		}
	}
	if ran != want {
		t.Fatalf("%d cases of %s, want %d", ran, api, want)
	}
}

// Encoder is the response encoder under test.
type Encoder interface {
	Start(dst []byte) []byte
	Events(dst []byte, choice int, events []parse.Event, usage parse.Usage) []byte
	Close(dst []byte) []byte
	Body() []byte
}

// Open decodes a request and makes the encoder of its response.
type Open func(body []byte, opts protocol.Options, h protocol.Header, c *Case) (*protocol.Request, Encoder, error)

// Streams runs every recorded stream of one protocol: the events with their steps, adjacent pieces of one text joined, and the body.
func Streams(t *testing.T, api string, want int, open Open) {
	ran := 0
	for _, c := range Read(t, "streams.jsonl.gz") {
		if c.API != api {
			continue
		}
		ran++
		t.Run(c.ID, func(t *testing.T) {
			h := protocol.Header{ID: "R", Created: 1700000000, Model: "M", Fingerprint: c.SystemFingerprint,
				Prompt: c.PromptUsage.PromptTokens, Cached: c.PromptUsage.Cached,
				CallID: func(n int) string { return fmt.Sprintf("call_%02d_R", n) }}
			ready := c.Ready == nil || *c.Ready
			if !ready {
				h.Prompt, h.Cached = 0, 0
			}
			r, enc, err := open(c.RawBody(), c.Decoding(), h, &c)
			if err != nil {
				t.Fatal(err)
			}
			got := c.drive(t, r, enc, ready)
			compare(t, api, got, c.SSE)
			var a, b any
			if err := json.Unmarshal(enc.Body(), &a); err != nil {
				t.Fatalf("body: %v\n%s", err, enc.Body())
			}
			if err := json.Unmarshal(c.Body, &b); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(a, b) {
				x, _ := json.Marshal(a)
				y, _ := json.Marshal(b)
				t.Errorf("body\n got %s\nwant %s", x, y)
			}
		})
	}
	if ran != want {
		t.Fatalf("%d cases of %s, want %d", ran, api, want)
	}
}

// Chunk is one push of model output.
type Chunk struct {
	Text     string
	N        int
	IsText   bool
	IDs      []int32
	Logprobs []parse.Logprob
}

// ParseChunk reads a chunk: text that counts as one token, ids, {text, n} or {tokens, logprobs}.
func ParseChunk(raw json.RawMessage) (Chunk, error) {
	var c Chunk
	ids := func(raw json.RawMessage) error {
		var wide []int64
		if err := json.Unmarshal(raw, &wide); err != nil {
			return err
		}
		for _, id := range wide {
			if id > 1<<31-1 {
				id = -1
			}
			c.IDs = append(c.IDs, int32(id))
		}
		return nil
	}
	switch raw[0] {
	case '"':
		c.N, c.IsText = 1, true
		return c, json.Unmarshal(raw, &c.Text)
	case '[':
		return c, ids(raw)
	}
	var o struct {
		Text     *string
		N        int
		Tokens   json.RawMessage
		Logprobs [][2]json.RawMessage
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return c, err
	}
	if o.Text != nil {
		c.Text, c.N, c.IsText = *o.Text, o.N, true
		return c, nil
	}
	for _, pair := range o.Logprobs {
		var lp parse.Logprob
		var top [][2]float64
		if err := json.Unmarshal(pair[0], &lp.Logprob); err != nil {
			return c, err
		}
		if err := json.Unmarshal(pair[1], &top); err != nil {
			return c, err
		}
		for _, a := range top {
			lp.Top = append(lp.Top, parse.TopLogprob{ID: int32(a[0]), Logprob: a[1]})
		}
		c.Logprobs = append(c.Logprobs, lp)
	}
	return c, ids(o.Tokens)
}

// drive runs the chunks through the parser and the encoder.
func (c *Case) drive(t *testing.T, r *protocol.Request, enc Encoder, ready bool) []Event {
	t.Helper()
	p, err := parse.New(parse.Options{Parsing: r.Parsing(), Compat: true, Tools: parse.ToolsOf(&r.Conversation), Vocabulary: Tokenizer(t, r.Target.V4)})
	if err != nil {
		t.Fatal(err)
	}
	var out []Event
	take := func(step int, frames []byte) {
		evs, err := Frames(frames)
		if err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			ev.Step = step
			out = append(out, ev)
		}
	}
	step := -1
	if ready {
		take(-1, enc.Start(nil))
	}
	for i, raw := range c.Chunks {
		if p.Done() {
			break
		}
		k, err := ParseChunk(raw)
		if err != nil {
			t.Fatal(err)
		}
		var evs []parse.Event
		if k.IsText {
			evs = p.Text(nil, k.Text, k.N)
		} else if evs, err = p.Tokens(nil, k.IDs, k.Logprobs); err != nil {
			t.Fatal(err)
		}
		if !ready && i == 0 {
			take(0, enc.Start(nil))
		}
		step = i
		take(step, enc.Events(nil, 0, evs, p.Usage()))
	}
	if !p.Done() {
		step = len(c.Chunks)
		cause := parse.CauseEnd
		if c.Finish != nil {
			cause = map[string]parse.Cause{"stop": parse.CauseStop, "length": parse.CauseLength, "content_filter": parse.CauseContentFilter}[*c.Finish]
		}
		evs := p.Finish(nil, cause)
		take(step, enc.Events(nil, 0, evs, p.Usage()))
	}
	if closing := enc.Close(nil); c.Done != nil {
		if string(closing) != "data: "+*c.Done+"\n\n" {
			t.Errorf("closing %q, want %s", closing, *c.Done)
		}
	} else if len(closing) > 0 {
		t.Errorf("closing %q, want nothing", closing)
	}
	return out
}

// Frames splits an event stream. Every event must be a data line, alone or after an event line, and its data must be JSON or [DONE].
func Frames(b []byte) ([]Event, error) {
	var out []Event
	for len(b) > 0 {
		frame, rest, ok := bytes.Cut(b, []byte("\n\n"))
		if !ok {
			return nil, fmt.Errorf("frame without an end: %q", b)
		}
		b = rest
		var ev Event
		if name, data, ok := bytes.Cut(frame, []byte("\n")); ok {
			if !bytes.HasPrefix(name, []byte("event: ")) {
				return nil, fmt.Errorf("frame %q", frame)
			}
			ev.Event, frame = string(name[len("event: "):]), data
		}
		if !bytes.HasPrefix(frame, []byte("data: ")) || bytes.IndexByte(frame, '\n') >= 0 {
			return nil, fmt.Errorf("frame %q", frame)
		}
		ev.Data = json.RawMessage(frame[len("data: "):])
		if !json.Valid(ev.Data) && string(ev.Data) != "[DONE]" {
			return nil, fmt.Errorf("data is not JSON: %s", ev.Data)
		}
		out = append(out, ev)
	}
	return out, nil
}

// compare compares streams after joining what a recording may cut differently.
func compare(t *testing.T, api string, got, want []Event) {
	t.Helper()
	a, b := join(t, api, got), join(t, api, want)
	for i := 0; i < len(a) || i < len(b); i++ {
		if i >= len(a) || i >= len(b) || !reflect.DeepEqual(a[i], b[i]) {
			var x, y []byte
			if i < len(a) {
				x, _ = json.Marshal(a[i])
			}
			if i < len(b) {
				y, _ = json.Marshal(b[i])
			}
			t.Fatalf("event %d\n got %s\nwant %s", i, x, y)
		}
	}
}

type joined struct {
	Step  int
	Event string
	Data  map[string]any
}

// join merges adjacent text pieces of the same step and place, and takes sequence numbers out after checking them.
func join(t *testing.T, api string, events []Event) []joined {
	t.Helper()
	var out []joined
	for i, ev := range events {
		j := joined{Step: ev.Step, Event: ev.Event}
		if err := json.Unmarshal(ev.Data, &j.Data); err != nil {
			t.Fatalf("%s: %v", ev.Data, err)
		}
		if n, ok := j.Data["sequence_number"]; ok {
			if int(n.(float64)) != i {
				t.Fatalf("event %d has sequence number %v", i, n)
			}
			delete(j.Data, "sequence_number")
		}
		text := pieceOf(j.Data)
		if n := len(out); n > 0 && text != nil && out[n-1].Step == j.Step && out[n-1].Event == j.Event {
			if before := pieceOf(out[n-1].Data); before != nil {
				a, b := *before.get(), *text.get()
				before.set("")
				text.set("")
				same := reflect.DeepEqual(out[n-1].Data, j.Data)
				before.set(a)
				text.set(b)
				if same {
					before.set(a + b)
					continue
				}
			}
		}
		out = append(out, j)
	}
	return out
}

// piece is a string inside an event that may be cut anywhere.
type piece struct {
	in  map[string]any
	key string
}

func (p *piece) get() *string { s := p.in[p.key].(string); return &s }
func (p *piece) set(s string) { p.in[p.key] = s }

func pieceOf(data map[string]any) *piece {
	if s, ok := data["delta"].(string); ok && s != "" {
		return &piece{data, "delta"}
	}
	if d, ok := data["delta"].(map[string]any); ok {
		for _, key := range []string{"text", "thinking", "partial_json"} {
			if _, ok := d[key].(string); ok {
				return &piece{d, key}
			}
		}
	}
	choices, ok := data["choices"].([]any)
	if !ok || len(choices) == 0 {
		return nil
	}
	c := choices[0].(map[string]any)
	if c["logprobs"] != nil || c["finish_reason"] != nil {
		return nil
	}
	d := c["delta"].(map[string]any)
	if _, ok := d["role"]; ok {
		return nil
	}
	if calls, ok := d["tool_calls"].([]any); ok {
		call := calls[0].(map[string]any)
		if _, ok := call["id"]; ok {
			return nil
		}
		return &piece{call["function"].(map[string]any), "arguments"}
	}
	for _, key := range []string{"content", "reasoning_content"} {
		if s, ok := d[key].(string); ok && s != "" {
			return &piece{d, key}
		}
	}
	return nil
}
