package serve

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/deepinfer-go/deepinfer/core/model/vision"
	"github.com/deepinfer-go/deepinfer/core/serve/store"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
)

// responseJob is a decoded Responses request.
type responseJob struct {
	job
	tenant string
	resp   *responses.Request
	input  []byte // its own items, with ids
	s      *Server
}

// responses is POST /v1/responses.
func (s *Server) responses(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	arrival := time.Now()
	m, err := s.begin()
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	kept := false // a task in the background has the request
	defer func() {
		if !kept {
			s.end()
		}
	}()
	body, err := s.body(w, r)
	if err == nil {
		var j *responseJob
		if j, err = s.decodeResponse(r, m, body); err == nil {
			if j.resp.Background {
				kept, err = s.background(w, r, j, arrival)
			} else {
				err = s.run(w, r, &j.job, arrival)
			}
		}
	}
	if err != nil {
		s.refuse(w, r, err)
	}
}

// decodeResponse reads a body, with what it refers to.
func (s *Server) decodeResponse(r *http.Request, m *Model, body []byte) (*responseJob, error) {
	j := &responseJob{s: s, tenant: s.tenant(r), job: job{m: m, prefix: "resp_"}}
	var why error
	req, err := responses.DecodeWith(body, s.protocolOptions(m), responses.Store{
		Items: func(id string) (items []byte, ok bool) {
			if items, why = s.earlier(j.tenant, id); why != nil {
				return nil, false
			}
			return items, true
		},
		Item:   func(id string) ([]byte, bool) { return s.item(j.tenant, id) },
		Unseal: func(sealed string) (string, error) { return s.sealer.open(sealed, j.tenant) },
	})
	if err != nil {
		if why != nil && !errors.Is(why, store.ErrNotFound) {
			return nil, why
		}
		return nil, err
	}
	j.resp, j.req = req, &req.Request
	if j.input, err = ownItems(req.Input, strings.TrimPrefix(j.id(), j.prefix)); err != nil {
		return nil, protocol.Invalid("input", "%s", err.Error())
	}
	if req.Truncate {
		if err := s.truncate(r.Context(), j); err != nil {
			return nil, err
		}
	}
	j.encoder = func(h protocol.Header) wire {
		st := responses.NewStream(req, h)
		st.SetClock(func() int64 { return time.Now().Unix() })
		st.SetSeal(func(reasoning string) string { return s.sealer.seal(reasoning, j.tenant) })
		return st
	}
	if req.Store {
		j.ended = func(w wire) { j.save(w.(*responses.Stream), statusOf(w)) }
	}
	return j, nil
}

// statusOf reads the status out of a response object.
func statusOf(w wire) string {
	v, err := pyjson.Parse(w.Body())
	if err != nil {
		return store.Failed
	}
	if st := v.Get("status"); st != nil {
		return st.Text
	}
	return store.Failed
}

// save stores the response in its present state.
func (j *responseJob) save(st *responses.Stream, status string) {
	err := j.s.store.Put(&store.Record{Tenant: j.tenant, ID: j.id(), Previous: j.resp.PreviousResponseID, Status: status, Response: st.Body(), Input: j.input, Output: st.Output()})
	if err != nil {
		// The answer is worth more than its copy: the client gets it, and a later reference to it a clear error.
		j.s.log.Error("a response could not be stored", "response", j.id(), "error", err)
	}
}

// earlier gives the items of a stored response and of those that it continues.
func (s *Server) earlier(tenant, id string) ([]byte, error) {
	chain, err := s.store.Chain(tenant, id, 0)
	if err != nil {
		var chain *store.ChainError
		if errors.As(err, &chain) {
			return nil, protocol.Invalid("previous_response_id", "Previous response '%s' cannot be continued: %s.", id, chain.Error()).WithCode("previous_response_not_found")
		}
		return nil, err
	}
	switch last := chain[len(chain)-1]; {
	case !last.Ended():
		return nil, protocol.Invalid("previous_response_id", "Previous response '%s' is still %s; wait until it has ended.", id, last.Status)
	case last.Status == store.Failed:
		return nil, protocol.Invalid("previous_response_id", "Previous response '%s' failed and cannot be continued.", id)
	}
	var w protocol.JSON
	w.Array()
	for _, r := range chain {
		for _, list := range [][]byte{r.Input, r.Output} {
			if inner := bytes.TrimSpace(list); len(inner) > 2 {
				w.Raw(inner[1 : len(inner)-1])
			}
		}
	}
	return w.End().B, nil
}

