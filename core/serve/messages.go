package serve

import (
	"maps"
	"net/http"

	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// messagesOptions also takes the names of Claude models, which clients of this protocol send for their side tasks.
func (s *Server) messagesOptions(m *Model) protocol.Options {
	opt := s.protocolOptions(m)
	opt.Models = maps.Clone(opt.Models)
	opt.Models["claude-*"] = m.names[m.Name]
	return opt
}

// messages is POST /v1/messages.
func (s *Server) messages(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw.(*reply), r, func(m *Model, body []byte) (*job, error) {
		req, err := messages.Decode(body, s.messagesOptions(m))
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
		req, err := messages.Decode(body, s.messagesOptions(m))
		if err != nil {
			return nil, err
		}
		s.recall(s.tenant(r), &req.Conversation)
		n, err := m.conversationTokens(r.Context(), &req.Conversation)
		return messages.CountTokens(int64(n)), err
	})
}
