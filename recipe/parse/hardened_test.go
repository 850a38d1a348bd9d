package parse

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

const mark = "｜DSML｜"

// v4 and v41 spell a block with the given calls.
func block(family string, calls ...string) string {
	if family == "v4" {
		return "<" + mark + "tool_calls>\n" + strings.Join(calls, "\n") + "\n</" + mark + "tool_calls>"
	}
	return "<" + mark + " calls>\n" + strings.Join(calls, "\n") + "\n</" + mark + " calls>"
}

func invoke(name string, params ...string) string {
	return "<" + mark + " invoke name=\"" + name + "\">\n" + strings.Join(params, "\n") + "\n</" + mark + " invoke>"
}

func param(key, flag, value string) string {
	return "<" + mark + " parameter name=\"" + key + "\" string=\"" + flag + "\">" + value + "</" + mark + " parameter>"
}

var weather = Tool{Name: "get_weather", Parameters: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},"wet":{"type":"boolean"},"tags":{"type":"array"}}}`)}

func hardOptions(stage conversation.Stage, tools ...Tool) Options {
	return Options{Parsing: conversation.Parsing{ToolCalls: true, Stage: stage}, Tools: tools}
}

// run gives the outcome of text in pieces of k bytes.
func run(t testing.TB, o Options, text string, k int, cause Cause) outcome {
	t.Helper()
	return drive(t, o, textChunks(pieces(text, k)...), cause)
}

func warningsOf(events []Event) []Warning {
	var out []Warning
	for _, ev := range events {
		if ev.Kind == ToolEnd || ev.Kind == Finish {
			out = append(out, ev.Call.Warnings...)
		}
	}
	return out
}

func TestArgumentsOfHardenedCalls(t *testing.T) {
	open := Tool{Name: "f"}
	args := Tool{Name: "f", Parameters: json.RawMessage(`{"type":"object","properties":{"arguments":{"type":"object"},"x":{"type":"integer"}}}`)}
	city := Tool{Name: "f", Parameters: json.RawMessage(`{"type":"object","properties":{"city":{"type":"string"}}}`)}
	ref := Tool{Name: "f", Parameters: json.RawMessage(`{"type":"object","$defs":{"n":{"anyOf":[{"type":"integer"},{"type":"null"}]}},"properties":{"n":{"$ref":"#/$defs/n"},"s":{"type":"string"},"e":{"enum":["a","b"]}}}`)}
	big := strings.Repeat(`"aaaaaaaaaaaaaaaa", `, 20)
	for _, c := range []struct {
		name string
		tool Tool
		body string
		want string
	}{
		{"the string flag makes a number text", open, param("s", "true", "42"), `{"s": "42"}`},
		{"a declared parameter called arguments is kept", args, param("arguments", "false", `{"x": 1}`), `{"arguments": {"x": 1}}`},
		{"an undeclared wrapper is removed", city, param("input", "false", `{"city":"Paris"}`), `{"city":"Paris"}`},
		{"a wrapper marked as text is removed too", city, param("arguments", "true", `{"city":"Paris"}`), `{"city":"Paris"}`},
		{"a wrapper with foreign keys is kept", city, param("input", "false", `{"town":"Paris"}`), `{"input": {"town":"Paris"}}`},
		{"a wrapper beside another parameter is kept", city, param("input", "false", `{"city":"P"}`) + "\n" + param("city", "true", "Q"), `{"input": {"city":"P"}, "city": "Q"}`},
		{"redirections survive", open, param("s", "true", "make 2>&1"), `{"s": "make 2>&1"}`},
		{"line feeds in values survive", open, param("s", "true", "\nx\n\n"), `{"s": "\nx\n\n"}`},
		{"markup-like text in values survives", open, param("s", "true", "a</b> </ <"+mark+" x </"+mark+" y>"), `{"s": "a</b> </ <` + mark + ` x </` + mark + ` y>"}`},
		{"a key with a quote is escaped", open, param(`k"q`, "true", "v"), `{"k\"q": "v"}`},
		{"a key that holds string= survives", open, param(" string= mode ", "true", "v"), `{" string= mode ": "v"}`},
		{"an empty key survives", open, param("", "true", "v"), `{"": "v"}`},
		{"a key in Japanese survives", open, param("日本", "true", "v"), `{"日本": "v"}`},
		{"a flag in capitals counts", open, param("s", "TRUE", "42"), `{"s": "42"}`},
		{"an unknown flag is as none", open, param("s", "yes", "words"), `{"s": "words"}`},
		{"without a flag JSON is JSON", open, "<" + mark + " parameter name=\"s\">[1]</" + mark + " parameter>", `{"s": [1]}`},
		{"attributes in the other order", open, "<" + mark + " parameter string=\"true\" name=\"s\">1</" + mark + " parameter>", `{"s": "1"}`},
		{"Python literals become JSON", open, param("a", "false", "True") + param("b", "false", "None") + param("c", "false", "False"), `{"a": true, "b": null, "c": false}`},
		{"single quotes become a string", open, param("a", "false", "'x y'"), `{"a": "x y"}`},
		{"what is not JSON becomes a string", open, param("a", "false", "01") + param("b", "false", "NaN") + param("c", "false", "bare words") + param("d", "false", ""), `{"a": "01", "b": "NaN", "c": "bare words", "d": ""}`},
		{"an unclosed document becomes a string", open, param("a", "false", `{"unclosed": `), `{"a": "{\"unclosed\": "}`},
		{"a long document is closed where it breaks", open, param("a", "false", "["+big+"oops"), `{"a": [` + big + `null]}`},
		{"spacing of raw values survives", open, param("a", "false", ` {"x" :1 } `), `{"a":  {"x" :1 } }`},
		{"a duplicate is dropped", open, param("a", "true", "1") + param("a", "true", "2"), `{"a": "1"}`},
		{"a number marked as text follows the schema", weather, param("days", "true", "3"), `{"days": 3}`},
		{"text for a number stays text", weather, param("days", "true", "three"), `{"days": "three"}`},
		{"text marked as JSON follows the schema", weather, param("city", "false", "Paris"), `{"city": "Paris"}`},
		{"a JSON string for a string parameter is decoded once", weather, param("city", "false", `"Paris"`), `{"city": "Paris"}`},
		{"a broken JSON string for a string parameter is text", weather, param("city", "false", `"Par`), `{"city": "\"Par"}`},
		{"a referenced schema counts", ref, param("n", "true", "null") + param("s", "false", "12") + param("e", "true", "1"), `{"n": null, "s": "12", "e": "1"}`},
		{"a JSON body is the arguments", open, `{"city": "Paris", "n": [1, 2]}`, `{"city": "Paris", "n": [1, 2]}`},
		{"a cut JSON body is closed", open, `{"city": "Par`, `{"city": "Par"}`},
		{"nothing is an empty object", open, "", `{}`},
		{"a missing parameter close is seen", open, "<" + mark + ` parameter name="a" string="true">x` + "\n" + param("b", "true", "y"), `{"a": "x\n", "b": "y"}`},
	} {
		text := block("v4.1", invoke("f", c.body))
		if c.tool.Name != "f" {
			text = block("v4.1", invoke(c.tool.Name, c.body))
		}
		for k := 1; k <= len(text); k += 1 + k/3 {
			out := run(t, hardOptions(conversation.StageOff, c.tool), text, k, CauseStop)
			if len(out.final.ToolCalls) != 1 || out.final.ToolCalls[0].Arguments != c.want || out.final.Content != strings.Repeat("oops", strings.Count(c.body, "oops")) || out.final.FinishReason != "tool_calls" {
				t.Errorf("%s, pieces of %d: %+v\nwant %s", c.name, k, out.final, c.want)
				break
			}
			if !json.Valid([]byte(c.want)) {
				t.Fatalf("%s: the expectation is not JSON", c.name)
			}
		}
	}
}

