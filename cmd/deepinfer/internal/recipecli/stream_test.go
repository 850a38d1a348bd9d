package recipecli

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"reflect"
	"strings"
	"testing"
)

func unzipped(t *testing.T, elem ...string) string {
	t.Helper()
	z, err := gzip.NewReader(strings.NewReader(golden(t, elem...)))
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// joinRows joins adjacent pieces of one text in one step: where a text is cut is not part of the format.
func joinRows(rows any) any {
	list, ok := rows.([]any)
	if !ok {
		return rows
	}
	var out []any
	for _, r := range list {
		row := append([]any(nil), r.([]any)...)
		kind := row[1]
		if n := len(out); n > 0 && (kind == "reasoning" || kind == "content" || kind == "args") {
			last := out[n-1].([]any)
			end := len(row) - 1
			if len(last) == len(row) && reflect.DeepEqual(last[:end], row[:end]) {
				last[end] = last[end].(string) + row[end].(string)
				continue
			}
		}
		out = append(out, row)
	}
	return out
}

func TestParseEqualsTheReference(t *testing.T) {
	in := golden(t, "recipe", "parse", "testdata", "outputs.jsonl")
	out, report, err := run(t, in, "parse", "--compat")
	if err != nil {
		t.Fatal(err, report)
	}
	want, got := decodeLines(t, in), decodeLines(t, out)
	if len(got) != 466 || len(want) != 466 {
		t.Fatalf("%d answers to %d lines", len(got), len(want))
	}
	for i := range want {
		for _, k := range []string{"id", "events", "final", "finals", "splits_tried", "consumed", "error"} {
			a, b := got[i][k], want[i][k]
			if k == "events" {
				a, b = joinRows(a), joinRows(b)
				if x, ok := b.([]any); ok && len(x) == 0 {
					b = nil
				}
			}
			if !reflect.DeepEqual(a, b) {
				t.Errorf("%v: %s\n got %.400v\nwant %.400v", want[i]["id"], k, a, b)
			}
		}
	}
}

func TestStreamEqualsTheReference(t *testing.T) {
	in := unzipped(t, "testdata", "recipe", "streams.jsonl.gz")
	out, report, err := run(t, in, "stream", "--compat")
	if err != nil {
		t.Fatal(err, report)
	}
	compare(t, in, out, "done", "body", "consumed", "error")
	// recipe/chat, recipe/responses and recipe/messages compare the events themselves; here their number of steps and their kinds.
	want, got := decodeLines(t, in), decodeLines(t, out)
	for i := range want {
		a, b := kinds(got[i]["sse"]), kinds(want[i]["sse"])
		if a != b {
			t.Errorf("%v: events\n got %s\nwant %s", want[i]["id"], a, b)
		}
	}
}

// kinds spells the steps and names of events, repeats left out.
func kinds(sse any) string {
	var b bytes.Buffer
	last := ""
	for _, e := range sse.([]any) {
		ev := e.(map[string]any)
		name, _ := ev["event"].(string)
		step, _ := json.Marshal(ev["step"])
		if s := string(step) + " " + name + "; "; s != last {
			b.WriteString(s)
			last = s
		}
	}
	return b.String()
}

func TestParseAndStreamAnswerBadLines(t *testing.T) {
	for _, c := range []struct{ command, line string }{
		{"parse", `{"id":1,"profile":"v9","chunks":[]}`},
		{"parse", `{"id":1,"options":{"stage":"on"},"chunks":[]}`},
		{"parse", `{"id":1,"chunks":[7]}`},
		{"parse", `{"id":1,"chunks":[{}]}`},
		{"parse", `{"id":1,"chunks":[],"finish":"tired"}`},
		{"parse", `{"id":1,"text":"x","split":"sometimes"}`},
		{"parse", `{"id":1,"chunks":["x"],"options":{"stop_sequences":[""]}}`},
		{"stream", `{"id":1,"api":"smoke","request":{},"chunks":[]}`},
		{"stream", `{"id":1,"api":"chat","request":{},"chunks":[]}`},
		{"stream", `{"id":1,"api":"chat","request":{"model":"m","messages":[{"role":"user","content":"x"}]},"chunks":[true]}`},
	} {
		out, _, err := run(t, c.line, c.command)
		if err != nil {
			t.Errorf("%s %s: %v", c.command, c.line, err)
			continue
		}
		a := decodeLines(t, out)[0]
		fault, _ := a["error"].(map[string]any)
		if a["id"] != float64(1) || fault == nil || fault["message"] == "" || fault["status"] != float64(400) {
			t.Errorf("%s %s: %v", c.command, c.line, a)
		}
	}
}

func TestParseHardened(t *testing.T) {
	out, _, err := run(t, `{"id":"x","text":"\n\n<｜DSML｜toolcalls>\n<｜DSML｜invoke name=\"F\">\n<｜DSML｜parameter name=\"a\" string=\"false\">True</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>","options":{"stage":"off","tools":[{"name":"f"}]}}`, "parse")
	if err != nil {
		t.Fatal(err)
	}
	final := decodeLines(t, out)[0]["final"].(map[string]any)
	calls := final["tool_calls"].([]any)
	if len(calls) != 1 || calls[0].(map[string]any)["name"] != "f" || calls[0].(map[string]any)["arguments"] != `{"a": true}` || final["finish_reason"] != "tool_calls" {
		t.Fatalf("%v", final)
	}
}
