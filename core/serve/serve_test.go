package serve

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

type golden struct {
	ID       string
	Thinking bool
	Effort   int
	IDs      []int32
	Greedy   []int32
	Messages []struct {
		Role      string
		Content   string
		Reasoning *string
		Calls     []struct {
			Name      string
			Arguments json.RawMessage
		} `json:"tool_calls"`
	}
	Tools  []json.RawMessage
	Format json.RawMessage `json:"response_format"`
}

func goldens(t testing.TB) []golden {
	t.Helper()
	var out []golden
	for d := json.NewDecoder(bytes.NewReader(fixture.Read(t, "demo/golden.jsonl"))); d.More(); {
		var g golden
		if err := d.Decode(&g); err != nil {
			t.Fatal(err)
		}
		out = append(out, g)
	}
	if len(out) != 40 {
		t.Fatalf("%d golden prompts", len(out))
	}
	return out
}

// body writes a golden prompt as a request of Chat Completions.
func (g *golden) body(t testing.TB, tokens int) string {
	t.Helper()
	var messages []map[string]any
	for _, m := range g.Messages {
		out := map[string]any{"role": m.Role, "content": m.Content}
		if m.Reasoning != nil {
			out["reasoning_content"] = *m.Reasoning
		}
		var calls []any
		for i, c := range m.Calls {
			calls = append(calls, map[string]any{"id": fmt.Sprint("call_", i), "type": "function", "function": map[string]any{"name": c.Name, "arguments": string(c.Arguments)}})
		}
		if calls != nil {
			out["tool_calls"] = calls
		}
		if m.Role == "tool" {
			out["tool_call_id"] = "call_0"
		}
		messages = append(messages, out)
	}
	thinking := "disabled"
	if g.Thinking {
		thinking = "enabled"
	}
	q := map[string]any{"model": "spark-mini", "messages": messages, "temperature": 0, "max_tokens": tokens, "return_token_ids": true, "thinking": map[string]string{"type": thinking}}
	if g.Thinking && g.Effort > 0 {
		q["reasoning_effort"] = g.Effort
	}
	var tools []any
	for _, raw := range g.Tools {
		tools = append(tools, map[string]any{"type": "function", "function": raw})
	}
	if tools != nil {
		q["tools"] = tools
	}
	if g.Format != nil {
		q["response_format"] = g.Format
	}
	raw, err := json.Marshal(q)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// want is what the model writes within n tokens: up to the end token.
func (g *golden) want(n int) []int32 {
	w := g.Greedy[:min(n, len(g.Greedy))]
	if i := slices.Index(w, 1); i >= 0 {
		w = w[:i+1]
	}
	return w
}

// reasonedBefore says whether the golden prompt shows the reasoning of an earlier turn where the API leaves it out: without tools.
func (g *golden) reasonedBefore() bool {
	if len(g.Tools) > 0 || !g.Thinking {
		return false
	}
	for _, m := range g.Messages {
		if m.Reasoning != nil {
			return true
		}
	}
	return false
}

func TestEightClientsGetTheGoldenTokens(t *testing.T) {
	b, list := demo(t), goldens(t)
	const tokens = 12
	work := make(chan *golden)
	var group sync.WaitGroup
	var compared atomic.Int32
	check := func(g *golden) {
		status, _, raw := b.do(t, "POST", "/v1/chat/completions", g.body(t, tokens))
		var c completion
		if err := json.Unmarshal(raw, &c); status != 200 || err != nil {
			t.Errorf("%s: status %d, %v: %s", g.ID, status, err, raw)
			return
		}
		if g.reasonedBefore() {
			return // counted, run for company, and not comparable
		}
		compared.Add(1)
		if !slices.Equal(c.PromptIDs, g.IDs) {
			t.Errorf("%s: prompt is %v, want %v", g.ID, c.PromptIDs, g.IDs)
		}
		if len(c.IDs) != 1 || !slices.Equal(c.IDs[0], g.want(tokens)) {
			t.Errorf("%s: tokens %v, want %v", g.ID, c.IDs, g.want(tokens))
		}
		if c.Usage.Prompt != len(g.IDs) || c.Usage.Completion != len(c.IDs[0]) || c.Usage.Total != c.Usage.Prompt+c.Usage.Completion {
			t.Errorf("%s: usage %+v for %d and %d tokens", g.ID, c.Usage, len(g.IDs), len(c.IDs[0]))
		}
	}
	for range 8 {
		group.Go(func() {
			for g := range work {
				check(g)
			}
		})
	}
	for i := range list {
		work <- &list[i]
	}
	close(work)
	group.Wait()
	if compared.Load() != 37 {
		t.Errorf("%d prompts compared", compared.Load())
	}
	for i := range 3 { // alone: the same tokens
		check(&list[10+7*i])
	}
	b.free(t)
}

func TestOfficialClient(t *testing.T) {
	b := demo(t)
	client := openai.NewClient(option.WithBaseURL(b.http.URL+"/v1"), option.WithAPIKey("none"), option.WithMaxRetries(0))
	params := openai.ChatCompletionNewParams{
		Model:       "default",
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage("What is 2 + 3?")},
		Temperature: openai.Float(0), MaxTokens: openai.Int(40),
		StreamOptions: openai.ChatCompletionStreamOptionsParam{},
	}
	answer, err := client.Chat.Completions.New(t.Context(), params)
	if err != nil {
		t.Fatal(err)
	}
	if got := answer.Choices[0]; got.Message.Content != "2 + 3 = 5." || got.FinishReason != "stop" {
		t.Errorf("answer %q, finish %q", got.Message.Content, got.FinishReason)
	}
	params.StreamOptions.IncludeUsage = openai.Bool(true)
	stream := client.Chat.Completions.NewStreaming(t.Context(), params)
	var acc openai.ChatCompletionAccumulator
	chunks := 0
	for stream.Next() {
		chunks++
		if !acc.AddChunk(stream.Current()) {
			t.Errorf("chunk %d does not fit: %s", chunks, stream.Current().RawJSON())
		}
	}
	if err := stream.Err(); err != nil {
		t.Fatal(err)
	}
	if acc.Choices[0].Message.Content != answer.Choices[0].Message.Content || acc.Usage.TotalTokens != answer.Usage.TotalTokens || chunks < 10 {
		t.Errorf("streamed %q with usage %+v in %d chunks; whole %q with %+v", acc.Choices[0].Message.Content, acc.Usage, chunks, answer.Choices[0].Message.Content, answer.Usage)
	}
	_, err = client.Chat.Completions.New(t.Context(), openai.ChatCompletionNewParams{Model: "gpt-4", Messages: params.Messages})
	var api *openai.Error
	if !errors.As(err, &api) || api.StatusCode != 404 || api.Code != "model_not_found" || api.Param != "model" {
		t.Errorf("unknown model: %v", err)
	}
	list, err := client.Models.List(t.Context())
	if err != nil || len(list.Data) != 2 || list.Data[0].ID != "spark-mini" {
		t.Errorf("models: %v, %v", list, err)
	}
	if m, err := client.Models.Get(t.Context(), "default"); err != nil || m.ID != "default" {
		t.Errorf("model: %v, %v", m, err)
	}
}

