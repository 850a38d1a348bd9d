package messages

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// blockKind is the kind of a content block.
type blockKind uint8

const (
	blockThinking blockKind = iota + 1
	blockText
	blockTool
)

type block struct {
	kind      blockKind
	text      []byte
	signature string
	id, name  string
	truncated bool // a call whose markup was cut
}

// Stream turns parse events into message events and keeps what the complete body needs. It belongs to one goroutine.
type Stream struct {
	req    *Request
	head   protocol.Header
	compat bool
	key    []byte
	fixed  *string

	blocks  []block
	open    bool
	started bool
	pinged  bool
	calls   int
	usage   parse.Usage
	stop    string
	stopSeq *string
	ended   bool
	w       protocol.JSON
}

// NewStream makes the encoder of the response to req.
func NewStream(req *Request, head protocol.Header) *Stream {
	return &Stream{req: req, head: head, compat: req.Options().Compat}
}

// SetSignature fixes the signature of thinking blocks.
func (s *Stream) SetSignature(signature string) { s.fixed = &signature }

// SetKey sets the key that signs thinking blocks. Without a key they are signed with the response's id.
func (s *Stream) SetKey(key []byte) { s.key = key }

// SetPrompt sets the token counts of the prompt, if NewStream was called before they were known.
func (s *Stream) SetPrompt(prompt, cached int64) { s.head.Prompt, s.head.Cached = prompt, cached }

// sign gives the signature of a thinking text: a version and an HMAC over model and text.
func (s *Stream) sign(text []byte) string {
	if s.fixed != nil {
		return *s.fixed
	}
	if s.key == nil {
		return s.head.ID
	}
	mac := hmac.New(sha256.New, s.key)
	mac.Write([]byte(s.head.Model))
	mac.Write([]byte{0})
	mac.Write(text)
	return base64.StdEncoding.EncodeToString(append([]byte{1}, mac.Sum(nil)...))
}

func (s *Stream) event(dst []byte, name string, body func(w *protocol.JSON)) []byte {
	w := &s.w
	w.B = w.B[:0]
	w.Open().Key("type").Str(name)
	body(w)
	w.Close()
	dst = append(append(append(dst, "event: "...), name...), "\ndata: "...)
	return append(append(dst, w.B...), "\n\n"...)
}

// Start appends message_start, and in compat the thinking block that is opened before anything is known. Call it once the engine took the
// request: before that an error can still be a status.
func (s *Stream) Start(dst []byte) []byte {
	if s.started {
		return dst
	}
	s.started = true
	dst = s.event(dst, "message_start", func(w *protocol.JSON) {
		w.Key("message")
		s.message(w, false)
	})
	if stage := s.req.Parsing().Stage; s.compat && stage != conversation.StageOff && stage != conversation.StageContentContinuation {
		dst = s.begin(dst, block{kind: blockThinking})
	}
	return dst
}

func (s *Stream) message(w *protocol.JSON, whole bool) {
	w.Open().Key("id").Str(s.head.ID).Key("type").Str("message").Key("role").Str("assistant").Key("model").Str(s.head.Model).Key("content").Array()
	if whole {
		for i := range s.blocks {
			s.content(w, &s.blocks[i])
		}
	}
	w.End().Key("stop_reason")
	if !whole || s.stop == "" {
		w.Null().Key("stop_sequence").Null()
	} else {
		w.Str(s.stop).Key("stop_sequence").OrNull(s.stopSeq)
	}
	w.Key("usage")
	output := int64(0)
	if whole {
		output = int64(s.usage.Completion)
	}
	s.usageJSON(w, output)
	w.Close()
}

func (s *Stream) usageJSON(w *protocol.JSON, output int64) {
	w.Open().Key("input_tokens").Int(s.head.Prompt - s.head.Cached).Key("cache_creation_input_tokens").Int(0)
	w.Key("cache_read_input_tokens").Int(s.head.Cached).Key("output_tokens").Int(output).Key("service_tier").Str("standard").Close()
}

// content writes a block of the complete message.
func (s *Stream) content(w *protocol.JSON, b *block) {
	w.Open()
	switch b.kind {
	case blockThinking:
		w.Key("type").Str("thinking").Key("thinking").Str(string(b.text)).Key("signature").Str(b.signature)
	case blockText:
		w.Key("type").Str("text").Key("text").Str(string(b.text))
	case blockTool:
		w.Key("type").Str("tool_use").Key("id").Str(b.id).Key("name").Str(b.name).Key("input")
		if v, err := pyjson.Parse(b.text); err == nil && v.Kind == pyjson.Object {
			w.Value(&v)
		} else {
			w.Open().Close()
		}
	}
	w.Close()
}

// begin opens a block.
func (s *Stream) begin(dst []byte, b block) []byte {
	dst = s.end(dst)
	s.blocks = append(s.blocks, b)
	s.open = true
	dst = s.event(dst, "content_block_start", func(w *protocol.JSON) {
		w.Key("index").Int(int64(len(s.blocks) - 1)).Key("content_block").Open()
		switch b.kind {
		case blockThinking:
			w.Key("type").Str("thinking").Key("thinking").Str("").Key("signature").Str("")
		case blockText:
			w.Key("type").Str("text").Key("text").Str("")
		case blockTool:
			w.Key("type").Str("tool_use").Key("id").Str(b.id).Key("name").Str(b.name).Key("input").Open().Close()
		}
		w.Close()
	})
	if !s.pinged {
		s.pinged = true
		dst = s.event(dst, "ping", func(*protocol.JSON) {})
	}
	return dst
}

