package serve

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// wire is the encoder of one response: a Stream of recipe/chat, responses or messages.
type wire interface {
	Start(dst []byte) []byte
	Events(dst []byte, choice int, events []parse.Event, usage parse.Usage) []byte
	Fail(dst []byte, err *protocol.Error) []byte
	Close(dst []byte) []byte
	KeepAlive(dst []byte) []byte
	Body() []byte
}

// protocolOptions are the decoding rules of a model.
func (s *Server) protocolOptions(m *Model) protocol.Options {
	return protocol.Options{
		Models: m.names, V4: m.Model.Config.V4(), MaxBody: int(min(s.opt.MaxBody, math.MaxInt)),
		ThinkingMaxTokens: int64(m.MaxTokens), PlainMaxTokens: int64(m.MaxTokens),
	}
}

// extensions are fields of a request beyond the protocol.
type extensions struct {
	TokenIDs     bool    `json:"return_token_ids"` // prompt_token_ids and token_ids in the body; not with stream
	IgnoreEOS    bool    `json:"ignore_eos"`
	MinP         float64 `json:"min_p"`
	StopTokenIDs []int32 `json:"stop_token_ids"`
	Repetition   float64 `json:"repetition_penalty"`
}

func readExtensions(body []byte, req *protocol.Request) (x extensions, err error) {
	if err := json.Unmarshal(body, &x); err != nil {
		var kind *json.UnmarshalTypeError
		if errors.As(err, &kind) {
			return x, protocol.Malformed(kind.Field, "invalid request body: %s must be of type %s", kind.Field, kind.Type)
		}
		return x, protocol.Malformed("", "invalid request body: %v", err)
	}
	if x.TokenIDs && req.Stream {
		return x, protocol.Invalid("return_token_ids", "return_token_ids works without stream only").WithCode("unsupported_parameter")
	}
	return x, nil
}

// chat is POST /v1/chat/completions.
func (s *Server) chat(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	s.answer(w, r, func(m *Model, body []byte) (*job, error) {
		req, err := chat.Decode(body, s.protocolOptions(m))
		if err != nil {
			return nil, err
		}
		x, err := readExtensions(body, &req.Request)
		if err != nil {
			return nil, err
		}
		return &job{m: m, req: &req.Request, ext: x, prefix: "chatcmpl-", encoder: func(h protocol.Header) wire {
			st := chat.NewStream(req, h)
			if req.IncludeUsage {
				st.SetUsagePlace(chat.UsageSeparate)
			}
			return st
		}}, nil
	})
}

// job is a decoded request.
type job struct {
	m       *Model
	req     *protocol.Request
	ext     extensions
	prefix  string // of the response's id
	fixed   string // the id, once there is one
	formed  bool   // a grammar holds the answer to its form
	encoder func(protocol.Header) wire

	// What follows is nil for a conversation that is answered and forgotten.
	render  func(ctx context.Context) (*encoding.Prompt, error) // the prompt, if it is not the conversation's
	parsing func(how conversation.Parsing) parse.Options        // of the output, likewise
	budget  func(prompt, limit int64) (int64, error)            // most tokens of the answer
	started func(wire) error                                    // the engine took the request; nothing was written
	ended   func(wire)                                          // the response is complete or failed; its last bytes are not written yet
}

// id is of the response.
func (j *job) id() string {
	if j.fixed == "" {
		j.fixed = j.prefix + randomID()
	}
	return j.fixed
}

func (j *job) maxTokens(prompt int) (int64, error) {
	if j.budget != nil {
		return j.budget(int64(prompt), int64(j.m.Context))
	}
	return j.req.ResolveMaxTokens(int64(prompt), int64(j.m.Context))
}

// parser makes the parser of one choice.
func (j *job) parser(how conversation.Parsing) (*parse.Parser, error) {
	opt := parse.Options{Parsing: how, Tools: parse.ToolsOf(&j.req.Conversation), FilterJSON: !j.formed}
	if j.parsing != nil {
		opt = j.parsing(how)
	}
	opt.Vocabulary = j.m.Tokenizer
	return parse.New(opt)
}

