package protocol

import (
	"math"
	"sort"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// Limits that hold for every protocol.
const (
	DefaultMaxBody   = 64 << 20
	MaxOutputTokens  = 393216
	MaxStopStrings   = 16
	MaxTopLogprobs   = 20
	MaxChoices       = 16
	maxImageURLBytes = 8 << 10
)

// Model is what a model name in a request stands for.
type Model struct {
	Name     string // what the server calls it
	V4       bool   // the V4 family instead of V4.1
	Thinking *bool  // thinking unless the request says otherwise; nil: Options.ThinkingOff decides
}

// Options are a server's choices for decoding. The zero value accepts every model name as V4.1.
type Options struct {
	// Compat is the behaviour of the reference adapter, error texts included.
	Compat bool

	// Models are the names that are accepted; a name that ends in * stands for all that start with it. Nil accepts every name, except
	// in compat, which knows DeepSeek-V4-Pro and DeepSeek-V4.1-Flash and takes Models as further aliases.
	Models map[string]Model
	// V4 makes models without an entry in Models V4.
	V4 bool

	// ThinkingOff makes thinking opt-in.
	ThinkingOff bool
	// RequireReasoning refuses a thinking request whose earlier tool-calling turns lack their reasoning, as the hosted API does.
	RequireReasoning bool
	// RefuseForcedCalls refuses a required or named tool choice while thinking. Compat always does.
	RefuseForcedCalls bool
	// CompatSampling overrides temperature and top_p the way the reference does. Compat always does.
	CompatSampling bool
	// WebSearch says what to do with hosted web search tools.
	WebSearch WebSearch
	// KeepBillingHeader keeps a leading x-anthropic-billing-header block of a Messages system prompt in the prompt.
	KeepBillingHeader bool

	// ThinkingMaxTokens and PlainMaxTokens bound max_tokens with and without thinking; 0 is MaxOutputTokens.
	ThinkingMaxTokens, PlainMaxTokens int64

	// MaxBody bounds the body in bytes; 0 is DefaultMaxBody.
	MaxBody int
}

// WebSearch is what happens to hosted web search tools and to their blocks in the history.
type WebSearch uint8

// The choices. The default leaves them out, but compat refuses them in Messages.
const (
	WebSearchDefault WebSearch = iota
	WebSearchDrop
	WebSearchReject
)

// Constraint is what the output must look like, for the constrained decoder.
type Constraint struct {
	Kind   ConstraintKind
	Schema string // JSON Schema, regular expression, or the list of tools as JSON
}

// ConstraintKind names a constraint.
type ConstraintKind string

// The kinds of constraints.
const (
	ConstrainJSON     ConstraintKind = "json"               // a JSON document; Schema may be empty
	ConstrainRegex    ConstraintKind = "regex"              // Schema is the expression
	ConstrainGrammar  ConstraintKind = "grammar"            // Schema is the grammar
	ConstrainCalls    ConstraintKind = "tool_call"          // calls, if any, follow the tools in Schema
	ConstrainOneBlock ConstraintKind = "tool_call_required" // there must be a block of calls
)

// Request is a decoded request, whatever the protocol.
type Request struct {
	Model  string // as the client wrote it
	Target Model  // what it stands for

	Conversation conversation.Conversation
	Params       conversation.Params
	Constraint   *Constraint
	Stream       bool

	// CacheKey is the client's routing hint (prompt_cache_key), never part of a cache identity. User identifies the end user.
	CacheKey, User string

	// Warnings name what was accepted and has no effect.
	Warnings []string

	opts Options
}

// Options gives the options that the request was decoded with.
func (r *Request) Options() Options { return r.opts }

// Parsing tells the output parser what to expect.
func (r *Request) Parsing() conversation.Parsing {
	p := r.Conversation.Parsing(r.Params.Stop)
	p.NoParallelTools = r.Params.NoParallelTools && !r.opts.Compat
	return p
}

// Begin starts a request from its body: model and stream.
func Begin(body Node, opts Options) (Request, *Error) {
	r := Request{opts: opts}
	var err *Error
	if r.Model, err = body.ReqString("model"); err != nil {
		return r, err
	}
	r.Target, err = opts.resolve(r.Model)
	if err != nil {
		return r, err
	}
	stream, err := body.OptBool("stream")
	if err != nil {
		return r, err
	}
	r.Stream = stream != nil && *stream
	return r, nil
}

func (o *Options) resolve(name string) (Model, *Error) {
	if m, ok := o.Models[name]; ok {
		return m, nil
	}
	if o.Compat {
		switch name {
		case "DeepSeek-V4-Pro":
			return Model{Name: name, V4: true}, nil
		case "DeepSeek-V4.1-Flash":
			return Model{Name: name}, nil
		}
		known := []string{"DeepSeek-V4-Pro", "DeepSeek-V4.1-Flash"}
		for alias := range o.Models {
			known = append(known, alias)
		}
		sort.Strings(known[2:])
		return Model{}, Invalid("model", "The supported API model names are %s, but you passed %s.", strings.Join(known, ", "), name)
	}
	if o.Models == nil {
		return Model{Name: name, V4: o.V4}, nil
	}
	best := ""
	for pattern := range o.Models {
		if start, ok := strings.CutSuffix(pattern, "*"); ok && strings.HasPrefix(name, start) && len(pattern) > len(best) {
			best = pattern
		}
	}
	if best != "" {
		return o.Models[best], nil
	}
	known := make([]string, 0, len(o.Models))
	for alias := range o.Models {
		known = append(known, alias)
	}
	sort.Strings(known)
	e := NewError(404, "The model %q does not exist; this server has %s.", name, strings.Join(known, ", "))
	e.Param, e.Code = "model", "model_not_found"
	return Model{}, e
}

// Finish wraps what Decode of a protocol gives: it marks errors of compat.
func Finish(opts Options, err *Error) error {
	if err == nil {
		return nil
	}
	if opts.Compat {
		err.compatible()
	}
	return err
}

// Thinking is what a request says about reasoning.
type Thinking struct {
	Set    bool // a thinking object was given
	On     bool
	Budget *int64
	Effort string // as the client wrote it; "" when not given
	Number int    // numeric effort, 1..100
}

// Apply sets the conversation's thinking and effort: thinking object before effort before the default.
func (t Thinking) Apply(r *Request) {
	c := &r.Conversation
	switch {
	case t.Set:
		c.Thinking = t.On
	case t.Effort != "":
		c.Thinking = t.Effort != "none"
	case t.Number > 0:
		c.Thinking = true
	case r.Target.Thinking != nil:
		c.Thinking = *r.Target.Thinking
	default:
		c.Thinking = !r.opts.ThinkingOff
	}
	if !c.Thinking {
		return
	}
	if !r.opts.Compat {
		r.Params.ThinkingBudget = t.Budget
	}
	c.Effort = conversation.Effort{Level: conversation.EffortHigh, Numeric: t.Number}
	switch t.Effort {
	case "minimal", "low":
		c.Effort.Level = conversation.EffortLow
	case "xhigh":
		c.Effort.Level = conversation.EffortXHigh
	case "max", "ultra":
		c.Effort.Level = conversation.EffortMax
	}
}

// Efforts are the words for reasoning effort.
var efforts = []string{"none", "minimal", "low", "medium", "high", "xhigh", "max", "ultra"}

// ReadEffort reads an effort into t: a word, or outside compat an integer from 1 to 100.
func (t *Thinking) ReadEffort(n Node, opts Options) *Error {
	if s, err := n.String(); err == nil {
		for _, e := range efforts {
			if s == e {
				t.Effort = s
				return nil
			}
		}
		return n.Variant(efforts...)
	} else if opts.Compat {
		return err
	}
	u, err := n.Uint()
	if err != nil || u < 1 || u > 100 {
		return Malformed(n.Path, "invalid request body: expected one of %s or an integer from 1 to 100, got %s", strings.Join(efforts, ", "), kindName(n.Value))
	}
	t.Number = int(u)
	return nil
}

// ReadThinking reads {"type": ..., "budget_tokens": ...}.
func (t *Thinking) ReadThinking(n Node) *Error {
	if err := n.Object(); err != nil {
		return err
	}
	kind, ok := n.Given("type")
	if !ok {
		return n.Missing("type")
	}
	s, err := kind.String()
	if err != nil {
		return err
	}
	t.Set = true
	switch s {
	case "enabled", "adaptive":
		t.On = true
	case "disabled":
		t.On = false
	default:
		return kind.Variant("adaptive", "enabled", "disabled")
	}
	budget, err := n.OptUint("budget_tokens")
	if err != nil {
		return err
	}
	if budget != nil && *budget <= math.MaxInt64 {
		b := int64(*budget)
		t.Budget = &b
	}
	return nil
}

// MaxTokensBound is the largest max_tokens of the request's mode.
func (r *Request) MaxTokensBound() int64 {
	bound := r.opts.PlainMaxTokens
	if r.Conversation.Thinking {
		bound = r.opts.ThinkingMaxTokens
	}
	if bound == 0 {
		bound = MaxOutputTokens
	}
	return bound
}

// ReadSampling reads temperature and top_p.
func (r *Request) ReadSampling(body Node) *Error {
	var err *Error
	if r.Params.Temperature, err = body.OptFloat("temperature"); err != nil {
		return err
	}
	if r.Params.TopP, err = body.OptFloat("top_p"); err != nil {
		return err
	}
	return nil
}

// CheckSampling checks their ranges.
func (r *Request) CheckSampling() *Error {
	if t := r.Params.Temperature; t != nil && !(*t >= 0 && *t <= 2) {
		return Invalid("temperature", "Invalid temperature value, the valid range of temperature is [0, 2]")
	}
	if p := r.Params.TopP; p != nil && !(*p > 0 && *p <= 1) {
		return Invalid("top_p", "Invalid top_p value, the valid range of top_p is (0, 1.0]")
	}
	return nil
}

// Sampling gives the temperature and top_p to sample with. Without CompatSampling those are the client's, or 1.
func (r *Request) Sampling() (temperature, topP float64) {
	temperature, topP = 1, 1
	if t := r.Params.Temperature; t != nil {
		temperature = *t
	}
	if p := r.Params.TopP; p != nil {
		topP = *p
	}
	if !r.opts.Compat && !r.opts.CompatSampling {
		return temperature, topP
	}
	temperature, topP = float64(float32(temperature)), float64(float32(topP))
	thinking := r.Conversation.Thinking
	if thinking {
		temperature = 1
	}
	switch {
	case !r.Target.V4 && thinking:
		topP = math.Max(topP, float64(float32(0.95)))
	case !r.Target.V4:
		topP = 1
	case thinking && len(r.Conversation.ActiveTools()) > 0:
		topP = float64(float32(0.95))
	case thinking:
		topP = 1
	}
	return temperature, topP
}

// ResolveMaxTokens gives the output budget of a prompt of so many tokens in a context of so many: the client's value, which must fit, or
// a default that is lowered to what is left.
func (r *Request) ResolveMaxTokens(promptTokens, contextLimit int64) (int64, error) {
	refuse := func(asked int64) error {
		e := Invalid("", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
			contextLimit, promptTokens+asked, promptTokens, asked)
		e.Code = "context_length_exceeded"
		return Finish(r.opts, e)
	}
	if n := r.Params.MaxTokens; n != nil {
		if promptTokens+*n > contextLimit {
			return 0, refuse(*n)
		}
		return *n, nil
	}
	if promptTokens > contextLimit {
		return 0, refuse(0)
	}
	n := int64(8192)
	if c := &r.Conversation; c.Thinking {
		n = 65536
		if c.Effort.Level == conversation.EffortMax {
			n = 131072
		}
	}
	return max(1, min(n, contextLimit-promptTokens, r.MaxTokensBound())), nil
}
