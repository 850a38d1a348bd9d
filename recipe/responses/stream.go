package responses

import (
	"sort"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// itemKind is the kind of an output item.
type itemKind uint8

const (
	itemReasoning itemKind = iota + 1
	itemMessage
	itemFunction
	itemCustom
)

type item struct {
	kind      itemKind
	id        string
	status    string
	text      []byte // reasoning, answer, arguments or input
	logs      []parse.TokenLogprob
	summary   bool // a summary was streamed
	sealed    *string
	phase     string
	refusal   bool
	callID    string
	name      string
	namespace string
	input     inputDecoder // itemCustom
}

// Stream turns parse events into response events and keeps the response object. It belongs to one goroutine.
type Stream struct {
	req    *Request
	head   protocol.Header
	compat bool
	seal   func(reasoning string) string
	now    func() int64

	items   []item
	open    bool
	started bool
	ended   bool
	seq     int64
	calls   int
	usage   parse.Usage
	status  string
	reason  string // incomplete_details
	failure *protocol.Error
	w       protocol.JSON
}

// NewStream makes the encoder of the response to req.
func NewStream(req *Request, head protocol.Header) *Stream {
	return &Stream{req: req, head: head, compat: req.Options().Compat, status: "in_progress"}
}

// SetSeal sets what makes encrypted_content of a reasoning text, for requests that include it.
func (s *Stream) SetSeal(seal func(reasoning string) string) { s.seal = seal }

// SetClock sets the clock, in seconds since 1970, for completed_at. Without it completed_at is the time of creation.
func (s *Stream) SetClock(now func() int64) { s.now = now }

// SetPrompt sets the token counts of the prompt, if NewStream was called before they were known.
func (s *Stream) SetPrompt(prompt, cached int64) { s.head.Prompt, s.head.Cached = prompt, cached }

func (s *Stream) event(dst []byte, name string, body func(w *protocol.JSON)) []byte {
	w := &s.w
	w.B = w.B[:0]
	w.Open().Key("type").Str(name)
	body(w)
	w.Key("sequence_number").Int(s.seq).Close()
	s.seq++
	dst = append(append(append(dst, "event: "...), name...), "\ndata: "...)
	return append(append(dst, w.B...), "\n\n"...)
}

// Start appends response.created and response.in_progress. Call it once the engine took the request: before that an error can still be a
// status.
func (s *Stream) Start(dst []byte) []byte {
	if s.started {
		return dst
	}
	s.started = true
	whole := func(w *protocol.JSON) { w.Key("response"); s.response(w) }
	dst = s.event(dst, "response.created", whole)
	return s.event(dst, "response.in_progress", whole)
}

// place writes the keys that say which item and part an event is about.
func (s *Stream) place(w *protocol.JSON, part bool) *protocol.JSON {
	i := len(s.items) - 1
	w.Key("item_id").Str(s.items[i].id).Key("output_index").Int(int64(i))
	if part {
		w.Key("content_index").Int(0)
	}
	return w
}

func (s *Stream) indexed(w *protocol.JSON) {
	w.Key("output_index").Int(int64(len(s.items) - 1)).Key("item")
	s.item(w, &s.items[len(s.items)-1])
}

// item writes an output item in its present state.
func (s *Stream) item(w *protocol.JSON, it *item) {
	w.Open()
	switch it.kind {
	case itemReasoning:
		w.Key("type").Str("reasoning").Key("id").Str(it.id).Key("status").Str(it.status).Key("content").Array()
		if it.status != "in_progress" {
			s.part(w, it)
		}
		w.End().Key("summary").Array()
		if it.summary && it.status != "in_progress" {
			w.Open().Key("type").Str("summary_text").Key("text").Str(string(it.text)).Close()
		}
		w.End()
		if it.sealed != nil {
			w.Key("encrypted_content").Str(*it.sealed)
		}
	case itemMessage:
		w.Key("type").Str("message").Key("id").Str(it.id).Key("status").Str(it.status).Key("role").Str("assistant").Key("phase").Str(it.phase).Key("content").Array()
		if it.status != "in_progress" {
			s.part(w, it)
		}
		w.End()
	case itemFunction:
		w.Key("type").Str("function_call").Key("id").Str(it.id).Key("status").Str(it.status).Key("call_id").Str(it.callID).Key("name").Str(it.name)
		if it.namespace != "" {
			w.Key("namespace").Str(it.namespace)
		}
		w.Key("arguments").Str(s.shown(it))
	case itemCustom:
		w.Key("type").Str("custom_tool_call").Key("id").Str(it.id).Key("status").Str(it.status).Key("call_id").Str(it.callID).Key("name").Str(it.name)
		w.Key("input").Str(s.shown(it))
	}
	w.Close()
}

// shown is the text of a call once it is complete.
func (s *Stream) shown(it *item) string {
	if it.status == "in_progress" {
		return ""
	}
	return string(it.text)
}

// part writes the content part of a reasoning or message item.
func (s *Stream) part(w *protocol.JSON, it *item) {
	text := ""
	if it.status != "in_progress" {
		text = string(it.text)
	}
	w.Open()
	switch {
	case it.kind == itemReasoning:
		w.Key("type").Str("reasoning_text").Key("text").Str(text)
	case it.refusal:
		w.Key("type").Str("refusal").Key("refusal").Str(text)
	default:
		w.Key("type").Str("output_text").Key("annotations").Array().End().Key("logprobs")
		if it.status == "in_progress" {
			w.Array().End()
		} else {
			w.Logprobs(it.logs, s.compat)
		}
		w.Key("text").Str(text)
	}
	w.Close()
}

// begin opens an item.
func (s *Stream) begin(dst []byte, it item) []byte {
	dst = s.end(dst, "completed", it.kind >= itemFunction)
	index := itoa(len(s.items))
	prefix := map[itemKind]string{itemReasoning: "rs_", itemMessage: "msg_", itemFunction: "fc_", itemCustom: "ctc_"}[it.kind]
	it.id, it.status, it.phase = prefix+s.base()+"_"+index, "in_progress", "final_answer"
	if it.kind == itemReasoning && s.compat {
		sealed := s.head.ID + "-" + index
		it.sealed = &sealed
	}
	s.items = append(s.items, it)
	s.open = true
	dst = s.event(dst, "response.output_item.added", s.indexed)
	if it.kind >= itemFunction {
		return dst
	}
	dst = s.event(dst, "response.content_part.added", func(w *protocol.JSON) {
		s.place(w, true).Key("part")
		s.part(w, s.last())
	})
	if it.kind == itemReasoning && s.req.Summary != "" && !s.compat {
		s.last().summary = true
		dst = s.event(dst, "response.reasoning_summary_part.added", func(w *protocol.JSON) {
			s.place(w, false).Key("summary_index").Int(0).Key("part").Open().Key("type").Str("summary_text").Key("text").Str("").Close()
		})
	}
	return dst
}

// base is the response's id without its prefix.
func (s *Stream) base() string {
	const prefix = "resp_"
	if len(s.head.ID) > len(prefix) && s.head.ID[:len(prefix)] == prefix {
		return s.head.ID[len(prefix):]
	}
	return s.head.ID
}

func (s *Stream) last() *item { return &s.items[len(s.items)-1] }

func itoa(n int) string {
	var w protocol.JSON
	return string(w.Int(int64(n)).B)
}

// end closes the open item with a status. beforeCall makes an answer a commentary.
func (s *Stream) end(dst []byte, status string, beforeCall bool) []byte {
	if !s.open {
		return dst
	}
	s.open = false
	it := s.last()
	it.status = status
	if it.kind == itemMessage && beforeCall {
		it.phase = "commentary"
	}
	switch it.kind {
	case itemReasoning:
		if !s.compat && s.req.Encrypted && s.seal != nil {
			sealed := s.seal(string(it.text))
			it.sealed = &sealed
		}
		dst = s.event(dst, "response.reasoning_text.done", func(w *protocol.JSON) { s.place(w, true).Key("text").Str(string(it.text)) })
		dst = s.partDone(dst)
		if it.summary {
			dst = s.event(dst, "response.reasoning_summary_text.done", func(w *protocol.JSON) {
				s.place(w, false).Key("summary_index").Int(0).Key("text").Str(string(it.text))
			})
			dst = s.event(dst, "response.reasoning_summary_part.done", func(w *protocol.JSON) {
				s.place(w, false).Key("summary_index").Int(0).Key("part").Open().Key("type").Str("summary_text").Key("text").Str(string(it.text)).Close()
			})
		}
	case itemMessage:
		if it.refusal {
			dst = s.event(dst, "response.refusal.done", func(w *protocol.JSON) { s.place(w, true).Key("refusal").Str(string(it.text)) })
		} else {
			dst = s.event(dst, "response.output_text.done", func(w *protocol.JSON) {
				s.place(w, true).Key("text").Str(string(it.text)).Key("logprobs")
				w.Logprobs(it.logs, s.compat)
			})
		}
		dst = s.partDone(dst)
	case itemFunction:
		dst = s.event(dst, "response.function_call_arguments.done", func(w *protocol.JSON) {
			s.place(w, false).Key("arguments").Str(string(it.text))
			if !s.compat {
				w.Key("name").Str(it.name)
			}
		})
	case itemCustom:
		if rest := it.input.end(); rest != "" {
			dst = s.custom(dst, rest)
		}
		dst = s.event(dst, "response.custom_tool_call_input.done", func(w *protocol.JSON) { s.place(w, false).Key("input").Str(string(it.text)) })
	}
	return s.event(dst, "response.output_item.done", s.indexed)
}

func (s *Stream) partDone(dst []byte) []byte {
	return s.event(dst, "response.content_part.done", func(w *protocol.JSON) {
		s.place(w, true).Key("part")
		s.part(w, s.last())
	})
}

// in makes sure that an item of a kind is open.
func (s *Stream) in(dst []byte, kind itemKind) []byte {
	if s.open && s.last().kind == kind {
		return dst
	}
	return s.begin(dst, item{kind: kind})
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
			dst = s.in(dst, itemReasoning)
			s.last().text = append(s.last().text, ev.Text...)
			dst = s.event(dst, "response.reasoning_text.delta", func(w *protocol.JSON) { s.place(w, true).Key("delta").Str(ev.Text) })
			if s.last().summary {
				dst = s.event(dst, "response.reasoning_summary_text.delta", func(w *protocol.JSON) {
					s.place(w, false).Key("summary_index").Int(0).Key("delta").Str(ev.Text)
				})
			}
		case parse.Text:
			dst = s.text(dst, ev)
		case parse.ToolStart:
			dst = s.startCall(dst, ev)
		case parse.ToolArgs:
			dst = s.arguments(dst, ev)
		case parse.Finish:
			dst = s.finish(dst, ev)
		}
	}
	return dst
}

