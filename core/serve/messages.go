package serve

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// messagesOptions also takes the names of Claude models, which clients of this protocol send for their side tasks.
func (s *Server) messagesOptions(m *Model, body []byte) protocol.Options {
	opt := s.protocolOptions(m)
	var q struct{ Model string }
	if json.Unmarshal(body, &q) != nil || !strings.HasPrefix(q.Model, "claude-") {
		return opt // a body that is no JSON is refused when it is decoded
	}
	if _, known := opt.Models[q.Model]; !known {
		names := map[string]protocol.Model{q.Model: m.names[m.Name]}
		for k, v := range opt.Models {
			names[k] = v
		}
		opt.Models = names
	}
	return opt
}

// messages is POST /v1/messages.
func (s *Server) messages(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw.(*reply), r, func(m *Model, body []byte) (*job, error) {
		req, err := messages.Decode(body, s.messagesOptions(m, body))
		if err != nil {
			return nil, err
		}
		return &job{m: m, req: &req.Request, prefix: "msg_", encoder: func(h protocol.Header) wire {
			st := messages.NewStream(req, h)
			st.SetKey(s.sealer.sign)
			return st
		}}, nil
	})
}

// countTokens is POST /v1/messages/count_tokens.
func (s *Server) countTokens(rw http.ResponseWriter, r *http.Request) {
	s.count(rw.(*reply), r, func(m *Model, body []byte) ([]byte, error) {
		req, err := messages.Decode(body, s.messagesOptions(m, body))
		if err != nil {
			return nil, err
		}
		s.recall(s.tenant(r), &req.Conversation)
		n, err := m.conversationTokens(r.Context(), &req.Conversation)
		return messages.CountTokens(int64(n)), err
	})
}