// item finds one item by its id, which holds the id of its response: msg_RESPONSE_INDEX.
func (s *Server) item(tenant, id string) ([]byte, bool) {
	_, base, ok := strings.Cut(id, "_")
	if k := strings.LastIndexByte(base, '_'); ok && k > 0 {
		base = base[:k]
	} else {
		return nil, false
	}
	r, err := s.store.Get(tenant, "resp_"+base)
	if err != nil {
		return nil, false
	}
	for _, list := range [][]byte{r.Output, r.Input} {
		v, err := pyjson.Parse(list)
		if err != nil {
			continue
		}
		for i := range v.Elems {
			if have := v.Elems[i].Get("id"); have != nil && have.Text == id {
				return protocol.AppendCompact(nil, &v.Elems[i]), true
			}
		}
	}
	return nil, false
}

// ownItems gives the input of a request as an array of items, each with an id.
func ownItems(input []byte, base string) ([]byte, error) {
	if input == nil {
		return []byte("[]"), nil
	}
	v, err := pyjson.Parse(input)
	if err != nil {
		return nil, err
	}
	text := func(s string) pyjson.Value { return pyjson.Value{Kind: pyjson.String, Text: s} }
	if v.Kind == pyjson.String {
		part := pyjson.Value{Kind: pyjson.Object, Members: []pyjson.Member{{Key: "type", Value: text("input_text")}, {Key: "text", Value: v}}}
		v = pyjson.Value{Kind: pyjson.Array, Elems: []pyjson.Value{{Kind: pyjson.Object, Members: []pyjson.Member{
			{Key: "role", Value: text("user")}, {Key: "content", Value: pyjson.Value{Kind: pyjson.Array, Elems: []pyjson.Value{part}}},
		}}}}
	}
	for i := range v.Elems {
		it := &v.Elems[i]
		var head []pyjson.Member
		if it.Get("type") == nil {
			head = append(head, pyjson.Member{Key: "type", Value: text("message")})
		}
		if it.Get("id") == nil {
			head = append(head, pyjson.Member{Key: "id", Value: text("item_" + base + "_i" + strconv.Itoa(i))})
		}
		it.Members = append(head, it.Members...)
	}
	return protocol.AppendCompact(nil, &v), nil
}

// truncate drops the oldest turns until prompt and answer fit.
func (s *Server) truncate(ctx context.Context, j *responseJob) error {
	conv := &j.req.Conversation
	imgs, err := j.m.decodeImages(ctx, conv)
	if err != nil {
		return err
	}
	all := conv.Messages
	first := 0 // what the system says stays
	for first < len(all) && (all[first].Role == conversation.RoleSystem || all[first].Role == conversation.RoleDeveloper) {
		first++
	}
	cuts := []int{first} // where a turn begins
	for i := first + 1; i < len(all); i++ {
		if all[i].Role == conversation.RoleUser && all[i-1].Role != conversation.RoleUser {
			cuts = append(cuts, i)
		}
	}
	reserve := min(4096, j.m.Context/4)
	if n := j.req.Params.MaxTokens; n != nil {
		reserve = int(min(*n, int64(j.m.Context)))
	}
	limit := j.m.Context
	if j.m.MaxPrompt > 0 {
		limit = min(limit, j.m.MaxPrompt+reserve)
	}
	fits := func(k int) (bool, error) {
		conv.Messages = append(slices.Clone(all[:first]), all[cuts[k]:]...)
		n, err := j.m.promptTokens(conv, imgs)
		return n+reserve <= limit, err
	}
	low, high := 0, len(cuts)-1 // the fewest turns to drop; the last one stays, and if it does not fit the request is refused as any other
	for low < high {
		mid := (low + high) / 2
		ok, err := fits(mid)
		switch {
		case err != nil:
			return err
		case ok:
			high = mid
		default:
			low = mid + 1
		}
	}
	if _, err := fits(low); err != nil {
		return err
	}
	if n := cuts[low] - first; n > 0 {
		j.req.Warnings = append(j.req.Warnings, "truncation: the oldest "+strconv.Itoa(n)+" messages were left out")
	}
	return nil
}

