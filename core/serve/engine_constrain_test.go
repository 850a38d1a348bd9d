package serve

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
)

var _ engine.Matcher = (*grammar.Matcher)(nil)

// generate runs one request to its end.
func (b *bench) generate(t testing.TB, r engine.Request) (ev []engine.Event, finish engine.FinishReason, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	s, err := b.engine.Submit(ctx, r)
	if err != nil {
		return nil, "", err
	}
	for {
		e, err := s.Next(ctx)
		if errors.Is(err, io.EOF) {
			return ev, s.Finish(), nil
		}
		if err != nil {
			return ev, s.Finish(), err
		}
		ev = append(ev, e)
	}
}

// text is what was generated, without end ids.
func (b *bench) text(ev []engine.Event) string {
	var ids []int32
	for _, e := range ev {
		if !e.Stop {
			ids = append(ids, e.ID)
		}
	}
	return b.model.Tokenizer.Decode(ids)
}

func idsOf(ev []engine.Event) (ids []int32) {
	for _, e := range ev {
		ids = append(ids, e.ID)
	}
	return ids
}

var vocabulary struct {
	sync.Once
	*grammar.Vocabulary
	err error
}

// matcher compiles a grammar for the demo model.
func (b *bench) matcher(t testing.TB, spec grammar.Spec) *grammar.Matcher {
	t.Helper()
	vocabulary.Do(func() {
		vocabulary.Vocabulary, vocabulary.err = grammar.NewVocabulary(b.model.Tokenizer, grammar.VocabularyOptions{Width: b.model.Model.Config.VocabSize})
	})
	if vocabulary.err != nil {
		t.Fatal(vocabulary.err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	g, err := grammar.Compile(ctx, spec, vocabulary.Vocabulary)
	if err != nil {
		t.Fatal(err)
	}
	return g.Matcher()
}

// TestGrammarsRestrictTheModel runs real grammars on the demo model, all at once, beside a free request.
func TestGrammarsRestrictTheModel(t *testing.T) {
	b := demo(t)
	tok := b.model.Tokenizer
	free := engine.Request{Prompt: tok.Encode("What colour is the sky?"), MaxTokens: 24, Sampling: sample.Greedy(), TopN: 3}
	alone, _, err := b.generate(t, free)
	if err != nil {
		t.Fatal(err)
	}
	choices := []string{"vermilion", "ultramarine blue", "ochre"}
	var group sync.WaitGroup
	run := func(f func()) { group.Go(f) }
	run(func() {
		if ev, _, err := b.generate(t, free); err != nil || !slices.Equal(idsOf(ev), idsOf(alone)) {
			t.Errorf("beside constrained requests: %v (%v), alone %v", idsOf(ev), err, idsOf(alone))
		}
	})
	for seed := range uint64(4) {
		m := b.matcher(t, grammar.Spec{Kind: grammar.KindChoice, Choices: choices})
		run(func() {
			q := free
			q.Matcher = m
			if seed > 0 {
				q.Sampling = sample.Params{Temperature: 1.5, TopP: 0.95, Seed: seed}
			}
			ev, finish, err := b.generate(t, q)
			if got := b.text(ev); err != nil || finish != engine.FinishStop || !slices.Contains(choices, got) {
				t.Errorf("seed %d: %q, finish %q, %v; want one of %q", seed, got, finish, err, choices)
			}
			for i, e := range ev {
				if p := math.Exp(float64(e.LogProb)); p > 1.0001 || len(e.Top) != 3 {
					t.Errorf("token %d: probability %v, %d candidates", i, p, len(e.Top))
				}
			}
			// The first candidates are those of the free model, whatever the mask says.
			if len(ev) > 0 && !slices.Equal(ev[0].Top, alone[0].Top) {
				t.Errorf("candidates %v, free %v", ev[0].Top, alone[0].Top)
			}
		})
	}
	schema := `{"type":"object","properties":{"name":{"enum":["Ada","Bo"]},"age":{"type":"integer","minimum":1,"maximum":99},"tags":{"type":"array","items":{"type":"boolean"},"maxItems":2}},
		"required":["name","age","tags"],"additionalProperties":false}`
	for seed := range uint64(2) {
		m := b.matcher(t, grammar.Spec{Kind: grammar.KindJSONSchema, Schema: json.RawMessage(schema)})
		run(func() {
			q := free
			q.MaxTokens, q.Matcher, q.Sampling = 90, m, sample.Params{Temperature: 1, TopP: 1, Seed: seed}
			ev, finish, err := b.generate(t, q)
			var doc struct {
				Name string
				Age  int
				Tags []bool
			}
			d := json.NewDecoder(strings.NewReader(b.text(ev)))
			d.DisallowUnknownFields()
			if bad := d.Decode(&doc); err != nil || finish != engine.FinishStop || bad != nil || doc.Name != "Ada" && doc.Name != "Bo" || doc.Age < 1 || doc.Age > 99 || doc.Tags == nil || len(doc.Tags) > 2 {
				t.Errorf("seed %d: %q, finish %q, %v, %v", seed, b.text(ev), finish, err, bad)
			}
		})
	}
	end, ok := tok.ID("</think>")
	if !ok {
		t.Fatal("the demo model has no </think>")
	}
	for name, q := range map[string]engine.Request{
		"bound of the engine":   {Matcher: b.matcher(t, grammar.Spec{Kind: grammar.KindChoice, Choices: choices}), Trigger: &engine.Trigger{IDs: []int32{end}, Bound: 9}},
		"bound of the grammar":  {Matcher: b.matcher(t, grammar.Spec{Kind: grammar.KindChoice, Choices: choices, Activation: grammar.Activation{Thinking: true, ThinkingBound: 9}})},
		"bound without grammar": {Trigger: &engine.Trigger{IDs: []int32{end}, Bound: 9, Nudge: -100, NudgeTokens: 9}}, // never by itself, so exactly at the bound
	} {
		run(func() {
			q.Prompt, q.MaxTokens, q.Sampling = append(tok.Encode("What colour is the sky?"), mustID(t, b, "<think>")), 40, sample.Params{Temperature: 1, TopP: 1, Seed: 5}
			ev, _, err := b.generate(t, q)
			at := slices.Index(idsOf(ev), end)
			if err != nil || at < 0 || at > 9 || q.Matcher == nil && at != 9 {
				t.Errorf("%s: </think> at %d, want within 9 free tokens: %q, %v", name, at, b.text(ev), err)
				return
			}
			if got := b.text(ev[at+1:]); q.Matcher != nil && !slices.Contains(choices, got) {
				t.Errorf("%s: %q after the thinking part, want one of %q", name, got, choices)
			}
		})
	}
	group.Wait()
}

func mustID(t testing.TB, b *bench, piece string) int32 {
	id, ok := b.model.Tokenizer.ID(piece)
	if !ok {
		t.Errorf("the demo model has no %s", piece)
	}
	return id
}

// TestBiasesAndPenaltiesReachTheModel changes a greedy answer in each way.
func TestBiasesAndPenaltiesReachTheModel(t *testing.T) {
	b := demo(t)
	base := engine.Request{Prompt: b.model.Tokenizer.Encode("one one one one one one one one"), MaxTokens: 16, Sampling: sample.Greedy(), IgnoreEOS: true, TopN: 1}
	plain, _, err := b.generate(t, base)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(*sample.Params)) []engine.Event {
		t.Helper()
		q := base
		change(&q.Sampling)
		ev, _, err := b.generate(t, q)
		if err != nil || len(ev) != len(plain) {
			t.Fatalf("%d tokens, %v", len(ev), err)
		}
		return ev
	}
	first := plain[0].ID
	const other = 300
	for name, change := range map[string]func(*sample.Params){
		"bias":    func(p *sample.Params) { p.Bias = []sample.Bias{{ID: first, Add: -100}} },
		"blocked": func(p *sample.Params) { p.Blocked = []int32{first} },
	} {
		ev := with(change)
		if slices.Contains(idsOf(ev), first) || ev[0].Top[0] != plain[0].Top[0] {
			t.Errorf("%s against id %d: %v, best candidate %v", name, first, idsOf(ev), ev[0].Top)
		}
	}
	if ev := with(func(p *sample.Params) { p.Bias = []sample.Bias{{ID: other, Add: 100}} }); ev[0].ID != other || ev[15].ID != other || ev[0].LogProb > -0.5 {
		t.Errorf("bias for id %d: %v with log-probability %v", other, idsOf(ev), ev[0].LogProb)
	}
	distinct := func(ev []engine.Event) int {
		ids := idsOf(ev)
		slices.Sort(ids)
		return len(slices.Compact(ids))
	}
	for name, change := range map[string]func(*sample.Params){
		"frequency":  func(p *sample.Params) { p.Frequency = 2 },
		"presence":   func(p *sample.Params) { p.Presence = 2 },
		"repetition": func(p *sample.Params) { p.Repetition = 2 },
	} {
		if ev := with(change); distinct(ev) <= distinct(plain) {
			t.Errorf("%s penalty: %d distinct ids, %d without", name, distinct(ev), distinct(plain))
		}
	}
}

// TestChoicesOfOneSeedDiffer: the salt is the choice index; each choice repeats, whatever runs beside it.
func TestChoicesOfOneSeedDiffer(t *testing.T) {
	b := demo(t)
	const choices = 4
	var answers [2][choices]string
	var group sync.WaitGroup
	for round := range 2 {
		for salt := range choices {
			group.Go(func() {
				q := engine.Request{Prompt: b.model.Tokenizer.Encode("Once upon a time"), MaxTokens: 12, IgnoreEOS: true}
				q.Sampling = sample.Params{Temperature: 1, TopP: 1, Seed: 77, Salt: uint32(salt), Frequency: 0.5}
				ev, _, err := b.generate(t, q)
				if err != nil {
					t.Error(err)
				}
				answers[round][salt] = b.text(ev)
			})
		}
		if round == 0 {
			group.Wait()
		}
	}
	group.Wait()
	if answers[0] != answers[1] {
		t.Errorf("the same seeds gave %q, then %q", answers[0], answers[1])
	}
	list := slices.Clone(answers[0][:])
	slices.Sort(list)
	if len(slices.Compact(list)) != choices {
		t.Errorf("choices of one seed are equal: %q", answers[0])
	}
}
