package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// hot asks with a temperature at which the free model writes noise, so that only the grammar can give the form.
func hot(seed int, fields string) string {
	return fmt.Sprintf(`{"model":"spark-mini","temperature":1.6,"seed":%d,"max_tokens":600,%s}`, seed, fields)
}

// Row 17 of the public reports: reasoning is free, the content is valid against the schema, streamed and not.
func TestJSONSchemaHoldsTheAnswerAndNotTheThinking(t *testing.T) {
	b := demo(t)
	const schema = `"response_format":{"type":"json_schema","json_schema":{"name":"person","strict":true,"schema":{"type":"object","properties":{
		"name":{"type":"string","maxLength":12},"age":{"type":"integer","minimum":0,"maximum":150},"job":{"type":"string","enum":["farmer","baker"]}},"required":["name","age","job"],"additionalProperties":false}}},
		"messages":[{"role":"user","content":"Julia Jones is 64 years old. Julia is a farmer."}]`
	for seed, thinking := range []string{`"thinking":{"type":"disabled"},`, `"thinking":{"type":"enabled","budget_tokens":24},`} {
		c := b.chat(t, hot(seed, thinking+schema))
		msg := c.Choices[0].Message
		var person struct {
			Name, Job string
			Age       *int
		}
		dec := json.NewDecoder(strings.NewReader(*msg.Content))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&person); err != nil || person.Age == nil || *person.Age > 150 || person.Job != "farmer" && person.Job != "baker" || len([]rune(person.Name)) > 12 || c.Choices[0].Finish != "stop" {
			t.Errorf("%q (finish %s): %v", *msg.Content, c.Choices[0].Finish, err)
		}
		if (msg.Reasoning != "") != (seed == 1) {
			t.Errorf("reasoning %q", msg.Reasoning)
		}
		status, _, raw := b.do(t, "POST", "/v1/chat/completions", strings.Replace(hot(seed, thinking+schema), "{", `{"stream":true,`, 1))
		var text strings.Builder
		for line := range bytes.Lines(raw) {
			var chunk struct {
				Choices []struct{ Delta struct{ Content string } }
			}
			if data, ok := bytes.CutPrefix(line, []byte("data: {")); ok && json.Unmarshal(append([]byte("{"), data...), &chunk) == nil && len(chunk.Choices) > 0 {
				text.WriteString(chunk.Choices[0].Delta.Content)
			}
		}
		if status != 200 || text.String() != *msg.Content {
			t.Errorf("streamed %q, whole %q", text.String(), *msg.Content)
		}
	}
}

func TestThinkingBudget(t *testing.T) {
	b := demo(t)
	c := b.chat(t, `{"model":"spark-mini","temperature":1.6,"seed":3,"max_tokens":40,"return_token_ids":true,"thinking":{"type":"enabled","budget_tokens":10},"messages":[{"role":"user","content":"Write a long story."}]}`)
	end := slices.Index(c.IDs[0], endThink(t, b))
	if end < 0 || end > 10 || c.Choices[0].Message.Content == nil {
		t.Errorf("the thinking ends at token %d of %v", end, c.IDs[0])
	}
}

func endThink(t *testing.T, b *bench) int32 {
	t.Helper()
	id, ok := b.model.Tokenizer.ID("</think>")
	if !ok {
		t.Fatal("no </think>")
	}
	return id
}

// Row 25 of the templates' reports: required and named choices are honoured, thinking on or off.
func TestForcedToolCalls(t *testing.T) {
	b := demo(t)
	const tools = `"tools":[{"type":"function","function":{"name":"get_weather","strict":true,"parameters":{"type":"object","properties":{"city":{"type":"string","enum":["Oslo","Rome"]},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city","days"],"additionalProperties":false}}},
		{"type":"function","function":{"name":"noop","parameters":{"type":"object","properties":{}}}}],"messages":[{"role":"user","content":"Hello!"}]`
	for seed, choice := range []string{`"tool_choice":"required","thinking":{"type":"disabled"},`, `"tool_choice":{"type":"function","function":{"name":"get_weather"}},"parallel_tool_calls":false,"thinking":{"type":"enabled","budget_tokens":16},`} {
		c := b.chat(t, hot(seed, choice+tools))
		calls := c.Choices[0].Message.ToolCalls
		if len(calls) == 0 || c.Choices[0].Finish != "tool_calls" || seed == 1 && len(calls) != 1 {
			t.Errorf("%d calls, finish %s", len(calls), c.Choices[0].Finish)
		}
		for _, k := range calls {
			var args struct {
				City string
				Days int
			}
			err := json.Unmarshal([]byte(k.Function.Arguments), &args)
			if ok := k.Function.Name == "noop" && seed == 0 || k.Function.Name == "get_weather" && (args.City == "Oslo" || args.City == "Rome") && args.Days >= 1 && args.Days <= 9; err != nil || !ok {
				t.Errorf("call %+v: %v", k, err)
			}
		}
	}
}

