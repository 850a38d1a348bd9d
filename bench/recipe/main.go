// Command recipe is the Go side of compare.py: it does and times what the script asks for.
//
// It reads one JSON object a line and answers each with one line. "tokenize", "encode", "parse" and "mask" prepare a piece of work, run it
// once and answer with what came out, for the script to check. "run" then repeats the work of that name and answers with the seconds one
// pass takes.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/release"
)

// width is the number of logits of the models: masks have this many bits.
const width = 129280

// order is a line of input.
type order struct {
	Op      string
	Name    string // of the prepared work
	Default bool   // "parse": the default grammar, not the compatible one
	Text    string
	Cases   []record
	Grammar struct{ Kind, Schema, Pattern string }
	IDs     []int32
	Seconds float64 // "run": repeat the pass for at least this long
	Passes  int     // "mask": walks over IDs
}

// record is a recorded request and, for "parse", the output to push.
type record struct {
	ID, API, Body string
	Options       protocol.Options
	Header        protocol.Header
	Signature     *string
	Ready         bool // the engine reports the start before the first chunk
	Chunks        []chunk
	Finish        string // "": the stream ends without a reason
}

// chunk is one push: text that counts as N tokens when IDs is nil.
type chunk struct {
	Text     string
	N        int
	IDs      []int32
	Logprobs []parse.Logprob
}

// encoder writes the response of one protocol.
type encoder interface {
	Start(dst []byte) []byte
	Events(dst []byte, choice int, events []parse.Event, usage parse.Usage) []byte
	Close(dst []byte) []byte
	Body() []byte
}

func main() {
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "bench/recipe:", err)
		os.Exit(1)
	}
}

func serve(r io.Reader, w io.Writer) error {
	in, out := json.NewDecoder(bufio.NewReaderSize(r, 1<<20)), json.NewEncoder(w)
	out.SetEscapeHTML(false)
	prepared := map[string]func() error{}
	for {
		var o order
		if err := in.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		var answer any
		var pass func() error
		var err error
		switch o.Op {
		case "tokenize":
			answer, pass, err = tokenize(o.Text)
		case "encode":
			answer, pass, err = encode(o.Cases)
		case "parse":
			answer, pass, err = parseStreams(o.Cases, !o.Default)
		case "mask":
			answer, err = mask(o)
		case "run":
			answer, err = measure(prepared[o.Name], o.Seconds)
		default:
			err = fmt.Errorf("op %q: want tokenize, encode, parse, mask or run", o.Op)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.Op, err)
		}
		if pass != nil {
			prepared[o.Name] = pass
		}
		if err := out.Encode(answer); err != nil {
			return err
		}
	}
}

// measure gives the mean seconds of a pass.
func measure(pass func() error, least float64) (any, error) {
	if pass == nil {
		return nil, errors.New("nothing was prepared")
	}
	n, start := 0, time.Now()
	for {
		if err := pass(); err != nil {
			return nil, err
		}
		n++
		if t := time.Since(start).Seconds(); t >= least {
			return map[string]float64{"seconds": t / float64(n)}, nil
		}
	}
}

func tokenize(text string) (any, func() error, error) {
	tok, err := release.Load(release.V4)
	if err != nil {
		return nil, nil, err
	}
	pass := func() error {
		tok.Encode(text)
		return nil
	}
	return map[string]any{"ids": tok.Encode(text)}, pass, nil
}

// family loads the tokenizer that the reference adapter uses for a family.
func family(v4 bool) (*token.Tokenizer, error) {
	if v4 {
		return release.Load(release.V4)
	}
	return release.Load(release.V41Recipe)
}

// decode reads a request of any protocol and gives a maker of the encoder of its response.
func decode(c *record) (*protocol.Request, func(protocol.Header) encoder, error) {
	body, opts := []byte(c.Body), c.Options
	switch c.API {
	case "chat":
		r, err := chat.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, func(h protocol.Header) encoder { return chat.NewStream(r, h) }, nil
	case "responses":
		r, err := responses.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, func(h protocol.Header) encoder { return responses.NewStream(r, h) }, nil
	case "messages":
		r, err := messages.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, func(h protocol.Header) encoder {
			s := messages.NewStream(r, h)
			if c.Signature != nil {
				s.SetSignature(*c.Signature)
			}
			return s
		}, nil
	}
	return nil, nil, fmt.Errorf("%s: api %q: want chat, responses or messages", c.ID, c.API)
}

// encode is request bodies to token ids.
func encode(cases []record) (any, func() error, error) {
	prompts := make([]*encoding.Prompt, len(cases))
	pass := func() error {
		for i := range cases {
			r, _, err := decode(&cases[i])
			if err != nil {
				return fmt.Errorf("%s: %w", cases[i].ID, err)
			}
			tok, err := family(r.Target.V4)
			if err != nil {
				return err
			}
			profile := encoding.V41Recipe
			if r.Target.V4 {
				profile = encoding.V4Recipe
			}
			if prompts[i], err = encoding.Encode(&r.Conversation, tok, encoding.Options{Profile: profile, Compat: true}); err != nil {
				return fmt.Errorf("%s: %w", cases[i].ID, err)
			}
		}
		return nil
	}
	if err := pass(); err != nil {
		return nil, nil, err
	}
	texts, ids := make([]string, len(cases)), make([][]int32, len(cases))
	for i, p := range prompts {
		texts[i], ids[i] = p.Text, p.Tokens
	}
	return map[string]any{"prompts": texts, "ids": ids}, pass, nil
}