func (s *Stream) text(dst []byte, ev *parse.Event) []byte {
	dst = s.in(dst, itemMessage)
	it := s.last()
	it.text = append(it.text, ev.Text...)
	var logs []parse.TokenLogprob
	if s.compat || s.req.Params.Logprobs {
		logs = ev.Logprobs
	}
	it.logs = append(it.logs, logs...)
	return s.event(dst, "response.output_text.delta", func(w *protocol.JSON) {
		s.place(w, true).Key("delta").Str(ev.Text).Key("logprobs")
		w.Logprobs(logs, s.compat)
	})
}

func (s *Stream) isCustom(name string) bool {
	tools := s.req.Conversation.Tools
	for i := range tools {
		if tools[i].Name == name {
			return tools[i].Kind == conversation.ToolCustomText || tools[i].Kind == conversation.ToolCustomGrammar
		}
	}
	return false
}

func (s *Stream) startCall(dst []byte, ev *parse.Event) []byte {
	it := item{kind: itemFunction, callID: s.head.Call(s.calls), name: ev.Call.Name}
	s.calls++
	if s.isCustom(ev.Call.Name) {
		it.kind = itemCustom
	}
	if pair, ok := s.req.names[ev.Call.Name]; ok {
		it.namespace, it.name = pair[0], pair[1]
	}
	return s.begin(dst, it)
}

