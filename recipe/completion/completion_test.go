package completion

import (
	"encoding/json"
	"strings"
	"testing"

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

func TestRequests(t *testing.T) {
	tok := protocoltest.Tokenizer(t, false)
	enc, err := encoding.New(encoding.V41Recipe, tok)
	if err != nil {
		t.Fatal(err)
	}
	for body, want := range map[string]string{
		`{"model":"m","prompt":"Hello"}`:                                             "<｜begin▁of▁sentence｜>Hello",
		`{"model":"m","prompt":["Hello"]}`:                                           "<｜begin▁of▁sentence｜>Hello",
		`{"model":"m","prompt":"a","suffix":"b"}`:                                    "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜>b<｜fim▁end｜>",
		`{"model":"m","prompt":"a","suffix":""}`:                                     "<｜begin▁of▁sentence｜><｜fim▁begin｜>a<｜fim▁hole｜><｜fim▁end｜>",
		`{"model":"m","prompt":"x","allow_special":true,"max_tokens":5,"unknown":1}`: "<｜begin▁of▁sentence｜>x",
	} {
		r := mustDecode(t, body)
		p, err := enc.EncodeCompletion(&r.Completion, encoding.Options{})
		if err != nil || p.Text != want {
			t.Errorf("%s: %q, %v, want %q", body, p.Text, err, want)
		}
	}
	r := mustDecode(t, `{"model":"m","prompt":[19923,14],"n":2,"best_of":2,"stop":"END","logprobs":3,"echo":true,"logit_bias":{"7":1},"seed":5}`)
	if len(r.Completion.PromptIDs) != 2 || r.Params.N != 2 || r.Params.Stop[0] != "END" || *r.Params.TopLogprobs != 3 || !r.Params.Echo || r.Params.LogitBias[7] != 1 || *r.Params.Seed != 5 {
		t.Errorf("%+v %+v", r.Completion, r.Params)
	}
}

func TestOutputBudget(t *testing.T) {
	for _, c := range []struct {
		body            string
		prompt, context int64
		want            int64
	}{
		{`{"model":"m","prompt":"x"}`, 10, 1000, 16},
		{`{"model":"m","prompt":"x","suffix":"y"}`, 10, 100000, 4096},
		{`{"model":"m","prompt":"x","suffix":"y"}`, 10, 100, 90},
		{`{"model":"m","prompt":"x","max_tokens":50}`, 10, 100, 50},
		{`{"model":"m","prompt":"x","max_tokens":50}`, 60, 100, 0},
		{`{"model":"m","prompt":"x"}`, 101, 100, 0},
	} {
		n, err := mustDecode(t, c.body).ResolveMaxTokens(c.prompt, c.context)
		if n != c.want || (err != nil) != (c.want == 0) {
			t.Errorf("%s: %d, %v, want %d", c.body, n, err, c.want)
		}
		if err != nil && protocol.AsError(err).Code != "context_length_exceeded" {
			t.Errorf("%s: %v", c.body, err)
		}
	}
}

func TestErrors(t *testing.T) {
	for body, param := range map[string]string{
		`{"model":"m"}`:                                        "prompt",
		`{"model":"m","prompt":["a","b"]}`:                     "prompt",
		`{"model":"m","prompt":{}}`:                            "prompt",
		`{"model":"m","prompt":[1,"a"]}`:                       "prompt[1]",
		`{"model":"m","prompt":[99999999999]}`:                 "prompt[0]",
		`{"model":"m","prompt":[1],"suffix":"b"}`:              "suffix",
		`{"model":"m","prompt":"a","n":0}`:                     "n",
		`{"model":"m","prompt":"a","best_of":3}`:               "best_of",
		`{"model":"m","prompt":"a","logprobs":21}`:             "logprobs",
		`{"model":"m","prompt":"a","max_tokens":0}`:            "max_tokens",
		`{"model":"m","prompt":"a","stop":["x",""]}`:           "stop[1]",
		`{"model":"m","prompt":"a","temperature":3}`:           "temperature",
		`{"model":"m","prompt":"a","stream_options":{}}`:       "stream_options",
		`{"model":"m","prompt":"a","logit_bias":{"7":1000}}`:   "logit_bias.7",
		`{"model":"m","prompt":"a","presence_penalty":"high"}`: "presence_penalty",
	} {
		_, err := Decode([]byte(body), protocol.Options{})
		if err == nil {
			t.Errorf("%s: no error", body)
			continue
		}
		if e := protocol.AsError(err); e.Status() != 400 || e.Param != param || e.Message == "" {
			t.Errorf("%s: %d %q %s", body, e.Status(), e.Param, e.Message)
		}
	}
}

func TestStreamAndBody(t *testing.T) {
	tok := protocoltest.Tokenizer(t, false)
	r := mustDecode(t, `{"model":"m","prompt":"P","echo":true,"logprobs":1,"stop":"END","stream":true,"stream_options":{"include_usage":true}}`)
	s := NewStream(r, protocol.Header{ID: "cmpl-1", Model: "m", Created: 9, Prompt: 2}, "P")
	o := r.Parsing()
	o.Vocabulary = tok
	p, err := parse.New(o)
	if err != nil {
		t.Fatal(err)
	}
	out := s.Start(nil)
	ids := append(tok.Encode("\n\nHi ｜</think> <tool>"), 28927, 225)
	ids = append(ids, tok.Encode(" END tail")...)
	for _, id := range ids {
		evs, err := p.Tokens(nil, []int32{id}, []parse.Logprob{{Logprob: -1, Top: []parse.TopLogprob{{ID: id, Logprob: -1}}}})
		if err != nil {
			t.Fatal(err)
		}
		out = s.Events(out, 0, evs, p.Usage())
	}
	out = s.Close(out)
	frames, err := protocoltest.Frames(out)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, f := range frames[:len(frames)-1] {
		var c struct {
			Object  string
			Choices []struct{ Text string }
		}
		if err := json.Unmarshal(f.Data, &c); err != nil || c.Object != "text_completion" {
			t.Fatalf("%s: %v", f.Data, err)
		}
		text += c.Choices[0].Text
	}
	const want = "P\n\nHi ｜</think> <tool>😀 "
	var body struct {
		Choices []struct {
			Text         string
			FinishReason string `json:"finish_reason"`
			Logprobs     struct {
				Tokens     []string
				TextOffset []int `json:"text_offset"`
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
	c := body.Choices[0]
	if text != want || c.Text != want || c.FinishReason != "stop" || string(frames[len(frames)-1].Data) != "[DONE]" || body.Usage.PromptTokens != 2 || body.Usage.CompletionTokens == 0 {
		t.Fatalf("text %q\nbody %s", text, s.Body())
	}
	if len(c.Logprobs.Tokens) != len(c.Logprobs.TextOffset) || c.Logprobs.TextOffset[0] != 1 {
		t.Fatalf("%+v", c.Logprobs)
	}
	runes := []rune(want)
	for i, off := range c.Logprobs.TextOffset {
		if tok := c.Logprobs.Tokens[i]; !strings.HasPrefix(tok, "bytes:") && !strings.HasPrefix(string(runes[off:])+"END", tok) {
			t.Errorf("token %d %q at %d", i, tok, off)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"model":"m","prompt":"a","suffix":"b","stop":["x"],"logprobs":1}`))
	f.Add([]byte(`{"model":"m","prompt":[1,2]}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		r, err := Decode(body, protocol.Options{})
		if err != nil {
			if e := protocol.AsError(err); e.Status() < 400 || e.Status() > 499 || !json.Valid(e.OpenAI()) {
				t.Fatalf("%d %s", e.Status(), e.OpenAI())
			}
			return
		}
		if s := NewStream(r, protocol.Header{ID: "x"}, "p"); !json.Valid(s.Body()) {
			t.Fatalf("body %s", s.Body())
		}
	})
}
