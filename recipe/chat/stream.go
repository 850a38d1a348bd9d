package chat

import (
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// UsagePlace says which chunks of a stream carry the usage.
type UsagePlace uint8

// The places.
const (
	UsageAtFinish UsagePlace = iota // the finishing chunk; the default
	UsageSeparate                   // one more chunk without choices, when include_usage asks for it
	UsageBoth
)

// Stream turns parse events into chunks and keeps what the complete body needs. It belongs to one goroutine.
type Stream struct {
	req     *Request
	head    protocol.Header
	compat  bool
	place   UsagePlace
	choices []choice
	calls   int // of all choices, so that ids are unique
	ended   int
	failed  bool
	w       protocol.JSON
}

// choice is one of the n answers.
type choice struct {
	role      bool
	content   []byte
	reasoning []byte
	thought   bool // reasoning_content is part of the message
	calls     []call
	logs      []parse.TokenLogprob
	thinkLogs []parse.TokenLogprob
	usage     parse.Usage
	finish    string
	refusal   *string
}

type call struct {
	id, name  string
	arguments []byte
	custom    bool
}

// NewStream makes the encoder of the response to req.
func NewStream(req *Request, head protocol.Header) *Stream {
	return &Stream{req: req, head: head, compat: req.Options().Compat, choices: make([]choice, max(1, req.Params.N))}
}

// SetUsagePlace chooses where a stream carries the usage.
func (s *Stream) SetUsagePlace(p UsagePlace) { s.place = p }

// SetPrompt sets the token counts of the prompt, if NewStream was called before they were known.
func (s *Stream) SetPrompt(prompt, cached int64) { s.head.Prompt, s.head.Cached = prompt, cached }

// stage is where the output starts.
func (s *Stream) stage() conversation.Stage { return s.req.Parsing().Stage }

// Start appends the role chunk of each choice. Call it once the engine took the request: before that an error can still be a status.
func (s *Stream) Start(dst []byte) []byte {
	for i := range s.choices {
		dst = s.startChoice(dst, i)
	}
	return dst
}

func (s *Stream) startChoice(dst []byte, i int) []byte {
	c := &s.choices[i]
	if c.role {
		return dst
	}
	c.role = true
	w := s.begin(i)
	w.Key("role").Str("assistant")
	switch s.stage() {
	case conversation.StageOff:
		w.Key("content").Str("")
	case conversation.StageContentContinuation:
		w.Key("content").Str("").Key("reasoning_content").Null()
	default:
		w.Key("content").Null().Key("reasoning_content").Str("")
		c.thought = true
	}
	return s.end(dst, nil, nil, nil)
}

// begin writes a chunk up to the inside of its delta.
func (s *Stream) begin(index int) *protocol.JSON {
	w := &s.w
	w.B = w.B[:0]
	s.top(w, "chat.completion.chunk")
	w.Key("choices").Array().Open().Key("index").Int(int64(index)).Key("delta").Open()
	return w
}

func (s *Stream) top(w *protocol.JSON, object string) {
	w.Open().Key("id").Str(s.head.ID).Key("object").Str(object).Key("created").Int(s.head.Created).Key("model").Str(s.head.Model)
	w.Key("system_fingerprint").OrNull(s.head.Fingerprint)
}

// end closes the delta and the chunk and appends it as an event.
func (s *Stream) end(dst []byte, logs []parse.TokenLogprob, finish *string, usage *parse.Usage) []byte {
	return s.endAs(dst, logs, "content", finish, usage)
}

func (s *Stream) endAs(dst []byte, logs []parse.TokenLogprob, channel string, finish *string, usage *parse.Usage) []byte {
	w := &s.w
	w.Close().Key("logprobs")
	if len(logs) == 0 {
		w.Null()
	} else {
		w.Open().Key(channel)
		w.Logprobs(logs, s.compat)
		if !s.compat {
			w.Key("refusal").Null()
		}
		w.Close()
	}
	w.Key("finish_reason").OrNull(finish).Close().End()
	if usage != nil {
		w.Key("usage")
		s.usage(w, *usage)
	} else if s.req.IncludeUsage || s.compat && !s.req.Stream {
		w.Key("usage").Null()
	}
	w.Close()
	return frame(dst, w.B)
}

func frame(dst, data []byte) []byte {
	dst = append(dst, "data: "...)
	dst = append(dst, data...)
	return append(dst, "\n\n"...)
}

// wantLogprobs says whether log-probabilities are shown: when asked for, in compat whenever the engine gives them.
func (s *Stream) wantLogprobs(logs []parse.TokenLogprob) []parse.TokenLogprob {
	if s.compat || s.req.Params.Logprobs {
		return logs
	}
	return nil
}

// Events appends the chunks of one engine step of one choice. usage counts the choice's tokens so far.
func (s *Stream) Events(dst []byte, index int, events []parse.Event, usage parse.Usage) []byte {
	if s.failed || index < 0 || index >= len(s.choices) {
		return dst
	}
	c := &s.choices[index]
	c.usage = usage
	if len(events) > 0 {
		dst = s.startChoice(dst, index)
	}
	thinking := s.req.Conversation.Thinking
	for i := range events {
		ev := &events[i]
		logs := s.wantLogprobs(ev.Logprobs)
		switch ev.Kind {
		case parse.Reasoning:
			c.reasoning, c.thought = append(c.reasoning, ev.Text...), true
			c.thinkLogs = append(c.thinkLogs, logs...)
			s.begin(index).Key("content").Null().Key("reasoning_content").Str(ev.Text)
			dst = s.endAs(dst, logs, "reasoning_content", nil, nil)
		case parse.Text:
			c.content = append(c.content, ev.Text...)
			c.logs = append(c.logs, logs...)
			w := s.begin(index).Key("content").Str(ev.Text)
			if thinking {
				w.Key("reasoning_content").Null()
			}
			dst = s.end(dst, logs, nil, nil)
		case parse.ToolStart:
			dst = s.startCall(dst, index, ev)
		case parse.ToolArgs:
			dst = s.arguments(dst, index, ev)
		case parse.ToolEnd:
			dst = s.endCall(dst, index, ev)
		case parse.Finish:
			dst = s.finish(dst, index, ev)
		}
	}
	return dst
}

func (s *Stream) isCustom(name string) bool {
	if s.compat {
		return false
	}
	for i := range s.req.Conversation.Tools {
		if t := &s.req.Conversation.Tools[i]; t.Name == name {
			return t.Kind == conversation.ToolCustomText || t.Kind == conversation.ToolCustomGrammar
		}
	}
	return false
}

func (s *Stream) startCall(dst []byte, index int, ev *parse.Event) []byte {
	c := &s.choices[index]
	id := s.head.Call(s.calls)
	s.calls++
	c.calls = append(c.calls, call{id: id, name: ev.Call.Name, custom: s.isCustom(ev.Call.Name)})
	k := &c.calls[len(c.calls)-1]
	w := s.begin(index)
	if s.req.Functions {
		w.Key("function_call").Open().Key("name").Str(k.name).Key("arguments").Str("").Close()
		return s.end(dst, nil, nil, nil)
	}
	w.Key("tool_calls").Array().Open().Key("index").Int(int64(len(c.calls) - 1))
	s.callHead(w, k, "")
	w.Close().End()
	return s.end(dst, nil, nil, nil)
}

func (s *Stream) callHead(w *protocol.JSON, k *call, arguments string) {
	if k.custom {
		w.Key("id").Str(k.id).Key("type").Str("custom").Key("custom").Open().Key("name").Str(k.name).Key("input").Str(arguments).Close()
		return
	}
	w.Key("id").Str(k.id).Key("type").Str("function").Key("function").Open().Key("name").Str(k.name).Key("arguments").Str(arguments).Close()
}

func (s *Stream) arguments(dst []byte, index int, ev *parse.Event) []byte {
	c := &s.choices[index]
	if len(c.calls) == 0 {
		return dst
	}
	k := &c.calls[len(c.calls)-1]
	k.arguments = append(k.arguments, ev.Text...)
	if k.custom {
		return dst // the input is decoded from the whole arguments
	}
	w := s.begin(index)
	if s.req.Functions {
		w.Key("function_call").Open().Key("arguments").Str(ev.Text).Close()
	} else {
		w.Key("tool_calls").Array().Open().Key("index").Int(int64(len(c.calls) - 1)).Key("function").Open().Key("arguments").Str(ev.Text).Close().Close().End()
	}
	return s.end(dst, nil, nil, nil)
}

func (s *Stream) endCall(dst []byte, index int, ev *parse.Event) []byte {
	c := &s.choices[index]
	if len(c.calls) == 0 {
		return dst
	}
	k := &c.calls[len(c.calls)-1]
	if !k.custom {
		return dst
	}
	input, _ := protocol.CustomInput(ev.Call.Arguments)
	k.arguments = []byte(input)
	if input == "" {
		return dst
	}
	s.begin(index).Key("tool_calls").Array().Open().Key("index").Int(int64(len(c.calls) - 1)).Key("custom").Open().Key("input").Str(input).Close().Close().End()
	return s.end(dst, nil, nil, nil)
}

func (s *Stream) finish(dst []byte, index int, ev *parse.Event) []byte {
	c := &s.choices[index]
	if c.finish != "" {
		return dst
	}
	c.finish = finishReason(ev.Cause)
	if c.finish == "tool_calls" && s.req.Functions {
		c.finish = "function_call"
	}
	s.ended++
	if ev.Cause == parse.CauseContentFilter && len(c.content)+len(c.calls) == 0 && !s.compat {
		text := withheld
		c.refusal = &text
		s.begin(index).Key("refusal").Str(text)
		dst = s.end(dst, nil, nil, nil)
	}
	w := s.begin(index).Key("content").Str("")
	if s.req.Conversation.Thinking {
		w.Key("reasoning_content").Null()
	}
	var usage *parse.Usage
	if s.ended == len(s.choices) && s.place != UsageSeparate {
		usage = new(parse.Usage)
		*usage = s.total()
	}
	dst = s.end(dst, nil, &c.finish, usage)
	if s.ended == len(s.choices) && s.place != UsageAtFinish && s.req.IncludeUsage {
		w := &s.w
		w.B = w.B[:0]
		s.top(w, "chat.completion.chunk")
		w.Key("choices").Array().End().Key("usage")
		s.usage(w, s.total())
		w.Close()
		dst = frame(dst, w.B)
	}
	return dst
}

// withheld is the refusal when a filter stopped the answer before its first word.
const withheld = "The answer was withheld by a content filter."

// finishReason gives the protocol's word for a cause.
func finishReason(c parse.Cause) string {
	switch c {
	case parse.CauseLength, parse.CauseContextFull:
		return "length"
	case parse.CauseContentFilter:
		return "content_filter"
	case parse.CauseToolCalls:
		return "tool_calls"
	case parse.CauseResources:
		return "insufficient_system_resource"
	}
	return "stop"
}

func (s *Stream) total() (u parse.Usage) {
	for i := range s.choices {
		u.Completion += s.choices[i].usage.Completion
		u.Reasoning += s.choices[i].usage.Reasoning
	}
	return u
}

// Usage gives the tokens of the whole response so far.
func (s *Stream) Usage() protocol.Usage {
	u := s.total()
	return protocol.Usage{Prompt: s.head.Prompt, Cached: s.head.Cached, Completion: int64(u.Completion), Reasoning: int64(u.Reasoning)}
}

func (s *Stream) usage(w *protocol.JSON, u parse.Usage) {
	prompt, cached, completion := s.head.Prompt, s.head.Cached, int64(u.Completion)
	w.Open().Key("prompt_tokens").Int(prompt).Key("completion_tokens").Int(completion).Key("total_tokens").Int(prompt + completion)
	w.Key("prompt_tokens_details").Open().Key("cached_tokens").Int(cached).Close()
	if s.req.Conversation.Thinking || !s.compat {
		w.Key("completion_tokens_details").Open().Key("reasoning_tokens").Int(int64(u.Reasoning)).Close()
	}
	w.Key("prompt_cache_hit_tokens").Int(cached).Key("prompt_cache_miss_tokens").Int(prompt - cached).Close()
}

// Close appends the line that ends the stream.
func (s *Stream) Close(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

// Fail appends the event of a failure in the middle of a stream. Close ends the stream as usual; nothing else is appended after it.
func (s *Stream) Fail(dst []byte, err *protocol.Error) []byte {
	s.failed = true
	return frame(dst, err.OpenAI())
}

// KeepAlive appends a comment line that keeps the connection alive while the request waits.
func (s *Stream) KeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n\n"...) }

// Body gives the complete response of what Events took.
func (s *Stream) Body() []byte {
	w := new(protocol.JSON)
	s.top(w, "chat.completion")
	w.Key("choices").Array()
	for i := range s.choices {
		s.body(w, i)
	}
	w.End().Key("usage")
	s.usage(w, s.total())
	return w.Close().B
}

func (s *Stream) body(w *protocol.JSON, index int) {
	c := &s.choices[index]
	w.Open().Key("index").Int(int64(index)).Key("message").Open().Key("role").Str("assistant").Key("content")
	if len(c.content) == 0 && len(c.calls) > 0 && !s.compat {
		w.Null()
	} else {
		w.Str(string(c.content))
	}
	if c.thought {
		w.Key("reasoning_content").Str(string(c.reasoning))
	}
	if !s.compat {
		w.Key("refusal").OrNull(c.refusal)
	}
	switch {
	case len(c.calls) == 0:
	case s.req.Functions:
		w.Key("function_call").Open().Key("name").Str(c.calls[0].name).Key("arguments").Str(string(c.calls[0].arguments)).Close()
	default:
		w.Key("tool_calls").Array()
		for i := range c.calls {
			w.Open()
			if s.compat {
				w.Key("index").Int(int64(i))
			}
			s.callHead(w, &c.calls[i], string(c.calls[i].arguments))
			w.Close()
		}
		w.End()
	}
	w.Close().Key("logprobs")
	if len(c.logs)+len(c.thinkLogs) == 0 {
		w.Null()
	} else {
		w.Open()
		if len(c.logs) > 0 || !s.compat {
			w.Key("content")
			w.Logprobs(c.logs, s.compat)
		}
		if len(c.thinkLogs) > 0 {
			w.Key("reasoning_content")
			w.Logprobs(c.thinkLogs, s.compat)
		}
		if !s.compat {
			w.Key("refusal").Null()
		}
		w.Close()
	}
	w.Key("finish_reason")
	if c.finish == "" {
		w.Null()
	} else {
		w.Str(c.finish)
	}
	w.Close()
}