// promptTokens counts the tokens of a conversation, pictures included.
func (m *Model) promptTokens(conv *conversation.Conversation, imgs []*vision.Patches) (int, error) {
	p, err := m.Encoder.Encode(conv, encoding.Options{})
	if err != nil {
		return 0, protocol.Invalid("messages", "%s", err.Error())
	}
	n := len(p.Tokens)
	for i := range p.Images {
		n += imgs[p.Images[i].Image].Plan.Tokens() - p.Images[i].Tokens
	}
	return n, nil
}

// inputTokens is POST /v1/responses/input_tokens.
func (s *Server) inputTokens(rw http.ResponseWriter, r *http.Request) {
	s.count(rw.(*reply), r, func(m *Model, body []byte) ([]byte, error) {
		j, err := s.decodeResponse(r, m, body)
		if err != nil {
			return nil, err
		}
		s.recall(j.tenant, &j.req.Conversation)
		n, err := m.conversationTokens(r.Context(), &j.req.Conversation)
		return responses.InputTokens(int64(n)), err
	})
}

// count answers a request that runs nothing.
func (s *Server) count(w *reply, r *http.Request, f func(m *Model, body []byte) ([]byte, error)) {
	m, err := s.begin()
	if err == nil {
		defer s.end()
		var body []byte
		if body, err = s.body(w, r); err == nil {
			if body, err = f(m, body); err == nil {
				w.Header().Set("Content-Type", "application/json")
				w.Write(append(body, '\n'))
				return
			}
		}
	}
	s.refuse(w, r, err)
}

func (m *Model) conversationTokens(ctx context.Context, conv *conversation.Conversation) (int, error) {
	imgs, err := m.decodeImages(ctx, conv)
	if err != nil {
		return 0, err
	}
	return m.promptTokens(conv, imgs)
}

// noResponse is the 404 of an id.
func noResponse(id string) *protocol.Error {
	return protocol.NewError(http.StatusNotFound, "Response with id '%s' not found.", id)
}

