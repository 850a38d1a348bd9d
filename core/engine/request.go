package engine

import (
	"errors"
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
)

// Request is one generation, or with Force one scoring. The engine copies Prompt, Force and StopIDs; Rows of images stay the caller's and must not change
// until the stream has ended.
type Request struct {
	ID        string // for logs only
	Prompt    []int32
	Images    []ImageRows   // by Start, not overlapping; every position with the image token must be covered
	MaxTokens int           // tokens to draw at most, >= 1; with Force 0 or len(Force)
	Sampling  sample.Params // how tokens are drawn; ignored with Force
	StopIDs   []int32       // end the answer beside the model's end ids
	IgnoreEOS bool          // the model's end ids do not end the answer
	TopN      int           // candidates per token, at most the TopN of the programs
	Force     []int32       // teacher forcing: these ids are scored as the continuation of Prompt, nothing is drawn
	Matcher   Matcher       // optional: what the answer may say. The engine's from Submit on; choices of n > 1 need one each
	Trigger   *Trigger      // optional: free text first, up to these ids; also without Matcher, as a bound of the thinking part. Copied
}

// ImageRows are the embeddings of one image: BF16 [n, H] for the prompt positions Start..Start+n-1, which carry the image token.
type ImageRows struct {
	Start int
	Rows  []uint16
}

// Errors of Submit. Those that carry numbers are types.
var (
	ErrEmptyPrompt = errors.New("the prompt is empty: at least one token is needed")
	ErrDraining    = errors.New("the engine is shutting down and takes no new requests")
	ErrClosed      = errors.New("the engine is closed")
	ErrNoVision    = errors.New("this model takes no images")
)

// ErrCancelled ends a stream whose request was cancelled; the cause of its context is wrapped beside it.
var ErrCancelled = errors.New("the request was cancelled")

// ErrSlowConsumer ends a stream whose reader fell too far behind.
var ErrSlowConsumer = errors.New("the reader of the stream is too slow: its buffer is full")

// ContextError says that a request does not fit the model's context.
type ContextError struct {
	Prompt, MaxTokens, Limit int
}

// Error gives the three numbers.
func (e *ContextError) Error() string {
	if e.Prompt >= e.Limit {
		return fmt.Sprintf("the prompt has %d tokens, the context holds %d including at least one new token: shorten the prompt", e.Prompt, e.Limit)
	}
	return fmt.Sprintf("the prompt has %d tokens and max_tokens is %d, together %d; the context holds %d: shorten the prompt or lower max_tokens to %d", e.Prompt, e.MaxTokens, e.Prompt+e.MaxTokens, e.Limit, e.Limit-e.Prompt)
}

// TokenError is an id outside the vocabulary.
type TokenError struct {
	Field string // "prompt", "force"
	Index int
	ID    int32
	Vocab int
}

// Error names the place, the id and the range.
func (e *TokenError) Error() string {
	return fmt.Sprintf("%s[%d] is token %d: must be in [0, %d)", e.Field, e.Index, e.ID, e.Vocab)
}

// ImageError says that images and prompt do not fit together.
type ImageError struct {
	Index int // image, -1 = none
	Msg   string
}

// Error names the image.
func (e *ImageError) Error() string {
	if e.Index < 0 {
		return e.Msg
	}
	return fmt.Sprintf("image %d: %s", e.Index, e.Msg)
}

// request is an accepted Request. The loop owns it.
type request struct {
	id     string
	ids    []int32 // prompt, then drawn or forced tokens
	prompt int
	forced bool
	params sample.Params
	stop   sample.Stop
	topN   int
	images []ImageRows
	max    int
	stream *Stream
	handle sched.Handle
	reply  chan error // capacity 1
	constraint
}

