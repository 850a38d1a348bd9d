package serve

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/param"
	openairesponses "github.com/openai/openai-go/v3/responses"
	openaishared "github.com/openai/openai-go/v3/shared"
)

// searchCode is a tool that the demo model was trained on.
var searchCode = map[string]any{
	"type": "object",
	"properties": map[string]any{
		"pattern": map[string]any{"type": "string", "description": "Pattern"},
		"path":    map[string]any{"type": "string", "description": "Where to search"},
	},
	"required": []string{"pattern"},
}

const searchFor = "Search for TODO in test."

func openAI(b *bench) openai.Client {
	return openai.NewClient(option.WithBaseURL(b.http.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
}

func claude(b *bench) anthropic.Client {
	return anthropic.NewClient(anthropicoption.WithBaseURL(b.http.URL), anthropicoption.WithAPIKey("none"), anthropicoption.WithMaxRetries(0))
}

func sameJSON(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func off() map[string]any { return map[string]any{"type": "disabled"} }

func TestOpenAIToolsRoundTrip(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openai.ChatCompletionNewParams{
		Model: "spark-mini", Temperature: openai.Float(0), MaxTokens: openai.Int(120),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(searchFor)},
		Tools: []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(openaishared.FunctionDefinitionParam{
			Name: "search_code", Description: openai.String("Search the source code"), Parameters: openaishared.FunctionParameters(searchCode),
		})},
	}
	params.SetExtraFields(map[string]any{"thinking": off()})
	answer, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	got := answer.Choices[0]
	if got.FinishReason != "tool_calls" || len(got.Message.ToolCalls) != 1 {
		t.Fatalf("finish %q, message %s", got.FinishReason, got.Message.RawJSON())
	}
	call := got.Message.ToolCalls[0]
	var args struct{ Pattern, Path string }
	if err := json.Unmarshal([]byte(call.Function.Arguments), &args); err != nil || call.Function.Name != "search_code" || args.Pattern != "TODO" {
		t.Fatalf("call %s: %v", call.RawJSON(), err)
	}

	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var acc openai.ChatCompletionAccumulator
	var finished []string
	for stream.Next() {
		acc.AddChunk(stream.Current())
		if tool, ok := acc.JustFinishedToolCall(); ok {
			finished = append(finished, tool.Name+tool.Arguments)
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if want := call.Function.Name + call.Function.Arguments; !slices.Equal(finished, []string{want}) || acc.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("streamed calls %q, want %q", finished, want)
	}

	params.Messages = append(params.Messages, got.Message.ToParam(), openai.ToolMessage(`["test/server.txt:52"]`, call.ID))
	if answer, err = client.Chat.Completions.New(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if text := answer.Choices[0].Message.Content; !strings.Contains(text, "test/server.txt") || answer.Choices[0].FinishReason != "stop" {
		t.Errorf("after the tool: %q", text)
	}
}

func TestOpenAIThinkingIsReasoning(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openai.ChatCompletionNewParams{
		Model: "spark-mini", Temperature: openai.Float(0), MaxTokens: openai.Int(80), ReasoningEffort: "high",
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("How do you work?")},
	}
	answer, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Reasoning string `json:"reasoning_content"`
	}
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.RawJSON()), &m); err != nil {
		t.Fatal(err)
	}
	if n := answer.Usage.CompletionTokensDetails.ReasoningTokens; m.Reasoning == "" || n < 5 || n >= answer.Usage.CompletionTokens || !strings.Contains(answer.Choices[0].Message.Content, "tokens") {
		t.Errorf("reasoning %q (%d tokens of %d), content %q", m.Reasoning, n, answer.Usage.CompletionTokens, answer.Choices[0].Message.Content)
	}
}

func TestOpenAIJSONMode(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openai.ChatCompletionNewParams{
		Model: "spark-mini", Temperature: openai.Float(0), MaxTokens: openai.Int(80),
		Messages:       []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Give me title, day, time, location as JSON. The piano lesson is on Monday at 16:00 in London.")},
		ResponseFormat: openai.ChatCompletionNewParamsResponseFormatUnion{OfJSONObject: &openaishared.ResponseFormatJSONObjectParam{}},
	}
	params.SetExtraFields(map[string]any{"thinking": off()})
	answer, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var lesson struct{ Title, Day, Location string }
	if err := json.Unmarshal([]byte(answer.Choices[0].Message.Content), &lesson); err != nil || lesson.Day != "Monday" {
		t.Errorf("%q: %v", answer.Choices[0].Message.Content, err)
	}
}