func (s *Stream) delta(dst []byte, kind, key, text string) []byte {
	return s.event(dst, "content_block_delta", func(w *protocol.JSON) {
		w.Key("index").Int(int64(len(s.blocks) - 1)).Key("delta").Open().Key("type").Str(kind).Key(key).Str(text).Close()
	})
}

// end closes the open block.
func (s *Stream) end(dst []byte) []byte {
	if !s.open {
		return dst
	}
	s.open = false
	if b := &s.blocks[len(s.blocks)-1]; b.kind == blockThinking {
		b.signature = s.sign(b.text)
		dst = s.delta(dst, "signature_delta", "signature", b.signature)
	}
	return s.event(dst, "content_block_stop", func(w *protocol.JSON) { w.Key("index").Int(int64(len(s.blocks) - 1)) })
}

// in makes sure that a block of a kind is open.
func (s *Stream) in(dst []byte, kind blockKind) []byte {
	if s.open && s.blocks[len(s.blocks)-1].kind == kind {
		return dst
	}
	return s.begin(dst, block{kind: kind})
}

// Events appends the events of one engine step. There is one choice only, 0.
func (s *Stream) Events(dst []byte, choice int, events []parse.Event, usage parse.Usage) []byte {
	if s.ended || choice != 0 {
		return dst
	}
	s.usage = usage
	if len(events) > 0 {
		dst = s.Start(dst)
	}
	for i := range events {
		ev := &events[i]
		switch ev.Kind {
		case parse.Reasoning:
			dst = s.in(dst, blockThinking)
			dst = s.append(dst, "thinking_delta", "thinking", ev.Text)
		case parse.Text:
			dst = s.in(dst, blockText)
			dst = s.append(dst, "text_delta", "text", ev.Text)
		case parse.ToolStart:
			dst = s.begin(dst, block{kind: blockTool, id: s.callID(), name: ev.Call.Name})
		case parse.ToolArgs:
			dst = s.append(dst, "input_json_delta", "partial_json", ev.Text)
		case parse.ToolEnd:
			s.blocks[len(s.blocks)-1].truncated = !ev.Call.Complete
		case parse.Finish:
			dst = s.finish(dst, ev)
		}
	}
	return dst
}

func (s *Stream) callID() string {
	n := s.calls
	s.calls++
	if s.head.CallID != nil {
		return s.head.CallID(n)
	}
	return "toolu" + s.head.Call(n)[len("call"):]
}

func (s *Stream) append(dst []byte, kind, key, text string) []byte {
	if !s.open {
		return dst
	}
	b := &s.blocks[len(s.blocks)-1]
	b.text = append(b.text, text...)
	return s.delta(dst, kind, key, text)
}

func (s *Stream) finish(dst []byte, ev *parse.Event) []byte {
	dst = s.end(dst)
	s.ended = true
	switch ev.Cause {
	case parse.CauseStopString:
		s.stop, s.stopSeq = "stop_sequence", &ev.Stop
	case parse.CauseToolCalls:
		s.stop = "tool_use"
	case parse.CauseLength:
		s.stop = "max_tokens"
	case parse.CauseContextFull:
		s.stop = "model_context_window_exceeded"
	case parse.CauseContentFilter:
		s.stop = "refusal"
	default:
		s.stop = "end_turn"
	}
	if ev.Cause == parse.CauseResources {
		return s.Fail(dst, protocol.NewError(529, "the engine ran out of resources; try again later"))
	}
	dst = s.event(dst, "message_delta", func(w *protocol.JSON) {
		w.Key("delta").Open().Key("stop_reason").Str(s.stop).Key("stop_sequence").OrNull(s.stopSeq).Close().Key("usage")
		s.usageJSON(w, int64(s.usage.Completion))
	})
	return s.event(dst, "message_stop", func(*protocol.JSON) {})
}

// Usage gives the tokens of the response so far.
func (s *Stream) Usage() protocol.Usage {
	return protocol.Usage{Prompt: s.head.Prompt, Cached: s.head.Cached, Completion: int64(s.usage.Completion), Reasoning: int64(s.usage.Reasoning)}
}

// Close appends nothing: the stream of this protocol ends with message_stop.
func (s *Stream) Close(dst []byte) []byte { return dst }

// Fail appends the event of a failure in the middle of a stream. The open block stays open; nothing else is appended after it.
func (s *Stream) Fail(dst []byte, err *protocol.Error) []byte {
	s.ended = true
	return s.event(dst, "error", func(w *protocol.JSON) {
		w.Key("error").Open().Key("type").Str(err.AnthropicType()).Key("message").Str(err.Message).Close()
	})
}

// KeepAlive appends a ping while the request waits.
func (s *Stream) KeepAlive(dst []byte) []byte { return s.event(dst, "ping", func(*protocol.JSON) {}) }

// Body gives the complete response of what Events took.
func (s *Stream) Body() []byte {
	w := new(protocol.JSON)
	s.message(w, true)
	return w.B
}

// CountTokens is the body of the answer to a count_tokens request.
func CountTokens(tokens int64) []byte {
	var w protocol.JSON
	return w.Open().Key("input_tokens").Int(tokens).Close().B
}