func TestRegexAndChoices(t *testing.T) {
	b := demo(t)
	c := b.chat(t, hot(5, `"n":3,"thinking":{"type":"disabled"},"response_format":{"type":"regex","regex":"[A-Z][a-z]{2,8}, [0-9]{4}"},"messages":[{"role":"user","content":"Where and when?"}]`))
	for _, k := range c.Choices {
		if !regexp.MustCompile(`^[A-Z][a-z]{2,8}, [0-9]{4}$`).MatchString(*k.Message.Content) {
			t.Errorf("%q", *k.Message.Content)
		}
	}
	if len(c.Choices) != 3 || *c.Choices[0].Message.Content == *c.Choices[1].Message.Content && *c.Choices[1].Message.Content == *c.Choices[2].Message.Content {
		t.Errorf("%d choices, all the same", len(c.Choices))
	}
	const format = `{"model":"spark-mini","temperature":1.6,"%s":200,"thinking":{"type":"disabled"},%s}`
	schema := `{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],"additionalProperties":false}`
	_, _, raw := b.do(t, "POST", "/v1/responses", fmt.Sprintf(format, "max_output_tokens", `"input":"Is it?","text":{"format":{"type":"json_schema","name":"x","strict":true,"schema":`+schema+`}}`))
	if !bytes.Contains(raw, []byte(`"text":"{\"ok\": true}"`)) && !bytes.Contains(raw, []byte(`"text":"{\"ok\": false}"`)) {
		t.Errorf("responses: %s", raw)
	}
}

// A grammar that cannot be made fails its own request, with the place in the schema.
func TestBadGrammarsAreRefused(t *testing.T) {
	b := demo(t)
	for name, c := range map[string]struct{ fields, param string }{
		"an impossible schema": {`"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"type":"string","minLength":5,"maxLength":2}}}`, "response_format"},
		"an expression":        {`"response_format":{"type":"regex","regex":"([a-z"}`, "response_format"},
		"both":                 {`"ignore_eos":true,"response_format":{"type":"json_object"}`, "ignore_eos"},
	} {
		status, _, raw := b.do(t, "POST", "/v1/chat/completions", hot(1, c.fields+`,"messages":[{"role":"user","content":"json"}]`))
		if status != 400 || !bytes.Contains(raw, []byte(`"param":"`+c.param+`"`)) {
			t.Errorf("%s: %d %s", name, status, raw)
		}
	}
	b.free(t)
}

func TestPenaltiesAndBiases(t *testing.T) {
	b := demo(t)
	const ask = `"thinking":{"type":"disabled"},"messages":[{"role":"user","content":"What is 2 + 3?"}]`
	base := fmt.Sprintf(`{"model":"spark-mini","temperature":0,"max_tokens":24,"return_token_ids":true,%s%%s}`, ask)
	free := b.chat(t, fmt.Sprintf(base, ""))
	first := free.IDs[0][0]
	if biased := b.chat(t, fmt.Sprintf(base, fmt.Sprintf(`,"logit_bias":{"%d":-100}`, first))); biased.IDs[0][0] == first {
		t.Errorf("token %d comes first although its bias is -100", first)
	}
	wanted := free.IDs[0][2]
	for i, id := range b.chat(t, fmt.Sprintf(base, fmt.Sprintf(`,"logit_bias":{"%d":100}`, wanted))).IDs[0][:4] {
		if id != wanted {
			t.Errorf("token %d is %d although the bias of %d is 100", i, id, wanted)
		}
	}
	count := func(ids []int32) (most int) {
		n := map[int32]int{}
		for _, id := range ids {
			n[id]++
			most = max(most, n[id])
		}
		return most
	}
	story := strings.Replace(base, "What is 2 + 3?", "Write a long story about the sea.", 1)
	story = strings.Replace(story, `"max_tokens":24`, `"max_tokens":160,"ignore_eos":true`, 1)
	plain, punished := b.chat(t, fmt.Sprintf(story, "")), b.chat(t, fmt.Sprintf(story, `,"frequency_penalty":2,"presence_penalty":2`))
	if p, q := count(plain.IDs[0]), count(punished.IDs[0]); q >= p {
		t.Errorf("the most frequent token occurs %d times, with penalties %d times", p, q)
	}
	for _, bad := range []string{`,"logit_bias":{"999999":1}`, `,"logit_bias":{"5":101}`, `,"frequency_penalty":2.5`, `,"repetition_penalty":-1`} {
		if status, _, raw := b.do(t, "POST", "/v1/chat/completions", fmt.Sprintf(base, bad)); status != 400 {
			t.Errorf("%s: %d %s", bad, status, raw)
		}
	}
}