const endless = `{"model":"spark-mini","messages":[{"role":"user","content":"Write a long story."}],"temperature":1.5,"seed":%d,"max_tokens":4000,"stream":%v}`

// Row 35 of the public reports: a client that goes away ends its generation within a step and leaves nothing behind.
func TestDisconnectEndsTheRequest(t *testing.T) {
	b := demo(t)
	for i, stream := range []bool{true, false, true, false} {
		ctx, cancel := context.WithCancel(t.Context())
		req, err := http.NewRequestWithContext(ctx, "POST", b.http.URL+"/v1/chat/completions", strings.NewReader(fmt.Sprintf(endless, i, stream)))
		if err != nil {
			t.Fatal(err)
		}
		before := b.engine.Stats()
		done := make(chan struct{})
		go func() {
			defer close(done)
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				return
			}
			defer resp.Body.Close()
			for in := bufio.NewScanner(resp.Body); in.Scan(); {
			}
		}()
		for b.engine.Stats().Tokens < before.Tokens+3 {
			select {
			case <-done:
				t.Fatal("the request ended by itself")
			case <-time.After(time.Millisecond):
			}
		}
		cancel()
		<-done
		gone := b.engine.Stats().Tokens
		b.free(t)
		after := b.engine.Stats()
		if after.Cancelled != before.Cancelled+1 || after.Tokens > gone+200 {
			t.Errorf("stream %v: %d cancelled, %d tokens after the client had gone", stream, after.Cancelled-before.Cancelled, after.Tokens-gone)
		}
	}
	_, _, raw := b.do(t, "GET", "/metrics", "")
	if !bytes.Contains(raw, []byte(`finished_reason="abort"`)) {
		t.Errorf("no aborted requests in /metrics")
	}
	if c := b.chat(t, `{"model":"spark-mini","messages":[{"role":"user","content":"What is 2 + 3?"}],"temperature":0,"thinking":{"type":"disabled"}}`); *c.Choices[0].Message.Content != "2 + 3 = 5" {
		t.Errorf("the next request: %+v", c)
	}
}