// stream is a recorded output, ready to be pushed.
type stream struct {
	parsing parse.Options
	open    func(protocol.Header) encoder
	header  protocol.Header
	chunks  []chunk
	ready   bool
	cause   parse.Cause
}

// run writes the event stream to buf, which is overwritten for each step as a server does after sending, and gives the encoder.
func (s *stream) run(buf []byte, evs []parse.Event) (encoder, int, error) {
	p, err := parse.New(s.parsing)
	if err != nil {
		return nil, 0, err
	}
	enc, written := s.open(s.header), 0
	if s.ready {
		written += len(enc.Start(buf[:0]))
	}
	for i := range s.chunks {
		if p.Done() {
			break
		}
		k := &s.chunks[i]
		if evs = evs[:0]; k.IDs == nil {
			evs = p.Text(evs, k.Text, k.N)
		} else if evs, err = p.Tokens(evs, k.IDs, k.Logprobs); err != nil {
			return nil, 0, err
		}
		if i == 0 && !s.ready {
			written += len(enc.Start(buf[:0]))
		}
		written += len(enc.Events(buf[:0], 0, evs, p.Usage()))
	}
	if !p.Done() {
		written += len(enc.Events(buf[:0], 0, p.Finish(evs[:0], s.cause), p.Usage()))
	}
	return enc, written + len(enc.Close(buf[:0])), nil
}

// parseStreams is model output to the event stream of a protocol.
func parseStreams(cases []record, compat bool) (any, func() error, error) {
	streams, size := make([]stream, len(cases)), 0
	for i := range cases {
		c, s := &cases[i], &streams[i]
		c.Options.Compat = compat
		r, open, err := decode(c)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.ID, err)
		}
		tok, err := family(r.Target.V4)
		if err != nil {
			return nil, nil, err
		}
		s.open, s.ready, s.chunks, s.header = open, c.Ready, c.Chunks, c.Header
		s.header.CallID = func(n int) string { return fmt.Sprintf("call_%02d_R", n) } // as the recording names them
		s.parsing = parse.Options{Parsing: r.Parsing(), Compat: compat, Tools: parse.ToolsOf(&r.Conversation), Vocabulary: tok}
		causes := map[string]parse.Cause{"": parse.CauseEnd, "stop": parse.CauseStop, "length": parse.CauseLength, "content_filter": parse.CauseContentFilter}
		if s.cause = causes[c.Finish]; s.cause == 0 {
			return nil, nil, fmt.Errorf("%s: finish %q: want stop, length, content_filter or nothing", c.ID, c.Finish)
		}
		for _, k := range c.Chunks {
			size += len(k.Text)
			for _, id := range k.IDs {
				size += len(tok.Bytes(id))
			}
		}
	}
	buf, evs := make([]byte, 0, 1<<20), make([]parse.Event, 0, 64)
	bodies, written := make([]json.RawMessage, len(cases)), 0
	for i := range streams {
		enc, n, err := streams[i].run(buf, evs)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", cases[i].ID, err)
		}
		bodies[i], written = enc.Body(), written+n
	}
	pass := func() error {
		for i := range streams {
			if _, _, err := streams[i].run(buf, evs); err != nil {
				return err
			}
		}
		return nil
	}
	return map[string]any{"bodies": bodies, "bytes": size, "written": written}, pass, nil
}

// mask walks a text under a grammar: every mask is timed alone. The vocabulary is fresh, so the compile time is that of a first request.
func mask(o order) (any, error) {
	kinds := map[string]grammar.Kind{"schema": grammar.KindJSONSchema, "object": grammar.KindJSONObject, "regex": grammar.KindRegex}
	spec := grammar.Spec{Kind: kinds[o.Grammar.Kind], Schema: []byte(o.Grammar.Schema), Pattern: o.Grammar.Pattern}
	if spec.Kind == 0 || o.Passes < 1 || len(o.IDs) == 0 {
		return nil, fmt.Errorf("kind %q, %d passes, %d ids: want schema, object or regex, and at least one of the others", o.Grammar.Kind, o.Passes, len(o.IDs))
	}
	tok, err := release.Load(release.V4)
	if err != nil {
		return nil, err
	}
	v, err := grammar.NewVocabulary(tok, grammar.VocabularyOptions{Width: width})
	if err != nil {
		return nil, err
	}
	start := time.Now()
	g, err := grammar.Compile(context.Background(), spec, v)
	if err != nil {
		return nil, err
	}
	compile := time.Since(start)
	bits, times := make([]uint32, v.Words()), make([]float64, 0, o.Passes*len(o.IDs))
	allowed := make([]int, len(o.IDs))
	for range o.Passes {
		m := g.Matcher()
		for i, id := range o.IDs {
			start := time.Now()
			allowed[i] = m.Mask(bits)
			times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
			if bits[id>>5]>>(id&31)&1 == 0 {
				return nil, fmt.Errorf("the mask forbids token %d, id %d", i, id)
			}
			if err := m.Accept(id); err != nil {
				return nil, fmt.Errorf("token %d: %w", i, err)
			}
		}
		if !m.CanEnd() {
			return nil, errors.New("the text is not a whole answer")
		}
	}
	slices.Sort(times)
	at := func(q float64) float64 { return times[int(q*float64(len(times)-1))] }
	return map[string]any{"compile_ms": compile.Seconds() * 1e3, "p50_us": at(0.5), "p99_us": at(0.99), "max_us": at(1), "allowed": allowed}, nil
}