func (s *Stream) arguments(dst []byte, ev *parse.Event) []byte {
	if !s.open {
		return dst
	}
	it := s.last()
	if it.kind == itemCustom {
		if text := it.input.take(ev.Text); text != "" {
			dst = s.custom(dst, text)
		}
		return dst
	}
	it.text = append(it.text, ev.Text...)
	return s.event(dst, "response.function_call_arguments.delta", func(w *protocol.JSON) { s.place(w, false).Key("delta").Str(ev.Text) })
}

func (s *Stream) custom(dst []byte, text string) []byte {
	it := s.last()
	it.text = append(it.text, text...)
	return s.event(dst, "response.custom_tool_call_input.delta", func(w *protocol.JSON) { s.place(w, false).Key("delta").Str(text) })
}

func (s *Stream) finish(dst []byte, ev *parse.Event) []byte {
	s.status = "completed"
	switch ev.Cause {
	case parse.CauseLength, parse.CauseContextFull:
		s.status, s.reason = "incomplete", "max_output_tokens"
	case parse.CauseContentFilter:
		s.status, s.reason = "incomplete", "content_filter"
	case parse.CauseResources:
		return s.Fail(dst, protocol.NewError(503, "the engine ran out of resources; try again later"))
	case parse.CauseCancelled:
		s.status = "cancelled"
	}
	if !s.compat {
		dst = s.fillEmpty(dst, ev.Cause)
	}
	status := s.status
	if status == "cancelled" {
		status = "incomplete"
	}
	dst = s.end(dst, status, false)
	s.ended = true
	return s.event(dst, "response."+s.status, func(w *protocol.JSON) { w.Key("response"); s.response(w) })
}