func TestBadRequests(t *testing.T) {
	b := demo(t)
	user := `"messages":[{"role":"user","content":"Hi"}]`
	long := strings.Repeat("word ", 20000)
	for name, c := range map[string]struct {
		body        string
		status      int
		param, code string
		text        string
	}{
		"no JSON":                      {`{`, 400, "", "", ""},
		"an array":                     {`[]`, 400, "", "", ""},
		"empty body":                   {``, 400, "", "", ""},
		"no model":                     {`{` + user + `}`, 400, "", "", "model"},
		"unknown model":                {`{"model":"x",` + user + `}`, 404, "model", "model_not_found", `"x"`},
		"no messages":                  {`{"model":"spark-mini"}`, 400, "", "", "messages"},
		"negative temperature":         {`{"model":"spark-mini","temperature":-1,` + user + `}`, 400, "temperature", "", ""},
		"temperature as text":          {`{"model":"spark-mini","temperature":"hot",` + user + `}`, 400, "temperature", "", ""},
		"top_p of 0":                   {`{"model":"spark-mini","top_p":0,` + user + `}`, 400, "top_p", "", ""},
		"min_p above 1":                {`{"model":"spark-mini","min_p":3,` + user + `}`, 400, "min_p", "", "3"},
		"no tokens":                    {`{"model":"spark-mini","max_tokens":0,` + user + `}`, 400, "max_tokens", "", ""},
		"answer longer than context":   {`{"model":"spark-mini","max_tokens":17000,` + user + `}`, 400, "messages", "context_length_exceeded", "16384"},
		"prompt longer than context":   {`{"model":"spark-mini","messages":[{"role":"user","content":"` + long + `"}]}`, 400, "messages", "context_length_exceeded", "16384"},
		"17 choices":                   {`{"model":"spark-mini","n":17,` + user + `}`, 400, "n", "", ""},
		"21 log-probabilities":         {`{"model":"spark-mini","logprobs":true,"top_logprobs":21,` + user + `}`, 400, "top_logprobs", "", ""},
		"a penalty":                    {`{"model":"spark-mini","presence_penalty":3,` + user + `}`, 400, "presence_penalty", "", ""},
		"an impossible schema":         {`{"model":"spark-mini","response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"string","minLength":2,"maxLength":1}}},` + user + `}`, 400, "response_format", "", ""},
		"an image":                     {`{"model":"spark-mini","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`, 400, "messages[0]", "images_not_supported", "spark-mini"},
		"ids with a stream":            {`{"model":"spark-mini","stream":true,"return_token_ids":true,` + user + `}`, 400, "return_token_ids", "", ""},
		"a stop id outside the tokens": {`{"model":"spark-mini","stop_token_ids":[99999],` + user + `}`, 400, "stop_token_ids[0]", "", "99999"},
		"a negative seed":              {`{"model":"spark-mini","seed":-1,` + user + `}`, 400, "seed", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			status, h, raw := b.do(t, "POST", "/v1/chat/completions", c.body)
			var e struct {
				Error *struct{ Message, Type, Param, Code string }
			}
			if err := json.Unmarshal(raw, &e); err != nil || e.Error == nil {
				t.Fatalf("%v: %s", err, raw)
			}
			if status != c.status || e.Error.Type != "invalid_request_error" || e.Error.Message == "" || h.Get("X-Request-Id") == "" {
				t.Errorf("status %d: %s", status, raw)
			}
			if c.param != "" && strings.TrimPrefix(e.Error.Param, ".") != c.param || c.code != "" && e.Error.Code != c.code || !strings.Contains(e.Error.Message, c.text) {
				t.Errorf("param %q, code %q: %s", e.Error.Param, e.Error.Code, e.Error.Message)
			}
		})
	}
	b.free(t)
}

