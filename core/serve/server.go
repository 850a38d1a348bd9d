package serve

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/serve/store"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/token"
)

//go:embed page/index.html page/style.css page/chat.js
var page embed.FS

// Options configure a server. The zero value is usable.
type Options struct {
	Logger      *slog.Logger  // nil = silent
	Version     string        // for /version
	MaxBody     int64         // bytes of a request body; 0 = 64 MiB
	Keys        []string      // API keys; none = everybody may call
	CORSOrigins []string      // origins that browsers may call from, "*" = any; none = no CORS headers
	StreamStall time.Duration // how long a reader may take nothing; 0 = for ever
	NoMetrics   bool          // leaves /metrics out
	KeepAlive   time.Duration // between comments on a quiet stream; 0 = 15 s
	Stuck       time.Duration // without a step while requests run: /livez fails; 0 = 60 s
	Store       *store.Store  // of responses; nil = one in memory with the default bounds. The caller closes it after the server
	Secret      []byte        // seals reasoning that clients keep, at least 16 bytes; nil = a new one, so that a restart forgets it
}

// Model is what is served.
type Model struct {
	Name      string
	Aliases   []string
	Engine    *engine.Engine
	Model     *model.Model
	Tokenizer *token.Tokenizer
	Encoder   *encoding.Encoder
	Context   int       // tokens of prompt and answer together
	MaxTokens int       // of one answer; 0 = what the context leaves
	MaxPrompt int       // tokens of one prompt; 0 = the context
	Thinking  *bool     // where a request says nothing; nil = the rule of its API
	CacheSize int64     // bytes of the KV pool, for metrics
	Numerics  string    // for metrics
	Created   time.Time // for /v1/models; zero = now
	names     map[string]protocol.Model
	images    chan struct{} // bounds image work
	metrics   *metrics
	grammars  *grammar.Compiler
}

// Server is the HTTP front.
type Server struct {
	opt      Options
	log      *slog.Logger
	keys     [][sha256.Size]byte
	started  time.Time
	model    atomic.Pointer[Model]
	routes   map[string]map[string]http.HandlerFunc // path, method
	store    *store.Store
	sealer   *sealer
	tasks    tasks
	thoughts thoughts

	mu       sync.Mutex
	stage    string
	done     uint64
	total    uint64
	failure  error
	draining bool
	active   int
	idle     chan struct{} // closed when draining and nothing runs
	steps    uint64        // as /livez saw them last
	moved    time.Time
}