// The names of the following tests are rows of the list of public bug reports that this parser was written against.

func TestBugVllm40801NoMarkupInContentAtAnySplit(t *testing.T) {
	for _, family := range []string{"v4", "v4.1"} {
		text := "Let me look.\n\n" + block(family, invoke("get_weather", param("city", "true", "Paris")))
		for i := 1; i < len(text); i++ {
			out := drive(t, hardOptions(conversation.StageOff, weather), textChunks(text[:i], text[i:]), CauseStop)
			if out.final.Content != "Let me look." || len(out.final.ToolCalls) != 1 || out.final.ToolCalls[0].Arguments != `{"city": "Paris"}` {
				t.Fatalf("%s cut at %d: %+v", family, i, out.final)
			}
		}
	}
}

func TestBugVllm41240HeldTailIsReleased(t *testing.T) {
	for _, text := range []string{"1 < 2 <", "a </", "a\n\n", "x <" + mark, "x <" + mark + " cal", "t</thi"} {
		for _, cause := range []Cause{CauseStop, CauseLength} {
			if out := run(t, hardOptions(conversation.StageOff, weather), text, 1, cause); out.final.Content != text {
				t.Errorf("%q at %v: content %q", text, cause, out.final.Content)
			}
		}
	}
}

func TestBugVllm42878StringValuesStream(t *testing.T) {
	value := strings.Repeat("0123456789", 1000)
	head := "\n\n<" + mark + " calls>\n<" + mark + " invoke name=\"get_weather\">\n<" + mark + " parameter name=\"city\" string=\"true\">"
	p, err := New(hardOptions(conversation.StageOff, weather))
	must(t, err)
	deltas := 0
	p.Text(nil, head, 1)
	for _, part := range pieces(value, 100) {
		for _, ev := range p.Text(nil, part, 1) {
			if ev.Kind == ToolArgs {
				deltas++
			}
		}
		if longest := len("<" + mark + " parameter name=\""); p.Held() > longest {
			t.Fatalf("%d bytes held", p.Held())
		}
	}
	if deltas < 90 {
		t.Fatalf("%d argument deltas of 100 pieces", deltas)
	}
}

