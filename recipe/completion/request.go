package completion

import (
	"math"
	"strconv"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Defaults of max_tokens, without and with a suffix.
const (
	DefaultMaxTokens       = 16
	DefaultMaxTokensMiddle = 4096
)

// Request is a decoded Completions request. Its Conversation is empty.
type Request struct {
	protocol.Request

	Completion   conversation.Completion
	IncludeUsage bool
}

// Parsing tells the output parser what to expect: text up to a stop string.
func (r *Request) Parsing() parse.Options {
	return parse.Options{Plain: true, Parsing: conversation.Parsing{StopStrings: r.Params.Stop}}
}

// ResolveMaxTokens gives the output budget of a prompt of so many tokens in a context of so many.
func (r *Request) ResolveMaxTokens(promptTokens, contextLimit int64) (int64, error) {
	if r.Params.MaxTokens != nil || promptTokens > contextLimit {
		return r.Request.ResolveMaxTokens(promptTokens, contextLimit)
	}
	n := int64(DefaultMaxTokens)
	if r.Completion.Suffix != nil {
		n = DefaultMaxTokensMiddle
	}
	return max(1, min(n, contextLimit-promptTokens)), nil
}

// Decode reads a request body. Errors are *protocol.Error.
func Decode(body []byte, opts protocol.Options) (*Request, error) {
	opts.Compat = false // the reference has no such protocol
	r, err := decode(body, opts)
	if err != nil {
		return nil, protocol.Finish(opts, err)
	}
	return r, nil
}

type decoder struct {
	*Request
	body protocol.Node
}

func decode(body []byte, opts protocol.Options) (*Request, *protocol.Error) {
	node, err := protocol.Parse(body, opts)
	if err != nil {
		return nil, err
	}
	base, err := protocol.Begin(node, opts)
	if err != nil {
		return nil, err
	}
	d := &decoder{Request: &Request{Request: base}, body: node}
	for _, step := range []func() *protocol.Error{d.prompt, d.sampling, d.limits, d.stop, d.logprobs, d.CheckSampling} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d.Request, nil
}

func (d *decoder) prompt() *protocol.Error {
	n, ok := d.body.Has("prompt")
	if !ok {
		return d.body.Missing("prompt")
	}
	if n.Kind == pyjson.Array && len(n.Elems) == 1 && (n.Elems[0].Kind == pyjson.String || n.Elems[0].Kind == pyjson.Array) {
		n = n.At(0)
	}
	c := &d.Completion
	switch {
	case n.Kind == pyjson.String:
		c.Prompt = n.Text
	case n.Kind == pyjson.Array && len(n.Elems) > 0 && n.Elems[0].Kind == pyjson.Number:
		c.PromptIDs = make([]int32, len(n.Elems))
		for i := range n.Elems {
			id, err := n.At(i).Uint()
			if err != nil {
				return err
			}
			if id > math.MaxInt32 {
				return protocol.Invalid(n.At(i).Path, "token id %d does not exist", id)
			}
			c.PromptIDs[i] = int32(id)
		}
	case n.Kind == pyjson.Array && len(n.Elems) > 1:
		return protocol.Invalid(n.Path, "%d prompts in one request are not supported; send one request for each", len(n.Elems)).WithCode("unsupported_value")
	default:
		return n.Wrong("a text or an array of token ids")
	}
	suffix, err := d.body.OptString("suffix")
	if err != nil {
		return err
	}
	c.Suffix = suffix
	if suffix != nil && c.PromptIDs != nil {
		return protocol.Invalid("suffix", "a suffix needs a prompt that is text")
	}
	for _, f := range []struct {
		key string
		to  *bool
	}{{"allow_special", &c.AllowSpecial}, {"echo", &d.Params.Echo}} {
		b, err := d.body.OptBool(f.key)
		if err != nil {
			return err
		}
		*f.to = b != nil && *b
	}
	return nil
}

func (d *decoder) sampling() *protocol.Error {
	p := &d.Params
	if err := d.ReadSampling(d.body); err != nil {
		return err
	}
	for _, f := range []struct {
		key string
		to  **float64
	}{{"frequency_penalty", &p.FrequencyPenalty}, {"presence_penalty", &p.PresencePenalty}} {
		v, err := d.body.OptFloat(f.key)
		if err != nil {
			return err
		}
		if v != nil && !(*v >= -2 && *v <= 2) {
			return protocol.Invalid(f.key, "Invalid %s value, the valid range of %s is [-2, 2]", f.key, f.key)
		}
		*f.to = v
	}
	seed, err := d.body.OptUint("seed")
	if err != nil {
		return err
	}
	if seed != nil {
		if *seed > math.MaxInt64 {
			return protocol.Invalid("seed", "Invalid seed value, the valid range of seed is [0, 2^63)")
		}
		s := int64(*seed)
		p.Seed = &s
	}
	if n, ok := d.body.Has("logit_bias"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		p.LogitBias = make(map[int32]float32, len(n.Members))
		for i := range n.Members {
			at := protocol.Node{Value: &n.Members[i].Value, Path: "logit_bias." + n.Members[i].Key}
			id, perr := strconv.ParseInt(n.Members[i].Key, 10, 32)
			v, err := at.Float()
			if err != nil {
				return err
			}
			if perr != nil || id < 0 || !(v >= -100 && v <= 100) {
				return protocol.Invalid(at.Path, "Invalid logit_bias entry: keys are token ids, values are in [-100, 100]")
			}
			p.LogitBias[int32(id)] = float32(v)
		}
	}
	user, err := d.body.OptString("user")
	if err != nil {
		return err
	}
	if user != nil {
		d.User = *user
	}
	return nil
}

func (d *decoder) limits() *protocol.Error {
	p := &d.Params
	n, err := d.body.OptUint("max_tokens")
	if err != nil {
		return err
	}
	if n != nil {
		if bound := d.MaxTokensBound(); *n < 1 || *n > uint64(bound) {
			return protocol.Invalid("max_tokens", "Invalid max_tokens value, the valid range of max_tokens is [1, %d]", bound)
		}
		v := int64(*n)
		p.MaxTokens = &v
	}
	if n, err = d.body.OptUint("n"); err != nil {
		return err
	}
	if n != nil {
		if *n < 1 || *n > protocol.MaxChoices {
			return protocol.Invalid("n", "Invalid n value, the valid range of n is [1, %d]", protocol.MaxChoices)
		}
		p.N = int(*n)
	}
	best, err := d.body.OptUint("best_of")
	if err != nil {
		return err
	}
	if best != nil && *best != uint64(max(1, p.N)) {
		return protocol.Invalid("best_of", "best_of is supported only with the value of n").WithCode("unsupported_value")
	}
	if o, ok := d.body.Has("stream_options"); ok {
		if err := o.Object(); err != nil {
			return err
		}
		if !d.Stream {
			return protocol.Invalid("stream_options", "stream_options should be set along with stream = true")
		}
		usage, err := o.OptBool("include_usage")
		if err != nil {
			return err
		}
		d.IncludeUsage = usage != nil && *usage
	}
	return nil
}

func (d *decoder) stop() *protocol.Error {
	n, ok := d.body.Has("stop")
	if !ok {
		return nil
	}
	if n.Kind == pyjson.String {
		return d.StopStrings([]string{n.Text}, "stop", true)
	}
	if n.Kind != pyjson.Array {
		return n.Wrong("a string or an array of strings")
	}
	var list []string
	for i := range n.Elems {
		s, err := n.At(i).String()
		if err != nil {
			return err
		}
		list = append(list, s)
	}
	return d.StopStrings(list, "stop", false)
}

func (d *decoder) logprobs() *protocol.Error {
	n, err := d.body.OptUint("logprobs")
	if err != nil || n == nil {
		return err
	}
	if *n > protocol.MaxTopLogprobs {
		return protocol.Invalid("logprobs", "Invalid logprobs value, the valid range of logprobs is [0, %d]", protocol.MaxTopLogprobs)
	}
	top := int(*n)
	d.Params.Logprobs, d.Params.TopLogprobs = true, &top
	return nil
}
