package recipecli

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

// run executes `recipe ARGS` and gives what it wrote.
func run(t *testing.T, in string, args ...string) (out, report string, err error) {
	t.Helper()
	cmd := Command()
	var stdout, stderr bytes.Buffer
	cmd.SetIn(strings.NewReader(in))
	cmd.SetOut(&stdout)
	cmd.SetErr(&stderr)
	cmd.SetArgs(args)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	err = cmd.Execute()
	return stdout.String(), stderr.String(), err
}

func decodeLines(t *testing.T, text string) (out []map[string]any) {
	t.Helper()
	for _, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, v)
	}
	return out
}

func golden(t *testing.T, elem ...string) string {
	t.Helper()
	data, err := os.ReadFile(tokentest.Path(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// compare checks the named keys of every answer against the golden line, both ways: a key that one has the other must have.
func compare(t *testing.T, input, output string, keys ...string) {
	t.Helper()
	want, got := decodeLines(t, input), decodeLines(t, output)
	if len(got) != len(want) {
		t.Fatalf("%d answers to %d lines", len(got), len(want))
	}
	for i := range want {
		for _, k := range append(keys, "id") {
			if !reflect.DeepEqual(got[i][k], want[i][k]) {
				t.Errorf("%v: %s is %.300v, want %.300v", want[i]["id"], k, got[i][k], want[i][k])
			}
		}
	}
}

func TestEncodeConversations(t *testing.T) {
	in := golden(t, "recipe", "encoding", "testdata", "prompts.jsonl")
	// One tokenizer of either family, or none, serves both profiles.
	for _, args := range [][]string{{"encode", "--compat"}, {"encode", "--compat", "--tokenizer", "v4"}, {"encode", "--compat", "--tokenizer", "v4.1-recipe"}} {
		out, _, err := run(t, in, args...)
		if err != nil {
			t.Fatal(err)
		}
		compare(t, in, out, "prompt", "tokens", "special_ranges", "images", "inference", "parsing", "conversation", "error")
	}
}

func TestEncodeReleaseAndFIM(t *testing.T) {
	in := golden(t, "recipe", "encoding", "testdata", "prompts-hf.jsonl")
	out, _, err := run(t, in, "encode", "--compat")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, in, out, "prompt", "tokens")
}

func TestEncodeAnswersBadRequests(t *testing.T) {
	in := strings.Join([]string{
		`{"id":1,"api":"smoke","request":{}}`,
		`{"id":2,"api":"conversation","profile":"v9","request":{}}`,
		`{"id":3,"api":"conversation","request":{"messages":[{"role":"king","content":""}]}}`,
		`{"id":4,"api":"conversation","request":"{\"messages\":"}`,
		`{"id":5,"api":"conversation"}`,
		`{"id":6,"api":"conversation","request":{"messages":[{"role":"user","content":"lone \ud83d"}]}}`,
		`{"id":7,"api":"conversation","request":{"messages":[{"role":"user","content":"Hi"}],"reasoning_effort":101}}`,
		`{"id":8,"api":"fim","profile":"v4.1/recipe","request":{"prompt":7}}`,
		`{"id":9,"api":"conversation","request":"{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"thinking_mode\":false}"}`,
		``,
		`{"api":"fim","profile":"derived","request":{"prompt":[19923,14]}}`,
	}, "\n")
	out, _, err := run(t, in, "encode")
	if err != nil {
		t.Fatal(err)
	}
	answers := decodeLines(t, out)
	if len(answers) != 10 {
		t.Fatalf("%d answers", len(answers))
	}
	for i, a := range answers[:8] {
		fault, _ := a["error"].(map[string]any)
		if a["id"] != float64(i+1) || fault == nil || fault["message"] == "" || fault["status"] != float64(400) {
			t.Errorf("answer %d: %v", i+1, a)
		}
	}
	if p := answers[8]["prompt"]; p != "<｜begin▁of▁sentence｜><｜User｜>Hi<｜Assistant｜></think>" {
		t.Errorf("raw body: %v", answers[8])
	}
	if ids := answers[9]["tokens"]; !reflect.DeepEqual(ids, []any{19923.0, 14.0}) || answers[9]["id"] != nil {
		t.Errorf("prompt of ids: %v", answers[9])
	}
}

// recorded gives the lines of a file of testdata/recipe.
func recorded(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(tokentest.Path("testdata", "recipe", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var r io.Reader = f
	if strings.HasSuffix(name, ".gz") {
		if r, err = gzip.NewReader(f); err != nil {
			t.Fatal(err)
		}
	}
	data, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, line := range strings.Split(string(data), "\n") {
		if line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func TestEncodeRecordedRequests(t *testing.T) {
	in := recorded(t, "prompts.jsonl.gz")
	out, _, err := run(t, in, "encode", "--compat")
	if err != nil {
		t.Fatal(err)
	}
	want, got := decodeLines(t, in), decodeLines(t, out)
	if len(got) != len(want) {
		t.Fatalf("%d answers to %d lines", len(got), len(want))
	}
	if len(want) != 1015 {
		t.Errorf("%d recorded requests, want 1015", len(want))
	}
	for i := range want {
		if fault, _ := want[i]["error"].(map[string]any); fault != nil && fault["stage"] == "decode" { // the text of those is not promised
			if mine, _ := got[i]["error"].(map[string]any); mine == nil || mine["status"] != fault["status"] {
				t.Errorf("%v: %v, want an error", want[i]["id"], got[i])
			}
			continue
		}
		for _, k := range []string{"id", "prompt", "tokens", "special_ranges", "images", "inference", "parsing", "conversation", "stream", "resolved_profile", "namespace_tools", "error"} {
			if !reflect.DeepEqual(got[i][k], want[i][k]) {
				t.Errorf("%v: %s is %.300v, want %.300v", want[i]["id"], k, got[i][k], want[i][k])
			}
		}
	}
}

// Public report vllm-project/vllm#54677: the same question by three protocols must be the same prompt.
func TestThreeProtocolsRenderTheSamePrompt(t *testing.T) {
	for _, profile := range []string{"v4.1/recipe", "v4/recipe"} {
		for _, compat := range []bool{false, true} {
			model := map[string]string{"v4.1/recipe": "DeepSeek-V4.1-Flash", "v4/recipe": "DeepSeek-V4-Pro"}[profile]
			in := strings.ReplaceAll(strings.ReplaceAll(`{"id":1,"api":"chat","profile":"PROFILE","request":{"model":"MODEL","messages":[{"role":"user","content":"What is 2+2?"}]}}
{"id":2,"api":"responses","profile":"PROFILE","request":{"model":"MODEL","input":"What is 2+2?"}}
{"id":3,"api":"messages","profile":"PROFILE","request":{"model":"MODEL","max_tokens":100,"messages":[{"role":"user","content":"What is 2+2?"}]}}
{"id":4,"api":"conversation","profile":"PROFILE","request":{"messages":[{"role":"user","content":"What is 2+2?"}]}}`, "PROFILE", profile), "MODEL", model)
			args := []string{"encode"}
			if compat {
				args = append(args, "--compat")
			}
			out, _, err := run(t, in, args...)
			if err != nil {
				t.Fatal(err)
			}
			a := decodeLines(t, out)
			for i := range a {
				if a[i]["tokens"] == nil || !reflect.DeepEqual(a[i]["tokens"], a[0]["tokens"]) {
					t.Errorf("%s, compat %v: line %d renders %v, line 1 %v", profile, compat, i+1, a[i]["prompt"], a[0]["prompt"])
				}
			}
		}
	}
}

func TestEncodeResolvesMaxTokens(t *testing.T) {
	in := recorded(t, "limits.jsonl")
	out, _, err := run(t, in, "encode", "--compat")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, in, out, "max_tokens", "error")
}

func TestTokenizeVectors(t *testing.T) {
	in := golden(t, "recipe", "token", "testdata", "vectors.jsonl")
	out, _, err := run(t, in, "tokenize")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, in, out, "ids")
	out, _, err = run(t, in, "tokenize", "--special", "--tokenizer", "v4")
	if err != nil {
		t.Fatal(err)
	}
	want, got := decodeLines(t, in), decodeLines(t, out)
	for i := range want {
		ids := want[i]["ids"]
		if added, ok := want[i]["added"]; ok {
			ids = added
		}
		if !reflect.DeepEqual(got[i]["ids"], ids) {
			t.Errorf("%v with --special: %v, want %v", want[i]["id"], got[i]["ids"], ids)
		}
	}
}

func TestDetokenizeVectors(t *testing.T) {
	in := golden(t, "recipe", "token", "testdata", "detok.jsonl")
	out, _, err := run(t, in, "detokenize")
	if err != nil {
		t.Fatal(err)
	}
	compare(t, in, out, "safe", "safe_end")
	want := decodeLines(t, in)
	for i, a := range decodeLines(t, out) {
		if w := want[i]["text"]; w != nil && a["text"] != w {
			t.Errorf("%v: text %q, want %q", a["id"], a["text"], w)
		}
		text := a["safe_end"].(string)
		for j := range a["safe"].([]any) {
			text = a["safe"].([]any)[len(a["safe"].([]any))-1-j].(string) + text
		}
		if a["text"] != text {
			t.Errorf("answer %d: text %q is not the sum of the pieces %q", i, a["text"], text)
		}
	}
}

func TestTokenizeEdges(t *testing.T) {
	in := `{"id":"a","text":"x \ud800 <b>&"}` + "\r\n" + `{"id":"b","hex":"zz"}` + "\n" + `{"id":"c"}` + "\n" + `{"id":"d","text":"","repeat":3}` + "\n" + `{"id":"e","text":"xx","repeat":999999999999}` +
		"\n" + `{"id":"f","text":"x","hex":"00"}` + "\n" + `{"id":"g","text":"x","repeat":-1}`
	out, _, err := run(t, in, "tokenize")
	if err != nil {
		t.Fatal(err)
	}
	a := decodeLines(t, out)
	if len(a) != 7 || a[0]["ids"] == nil || !reflect.DeepEqual(a[3]["ids"], []any{}) {
		t.Errorf("%s", out)
	}
	for _, i := range []int{1, 2, 4, 5, 6} {
		if a[i]["error"] == nil {
			t.Errorf("line %d: %v, want an error", i+1, a[i])
		}
	}
	back, _, err := run(t, `{"id":1,"ids":`+jsonOf(t, a[0]["ids"])+"}", "detokenize")
	if err != nil || decodeLines(t, back)[0]["text"] != "x \uFFFD <b>&" || !strings.Contains(back, "<b>&") {
		t.Errorf("%v, %s", err, back)
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestUnreadableLinesSetTheExitCode(t *testing.T) {
	out, report, err := run(t, "nonsense\n{\"id\":1,\"text\":\"Hello\"}\n[1]\n{\"id\":2,\"text\":7}\n", "tokenize")
	var exit *ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("error %v", err)
	}
	a := decodeLines(t, out)
	if len(a) != 4 || a[0]["error"] == nil || a[1]["ids"] == nil || a[2]["error"] == nil || a[3]["error"] == nil {
		t.Errorf("answers %s", out)
	}
	for _, want := range []string{"line 1:", "line 3:", "line 4:"} {
		if !strings.Contains(report, want) {
			t.Errorf("report %q lacks %q", report, want)
		}
	}
}

func TestBadTokenizerIsAUsageError(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(broken, []byte(`{"model":{}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{broken, filepath.Join(t.TempDir(), "none.json")} {
		_, _, err := run(t, `{"id":1,"text":"x"}`, "tokenize", "--tokenizer", path)
		var exit *ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 2 || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if out, _, err := run(t, "", "tokenize"); err != nil || out != "" {
		t.Errorf("no input: %q, %v", out, err)
	}
}
