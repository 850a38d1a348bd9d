package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/core/serve/store"
)

type response struct {
	ID, Status string
	Background bool
	Error      *struct{ Code, Message string }
	Output     []struct {
		Type, ID  string
		Encrypted string `json:"encrypted_content"`
		Content   []struct{ Text string }
	}
	Usage *struct {
		Input  int `json:"input_tokens"`
		Output int `json:"output_tokens"`
	}
}

func (b *bench) respond(t testing.TB, method, path, body string, want int) (r response, raw []byte) {
	t.Helper()
	status, _, raw := b.do(t, method, path, body)
	if status != want {
		t.Fatalf("%s %s %s: %d %s, want %d", method, path, body, status, raw, want)
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return r, raw
}

// ended polls a response until it has ended.
func (b *bench) ended(t testing.TB, id string) (response, []byte) {
	t.Helper()
	for range 6000 {
		r, raw := b.respond(t, "GET", "/v1/responses/"+id, "", 200)
		if r.Status != store.InProgress {
			return r, raw
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("the response does not end")
	return response{}, nil
}

const short = `{"model":"spark-mini","input":"What is 2 + 3?","reasoning":{"effort":"none"},"temperature":0,"max_output_tokens":40%s}`

// long is an answer that nobody waits for.
const long = `{"model":"spark-mini","input":"Write a long story.","reasoning":{"effort":"none"},"temperature":1.5,"max_output_tokens":4000%s}`

func TestBackground(t *testing.T) {
	b := demo(t)
	r, _ := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, `,"background":true`), 200)
	if r.Status != store.InProgress || !r.Background || len(r.Output) != 0 {
		t.Errorf("at once: %+v", r)
	}
	r, raw := b.ended(t, r.ID)
	if r.Status != store.Completed || len(r.Output) != 1 || r.Output[0].Content[0].Text != "2 + 3 = 5" || r.Usage == nil {
		t.Errorf("at the end: %s", raw)
	}

	status, _, events := b.do(t, "GET", "/v1/responses/"+r.ID+"?stream=true", "")
	if status != 200 || !bytes.HasPrefix(events, []byte("event: response.created\n")) || !bytes.Contains(events, []byte("event: response.completed\n")) {
		t.Fatalf("replay: %d %s", status, events)
	}
	status, _, rest := b.do(t, "GET", "/v1/responses/"+r.ID+"?stream=true&starting_after=3", "")
	if k := bytes.Index(events, rest); status != 200 || len(rest) == 0 || k <= 0 || len(events) != k+len(rest) || !bytes.Contains(rest[:bytes.IndexByte(rest, '}')*4], []byte(`"sequence_number":4`)) {
		t.Errorf("from event 4: %d %s", status, rest)
	}
	for path, code := range map[string]int{"?stream=true&starting_after=x": 400, "?stream=true&starting_after=-2": 400} {
		b.respond(t, "GET", "/v1/responses/"+r.ID+path, "", code)
	}
	// A response that was not made in the background has no events to read again, and cannot be cancelled later.
	r, _ = b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, ""), 200)
	b.respond(t, "GET", "/v1/responses/"+r.ID+"?stream=true", "", 400)
	b.respond(t, "POST", "/v1/responses/"+r.ID+"/cancel", "", 400)
	b.free(t)
}