// stored answers with what f makes of a stored response.
func (s *Server) stored(w *reply, r *http.Request, id string, f func(rec *store.Record) ([]byte, error)) {
	rec, err := s.store.Get(s.tenant(r), id)
	if errors.Is(err, store.ErrNotFound) {
		err = noResponse(id)
	}
	var body []byte
	if err == nil {
		body, err = f(rec)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(append(body, '\n'))
}

// getResponse is GET /v1/responses/{id}.
func (s *Server) getResponse(rw http.ResponseWriter, r *http.Request) {
	w, id := rw.(*reply), strings.TrimPrefix(r.URL.Path, "/v1/responses/")
	if r.URL.Query().Get("stream") == "true" {
		if err := s.replay(w, r, id); err != nil {
			s.refuse(w, r, err)
		}
		return
	}
	s.stored(w, r, id, func(rec *store.Record) ([]byte, error) { return rec.Response, nil })
}

// deleteResponse is DELETE /v1/responses/{id}.
func (s *Server) deleteResponse(rw http.ResponseWriter, r *http.Request) {
	w, id := rw.(*reply), strings.TrimPrefix(r.URL.Path, "/v1/responses/")
	tenant := s.tenant(r)
	if t := s.tasks.find(tenant, id); t != nil {
		t.remove()
	}
	err := s.store.Delete(tenant, id)
	switch {
	case errors.Is(err, store.ErrNotFound):
		s.refuse(w, r, noResponse(id))
	case err != nil:
		s.refuse(w, r, err)
	default:
		writeJSON(w, http.StatusOK, struct {
			ID      string `json:"id"`
			Object  string `json:"object"`
			Deleted bool   `json:"deleted"`
		}{id, "response", true})
	}
}

// cancelResponse is POST /v1/responses/{id}/cancel.
func (s *Server) cancelResponse(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/cancel")
	tenant := s.tenant(r)
	s.stored(w, r, id, func(rec *store.Record) ([]byte, error) {
		v, err := pyjson.Parse(rec.Response)
		if err != nil {
			return nil, err
		}
		if b := v.Get("background"); b == nil || b.Kind != pyjson.True {
			return nil, protocol.Invalid("id", "Response '%s' was not made with background; close its connection to cancel it.", id)
		}
		t := s.tasks.find(tenant, id)
		if rec.Ended() || t == nil {
			return rec.Response, nil
		}
		if _, err := s.store.SetCancel(tenant, id); err != nil && !errors.Is(err, store.ErrNotFound) {
			return nil, err
		}
		t.cancel()
		select {
		case <-t.done:
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
		if rec, err = s.store.Get(tenant, id); errors.Is(err, store.ErrNotFound) {
			return nil, noResponse(id)
		} else if err != nil {
			return nil, err
		}
		return rec.Response, nil
	})
}

// Bounds of a page of input items.
const (
	defaultItems = 20
	maxItems     = 100
)

// inputItems is GET /v1/responses/{id}/input_items.
func (s *Server) inputItems(rw http.ResponseWriter, r *http.Request) {
	w := rw.(*reply)
	id := strings.TrimSuffix(strings.TrimPrefix(r.URL.Path, "/v1/responses/"), "/input_items")
	q := r.URL.Query()
	s.stored(w, r, id, func(rec *store.Record) ([]byte, error) {
		limit := defaultItems
		if v := q.Get("limit"); v != "" {
			n, err := strconv.Atoi(v)
			if err != nil || n < 1 || n > maxItems {
				return nil, protocol.Invalid("limit", "Invalid limit %q: must be in [1, %d].", v, maxItems)
			}
			limit = n
		}
		v, err := pyjson.Parse(rec.Input)
		if err != nil {
			return nil, err
		}
		items := v.Elems
		switch order := q.Get("order"); order {
		case "", "desc":
			slices.Reverse(items)
		case "asc":
		default:
			return nil, protocol.Invalid("order", "Invalid order %q: must be asc or desc.", order)
		}
		name := func(i int) string {
			if id := items[i].Get("id"); id != nil {
				return id.Text
			}
			return ""
		}
		if after := q.Get("after"); after != "" {
			k := slices.IndexFunc(items, func(it pyjson.Value) bool { id := it.Get("id"); return id != nil && id.Text == after })
			if k < 0 {
				return nil, protocol.Invalid("after", "Item with id '%s' not found.", after)
			}
			items = items[k+1:]
		}
		more := len(items) > limit
		items = items[:min(limit, len(items))]
		var j protocol.JSON
		j.Open().Key("object").Str("list").Key("data").Array()
		for i := range items {
			j.Value(&items[i])
		}
		j.End().Key("first_id")
		if len(items) == 0 {
			return j.Null().Key("last_id").Null().Key("has_more").Bool(false).Close().B, nil
		}
		return j.Str(name(0)).Key("last_id").Str(name(len(items) - 1)).Key("has_more").Bool(more).Close().B, nil
	})
}

// interrupted marks what ran when the server ended before as failed.
func (s *Server) interrupted() error {
	list, err := s.store.Unfinished()
	if err != nil {
		return err
	}
	for _, r := range list {
		v, err := pyjson.Parse(r.Response)
		if err != nil {
			return err
		}
		r.Status = store.Failed
		if st := v.Get("status"); st != nil {
			st.Text = r.Status
		}
		if e := v.Get("error"); e != nil {
			*e, err = pyjson.Parse([]byte(`{"code":"server_error","message":"the server ended before the response did"}`))
			if err != nil {
				return err
			}
		}
		r.Response = protocol.AppendCompact(nil, &v)
		if err := s.store.Put(r); err != nil {
			return err
		}
	}
	return nil
}

// task is a response that is made in the background.
type task struct {
	tenant, id string
	cancel     context.CancelFunc
	done       chan struct{} // closed when it has ended and is stored
	log        *eventLog

	mu      sync.Mutex
	removed bool
}

// remove cancels the task and forgets it.
func (t *task) remove() {
	t.mu.Lock()
	t.removed = true
	t.mu.Unlock()
	t.cancel()
	<-t.done
}

// tasks are those that run, and those that ended lately, for clients that read their events again.
type tasks struct {
	mu   sync.Mutex
	list []*task // oldest first
}

// Bounds on what is kept of tasks that have ended, and on those that run.
const (
	keptTasks   = 64
	keptBytes   = 64 << 20
	maxRunTasks = 256
)

func (ts *tasks) find(tenant, id string) *task {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, t := range ts.list {
		if t.id == id && t.tenant == tenant {
			return t
		}
	}
	return nil
}

// add puts a task in; false: too many run.
func (ts *tasks) add(t *task) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	running := 0
	for _, have := range ts.list {
		if !have.log.over() {
			running++
		}
	}
	if running >= maxRunTasks {
		return false
	}
	ts.list = append(ts.list, t)
	return true
}

// trim forgets the oldest of those that have ended.
func (ts *tasks) trim() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	var ended, bytes int
	for _, t := range ts.list {
		if t.log.over() {
			ended++
			bytes += t.log.size()
		}
	}
	ts.list = slices.DeleteFunc(ts.list, func(t *task) bool {
		if !t.log.over() || ended <= keptTasks && bytes <= keptBytes {
			return false
		}
		ended--
		bytes -= t.log.size()
		return true
	})
}

