package grammar_test

import (
	"context"
	"encoding/json"
	"errors"
	"math/bits"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

var vocabularies = struct {
	sync.Mutex
	m map[string]*grammar.Vocabulary
}{m: map[string]*grammar.Vocabulary{}}

func vocabulary(tb testing.TB, name string) (*grammar.Vocabulary, *token.Tokenizer) {
	tb.Helper()
	tok := tokentest.Load(tb, name)
	vocabularies.Lock()
	defer vocabularies.Unlock()
	if v := vocabularies.m[name]; v != nil {
		return v, tok
	}
	opts := grammar.VocabularyOptions{Width: 129280}
	if name == "demo" {
		opts.Width = 0
	}
	v, err := grammar.NewVocabulary(tok, opts)
	if err != nil {
		tb.Fatal(err)
	}
	vocabularies.m[name] = v
	return v, tok
}

func compile(tb testing.TB, v *grammar.Vocabulary, spec grammar.Spec) *grammar.Grammar {
	tb.Helper()
	g, err := grammar.Compile(context.Background(), spec, v)
	if err != nil {
		tb.Fatalf("compile %s%s: %v", spec.Schema, spec.Pattern, err)
	}
	return g
}

func schema(text string) grammar.Spec {
	return grammar.Spec{Kind: grammar.KindJSONSchema, Schema: json.RawMessage(text)}
}

func allowed(mask []uint32, id int32) bool { return mask[id/32]&(1<<(id%32)) != 0 }

// check feeds text token by token; each token must be allowed by the mask before it. It gives the bytes read when one was not.
func check(tb testing.TB, m *grammar.Matcher, ids []int32) (n int, ok bool) {
	tb.Helper()
	v := m.Grammar().Vocabulary()
	mask := make([]uint32, v.Words())
	for i, id := range ids {
		m.Mask(mask)
		err := m.Accept(id)
		if (err == nil) != allowed(mask, id) {
			tb.Fatalf("token %d (%d): mask says %v, Accept says %v", i, id, allowed(mask, id), err)
		}
		if err != nil {
			var r *grammar.Refused
			if !errors.As(err, &r) {
				tb.Fatalf("Accept gave %T", err)
			}
			return n + r.Offset, false
		}
		n += len(tokentest.Load(tb, "v4.1").Bytes(id))
	}
	return n, true
}

// accepts says whether a whole text is one that the grammar allows, in the usual tokens and byte by byte.
func accepts(tb testing.TB, g *grammar.Grammar, text string) bool {
	tb.Helper()
	_, tok := vocabulary(tb, "v4.1")
	m := g.Matcher()
	_, ok := check(tb, m, tok.Encode(text))
	whole := ok && m.CanEnd()
	m.Reset()
	single := true
	for i := range len(text) {
		id, _ := tok.ID(text[i : i+1])
		if m.Accept(id) != nil {
			single = false
			break
		}
	}
	if single = single && m.CanEnd(); !utf8.ValidString(text) {
		return single // its usual tokens are those of another text
	}
	if single != whole {
		tb.Fatalf("%q: %v in the usual tokens, %v byte by byte", text, whole, single)
	}
	return whole
}

// walk samples from masks until the end. Ends are taken when possible with probability end, so that walks are finite.
func walk(tb testing.TB, m *grammar.Matcher, tok *token.Tokenizer, r *rand.Rand, limit int) (ids []int32, ended bool) {
	tb.Helper()
	v := m.Grammar().Vocabulary()
	mask := make([]uint32, v.Words())
	for len(ids) < limit {
		n := m.Mask(mask)
		if n == 0 {
			tb.Fatalf("nothing is allowed after %q", tok.Decode(ids))
		}
		var id int32
		eos := v.Control().EOS
		// Most random tokens are long; closing bytes must have a chance too, or nothing ends.
		switch {
		case allowed(mask, eos) && r.IntN(3) == 0:
			id = eos
		case r.IntN(3) == 0:
			var short []int32
			for _, s := range []string{`"`, "}", "]", ", ", ": ", `",`, `"}`, "0", "1", "a", " ", "\n"} {
				if x, ok := tok.ID(s); ok && allowed(mask, x) {
					short = append(short, x)
				}
			}
			if len(short) > 0 {
				id = short[r.IntN(len(short))]
				break
			}
			fallthrough
		default:
			k := r.IntN(n)
			for w, word := range mask {
				c := bits.OnesCount32(word)
				if k >= c {
					k -= c
					continue
				}
				for ; k > 0; k-- {
					word &= word - 1
				}
				id = int32(w*32 + bits.TrailingZeros32(word))
				break
			}
		}
		if err := m.Accept(id); err != nil {
			tb.Fatalf("after %q the mask allows %d %q: %v", tok.Decode(ids), id, tok.Bytes(id), err)
		}
		if m.Done() {
			return ids, true
		}
		ids = append(ids, id)
	}
	return ids, false
}

func TestValidDocumentsAreAllowedAndInvalidOnesAreRefused(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	for _, c := range []struct {
		name, schema string
		yes, no      []string
	}{
		{"scalars", `{"type":["string","integer","null","boolean"]}`, []string{`"x"`, `""`, `12`, `-3`, `0`, `null`, `true`, `false`, `"é😀\n\u00e9\uD83D\uDE00\/"`},
			[]string{`1.5`, `01`, `-0`, `{}`, `"`, `tru`, "\"\n\"", `"\ud83d"`, `"\x"`, ` 1`, `1 `, "\"\xff\"", "\"\xc0\x80\"", "\"\xed\xa0\x80\""}},
		{"numbers", `{"type":"number"}`, []string{`0`, `-0.5`, `1e5`, `1.25E-10`, `1e300`, `123456789012345678901234567890`}, []string{`.5`, `1.`, `1e`, `+1`, `1e999`, `NaN`}},
		{"object in order", `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"},"c":{"type":"boolean"}},"required":["a","c"],"additionalProperties":false}`,
			[]string{`{"a": 1, "c": true}`, `{"a": 1, "b": "x", "c": true}`}, []string{`{}`, `{"a": 1}`, `{"c": true, "a": 1}`, `{"a": 1, "c": true, "d": 1}`, `{"a":1,"c":true}`, `{"a": 1, "c": true,}`, `{, "a": 1}`}},
		{"all optional", `{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"additionalProperties":false}`,
			[]string{`{}`, `{"a": 1}`, `{"b": 1}`, `{"a": 1, "b": 2}`}, []string{`{"b": 1, "a": 1}`, `{, "b": 1}`, `{"a": 1, }`}},
		{"additional", `{"type":"object","properties":{"a":{"type":"integer"}},"additionalProperties":{"type":"string"}}`,
			[]string{`{}`, `{"a": 1}`, `{"a": 1, "b": "x"}`, `{"b": "x", "": "y"}`, `{"ab": "x"}`}, []string{`{"a": "x"}`, `{"\u0061": "x"}`, `{"b": 1}`, `{"b": "x", "a": 1}`}},
		{"open object", `{"type":"object","properties":{"a":{"type":"integer"}}}`, []string{`{"a": 1, "z": {"y": [1, null]}}`}, []string{`{"a": "x"}`}},
		{"enum and const", `{"enum":["a","ab",1,null,{"k":[1,2]},1.50]}`, []string{`"a"`, `"ab"`, `1`, `null`, `{"k": [1, 2]}`}, []string{`"b"`, `"abc"`, `2`, `{"k":[1,2]}`}},
		{"const", `{"const":"ja\"\n"}`, []string{`"ja\"\n"`}, []string{`"ja"`}},
		{"enum with type", `{"type":"string","enum":["a",1,"bbb"],"maxLength":2}`, []string{`"a"`}, []string{`1`, `"bbb"`}},
		{"array", `{"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3}`, []string{`[1]`, `[1, 2, 3]`}, []string{`[]`, `[1, 2, 3, 4]`, `[1,2]`, `["a"]`, `[1, ]`}},
		{"open array", `{"type":"array","items":{"type":"integer"}}`, []string{`[]`, `[1]`, `[10, 200, 3000, 4]`}, []string{`[1`, `[,1]`}},
		{"prefix", `{"type":"array","prefixItems":[{"type":"string"},{"type":"integer"}],"items":false}`, []string{`[]`, `["a"]`, `["a", 1]`}, []string{`[1]`, `["a", 1, 2]`}},
		{"prefix and rest", `{"type":"array","prefixItems":[{"type":"string"}],"items":{"type":"null"},"minItems":1}`, []string{`["a"]`, `["a", null, null]`}, []string{`[]`, `["a", 1]`}},
		{"old tuple", `{"type":"array","items":[{"type":"string"}],"additionalItems":false}`, []string{`["a"]`, `[]`}, []string{`["a", 1]`, `[1]`}},
		{"length", `{"type":"string","minLength":2,"maxLength":4}`, []string{`"ab"`, `"abcd"`, `"日本"`, `"😀😀😀😀"`, `"\n\n"`, `"\u0041\uD83D\uDE00"`}, []string{`"a"`, `"abcde"`, `""`, `"日"`, `"😀😀😀😀😀"`}},
		{"long length", `{"type":"string","minLength":5000,"maxLength":100000}`, []string{`"` + strings.Repeat("lorem ipsum ", 500) + `"`}, []string{`"` + strings.Repeat("lorem ipsum ", 400) + `"`}},
		{"pattern", `{"type":"string","pattern":"^[a-c]+\\d$"}`, []string{`"a1"`, `"abc9"`}, []string{`"1"`, `"ad1"`, `"a1x"`}},
		{"pattern anywhere", `{"type":"string","pattern":"b.d"}`, []string{`"bad"`, `"xxb\"dyy"`}, []string{`"bd"`, `"b\nd"`}},
		{"pattern with length", `{"type":"string","pattern":"^a*$","minLength":2,"maxLength":3}`, []string{`"aa"`, `"aaa"`}, []string{`"a"`, `"aaaa"`}},
		{"pattern of escapes", `{"type":"string","pattern":"^[\\n\"\\\\]+$"}`, []string{`"\n\"\\"`}, []string{`"n"`}},
		{"ecma escapes", `{"type":"string","pattern":"^\\u00e9\\/$"}`, []string{`"é/"`}, []string{`"e/"`}},
		{"integer bounds", `{"type":"integer","minimum":-12,"maximum":205}`, []string{`-12`, `-1`, `0`, `9`, `10`, `99`, `200`, `205`}, []string{`-13`, `206`, `1000`, `-100`, `1.0`}},
		{"exclusive", `{"type":"integer","exclusiveMinimum":0,"exclusiveMaximum":10}`, []string{`1`, `9`}, []string{`0`, `10`, `-1`}},
		{"draft 4 exclusive", `{"type":"integer","minimum":0,"exclusiveMinimum":true}`, []string{`1`}, []string{`0`}},
		{"number bounds", `{"type":"number","minimum":-0.5,"exclusiveMaximum":12.25}`, []string{`-0.5`, `-0.49`, `0`, `12`, `12.2`, `12.24999`, `1.5`}, []string{`-0.51`, `-1`, `12.25`, `12.250`, `12.3`, `13`, `1e1`}},
		{"multiple", `{"type":"integer","multipleOf":7,"minimum":10}`, []string{`14`, `21`, `70`}, []string{`7`, `15`, `-14`}},
		{"cents", `{"type":"number","multipleOf":0.01}`, []string{`1.25`, `3`, `0.1`}, []string{`1.255`}},
		{"any of", `{"anyOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"],"additionalProperties":false},{"type":"object","properties":{"k":{"const":"b"},"y":{"type":"string"}},"required":["k","y"],"additionalProperties":false}]}`,
			[]string{`{"k": "a", "x": 1}`, `{"k": "b", "y": ""}`}, []string{`{"k": "a", "y": ""}`, `{"k": "b", "x": 1}`}},
		{"all of", `{"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"]},{"properties":{"a":{"maximum":3},"b":{"type":"null"}},"additionalProperties":false}]}`,
			[]string{`{"a": 2}`, `{"a": 3, "b": null}`}, []string{`{"a": 4}`, `{"a": 0}`, `{"b": null}`, `{"a": 1, "c": 1}`}},
		{"recursion", `{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},"kids":{"type":"array","items":{"$ref":"#/$defs/n"}}},"required":["v"],"additionalProperties":false}},"$ref":"#/$defs/n"}`,
			[]string{`{"v": 1}`, `{"v": 1, "kids": [{"v": 2, "kids": []}, {"v": 3}]}`}, []string{`{"v": 1, "kids": [1]}`, `{"kids": []}`}},
		{"self union", `{"anyOf":[{"$ref":"#"},{"type":"null"}]}`, []string{`null`}, []string{`1`}},
		{"list", `{"anyOf":[{"type":"null"},{"type":"object","properties":{"next":{"$ref":"#"}},"required":["next"],"additionalProperties":false}]}`, []string{`null`, `{"next": {"next": null}}`}, []string{`{}`}},
		{"nullable", `{"type":"integer","nullable":true}`, []string{`1`, `null`}, []string{`"a"`}},
		{"inferred object", `{"properties":{"a":{"type":"integer"}},"required":["a"],"additionalProperties":false}`, []string{`{"a": 1}`}, []string{`1`, `{}`}},
		{"undeclared required", `{"type":"object","required":["z"],"additionalProperties":{"type":"integer"}}`, []string{`{"z": 1}`, `{"z": 1, "a": 2}`}, []string{`{}`, `{"a": 1}`, `{"z": "x"}`}},
		{"count of properties", `{"type":"object","minProperties":1,"maxProperties":2,"properties":{"a":{"type":"integer"},"b":{"type":"integer"},"c":{"type":"integer"}},"additionalProperties":{"type":"null"}}`,
			[]string{`{"a": 1}`, `{"b": 1, "c": 2}`, `{"c": 1, "x": null}`, `{"x": null, "y": null}`}, []string{`{}`, `{"a": 1, "b": 2, "c": 3}`, `{"a": 1, "x": null, "y": null}`}},
		{"impossible optional", `{"type":"object","properties":{"a":false,"b":{"type":"integer"}},"additionalProperties":false}`, []string{`{}`, `{"b": 1}`}, []string{`{"a": 1}`}},
		{"anything", `{}`, []string{`{"a": [1, {"b": "c"}, []], "d": null}`, `[]`, `"x"`, `1.5`}, []string{`{a}`, `[1 2]`, `'x'`}},
		{"odd keys", `{"type":"object","properties":{"a \"b\"\n":{"type":"null"},"日本":{"type":"null"},"a/b~c":{"type":"null"}},"additionalProperties":false}`,
			[]string{`{"a \"b\"\n": null, "日本": null, "a/b~c": null}`}, []string{`{"x": null}`}},
		{"date", `{"type":"string","format":"date"}`, []string{`"2024-02-29"`, `"2023-12-31"`, `"2000-02-29"`}, []string{`"2023-02-29"`, `"1900-02-29"`, `"2023-13-01"`, `"2023-04-31"`}},
		{"date-time", `{"type":"string","format":"date-time"}`, []string{`"2024-02-29T23:59:59Z"`, `"2024-02-29T00:00:00.123+05:30"`}, []string{`"2024-02-29"`, `"2024-02-29T24:00:00Z"`}},
		{"email", `{"type":"string","format":"email"}`, []string{`"a.b+c@example.com"`}, []string{`"a@"`, `"@b"`, `"a b@c"`}},
		{"ipv4", `{"type":"string","format":"ipv4"}`, []string{`"255.0.10.1"`}, []string{`"256.0.0.1"`, `"1.2.3"`, `"01.2.3.4"`}},
		{"ipv6", `{"type":"string","format":"ipv6"}`, []string{`"::"`, `"::1"`, `"2001:db8::8a2e:370:7334"`, `"1:2:3:4:5:6:7:8"`, `"::ffff:1.2.3.4"`, `"1::"`}, []string{`":1"`, `"1:2:3"`, `"1::2::3"`, `"12345::"`}},
		{"uuid", `{"type":"string","format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`}, []string{`"123e4567e89b12d3a456426614174000"`}},
		{"uri", `{"type":"string","format":"uri"}`, []string{`"https://example.com:80/a/b?x=1#f"`, `"mailto:a@b"`, `"urn:x:y"`}, []string{`"example.com"`, `"http://a b"`}},
		{"hostname", `{"type":"string","format":"hostname"}`, []string{`"a-b.example.com"`}, []string{`"-a.com"`, `"a..b"`, `"a_b"`}},
		{"nested unions", `{"oneOf":[{"type":"array","items":{"anyOf":[{"type":"integer"},{"type":"string","maxLength":1}]}},{"type":"string"}]}`, []string{`[1, "a", 2]`, `"long"`}, []string{`["ab"]`, `1`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := compile(t, v, schema(c.schema))
			for _, text := range c.yes {
				if !accepts(t, g, text) {
					m := g.Matcher()
					_, tok := vocabulary(t, "v4.1")
					n, _ := check(t, m, tok.Encode(text))
					t.Errorf("%s is refused at byte %d", text, n)
				}
			}
			for _, text := range c.no {
				if accepts(t, g, text) {
					t.Errorf("%s is allowed", text)
				}
			}
		})
	}
}