// fillEmpty gives an answer without any output a message item, because clients index the first one: empty, or the refusal of a filter.
func (s *Stream) fillEmpty(dst []byte, cause parse.Cause) []byte {
	answered := false
	for i := range s.items {
		answered = answered || s.items[i].kind != itemReasoning
	}
	switch {
	case answered:
	case cause == parse.CauseContentFilter:
		const text = "The answer was withheld by a content filter."
		dst = s.begin(dst, item{kind: itemMessage, refusal: true})
		s.last().text = []byte(text)
		dst = s.event(dst, "response.refusal.delta", func(w *protocol.JSON) { s.place(w, true).Key("delta").Str(text) })
	case len(s.items) == 0:
		dst = s.begin(dst, item{kind: itemMessage})
	}
	return dst
}

// Usage gives the tokens of the response so far.
func (s *Stream) Usage() protocol.Usage {
	return protocol.Usage{Prompt: s.head.Prompt, Cached: s.head.Cached, Completion: int64(s.usage.Completion), Reasoning: int64(s.usage.Reasoning)}
}

// Close appends nothing: the stream of this protocol ends with its terminal event.
func (s *Stream) Close(dst []byte) []byte { return dst }

// Fail appends the terminal event of a failure: response.failed, or error when no response was announced yet. Nothing is appended after it.
func (s *Stream) Fail(dst []byte, err *protocol.Error) []byte {
	if s.ended {
		return dst
	}
	s.ended = true
	if !s.started {
		return s.event(dst, "error", func(w *protocol.JSON) {
			w.Key("code").Str(failureCode(err)).Key("message").Str(err.Message).Key("param").Null()
		})
	}
	s.status, s.failure = "failed", err
	return s.event(dst, "response.failed", func(w *protocol.JSON) { w.Key("response"); s.response(w) })
}

func failureCode(err *protocol.Error) string {
	switch {
	case err.Status() == 429:
		return "rate_limit_exceeded"
	case err.Status() < 500:
		return "invalid_prompt"
	}
	return "server_error"
}

// KeepAlive appends a comment line that keeps the connection alive while the request waits.
func (s *Stream) KeepAlive(dst []byte) []byte { return append(dst, ": keep-alive\n\n"...) }

// Body gives the response object in its present state: the complete response after the last event.
func (s *Stream) Body() []byte {
	w := new(protocol.JSON)
	s.response(w)
	return w.B
}

// Output gives the output items as a JSON array, for a store.
func (s *Stream) Output() []byte {
	w := new(protocol.JSON)
	s.output(w)
	return w.B
}

func (s *Stream) output(w *protocol.JSON) {
	w.Array()
	for i := range s.items {
		if s.items[i].status != "in_progress" || s.ended {
			s.item(w, &s.items[i])
		}
	}
	w.End()
}