func TestBackgroundStreamsAndOutlivesItsClient(t *testing.T) {
	b := demo(t)
	ctx, leave := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, "POST", b.http.URL+"/v1/responses", strings.NewReader(fmt.Sprintf(strings.Replace(long, "4000", "60", 1), `,"background":true,"stream":true`)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	head := make([]byte, 400)
	n, err := resp.Body.Read(head)
	if err != nil {
		t.Fatal(err)
	}
	leave()
	resp.Body.Close()
	_, after, ok := strings.Cut(string(head[:n]), `"id":"`)
	id, _, _ := strings.Cut(after, `"`)
	if !ok || !strings.HasPrefix(id, "resp_") {
		t.Fatalf("%s", head[:n])
	}
	if r, raw := b.ended(t, id); r.Status != store.Incomplete && r.Status != store.Completed {
		t.Errorf("%s", raw)
	}
	b.free(t)
}

func TestCancelAndDeleteInTheBackground(t *testing.T) {
	b := demo(t)
	r, _ := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(long, `,"background":true`), 200)
	b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, `,"previous_response_id":"`+r.ID+`"`), 400) // still runs
	for range 2 {                                                                                        // the second time it has ended
		r, raw := b.respond(t, "POST", "/v1/responses/"+r.ID+"/cancel", "", 200)
		if r.Status != store.Cancelled {
			t.Fatalf("%s", raw)
		}
	}
	if r, raw := b.respond(t, "GET", "/v1/responses/"+r.ID, "", 200); r.Status != store.Cancelled {
		t.Errorf("%s", raw)
	}
	_, _, events := b.do(t, "GET", "/v1/responses/"+r.ID+"?stream=true", "")
	if !bytes.Contains(events, []byte("event: response.cancelled\n")) {
		t.Errorf("the events end with %s", events[max(0, len(events)-300):])
	}
	b.free(t)

	r, _ = b.respond(t, "POST", "/v1/responses", fmt.Sprintf(long, `,"background":true`), 200)
	if _, raw := b.respond(t, "DELETE", "/v1/responses/"+r.ID, "", 200); !bytes.Contains(raw, []byte(`"deleted":true`)) {
		t.Errorf("%s", raw)
	}
	b.free(t)
	b.respond(t, "GET", "/v1/responses/"+r.ID, "", 404)
	b.respond(t, "DELETE", "/v1/responses/"+r.ID, "", 404)
	b.respond(t, "POST", "/v1/responses/"+r.ID+"/cancel", "", 404)
	b.respond(t, "GET", "/v1/responses/"+r.ID+"/input_items", "", 404)
}

func TestStoreFalse(t *testing.T) {
	b := demo(t)
	kept, _ := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, ""), 200)
	r, raw := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, `,"store":false,"previous_response_id":"`+kept.ID+`"`), 200)
	if !bytes.Contains(raw, []byte(`"store":false`)) || r.Usage.Input <= kept.Usage.Input {
		t.Errorf("%s", raw)
	}
	b.respond(t, "GET", "/v1/responses/"+r.ID, "", 404)
	b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, `,"previous_response_id":"`+r.ID+`"`), 400)
	b.respond(t, "POST", "/v1/responses", fmt.Sprintf(short, `,"store":false,"background":true`), 400)
}

func TestInputItems(t *testing.T) {
	b := demo(t)
	body := `{"model":"spark-mini","reasoning":{"effort":"none"},"temperature":0,"max_output_tokens":8,"input":[{"role":"user","content":"one"},{"role":"assistant","content":"two"},
		{"type":"message","id":"msg_mine","role":"user","content":[{"type":"input_text","text":"three"}]}]}`
	r, _ := b.respond(t, "POST", "/v1/responses", body, 200)
	type page struct {
		Data []struct {
			ID, Type, Role string
			Content        json.RawMessage
		}
		First string `json:"first_id"`
		Last  string `json:"last_id"`
		More  bool   `json:"has_more"`
	}
	get := func(query string) (p page) {
		t.Helper()
		status, _, raw := b.do(t, "GET", "/v1/responses/"+r.ID+"/input_items"+query, "")
		if status != 200 || json.Unmarshal(raw, &p) != nil {
			t.Fatalf("%d %s", status, raw)
		}
		return p
	}
	all := get("?order=asc")
	if len(all.Data) != 3 || all.Data[2].ID != "msg_mine" || all.Data[0].Type != "message" || all.Data[0].ID == "" || all.First != all.Data[0].ID || all.Last != "msg_mine" || all.More {
		t.Errorf("%+v", all)
	}
	one := get("?limit=1")
	if len(one.Data) != 1 || one.Data[0].ID != "msg_mine" || !one.More {
		t.Errorf("%+v", one)
	}
	if rest := get("?after=" + one.Last); len(rest.Data) != 2 || rest.Data[1].ID != all.Data[0].ID {
		t.Errorf("%+v", rest)
	}
	if none := get("?order=asc&after=msg_mine"); len(none.Data) != 0 || none.More {
		t.Errorf("%+v", none)
	}
	for _, q := range []string{"?limit=0", "?limit=101", "?limit=x", "?order=up", "?after=nothing"} {
		b.respond(t, "GET", "/v1/responses/"+r.ID+"/input_items"+q, "", 400)
	}
	// An item can stand for itself in a later request.
	again, _ := b.respond(t, "POST", "/v1/responses", strings.Replace(body, `{"role":"user","content":"one"}`, `{"type":"item_reference","id":"`+all.Data[0].ID+`"}`, 1), 200)
	if again.Usage.Input != r.Usage.Input {
		t.Errorf("%d tokens with a reference, %d without", again.Usage.Input, r.Usage.Input)
	}
	b.respond(t, "POST", "/v1/responses", `{"model":"spark-mini","input":[{"type":"item_reference","id":"msg_unknown_0"}]}`, 400)
}