// check validates r against the model and returns it in its internal form.
func (e *Engine) check(r Request) (*request, error) {
	g := &e.geo
	if len(r.Prompt) == 0 {
		return nil, ErrEmptyPrompt
	}
	more, forced := r.MaxTokens, len(r.Force) > 0
	if forced {
		if r.MaxTokens != 0 && r.MaxTokens != len(r.Force) {
			return nil, &sample.ParamError{Name: "max_tokens", Value: r.MaxTokens, Want: fmt.Sprintf("0 or the %d forced tokens", len(r.Force))}
		}
		more = len(r.Force)
	} else if r.MaxTokens < 1 || r.MaxTokens > math.MaxInt32 {
		return nil, &sample.ParamError{Name: "max_tokens", Value: r.MaxTokens, Want: "at least 1"}
	}
	if len(r.Prompt) >= g.MaxContext || more > g.MaxContext-len(r.Prompt) {
		return nil, &ContextError{Prompt: len(r.Prompt), MaxTokens: more, Limit: g.MaxContext}
	}
	if r.TopN < 0 || r.TopN > e.topN {
		return nil, &sample.ParamError{Name: "top_logprobs", Value: r.TopN, Want: fmt.Sprintf("in [0, %d]", e.topN)}
	}
	for _, f := range []struct {
		name string
		ids  []int32
	}{{"prompt", r.Prompt}, {"force", r.Force}} {
		for i, id := range f.ids {
			if id < 0 || int(id) >= g.Vocab {
				return nil, &TokenError{Field: f.name, Index: i, ID: id, Vocab: g.Vocab}
			}
		}
	}
	c, err := e.checkConstraint(&r)
	if err != nil {
		return nil, err
	}
	if err := e.checkImages(r); err != nil {
		return nil, err
	}
	stop, err := sample.NewStop(g.EOS, r.StopIDs, r.IgnoreEOS, g.Vocab)
	if err != nil {
		return nil, err
	}
	q := &request{
		id: r.ID, prompt: len(r.Prompt), forced: forced, params: r.Sampling, stop: stop, topN: r.TopN, images: r.Images, max: more,
		handle: -1, reply: make(chan error, 1), constraint: c,
	}
	q.params.Bias, q.params.Blocked = nil, nil // the adjuster has them
	q.ids = make([]int32, len(r.Prompt), len(r.Prompt)+min(more, 1024))
	copy(q.ids, r.Prompt)
	if forced {
		q.ids = append(q.ids, r.Force...)
	} else {
		if err := r.Sampling.Validate(); err != nil {
			return nil, err
		}
		if !q.params.Seeded && q.params.Seed == 0 {
			q.params.Seed = e.random()
		}
	}
	q.stream = &Stream{e: e, req: q, limit: e.streamBuffer, wake: make(chan struct{}, 1), seed: q.params.Seed, usage: Usage{Prompt: len(r.Prompt)}}
	return q, nil
}

func (e *Engine) checkImages(r Request) error {
	g := &e.geo
	if len(r.Images) > 0 && (e.hidden == 0 || g.ImageToken <= 0) {
		return ErrNoVision
	}
	at := 0 // first position not looked at
	covered := func(end int) error {
		for ; at < end; at++ {
			if g.ImageToken > 0 && r.Prompt[at] == g.ImageToken {
				return &ImageError{Index: -1, Msg: fmt.Sprintf("prompt position %d carries the image token %d and no image covers it", at, g.ImageToken)}
			}
		}
		return nil
	}
	for i, img := range r.Images {
		bad := func(format string, a ...any) error { return &ImageError{Index: i, Msg: fmt.Sprintf(format, a...)} }
		n := len(img.Rows) / e.hidden
		if n == 0 || len(img.Rows)%e.hidden != 0 {
			return bad("%d values: must be rows of %d", len(img.Rows), e.hidden)
		}
		if img.Start < at || n > len(r.Prompt)-img.Start {
			return bad("rows for positions %d..%d: must follow position %d and end in a prompt of %d tokens", img.Start, img.Start+n-1, at, len(r.Prompt))
		}
		if err := covered(img.Start); err != nil {
			return err
		}
		for ; at < img.Start+n; at++ {
			if r.Prompt[at] != g.ImageToken {
				return bad("prompt position %d carries token %d, must be the image token %d", at, r.Prompt[at], g.ImageToken)
			}
		}
	}
	return covered(len(r.Prompt))
}
