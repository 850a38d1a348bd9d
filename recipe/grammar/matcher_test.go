package grammar_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
)

// At many states of many grammars, every one of the 129,280 ids: the mask says exactly what Accept does. Accepted ids are rolled back, so
// Rollback is tested with it.
func TestMasksAreExact(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	r := rand.New(rand.NewPCG(*seed, 3))
	counted := schema(`{"type":"array","items":{"type":"string","minLength":3,"maxLength":9}}`)
	tools := grammar.Spec{Kind: grammar.KindTurn, Turn: &grammar.Turn{Tools: []conversation.ToolDef{tool("weather", weatherTool, true), tool("any", "", false)},
		Choice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, InBlock: true}}
	rawLength := grammar.Spec{Kind: grammar.KindTurn, Turn: &grammar.Turn{InBlock: true, Choice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, Tools: []conversation.ToolDef{
		tool("f", `{"type":"object","properties":{"s":{"type":"string","minLength":2,"maxLength":12}},"required":["s"],"additionalProperties":false}`, true)}}}
	trigger := grammar.Spec{Kind: grammar.KindChoice, Choices: []string{"yes", "no"}, Activation: grammar.Activation{Trigger: "\n\n", Optional: true}}
	cases := append(benchCases(), benchCase{name: "counted", spec: counted}, benchCase{name: "tools", spec: tools}, benchCase{name: "raw length", spec: rawLength}, benchCase{name: "trigger", spec: trigger})
	for _, c := range cases {
		g := compile(t, v, c.spec)
		ids := tok.Encode(c.text)
		if c.text == "" {
			ids, _ = walk(t, g.Matcher(), tok, r, 40)
		}
		m := g.Matcher()
		mask := make([]uint32, v.Words())
		probes := 2
		for i, id := range ids {
			if r.IntN(len(ids)-i) < probes {
				probes--
				n := m.Mask(mask)
				count := 0
				for x := range int32(v.Width()) {
					err := m.Accept(x)
					if (err == nil) != allowed(mask, x) {
						t.Fatalf("%s after %q: id %d %q: mask %v, Accept %v", c.name, tok.Decode(ids[:i]), x, tok.Bytes(x), allowed(mask, x), err)
					}
					if err == nil {
						count++
						if err := m.Rollback(1); err != nil {
							t.Fatal(err)
						}
					}
				}
				if count != n {
					t.Fatalf("%s: Mask counted %d, there are %d", c.name, n, count)
				}
			}
			if err := m.Accept(id); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		}
	}
}