func TestRoutes(t *testing.T) {
	b := demo(t)
	for _, c := range []struct {
		method, path string
		status       int
		kind, text   string
	}{
		{"GET", "/", 200, "text/html; charset=utf-8", "<title>deepinfer"},
		{"GET", "/page/chat.js", 200, "text/javascript; charset=utf-8", "use strict"},
		{"GET", "/page/style.css", 200, "text/css; charset=utf-8", ""},
		{"HEAD", "/", 200, "text/html; charset=utf-8", ""},
		{"GET", "/livez", 200, "application/json", "alive"},
		{"GET", "/readyz", 200, "application/json", "ready"},
		{"GET", "/health", 200, "application/json", "ok"},
		{"GET", "/version", 200, "application/json", "version"},
		{"GET", "/v1/models/spark-mini", 200, "application/json", `"max_model_len":16384`},
		{"GET", "/v1/models/other", 404, "application/json", "model_not_found"},
		{"GET", "/v1/models/", 404, "application/json", "/v1/models"},
		{"GET", "/nothing", 404, "application/json", "/v1/chat/completions"},
		{"GET", "/page/../server.go", 404, "application/json", ""},
		{"GET", "/v1/chat/completions", 405, "application/json", "use POST"},
		{"DELETE", "/v1/models", 405, "application/json", "GET"},
	} {
		status, h, raw := b.do(t, c.method, c.path, "")
		if status != c.status || h.Get("Content-Type") != c.kind || !bytes.Contains(raw, []byte(c.text)) {
			t.Errorf("%s %s: %d %s %s", c.method, c.path, status, h.Get("Content-Type"), raw)
		}
		if status == 405 && h.Get("Allow") == "" {
			t.Errorf("%s %s: no Allow header", c.method, c.path)
		}
		if status >= 400 && !json.Valid(raw) {
			t.Errorf("%s %s: not JSON: %s", c.method, c.path, raw)
		}
		if h.Get("Access-Control-Allow-Origin") != "" {
			t.Errorf("%s %s: CORS is on", c.method, c.path)
		}
	}
}

func TestRequestIDs(t *testing.T) {
	b := demo(t)
	_, h, _ := b.do(t, "GET", "/livez", "", "X-Request-Id", "abc-123")
	if h.Get("X-Request-Id") != "abc-123" {
		t.Errorf("given id came back as %q", h.Get("X-Request-Id"))
	}
	for _, bad := range []string{"a b", strings.Repeat("x", 200), `"}`} {
		_, h, _ := b.do(t, "GET", "/livez", "", "X-Request-Id", bad)
		if got := h.Get("X-Request-Id"); got == bad || len(got) != 24 {
			t.Errorf("id %q came back as %q", bad, got)
		}
	}
}

func TestLogHasNoPromptText(t *testing.T) {
	b := demo(t)
	b.chat(t, `{"model":"spark-mini","messages":[{"role":"user","content":"xylophonesecret"}],"max_tokens":2}`)
	log := b.log.String()
	if strings.Contains(log, "xylophonesecret") || !strings.Contains(log, "path=/v1/chat/completions") {
		t.Errorf("log: %s", log)
	}
}

