package recipecli

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// parseCase is one line of `recipe parse`.
type parseCase struct {
	ID      json.RawMessage   `json:"id"`
	Profile string            `json:"profile"`
	Options parseOptions      `json:"options"`
	Chunks  []json.RawMessage `json:"chunks"`
	Text    *string           `json:"text"`
	Split   json.RawMessage   `json:"split"`
	Finish  *string           `json:"finish"`
}

// finishGiven tells a missing finish, which is stop, from null, which is a stream that just ends.
type finishGiven struct {
	Finish json.RawMessage `json:"finish"`
}

type parseOptions struct {
	Stage             string   `json:"stage"`
	ParseToolCalls    *bool    `json:"parse_tool_calls"`
	StartsInToolCalls bool     `json:"starts_in_tool_calls"`
	ParseJSONOutput   bool     `json:"parse_json_output"`
	StopSequences     []string `json:"stop_sequences"`
	NoParallelTools   bool     `json:"no_parallel_tools"`
	Tools             []struct {
		Name       string          `json:"name"`
		Parameters json.RawMessage `json:"parameters"`
		Custom     bool            `json:"custom"`
	} `json:"tools"`
}

func parseCommand(s *session) *cobra.Command {
	return lineCommand(s, "parse", "Model output to reasoning, text and tool calls",
		"Reads {\"id\", \"profile\", \"options\", \"chunks\" or \"text\", \"finish\"} and writes {\"id\", \"events\", \"final\"}. A chunk is a text that counts as one token,\n"+
			"a list of token ids, {\"text\", \"n\"} or {\"tokens\", \"logprobs\"}. An event is [step, kind, ...]: step is the chunk that released it. options\n"+
			"are stage (off, reasoning_start, reasoning_continuation, content_continuation), parse_tool_calls, starts_in_tool_calls,\n"+
			"parse_json_output, stop_sequences and tools. finish is stop, length, content_filter or null. text with split (\"every2\", \"chars\" or a\n"+
			"number of characters) is parsed at those cuts and answered by the final result only.",
		func(line []byte) (any, error) {
			var c parseCase
			if err := readLine(line, &c); err != nil {
				return nil, err
			}
			var given finishGiven
			if err := json.Unmarshal(line, &given); err == nil && given.Finish == nil {
				stop := "stop"
				c.Finish = &stop
			}
			out, fault, err := s.parse(&c)
			if err != nil {
				return nil, err
			}
			if fault != nil {
				return answerError{ID: id(c.ID), Error: *fault}, nil
			}
			return out, nil
		})
}

// chunk is one push of model output.
type chunk struct {
	text     string
	n        int
	isText   bool
	ids      []int32
	logprobs []parse.Logprob
}

func readChunk(raw json.RawMessage) (c chunk, err error) {
	ids := func(raw json.RawMessage) error {
		var wide []int64
		if err := json.Unmarshal(raw, &wide); err != nil {
			return fmt.Errorf("token ids: %w", err)
		}
		for _, id := range wide {
			if id < 0 || id > 1<<31-1 {
				id = -1 // no token
			}
			c.ids = append(c.ids, int32(id))
		}
		return nil
	}
	switch raw[0] {
	case '"':
		c.isText, c.n = true, 1
		return c, json.Unmarshal(raw, &c.text)
	case '[':
		return c, ids(raw)
	case '{':
	default:
		return c, errors.New("want a text, a list of token ids, {text, n} or {tokens, logprobs}")
	}
	var o struct {
		Text     *string              `json:"text"`
		N        int                  `json:"n"`
		Tokens   json.RawMessage      `json:"tokens"`
		Logprobs [][2]json.RawMessage `json:"logprobs"`
	}
	if err := json.Unmarshal(raw, &o); err != nil {
		return c, err
	}
	if o.Text != nil {
		c.isText, c.text, c.n = true, *o.Text, o.N
		return c, nil
	}
	if o.Tokens == nil {
		return c, errors.New("want text or tokens")
	}
	for _, pair := range o.Logprobs {
		var lp parse.Logprob
		var top [][2]float64
		if err := json.Unmarshal(pair[0], &lp.Logprob); err != nil {
			return c, fmt.Errorf("logprobs: %w", err)
		}
		if len(pair[1]) > 0 {
			if err := json.Unmarshal(pair[1], &top); err != nil {
				return c, fmt.Errorf("logprobs: %w", err)
			}
		}
		for _, a := range top {
			lp.Top = append(lp.Top, parse.TopLogprob{ID: int32(a[0]), Logprob: a[1]})
		}
		c.logprobs = append(c.logprobs, lp)
	}
	return c, ids(o.Tokens)
}

