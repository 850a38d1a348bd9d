package protocoltest_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicsse "github.com/anthropics/anthropic-sdk-go/packages/ssestream"
	"github.com/openai/openai-go/v3"
	openaisse "github.com/openai/openai-go/v3/packages/ssestream"
	openairesponses "github.com/openai/openai-go/v3/responses"

	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
)

// stream runs a recorded case with the hardened default, its text cut at random, and gives the whole event stream and the body.
func stream(t *testing.T, c *protocoltest.Case, rng *rand.Rand) (sse, body []byte) {
	t.Helper()
	h := protocol.Header{ID: "resp_1a2b", Created: 1700000000, Model: "m", Prompt: 12, Cached: 5}
	var r *protocol.Request
	var enc protocoltest.Encoder
	switch c.API {
	case "chat":
		h.ID = "chatcmpl-1a2b"
		req, err := chat.Decode(c.RawBody(), protocol.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, enc = &req.Request, chat.NewStream(req, h)
	case "responses":
		req, err := responses.Decode(bytes.Replace(c.RawBody(), []byte(`"previous_response_id":"resp_1"`), []byte(`"x":0`), 1), protocol.Options{})
		if err != nil {
			t.Fatal(err)
		}
		r, enc = &req.Request, responses.NewStream(req, h)
	default:
		h.ID = "msg_1a2b"
		req, err := messages.Decode(c.RawBody(), protocol.Options{})
		if err != nil {
			t.Fatal(err)
		}
		s := messages.NewStream(req, h)
		s.SetKey([]byte("key"))
		r, enc = &req.Request, s
	}
	p, err := parse.New(parse.Options{Parsing: r.Parsing(), Tools: parse.ToolsOf(&r.Conversation), Vocabulary: protocoltest.Tokenizer(t, r.Target.V4)})
	if err != nil {
		t.Fatal(err)
	}
	sse = enc.Start(sse)
	push := func(evs []parse.Event) { sse = enc.Events(sse, 0, evs, p.Usage()) }
	for _, raw := range c.Chunks {
		k, err := protocoltest.ParseChunk(raw)
		if err != nil {
			t.Fatal(err)
		}
		if !k.IsText {
			evs, err := p.Tokens(nil, k.IDs, k.Logprobs)
			if err != nil {
				t.Fatal(err)
			}
			push(evs)
		}
		for rest := k.Text; rest != ""; {
			n := min(1+rng.IntN(20), len(rest))
			push(p.Text(nil, rest[:n], 1))
			rest = rest[n:]
		}
	}
	cause := parse.CauseEnd
	if c.Finish != nil {
		cause = map[string]parse.Cause{"stop": parse.CauseStop, "length": parse.CauseLength, "content_filter": parse.CauseContentFilter}[*c.Finish]
	}
	push(p.Finish(nil, cause))
	return enc.Close(sse), enc.Body()
}

func response(sse []byte) *http.Response {
	return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"text/event-stream; charset=utf-8"}}, Body: io.NopCloser(bytes.NewReader(sse))}
}

func cases(t *testing.T, api string, run func(t *testing.T, sse, body []byte)) {
	t.Helper()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, c := range protocoltest.Read(t, "streams.jsonl.gz") {
		if c.API != api {
			continue
		}
		t.Run(c.ID, func(t *testing.T) {
			for i := 0; i < 3; i++ {
				sse, body := stream(t, &c, rng)
				if _, err := protocoltest.Frames(sse); err != nil {
					t.Fatal(err)
				}
				run(t, sse, body)
			}
		})
	}
}

// TestOpenAIClientFoldsChatStreams: what the official client makes of the events is what the body says.
func TestOpenAIClientFoldsChatStreams(t *testing.T) {
	cases(t, "chat", func(t *testing.T, sse, body []byte) {
		s := openaisse.NewStream[openai.ChatCompletionChunk](openaisse.NewDecoder(response(sse)), nil)
		var acc openai.ChatCompletionAccumulator
		reasoning := ""
		for s.Next() {
			chunk := s.Current()
			if !acc.AddChunk(chunk) {
				t.Fatalf("chunk does not fit: %s", chunk.RawJSON())
			}
			for _, c := range chunk.Choices {
				var d struct {
					Reasoning string `json:"reasoning_content"`
				}
				if err := json.Unmarshal([]byte(c.Delta.RawJSON()), &d); err != nil {
					t.Fatal(err)
				}
				reasoning += d.Reasoning
			}
		}
		if err := s.Err(); err != nil {
			t.Fatalf("%v\n%s", err, sse)
		}
		var want openai.ChatCompletion
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		a, b := acc.Choices[0], want.Choices[0]
		if a.Message.Content != b.Message.Content || a.FinishReason != b.FinishReason || len(a.Message.ToolCalls) != len(b.Message.ToolCalls) {
			t.Fatalf("folded %+v\nbody %s", a.Message, body)
		}
		for i, k := range b.Message.ToolCalls {
			got := a.Message.ToolCalls[i]
			if got.ID != k.ID || got.Function.Name != k.Function.Name || got.Function.Arguments != k.Function.Arguments || !json.Valid([]byte(k.Function.Arguments)) {
				t.Fatalf("call %d: %+v, body %+v", i, got, k)
			}
		}
		var r struct {
			Choices []struct {
				Message struct {
					Reasoning string `json:"reasoning_content"`
				}
			}
		}
		if err := json.Unmarshal(body, &r); err != nil || r.Choices[0].Message.Reasoning != reasoning {
			t.Fatalf("reasoning %q, body %s", reasoning, body)
		}
		if acc.Usage.CompletionTokens != want.Usage.CompletionTokens || want.Usage.TotalTokens != want.Usage.PromptTokens+want.Usage.CompletionTokens {
			t.Fatalf("usage %+v, body %+v", acc.Usage, want.Usage)
		}
	})
}