func TestStopStringsSeedsAndChoices(t *testing.T) {
	b := demo(t)
	ask := func(extra string) completion {
		return b.chat(t, `{"model":"spark-mini","messages":[{"role":"user","content":"What is 2 + 3?"}],"thinking":{"type":"disabled"},"return_token_ids":true,`+extra+`}`)
	}
	if c := ask(`"temperature":0,"stop":[" = "]`); *c.Choices[0].Message.Content != "2 + 3" || c.Choices[0].Finish != "stop" {
		t.Errorf("stop string: %+v", c)
	}
	if c := ask(`"temperature":0,"max_tokens":3`); *c.Choices[0].Message.Content != "2 + " || c.Choices[0].Finish != "length" {
		t.Errorf("length: %+v", c)
	}
	if c := ask(`"temperature":0,"stop_token_ids":[332]`); c.Choices[0].Finish != "stop" || len(c.IDs[0]) != 5 {
		t.Errorf("stop id: %+v", c)
	}
	one := ask(`"temperature":1.9,"seed":7,"n":3,"max_tokens":12`)
	two := ask(`"temperature":1.9,"seed":7,"n":3,"max_tokens":12`)
	if len(one.Choices) != 3 || fmt.Sprint(one.IDs) != fmt.Sprint(two.IDs) {
		t.Errorf("same seed: %v and %v", one.IDs, two.IDs)
	}
	if slices.Equal(one.IDs[0], one.IDs[1]) && slices.Equal(one.IDs[1], one.IDs[2]) {
		t.Errorf("three choices are equal: %v", one.IDs)
	}
	// Without a seed the header names the one that was drawn.
	body := `{"model":"spark-mini","messages":[{"role":"user","content":"What is 2 + 3?"}],"temperature":1.9,"max_tokens":8,"return_token_ids":true%s}`
	_, h, raw := b.do(t, "POST", "/v1/chat/completions", fmt.Sprintf(body, ""))
	var first completion
	if err := json.Unmarshal(raw, &first); err != nil {
		t.Fatal(err)
	}
	if again := b.chat(t, fmt.Sprintf(body, `,"seed":`+h.Get("X-Deepinfer-Seed"))); fmt.Sprint(again.IDs) != fmt.Sprint(first.IDs) {
		t.Errorf("seed %s gives %v, before %v", h.Get("X-Deepinfer-Seed"), again.IDs, first.IDs)
	}
	lp := ask(`"temperature":0,"logprobs":true,"top_logprobs":2`)
	if l := lp.Choices[0].Logprobs; l == nil || len(l.Content) != 7 || l.Content[0].Token != "2" || len(l.Content[0].Top) != 2 || l.Content[0].Logprob >= 0 || l.Content[0].Logprob < -1 {
		t.Errorf("log-probabilities: %+v", lp.Choices[0].Logprobs)
	}
}