func TestBugVllm45877CloseTagIsAUnit(t *testing.T) {
	text := block("v4", invoke("f", param("cmd", "true", "make 2>&1")))
	for i := 1; i < len(text); i++ {
		out := drive(t, hardOptions(conversation.StageOff), textChunks(text[:i], text[i:]), CauseStop)
		if len(out.final.ToolCalls) != 1 || out.final.ToolCalls[0].Arguments != `{"cmd": "make 2>&1"}` {
			t.Fatalf("cut at %d: %+v", i, out.final)
		}
	}
}

func TestBugVllm51914NearMissOpeners(t *testing.T) {
	for _, name := range []string{"toolcalls", "tool_calls", " calls", "calls", "function_calls", " tool_call"} {
		text := "<" + mark + name + ">\n" + invoke("get_weather") + "\n</" + mark + name + ">"
		out := run(t, hardOptions(conversation.StageOff, weather), text, 3, CauseStop)
		if len(out.final.ToolCalls) != 1 || out.final.FinishReason != "tool_calls" || out.final.Content != "" {
			t.Errorf("%q: %+v", name, out.final)
		}
	}
}

func TestBugVllm53831BlockWithoutCall(t *testing.T) {
	out := run(t, hardOptions(conversation.StageOff, weather), "\n\n<"+mark+" calls>\n</"+mark+" calls>", 1, CauseStop)
	if out.final.FinishReason != "stop" || out.final.Content != "" || len(out.final.ToolCalls) != 0 {
		t.Fatalf("%+v", out.final)
	}
	if w := warningsOf(out.events); !reflect.DeepEqual(w, []Warning{WarnEmptyBlock}) {
		t.Fatalf("warnings %v", w)
	}
}

func TestBugVllm41624BlockEndsReasoning(t *testing.T) {
	text := "let me check\n\n" + block("v4.1", invoke("get_weather"))
	out := run(t, hardOptions(conversation.StageReasoning, weather), text, 2, CauseStop)
	if out.final.Reasoning == nil || *out.final.Reasoning != "let me check" || len(out.final.ToolCalls) != 1 {
		t.Fatalf("%+v", out.final)
	}
}

func TestBugDs4QuotedBlockInReasoningStaysReasoning(t *testing.T) {
	call := block("v4.1", invoke("get_weather"))
	for _, text := range []string{"I could write `" + call + "` here", "An example:\n```\n" + call + "\n```\nDone"} {
		out := run(t, hardOptions(conversation.StageReasoning, weather), text+"</think>ok", 1, CauseStop)
		if *out.final.Reasoning != text || out.final.Content != "ok" || len(out.final.ToolCalls) != 0 {
			t.Errorf("%+v", out.final)
		}
	}
}

func TestACallAfterAnUnclosedFenceIsACall(t *testing.T) {
	text := "Sketch:\n```go\nfunc f() {\n\n" + block("v4.1", invoke("get_weather"))
	if out := run(t, hardOptions(conversation.StageReasoning, weather), text, 3, CauseStop); len(out.final.ToolCalls) != 1 {
		t.Fatalf("%+v", out.final)
	}
}

