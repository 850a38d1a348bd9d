package serve

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"testing"
	"time"
)

// The read timeout is for bodies: an answer may take longer. The stall limit is for one write: it must not reach into the next request of a connection.
func TestTimeoutsEndNoHealthyAnswer(t *testing.T) {
	b := demo(t)
	const limit = 150 * time.Millisecond
	s, err := New(Options{StreamStall: limit})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetModel(b.model); err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(s.Handler())
	ts.Config.ReadTimeout = limit
	ts.Start()
	defer ts.Close()
	for _, stream := range []string{"false", "true", "false"} {
		var reused bool
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
		const body = `{"model":"spark-mini","messages":[{"role":"user","content":"Write a story."}],"temperature":1.5,"seed":3,"max_tokens":80,"ignore_eos":true,"stream":`
		req, err := http.NewRequestWithContext(ctx, "POST", ts.URL+"/v1/chat/completions", strings.NewReader(body+stream+"}"))
		if err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		resp, err := ts.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(raw), `"finish_reason":"`) {
			t.Errorf("stream %s, connection reused %v, after %s: %d, %v, %s", stream, reused, time.Since(begin), resp.StatusCode, err, raw)
		}
		time.Sleep(2 * limit) // past every deadline that was left behind
	}
}
