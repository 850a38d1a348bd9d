package serve

import (
	"container/list"
	"strings"
	"sync"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// Bounds of the thoughts that are remembered.
const (
	maxThoughts     = 64 << 10
	maxThoughtBytes = 64 << 20
)

// thoughts remembers what was thought before a tool was called, by the id of the call. Many clients send a call back without the thinking that led to it; the model was
// trained with it, and the rendered prompt differs from what was sampled when it is missing. It is safe for concurrent use.
type thoughts struct {
	mu    sync.Mutex
	byID  map[string]*list.Element
	order list.List // *thought, oldest first
	bytes int
}

type thought struct{ id, text string }

func (t *thoughts) put(id, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.byID == nil {
		t.byID = map[string]*list.Element{}
	}
	if t.byID[id] != nil || len(text) > maxThoughtBytes/8 {
		return
	}
	t.byID[id] = t.order.PushBack(&thought{id, text})
	t.bytes += len(id) + len(text)
	for len(t.byID) > maxThoughts || t.bytes > maxThoughtBytes {
		old := t.order.Remove(t.order.Front()).(*thought)
		delete(t.byID, old.id)
		t.bytes -= len(old.id) + len(old.text)
	}
}

func (t *thoughts) get(id string) (string, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	if e == nil {
		return "", false
	}
	t.order.MoveToBack(e)
	return e.Value.(*thought).text, true
}

// thoughtID is what the ids of one call have in common in all protocols: what follows call_ or toolu_.
func thoughtID(tenant, call string) string {
	_, rest, _ := strings.Cut(call, "_")
	return tenant + "/" + rest
}

// recall gives the turns of a conversation that called tools the thinking that the client left out.
func (s *Server) recall(tenant string, conv *conversation.Conversation) {
	if !conv.Thinking {
		return
	}
	for i := range conv.Messages {
		m := &conv.Messages[i]
		if m.Role != conversation.RoleAssistant || len(m.ToolCalls) == 0 || m.Reasoning != nil {
			continue
		}
		if text, ok := s.thoughts.get(thoughtID(tenant, m.ToolCalls[0].ID)); ok {
			m.Reasoning = &text
		}
	}
}

// thinker follows the events of a response for thoughts.
type thinker struct {
	s      *Server
	tenant string
	head   protocol.Header
	calls  int // of all choices, as the encoders count them
	texts  []strings.Builder
	ids    [][]string
}

// thinker gives nil when there is nothing to remember.
func (s *Server) thinker(tenant string, j *job, head protocol.Header) *thinker {
	conv := &j.req.Conversation
	if !conv.Thinking || len(conv.ActiveTools()) == 0 {
		return nil
	}
	n := max(1, j.req.Params.N)
	return &thinker{s: s, tenant: tenant, head: head, texts: make([]strings.Builder, n), ids: make([][]string, n)}
}

func (t *thinker) see(choice int, events []parse.Event) {
	if t == nil {
		return
	}
	for i := range events {
		switch ev := &events[i]; ev.Kind {
		case parse.Reasoning:
			t.texts[choice].WriteString(ev.Text)
		case parse.ToolStart:
			t.ids[choice] = append(t.ids[choice], thoughtID(t.tenant, t.head.Call(t.calls)))
			t.calls++
		case parse.Finish:
			if t.texts[choice].Len() == 0 {
				break
			}
			for _, id := range t.ids[choice] {
				t.s.thoughts.put(id, t.texts[choice].String())
			}
		}
	}
}

// size is for tests.
func (t *thoughts) size() (n, bytes int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.byID), t.bytes
}