func TestBugVllm54686SnippetsAreNotCalls(t *testing.T) {
	snippet := "<" + mark + " calls>\n<" + mark + " invoke name=\"made_up\">\n<broken"
	o := hardOptions(conversation.StageOff, weather)
	if out := run(t, o, snippet, 1, CauseStop); out.final.Content != snippet || len(out.final.ToolCalls) != 0 {
		t.Errorf("with tools: %+v", out.final)
	}
	o.ToolCalls, o.Tools = false, nil
	if out := run(t, o, snippet, 1, CauseStop); out.final.Content != snippet || len(out.final.ToolCalls) != 0 {
		t.Errorf("without tools: %+v", out.final)
	}
}

func TestBugVllm53227PartialCloserIsHeld(t *testing.T) {
	head := "<" + mark + " calls>\n<" + mark + " invoke name=\"f\">\n<" + mark + " parameter name=\"location\" string=\"true\">Paris</" + mark + " para"
	p, err := New(hardOptions(conversation.StageOff))
	must(t, err)
	evs := p.Text(nil, head, 1)
	evs = p.Text(evs, "meter>\n</"+mark+" invoke>", 1)
	evs = p.Finish(evs, CauseStop)
	for _, ev := range evs {
		if ev.Kind == ToolEnd && ev.Call.Arguments != `{"location": "Paris"}` || ev.Kind == ToolArgs && strings.Contains(ev.Text, "<") {
			t.Fatalf("%+v", ev)
		}
	}
}

func TestBugDs442DriftIntoAnotherDialect(t *testing.T) {
	text := "<" + mark + " calls>\n<" + mark + " invoke name=\"get_weather\">\n<city>Paris</city>\n</invoke>"
	for _, cause := range []Cause{CauseStop, CauseLength} {
		out := run(t, hardOptions(conversation.StageOff, weather), text, 4, cause)
		ends := 0
		for _, ev := range out.events {
			if ev.Kind == ToolEnd {
				ends++
			}
		}
		if len(out.final.ToolCalls) != 1 || ends != 1 || out.final.ToolCalls[0].Arguments != "{}" || !strings.Contains(out.final.Content, "<city>Paris</city>") {
			t.Errorf("%v: %+v", cause, out.final)
		}
	}
}

func TestBugLlamacpp25891StrayCloseAfterACall(t *testing.T) {
	out := run(t, hardOptions(conversation.StageOff, weather), block("v4", invoke("get_weather"))+"</think>", 1, CauseStop)
	if out.final.Content != "" || len(out.final.ToolCalls) != 1 {
		t.Fatalf("%+v", out.final)
	}
}

func TestBugVllm3574StopStrings(t *testing.T) {
	o := Options{Parsing: conversation.Parsing{StopStrings: []string{"DEFGHIJ", "\nUser:"}}}
	for k := 1; k < 12; k++ {
		if out := run(t, o, "ABCDEFGHxx DEFGHIJ tail", k, CauseStop); out.final.Content != "ABCDEFGHxx " || out.events[len(out.events)-1].Stop != "DEFGHIJ" {
			t.Fatalf("pieces of %d: %+v", k, out.final)
		}
	}
	o.Stage, o.StopStrings = conversation.StageReasoning, []string{"STOP"}
	if out := run(t, o, "think STOP on</think>answer STOP tail", 1, CauseStop); *out.final.Reasoning != "think STOP on" || out.final.Content != "answer " {
		t.Fatalf("%+v", out.final)
	}
}

func TestTruncatedCallsAreClosed(t *testing.T) {
	whole := "<" + mark + " calls>\n<" + mark + " invoke name=\"get_weather\">\n" + param("city", "true", "Paris") + "\n" + param("tags", "false", `["a", {"b": 1}]`) + "\n</" + mark + " invoke>\n</" + mark + " calls>"
	for i := 0; i <= len(whole); i++ {
		for _, cause := range []Cause{CauseStop, CauseLength} {
			out := run(t, hardOptions(conversation.StageOff, weather), whole[:i], 7, cause)
			for _, c := range out.final.ToolCalls {
				if !json.Valid([]byte(c.Arguments)) || c.Arguments[0] != '{' {
					t.Fatalf("cut at %d: arguments %s", i, c.Arguments)
				}
			}
			if cause == CauseLength && out.final.FinishReason != "length" {
				t.Fatalf("cut at %d: finish %s", i, out.final.FinishReason)
			}
		}
	}
}