// New returns a server without a model.
func New(opt Options) (*Server, error) {
	if opt.MaxBody == 0 {
		opt.MaxBody = protocol.DefaultMaxBody
	}
	if opt.KeepAlive == 0 {
		opt.KeepAlive = 15 * time.Second
	}
	if opt.Stuck == 0 {
		opt.Stuck = time.Minute
	}
	if opt.MaxBody < 0 || opt.StreamStall < 0 || opt.KeepAlive < 0 || opt.Stuck < 0 {
		return nil, errors.New("new server: sizes and times must not be negative")
	}
	s := &Server{opt: opt, log: opt.Logger, started: time.Now(), stage: "starting", idle: make(chan struct{}), moved: time.Now()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	for _, k := range opt.Keys {
		if k == "" {
			return nil, errors.New("new server: an API key is empty")
		}
		s.keys = append(s.keys, sha256.Sum256([]byte(k)))
	}
	var err error
	if s.sealer, err = newSealer(opt.Secret); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	if s.store = opt.Store; s.store == nil {
		if s.store, err = store.Open(store.Options{Logger: s.log}); err != nil {
			return nil, fmt.Errorf("new server: %w", err)
		}
	}
	if err := s.interrupted(); err != nil {
		return nil, fmt.Errorf("new server: %w", err)
	}
	get := func(h http.HandlerFunc) map[string]http.HandlerFunc {
		return map[string]http.HandlerFunc{"GET": h, "HEAD": h}
	}
	post := func(h http.HandlerFunc) map[string]http.HandlerFunc { return map[string]http.HandlerFunc{"POST": h} }
	s.routes = map[string]map[string]http.HandlerFunc{
		"/":                              get(s.file("index.html")),
		"/page/style.css":                get(s.file("style.css")),
		"/page/chat.js":                  get(s.file("chat.js")),
		"/livez":                         get(s.livez),
		"/readyz":                        get(s.readyz),
		"/health":                        get(s.health),
		"/version":                       get(s.version),
		"/v1/models":                     get(s.models),
		"/v1/models/{id}":                get(s.oneModel),
		"/v1/chat/completions":           post(s.chat),
		"/v1/completions":                post(s.completions),
		"/v1/responses/input_tokens":     post(s.inputTokens),
		"/v1/responses/{id}":             {"GET": s.getResponse, "HEAD": s.getResponse, "DELETE": s.deleteResponse},
		"/v1/responses/{id}/cancel":      post(s.cancelResponse),
		"/v1/responses/{id}/input_items": get(s.inputItems),
		"/v1/responses":                  post(s.responses),
		"/v1/messages":                   post(s.messages),
		"/v1/messages/count_tokens":      post(s.countTokens),
		"/tokenize":                      post(s.tokenize),
		"/detokenize":                    post(s.detokenize),
	}
	for alias, path := range aliases {
		s.routes[alias] = s.routes[path]
	}
	if !opt.NoMetrics {
		s.routes["/metrics"] = get(s.metricsHandler())
	}
	return s, nil
}

// aliases are further paths that clients use.
var aliases = map[string]string{
	"/chat/completions":                   "/v1/chat/completions",
	"/beta/chat/completions":              "/v1/chat/completions",
	"/beta/completions":                   "/v1/completions",
	"/anthropic/v1/messages":              "/v1/messages",
	"/anthropic/v1/messages/count_tokens": "/v1/messages/count_tokens",
	"/anthropic/v1/models":                "/v1/models",
}

// route gives the methods of a path.
func (s *Server) route(path string) map[string]http.HandlerFunc {
	if m := s.routes[path]; m != nil && !strings.Contains(path, "{") {
		return m
	}
	for _, dir := range []string{"/v1/models/", "/v1/responses/"} {
		rest, ok := strings.CutPrefix(path, dir)
		if !ok || rest == "" {
			continue
		}
		id, tail := rest, ""
		if dir == "/v1/responses/" {
			if k := strings.IndexByte(rest, '/'); k >= 0 {
				id, tail = rest[:k], rest[k:]
			}
		}
		if id != "" {
			return s.routes[dir+"{id}"+tail]
		}
	}
	return nil
}

// SetProgress says how far loading is. total 0 = unknown.
func (s *Server) SetProgress(stage string, done, total uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stage, s.done, s.total = stage, done, total
}

// Fail says that loading failed for good: the server is alive and will never be ready.
func (s *Server) Fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failure = err
}

// SetModel makes the server ready. It may be called once.
func (s *Server) SetModel(m Model) error {
	if m.Name == "" || m.Engine == nil || m.Model == nil || m.Tokenizer == nil || m.Encoder == nil || m.Context < 2 {
		return errors.New("serve a model: name, engine, checkpoint, tokenizer, encoder and context are needed")
	}
	if m.Created.IsZero() {
		m.Created = time.Now()
	}
	m.names = map[string]protocol.Model{}
	for _, n := range append([]string{m.Name}, m.Aliases...) {
		m.names[n] = protocol.Model{Name: m.Name, V4: m.Model.Config.V4(), Thinking: m.Thinking}
	}
	m.images = make(chan struct{}, max(1, runtime.GOMAXPROCS(0)))
	m.metrics = newMetrics(&m)
	if err := m.prepareGrammars(); err != nil {
		return err
	}
	if !s.model.CompareAndSwap(nil, &m) {
		return errors.New("serve a model: the server has one already")
	}
	return nil
}

// Drain stops taking requests and returns when the running ones have ended, or with ctx's error.
func (s *Server) Drain(ctx context.Context) error {
	s.mu.Lock()
	if !s.draining {
		s.draining = true
		if s.active == 0 {
			close(s.idle)
		}
	}
	n := s.active
	s.mu.Unlock()
	s.log.Info("draining", "running", n)
	select {
	case <-s.idle:
		return nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		return fmt.Errorf("drain: %d requests still ran: %w", s.active, ctx.Err())
	}
}