func TestReplayCloneAndRollbackEqualTheOriginal(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	r := rand.New(rand.NewPCG(*seed, 4))
	a, b := make([]uint32, v.Words()), make([]uint32, v.Words())
	spec := schema(weatherSchema)
	spec.Activation.Thinking = true
	g := compile(t, v, spec)
	ids := tok.EncodeSpecial("Thinking {of it}</think>" + benchCases()[0].text)
	m := g.Matcher()
	for i, id := range ids {
		if i%7 == 0 {
			fresh, clone := g.Matcher(), m.Clone()
			if err := fresh.Replay(ids[:i]); err != nil {
				t.Fatal(err)
			}
			ahead := min(len(ids)-i, 1+r.IntN(20))
			for _, x := range ids[i : i+ahead] {
				if err := m.Accept(x); err != nil {
					t.Fatal(err)
				}
			}
			if err := m.Rollback(ahead); err != nil {
				t.Fatal(err)
			}
			n := m.Mask(a)
			for name, other := range map[string]*grammar.Matcher{"replayed": fresh, "cloned": clone} {
				if k := other.Mask(b); k != n || !slices.Equal(a, b) || other.CanEnd() != m.CanEnd() {
					t.Fatalf("after %d tokens the %s matcher allows %d ids, the original %d", i, name, k, n)
				}
				if rest := other.Clone(); rest.Accept(id) != nil {
					t.Fatalf("the %s matcher refuses what follows", name)
				}
			}
		}
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Accept(1); err != nil || !m.Done() {
		t.Fatalf("the end: %v, done %v", err, m.Done())
	}
	if n := m.Mask(a); n != 0 {
		t.Errorf("after the end %d ids are allowed", n)
	}
	if err := m.Accept(ids[0]); err == nil {
		t.Error("a token after the end is accepted")
	}
	if err := m.Rollback(1); err != nil || m.Done() || !m.CanEnd() {
		t.Errorf("roll back the end: %v, done %v", err, m.Done())
	}
	if err := m.Rollback(65); err == nil {
		t.Error("65 tokens are rolled back, 64 are kept")
	}
	if err := g.Matcher().Replay(append(slices.Clone(ids[:30]), 0)); err == nil || !strings.Contains(err.Error(), "30 of 31") {
		t.Errorf("replay of a wrong token: %v", err)
	}
}

// A refused token changes nothing, whatever it is.
func TestRefusedTokens(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	m := compile(t, v, schema(`{"type":"object","properties":{"k":{"type":"integer"}},"required":["k"]}`)).Matcher()
	for _, id := range []int32{-1, 129280, 1 << 30, -1 << 31, 0, 1, 2, 128822, 128825, 128000} {
		var r *grammar.Refused
		if err := m.Accept(id); !errors.As(err, &r) || r.ID != id || r.Error() == "" {
			t.Errorf("id %d: %v", id, err)
		}
	}
	id, _ := tok.ID("{\n")
	var r *grammar.Refused
	if err := m.Accept(id); !errors.As(err, &r) || r.Offset != 1 {
		t.Errorf("{ and a line feed: %v, want byte 1", err)
	}
	if _, ok := check(t, m, tok.Encode(`{"k": 1}`)); !ok || !m.CanEnd() {
		t.Error("refused tokens changed the state")
	}
}

func TestForcedTextIsWhatAcceptTakes(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	g := compile(t, v, schema(`{"type":"object","properties":{"a rather long name":{"type":"integer"},"é":{"const":"日本語 ok"}},"required":["a rather long name","é"],"additionalProperties":false}`))
	m := g.Matcher()
	if got := string(m.ForcedBytes(1000)); got != `{"a rather long name": ` {
		t.Errorf("forced %q", got)
	}
	forced := m.Forced()
	if len(forced) == 0 {
		t.Error("no ids are forced")
	}
	for _, id := range forced {
		if err := m.Accept(id); err != nil {
			t.Fatal(err)
		}
	}
	if !strings.HasPrefix(`{"a rather long name": `, tok.Decode(forced)) {
		t.Errorf("forced %q", tok.Decode(forced))
	}
	turn := compile(t, v, grammar.Spec{Kind: grammar.KindTurn, Turn: &grammar.Turn{Tools: []conversation.ToolDef{tool("now", "", true)}, InBlock: true,
		Choice: conversation.ToolChoice{Mode: conversation.ChoiceRequired}, NoParallel: true}}).Matcher()
	var all []int32
	for steps := 0; !turn.CanEnd(); steps++ {
		ids := turn.Forced()
		if len(ids) == 0 { // a short piece before a control token is left to the model
			id, ok := tok.ID(string(turn.ForcedBytes(1)))
			if !ok {
				t.Fatalf("after %q nothing is forced", tok.Decode(all))
			}
			ids = []int32{id}
		}
		for _, id := range ids {
			if err := turn.Accept(id); err != nil {
				t.Fatal(err)
			}
			all = append(all, id)
		}
		if steps > 50 {
			t.Fatal("the turn does not end")
		}
	}
}

func TestOtherKinds(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	many := make([]string, 5000)
	for i := range many {
		many[i] = fmt.Sprintf("choice number %d of many", i)
	}
	expr := "start: sum\nsum: product (\"+\" product)*   // no left recursion\n?product: atom | atom \"*\" product\natom: NUMBER | \"(\" sum \")\"\nNUMBER: DIGIT+\nDIGIT: \"0\"..\"9\"\n%ignore \" \"\n"
	for _, c := range []struct {
		name    string
		spec    grammar.Spec
		yes, no []string
	}{
		{"choice", grammar.Spec{Kind: grammar.KindChoice, Choices: []string{"positive", "negative", "pos", "日本"}}, []string{"positive", "pos", "negative", "日本"}, []string{"posit", "Positive", "positive ", ""}},
		{"one choice", grammar.Spec{Kind: grammar.KindChoice, Choices: []string{"only"}}, []string{"only"}, []string{"on"}},
		{"many choices", grammar.Spec{Kind: grammar.KindChoice, Choices: many}, []string{many[0], many[4999]}, []string{"choice number 5000 of many"}},
		{"regex", grammar.Spec{Kind: grammar.KindRegex, Pattern: `(?i:yes|no)[!?]{0,2}( \p{Greek}+)?`}, []string{"YES", "no!?", "yEs αβγ"}, []string{"maybe", "no!!!", "xyes", "no α1"}},
		{"anchored regex", grammar.Spec{Kind: grammar.KindRegex, Pattern: `^\d{3}-\d{4}$`}, []string{"555-1234"}, []string{"555-12345", "5-1"}},
		{"object", grammar.Spec{Kind: grammar.KindJSONObject}, []string{`{}`, `{"a": [{}, "x", -1.5e3]}`}, []string{`[]`, `"x"`, `{"a"}`}},
		{"lark", grammar.Spec{Kind: grammar.KindGrammar, Syntax: "lark", Pattern: expr}, []string{"1", "1+2*3", "(1 + 2) * 3", " 4"}, []string{"1+", "()", "1 2", "a"}},
		{"lark text", grammar.Spec{Kind: grammar.KindGrammar, Pattern: "start: \"SELECT \"i COL (\", \" COL)~1..2 [\" ;\"]\nCOL: /[a-z]+/\n"}, []string{"select a, b", "SELECT a, b, c ;"}, []string{"select a", "select a, b, c, d"}},
		{"lark recursion", grammar.Spec{Kind: grammar.KindGrammar, Syntax: "lark", Pattern: "start: \"a\" start \"b\" | \"\"\n"}, []string{"", "ab", strings.Repeat("a", 500) + strings.Repeat("b", 500)}, []string{"aab", "ba"}},
		{"flexible", grammar.Spec{Kind: grammar.KindJSONSchema, Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"array","items":{"type":"integer"}}}}`), Options: grammar.Options{FlexibleWhitespace: true}},
			[]string{`{"a":[1,2]}`, "{\n  \"a\": [\n    1,\n    2\n  ]\n}", `{ }`, `{"a" : [ ]}`}, []string{"{\n\n\n\"a\": []}", "{\t\"a\": []}", " {}"}},
		{"closed", grammar.Spec{Kind: grammar.KindJSONSchema, Schema: json.RawMessage(`{"type":"object","properties":{"a":{"type":"integer"}}}`), Options: grammar.Options{Closed: true}}, []string{`{}`, `{"a": 1}`}, []string{`{"b": 1}`}},
		{"closed allOf", grammar.Spec{Kind: grammar.KindJSONSchema, Schema: json.RawMessage(`{"allOf":[{"type":"object","properties":{"a":{"type":"integer"}}},{"properties":{"b":{"type":"object"}},"required":["b"]}]}`), Options: grammar.Options{Closed: true}},
			[]string{`{"b": {}}`, `{"a": 1, "b": {"c": 1}}`}, []string{`{"a": 1}`, `{"b": {}, "c": 1}`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := compile(t, v, c.spec)
			for _, text := range c.yes {
				if !accepts(t, g, text) {
					t.Errorf("%q is refused", text)
				}
			}
			for _, text := range c.no {
				if accepts(t, g, text) {
					t.Errorf("%q is allowed", text)
				}
			}
		})
	}
}

// The smaller vocabulary of the demo model, whose logits are not a multiple of 32.
func TestAnotherVocabulary(t *testing.T) {
	v, tok := vocabulary(t, "demo")
	g := compile(t, v, schema(weatherSchema))
	r := rand.New(rand.NewPCG(*seed, 5))
	ended := 0
	for range 20 {
		ids, ok := walk(t, g.Matcher(), tok, r, 300)
		if !ok {
			continue
		}
		ended++
		if err := validate(decodeSchema([]byte(weatherSchema)), tok.Decode(ids)); err != nil {
			t.Errorf("%s: %v", tok.Decode(ids), err)
		}
	}
	if ended == 0 {
		t.Error("no walk ended")
	}
}

func TestErrorsNameTheKeyword(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	deep := strings.Repeat(`{"type":"array","items":`, 80) + "{}" + strings.Repeat("}", 80)
	var many strings.Builder
	for i := range grammar.MaxEnum + 1 {
		fmt.Fprintf(&many, "%d,", i)
	}
	for _, c := range []struct {
		name, schema string
		kind         grammar.ErrorKind
		pointer      string
	}{
		{"no JSON", `{"type":`, grammar.Invalid, ""},
		{"no schema", `12`, grammar.Invalid, ""},
		{"unknown type", `{"properties":{"a/b":{"type":"text"}}}`, grammar.Invalid, "/properties/a~1b/type"},
		{"not", `{"properties":{"a":{"not":{}}}}`, grammar.Unsupported, "/properties/a/not"},
		{"pattern properties", `{"type":"object","patternProperties":{"x":{}}}`, grammar.Unsupported, "/patternProperties"},
		{"if", `{"if":{},"then":{}}`, grammar.Unsupported, "/if"},
		{"look ahead", `{"type":"string","pattern":"(?=a)b"}`, grammar.Unsupported, "/pattern"},
		{"back reference", `{"type":"string","pattern":"(a)\\1"}`, grammar.Unsupported, "/pattern"},
		{"word boundary", `{"items":{"type":"string","pattern":"\\bx"}}`, grammar.Unsupported, "/items/pattern"},
		{"remote reference", `{"$ref":"https://example.com/s.json"}`, grammar.Unsupported, "/$ref"},
		{"dangling reference", `{"anyOf":[{"$ref":"#/$defs/x"}]}`, grammar.Invalid, "/anyOf/0/$ref"},
		{"false", `false`, grammar.Unsatisfiable, ""},
		{"lengths", `{"type":"string","minLength":3,"maxLength":2}`, grammar.Unsatisfiable, "/minLength"},
		{"types", `{"allOf":[{"type":"string"},{"type":"integer"}]}`, grammar.Unsatisfiable, "/allOf/1"},
		{"required but forbidden", `{"type":"object","required":["a"],"additionalProperties":false}`, grammar.Unsatisfiable, "/required/0"},
		{"empty enum", `{"enum":[]}`, grammar.Unsatisfiable, "/enum"},
		{"bounds", `{"type":"integer","minimum":3,"maximum":2}`, grammar.Unsatisfiable, ""},
		{"no whole number between", `{"type":"integer","minimum":3.2,"maximum":3.8}`, grammar.Unsatisfiable, ""},
		{"endless recursion", `{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, grammar.Unsatisfiable, ""},
		{"itself", `{"$ref":"#"}`, grammar.Unsatisfiable, ""},
		{"itself in allOf", `{"allOf":[{"$ref":"#"}]}`, grammar.Unsatisfiable, ""},
		{"negative length", `{"type":"string","minLength":-1}`, grammar.Invalid, "/minLength"},
		{"many items", `{"type":"array","minItems":1000000}`, grammar.TooLarge, "/minItems"},
		{"deep", deep, grammar.TooLarge, ""},
		{"large enum", `{"enum":[` + strings.TrimSuffix(many.String(), ",") + `]}`, grammar.TooLarge, "/enum"},
		{"large", `{"description":"` + strings.Repeat("x", grammar.MaxSchemaBytes) + `"}`, grammar.TooLarge, ""},
	} {
		_, err := grammar.Compile(context.Background(), schema(c.schema), v)
		var e *grammar.Error
		if !errors.As(err, &e) || e.Kind != c.kind || c.pointer != "" && e.Pointer != c.pointer {
			t.Errorf("%s: %v, want %v at %s", c.name, err, c.kind, c.pointer)
		}
	}
	for _, text := range []string{"start: start \"a\" | \"b\"\n", "start: x\nx: y \"a\"\ny: x \"b\" | \"c\"\n", "x: \"a\"\n", "start: y\n", "start: (\"a\"\n", "start: \"a\n", "%import python.INT\nstart: INT\n", "%import common.NONE\nstart: \"a\"\n", "%import common (INT\nstart: INT\n", "%import common.INT -> \nstart: INT\n", "%import common\nstart: \"a\"\n", "%import common.INT\nINT: \"1\"\nstart: INT\n", "start: A\nA: A \"x\"\n", "start: /(/\n", "start \"a\"\n", "start: \"a\"\nstart: \"b\"\n"} {
		_, err := grammar.Compile(context.Background(), grammar.Spec{Kind: grammar.KindGrammar, Pattern: text}, v)
		var e *grammar.Error
		if !errors.As(err, &e) || e.Reason == "" {
			t.Errorf("%q: %v", text, err)
		}
	}
	for name, spec := range map[string]grammar.Spec{"no kind": {}, "no choice": {Kind: grammar.KindChoice}, "no turn": {Kind: grammar.KindTurn}, "bad regex": {Kind: grammar.KindRegex, Pattern: "("},
		"empty regex": {Kind: grammar.KindRegex, Pattern: `[^\x00-\x{10FFFF}]`}, "gbnf": {Kind: grammar.KindGrammar, Syntax: "gbnf", Pattern: "root ::= x"}} {
		_, err := grammar.Compile(context.Background(), spec, v)
		var e *grammar.Error
		if !errors.As(err, &e) {
			t.Errorf("%s: %v", name, err)
		}
	}
	spec := schema(`{"type":"object","properties":{"a":{"type":"array","uniqueItems":true},"b":{"not":{"type":"string"}},"c":{"type":"string","pattern":"(?=x)"}},"required":["b"]}`)
	spec.Options.Lenient = true
	g := compile(t, v, spec)
	if got := strings.Join(g.Unchecked(), " "); got != "/properties/a/uniqueItems /properties/b/not /properties/c/pattern" && got != "/properties/c/pattern /properties/b/not /properties/a/uniqueItems" {
		t.Errorf("unchecked: %s", got)
	}
	turn := grammar.Turn{Tools: []conversation.ToolDef{tool("f", `{"type":"object","properties":{"x":{"not":{}}}}`, true)}}
	var e *grammar.Error
	if _, err := grammar.Compile(context.Background(), grammar.Spec{Kind: grammar.KindTurn, Turn: &turn}, v); !errors.As(err, &e) || e.Tool != "f" || e.Pointer != "/properties/x/not" {
		t.Errorf("a tool's schema: %v", err)
	}
}

// Hostile specs are compiled or refused in time; none hangs, none takes the process with it.
func TestAdversarialSpecs(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	words := make([]string, grammar.MaxEnum)
	r := rand.New(rand.NewPCG(7, 7))
	for i := range words {
		b := make([]byte, 18)
		for j := range b {
			b[j] = byte('a' + r.IntN(26))
		}
		words[i] = string(b)
	}
	enum, _ := json.Marshal(words)
	var optional, pairs strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&optional, `"p%d":{"type":"integer"},`, i)
	}
	for i := range 12 {
		fmt.Fprintf(&pairs, `{"anyOf":[{"minLength":%d},{"maxLength":%d}]},`, i, i)
	}
	mutual := `{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"type":"array","items":{"$ref":"#/$defs/a"}}]},"b":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"object","additionalProperties":{"$ref":"#/$defs/b"}}]}},"$ref":"#/$defs/a"}`
	for name, spec := range map[string]grammar.Spec{
		"huge enum":         schema(`{"enum":` + string(enum) + `}`),
		"3000 optional":     schema(`{"type":"object","properties":{` + strings.TrimSuffix(optional.String(), ",") + `},"additionalProperties":false}`),
		"product of unions": schema(`{"allOf":[` + strings.TrimSuffix(pairs.String(), ",") + `]}`),
		"mutual recursion":  schema(mutual),
		"exponential regex": {Kind: grammar.KindRegex, Pattern: `(a|b)*a(a|b){24}`},
		"nested repeats":    {Kind: grammar.KindRegex, Pattern: `((((a{1,30}){1,30}){1,30}){1,30})`},
		"nested stars":      {Kind: grammar.KindRegex, Pattern: `((((a*)*)*)*)*b`},
		"wide repeat":       schema(`{"type":"string","pattern":"^(\\p{L}|\\p{N}){1,999}$"}`),
		"items in items":    schema(`{"type":"array","minItems":4096,"items":{"type":"array","minItems":4096,"items":{"type":"array","minItems":4096}}}`),
		"nested options":    {Kind: grammar.KindGrammar, Pattern: "start: " + strings.Repeat("(", 90) + "\"a\"" + strings.Repeat("~0..9)", 90)},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			begin := time.Now()
			g, err := grammar.Compile(ctx, spec, v)
			took := time.Since(begin).Round(time.Millisecond)
			var e *grammar.Error
			switch {
			case err != nil && !errors.As(err, &e):
				t.Errorf("%v", err)
			case err != nil:
				t.Logf("%v: %v", took, err)
			default:
				mask := make([]uint32, v.Words())
				if g.Matcher().Mask(mask) == 0 {
					t.Error("nothing is allowed at the start")
				}
				t.Logf("%v: %d bytes", took, g.Size())
			}
		})
	}
}