func TestOneCallOnlyWithoutParallelCalls(t *testing.T) {
	o := hardOptions(conversation.StageOff, weather)
	o.NoParallelTools = true
	p, err := New(o)
	must(t, err)
	evs := p.Text(nil, block("v4.1", invoke("get_weather"), invoke("get_weather")), 9)
	if !p.Done() || evs[len(evs)-1].Cause != CauseToolCalls || evs[len(evs)-1].Kind != Finish {
		t.Fatalf("%+v", evs)
	}
	// A call that the token budget cut is no end of its own.
	p, err = New(o)
	must(t, err)
	whole := block("v4.1", `<｜DSML｜ invoke name="get_weather">`+"\n"+`<｜DSML｜ parameter name="location" string="true">Par`)
	p.Text(nil, whole[:strings.Index(whole, "Par")+3], 9)
	if evs = p.Finish(nil, CauseLength); evs[len(evs)-1].Cause != CauseLength {
		t.Errorf("%+v", evs)
	}
}

func TestNamesAreResolved(t *testing.T) {
	tools := []Tool{{Name: "weather::current"}, {Name: "Search"}}
	for written, want := range map[string]string{"weather::current": "weather::current", "current": "weather::current", "search": "Search", " Search\n": "Search"} {
		out := run(t, hardOptions(conversation.StageOff, tools...), block("v4.1", invoke(written)), 5, CauseStop)
		if len(out.final.ToolCalls) != 1 || out.final.ToolCalls[0].Name != want {
			t.Errorf("%q: %+v", written, out.final)
		}
	}
}

func TestTokensDecideWhatIsMarkup(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	o := hardOptions(conversation.StageReasoning, weather)
	o.Vocabulary = tok
	p, err := New(o)
	must(t, err)
	ids := tok.Encode("spelled </think> is text") // ordinary tokens
	ids = append(ids, tok.EncodeSpecial("</think>ok\n\n"+block("v4.1", invoke("get_weather", param("city", "true", "x</think>y"))))...)
	ids = append(ids, 1, 19923) // the end token; what follows is not looked at
	evs, err := p.Tokens(nil, ids, nil)
	must(t, err)
	var got []string
	for _, ev := range merged(evs) {
		got = append(got, ev.Kind.String()+" "+ev.Text+ev.Call.Name)
	}
	want := []string{"reasoning spelled </think> is text", "reasoning_end ", "content ok", "tool get_weather", `args {"city": "x</think>y"}`, "tool_end get_weather", "finish "}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %q\nwant %q", got, want)
	}
	if u := p.Usage(); u.Completion != len(ids)-1 || u.Reasoning != len(tok.Encode("spelled </think> is text"))+1 {
		t.Fatalf("usage %+v of %d tokens", u, len(ids))
	}
}

func TestTurnMarkersEndTheTurn(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	o := Options{Vocabulary: tok}
	p, err := New(o)
	must(t, err)
	evs, err := p.Tokens(nil, []int32{19923, 128803, 19923}, nil)
	must(t, err)
	if len(evs) != 2 || evs[0].Text != "Hello" || evs[1].Kind != Finish || evs[1].Call.Warnings[0] != WarnIllegalControl {
		t.Fatalf("%+v", evs)
	}
}

func TestHalfCharactersAreNeverShown(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	p, err := New(Options{Vocabulary: tok})
	must(t, err)
	text := ""
	for _, id := range []int32{28927, 225, 53153, 234, 74287, 225, 28927} {
		evs, err := p.Tokens(nil, []int32{id}, nil)
		must(t, err)
		for _, ev := range evs {
			if strings.Contains(ev.Text, "\uFFFD") {
				t.Fatalf("shown: %q", ev.Text)
			}
			text += ev.Text
		}
	}
	if text != "😀🎉🚀" {
		t.Fatalf("%q", text)
	}
	if evs := p.Finish(nil, CauseStop); evs[0].Text != "\uFFFD" {
		t.Fatalf("%+v", evs)
	}
}

