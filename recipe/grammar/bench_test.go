package grammar_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// benchCase is a spec and texts as a model writes them; "" takes random walks.
type benchCase struct {
	name string
	spec grammar.Spec
	text string
}

const weatherSchema = `{"type":"object","properties":{
 "location":{"type":"string","description":"City and country"},
 "unit":{"type":"string","enum":["celsius","fahrenheit"]},
 "days":{"type":"integer","minimum":1,"maximum":14},
 "include":{"type":"array","items":{"type":"string","enum":["wind","rain","uv","humidity"]},"maxItems":4},
 "note":{"type":"string","maxLength":200},
 "when":{"type":"string","format":"date-time"}},
 "required":["location","unit","days"],"additionalProperties":false}`

func benchCases() []benchCase {
	var wide strings.Builder
	wide.WriteString(`{"type":"object","additionalProperties":false,"properties":{`)
	for i := range 200 {
		if i > 0 {
			wide.WriteString(",")
		}
		fmt.Fprintf(&wide, `"field_%d":{"type":["string","null"]}`, i)
	}
	wide.WriteString("}}")
	var enum, many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&enum, `"value %d of enum",`, i)
	}
	for i := range 3000 {
		fmt.Fprintf(&many, `"property %d":{"type":"integer"},`, i)
	}
	text := `{"location": "San Francisco, California, United States", "unit": "celsius", "days": 12, "include": ["wind", "humidity"], "note": "The traveller arrives late in the evening and would like to know whether the fog is gone by then.", "when": "2024-02-29T18:30:00Z"}`
	object := `{"title": "A short history of the bicycle", "year": 1817, "tags": ["transport", "Karl von Drais", "\u00e9"], "ratio": -0.125, "nested": {"empty": {}, "list": [1, 2, [3, null, true]], "text": "He said \"ride!\" and left.\nThe end."}, "summary": "` + strings.Repeat("The quick brown fox jumps over the lazy dog near the river bank. ", 8) + `"}`
	return []benchCase{
		{"tool schema", schema(weatherSchema), text},
		{"json object", grammar.Spec{Kind: grammar.KindJSONObject}, object},
		{"tree", schema(`{"$defs":{"n":{"type":"object","properties":{"name":{"type":"string"},"size":{"type":"number"},"kids":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["name"]}},"$ref":"#/$defs/n"}`),
			`{"name": "root", "size": 12.5, "kids": [{"name": "left", "kids": []}, {"name": "right", "size": 3, "extra": {"k": "v"}, "more": 1}]}`},
		{"200 optional", schema(wide.String()), `{"field_0": "some text here", "field_17": null, "field_100": "x", "field_199": "the last of them all"}`},
		{"regex", grammar.Spec{Kind: grammar.KindRegex, Pattern: `(Yes|No), because [A-Za-z ,']{10,300}\.`}, "Yes, because the wind is strong and the sea is rough today, as it was yesterday."},
		{"10000 values", schema(`{"type":"array","items":{"enum":[` + strings.TrimSuffix(enum.String(), ",") + `]}}`), `["value 17 of enum", "value 9999 of enum", "value 1234 of enum"]`},
		{"3000 optional", schema(`{"type":"object","additionalProperties":false,"properties":{` + strings.TrimSuffix(many.String(), ",") + `}}`), `{"property 17": 1, "property 1800": 123456, "property 2999": 0}`},
		{"flexible", grammar.Spec{Kind: grammar.KindJSONSchema, Schema: []byte(weatherSchema), Options: grammar.Options{FlexibleWhitespace: true}}, strings.NewReplacer(`", "`, "\",\n  \"", `{"`, "{\n  \"").Replace(text)},
	}
}

// cost measures each mask of a text.
func cost(tb testing.TB, g *grammar.Grammar, tok *token.Tokenizer, text string, times []time.Duration) []time.Duration {
	ids := tok.Encode(text)
	mask := make([]uint32, g.Vocabulary().Words())
	m := g.Matcher()
	for i, id := range ids {
		start := time.Now()
		m.Mask(mask)
		times = append(times, time.Since(start))
		if err := m.Accept(id); err != nil {
			tb.Fatalf("token %d: %v in %s", i, err, text)
		}
	}
	return times
}

func BenchmarkMask(b *testing.B) {
	v, tok := vocabulary(b, "v4.1")
	for _, c := range benchCases() {
		b.Run(c.name, func(b *testing.B) {
			g := compile(b, v, c.spec)
			var times []time.Duration
			for b.Loop() {
				times = cost(b, g, tok, c.text, times)
			}
			slices.Sort(times)
			us := func(q float64) float64 { return float64(times[int(q*float64(len(times)-1))].Nanoseconds()) / 1e3 }
			b.ReportMetric(us(0.5), "p50-us/mask")
			b.ReportMetric(us(0.99), "p99-us/mask")
			b.ReportMetric(us(1), "max-us/mask")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkMaskRandom measures masks along random walks, which visit odd states far more often than a model does.
func BenchmarkMaskRandom(b *testing.B) {
	v, tok := vocabulary(b, "v4.1")
	for _, c := range benchCases() {
		b.Run(c.name, func(b *testing.B) {
			g := compile(b, v, c.spec)
			r := rand.New(rand.NewPCG(1, 2))
			var times []time.Duration
			mask := make([]uint32, v.Words())
			for b.Loop() {
				ids, _ := walk(b, g.Matcher(), tok, r, 100)
				m := g.Matcher()
				for _, id := range ids {
					start := time.Now()
					m.Mask(mask)
					times = append(times, time.Since(start))
					_ = m.Accept(id)
				}
			}
			slices.Sort(times)
			us := func(q float64) float64 { return float64(times[int(q*float64(len(times)-1))].Nanoseconds()) / 1e3 }
			b.ReportMetric(us(0.5), "p50-us/mask")
			b.ReportMetric(us(0.99), "p99-us/mask")
			b.ReportMetric(us(1), "max-us/mask")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkAccept(b *testing.B) {
	v, tok := vocabulary(b, "v4.1")
	c := benchCases()[0]
	g := compile(b, v, c.spec)
	ids := tok.Encode(c.text)
	m := g.Matcher()
	b.ReportAllocs()
	for b.Loop() {
		m.Reset()
		for _, id := range ids {
			if err := m.Accept(id); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
}

func BenchmarkCompile(b *testing.B) {
	v, _ := vocabulary(b, "v4.1")
	for _, c := range benchCases() {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := grammar.Compile(context.Background(), c.spec, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkNewVocabulary(b *testing.B) {
	_, tok := vocabulary(b, "v4.1")
	for b.Loop() {
		if _, err := grammar.NewVocabulary(tok, grammar.VocabularyOptions{Width: 129280}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCompileCold compiles what no grammar before has made tables for.
func BenchmarkCompileCold(b *testing.B) {
	_, tok := vocabulary(b, "v4.1")
	for _, c := range []benchCase{{name: "tool schema", spec: schema(weatherSchema)}, {name: "email", spec: schema(`{"type":"string","format":"email"}`)},
		{name: "999 characters", spec: grammar.Spec{Kind: grammar.KindRegex, Pattern: `.{1,999}`}}, {name: "64 letters", spec: schema(`{"type":"string","pattern":"^[A-Za-z0-9_-]{1,64}$"}`)}} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				v, err := grammar.NewVocabulary(tok, grammar.VocabularyOptions{Width: 129280})
				if err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
				if _, err := grammar.Compile(context.Background(), c.spec, v); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