func (s *Stream) response(w *protocol.JSON) {
	raw := s.req.echo.raw
	compat := s.compat
	ended := s.status == "completed" || s.status == "incomplete" || s.status == "failed" || s.status == "cancelled"
	w.Open().Key("id").Str(s.head.ID).Key("object").Str("response").Key("created_at").Int(s.head.Created).Key("status").Str(s.status)
	w.Key("completed_at")
	switch {
	case !ended || s.status == "failed" || s.status == "cancelled":
		w.Null()
	case s.now != nil:
		w.Int(s.now())
	default:
		w.Int(s.head.Created)
	}
	w.Key("background").Bool(s.req.Background)
	if compat {
		w.Key("content_filters").Null().Key("frequency_penalty").Float(0).Key("moderation").Null().Key("presence_penalty").Float(0)
		w.Key("prompt_cache_key").Null().Key("prompt_cache_retention").Null().Key("safety_identifier").Null()
	}
	w.Key("error")
	if s.failure == nil {
		w.Null()
	} else {
		w.Open().Key("code").Str(failureCode(s.failure)).Key("message").Str(s.failure.Message).Close()
	}
	w.Key("incomplete_details")
	if s.reason == "" || !ended {
		w.Null()
	} else {
		w.Open().Key("reason").Str(s.reason).Close()
	}
	w.Key("instructions")
	if n, ok := raw.Given("instructions"); ok && !compat {
		w.Value(n.Value)
	} else {
		w.OrNull(s.req.echo.instructions)
	}
	w.Key("max_output_tokens")
	optional(w, raw, "max_output_tokens")
	w.Key("max_tool_calls")
	if compat || s.req.MaxToolCalls == nil {
		w.Null()
	} else {
		w.Int(*s.req.MaxToolCalls)
	}
	w.Key("model").Str(s.head.Model).Key("output")
	s.output(w)
	w.Key("parallel_tool_calls").Bool(compat || !s.req.Params.NoParallelTools)
	w.Key("previous_response_id")
	if compat || s.req.PreviousResponseID == "" {
		w.Null()
	} else {
		w.Str(s.req.PreviousResponseID)
	}
	w.Key("reasoning").Open().Key("effort").OrNull(s.req.echo.effort).Key("summary")
	if s.req.Summary == "" {
		w.Null()
	} else {
		w.Str(s.req.Summary)
	}
	w.Close().Key("service_tier").Str("default").Key("store").Bool(!compat && s.req.Store)
	w.Key("temperature").Float(orOne(s.req.Params.Temperature)).Key("text")
	s.textEcho(w)
	w.Key("tool_choice")
	if n, ok := raw.Has("tool_choice"); ok {
		w.Value(n.Value)
	} else {
		w.Str("auto")
	}
	w.Key("tools")
	s.toolsEcho(w)
	top := int64(0)
	if t := s.req.Params.TopLogprobs; t != nil {
		top = int64(*t)
	}
	w.Key("top_logprobs").Int(top).Key("top_p").Float(orOne(s.req.Params.TopP)).Key("truncation")
	if s.req.Truncate {
		w.Str("auto")
	} else {
		w.Str("disabled")
	}
	w.Key("usage")
	if !ended {
		w.Null()
	} else {
		u := s.Usage()
		w.Open().Key("input_tokens").Int(u.Prompt).Key("input_tokens_details").Open().Key("cached_tokens").Int(u.Cached).Close()
		w.Key("output_tokens").Int(u.Completion).Key("output_tokens_details").Open().Key("reasoning_tokens").Int(u.Reasoning).Close()
		w.Key("total_tokens").Int(u.Prompt + u.Completion).Close()
	}
	w.Key("user")
	optional(w, raw, "user")
	w.Key("metadata").Open()
	keys := make([]string, 0, len(s.req.Metadata))
	for k := range s.req.Metadata {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	for _, k := range keys {
		w.Name(k).Str(s.req.Metadata[k])
	}
	w.Close().Close()
}

func orOne(f *float64) float64 {
	if f == nil {
		return 1
	}
	return *f
}

func (s *Stream) textEcho(w *protocol.JSON) {
	text, _ := s.req.echo.raw.Has("text")
	w.Open().Key("format").Open()
	f, ok := text.Has("format")
	kind, _ := f.OptString("type")
	switch {
	case !ok || kind == nil:
		w.Key("type").Str("text")
	case *kind == "json_schema":
		w.Key("type").Str(*kind)
		for _, key := range []string{"name", "schema", "description", "strict"} {
			w.Key(key)
			optional(w, f, key)
		}
	default:
		w.Key("type").Str(*kind)
	}
	w.Close().Key("verbosity")
	if v, ok := text.Has("verbosity"); ok {
		w.Value(v.Value)
	} else {
		w.Null()
	}
	w.Close()
}

func (s *Stream) toolsEcho(w *protocol.JSON) {
	w.Array()
	defer w.End()
	list, ok := s.req.echo.raw.Has("tools")
	if !ok {
		return
	}
	for i := range list.Elems {
		n := list.At(i)
		kind, _ := n.OptString("type")
		switch {
		case kind == nil:
		case *kind == "function":
			w.Open().Key("type").Str("function")
			functionEcho(w, n)
			w.Close()
		case *kind == "namespace":
			w.Open().Key("type").Str("namespace").Key("name")
			optional(w, n, "name")
			w.Key("description")
			optional(w, n, "description")
			w.Key("tools").Array()
			if in, ok := n.Has("tools"); ok {
				for k := range in.Elems {
					w.Open().Key("type").Str("function")
					functionEcho(w, in.At(k))
					w.Close()
				}
			}
			w.End().Close()
		case *kind == "custom" && s.compat:
			w.Open().Key("type").Str("custom").Key("name")
			optional(w, n, "name")
			w.Close()
		default:
			w.Value(n.Value)
		}
	}
}

// InputTokens is the body of the answer to an input_tokens request.
func InputTokens(tokens int64) []byte {
	var w protocol.JSON
	return w.Open().Key("object").Str("response.input_tokens").Key("input_tokens").Int(tokens).Close().B
}
