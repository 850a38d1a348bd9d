package parse

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

// goldenCase is a line of outputs.jsonl: what deepseek-recipe 0.2.0 made of a model output. The format is that of the repository's
// recipe goldens: options as in Options, a chunk is text of one token, a list of ids, {text, n} or {tokens, logprobs}.
type goldenCase struct {
	ID      string
	Profile string
	Options struct {
		Stage             string
		ParseToolCalls    *bool    `json:"parse_tool_calls"`
		ParseJSONOutput   bool     `json:"parse_json_output"`
		StartsInToolCalls bool     `json:"starts_in_tool_calls"`
		StopSequences     []string `json:"stop_sequences"`
	}
	Chunks []json.RawMessage
	Text   string
	Split  any
	Finish *string
	Events [][]any
	Final  *goldenFinal
	Finals []struct {
		SplitAt []int `json:"split_at"`
		Final   goldenFinal
	}
	Consumed *int
	Error    string
}

type goldenFinal struct {
	Reasoning *string `json:"reasoning"`
	Content   string  `json:"content"`
	ToolCalls []struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"tool_calls"`
	FinishReason     string `json:"finish_reason"`
	CompletionTokens int    `json:"completion_tokens"`
	ReasoningTokens  *int   `json:"reasoning_tokens"`
}

func readGolden(t testing.TB) []goldenCase {
	t.Helper()
	data, err := os.ReadFile("testdata/outputs.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	for _, line := range strings.Split(string(data), "\n") {
		if line == "" {
			continue
		}
		var c goldenCase
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, c)
	}
	if len(cases) != 466 {
		t.Fatalf("%d cases, want 466", len(cases))
	}
	return cases
}

func (c *goldenCase) tokenizer(t testing.TB) *token.Tokenizer {
	if strings.HasPrefix(c.Profile, "v4.1") {
		return tokentest.Load(t, "v4.1-recipe")
	}
	return tokentest.Load(t, "v4")
}

func (c *goldenCase) options(t testing.TB) Options {
	t.Helper()
	o := Options{Compat: true, Vocabulary: c.tokenizer(t)}
	o.ToolCalls = c.Options.ParseToolCalls == nil || *c.Options.ParseToolCalls
	o.StartsInCalls = c.Options.StartsInToolCalls
	o.JSONOutput = c.Options.ParseJSONOutput
	o.StopStrings = c.Options.StopSequences
	for s := conversation.StageOff; s <= conversation.StageContentContinuation; s++ {
		if s.String() == c.Options.Stage {
			o.Stage = s
			return o
		}
	}
	t.Fatalf("%s: stage %q", c.ID, c.Options.Stage)
	return o
}

func (c *goldenCase) cause() Cause {
	if c.Finish == nil {
		return CauseEnd
	}
	return map[string]Cause{"stop": CauseStop, "length": CauseLength, "content_filter": CauseContentFilter}[*c.Finish]
}

// chunk is one push.
type chunk struct {
	text     string
	n        int
	ids      []int32
	logprobs []Logprob
	isText   bool
}

func parseChunk(t testing.TB, raw json.RawMessage) chunk {
	t.Helper()
	switch raw[0] {
	case '"':
		c := chunk{n: 1, isText: true}
		must(t, json.Unmarshal(raw, &c.text))
		return c
	case '[':
		return chunk{ids: parseIDs(t, raw)}
	}
	var o struct {
		Text     *string
		N        int
		Tokens   json.RawMessage
		Logprobs []json.RawMessage
	}
	must(t, json.Unmarshal(raw, &o))
	if o.Text != nil {
		return chunk{text: *o.Text, n: o.N, isText: true}
	}
	c := chunk{ids: parseIDs(t, o.Tokens)}
	for _, l := range o.Logprobs {
		var pair [2]json.RawMessage
		must(t, json.Unmarshal(l, &pair))
		var lp Logprob
		must(t, json.Unmarshal(pair[0], &lp.Logprob))
		var top [][2]float64
		must(t, json.Unmarshal(pair[1], &top))
		for _, a := range top {
			lp.Top = append(lp.Top, TopLogprob{ID: int32(a[0]), Logprob: a[1]})
		}
		c.logprobs = append(c.logprobs, lp)
	}
	return c
}

func parseIDs(t testing.TB, raw json.RawMessage) []int32 {
	var wide []int64
	must(t, json.Unmarshal(raw, &wide))
	ids := make([]int32, len(wide))
	for i, id := range wide {
		if id > 1<<31-1 {
			id = -1
		}
		ids[i] = int32(id)
	}
	return ids
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// row is an event with its step.
type row struct {
	Step  int
	Kind  string
	Index int
	Text  string
}

// outcome is everything a run gave.
type outcome struct {
	rows     []row
	logprobs [][2]int // step, number of entries
	final    goldenFinal
	consumed int
	err      error
	events   []Event
	steps    []int
}

func drive(t testing.TB, o Options, chunks []chunk, cause Cause) outcome {
	t.Helper()
	p, err := New(o)
	must(t, err)
	var out outcome
	take := func(step int, evs []Event) {
		for _, ev := range evs {
			out.events = append(out.events, ev)
			out.steps = append(out.steps, step)
			if ev.Logprobs != nil {
				out.logprobs = append(out.logprobs, [2]int{step, len(ev.Logprobs)})
			}
			r := row{Step: step, Kind: ev.Kind.String(), Text: ev.Text}
			switch ev.Kind {
			case Reasoning:
				if out.final.Reasoning == nil {
					out.final.Reasoning = new(string)
				}
				*out.final.Reasoning += ev.Text
			case Text:
				out.final.Content += ev.Text
			case ToolStart:
				r.Index, r.Text = ev.Call.Index, ev.Call.Name
				out.final.ToolCalls = append(out.final.ToolCalls, struct {
					Name      string `json:"name"`
					Arguments string `json:"arguments"`
				}{Name: ev.Call.Name})
			case ToolArgs:
				r.Index = ev.Call.Index
				out.final.ToolCalls[ev.Call.Index].Arguments += ev.Text
			case Finish:
				r.Text = map[Cause]string{CauseStop: "stop", CauseEnd: "stop", CauseStopString: "stop", CauseLength: "length",
					CauseContentFilter: "content_filter", CauseToolCalls: "tool_calls"}[ev.Cause]
				out.final.FinishReason = r.Text
			case ReasoningEnd, ToolEnd:
				continue
			}
			if n := len(out.rows); n > 0 && (r.Kind == "reasoning" || r.Kind == "content" || r.Kind == "args") {
				if last := &out.rows[n-1]; last.Step == r.Step && last.Kind == r.Kind && last.Index == r.Index {
					last.Text += r.Text
					continue
				}
			}
			out.rows = append(out.rows, r)
		}
	}
	for i, c := range chunks {
		if p.Done() {
			break
		}
		if c.isText {
			take(i, p.Text(nil, c.text, c.n))
		} else {
			evs, err := p.Tokens(nil, c.ids, c.logprobs)
			if err != nil {
				out.err = err
				return out
			}
			take(i, evs)
		}
		out.consumed = i + 1
	}
	take(len(chunks), p.Finish(nil, cause))
	u := p.Usage()
	out.final.CompletionTokens = u.Completion
	if o.Stage != conversation.StageOff {
		out.final.ReasoningTokens = &u.Reasoning
	}
	return out
}

func (c *goldenCase) wantRows() (rows []row, logprobs [][2]int) {
	for _, e := range c.Events {
		step, kind := int(e[0].(float64)), e[1].(string)
		r := row{Step: step, Kind: kind}
		switch kind {
		case "logprobs":
			n := 0
			for _, list := range e[2].(map[string]any) {
				n += len(list.([]any))
			}
			logprobs = append(logprobs, [2]int{step, n})
			continue
		case "tool", "args":
			r.Index, r.Text = int(e[2].(float64)), e[3].(string)
		default:
			r.Text = e[2].(string)
		}
		if n := len(rows); n > 0 && (kind == "reasoning" || kind == "content" || kind == "args") {
			if last := &rows[n-1]; last.Step == r.Step && last.Kind == kind && last.Index == r.Index {
				last.Text += r.Text
				continue
			}
		}
		rows = append(rows, r)
	}
	return rows, logprobs
}

func sameFinal(got goldenFinal, want goldenFinal, counts bool) string {
	if !counts {
		got.CompletionTokens, got.ReasoningTokens, want.CompletionTokens, want.ReasoningTokens = 0, nil, 0, nil
	}
	if len(got.ToolCalls)+len(want.ToolCalls) == 0 {
		got.ToolCalls, want.ToolCalls = nil, nil
	}
	if !reflect.DeepEqual(got, want) {
		a, _ := json.Marshal(got)
		b, _ := json.Marshal(want)
		return fmt.Sprintf("final\n got %s\nwant %s", a, b)
	}
	return ""
}

func TestCompatEqualsTheReferenceOnEveryOutput(t *testing.T) {
	for _, c := range readGolden(t) {
		t.Run(c.ID, func(t *testing.T) {
			o := c.options(t)
			if c.Split != nil {
				c.checkSplits(t, o)
				return
			}
			var chunks []chunk
			for _, raw := range c.Chunks {
				chunks = append(chunks, parseChunk(t, raw))
			}
			got := drive(t, o, chunks, c.cause())
			if c.Error != "" {
				if got.err == nil || got.err.Error() != c.Error {
					t.Fatalf("error %v, want %s", got.err, c.Error)
				}
				return
			}
			must(t, got.err)
			want, logprobs := c.wantRows()
			if !reflect.DeepEqual(got.rows, want) {
				t.Errorf("events\n got %+v\nwant %+v", got.rows, want)
			}
			if !reflect.DeepEqual(got.logprobs, logprobs) {
				t.Errorf("log-probabilities %v, want %v", got.logprobs, logprobs)
			}
			if diff := sameFinal(got.final, *c.Final, true); diff != "" {
				t.Error(diff)
			}
			if c.Consumed != nil && got.consumed != *c.Consumed {
				t.Errorf("consumed %d, want %d", got.consumed, *c.Consumed)
			}
		})
	}
}

func textChunks(parts ...string) []chunk {
	var out []chunk
	for _, s := range parts {
		out = append(out, chunk{text: s, n: 1, isText: true})
	}
	return out
}

// checkSplits runs a case that the reference ran at several cuts, counted in characters.
func (c *goldenCase) checkSplits(t *testing.T, o Options) {
	runes := []rune(c.Text)
	var plans [][]string
	switch k := c.Split.(type) {
	case string:
		if k == "chars" {
			var plan []string
			for _, r := range runes {
				plan = append(plan, string(r))
			}
			plans = [][]string{plan}
			break
		}
		for i := 1; i < len(runes); i++ {
			plans = append(plans, []string{string(runes[:i]), string(runes[i:])})
		}
	case float64:
		var plan []string
		for i := 0; i < len(runes); i += int(k) {
			plan = append(plan, string(runes[i:min(i+int(k), len(runes))]))
		}
		plans = [][]string{plan}
	}
	for i, plan := range plans {
		want := c.Final
		for _, f := range c.Finals {
			for _, at := range f.SplitAt {
				if at == i+1 {
					want = &f.Final
				}
			}
		}
		if diff := sameFinal(drive(t, o, textChunks(plan...), c.cause()).final, *want, false); diff != "" {
			t.Fatalf("plan %d: %s", i, diff)
		}
	}
}

// merged gives the events without steps, adjacent text joined.
func merged(events []Event) []Event {
	var out []Event
	for _, ev := range events {
		ev.Logprobs = nil
		if n := len(out); n > 0 && out[n-1].Kind == ev.Kind && out[n-1].Call.Index == ev.Call.Index &&
			(ev.Kind == Text || ev.Kind == Reasoning || ev.Kind == ToolArgs) {
			out[n-1].Text += ev.Text
			continue
		}
		out = append(out, ev)
	}
	return out
}

// wholeText gives the text of a case that has text chunks only.
func (c *goldenCase) wholeText(t *testing.T) (string, bool) {
	text := c.Text
	for _, raw := range c.Chunks {
		k := parseChunk(t, raw)
		if !k.isText {
			return "", false
		}
		text += k.text
	}
	return text, true
}

func TestEveryCutGivesTheSameEvents(t *testing.T) {
	for _, compat := range []bool{true, false} {
		for _, c := range readGolden(t) {
			text, ok := c.wholeText(t)
			if !ok || compat && c.Options.ParseJSONOutput { // the reference's fillers depend on the cut
				continue
			}
			o := c.options(t)
			o.Compat = compat
			o.FilterJSON = true
			if !compat {
				o.Tools = []Tool{{Name: "get_weather", Parameters: []byte(`{"type":"object","properties":{"location":{"type":"string"},"days":{"type":"integer"}}}`)},
					{Name: "f"}, {Name: "a"}, {Name: "b"}, {Name: "g"}}
			}
			want := merged(drive(t, o, textChunks(text), c.cause()).events)
			check := func(plan []string) {
				t.Helper()
				if got := merged(drive(t, o, textChunks(plan...), c.cause()).events); !reflect.DeepEqual(got, want) {
					t.Fatalf("%s compat=%v cut as %q\n got %+v\nwant %+v", c.ID, compat, plan, got, want)
				}
			}
			if len(text) < 2000 {
				for i := 1; i < len(text); i++ { // bytes: characters are cut too
					check([]string{text[:i], text[i:]})
				}
			}
			check(strings.Split(text, ""))
			check(pieces(text, 1))
			rng := rand.New(rand.NewPCG(7, uint64(len(text))))
			for n := 0; n < 5; n++ {
				var plan []string
				for rest := text; rest != ""; {
					k := min(1+rng.IntN(12), len(rest))
					plan, rest = append(plan, rest[:k]), rest[k:]
				}
				check(plan)
			}
		}
	}
}

func pieces(s string, k int) []string {
	var out []string
	for i := 0; i < len(s); i += k {
		out = append(out, s[i:min(i+k, len(s))])
	}
	return out
}

// TestEveryCutOfTokensGivesTheSameEvents does the same for ids, with the hardened grammar.
func TestEveryCutOfTokensGivesTheSameEvents(t *testing.T) {
	for _, c := range readGolden(t) {
		text, ok := c.wholeText(t)
		if !ok || len(text) > 2000 {
			continue
		}
		o := c.options(t)
		o.Compat = false
		ids := c.tokenizer(t).EncodeSpecial(text)
		want := drive(t, o, []chunk{{ids: ids}}, c.cause())
		one := make([]chunk, len(ids))
		for i := range ids {
			one[i] = chunk{ids: ids[i : i+1]}
		}
		got := drive(t, o, one, c.cause())
		if !reflect.DeepEqual(merged(got.events), merged(want.events)) {
			t.Fatalf("%s\n got %+v\nwant %+v", c.ID, merged(got.events), merged(want.events))
		}
		if got.final.CompletionTokens != want.final.CompletionTokens || !reflect.DeepEqual(got.final.ReasoningTokens, want.final.ReasoningTokens) {
			t.Fatalf("%s: usage %d, want %d", c.ID, got.final.CompletionTokens, want.final.CompletionTokens)
		}
	}
}