func TestLogprobsFollowTheirText(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	o := hardOptions(conversation.StageReasoning, weather)
	o.Vocabulary = tok
	p, err := New(o)
	must(t, err)
	ids := []int32{19923, 128822, 28927, 225}
	lps := make([]Logprob, len(ids))
	for i := range lps {
		lps[i].Logprob = -float64(i)
	}
	evs, err := p.Tokens(nil, ids, lps)
	must(t, err)
	evs = p.Finish(evs, CauseStop)
	if len(evs) != 4 || len(evs[0].Logprobs) != 1 || len(evs[2].Logprobs) != 2 || evs[2].Logprobs[1].Logprob != -3 {
		t.Fatalf("%+v", evs)
	}
}

// TestTimeIsLinear doubles the input and compares work, on inputs made to be slow. Timing decides only at a factor that quadratic work
// exceeds by far.
func TestTimeIsLinear(t *testing.T) {
	inputs := map[string]string{
		"line feeds":       "\n",
		"angle brackets":   "<",
		"half marks":       "<" + "｜DSML",
		"marks":            "<" + mark,
		"openers":          "<" + mark + " calls>\n",
		"openers, blanks":  "<" + mark + " calls>" + strings.Repeat(" ", 40),
		"unclosed names":   "<" + mark + " invoke name=\"" + strings.Repeat("x", 200),
		"unclosed keys":    "<" + mark + " invoke name=\"get_weather\">\n<" + mark + " parameter name=\"" + strings.Repeat("k", 900),
		"backslashes":      "<" + mark + " invoke name=\"get_weather\">\n<" + mark + " parameter name=\"tags\" string=\"false\">[" + strings.Repeat("[", 300),
		"closers in value": "<" + mark + " invoke name=\"get_weather\">\n<" + mark + " parameter name=\"city\" string=\"true\">" + strings.Repeat("</"+mark+" param", 50),
		"stop prefixes":    "aaab",
	}
	for name, unit := range inputs {
		for _, compat := range []bool{false, true} {
			for _, k := range []int{1, 4096} {
				size := 1 << 20
				if k == 1 {
					size = 1 << 17
				}
				text := strings.Repeat(unit, size/len(unit))
				o := hardOptions(conversation.StageReasoningContinuation, weather)
				if name == "stop prefixes" {
					o.Stage = conversation.StageContentContinuation
					o.StopStrings = []string{strings.Repeat("a", 3000) + "b", "aac"}
				}
				o.Compat = compat
				start := time.Now()
				p, err := New(o)
				must(t, err)
				var evs []Event
				for _, part := range pieces(text, k) {
					evs = p.Text(evs[:0], part, 1)
				}
				p.Finish(evs[:0], CauseStop)
				if d := time.Since(start); d > 5*time.Second {
					t.Errorf("%s, compat %v, pieces of %d: %v for %d bytes", name, compat, k, d, size)
				} else if testing.Verbose() {
					t.Logf("%s, compat %v, pieces of %d: %v", name, compat, k, d)
				}
			}
		}
	}
}

// FuzzParser checks the promises of the hardened grammar on any text and any cut.
func FuzzParser(f *testing.F) {
	for _, c := range readGolden(f) {
		text := c.Text
		for _, raw := range c.Chunks {
			if raw[0] == '"' {
				text += parseChunk(f, raw).text
			}
		}
		f.Add([]byte(text), uint8(len(text)%7), uint8(0))
	}
	f.Fuzz(func(t *testing.T, data []byte, cut, mode uint8) {
		for _, compat := range []bool{false, true} {
			o := hardOptions(conversation.Stage(mode%4), weather, Tool{Name: "f"})
			o.Compat = compat
			o.StartsInCalls = mode&4 != 0
			o.NoParallelTools = mode&8 != 0
			o.ToolCalls = mode&16 == 0
			if mode&32 != 0 {
				o.StopStrings = []string{"END", "\n\n", "EN"}
			}
			cause := CauseStop
			if mode&64 != 0 {
				cause = CauseLength
			}
			whole := drive(t, o, textChunks(string(data)), cause)
			parts := drive(t, o, textChunks(pieces(string(data), int(cut)+1)...), cause)
			if a, b := merged(whole.events), merged(parts.events); !reflect.DeepEqual(a, b) {
				t.Fatalf("compat %v, %q in pieces of %d\n got %+v\nwant %+v", compat, data, cut+1, b, a)
			}
			if err := checkEvents(whole.events, compat); err != nil {
				t.Fatalf("compat %v, %q: %v", compat, data, err)
			}
		}
	})
}

