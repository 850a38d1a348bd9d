package pyjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestNumbersPrintAsTheReferenceDoes(t *testing.T) {
	for _, c := range []struct{ in, python, rust, exact string }{
		{"0", "0", "0", "0"},
		{"-0", "-0.0", "-0.0", "0"},
		{"-0.0", "-0.0", "-0.0", "-0.0"},
		{"1.0", "1.0", "1.0", "1.0"},
		{"1e5", "100000.0", "100000.0", "100000.0"},
		{"1e15", "1000000000000000.0", "1000000000000000.0", "1000000000000000.0"},
		{"1e16", "1e+16", "1e+16", "1e+16"},
		{"1.5e-7", "1.5e-07", "1.5e-7", "1.5e-07"},
		{"0.00001", "1e-05", "0.00001", "1e-05"},
		{"0.0000123456", "1.23456e-05", "0.0000123456", "1.23456e-05"},
		{"1e-6", "1e-06", "1e-6", "1e-06"},
		{"0.0001", "0.0001", "0.0001", "0.0001"},
		{"1e-10", "1e-10", "1e-10", "1e-10"},
		{"18446744073709551615", "18446744073709551615", "18446744073709551615", "18446744073709551615"},
		{"18446744073709551616", "1.8446744073709552e+19", "1.8446744073709552e+19", "18446744073709551616"},
		{"-9223372036854775808", "-9223372036854775808", "-9223372036854775808", "-9223372036854775808"},
		{"123456789012345678901234567890", "1.2345678901234568e+29", "1.2345678901234568e+29", "123456789012345678901234567890"},
		{"2.5e300", "2.5e+300", "2.5e+300", "2.5e+300"},
		{"1e-300", "1e-300", "1e-300", "1e-300"},
		{"100.0", "100.0", "100.0", "100.0"},
		{"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e+308", "1.7976931348623157e+308"},
	} {
		for style, want := range map[Style]string{Python: c.python, Rust: c.rust, Exact: c.exact} {
			v, err := Parse([]byte(c.in))
			if err != nil {
				t.Fatalf("%s: %v", c.in, err)
			}
			if got := v.String(style); got != want {
				t.Errorf("%s in style %d: %s, want %s", c.in, style, got, want)
			}
		}
	}
}

func TestOrderEscapesAndDuplicates(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{`{"b":1,"a":{"z":null,"y":[true,false]}}`, `{"b": 1, "a": {"z": null, "y": [true, false]}}`},
		{`{"a":1,"b":2,"a":3}`, `{"a": 3, "b": 2}`},
		{`"\u0041\u00e9\ud83d\ude00\/\u2028<>&\u007f"`, "\"Aé😀/\u2028<>&\x7f\""},
		{`"\u0000\u001f\b\f\n\r\t\"\\"`, `"\u0000\u001f\b\f\n\r\t\"\\"`},
		{" [ ] ", "[]"},
		{"{}", "{}"},
	} {
		v, err := Parse([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
		} else if got := v.String(Python); got != c.want {
			t.Errorf("%s: %s, want %s", c.in, got, c.want)
		}
	}
	var many strings.Builder
	for i := range 100 {
		fmt.Fprintf(&many, `,"k%d":%d,"k%d":"again"`, i, i, i/2)
	}
	v, err := Parse([]byte("{" + many.String()[1:] + "}"))
	if err != nil || len(v.Members) != 100 || v.Members[49].Value.Text != "again" || v.Get("k50").Text != "50" || v.Get("none") != nil {
		t.Errorf("large object with duplicates: %v, %d members", err, len(v.Members))
	}
}

func TestParseRefusesWhatHasNoValue(t *testing.T) {
	for _, in := range []string{"", " ", "{", "[1,]", `{"a"}`, `{"a":1,}`, "01", "1.", ".5", "-", "+1", "1e", "1E400", "-1e999", "tru", "nul", `"`, `"\x"`, `"\u12"`,
		`"\ud800"`, `"\udc00"`, `"\ud800\u0041"`, "\"\n\"", "\"\xff\"", "1 2", "NaN", "'a'", strings.Repeat("[", 128) + strings.Repeat("]", 128)} {
		if v, err := Parse([]byte(in)); err == nil {
			t.Errorf("%.40q parses as %s", in, v.String(Python))
		}
	}
	if _, err := Parse([]byte(strings.Repeat("[", 127) + strings.Repeat("]", 127))); err != nil {
		t.Errorf("127 levels: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e-7,"x\u00e9"],"b":null}`, `[]`, `"\ud83d\ude00"`, `-0`, `1e400`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		v, err := Parse(src)
		if err != nil {
			return
		}
		if !json.Valid(src) {
			t.Fatalf("%q parses but is not JSON", src)
		}
		out := v.Append(nil, Exact)
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%q prints as %q: %v", src, out, err)
		}
		if twice := again.Append(nil, Exact); !bytes.Equal(out, twice) {
			t.Fatalf("%q prints as %q, then as %q", src, out, twice)
		}
	})
}
