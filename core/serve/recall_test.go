package serve

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestThinkingThatTheClientLeftOutIsRecalled(t *testing.T) {
	b := demo(t)
	const chat = `{"model":"spark-mini","temperature":0,"max_tokens":120,"reasoning_effort":"high","tools":[{"type":"function","function":{"name":"search_code","description":"Search the source code",
		"parameters":{"type":"object","properties":{"pattern":{"type":"string","description":"Pattern"},"path":{"type":"string","description":"Where to search"}},"required":["pattern"]}}}],
		"messages":[{"role":"user","content":"Search for TODO in test."}%s]}`
	status, _, raw := b.do(t, "POST", "/v1/chat/completions", fmt.Sprintf(chat, ""))
	var c struct {
		Choices []struct{ Message json.RawMessage }
	}
	if err := json.Unmarshal(raw, &c); status != 200 || err != nil {
		t.Fatalf("%d %s", status, raw)
	}
	var m map[string]json.RawMessage
	if err := json.Unmarshal(c.Choices[0].Message, &m); err != nil || m["tool_calls"] == nil || len(m["reasoning_content"]) < 10 {
		t.Fatalf("%s", raw)
	}
	var calls []struct{ ID string }
	if err := json.Unmarshal(m["tool_calls"], &calls); err != nil {
		t.Fatal(err)
	}
	length := func(message any, id string) int {
		t.Helper()
		text, err := json.Marshal(message)
		if err != nil {
			t.Fatal(err)
		}
		status, _, raw := b.do(t, "POST", "/tokenize", fmt.Sprintf(chat, fmt.Sprintf(`,%s,{"role":"tool","tool_call_id":%q,"content":"[]"}`, text, id)))
		var n struct{ Count int }
		if err := json.Unmarshal(raw, &n); status != 200 || err != nil {
			t.Fatalf("%d %s", status, raw)
		}
		return n.Count
	}
	with := length(m, calls[0].ID)
	reasoning := m["reasoning_content"]
	delete(m, "reasoning_content")
	if n := length(m, calls[0].ID); n != with {
		t.Errorf("%d tokens without the thinking, %d with it", n, with)
	}
	m["reasoning_content"] = json.RawMessage(`""`) // what the client says counts, also when it says nothing
	if n := length(m, calls[0].ID); n >= with {
		t.Errorf("%d tokens with empty thinking, %d with %s", n, with, reasoning)
	}
	// The same call through Messages.
	id := "toolu" + strings.TrimPrefix(calls[0].ID, "call")
	message := `{"model":"spark-mini","max_tokens":2000,"thinking":{"type":"enabled","budget_tokens":1024},"tools":[{"name":"search_code","description":"Search the source code","input_schema":{"type":"object","properties":{}}}],
		"messages":[{"role":"user","content":"Search for TODO in test."},{"role":"assistant","content":[%s{"type":"tool_use","id":"%s","name":"search_code","input":{"pattern":"TODO"}}]},
		{"role":"user","content":[{"type":"tool_result","tool_use_id":"%s","content":"[]"}]}]}`
	_, _, without := b.do(t, "POST", "/v1/messages/count_tokens", fmt.Sprintf(message, "", id, id))
	_, _, given := b.do(t, "POST", "/v1/messages/count_tokens", fmt.Sprintf(message, `{"type":"thinking","thinking":`+string(reasoning)+`,"signature":""},`, id, id))
	_, _, other := b.do(t, "POST", "/v1/messages/count_tokens", fmt.Sprintf(message, "", "toolu_x_0", "toolu_x_0"))
	if !bytes.Equal(without, given) || bytes.Equal(without, other) || !bytes.Contains(without, []byte("input_tokens")) {
		t.Errorf("without %s, with %s, of another call %s", without, given, other)
	}
}

func TestThoughtsAreBounded(t *testing.T) {
	var ts thoughts
	for i := range maxThoughts + 100 {
		ts.put(fmt.Sprint(i), "x")
	}
	if _, ok := ts.get("0"); ok {
		t.Error("the oldest is still there")
	}
	if n, _ := ts.size(); n != maxThoughts {
		t.Errorf("%d thoughts", n)
	}
	long := strings.Repeat("x", maxThoughtBytes/9)
	for i := range 30 {
		ts.put(fmt.Sprint("long", i), long)
	}
	if _, bytes := ts.size(); bytes > maxThoughtBytes {
		t.Errorf("%d bytes", bytes)
	}
	if text, ok := ts.get("long29"); !ok || text != long {
		t.Error("the newest is gone")
	}
	ts.put("huge", long+long)
	if _, ok := ts.get("huge"); ok {
		t.Error("one takes a quarter of the memory")
	}
}