// background runs a request without its client. kept says that the server's count of requests is the task's to end.
func (s *Server) background(w *reply, r *http.Request, j *responseJob, arrival time.Time) (kept bool, err error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	t := &task{tenant: j.tenant, id: j.id(), cancel: cancel, done: make(chan struct{}), log: newEventLog()}
	streamed := j.req.Stream
	j.req.Stream = true // the task writes events, whatever the client asked for
	accepted := make(chan []byte, 1)
	var enc *responses.Stream
	j.started = func(w wire) error {
		enc = w.(*responses.Stream)
		if !s.tasks.add(t) {
			return protocol.NewError(http.StatusTooManyRequests, "%d responses run in the background, the limit of this server; try again later.", maxRunTasks)
		}
		j.save(enc, store.InProgress)
		accepted <- enc.Body()
		return nil
	}
	save := func(st *responses.Stream, status string) {
		t.mu.Lock()
		defer t.mu.Unlock()
		if !t.removed {
			j.save(st, status)
		}
	}
	j.ended = func(w wire) { save(w.(*responses.Stream), statusOf(w)) }
	failed := make(chan error, 1)
	req := r.WithContext(ctx)
	go func() {
		defer s.end()
		defer cancel()
		defer close(t.done)
		defer t.log.close()
		to := &reply{ResponseWriter: t.log, id: w.id}
		err := s.run(to, req, &j.job, arrival)
		if enc == nil || err != nil {
			failed <- err
			return
		}
		if ctx.Err() != nil && statusOf(enc) == store.InProgress {
			u := enc.Usage()
			last := enc.Events(nil, 0, []parse.Event{{Kind: parse.Finish, Cause: parse.CauseCancelled}}, parse.Usage{Completion: int(u.Completion), Reasoning: int(u.Reasoning)})
			save(enc, statusOf(enc))
			t.log.Write(last)
		}
		s.tasks.trim()
	}()
	select {
	case err := <-failed:
		if err == nil {
			err = r.Context().Err()
		}
		return true, err
	case body := <-accepted:
		w.attrs = append(w.attrs, slog.String("response", t.id))
		if streamed {
			return true, t.log.stream(r.Context(), s, w, 0)
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(append(body, '\n'))
		return true, nil
	}
}

// replay streams the events of a response that was made in the background, from the one after starting_after.
func (s *Server) replay(w *reply, r *http.Request, id string) error {
	from := 0
	if v := r.URL.Query().Get("starting_after"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil || n < 0 {
			return protocol.Invalid("starting_after", "Invalid starting_after %q: must be the sequence number of an event.", v)
		}
		from = n + 1
	}
	tenant := s.tenant(r)
	t := s.tasks.find(tenant, id)
	if t == nil {
		if _, err := s.store.Get(tenant, id); errors.Is(err, store.ErrNotFound) {
			return noResponse(id)
		} else if err != nil {
			return err
		}
		return protocol.Invalid("stream", "The events of response '%s' are not kept: only those of responses made with background are, for a while. Read it without stream.", id)
	}
	return t.log.stream(r.Context(), s, w, from)
}

// eventLog keeps the events of a task. It is the http.ResponseWriter that the task writes to.
type eventLog struct {
	mu     sync.Mutex
	header http.Header
	buf    []byte
	ends   []int // of each event in buf
	ended  bool
	wake   chan struct{} // closed and replaced at each change
}

func newEventLog() *eventLog { return &eventLog{header: http.Header{}, wake: make(chan struct{})} }

// Header and WriteHeader take what nobody reads.
func (l *eventLog) Header() http.Header { return l.header }

// WriteHeader does nothing.
func (l *eventLog) WriteHeader(int) {}

// Flush does nothing; readers see each Write.
func (l *eventLog) Flush() {}

// Write takes whole events. Comments that keep a connection alive are no events.
func (l *eventLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for rest := p; len(rest) > 0; {
		ev := rest
		if k := bytes.Index(rest, []byte("\n\n")); k >= 0 {
			ev = rest[:k+2]
		}
		rest = rest[len(ev):]
		if ev[0] != ':' {
			l.buf = append(l.buf, ev...)
			l.ends = append(l.ends, len(l.buf))
		}
	}
	l.changed()
	return len(p), nil
}

func (l *eventLog) changed() {
	close(l.wake)
	l.wake = make(chan struct{})
}

func (l *eventLog) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.changed()
}