// A reader that takes nothing must not hold up others.
func TestSlowClientDelaysNobody(t *testing.T) {
	b := demo(t)
	conn, err := net.Dial("tcp", b.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(1024)
	body := fmt.Sprintf(endless, 5, true)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for b.engine.Stats().Running == 0 {
		time.Sleep(time.Millisecond)
	}
	for range 3 {
		b.chat(t, `{"model":"spark-mini","messages":[{"role":"user","content":"Hi"}],"max_tokens":4}`)
	}
	if b.engine.Stats().Running != 1 {
		t.Errorf("the slow request has gone: %+v", b.engine.Stats())
	}
	conn.Close()
	b.free(t)
}

func TestOtherAPIs(t *testing.T) {
	b := demo(t)
	status, _, raw := b.do(t, "POST", "/v1/responses", `{"model":"spark-mini","input":"What is 2 + 3?","temperature":0,"max_output_tokens":40}`)
	if status != 200 || !bytes.Contains(raw, []byte(`"text":"2 + 3 = 5."`)) || !bytes.Contains(raw, []byte(`"status":"completed"`)) || !bytes.Contains(raw, []byte(`"store":true`)) {
		t.Errorf("responses: %d %s", status, raw)
	}
	message := `{"model":"spark-mini","max_tokens":40,"temperature":0,"messages":[{"role":"user","content":"What is 2 + 3?"}]%s}`
	status, _, raw = b.do(t, "POST", "/v1/messages", fmt.Sprintf(message, ""))
	if status != 200 || !bytes.Contains(raw, []byte(`"type":"text","text":"2 + 3 = 5`)) || !bytes.Contains(raw, []byte(`"stop_reason":"end_turn"`)) {
		t.Errorf("messages: %d %s", status, raw)
	}
	var m struct {
		Usage struct {
			Input int `json:"input_tokens"`
		}
	}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	status, _, raw = b.do(t, "POST", "/v1/messages/count_tokens", fmt.Sprintf(message, ""))
	if want := fmt.Sprintf(`{"input_tokens":%d}`, m.Usage.Input); status != 200 || string(bytes.TrimSpace(raw)) != want {
		t.Errorf("count: %d %s, want %s", status, raw, want)
	}
	status, h, raw := b.do(t, "POST", "/v1/messages", fmt.Sprintf(message, `,"stream":true`))
	if status != 200 || !strings.HasPrefix(h.Get("Content-Type"), "text/event-stream") || !bytes.Contains(raw, []byte("event: message_stop")) {
		t.Errorf("messages stream: %d %s", status, raw)
	}
	status, _, raw = b.do(t, "POST", "/v1/messages", `{"model":"nope","max_tokens":4,"messages":[]}`)
	if status != 404 || !bytes.Contains(raw, []byte(`"type":"error"`)) || !bytes.Contains(raw, []byte(`"not_found_error"`)) {
		t.Errorf("messages error: %d %s", status, raw)
	}
	status, _, raw = b.do(t, "POST", "/tokenize", `{"prompt":"What is <think>?"}`)
	var ids struct{ Tokens []int32 }
	if err := json.Unmarshal(raw, &ids); status != 200 || err != nil || len(ids.Tokens) < 5 {
		t.Fatalf("tokenize: %d %s", status, raw)
	}
	q, err := json.Marshal(ids)
	if err != nil {
		t.Fatal(err)
	}
	status, _, raw = b.do(t, "POST", "/detokenize", strings.Replace(string(q), "Tokens", "tokens", 1))
	if status != 200 || string(bytes.TrimSpace(raw)) != `{"prompt":"What is <think>?"}` {
		t.Errorf("detokenize: %d %s", status, raw)
	}
	for path, body := range map[string]string{"/tokenize": `{}`, "/detokenize": `{"tokens":[-1]}`} {
		if status, _, raw := b.do(t, "POST", path, body); status != 400 || !json.Valid(raw) {
			t.Errorf("%s %s: %d %s", path, body, status, raw)
		}
	}
}

func TestMetrics(t *testing.T) {
	b := demo(t)
	b.chat(t, `{"model":"spark-mini","messages":[{"role":"user","content":"Hi"}],"max_tokens":4}`)
	_, _, raw := b.do(t, "GET", "/metrics", "")
	for _, name := range []string{
		"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total", "vllm:generation_tokens_total",
		"vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket", "vllm:inter_token_latency_seconds_count", "vllm:e2e_request_latency_seconds_sum",
		"vllm:iteration_tokens_total_count", "vllm:cache_config_info", "vllm:num_preemptions_total", "deepinfer:step_seconds_bucket",
	} {
		if !bytes.Contains(raw, []byte("\n"+name+"{")) {
			t.Errorf("no %s", name)
		}
	}
	if !bytes.Contains(raw, []byte(`block_size="128"`)) || !bytes.Contains(raw, []byte("deepinfer:ready 1")) {
		t.Errorf("%s", raw)
	}
}

func get(s *Server, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w
}

func TestLifeOfAServer(t *testing.T) {
	b := demo(t)
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.SetProgress("loading weights", 1, 4)
	for _, c := range []struct {
		method, path string
		status       int
		text         string
	}{
		{"GET", "/readyz", 503, `"percent":25`}, {"GET", "/livez", 200, ""}, {"GET", "/health", 503, "loading"},
		{"POST", "/v1/chat/completions", 503, "loading weights, 25 %"}, {"GET", "/v1/models", 200, `"data":[]`}, {"GET", "/metrics", 200, "deepinfer:ready 0"}, {"GET", "/", 200, ""},
	} {
		if w := get(s, c.method, c.path, "{}"); w.Code != c.status || !strings.Contains(w.Body.String(), c.text) {
			t.Errorf("loading, %s: %d %s", c.path, w.Code, w.Body)
		}
	}
	if err := s.SetModel(b.model); err != nil {
		t.Fatal(err)
	}
	if s.SetModel(b.model) == nil {
		t.Error("a second model was taken")
	}
	if w := get(s, "GET", "/readyz", ""); w.Code != 200 {
		t.Errorf("ready: %d %s", w.Code, w.Body)
	}
	// A request that runs while the server drains gets its answer; a new one is refused.
	started, release := make(chan struct{}), make(chan struct{})
	done := make(chan *httptest.ResponseRecorder)
	go func() {
		r := httptest.NewRequest("POST", "/v1/chat/completions", &gate{started: started, release: release, Reader: strings.NewReader(`{"model":"spark-mini","messages":[{"role":"user","content":"Hi"}],"max_tokens":4}`)})
		w := httptest.NewRecorder()
		s.Handler().ServeHTTP(w, r)
		done <- w
	}()
	<-started
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Drain(late); err == nil || !strings.Contains(err.Error(), "1 requests") {
		t.Errorf("drain past its deadline: %v", err)
	}
	if w := get(s, "GET", "/readyz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "draining") {
		t.Errorf("draining: %d %s", w.Code, w.Body)
	}
	if w := get(s, "POST", "/v1/chat/completions", "{}"); w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("new request: %d %s", w.Code, w.Body)
	}
	close(release)
	if w := <-done; w.Code != 200 {
		t.Errorf("running request: %d %s", w.Code, w.Body)
	}
	if err := s.Drain(t.Context()); err != nil {
		t.Error(err)
	}

	failed, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	failed.Fail(errors.New("no such disk"))
	if w := get(failed, "GET", "/readyz", ""); w.Code != 503 || !strings.Contains(w.Body.String(), "no such disk") {
		t.Errorf("failed: %d %s", w.Code, w.Body)
	}
}