// begin counts a request in; end counts it out. It fails while the server is not ready.
func (s *Server) begin() (*Model, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.model.Load()
	if reason := s.unready(m); reason != nil {
		e := protocol.NewError(http.StatusServiceUnavailable, "The server is not ready: %s", reason.text())
		e.Code = reason.State
		return nil, e
	}
	s.active++
	return m, nil
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active--; s.active == 0 && s.draining {
		close(s.idle)
	}
}

// state is the body of the health endpoints.
type state struct {
	State   string   `json:"status"` // "ready", "loading", "draining", "failed"
	Reason  string   `json:"reason,omitempty"`
	Percent *float64 `json:"percent,omitempty"` // of the stage, while loading
	Stage   string   `json:"stage,omitempty"`
}

func (s *state) text() string {
	switch {
	case s.Percent != nil:
		return fmt.Sprintf("%s, %.0f %%", s.Stage, *s.Percent)
	case s.Stage != "":
		return s.Stage
	}
	return s.Reason
}

// unready says why no request can be taken; nil = ready. s.mu is held.
func (s *Server) unready(m *Model) *state {
	switch {
	case s.failure != nil:
		return &state{State: "failed", Reason: s.failure.Error()}
	case s.draining:
		return &state{State: "draining", Reason: "the server is shutting down"}
	case m == nil:
		st := &state{State: "loading", Reason: "the model is loading", Stage: s.stage}
		if s.total > 0 {
			p := 100 * float64(min(s.done, s.total)) / float64(s.total)
			st.Percent = &p
		}
		return st
	}
	if err := m.Engine.Err(); err != nil {
		return &state{State: "failed", Reason: "the engine has stopped: " + err.Error()}
	}
	return nil
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	st := s.unready(s.model.Load())
	s.mu.Unlock()
	if st != nil {
		w.Header().Set("Retry-After", "1")
		writeJSON(w, http.StatusServiceUnavailable, st)
		return
	}
	writeJSON(w, http.StatusOK, state{State: "ready"})
}

// health is readyz except that a server which drains is still healthy.
func (s *Server) health(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	st := s.unready(s.model.Load())
	s.mu.Unlock()
	if st != nil && st.State != "draining" {
		writeJSON(w, http.StatusServiceUnavailable, st)
		return
	}
	writeJSON(w, http.StatusOK, state{State: "ok"})
}

// livez fails when requests run and no step has ended for a long time.
func (s *Server) livez(w http.ResponseWriter, r *http.Request) {
	if m := s.model.Load(); m != nil {
		st := m.Engine.Stats()
		now := time.Now()
		s.mu.Lock()
		if st.Running == 0 || st.Steps+st.ImageSteps+st.Losses != s.steps {
			s.steps, s.moved = st.Steps+st.ImageSteps+st.Losses, now
		}
		stuck := now.Sub(s.moved)
		s.mu.Unlock()
		if stuck > s.opt.Stuck {
			writeJSON(w, http.StatusServiceUnavailable, state{State: "stuck", Reason: fmt.Sprintf("%d requests run and no step has ended for %s", st.Running, stuck.Round(time.Second))})
			return
		}
	}
	writeJSON(w, http.StatusOK, state{State: "alive"})
}

func (s *Server) version(w http.ResponseWriter, r *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": s.opt.Version, "go": runtime.Version()})
}

func (s *Server) file(name string) http.HandlerFunc {
	content, err := page.ReadFile("page/" + name)
	kind := "text/html; charset=utf-8"
	switch {
	case strings.HasSuffix(name, ".css"):
		kind = "text/css; charset=utf-8"
	case strings.HasSuffix(name, ".js"):
		kind = "text/javascript; charset=utf-8"
	}
	return func(w http.ResponseWriter, r *http.Request) {
		if err != nil {
			panic(err) // embedded at build time
		}
		h := w.Header()
		h.Set("Content-Type", kind)
		h.Set("Cache-Control", "no-cache")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Content-Security-Policy", "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'")
		if r.Method != http.MethodHead {
			w.Write(content)
		}
	}
}

type modelObject struct {
	ID      string `json:"id"`
	Object  string `json:"object"`
	Created int64  `json:"created"`
	OwnedBy string `json:"owned_by"`
	Root    string `json:"root"` // the model behind an alias
	Context int    `json:"max_model_len"`
}

func (m *Model) object(id string) modelObject {
	return modelObject{ID: id, Object: "model", Created: m.Created.Unix(), OwnedBy: "deepinfer", Root: m.Name, Context: m.Context}
}

