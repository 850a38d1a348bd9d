package runcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/app"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// session is one run with its model.
type session struct {
	*job
	app      *app.App
	out      io.Writer
	errs     io.Writer
	terminal bool // out is one
	thinking bool
	parsing  *conversation.Parsing // of a rendered prompt
}

func (s *session) start() []conversation.Message {
	if s.system == "" {
		return nil
	}
	return []conversation.Message{{Role: conversation.RoleSystem, Content: s.system}}
}

func (s *session) render(conv *conversation.Conversation) (*encoding.Prompt, error) {
	if s.app.Encoder == nil {
		return nil, usage("the checkpoint %s has no tokenizer.json, so text cannot be used; give token ids: --prompt-ids 1,2,3", s.model)
	}
	p, err := s.app.Encoder.Encode(conv, encoding.Options{})
	if err != nil {
		return nil, usage("render the prompt: %w", err)
	}
	return p, nil
}

// detokenizer turns ids into text, whole characters at a time; nil tokenizer = no text.
type detokenizer struct{ *token.Stream }

func (s *session) detokenizer() detokenizer {
	if s.app.Tokenizer == nil {
		return detokenizer{}
	}
	return detokenizer{token.NewStream(s.app.Tokenizer)}
}

func (d detokenizer) push(id int32) string {
	if d.Stream == nil {
		return ""
	}
	return d.Push(id)
}

func (d detokenizer) flush() string {
	if d.Stream == nil {
		return ""
	}
	return d.Flush()
}

func (d detokenizer) pending() bool { return d.Stream != nil && d.Pending() > 0 }

// tokenLine is a token of the JSON output.
type tokenLine struct {
	ID      int32    `json:"id"`
	Text    string   `json:"text"`
	LogProb float32  `json:"logprob"`
	Top     [][2]any `json:"top"`
}

func newLine(t sample.Token, text string) tokenLine {
	l := tokenLine{ID: t.ID, Text: text, LogProb: t.LogProb, Top: make([][2]any, 0, len(t.Top))}
	for _, c := range t.Top {
		l.Top = append(l.Top, [2]any{c.ID, c.LogProb})
	}
	return l
}

type usageLine struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// lastLine ends the JSON output.
type lastLine struct {
	Finish      engine.FinishReason `json:"finish_reason"`
	Usage       usageLine           `json:"usage"`
	Speculation speculationLine     `json:"speculation"`
	LogProb     *float64            `json:"logprob,omitempty"`    // of all forced ids together
	Perplexity  *float64            `json:"perplexity,omitempty"` // of the forced ids
}

type speculationLine struct {
	Steps    int `json:"steps"`
	Drafted  int `json:"drafted"`
	Verified int `json:"verified"`
	Accepted int `json:"accepted"`
}

func (s *session) last(st *engine.Stream) lastLine {
	u := st.Usage()
	// Without speculation each step gives one token.
	return lastLine{Finish: st.Finish(), Usage: usageLine{u.Prompt, u.Generated, u.Prompt + u.Generated}, Speculation: speculationLine{Steps: u.Generated}}
}

// encoder writes one JSON object a line.
func encoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}

// tokens runs a request and hands each token to take with the text that became safe at it. A token whose text is not complete waits for the next one, so
// that the text of all together is the whole answer.
func (s *session) tokens(ctx context.Context, r engine.Request, take func(ev engine.Event, text string) error) (*engine.Stream, error) {
	st, err := s.app.Engine.Submit(ctx, r)
	if err != nil {
		return nil, failed(err)
	}
	text := s.detokenizer()
	var held *engine.Event
	for {
		ev, err := st.Next(ctx)
		if err != nil {
			if held != nil {
				if e := take(*held, text.flush()); e != nil {
					return st, e
				}
			}
			if errors.Is(err, io.EOF) {
				return st, nil
			}
			return st, failed(err)
		}
		if held != nil {
			if err := take(*held, ""); err != nil {
				return st, err
			}
			held = nil
		}
		piece := text.push(ev.ID)
		if text.pending() && piece == "" {
			held = &ev
			continue
		}
		if err := take(ev, piece); err != nil {
			return st, err
		}
	}
}

func writeError(err error) error {
	return &ExitError{Code: 1, Err: fmt.Errorf("write the answer: %w", err)}
}

// once answers one prompt.
func (s *session) once(ctx context.Context, ids []int32) error {
	r, err := s.request(ids)
	if err != nil {
		return err
	}
	if s.json {
		enc := encoder(s.out)
		st, err := s.tokens(ctx, r, func(ev engine.Event, text string) error {
			if err := enc.Encode(newLine(ev.Token, text)); err != nil {
				return writeError(err)
			}
			return nil
		})
		if st != nil && st.Finish() != "" {
			if e := enc.Encode(s.last(st)); e != nil && err == nil {
				err = writeError(e)
			}
		}
		return err
	}
	if s.logprobs > 0 {
		_, err := s.tokens(ctx, r, func(ev engine.Event, text string) error { return s.scoreLine(ev.Token, text) })
		return err
	}
	p := &printer{session: s}
	if s.parsing != nil {
		_, _, err = p.answer(ctx, r, *s.parsing)
	} else {
		if s.app.Tokenizer == nil {
			// No text: the ids are the answer.
			first := true
			_, err = s.tokens(ctx, r, func(ev engine.Event, _ string) error {
				sep := ","
				if first {
					sep, first = "", false
				}
				return p.write(sep + strconv.Itoa(int(ev.ID)))
			})
		} else {
			_, err = s.tokens(ctx, r, func(_ engine.Event, text string) error { return p.write(text) })
		}
	}
	if e := p.newline(); e != nil && err == nil {
		err = e
	}
	return err
}