// gate is a body that says when it is first read and waits.
type gate struct {
	started, release chan struct{}
	once             sync.Once
	*strings.Reader
}

func (g *gate) Read(p []byte) (int, error) {
	g.once.Do(func() {
		close(g.started)
		<-g.release
	})
	return g.Reader.Read(p)
}

func TestKeysOriginsAndLimits(t *testing.T) {
	s, err := New(Options{Keys: []string{"first-key", "second-key"}, CORSOrigins: []string{"https://a.example"}, MaxBody: 100})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetModel(demo(t).model); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		header, value string
		status        int
	}{
		{"Authorization", "Bearer second-key", 200}, {"X-Api-Key", "first-key", 200}, {"Authorization", "bearer first-key", 200},
		{"Authorization", "Bearer first-ke", 401}, {"Authorization", "first-key", 401}, {"X-Api-Key", "", 401}, {"Authorization", "Bearer ", 401},
	} {
		if w := get(s, "GET", "/v1/models", "", c.header, c.value); w.Code != c.status {
			t.Errorf("%s %q: %d", c.header, c.value, w.Code)
		}
	}
	if w := get(s, "GET", "/v1/models", ""); !strings.Contains(w.Body.String(), "invalid_api_key") || w.Header().Get("WWW-Authenticate") == "" {
		t.Errorf("no key: %s", w.Body)
	}
	if w := get(s, "GET", "/readyz", ""); w.Code != 200 {
		t.Errorf("probe without a key: %d", w.Code)
	}
	if w := get(s, "OPTIONS", "/v1/chat/completions", "", "Origin", "https://a.example", "Access-Control-Request-Method", "POST"); w.Code != 204 || w.Header().Get("Access-Control-Allow-Origin") != "https://a.example" {
		t.Errorf("preflight: %d %v", w.Code, w.Header())
	}
	if w := get(s, "GET", "/readyz", "", "Origin", "https://b.example"); w.Header().Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("foreign origin: %v", w.Header())
	}
	if w := get(s, "POST", "/v1/chat/completions", strings.Repeat(" ", 101), "X-Api-Key", "first-key"); w.Code != 413 || !strings.Contains(w.Body.String(), "100 bytes") {
		t.Errorf("large body: %d %s", w.Code, w.Body)
	}
	if _, err := New(Options{Keys: []string{""}}); err == nil {
		t.Error("an empty key was taken")
	}
}

func TestPanicBecomesAnError(t *testing.T) {
	log := &lockedBuffer{}
	s, err := New(Options{Logger: logTo(log)})
	if err != nil {
		t.Fatal(err)
	}
	s.routes["/version"] = map[string]http.HandlerFunc{"GET": func(http.ResponseWriter, *http.Request) { panic("broken") }}
	w := get(s, "GET", "/version", "")
	if w.Code != 500 || strings.Contains(w.Body.String(), "broken") || !strings.Contains(w.Body.String(), "server_error") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if out := log.String(); !strings.Contains(out, "broken") || !strings.Contains(out, "status=500") {
		t.Errorf("log: %s", out)
	}
}