// anthropic is the shape that clients of the Messages protocol read.
func (o modelObject) anthropic() any {
	return struct {
		Type    string `json:"type"`
		ID      string `json:"id"`
		Display string `json:"display_name"`
		Created string `json:"created_at"`
	}{"model", o.ID, o.ID, time.Unix(o.Created, 0).UTC().Format(time.RFC3339)}
}

func (s *Server) models(w http.ResponseWriter, r *http.Request) {
	list := []modelObject{}
	if m := s.model.Load(); m != nil {
		for _, id := range append([]string{m.Name}, m.Aliases...) {
			list = append(list, m.object(id))
		}
	}
	if anthropicClient(r) {
		page := struct {
			Data  []any   `json:"data"`
			First *string `json:"first_id"`
			Last  *string `json:"last_id"`
			More  bool    `json:"has_more"`
		}{Data: []any{}}
		for i := range list {
			page.Data = append(page.Data, list[i].anthropic())
			page.First, page.Last = &list[0].ID, &list[i].ID
		}
		writeJSON(w, http.StatusOK, page)
		return
	}
	writeJSON(w, http.StatusOK, struct {
		Object string        `json:"object"`
		Data   []modelObject `json:"data"`
	}{"list", list})
}

func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimPrefix(r.URL.Path, "/v1/models/")
	m := s.model.Load()
	if m != nil {
		if _, ok := m.names[id]; ok {
			if o := m.object(id); anthropicClient(r) {
				writeJSON(w, http.StatusOK, o.anthropic())
			} else {
				writeJSON(w, http.StatusOK, o)
			}
			return
		}
	}
	e := protocol.NewError(http.StatusNotFound, "The model %q does not exist; GET /v1/models lists the models.", id)
	e.Param, e.Code = "model", "model_not_found"
	writeError(w, e)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		panic(err) // only values of this package come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(b.Bytes())
}

func writeError(w http.ResponseWriter, e *protocol.Error) {
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if (e.Status() == http.StatusTooManyRequests || e.Status() == http.StatusServiceUnavailable) && h.Get("Retry-After") == "" {
		h.Set("Retry-After", "1")
	}
	body := e.OpenAI()
	if r, ok := w.(*reply); ok && r.anthropic {
		body = e.Anthropic(r.id)
		h.Set("Request-Id", r.id)
	}
	w.WriteHeader(e.Status())
	w.Write(append(body, '\n'))
}

// reply is a ResponseWriter that knows what was written.
type reply struct {
	http.ResponseWriter
	status    int
	bytes     int64
	id        string // of the request
	anthropic bool   // errors in the shape of Messages
	attrs     []slog.Attr
}

func (w *reply) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *reply) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *reply) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Handler serves every endpoint.
func (s *Server) Handler() http.Handler { return http.HandlerFunc(s.serve) }