// printer writes an answer as it comes.
type printer struct {
	*session
	dim  bool
	any  bool
	tail byte
}

func (p *printer) write(text string) error {
	if text == "" {
		return nil
	}
	p.any, p.tail = true, text[len(text)-1]
	if _, err := io.WriteString(p.out, text); err != nil {
		return writeError(err)
	}
	return nil
}

func (p *printer) newline() error {
	if p.any && p.tail != '\n' || p.terminal && !p.any {
		return p.write("\n")
	}
	return nil
}

func (p *printer) shade(on bool) error {
	if p.dim == on || !p.terminal {
		return nil
	}
	p.dim = on
	if on {
		return p.write("\x1b[2m")
	}
	return p.write("\x1b[0m")
}

// answer runs a rendered prompt and prints its parts: thinking dim on a terminal and nowhere else, then the answer. It returns both.
func (p *printer) answer(ctx context.Context, r engine.Request, how conversation.Parsing) (thought, text string, err error) {
	// No tools are declared and a person reads along: markup is text.
	parser, err := parse.New(parse.Options{Parsing: how, Vocabulary: p.app.Tokenizer})
	if err != nil {
		return "", "", err
	}
	st, err := p.app.Engine.Submit(ctx, r)
	if err != nil {
		return "", "", failed(err)
	}
	var said, thinking strings.Builder
	show := func(events []parse.Event) error {
		for _, ev := range events {
			switch ev.Kind {
			case parse.Reasoning:
				thinking.WriteString(ev.Text)
				if !p.terminal {
					continue
				}
				if err := p.shade(true); err != nil {
					return err
				}
				if err := p.write(ev.Text); err != nil {
					return err
				}
			case parse.Text:
				if p.dim {
					if err := p.shade(false); err != nil {
						return err
					}
					if err := p.write("\n\n"); err != nil {
						return err
					}
				}
				said.WriteString(ev.Text)
				if err := p.write(ev.Text); err != nil {
					return err
				}
			}
		}
		return nil
	}
	var events []parse.Event
	for !parser.Done() {
		ev, err := st.Next(ctx)
		if err != nil {
			break
		}
		if events, err = parser.Tokens(events[:0], []int32{ev.ID}, nil); err != nil {
			return thinking.String(), said.String(), err
		}
		if err := show(events); err != nil {
			return thinking.String(), said.String(), err
		}
	}
	if parser.Done() {
		st.Cancel()
	}
	_, end := st.Next(context.Background()) // what is left is one of EOF and an error
	for end == nil {
		_, end = st.Next(context.Background())
	}
	cause := parse.CauseStop
	switch {
	case st.Finish() == engine.FinishLength:
		cause = parse.CauseLength
	case ctx.Err() != nil:
		cause = parse.CauseCancelled
	}
	err = show(parser.Finish(events[:0], cause))
	if e := p.shade(false); err == nil {
		err = e
	}
	if err == nil && !errors.Is(end, io.EOF) && !(parser.Done() && errors.Is(end, engine.ErrCancelled) && ctx.Err() == nil) {
		err = failed(end)
	}
	if err == nil && said.Len() == 0 && thinking.Len() > 0 && cause == parse.CauseLength {
		fmt.Fprintf(p.errs, "deepinfer: the %d tokens were used up by thinking; give more with --max-tokens, or --thinking off\n", r.MaxTokens)
	}
	return thinking.String(), said.String(), err
}

// scoreLine prints a token with its log-probability and the best candidates.
func (s *session) scoreLine(t sample.Token, text string) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%d\t%.6f\t%q", t.ID, t.LogProb, text)
	for _, c := range t.Top {
		fmt.Fprintf(&b, "\t%d:%.6f", c.ID, c.LogProb)
	}
	b.WriteByte('\n')
	if _, err := io.WriteString(s.out, b.String()); err != nil {
		return writeError(err)
	}
	return nil
}

// score prints how likely the forced continuation is.
func (s *session) score(ctx context.Context, ids []int32) error {
	enc := encoder(s.out)
	sum, n := 0.0, 0
	st, err := s.tokens(ctx, engine.Request{ID: "run", Prompt: ids, Force: s.force, TopN: s.logprobs}, func(ev engine.Event, text string) error {
		sum += float64(ev.LogProb)
		n++
		if !s.json {
			return s.scoreLine(ev.Token, text)
		}
		if err := enc.Encode(newLine(ev.Token, text)); err != nil {
			return writeError(err)
		}
		return nil
	})
	if err != nil || n == 0 {
		return err
	}
	perplexity := math.Exp(-sum / float64(n))
	if s.json {
		l := s.last(st)
		l.LogProb, l.Perplexity = &sum, &perplexity
		if math.IsInf(perplexity, 0) || math.IsNaN(perplexity) {
			l.Perplexity = nil // JSON has no infinity
		}
		if err := enc.Encode(l); err != nil {
			return writeError(err)
		}
		return nil
	}
	if _, err := fmt.Fprintf(s.out, "total\t%.6f\t%d tokens\tperplexity %.6g\n", sum, n, perplexity); err != nil {
		return writeError(err)
	}
	return nil
}