func TestSealedReasoning(t *testing.T) {
	b := demo(t)
	const ask = `{"model":"spark-mini","temperature":0,"max_output_tokens":120,"store":false,"include":["reasoning.encrypted_content"],"reasoning":{"effort":"high"},
		"tools":[{"type":"function","name":"search_code","description":"Search the source code","parameters":{"type":"object","properties":{"pattern":{"type":"string","description":"Pattern"},"path":{"type":"string","description":"Where to search"}},"required":["pattern"]}}],"input":[{"role":"user","content":"Search for TODO in test."}%s]}`
	r, raw := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(ask, ""), 200)
	if len(r.Output) == 0 || r.Output[0].Type != "reasoning" || !strings.HasPrefix(r.Output[0].Encrypted, "v1.") {
		t.Fatalf("%s", raw)
	}
	var whole struct{ Output []json.RawMessage }
	if err := json.Unmarshal(raw, &whole); err != nil {
		t.Fatal(err)
	}
	var call struct {
		CallID string `json:"call_id"`
	}
	if err := json.Unmarshal(whole.Output[len(whole.Output)-1], &call); err != nil || call.CallID == "" {
		t.Fatalf("%s: %v", raw, err)
	}
	follow := func(reasoning string) string {
		return fmt.Sprintf(ask, fmt.Sprintf(`,%s,%s,{"type":"function_call_output","call_id":%q,"output":"[\"test/server.txt:52\"]"}`, reasoning, whole.Output[len(whole.Output)-1], call.CallID))
	}
	count := func(reasoning string, want int) (int, []byte) {
		t.Helper()
		body := strings.ReplaceAll(follow(reasoning), call.CallID, "call_elsewhere_0") // by its own id the server would recall the thinking
		status, _, raw := b.do(t, "POST", "/v1/responses/input_tokens", body)
		var n struct {
			Input int `json:"input_tokens"`
		}
		if err := json.Unmarshal(raw, &n); status != want || err != nil {
			t.Fatalf("%d %s, want %d", status, raw, want)
		}
		return n.Input, raw
	}
	sealed := func(seal string) string {
		return fmt.Sprintf(`{"type":"reasoning","summary":[],"encrypted_content":%q}`, seal)
	}
	plain, _ := count(string(whole.Output[0]), 200)
	if opened, _ := count(sealed(r.Output[0].Encrypted), 200); plain != opened {
		t.Errorf("%d tokens with the text of the reasoning, %d with its seal", plain, opened)
	}
	changed := []byte(r.Output[0].Encrypted)
	changed[len(changed)-5] ^= 1
	for _, bad := range []string{string(changed), "v1.AAAA", "gAAAAA", "v1.%%%"} {
		if _, raw := count(sealed(bad), 400); !bytes.Contains(raw, []byte(`"invalid_encrypted_content"`)) {
			t.Errorf("%s", raw)
		}
	}
	// A key that is gone takes the reasoning with it and nothing else.
	other, err := newSealer([]byte("0123456789abcdef"))
	if err != nil {
		t.Fatal(err)
	}
	if gone, _ := count(sealed(other.seal("x", "")), 200); gone >= plain {
		t.Errorf("%d tokens without the reasoning, %d with it", gone, plain)
	}
	if text, err := other.open(other.seal("thought", "a"), "a"); err != nil || text != "thought" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := other.open(other.seal("thought", "a"), "b"); err == nil {
		t.Error("another tenant opens it")
	}
	if _, err := newSealer([]byte("short")); err == nil {
		t.Error("a short secret is taken")
	}
}