func TestADeadlineStopsTheCompilation(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := grammar.Compile(ctx, grammar.Spec{Kind: grammar.KindRegex, Pattern: `(x|y)*x(x|y){20}`}, v)
	var e *grammar.Error
	if !errors.As(err, &e) || e.Kind != grammar.Timeout {
		t.Errorf("%v", err)
	}
	c := grammar.NewCompiler(v, grammar.CompilerOptions{Deadline: time.Nanosecond})
	if _, err := c.Compile(context.Background(), grammar.Spec{Kind: grammar.KindRegex, Pattern: `(x|y)*x(x|y){21}`}); !errors.As(err, &e) || e.Kind != grammar.Timeout {
		t.Errorf("%v", err)
	}
	if s := c.Stats(); s.Grammars != 0 {
		t.Errorf("a timeout is remembered: %+v", s)
	}
}

func TestTheCompilerKeepsWhatFits(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	one := compile(t, v, schema(weatherSchema)).Size()
	c := grammar.NewCompiler(v, grammar.CompilerOptions{CacheBytes: 3*one + one/2})
	ctx := context.Background()
	get := func(i int) *grammar.Grammar {
		spec := schema(weatherSchema)
		spec.Activation.ThinkingBound = i // makes another key of the same size
		g, err := c.Compile(ctx, spec)
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	first := get(0)
	for i := range 3 {
		get(i)
	}
	if get(0) != first {
		t.Error("a grammar in the cache is compiled again")
	}
	get(3) // 1 is the least recently used
	s := c.Stats()
	if s.Evictions != 1 || s.Grammars != 3 || s.Bytes > 3*one+one/2 || s.Hits != 2 || s.Misses != 4 {
		t.Errorf("%+v", s)
	}
	if get(0) != first {
		t.Error("the most recently used grammar was dropped")
	}
	bad := schema(`{"not":{}}`)
	for range 2 {
		var e *grammar.Error
		if _, err := c.Compile(ctx, bad); !errors.As(err, &e) || e.Kind != grammar.Unsupported {
			t.Errorf("%v", err)
		}
	}
	if s := c.Stats(); s.Failures != 1 {
		t.Errorf("the same failure was compiled %d times", s.Failures)
	}
}

func TestTheCompilerServesManyAtOnce(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	c := grammar.NewCompiler(v, grammar.CompilerOptions{Parallel: 2})
	text := benchCases()[0].text
	var wg sync.WaitGroup
	errs := make(chan error, 64)
	for i := range 24 {
		wg.Go(func() {
			spec := schema(weatherSchema)
			if i%4 == 3 {
				spec = schema(`{"not":{}}`)
			}
			g, err := c.Compile(context.Background(), spec)
			if i%4 == 3 {
				if err == nil {
					errs <- errors.New("a bad schema compiled")
				}
				return
			}
			if err != nil {
				errs <- err
				return
			}
			m := g.Matcher()
			mask := make([]uint32, v.Words())
			for _, id := range tok.Encode(text) {
				m.Mask(mask)
				if err := m.Accept(id); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	if s := c.Stats(); s.Misses != 2 {
		t.Errorf("two specs were compiled %d times", s.Misses)
	}

	// A caller that goes away does not wait.
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := c.Compile(ctx, grammar.Spec{Kind: grammar.KindRegex, Pattern: `(p|q)*p(p|q){13}`}); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

func TestMasksAllocateNothing(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	for _, c := range benchCases() {
		g := compile(t, v, c.spec)
		ids := tok.Encode(c.text)
		m := g.Matcher()
		mask := make([]uint32, v.Words())
		run := func() {
			m.Reset()
			for _, id := range ids {
				m.Mask(mask)
				if err := m.Accept(id); err != nil {
					t.Fatal(err)
				}
			}
		}
		run()
		// Accept makes a frame for each call, 16 at a time; masks make nothing.
		masks := testing.AllocsPerRun(5, func() { m.Mask(mask) })
		if masks != 0 {
			t.Errorf("%s: a mask allocates %v times", c.name, masks)
		}
		if all := testing.AllocsPerRun(5, run); all > float64(len(ids))/8+4 {
			t.Errorf("%s: %d tokens allocate %v times", c.name, len(ids), all)
		}
	}
}

func FuzzSchema(f *testing.F) {
	v, _ := vocabulary(f, "v4.1")
	for _, s := range []string{weatherSchema, `{"anyOf":[{"$ref":"#"},{"type":"null"}]}`, `{"allOf":[{"enum":[1,2]},{"type":"integer","minimum":2}]}`, `{"type":"string","pattern":"^a+$","format":"uri","minLength":2}`,
		`{"type":"array","prefixItems":[{}],"items":false,"minItems":1}`, `{"type":"object","minProperties":2,"required":["x"],"nullable":true}`, `{"multipleOf":3,"exclusiveMinimum":-1e2}`} {
		f.Add([]byte(s), true)
		f.Add([]byte(s), false)
	}
	f.Fuzz(func(t *testing.T, text []byte, lenient bool) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		g, err := grammar.Compile(ctx, grammar.Spec{Kind: grammar.KindJSONSchema, Schema: text, Options: grammar.Options{Lenient: lenient, FlexibleWhitespace: lenient}}, v)
		if err != nil {
			var e *grammar.Error
			if !errors.As(err, &e) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		_, tok := vocabulary(t, "v4.1")
		ids, ended := walk(t, g.Matcher(), tok, rand.New(rand.NewPCG(1, uint64(len(text)))), 60)
		if ended && !json.Valid([]byte(tok.Decode(ids))) {
			t.Fatalf("%s allows %q", text, tok.Decode(ids))
		}
	})
}

func FuzzRegexAndLark(f *testing.F) {
	v, _ := vocabulary(f, "v4.1")
	f.Add(`(a|b)*c{2,3}[^x]\d$`, false)
	f.Add("start: \"a\" x? | x~2..3\nx: /[0-9]+/i \"k\"i \"a\"..\"f\" // c\n%ignore \" \"\n", true)
	f.Add("start: (start \"x\")\n  | \"y\" -> z\n", true)
	f.Fuzz(func(t *testing.T, text string, lark bool) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		spec := grammar.Spec{Kind: grammar.KindRegex, Pattern: text}
		if lark {
			spec.Kind = grammar.KindGrammar
		}
		g, err := grammar.Compile(ctx, spec, v)
		if err != nil {
			var e *grammar.Error
			if !errors.As(err, &e) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		_, tok := vocabulary(t, "v4.1")
		walk(t, g.Matcher(), tok, rand.New(rand.NewPCG(1, uint64(len(text)))), 40)
	})
}

// Nesting has a bound, and there every open bracket can still be closed.
func TestNestingIsBounded(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	one := func(s string) int32 {
		id, ok := tok.ID(s)
		if !ok {
			t.Fatalf("no token %q", s)
		}
		return id
	}
	m := compile(t, v, schema(`{}`)).Matcher()
	mask := make([]uint32, v.Words())
	depth := 0
	for ; depth < 1000 && m.Accept(one("[")) == nil; depth++ {
		if m.Mask(mask) == 0 {
			t.Fatalf("nothing is allowed at depth %d", depth)
		}
	}
	if depth < 64 || depth > 127 {
		t.Errorf("arrays nest %d deep, want 64 to 127", depth)
	}
	for range depth {
		if err := m.Accept(one("]")); err != nil {
			t.Fatal(err)
		}
	}
	if !m.CanEnd() {
		t.Error("the document is not complete")
	}

	// Objects that must hold others: the mask stops opening them while there is room to finish.
	m = compile(t, v, schema(`{"$defs":{"pair":{"type":"object","properties":{"l":{"$ref":"#/$defs/tree"},"r":{"$ref":"#/$defs/tree"}},"required":["l","r"],"additionalProperties":false},
		"tree":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/pair"}]}},"$ref":"#/$defs/tree"}`)).Matcher()
	for n := 0; !m.CanEnd(); n++ {
		if n > 10_000 {
			t.Fatal("the document does not end")
		}
		if m.Mask(mask) == 0 {
			t.Fatalf("nothing is allowed after %d tokens", n)
		}
		// Go deeper whenever that is allowed, on the left side; on the right side take null.
		err := m.Accept(one("{"))
		for _, s := range []string{`"`, "l", "r", ":", " ", "null", ",", "}"} {
			if err == nil {
				break
			}
			err = m.Accept(one(s))
		}
		if err != nil {
			t.Fatal(err)
		}
		if n > 400 {
			// deep enough: now end
			for !m.CanEnd() {
				err := errors.New("")
				for _, s := range []string{"null", `"`, "l", "r", ":", " ", ",", "}"} {
					if err = m.Accept(one(s)); err == nil {
						break
					}
				}
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