func readChunks(raw []json.RawMessage) ([]chunk, error) {
	out := make([]chunk, len(raw))
	for i, r := range raw {
		var err error
		if out[i], err = readChunk(r); err != nil {
			return nil, fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	return out, nil
}

func causeOf(finish *string) (parse.Cause, error) {
	if finish == nil {
		return parse.CauseEnd, nil
	}
	switch *finish {
	case "stop":
		return parse.CauseStop, nil
	case "length":
		return parse.CauseLength, nil
	case "content_filter":
		return parse.CauseContentFilter, nil
	}
	return 0, fmt.Errorf("finish %q: want stop, length, content_filter or null", *finish)
}

// drive pushes chunks until the parser is done, with every step's events. consumed counts the chunks taken.
func drive(p *parse.Parser, chunks []chunk, cause parse.Cause, take func(step int, events []parse.Event)) (consumed int, err error) {
	for i, c := range chunks {
		if p.Done() {
			return consumed, nil
		}
		var events []parse.Event
		if c.isText {
			events = p.Text(nil, c.text, c.n)
		} else if events, err = p.Tokens(nil, c.ids, c.logprobs); err != nil {
			return consumed, err
		}
		take(i, events)
		consumed = i + 1
	}
	if !p.Done() {
		take(len(chunks), p.Finish(nil, cause))
	}
	return consumed, nil
}

// parseFinal is the whole message. The counts are left out where there is more than one run.
type parseFinal struct {
	Reasoning        *string     `json:"reasoning"`
	Content          string      `json:"content"`
	ToolCalls        []finalCall `json:"tool_calls"`
	FinishReason     string      `json:"finish_reason"`
	CompletionTokens *int        `json:"completion_tokens,omitempty"`
	counted          bool
	reasoningTokens  *int
}

type finalCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// MarshalJSON adds reasoning_tokens, null without thinking, where tokens were counted.
func (f parseFinal) MarshalJSON() ([]byte, error) {
	type plain parseFinal
	out, err := marshal(plain(f))
	if err != nil || !f.counted {
		return out, err
	}
	n, err := marshal(f.reasoningTokens)
	if err != nil {
		return nil, err
	}
	return append(append(append(out[:len(out)-1], `,"reasoning_tokens":`...), n...), '}'), nil
}

// parseAnswer is what `recipe parse` writes.
type parseAnswer struct {
	ID       json.RawMessage `json:"id"`
	Events   [][]any         `json:"events,omitempty"`
	Final    *parseFinal     `json:"final,omitempty"`
	Finals   []splitFinals   `json:"finals,omitempty"`
	Tried    int             `json:"splits_tried,omitempty"`
	Consumed *int            `json:"consumed,omitempty"`
	Warnings []parse.Warning `json:"warnings,omitempty"`
	Error    string          `json:"error,omitempty"`
}

type splitFinals struct {
	SplitAt []int      `json:"split_at"`
	Final   parseFinal `json:"final"`
}

func (s *session) parse(c *parseCase) (any, *lineError, error) {
	if c.Profile == "" {
		c.Profile = string(encoding.V41Recipe)
	}
	profile, err := encoding.ParseProfile(c.Profile)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	_, tok, err := s.encoder(profile)
	if err != nil {
		return nil, nil, err
	}
	opts := parse.Options{Compat: s.compat, Vocabulary: tok, FilterJSON: true}
	opts.ToolCalls = c.Options.ParseToolCalls == nil || *c.Options.ParseToolCalls
	opts.StartsInCalls, opts.JSONOutput = c.Options.StartsInToolCalls, c.Options.ParseJSONOutput
	opts.StopStrings, opts.NoParallelTools = c.Options.StopSequences, c.Options.NoParallelTools
	for _, t := range c.Options.Tools {
		opts.Tools = append(opts.Tools, parse.Tool{Name: t.Name, Parameters: t.Parameters, Custom: t.Custom})
	}
	if c.Options.Stage == "" {
		c.Options.Stage = conversation.StageReasoning.String()
	}
	found := false
	for st := conversation.StageOff; st <= conversation.StageContentContinuation; st++ {
		if st.String() == c.Options.Stage {
			opts.Stage, found = st, true
		}
	}
	if !found {
		return nil, badRequest("decode", "stage %q: want off, reasoning_start, reasoning_continuation or content_continuation", c.Options.Stage), nil
	}
	cause, err := causeOf(c.Finish)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	if c.Text != nil && len(c.Split) > 0 {
		return s.parseSplits(c, opts, cause)
	}
	chunks, err := readChunks(c.Chunks)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	if c.Text != nil {
		chunks = append(chunks, chunk{text: *c.Text, n: 1, isText: true})
	}
	return s.parseOnce(c, opts, chunks, cause)
}

func (s *session) parseOnce(c *parseCase, opts parse.Options, chunks []chunk, cause parse.Cause) (*parseAnswer, *lineError, error) {
	p, err := parse.New(opts)
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	out := &parseAnswer{ID: id(c.ID), Events: [][]any{}}
	final := &parseFinal{ToolCalls: []finalCall{}}
	consumed, err := drive(p, chunks, cause, func(step int, events []parse.Event) {
		for i := range events {
			final.take(&events[i])
			out.Events = append(out.Events, rows(step, &events[i], s.compat)...)
			out.Warnings = append(out.Warnings, events[i].Call.Warnings...)
		}
	})
	if err != nil {
		out.Error = err.Error()
	} else {
		u := p.Usage()
		final.counted, final.CompletionTokens = true, &u.Completion
		if opts.Stage != conversation.StageOff {
			final.reasoningTokens = &u.Reasoning
		}
		out.Final = final
	}
	if consumed != len(chunks) {
		out.Consumed = &consumed
	}
	return out, nil, nil
}

// rows are the events of the golden files for one event; some events have none.
func rows(step int, ev *parse.Event, compat bool) [][]any {
	var out [][]any
	switch ev.Kind {
	case parse.Reasoning, parse.Text:
		out = append(out, []any{step, ev.Kind.String(), ev.Text})
	case parse.ToolStart:
		out = append(out, []any{step, "tool", ev.Call.Index, ev.Call.Name})
	case parse.ToolArgs:
		out = append(out, []any{step, "args", ev.Call.Index, ev.Text})
	case parse.Finish:
		out = append(out, []any{step, "finish", finishWord(ev.Cause)})
	}
	if len(ev.Logprobs) > 0 {
		channel := "content"
		if ev.Kind == parse.Reasoning {
			channel = "reasoning_content"
		}
		var w protocol.JSON
		w.Open().Key(channel).Logprobs(ev.Logprobs, compat)
		w.Close()
		out = append(out, []any{step, "logprobs", json.RawMessage(w.B)})
	}
	return out
}

func finishWord(c parse.Cause) string {
	switch c {
	case parse.CauseLength, parse.CauseContextFull:
		return "length"
	case parse.CauseContentFilter:
		return "content_filter"
	case parse.CauseToolCalls:
		return "tool_calls"
	}
	return "stop"
}

func (f *parseFinal) take(ev *parse.Event) {
	switch ev.Kind {
	case parse.Reasoning:
		if f.Reasoning == nil {
			f.Reasoning = new(string)
		}
		*f.Reasoning += ev.Text
	case parse.Text:
		f.Content += ev.Text
	case parse.ToolStart:
		f.ToolCalls = append(f.ToolCalls, finalCall{Name: ev.Call.Name})
	case parse.ToolArgs:
		f.ToolCalls[ev.Call.Index].Arguments += ev.Text
	case parse.Finish:
		f.FinishReason = finishWord(ev.Cause)
	}
}

// parseSplits parses one text at many cuts, counted in characters, and gives the result of each group of cuts.
func (s *session) parseSplits(c *parseCase, opts parse.Options, cause parse.Cause) (any, *lineError, error) {
	runes := []rune(*c.Text)
	var plans [][]chunk
	piece := func(r []rune) chunk { return chunk{text: string(r), n: 1, isText: true} }
	every := func(k int) {
		var plan []chunk
		for i := 0; i < len(runes); i += k {
			plan = append(plan, piece(runes[i:min(i+k, len(runes))]))
		}
		plans = [][]chunk{plan}
	}
	var k int
	switch string(c.Split) {
	case `"every2"`:
		for i := 1; i < len(runes); i++ {
			plans = append(plans, []chunk{piece(runes[:i]), piece(runes[i:])})
		}
	case `"chars"`:
		every(1)
	default:
		if err := json.Unmarshal(c.Split, &k); err != nil || k < 1 {
			return nil, badRequest("decode", "split: want \"every2\", \"chars\" or a number of characters"), nil
		}
		every(k)
	}
	out := &parseAnswer{ID: id(c.ID), Tried: len(plans)}
	groups := map[string]int{}
	for i, plan := range plans {
		one, fault, err := s.parseOnce(c, opts, plan, cause)
		if fault != nil || err != nil {
			return nil, fault, err
		}
		f := *one.Final
		f.counted, f.CompletionTokens = false, nil
		key, err := marshal(f)
		if err != nil {
			return nil, nil, err
		}
		at, ok := groups[string(key)]
		if !ok {
			at = len(out.Finals)
			groups[string(key)] = at
			out.Finals = append(out.Finals, splitFinals{Final: f})
		}
		out.Finals[at].SplitAt = append(out.Finals[at].SplitAt, i+1)
	}
	if len(out.Finals) == 1 {
		out.Final, out.Finals = &out.Finals[0].Final, nil
	}
	return out, nil, nil
}
