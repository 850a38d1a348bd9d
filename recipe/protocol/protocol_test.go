package protocol

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

func TestJSONWriterWritesJSON(t *testing.T) {
	var w JSON
	w.Open().Key("a").Array().Int(-1).Float(0.5).Float(2).Float(math.Inf(1)).Bool(true).Null().Str("<\"\n\u2028>").End()
	w.Key("b").Open().Close().Key("c").Array().End().Name(`q"`).Raw([]byte(`{"x":1}`)).Key("d").OrNull(nil).Close()
	const want = "{\"a\":[-1,0.5,2.0,null,true,null,\"<\\\"\\n\u2028>\"],\"b\":{},\"c\":[],\"q\\\"\":{\"x\":1},\"d\":null}"
	if string(w.B) != want || !json.Valid(w.B) {
		t.Fatalf("got  %s\nwant %s", w.B, want)
	}
}

func TestLoneSurrogatesAreReplacedAndPairsKept(t *testing.T) {
	for in, want := range map[string]string{
		`"a\ud83d\ude00b"`:     "",
		`"a\ud83d b"`:          `"a\uFFFD b"`,
		`"\ude00"`:             `"\uFFFD"`,
		`"\ud83d\ud83d\ude00"`: `"\uFFFD\ud83d\ude00"`,
		`"\\ud83d"`:            "",
		`"\u12"`:               "",
		`"\`:                   "",
		`\`:                    "",
		``:                     "",
	} {
		got, changed := replaceLoneSurrogates([]byte(in))
		if want == "" {
			want = in
		}
		if string(got) != want || changed != (want != in) {
			t.Errorf("%s: %s %v, want %s", in, got, changed, want)
		}
	}
}

func TestSchemasAreChecked(t *testing.T) {
	for schema, want := range map[string]string{
		`{"type":"object","properties":{"a":{"type":["string","null"]},"b":{"anyOf":[{"const":1},true]}},"required":["a"]}`: "",
		`{"type":"strin"}`:                          `"strin" is not valid under any of the schemas listed in the 'anyOf' keyword`,
		`{"type":[]}`:                               `[] is not valid under any`,
		`{"properties":[]}`:                         `[] is not of type "object"`,
		`{"properties":{"a":3}}`:                    `3 is not of types "boolean", "object"`,
		`{"items":{"required":"a"}}`:                `"a" is not of type "array"`,
		`{"required":["a","a"]}`:                    `non-unique`,
		`{"anyOf":[]}`:                              `[] has less than 1 item`,
		`{"minLength":-1}`:                          `-1 is less than the minimum of 0`,
		`{"maxItems":1.5}`:                          `1.5 is not of type "integer"`,
		`{"pattern":"("}`:                           `"(" is not a "regex"`,
		`{"pattern":"(?<=a)b"}`:                     "",
		`{"uniqueItems":1}`:                         `1 is not of type "boolean"`,
		`"x"`:                                       `"x" is not of types "boolean", "object"`,
		`{"$defs":{"d":{"type":1}},"unknown":[[]]}`: `1 is not valid under any`,
	} {
		v, err := pyjson.Parse([]byte(schema))
		if err != nil {
			t.Fatal(err)
		}
		if got := checkSchema(&v); (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", schema, got, want)
		}
	}
}

func TestModelNames(t *testing.T) {
	off := false
	o := Options{Models: map[string]Model{"flash": {Name: "flash"}, "deepseek-chat": {Name: "flash", Thinking: &off}, "claude-*": {Name: "flash"}, "claude-opus*": {Name: "pro", V4: true}}}
	for name, want := range map[string]string{"flash": "flash", "claude-sonnet-9": "flash", "claude-opus-9": "pro", "deepseek-chat": "flash"} {
		if m, err := o.resolve(name); err != nil || m.Name != want {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
	if _, err := o.resolve("gpt"); err == nil || err.Status() != 404 || !strings.Contains(err.Message, "claude-*") {
		t.Errorf("unknown: %v", err)
	}
}

func TestErrorsHideInternals(t *testing.T) {
	e := AsError(json.Unmarshal([]byte("{"), new(int)))
	if e.Status() != 500 || e.Message != "internal error" {
		t.Fatalf("%+v", e)
	}
	for status, want := range map[int]string{401: "invalid_api_key", 402: "insufficient_balance", 429: "rate_limit_exceeded", 500: "internal_error", 503: "overloaded", 404: "not_found"} {
		if got := string(NewError(status, "x").OpenAI()); !strings.Contains(got, `"code":"`+want+`"`) {
			t.Errorf("%d: %s", status, got)
		}
	}
}

func TestInputOfACustomCall(t *testing.T) {
	for _, c := range []struct {
		arguments, input string
		ok               bool
	}{{`{"input": "a\"b"}`, `a"b`, true}, {`{"input":""}`, "", true}, {`{}`, "", false}, {`{"other":1}`, `{"other":1}`, false}, {`{"input":1}`, `{"input":1}`, false}, {`x`, `x`, false}} {
		if input, ok := CustomInput(c.arguments); input != c.input || ok != c.ok {
			t.Errorf("%s: %q, %v", c.arguments, input, ok)
		}
	}
}
