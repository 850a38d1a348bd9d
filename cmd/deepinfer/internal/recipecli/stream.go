package recipecli

import (
	"bytes"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
)

// streamCase is one line of `recipe stream`.
type streamCase struct {
	encodeCase
	PromptUsage struct {
		PromptTokens int64 `json:"prompt_tokens"`
		Cached       int64 `json:"prompt_cache_hit_tokens"`
	} `json:"prompt_usage"`
	SystemFingerprint *string           `json:"system_fingerprint"`
	Chunks            []json.RawMessage `json:"chunks"`
	Finish            *string           `json:"finish"`
	Signature         *string           `json:"signature"`
	Ready             *bool             `json:"ready"`
}

// sseEvent is one event of an answer.
type sseEvent struct {
	Step  int             `json:"step"`
	Event string          `json:"event,omitempty"`
	Data  json.RawMessage `json:"data"`
}

type streamAnswer struct {
	ID       json.RawMessage `json:"id"`
	SSE      []sseEvent      `json:"sse"`
	Done     *string         `json:"done"`
	Body     json.RawMessage `json:"body,omitempty"`
	Consumed *int            `json:"consumed,omitempty"`
	Error    string          `json:"error,omitempty"`
}

// encoder is the response encoder of any protocol.
type encoder interface {
	Start(dst []byte) []byte
	Events(dst []byte, choice int, events []parse.Event, usage parse.Usage) []byte
	Close(dst []byte) []byte
	Body() []byte
}

func streamCommand(s *session) *cobra.Command {
	return lineCommand(s, "stream", "Model output to the event stream and the body of a response",
		"Reads {\"id\", \"api\", \"profile\", \"options\"?, \"request\", \"prompt_usage\", \"chunks\", \"finish\", ...} and writes {\"id\", \"sse\", \"done\", \"body\"}.\n"+
			"Each event has the step that released it: the chunk, or -1 before the first. The response has the id R, the model M, the time 1700000000\n"+
			"and call ids call_00_R, call_01_R and so on. signature is that of thinking blocks; with ready false nothing is sent before the first chunk.",
		func(line []byte) (any, error) {
			var c streamCase
			if err := readLine(line, &c); err != nil {
				return nil, err
			}
			var given finishGiven
			if err := json.Unmarshal(line, &given); err == nil && given.Finish == nil {
				stop := "stop"
				c.Finish = &stop
			}
			out, fault, err := s.stream(&c)
			if err != nil {
				return nil, err
			}
			if fault != nil {
				return answerError{ID: id(c.ID), Error: *fault}, nil
			}
			return out, nil
		})
}

// open decodes a request and makes the encoder of its response.
func (c *streamCase) open(body []byte, opts protocol.Options, h protocol.Header) (*protocol.Request, encoder, error) {
	switch c.API {
	case "chat":
		r, err := chat.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, chat.NewStream(r, h), nil
	case "responses":
		r, err := responses.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, responses.NewStream(r, h), nil
	}
	r, err := messages.Decode(body, opts)
	if err != nil {
		return nil, nil, err
	}
	enc := messages.NewStream(r, h)
	if c.Signature != nil {
		enc.SetSignature(*c.Signature)
	}
	return &r.Request, enc, nil
}

func (s *session) stream(c *streamCase) (any, *lineError, error) {
	if decoders[c.API] == nil {
		return nil, badRequest("decode", "api %q: want chat, responses or messages", c.API), nil
	}
	if c.Profile == "" {
		c.Profile = string(encoding.V41Recipe)
	}
	profile, err := encoding.ParseProfile(c.Profile)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	cause, err := causeOf(c.Finish)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	chunks, err := readChunks(c.Chunks)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	body, err := c.body()
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	opts, err := s.decodingOptions(c.API, c.Options, profile)
	if err != nil {
		return nil, badRequest("decode", "options: %v", err), nil
	}
	ready := c.Ready == nil || *c.Ready
	h := protocol.Header{ID: "R", Created: 1700000000, Model: "M", Fingerprint: c.SystemFingerprint,
		Prompt: c.PromptUsage.PromptTokens, Cached: c.PromptUsage.Cached, CallID: func(n int) string { return fmt.Sprintf("call_%02d_R", n) }}
	if !ready {
		h.Prompt, h.Cached = 0, 0
	}
	req, enc, err := c.open(body, opts, h)
	if err != nil {
		return nil, protocolError(err), nil
	}
	if s.compat { // the model's name decides between the two families
		profile = encoding.V41Recipe
		if req.Target.V4 {
			profile = encoding.V4Recipe
		}
	}
	_, tok, err := s.encoder(profile)
	if err != nil {
		return nil, nil, err
	}
	p, err := parse.New(parse.Options{Parsing: req.Parsing(), Compat: s.compat, Tools: parse.ToolsOf(&req.Conversation), Vocabulary: tok, FilterJSON: true})
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	out := &streamAnswer{ID: id(c.ID), SSE: []sseEvent{}}
	take := func(step int, frames []byte) { out.SSE = append(out.SSE, split(step, frames)...) }
	if ready {
		take(-1, enc.Start(nil))
	}
	consumed, err := drive(p, chunks, cause, func(step int, events []parse.Event) {
		if !ready && step == 0 {
			take(0, enc.Start(nil))
		}
		take(step, enc.Events(nil, 0, events, p.Usage()))
	})
	if err != nil {
		out.Error = err.Error()
	} else {
		out.Body = enc.Body()
	}
	if consumed != len(chunks) {
		out.Consumed = &consumed
	}
	if end := split(0, enc.Close(nil)); len(end) == 1 {
		text := string(end[0].Data)
		out.Done = &text
	}
	return out, nil, nil
}

// split cuts an event stream into its events.
func split(step int, frames []byte) []sseEvent {
	var out []sseEvent
	for _, frame := range bytes.Split(bytes.TrimSuffix(frames, []byte("\n\n")), []byte("\n\n")) {
		ev := sseEvent{Step: step}
		for _, line := range bytes.Split(frame, []byte("\n")) {
			if name, ok := bytes.CutPrefix(line, []byte("event: ")); ok {
				ev.Event = string(name)
			} else if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				ev.Data = bytes.Clone(data)
			}
		}
		if ev.Data != nil {
			out = append(out, ev)
		}
	}
	return out
}