func (l *eventLog) over() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

func (l *eventLog) size() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.buf)
}

// next gives the events from number from on and whether there will be more; wake is closed when there are.
func (l *eventLog) next(from int) (events []byte, upTo int, ended bool, wake <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if from < len(l.ends) {
		start := 0
		if from > 0 {
			start = l.ends[from-1]
		}
		events = l.buf[start:len(l.buf):len(l.buf)] // what is written is never changed
	}
	return events, max(from, len(l.ends)), l.ended, l.wake
}

// stream sends the events from number from on, as they come. The task goes on when the reader leaves.
func (l *eventLog) stream(ctx context.Context, s *Server, w *reply, from int) error {
	h := w.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("X-Accel-Buffering", "no")
	out := &output{w: w, rc: http.NewResponseController(w), stall: s.opt.StreamStall, stream: true}
	tick := time.NewTicker(s.opt.KeepAlive)
	defer tick.Stop()
	for out.err == nil {
		events, upTo, ended, wake := l.next(from)
		out.take(events)
		from = upTo
		if ended {
			return nil
		}
		select {
		case <-wake:
		case <-tick.C:
			out.take([]byte(": keep-alive\n\n"))
		case <-ctx.Done():
			w.status = statusGone
			return nil
		}
	}
	return nil
}