func TestEngineErrors(t *testing.T) {
	for _, c := range []struct {
		err    error
		status int
		code   string
	}{
		{&engine.ContextError{Prompt: 10, MaxTokens: 5, Limit: 12}, 400, "context_length_exceeded"},
		{errors.Join(&sample.ParamError{Name: "top_k", Value: -1, Want: "in [0, 9]"}), 400, ""},
		{&sched.OverloadError{Queued: 3, Limit: 3}, 429, ""},
		{&sched.CapacityError{Tokens: 9, Need: 3, Granules: 1, GranuleTokens: 128}, 400, "request_exceeds_capacity"},
		{fmt.Errorf("end: %w", sched.ErrExpired), 503, "overloaded"},
		{engine.ErrDraining, 503, "draining"},
		{&sched.PoisonError{Charges: 3, Cause: errors.New("x")}, 500, ""},
		{engine.ErrNoVision, 400, "images_not_supported"},
		{protocol.NewError(418, "tea"), 418, ""},
	} {
		e := apiError(c.err)
		if e == nil || e.Status() != c.status || c.code != "" && e.Code != c.code {
			t.Errorf("%v: %+v", c.err, e)
		}
	}
	if e := apiError(errors.New("secret path")); e != nil {
		t.Errorf("unknown error became %v", e)
	}
}

// Images go through decoding, the tower and the span of the prompt. The golden model with a tower has no tokenizer, so the prompt is made by hand.
func TestImages(t *testing.T) {
	e, m, closeEngine, err := newEngine(fixture.Dir(t, "model/tiny/checkpoint"), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer closeEngine()
	md := &Model{Name: "tiny", Engine: e, Model: m, images: make(chan struct{}, 1)}
	picture := "data:image/png;base64," + base64.StdEncoding.EncodeToString(fixture.Read(t, "image/photo.png"))
	conv := &conversation.Conversation{Images: []conversation.Image{{Kind: conversation.ImageDataURL, URL: picture}, {Kind: conversation.ImageDataURL, URL: picture, Detail: conversation.DetailLow}}}
	imgs, err := md.decodeImages(t.Context(), conv)
	if err != nil {
		t.Fatal(err)
	}
	prompt := func() *encoding.Prompt {
		return &encoding.Prompt{Tokens: []int32{3, 4, 5, 6, 7}, Images: []encoding.ImageSpan{{Image: 0, Start: 1, Tokens: 1}, {Image: 1, Start: 3, Tokens: 1}}}
	}
	p := prompt()
	rows, err := md.placeImages(t.Context(), p, imgs, func(int) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := 3 + imgs[0].Plan.Tokens() + imgs[1].Plan.Tokens()
	if len(p.Tokens) != want || p.Tokens[0] != 3 || p.Tokens[len(p.Tokens)-1] != 7 || p.Tokens[rows[1].Start-1] != 5 {
		t.Errorf("%d tokens, want %d: %v", len(p.Tokens), want, p.Tokens)
	}
	run := func(rows []engine.ImageRows) int32 {
		st, err := e.Submit(t.Context(), engine.Request{Prompt: p.Tokens, Images: rows, MaxTokens: 1, Sampling: sample.Greedy(), TopN: 1})
		if err != nil {
			t.Fatal(err)
		}
		ev, err := st.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return ev.ID
	}
	if a, b := run(rows), run(rows); a != b {
		t.Errorf("tokens %d and %d", a, b)
	}
	refused := errors.New("too long")
	if _, err := md.placeImages(t.Context(), prompt(), imgs, func(int) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("a prompt that does not fit: %v", err)
	}
	for _, url := range []string{"data:image/png;base64,%%%", "data:image/png,abc", "data:image/png;base64,AAAA"} {
		_, err := md.decodeImages(t.Context(), &conversation.Conversation{Images: []conversation.Image{{Kind: conversation.ImageDataURL, URL: url, Path: "messages[0].content[1]"}}})
		if e := apiError(err); e == nil || e.Status() != 400 || e.Param != "messages[0].content[1]" {
			t.Errorf("%s: %v", url, err)
		}
	}
	if _, err := md.decodeImages(t.Context(), &conversation.Conversation{Images: []conversation.Image{{Kind: conversation.ImageURL, URL: "http://localhost/x.png"}}}); apiError(err) == nil {
		t.Errorf("a foreign image: %v", err)
	}
}