// answer takes a request from its body to the last byte of the response.
func (s *Server) answer(w *reply, r *http.Request, decode func(m *Model, body []byte) (*job, error)) {
	arrival := time.Now()
	m, err := s.begin()
	if err != nil {
		writeError(w, protocol.AsError(err))
		return
	}
	defer s.end()
	body, err := s.body(w, r)
	if err != nil {
		writeError(w, protocol.AsError(err))
		return
	}
	j, err := decode(m, body)
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	if err := s.run(w, r, j, arrival); err != nil {
		s.refuse(w, r, err)
	}
}

// refuse answers with an error, unless nobody is there to read it.
func (s *Server) refuse(w *reply, r *http.Request, err error) {
	if r.Context().Err() != nil {
		w.status = statusGone
		return
	}
	e := s.known(w, err)
	if e.Param == "messages" { // what the prompt is called depends on the protocol
		if within(r.URL.Path, "/v1/responses") {
			e.Param = "input"
		} else if strings.HasSuffix(r.URL.Path, "/completions") && !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			e.Param = "prompt"
		}
	}
	if w.status == 0 {
		writeError(w, e)
	}
}

// statusGone is what the log says for a client that went away; it is never sent.
const statusGone = 499

// known translates an error; what it cannot explain to the client goes to the log.
func (s *Server) known(w *reply, err error) *protocol.Error {
	if e := apiError(err); e != nil {
		return e
	}
	if m := s.model.Load(); m != nil && m.Engine.Err() != nil {
		e := protocol.NewError(http.StatusServiceUnavailable, "The engine has stopped and serves no more requests.")
		e.Code = "engine_dead"
		s.log.Error("request failed", "request", w.id, "error", err)
		return e
	}
	s.log.Error("request failed", "request", w.id, "error", err)
	return protocol.NewError(http.StatusInternalServerError, "internal error; the log has more under request id %s", w.id)
}

// prompt renders the conversation and encodes its images.
func (s *Server) prompt(ctx context.Context, j *job) (*encoding.Prompt, []engine.ImageRows, error) {
	if j.render != nil {
		p, err := j.render(ctx)
		if err != nil {
			return nil, nil, err
		}
		return p, nil, j.fits(len(p.Tokens))
	}
	conv := &j.req.Conversation
	imgs, err := j.m.decodeImages(ctx, conv)
	if err != nil {
		return nil, nil, err
	}
	p, err := j.m.Encoder.Encode(conv, encoding.Options{})
	if err != nil {
		return nil, nil, protocol.Invalid("messages", "%s", err.Error())
	}
	rows, err := j.m.placeImages(ctx, p, imgs, func(tokens int) error { return j.fits(tokens) })
	if err != nil {
		return nil, nil, err
	}
	return p, rows, j.fits(len(p.Tokens))
}

// fits checks the length of the prompt against context and limit.
func (j *job) fits(tokens int) error {
	m := j.m
	answer := 1
	if n := j.req.Params.MaxTokens; n != nil {
		answer = int(min(*n, math.MaxInt32))
	}
	if tokens+answer > m.Context {
		if j.req.Params.MaxTokens == nil {
			answer = 0
		}
		return tooLong(tokens, answer, m.Context)
	}
	if m.MaxPrompt > 0 && tokens > m.MaxPrompt {
		e := protocol.Invalid("messages", "The prompt has %d tokens, this server takes at most %d. Please reduce the length of the messages.", tokens, m.MaxPrompt)
		e.Code = "context_length_exceeded"
		return e
	}
	return nil
}

