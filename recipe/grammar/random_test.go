package grammar_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/grammar"
)

var seed = flag.Uint64("seed", 20261201, "seed of the random tests")

// schemaGenerator writes random schemas from the supported keywords.
type schemaGenerator struct {
	r    *rand.Rand
	defs int
}

func (g *schemaGenerator) pick(list ...string) string { return list[g.r.IntN(len(list))] }

func (g *schemaGenerator) document() string {
	g.defs = g.r.IntN(3)
	body := g.schema(3)
	if g.defs == 0 || body[0] != '{' {
		return body
	}
	var defs []string
	for i := range g.defs {
		defs = append(defs, fmt.Sprintf(`"d%d":%s`, i, g.schema(2)))
	}
	sep := ","
	if body == "{}" {
		sep = ""
	}
	return `{"$defs":{` + strings.Join(defs, ",") + `}` + sep + body[1:]
}

func (g *schemaGenerator) schema(depth int) string {
	n := 12
	if depth <= 0 {
		n = 7
	}
	var b []string
	add := func(format string, args ...any) { b = append(b, fmt.Sprintf(format, args...)) }
	maybe := func() bool { return g.r.IntN(2) == 0 }
	switch g.r.IntN(n) {
	case 0:
		add(`"type":"string"`)
		if maybe() {
			lo := g.r.IntN(6)
			add(`"minLength":%d,"maxLength":%d`, lo, lo+g.r.IntN(40))
		}
		if maybe() {
			add(`"pattern":%s`, g.pick(`"^[a-z]+$"`, `"[0-9]"`, `"^(ab|cd)*e?$"`, `"^\\w{1,8}-\\d{2,}$"`, `"x.*y"`, `"^[^a]*$"`, `"^[à-ÿ]{1,5}$"`))
		}
	case 1:
		add(`"type":"string","format":%q`, g.pick("date", "time", "date-time", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"))
	case 2:
		add(`"type":%q`, g.pick("integer", "number"))
		if maybe() {
			add(`%q:%s`, g.pick("minimum", "exclusiveMinimum"), g.pick("0", "-17", "3.5", "-0.25", "100", "1e2"))
		}
		if maybe() {
			add(`%q:%s`, g.pick("maximum", "exclusiveMaximum"), g.pick("101", "150.75", "1234", "100.5"))
		}
		if g.r.IntN(4) == 0 {
			add(`"multipleOf":%s`, g.pick("2", "7", "0.5", "0.01", "25", "1"))
		}
	case 3:
		add(`"type":%s`, g.pick(`"boolean"`, `"null"`, `["string","null"]`, `["integer","boolean"]`, `["number","string","object"]`))
	case 4:
		add(`"enum":%s`, g.pick(`["a","b","c"]`, `[1,"1",null,true]`, `["é","日本語","\"q\""]`, `[{"a":[1,2]},[],{}]`))
	case 5:
		add(`"const":%s`, g.pick(`"fixed"`, `12`, `{"k":"v"}`, `null`))
	case 6:
		if g.defs > 0 && maybe() {
			add(`"$ref":"#/$defs/d%d"`, g.r.IntN(g.defs))
		}
	case 7, 8:
		add(`"type":"object"`)
		names := []string{"a", "b", "name", "long key", "é", "q\\\"", "x/y"}
		g.r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		names = names[:g.r.IntN(5)]
		var props, required []string
		for _, k := range names {
			props = append(props, fmt.Sprintf(`"%s":%s`, k, g.schema(depth-1)))
			if maybe() {
				required = append(required, `"`+k+`"`)
			}
		}
		if len(props) > 0 {
			add(`"properties":{%s}`, strings.Join(props, ","))
		}
		if maybe() {
			add(`"required":[%s]`, strings.Join(required, ","))
		}
		if maybe() {
			add(`"additionalProperties":%s`, g.pick("false", "true", g.schema(depth-2)))
		}
		if g.r.IntN(4) == 0 {
			add(`"minProperties":%d`, g.r.IntN(3))
		}
		if g.r.IntN(4) == 0 {
			add(`"maxProperties":%d`, 2+g.r.IntN(4))
		}
	case 9:
		add(`"type":"array"`)
		if maybe() {
			add(`"items":%s`, g.schema(depth-1))
		}
		if g.r.IntN(3) == 0 {
			add(`"prefixItems":[%s,%s]`, g.schema(depth-1), g.schema(depth-1))
		}
		lo := g.r.IntN(3)
		add(`"minItems":%d`, lo)
		if maybe() {
			add(`"maxItems":%d`, lo+g.r.IntN(4))
		}
	case 10:
		add(`%q:[%s,%s]`, g.pick("anyOf", "oneOf"), g.schema(depth-1), g.schema(depth-1))
	case 11:
		add(`"allOf":[%s,%s]`, g.schema(depth-1), g.schema(depth-1))
	}
	return "{" + strings.Join(b, ",") + "}"
}

// A random walk through the masks of any schema writes a document that an independent validator accepts; and the same document in its
// usual tokens, and in single bytes, is accepted again.
func TestRandomWalksAreValid(t *testing.T) {
	v, tok := vocabulary(t, "v4.1")
	r := rand.New(rand.NewPCG(*seed, 1))
	t.Logf("seed %d", *seed)
	compiled, ended, refused := 0, 0, map[grammar.ErrorKind]int{}
	n := 100
	if testing.Short() {
		n = 60
	}
	for i := range n {
		gen := schemaGenerator{r: r}
		text := gen.document()
		if !json.Valid([]byte(text)) {
			t.Fatalf("the generator wrote %s", text)
		}
		spec := schema(text)
		spec.Options.Lenient = true
		spec.Options.FlexibleWhitespace = i%4 == 3
		g, err := grammar.Compile(context.Background(), spec, v)
		if err != nil {
			var e *grammar.Error
			if !errors.As(err, &e) || e.Kind != grammar.Unsatisfiable && e.Kind != grammar.TooLarge {
				t.Errorf("%s: %v", text, err)
			} else {
				refused[e.Kind]++
			}
			continue
		}
		compiled++
		parsed := decodeSchema([]byte(text))
		for range 4 {
			m := g.Matcher()
			ids, ok := walk(t, m, tok, r, 300)
			if !ok {
				continue
			}
			ended++
			doc := tok.Decode(ids)
			if err := validate(parsed, doc); err != nil && !onlyUnchecked(g, err) {
				t.Errorf("schema %s\nallows  %s\n%v", text, doc, err)
			}
			if !accepts(t, g, doc) {
				t.Errorf("schema %s\nwrote %s\nand refuses it in other tokens", text, doc)
			}
		}
	}
	t.Logf("%d compiled, refused %v, %d documents", compiled, refused, ended)
	if compiled < n/2 || ended < n {
		t.Errorf("only %d of %d schemas compiled, %d documents ended: the test proves little", compiled, n, ended)
	}
}

// onlyUnchecked says whether an error comes from what the grammar says it does not enforce.
func onlyUnchecked(g *grammar.Grammar, err error) bool {
	for _, u := range g.Unchecked() {
		if strings.HasSuffix(u, "/multipleOf") && strings.Contains(err.Error(), "multiple") {
			return true
		}
		if strings.HasSuffix(u, "/enum") {
			return true
		}
	}
	return false
}