func (s *Server) serve(rw http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	w := &reply{ResponseWriter: rw, id: requestID(r.Header.Get("X-Request-Id"))}
	w.anthropic = within(r.URL.Path, "/v1/messages") || within(r.URL.Path, "/anthropic") || within(r.URL.Path, "/v1/models") && anthropicClient(r)
	if w.anthropic {
		w.Header().Set("Request-Id", w.id)
	}
	w.Header().Set("X-Request-Id", w.id)
	defer func() {
		if p := recover(); p != nil {
			if p == http.ErrAbortHandler {
				panic(p)
			}
			s.log.Error("panic in a handler", "request", w.id, "path", r.URL.Path, "panic", p, "stack", string(debug.Stack()))
			if w.status == 0 {
				writeError(w, protocol.NewError(http.StatusInternalServerError, "internal error; the log has more under request id %s", w.id))
			}
		}
		level := slog.LevelInfo
		if quiet[r.URL.Path] {
			level = slog.LevelDebug // probes and scrapes come every few seconds
		}
		attrs := append([]slog.Attr{slog.String("request", w.id), slog.String("method", r.Method), slog.String("path", r.URL.Path), slog.Int("status", w.status),
			slog.Int64("bytes", w.bytes), slog.Duration("took", time.Since(begin).Round(time.Microsecond)), slog.String("from", r.RemoteAddr)}, w.attrs...)
		s.log.LogAttrs(context.WithoutCancel(r.Context()), level, "request", attrs...)
	}()
	if s.cors(w, r) {
		return
	}
	path := r.URL.Path
	methods := s.route(path)
	if methods == nil {
		var known []string
		for p := range s.routes {
			if _, alias := aliases[p]; !alias {
				known = append(known, p)
			}
		}
		slices.Sort(known)
		writeError(w, protocol.NewError(http.StatusNotFound, "There is no endpoint %s. This server has %s.", path, strings.Join(known, ", ")))
		return
	}
	h := methods[r.Method]
	if h == nil {
		var allow []string
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		e := protocol.NewError(http.StatusMethodNotAllowed, "%s does not take %s; use %s.", path, r.Method, strings.Join(allow, " or "))
		e.Code = "method_not_allowed"
		writeError(w, e)
		return
	}
	if needsKey(path) && !s.authorised(r) {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, protocol.NewError(http.StatusUnauthorized, "Missing or wrong API key: send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"."))
		return
	}
	h(w, r)
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

var quiet = map[string]bool{"/livez": true, "/readyz": true, "/health": true, "/metrics": true}

// needsKey says which endpoints API keys protect: those that run the model or describe it.
func needsKey(path string) bool {
	_, alias := aliases[path]
	return strings.HasPrefix(path, "/v1/") || path == "/tokenize" || path == "/detokenize" || alias
}

func givenKey(r *http.Request) string {
	if scheme, key, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok && strings.EqualFold(scheme, "bearer") {
		return strings.TrimSpace(key)
	}
	return r.Header.Get("X-Api-Key")
}

// tenant says whose stored responses a request sees: those of its API key; without keys everybody shares.
func (s *Server) tenant(r *http.Request) string {
	if len(s.keys) == 0 {
		return ""
	}
	sum := sha256.Sum256([]byte(givenKey(r)))
	return hex.EncodeToString(sum[:8])
}

// anthropicClient says that a request comes from a client of the Messages protocol.
func anthropicClient(r *http.Request) bool { return r.Header.Get("Anthropic-Version") != "" }

// authorised compares hashes, all of them, so that time tells nothing about a key.
func (s *Server) authorised(r *http.Request) bool {
	if len(s.keys) == 0 {
		return true
	}
	sum := sha256.Sum256([]byte(givenKey(r)))
	found := 0
	for i := range s.keys {
		found |= subtle.ConstantTimeCompare(sum[:], s.keys[i][:])
	}
	return found == 1
}

// cors sets the headers for allowed origins and answers preflight requests.
func (s *Server) cors(w http.ResponseWriter, r *http.Request) (answered bool) {
	origin := r.Header.Get("Origin")
	if origin == "" || len(s.opt.CORSOrigins) == 0 {
		return false
	}
	h := w.Header()
	h.Add("Vary", "Origin")
	if !slices.Contains(s.opt.CORSOrigins, "*") && !slices.Contains(s.opt.CORSOrigins, origin) {
		return false
	}
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Expose-Headers", "X-Request-Id, X-Deepinfer-Seed, X-Deepinfer-Warning")
	if r.Method != http.MethodOptions || r.Header.Get("Access-Control-Request-Method") == "" {
		return false
	}
	h.Set("Access-Control-Allow-Methods", "GET, POST")
	if want := r.Header.Get("Access-Control-Request-Headers"); want != "" {
		h.Set("Access-Control-Allow-Headers", want)
	}
	h.Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
	return true
}

// requestID takes the client's id if it is harmless in logs, else makes one.
func requestID(given string) string {
	ok := given != "" && len(given) <= 128
	for i := 0; ok && i < len(given); i++ {
		c := given[i]
		ok = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_.:/=+@", c) >= 0
	}
	if ok {
		return given
	}
	return randomID()
}

func randomID() string {
	var b [12]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

// body reads a request's body within the limit.
func (s *Server) body(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.opt.MaxBody))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		e := protocol.NewError(http.StatusRequestEntityTooLarge, "The body has more than %d bytes, the limit of this server.", large.Limit)
		e.Code = "request_too_large"
		return nil, e
	case err != nil:
		return nil, protocol.NewError(http.StatusBadRequest, "The body could not be read: %v.", err)
	}
	return raw, nil
}