// sampling are the client's parameters over the model's defaults.
func (j *job) sampling() (sample.Params, error) {
	g, p := j.m.Model.Generation, &j.req.Params
	out := sample.Params{Temperature: float32(g.Temperature), TopP: float32(g.TopP), TopK: g.TopK, MinP: float32(j.ext.MinP)}
	if !g.DoSample {
		out.Temperature = 0
	}
	temperature, topP := j.req.Sampling()
	if p.Temperature != nil || j.req.Options().CompatSampling {
		out.Temperature = float32(temperature)
	}
	if p.TopP != nil || j.req.Options().CompatSampling {
		out.TopP = float32(topP)
	}
	if p.TopK != nil {
		out.TopK = *p.TopK
	}
	out.Seed, out.Seeded = randomSeed(), true
	if p.Seed != nil {
		out.Seed = uint64(*p.Seed)
	}
	if p.FrequencyPenalty != nil {
		out.Frequency = float32(*p.FrequencyPenalty)
	}
	if p.PresencePenalty != nil {
		out.Presence = float32(*p.PresencePenalty)
	}
	out.Repetition = float32(j.ext.Repetition)
	for id, add := range p.LogitBias {
		out.Bias = append(out.Bias, sample.Bias{ID: id, Add: add})
	}
	slices.SortFunc(out.Bias, func(a, b sample.Bias) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// randomSeed draws a seed that a client can send back: the APIs take 63 bits.
func randomSeed() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(b[:]) >> 1
}

// piece is what a choice became aware of.
type piece struct {
	choice int
	events []parse.Event
	usage  parse.Usage
	ids    []int32 // with return_token_ids
	err    error
	last   bool
}

// run submits the request and writes the response. An error means that nothing was written yet.
func (s *Server) run(w *reply, r *http.Request, j *job, arrival time.Time) error {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	params, err := j.sampling()
	if err != nil {
		return err
	}
	if err := params.Validate(); err != nil {
		return err
	}
	s.recall(s.tenant(r), &j.req.Conversation)
	p, images, err := s.prompt(ctx, j)
	if err != nil {
		return err
	}
	budget, err := j.maxTokens(len(p.Tokens))
	if err != nil {
		return err
	}
	form, err := j.constrain(ctx, p.Parsing)
	if err != nil {
		return err
	}
	j.formed = form != nil
	how := p.Parsing
	how.StopStrings, how.NoParallelTools = j.req.Parsing().StopStrings, j.req.Parsing().NoParallelTools
	n := max(1, j.req.Params.N)
	er := engine.Request{
		ID: w.id, Prompt: p.Tokens, Images: images, MaxTokens: int(budget), Sampling: params,
		StopIDs: j.ext.StopTokenIDs, IgnoreEOS: j.ext.IgnoreEOS || j.req.Params.IgnoreEOS,
	}
	if j.req.Params.Logprobs && j.req.Params.TopLogprobs != nil {
		er.TopN = *j.req.Params.TopLogprobs
	}
	choices := make([]*choice, n)
	for i := range choices {
		parser, err := j.parser(how)
		if err != nil {
			return err
		}
		er.Sampling.Salt = uint32(i)
		if i > 0 {
			er.Sampling.Seed, er.Sampling.Seeded = choices[0].stream.Seed(), true
		}
		if form != nil {
			er.Matcher = form.Matcher()
		}
		st, err := j.m.Engine.Submit(ctx, er)
		if err != nil {
			return err // the others end with ctx
		}
		choices[i] = &choice{index: i, stream: st, parser: parser, logprobs: j.req.Params.Logprobs, ids: j.ext.TokenIDs, metrics: j.m.metrics, arrival: arrival}
	}
	j.m.metrics.prompts(n, len(p.Tokens))

	h := w.Header()
	h.Set("X-Deepinfer-Seed", strconv.FormatUint(choices[0].stream.Seed(), 10))
	if len(j.req.Warnings) > 0 {
		h.Set("X-Deepinfer-Warning", strings.Join(j.req.Warnings, "; "))
	}
	head := protocol.Header{ID: j.id(), Created: arrival.Unix(), Model: j.m.Name, Prompt: int64(len(p.Tokens))}
	enc, thinker := j.encoder(head), s.thinker(s.tenant(r), j, head)

	pieces := make(chan piece)
	var group sync.WaitGroup
	for _, c := range choices {
		group.Go(func() { c.run(ctx, pieces) })
	}
	defer group.Wait()
	defer cancel()

	first := enc.Start(nil)
	if j.started != nil {
		if err := j.started(enc); err != nil {
			return err
		}
	}
	out := &output{w: w, rc: http.NewResponseController(w), stall: s.opt.StreamStall, stream: j.req.Stream}
	if out.stream {
		h.Set("Content-Type", "text/event-stream; charset=utf-8")
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Accel-Buffering", "no")
		out.take(first)
	}
	tick := time.NewTicker(s.opt.KeepAlive)
	defer tick.Stop()
	var buf []byte
	var usage parse.Usage
	ids := make([][]int32, n)
	for left := n; left > 0 && out.err == nil; {
		select {
		case pc := <-pieces:
			if pc.err != nil {
				if r.Context().Err() != nil {
					w.status = statusGone
					return nil
				}
				if !out.stream {
					return pc.err
				}
				e := s.known(w, pc.err)
				buf = enc.Close(enc.Fail(buf[:0], e))
				if j.ended != nil {
					j.ended(enc)
				}
				out.take(buf)
				w.attrs = append(w.attrs, slog.String("failed", e.Message))
				return nil
			}
			buf = enc.Events(buf[:0], pc.choice, pc.events, pc.usage)
			thinker.see(pc.choice, pc.events)
			if pc.last && left == 1 && j.ended != nil {
				j.ended(enc)
			}
			if out.stream {
				out.take(buf)
			}
			ids[pc.choice] = append(ids[pc.choice], pc.ids...)
			if pc.last {
				left--
				usage.Completion += pc.usage.Completion
				usage.Reasoning += pc.usage.Reasoning
			}
		case <-tick.C:
			if out.stream {
				out.take(enc.KeepAlive(buf[:0]))
			}
		case <-r.Context().Done():
			w.status = statusGone
			return nil
		}
	}
	w.attrs = append(w.attrs, slog.Int("prompt_tokens", len(p.Tokens)), slog.Int("completion_tokens", usage.Completion))
	if out.stream {
		out.take(enc.Close(buf[:0]))
	} else {
		body := enc.Body()
		if j.ext.TokenIDs {
			body = withTokens(body, p.Tokens, ids)
		}
		h.Set("Content-Type", "application/json")
		out.take(append(body, '\n'))
	}
	if out.err != nil {
		w.attrs = append(w.attrs, slog.String("failed", "write: "+out.err.Error()))
	}
	return nil
}

// withTokens adds the ids to a body, which is one JSON object.
func withTokens(body []byte, prompt []int32, ids [][]int32) []byte {
	raw, err := json.Marshal(struct {
		Prompt []int32   `json:"prompt_token_ids"`
		IDs    [][]int32 `json:"token_ids"` // by choice
	}{prompt, ids})
	if err != nil || len(body) < 2 {
		return body
	}
	return append(append(body[:len(body)-1:len(body)-1], ','), raw[1:]...)
}

// output writes to the client, each time within the stall limit.
type output struct {
	w      io.Writer
	rc     *http.ResponseController
	stall  time.Duration
	stream bool
	err    error
}

func (o *output) take(p []byte) {
	if o.err != nil || len(p) == 0 {
		return
	}
	if o.stall > 0 {
		_ = o.rc.SetWriteDeadline(time.Now().Add(o.stall)) // not every connection has one
	}
	if _, o.err = o.w.Write(p); o.err == nil && o.stream {
		o.err = o.rc.Flush()
	}
}

// choice reads one stream of the engine.
type choice struct {
	index    int
	stream   *engine.Stream
	parser   *parse.Parser
	logprobs bool
	ids      bool
	metrics  *metrics
	arrival  time.Time
}

// ended is a context that is over: Next with it returns only what is there.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

const batch = 256 // tokens taken at once from a stream whose reader is behind

func (c *choice) run(ctx context.Context, out chan<- piece) {
	defer c.stream.Cancel() // no effect on a stream that has ended
	send := func(p piece) bool {
		p.choice, p.usage = c.index, c.parser.Usage()
		select {
		case out <- p:
			return true
		case <-ctx.Done():
			return false
		}
	}
	var (
		ids   []int32
		probs []parse.Logprob
		last  = c.arrival
		first = true
		total int
	)
	defer func() { c.metrics.finished(c.stream, c.parser.Done(), total, time.Since(c.arrival)) }()
	for {
		ids, probs = ids[:0], nil
		ev, err := c.stream.Next(ctx)
		for err == nil {
			ids = append(ids, ev.ID)
			if c.logprobs {
				lp := parse.Logprob{Logprob: float64(ev.LogProb)}
				for _, t := range ev.Top {
					lp.Top = append(lp.Top, parse.TopLogprob{ID: t.ID, Logprob: float64(t.LogProb)})
				}
				probs = append(probs, lp)
			}
			if len(ids) == batch {
				break
			}
			ev, err = c.stream.Next(ended)
		}
		p := piece{}
		if len(ids) > 0 {
			now := time.Now()
			c.metrics.tokens(len(ids), first, now.Sub(last), now.Sub(c.arrival))
			total += len(ids)
			last, first = now, false
			var bad error
			if p.events, bad = c.parser.Tokens(nil, ids, probs); bad != nil {
				send(piece{err: bad})
				return
			}
			if c.ids {
				p.ids = append([]int32(nil), ids...)
			}
		}
		switch {
		case c.parser.Done():
			// The parser ended the turn: a stop string, or the one call that was asked for.
			c.stream.Cancel()
			p.events, p.last = c.parser.Finish(p.events, parse.CauseStop), true
			send(p)
			return
		case err == nil, errors.Is(err, context.Canceled) && ctx.Err() == nil && !errors.Is(err, engine.ErrCancelled):
			if !send(p) {
				return
			}
		case errors.Is(err, io.EOF):
			cause := parse.CauseStop
			if c.stream.Finish() == engine.FinishLength {
				cause = parse.CauseLength
			}
			p.events, p.last = c.parser.Finish(p.events, cause), true
			send(p)
			return
		default:
			if len(p.events) > 0 && !send(p) {
				return
			}
			send(piece{err: err})
			return
		}
	}
}

// tokenize is POST /tokenize: {"prompt": "..."} or {"messages": [...]} and what else a chat request has.
func (s *Server) tokenize(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	m, err := s.begin()
	if err == nil {
		defer s.end()
		var body []byte
		if body, err = s.body(w, r); err == nil {
			err = s.tokenizeBody(w, r, m, body)
		}
	}
	if err != nil {
		s.refuse(w, r, err)
	}
}

func (s *Server) tokenizeBody(w http.ResponseWriter, r *http.Request, m *Model, body []byte) error {
	var q map[string]json.RawMessage
	if err := json.Unmarshal(body, &q); err != nil {
		return protocol.Malformed("", "invalid request body: %v", err)
	}
	var ids []int32
	switch {
	case q["prompt"] != nil && q["messages"] != nil:
		return protocol.Invalid("prompt", "give prompt or messages, not both")
	case q["prompt"] != nil:
		var text string
		if err := json.Unmarshal(q["prompt"], &text); err != nil {
			return protocol.Malformed("prompt", "invalid request body: prompt must be a string")
		}
		ids = m.Tokenizer.Encode(text)
	case q["messages"] != nil:
		if q["model"] == nil {
			name, err := json.Marshal(m.Name)
			if err != nil {
				return err
			}
			q["model"] = name
			if body, err = json.Marshal(q); err != nil {
				return err
			}
		}
		req, err := chat.Decode(body, s.protocolOptions(m))
		if err != nil {
			return err
		}
		if len(req.Conversation.Images) > 0 {
			return protocol.Invalid("messages", "images have no tokens of their own; leave them out").WithCode("images_not_supported")
		}
		s.recall(s.tenant(r), &req.Conversation)
		p, err := m.Encoder.Encode(&req.Conversation, encoding.Options{})
		if err != nil {
			return protocol.Invalid("messages", "%s", err.Error())
		}
		ids = p.Tokens
	default:
		return protocol.Invalid("prompt", "prompt or messages is needed")
	}
	if ids == nil {
		ids = []int32{}
	}
	writeJSON(w, http.StatusOK, struct {
		Count  int     `json:"count"`
		Limit  int     `json:"max_model_len"`
		Tokens []int32 `json:"tokens"`
	}{len(ids), m.Context, ids})
	return nil
}

// detokenize is POST /detokenize: {"tokens": [...]}.
func (s *Server) detokenize(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	m, err := s.begin()
	if err == nil {
		defer s.end()
		var body []byte
		if body, err = s.body(w, r); err == nil {
			var q struct {
				Tokens *[]int32 `json:"tokens"`
			}
			if e := json.Unmarshal(body, &q); e != nil || q.Tokens == nil {
				err = protocol.Malformed("tokens", "invalid request body: tokens must be an array of token ids")
			} else if err = knownTokens(m, *q.Tokens); err == nil {
				writeJSON(w, http.StatusOK, map[string]string{"prompt": m.Tokenizer.Decode(*q.Tokens)})
			}
		}
	}
	if err != nil {
		s.refuse(w, r, err)
	}
}

func knownTokens(m *Model, ids []int32) error {
	for i, id := range ids {
		if !m.Tokenizer.Known(id) {
			return protocol.Invalid("tokens["+strconv.Itoa(i)+"]", "there is no token %d; ids go from 0 to %d", id, m.Tokenizer.VocabSize()-1)
		}
	}
	return nil
}