// FuzzTokens feeds ids, marks among them, at once and one by one.
func FuzzTokens(f *testing.F) {
	tok := tokentest.Load(f, "v4.1")
	palette := []int32{0, 1, 2, 128803, 128821, 128822, 128825, 128825, 128825, 30, 1718, 271, 201, 10699, 1018, 34756, 2329, 1281, 72, 3816, 10767, 67, 4, 3418, 19836, 3320, 19, 32, 28927, 225, 100, 257, -1, 129290,
		72461, 4941, 12548, 40148, 5406, 41523}
	f.Add([]byte{11, 9, 6, 13, 14, 9, 7, 15, 16, 17, 18, 19, 9, 8, 20, 16, 17, 21, 22, 23, 17, 24, 25, 26, 10, 6, 20, 14, 10, 6, 15, 14, 10, 6, 13, 27, 1}, uint8(0))
	f.Add([]byte{28, 5, 29, 30, 6, 31, 4, 28}, uint8(1))
	f.Fuzz(func(t *testing.T, data []byte, mode uint8) {
		ids := make([]int32, len(data))
		for i, b := range data {
			ids[i] = palette[int(b)%len(palette)]
		}
		o := hardOptions(conversation.Stage(mode%4), weather, Tool{Name: "f"})
		o.Vocabulary = tok
		o.Compat = mode&4 != 0
		o.Plain = mode&8 != 0
		if mode&16 != 0 {
			o.StopStrings = []string{"a\"", "\n\n"}
		}
		whole := drive(t, o, []chunk{{ids: ids}}, CauseLength)
		if err := checkEvents(whole.events, o.Compat); err != nil {
			t.Fatalf("%v: %v", ids, err)
		}
		one := make([]chunk, len(ids))
		for i := range ids {
			one[i] = chunk{ids: ids[i : i+1]}
		}
		parts := drive(t, o, one, CauseLength)
		if err := checkEvents(parts.events, o.Compat); err != nil {
			t.Fatalf("%v one by one: %v", ids, err)
		}
		if a, b := merged(whole.events), merged(parts.events); !o.Compat && !reflect.DeepEqual(a, b) {
			t.Fatalf("%v\n got %+v\nwant %+v", ids, b, a)
		}
	})
}

func checkEvents(events []Event, compat bool) error {
	args, open := "", -1
	for i, ev := range events {
		switch ev.Kind {
		case Reasoning, Text, ToolArgs:
			if ev.Text == "" || strings.ToValidUTF8(ev.Text, "") != ev.Text {
				return fmt.Errorf("event %d: text %q", i, ev.Text)
			}
			if ev.Kind == ToolArgs {
				if ev.Call.Index != open {
					return fmt.Errorf("event %d: arguments of call %d while %d is open", i, ev.Call.Index, open)
				}
				args += ev.Text
			}
		case ToolStart:
			if open >= 0 {
				return fmt.Errorf("event %d: call in call", i)
			}
			open, args = ev.Call.Index, ""
		case ToolEnd:
			if ev.Call.Arguments != args {
				return fmt.Errorf("event %d: arguments %q, streamed %q", i, ev.Call.Arguments, args)
			}
			if !compat && (!json.Valid([]byte(args)) || strings.TrimSpace(args)[0] != '{') {
				return fmt.Errorf("event %d: arguments %q", i, args)
			}
			open = -1
		case Finish:
			if i != len(events)-1 || open >= 0 {
				return fmt.Errorf("event %d: finish at the wrong place", i)
			}
		}
	}
	if len(events) == 0 || events[len(events)-1].Kind != Finish {
		return fmt.Errorf("no finish")
	}
	return nil
}

func BenchmarkText(b *testing.B) {
	tok := tokentest.Load(b, "v4.1")
	ids := tok.Encode(strings.Repeat("The quick brown fox jumps over the lazy dog. ", 100))
	b.ReportAllocs()
	var evs []Event
	for b.Loop() {
		p, _ := New(Options{Vocabulary: tok, Parsing: conversation.Parsing{ToolCalls: true}})
		for i := range ids {
			evs, _ = p.Tokens(evs[:0], ids[i:i+1], nil)
		}
		p.Finish(evs[:0], CauseStop)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(ids)), "ns/token")
}
