package completion

import (
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// Stream turns parse events into text_completion chunks and keeps what the complete body needs. It belongs to one goroutine.
type Stream struct {
	req     *Request
	head    protocol.Header
	echo    string
	choices []choice
	ended   int
	failed  bool
	w       protocol.JSON
}

type choice struct {
	text   []byte
	logs   []parse.TokenLogprob
	usage  parse.Usage
	finish string
	echoed bool
	offset int // characters given out, for text_offset
}

// NewStream makes the encoder of the response to req. prompt is the text to repeat when the request has echo.
func NewStream(req *Request, head protocol.Header, prompt string) *Stream {
	s := &Stream{req: req, head: head, choices: make([]choice, max(1, req.Params.N))}
	if req.Params.Echo {
		s.echo = prompt
	}
	return s
}

// SetPrompt sets the token counts of the prompt, if NewStream was called before they were known.
func (s *Stream) SetPrompt(prompt, cached int64) { s.head.Prompt, s.head.Cached = prompt, cached }

// Start appends the repeated prompt of each choice, if there is one.
func (s *Stream) Start(dst []byte) []byte {
	for i := range s.choices {
		dst = s.start(dst, i)
	}
	return dst
}

func (s *Stream) start(dst []byte, index int) []byte {
	c := &s.choices[index]
	if c.echoed || s.echo == "" {
		return dst
	}
	c.echoed = true
	return s.chunk(dst, index, s.echo, nil, nil, nil)
}

// Events appends the chunks of one engine step of one choice.
func (s *Stream) Events(dst []byte, index int, events []parse.Event, usage parse.Usage) []byte {
	if s.failed || index < 0 || index >= len(s.choices) {
		return dst
	}
	c := &s.choices[index]
	c.usage = usage
	if len(events) > 0 {
		dst = s.start(dst, index)
	}
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case parse.Text:
			var logs []parse.TokenLogprob
			if s.req.Params.Logprobs {
				logs = ev.Logprobs
			}
			dst = s.chunk(dst, index, ev.Text, logs, nil, nil)
		case parse.Finish:
			if c.finish != "" {
				break
			}
			c.finish = "stop"
			switch ev.Cause {
			case parse.CauseLength, parse.CauseContextFull:
				c.finish = "length"
			case parse.CauseContentFilter:
				c.finish = "content_filter"
			case parse.CauseResources:
				c.finish = "insufficient_system_resource"
			}
			s.ended++
			var total *parse.Usage
			if s.ended == len(s.choices) {
				u := s.total()
				total = &u
			}
			dst = s.chunk(dst, index, "", nil, &c.finish, total)
		}
	}
	return dst
}

func (s *Stream) chunk(dst []byte, index int, text string, logs []parse.TokenLogprob, finish *string, usage *parse.Usage) []byte {
	c := &s.choices[index]
	w := &s.w
	w.B = w.B[:0]
	s.top(w)
	w.Key("choices").Array().Open().Key("text").Str(text).Key("index").Int(int64(index)).Key("logprobs")
	s.logprobs(w, logs, c.offset)
	w.Key("finish_reason").OrNull(finish).Close().End()
	if usage != nil {
		w.Key("usage")
		s.usage(w, *usage)
	} else if s.req.IncludeUsage {
		w.Key("usage").Null()
	}
	w.Close()
	c.text = append(c.text, text...)
	c.logs = append(c.logs, logs...)
	c.offset += utf8.RuneCountInString(text)
	dst = append(append(dst, "data: "...), w.B...)
	return append(dst, "\n\n"...)
}

func (s *Stream) top(w *protocol.JSON) {
	w.Open().Key("id").Str(s.head.ID).Key("object").Str("text_completion").Key("created").Int(s.head.Created).Key("model").Str(s.head.Model)
	w.Key("system_fingerprint").OrNull(s.head.Fingerprint)
}

// logprobs writes the shape of this protocol: parallel arrays, offsets in characters.
func (s *Stream) logprobs(w *protocol.JSON, logs []parse.TokenLogprob, offset int) {
	if len(logs) == 0 {
		w.Null()
		return
	}
	w.Open().Key("tokens").Array()
	for i := range logs {
		w.Str(protocol.TokenText(logs[i].Bytes))
	}
	w.End().Key("token_logprobs").Array()
	for i := range logs {
		w.Float(logs[i].Logprob)
	}
	w.End().Key("top_logprobs").Array()
	for i := range logs {
		w.Open()
		seen := map[string]bool{}
		for _, top := range logs[i].Top {
			if text := protocol.TokenText(top.Bytes); !seen[text] {
				seen[text] = true
				w.Name(text).Float(top.Logprob)
			}
		}
		w.Close()
	}
	w.End().Key("text_offset").Array()
	var pending []byte
	for i := range logs {
		w.Int(int64(offset))
		pending = append(pending, logs[i].Bytes...)
		for len(pending) > 0 && utf8.FullRune(pending) {
			_, n := utf8.DecodeRune(pending)
			pending, offset = pending[n:], offset+1
		}
	}
	w.End().Close()
}

func (s *Stream) total() (u parse.Usage) {
	for i := range s.choices {
		u.Completion += s.choices[i].usage.Completion
	}
	return u
}

// Usage gives the tokens of the whole response so far.
func (s *Stream) Usage() protocol.Usage {
	return protocol.Usage{Prompt: s.head.Prompt, Cached: s.head.Cached, Completion: int64(s.total().Completion)}
}

func (s *Stream) usage(w *protocol.JSON, u parse.Usage) {
	prompt, completion := s.head.Prompt, int64(u.Completion)
	w.Open().Key("prompt_tokens").Int(prompt).Key("completion_tokens").Int(completion).Key("total_tokens").Int(prompt + completion)
	w.Key("prompt_tokens_details").Open().Key("cached_tokens").Int(s.head.Cached).Close()
	w.Key("prompt_cache_hit_tokens").Int(s.head.Cached).Key("prompt_cache_miss_tokens").Int(prompt - s.head.Cached).Close()
}

// Close appends the line that ends the stream.
func (s *Stream) Close(dst []byte) []byte { return append(dst, "data: [DONE]\n\n"...) }

// Fail appends the event of a failure in the middle of a stream; Close ends the stream as usual.
func (s *Stream) Fail(dst []byte, err *protocol.Error) []byte {
	s.failed = true
	dst = append(append(dst, "data: "...), err.OpenAI()...)
	return append(dst, "\n\n"...)
}

// KeepAlive appends a comment line that keeps the connection alive while the request waits.
func (s *Stream) KeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n\n"...) }

// Body gives the complete response of what Events took.
func (s *Stream) Body() []byte {
	w := new(protocol.JSON)
	s.top(w)
	w.Key("choices").Array()
	for i := range s.choices {
		c := &s.choices[i]
		w.Open().Key("text").Str(string(c.text)).Key("index").Int(int64(i)).Key("logprobs")
		offset := 0
		if c.echoed {
			offset = utf8.RuneCountInString(s.echo)
		}
		s.logprobs(w, c.logs, offset)
		w.Key("finish_reason")
		if c.finish == "" {
			w.Null()
		} else {
			w.Str(c.finish)
		}
		w.Close()
	}
	w.End().Key("usage")
	s.usage(w, s.total())
	return w.Close().B
}