func TestTruncation(t *testing.T) {
	b := demo(t)
	var turns strings.Builder
	for i := range 12 {
		fmt.Fprintf(&turns, `{"role":"user","content":"%s"},{"role":"assistant","content":"ok %d"},`, strings.Repeat("one two three four five six seven ", 300), i)
	}
	body := `{"model":"spark-mini","instructions":"Be brief.","reasoning":{"effort":"none"},"temperature":0,"max_output_tokens":8%s,"input":[` + turns.String() + `{"role":"user","content":"What is 2 + 3?"}]}`
	if _, raw := b.respond(t, "POST", "/v1/responses/input_tokens", fmt.Sprintf(body, ""), 200); !bytes.Contains(raw, []byte(`"response.input_tokens"`)) {
		t.Errorf("%s", raw)
	}
	_, raw := b.respond(t, "POST", "/v1/responses", fmt.Sprintf(body, ""), 400)
	if !bytes.Contains(raw, []byte(`"context_length_exceeded"`)) {
		t.Errorf("%s", raw)
	}
	// Only how much is kept is looked at: running it would take long.
	r, err := http.NewRequest("POST", "/v1/responses", nil)
	if err != nil {
		t.Fatal(err)
	}
	m := b.server.model.Load()
	j, err := b.server.decodeResponse(r, m, fmt.Appendf(nil, body, `,"truncation":"auto"`))
	if err != nil {
		t.Fatal(err)
	}
	n, err := m.promptTokens(&j.req.Conversation, nil)
	if err != nil || n+8 > m.Context || n < m.Context/2 {
		t.Errorf("%d tokens are left of a context of %d: %v", n, m.Context, err)
	}
	msgs := j.req.Conversation.Messages
	if msgs[0].Text() != "Be brief." || msgs[len(msgs)-1].Text() != "What is 2 + 3?" || len(j.req.Warnings) != 1 || !strings.Contains(j.req.Warnings[0], "truncation") {
		t.Errorf("%d messages, warnings %q", len(msgs), j.req.Warnings)
	}
}

// A response that ran when the server was killed is reported as failed by the next one; those that had ended are as they were.
func TestStoreOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	st, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	body := func(id, status string) []byte {
		return fmt.Appendf(nil, `{"id":%q,"object":"response","status":%q,"background":true,"error":null,"output":[]}`, id, status)
	}
	for id, status := range map[string]string{"resp_run": store.InProgress, "resp_done": store.Completed} {
		if err := st.Put(&store.Record{ID: id, Status: status, Response: body(id, status), Input: []byte("[]"), Output: []byte("[]")}); err != nil {
			t.Fatal(err)
		}
	}
	st.Close()
	if st, err = store.Open(store.Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, err := New(Options{Store: st})
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{"resp_run": store.Failed, "resp_done": store.Completed} {
		rec, err := s.store.Get("", id)
		if err != nil || rec.Status != want || !bytes.Contains(rec.Response, []byte(`"status":"`+want+`"`)) || bytes.Contains(rec.Response, []byte("server_error")) != (want == store.Failed) {
			t.Errorf("%+v, %v", rec, err)
		}
	}
	if _, err := s.earlier("", "resp_run"); err == nil || !strings.Contains(err.Error(), "failed and cannot be continued") {
		t.Errorf("%v", err)
	}
}

func TestTenantsAreTheirKeys(t *testing.T) {
	s, err := New(Options{Keys: []string{"key-a", "key-b"}})
	if err != nil {
		t.Fatal(err)
	}
	of := func(header, value string) string {
		r, err := http.NewRequest("GET", "/v1/responses/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(header, value)
		return s.tenant(r)
	}
	if a, b := of("Authorization", "Bearer key-a"), of("X-Api-Key", "key-a"); a != b || a == "" || strings.Contains(a, "key") {
		t.Errorf("%q and %q", a, b)
	}
	if of("X-Api-Key", "key-a") == of("X-Api-Key", "key-b") {
		t.Error("two keys are one tenant")
	}
}

func TestPathsOfResponses(t *testing.T) {
	b := demo(t)
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/responses", 405}, {"GET", "/v1/responses/", 404}, {"GET", "/v1/responses/resp_none", 404}, {"PUT", "/v1/responses/resp_none", 405},
		{"GET", "/v1/responses/resp_none/cancel", 405}, {"GET", "/v1/responses/resp_none/other", 404}, {"GET", "/v1/responses/{id}", 404}, {"GET", "/v1/responses//cancel", 404},
		{"DELETE", "/v1/responses/input_tokens", 405}, {"GET", "/v1/models/{id}", 404}, {"POST", "/anthropic/v1/messages", 400}, {"POST", "/beta/completions", 400},
	} {
		if status, _, raw := b.do(t, c.method, c.path, "{"); status != c.status || !json.Valid(raw) {
			t.Errorf("%s %s: %d %s, want %d", c.method, c.path, status, raw, c.status)
		}
	}
}