// TestOpenAIClientFoldsResponsesStreams checks numbering, that the deltas of every item give its done event, and that the done items are the
// output of the terminal event and of the body.
func TestOpenAIClientFoldsResponsesStreams(t *testing.T) {
	cases(t, "responses", func(t *testing.T, sse, body []byte) {
		s := openaisse.NewStream[openairesponses.ResponseStreamEventUnion](openaisse.NewDecoder(response(sse)), nil)
		next, deltas := int64(0), map[string]string{}
		var items []any
		var terminal string
		decode := func(raw string) (v any) {
			if err := json.Unmarshal([]byte(raw), &v); err != nil {
				t.Fatal(err)
			}
			return v
		}
		for s.Next() {
			ev := s.Current()
			if ev.SequenceNumber != next || terminal != "" {
				t.Fatalf("event %d %s after %q, want %d", ev.SequenceNumber, ev.Type, terminal, next)
			}
			next++
			done := func(text string) {
				if deltas[ev.ItemID] != text {
					t.Fatalf("%s: %q, deltas %q", ev.Type, text, deltas[ev.ItemID])
				}
			}
			switch ev.Type {
			case "response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta", "response.custom_tool_call_input.delta", "response.refusal.delta":
				deltas[ev.ItemID] += ev.Delta
			case "response.output_text.done", "response.reasoning_text.done":
				done(ev.Text)
			case "response.function_call_arguments.done":
				done(ev.Arguments)
				if !json.Valid([]byte(ev.Arguments)) {
					t.Fatalf("arguments %q", ev.Arguments)
				}
			case "response.custom_tool_call_input.done":
				done(ev.Input)
			case "response.output_item.done":
				var outer struct {
					Item any
				}
				if err := json.Unmarshal([]byte(ev.RawJSON()), &outer); err != nil {
					t.Fatal(err)
				}
				items = append(items, outer.Item)
			case "response.completed", "response.incomplete", "response.failed":
				terminal = ev.Response.RawJSON()
			}
		}
		if err := s.Err(); err != nil {
			t.Fatalf("%v\n%s", err, sse)
		}
		var want openairesponses.Response
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		final := decode(string(body)).(map[string]any)
		if !reflect.DeepEqual(decode(terminal), any(final)) {
			t.Fatalf("terminal event\n%s\nbody\n%s", terminal, body)
		}
		output := final["output"].([]any)
		if len(items) == 0 || !reflect.DeepEqual(items, output) {
			t.Fatalf("items %v\noutput %v", items, output)
		}
		for _, key := range []string{"instructions", "metadata", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "max_output_tokens",
			"previous_response_id", "reasoning", "text", "truncation", "store", "background", "top_logprobs", "user", "service_tier", "usage", "error", "incomplete_details"} {
			if _, ok := final[key]; !ok {
				t.Errorf("the response lacks %s", key)
			}
		}
	})
}

// TestAnthropicClientFoldsMessageStreams: what the official client makes of the events is what the body says.
func TestAnthropicClientFoldsMessageStreams(t *testing.T) {
	cases(t, "messages", func(t *testing.T, sse, body []byte) {
		s := anthropicsse.NewStream[anthropic.MessageStreamEventUnion](anthropicsse.NewDecoder(response(sse)), nil)
		var acc anthropic.Message
		first := true
		for s.Next() {
			ev := s.Current()
			if err := acc.Accumulate(ev); err != nil {
				t.Fatalf("%v: %s", err, ev.RawJSON())
			}
			if first {
				first = false
				if u := ev.Message.Usage; ev.Type != "message_start" || u.InputTokens != 7 || u.CacheReadInputTokens != 5 {
					t.Fatalf("first event %s", ev.RawJSON())
				}
			}
		}
		if err := s.Err(); err != nil {
			t.Fatalf("%v\n%s", err, sse)
		}
		var want anthropic.Message
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		if acc.StopReason != want.StopReason || acc.StopSequence != want.StopSequence || len(acc.Content) != len(want.Content) || acc.Usage.OutputTokens != want.Usage.OutputTokens {
			t.Fatalf("folded %+v\nbody %s", acc, body)
		}
		for i, b := range want.Content {
			a := acc.Content[i]
			var x, y any
			if b.Type == "tool_use" {
				if json.Unmarshal(a.Input, &x) != nil || json.Unmarshal(b.Input, &y) != nil {
					t.Fatalf("input %s, body %s", a.Input, b.Input)
				}
			}
			if a.Type != b.Type || a.Text != b.Text || a.Thinking != b.Thinking || a.Signature != b.Signature || a.ID != b.ID || a.Name != b.Name || !reflect.DeepEqual(x, y) {
				t.Fatalf("block %d: %+v, body %+v", i, a, b)
			}
			if b.Type == "text" && b.Text == "" || b.Type == "thinking" && b.Thinking == "" {
				t.Fatalf("block %d is empty: %s", i, body)
			}
		}
		if !strings.HasSuffix(string(sse), "data: {\"type\":\"message_stop\"}\n\n") {
			t.Fatalf("the stream ends with %q", sse[len(sse)-60:])
		}
	})
}