func TestOpenAIResponses(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openairesponses.ResponseNewParams{
		Model: "spark-mini", Temperature: openai.Float(0), MaxOutputTokens: openai.Int(80), Metadata: openaishared.Metadata{"team": "a"},
		Input: openairesponses.ResponseNewParamsInputUnion{OfString: openai.String("What is 2 + 3?")},
	}
	params.Reasoning.Effort = "none"
	first, err := client.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if first.OutputText() != "2 + 3 = 5" || first.Status != "completed" || first.Metadata["team"] != "a" {
		t.Errorf("%s", first.RawJSON())
	}

	next := params
	next.PreviousResponseID = openai.String(first.ID)
	next.Input.OfString = openai.String("How do you work?")
	stream := client.Responses.NewStreaming(t.Context(), next)
	var text strings.Builder
	var last openairesponses.Response
	number := int64(0)
	for stream.Next() {
		ev := stream.Current()
		if ev.SequenceNumber != number {
			t.Errorf("event %s has number %d, want %d", ev.Type, ev.SequenceNumber, number)
		}
		number++
		switch ev.Type {
		case "response.output_text.delta":
			text.WriteString(ev.Delta)
		case "response.completed":
			last = ev.Response
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if last.ID == "" || last.OutputText() != text.String() || last.PreviousResponseID != first.ID {
		t.Errorf("streamed %q, last event %s", text.String(), last.RawJSON())
	}
	if last.Usage.InputTokens <= first.Usage.InputTokens+5 {
		t.Errorf("%d tokens of input after a turn of %d: the earlier turn is not in the prompt", last.Usage.InputTokens, first.Usage.InputTokens)
	}
	// The same turns sent whole make the same prompt.
	whole := params
	whole.Input = openairesponses.ResponseNewParamsInputUnion{OfInputItemList: openairesponses.ResponseInputParam{
		openairesponses.ResponseInputItemParamOfMessage("What is 2 + 3?", "user"),
		openairesponses.ResponseInputItemParamOfMessage(first.OutputText(), "assistant"),
		openairesponses.ResponseInputItemParamOfMessage("How do you work?", "user"),
	}}
	if again, err := client.Responses.New(t.Context(), whole); err != nil || again.OutputText() != last.OutputText() || again.Usage.InputTokens != last.Usage.InputTokens {
		t.Errorf("whole: %v, %v", again, err)
	}

	kept, err := client.Responses.Get(t.Context(), last.ID, openairesponses.ResponseGetParams{})
	if err != nil || kept.RawJSON() != last.RawJSON() {
		t.Errorf("kept %v, want %s: %v", kept, last.RawJSON(), err)
	}
	items, err := client.Responses.InputItems.List(t.Context(), last.ID, openairesponses.InputItemListParams{})
	if err != nil || len(items.Data) != 1 || items.Data[0].Content.OfInputItemContentList[0].Text != "How do you work?" {
		t.Errorf("items %v, %v", items, err)
	}
	count, err := client.Responses.InputTokens.Count(t.Context(), openairesponses.InputTokenCountParams{Model: openai.String("spark-mini"),
		PreviousResponseID: openai.String(first.ID), Input: openairesponses.InputTokenCountParamsInputUnion{OfString: openai.String("How do you work?")},
		Reasoning: openaishared.ReasoningParam{Effort: "none"}})
	if err != nil || count.InputTokens != last.Usage.InputTokens {
		t.Errorf("counted %v, used %d: %v", count, last.Usage.InputTokens, err)
	}
	if err := client.Responses.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	var api *openai.Error
	if _, err := client.Responses.Get(t.Context(), first.ID, openairesponses.ResponseGetParams{}); !errors.As(err, &api) || api.StatusCode != 404 {
		t.Errorf("after deleting: %v", err)
	}
	if _, err := client.Responses.New(t.Context(), next); !errors.As(err, &api) || api.StatusCode != 400 || api.Code != "previous_response_not_found" || api.Param != "previous_response_id" {
		t.Errorf("continuing a deleted one: %v", err)
	}
}

func TestOpenAIResponsesTools(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openairesponses.ResponseNewParams{
		Model: "spark-mini", Temperature: openai.Float(0), MaxOutputTokens: openai.Int(120),
		Input: openairesponses.ResponseNewParamsInputUnion{OfString: openai.String(searchFor)},
		Tools: []openairesponses.ToolUnionParam{{OfFunction: &openairesponses.FunctionToolParam{Name: "search_code", Description: openai.String("Search the source code"), Parameters: searchCode}}},
	}
	params.Reasoning.Effort = "high"
	first, err := client.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var call openairesponses.ResponseOutputItemUnion
	for _, it := range first.Output {
		if it.Type == "function_call" {
			call = it
		}
		if strings.Contains(it.RawJSON(), "DSML") {
			t.Errorf("markup in %s", it.RawJSON())
		}
	}
	if call.CallID == "" || call.Name != "search_code" {
		t.Fatalf("no call in %s", first.RawJSON())
	}
	params.PreviousResponseID = openai.String(first.ID)
	params.Input = openairesponses.ResponseNewParamsInputUnion{OfInputItemList: openairesponses.ResponseInputParam{
		{OfFunctionCallOutput: &openairesponses.ResponseInputItemFunctionCallOutputParam{CallID: openai.String(call.CallID),
			Output: openairesponses.ResponseInputItemFunctionCallOutputOutputUnionParam{OfString: openai.String(`["test/server.txt:52"]`)}}},
	}}
	second, err := client.Responses.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(second.OutputText(), "test/server.txt") {
		t.Errorf("%s", second.RawJSON())
	}
}

func TestOpenAICompletions(t *testing.T) {
	b := demo(t)
	client := openAI(b)
	params := openai.CompletionNewParams{
		Model: "spark-mini", Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("func main() {")}, Temperature: openai.Float(0),
		MaxTokens: openai.Int(12), Logprobs: openai.Int(2),
	}
	whole, err := client.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if c := whole.Choices[0]; c.Text == "" || c.FinishReason != "length" || whole.Usage.CompletionTokens != 12 || len(c.Logprobs.TokenLogprobs) == 0 || len(c.Logprobs.TopLogprobs[0]) != 2 {
		t.Errorf("%s", whole.RawJSON())
	}
	stream := client.Completions.NewStreaming(t.Context(), params)
	text := ""
	for stream.Next() {
		for _, c := range stream.Current().Choices {
			text += c.Text
		}
	}
	if err := stream.Err(); err != nil || text != whole.Choices[0].Text {
		t.Errorf("streamed %q, whole %q: %v", text, whole.Choices[0].Text, err)
	}
	params.Logprobs = param.Opt[int64]{}
	params.Echo, params.N = openai.Bool(true), openai.Int(2)
	if whole, err = client.Completions.New(t.Context(), params); err != nil || len(whole.Choices) != 2 || whole.Choices[1].Text != "func main() {"+text {
		t.Errorf("echo: %v, %v", whole, err)
	}
	params.Echo, params.N = param.Opt[bool]{}, param.Opt[int64]{}
	params.Suffix = openai.String("\n}\n")
	if whole, err = client.Completions.New(t.Context(), params); err != nil || whole.Usage.PromptTokens < 6 {
		t.Errorf("fill in the middle: %v, %v", whole, err)
	}
}

func TestAnthropicMessages(t *testing.T) {
	b := demo(t)
	client := claude(b)
	params := anthropic.MessageNewParams{
		Model: "spark-mini", MaxTokens: 80, Temperature: anthropic.Float(0),
		System:   []anthropic.TextBlockParam{{Text: "You are a helpful assistant."}},
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("What is 2 + 3?"))},
		Thinking: anthropic.ThinkingConfigParamUnion{OfDisabled: &anthropic.ThinkingConfigDisabledParam{}},
	}
	m, err := client.Messages.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Content) != 1 || m.Content[0].Text != "2 + 3 = 5" || m.StopReason != "end_turn" || m.Usage.OutputTokens == 0 {
		t.Errorf("%s", m.RawJSON())
	}
	count, err := client.Messages.CountTokens(t.Context(), anthropic.MessageCountTokensParams{Model: params.Model, Messages: params.Messages, Thinking: params.Thinking,
		System: anthropic.MessageCountTokensParamsSystemUnion{OfTextBlockArray: params.System}})
	if err != nil || count.InputTokens != m.Usage.InputTokens+m.Usage.CacheReadInputTokens {
		t.Errorf("counted %v, used %+v: %v", count, m.Usage, err)
	}

	// Row 20 of the public reports: message_start already has the real counts.
	stream := client.Messages.NewStreaming(t.Context(), params)
	var acc anthropic.Message
	for stream.Next() {
		ev := stream.Current()
		if ev.Type == "message_start" && ev.Message.Usage.InputTokens != count.InputTokens {
			t.Errorf("message_start says %d tokens, want %d", ev.Message.Usage.InputTokens, count.InputTokens)
		}
		if err := acc.Accumulate(ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil || len(acc.Content) != 1 || acc.Content[0].Text != m.Content[0].Text || acc.StopReason != m.StopReason {
		t.Errorf("streamed %+v: %v", acc, err)
	}

	params.StopSequences = []string{"="}
	if m, err = client.Messages.New(t.Context(), params); err != nil || m.StopReason != "stop_sequence" || m.StopSequence != "=" || m.Content[0].Text != "2 + 3 " {
		t.Errorf("stop sequence: %v, %v", m, err)
	}
	params.StopSequences, params.Model = nil, "claude-opus-4-1" // clients send such names for their side tasks
	if m, err = client.Messages.New(t.Context(), params); err != nil || m.Model != "spark-mini" {
		t.Errorf("a Claude name: %v, %v", m, err)
	}
}

func TestAnthropicThinkingAndTools(t *testing.T) {
	b := demo(t)
	client := claude(b)
	params := anthropic.MessageNewParams{
		Model: "spark-mini", MaxTokens: 2000, Temperature: anthropic.Float(0),
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock(searchFor))},
		Thinking: anthropic.ThinkingConfigParamOfEnabled(1024),
		Tools: []anthropic.ToolUnionParam{{OfTool: &anthropic.ToolParam{Name: "search_code", Description: anthropic.String("Search the source code"),
			InputSchema: anthropic.ToolInputSchemaParam{Properties: searchCode["properties"], Required: []string{"pattern"}}}}},
	}
	m, err := client.Messages.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, c := range m.Content {
		kinds = append(kinds, c.Type)
	}
	if !slices.Equal(kinds, []string{"thinking", "tool_use"}) || m.StopReason != "tool_use" || m.Content[0].Signature == "" {
		t.Fatalf("%s", m.RawJSON())
	}
	stream := client.Messages.NewStreaming(t.Context(), params)
	var acc anthropic.Message
	for stream.Next() {
		if err := acc.Accumulate(stream.Current()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.Err(); err != nil || len(acc.Content) != 2 || acc.Content[0].Thinking != m.Content[0].Thinking || !sameJSON(acc.Content[1].Input, m.Content[1].Input) {
		t.Errorf("streamed %+v: %v", acc.Content, err)
	}
	params.Messages = append(params.Messages, m.ToParam(), anthropic.NewUserMessage(anthropic.NewToolResultBlock(m.Content[1].ID, `["test/server.txt:52"]`, false)))
	if m, err = client.Messages.New(t.Context(), params); err != nil {
		t.Fatal(err)
	}
	if last := m.Content[len(m.Content)-1]; !strings.Contains(last.Text, "test/server.txt") || m.StopReason != "end_turn" {
		t.Errorf("after the tool: %s", m.RawJSON())
	}
}

func TestAnthropicErrors(t *testing.T) {
	b := demo(t)
	client := claude(b)
	ask := anthropic.MessageNewParams{Model: "spark-mini", MaxTokens: 10, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("x"))}}
	for _, c := range []struct {
		name   string
		change func(*anthropic.MessageNewParams)
		status int
		kind   string
	}{
		{"unknown model", func(p *anthropic.MessageNewParams) { p.Model = "nope" }, 404, "not_found_error"},
		{"temperature", func(p *anthropic.MessageNewParams) { p.Temperature = anthropic.Float(7) }, 400, "invalid_request_error"},
		{"no messages", func(p *anthropic.MessageNewParams) { p.Messages = []anthropic.MessageParam{} }, 400, "invalid_request_error"},
		{"too long", func(p *anthropic.MessageNewParams) {
			p.Messages[0] = anthropic.NewUserMessage(anthropic.NewTextBlock(strings.Repeat("secret 17 ", 20000)))
		}, 400, "invalid_request_error"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := ask
			p.Messages = slices.Clone(ask.Messages)
			c.change(&p)
			_, err := client.Messages.New(t.Context(), p)
			var api *anthropic.Error
			if !errors.As(err, &api) || api.StatusCode != c.status || api.RequestID == "" || !strings.Contains(api.RawJSON(), `"type":"`+c.kind+`"`) || !strings.Contains(api.RawJSON(), api.RequestID) {
				t.Errorf("%v", err)
			}
		})
	}
	list, err := client.Models.List(t.Context(), anthropic.ModelListParams{})
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != "spark-mini" || list.Data[0].CreatedAt.IsZero() {
		t.Errorf("models: %v, %v", list, err)
	}
	if m, err := client.Models.Get(t.Context(), "spark-mini", anthropic.ModelGetParams{}); err != nil || m.Type != "model" {
		t.Errorf("model: %v, %v", m, err)
	}
}
