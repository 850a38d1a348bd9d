package serve

import (
	"context"
	"net/http"

	legacy "github.com/deepinfer-go/deepinfer/recipe/completion"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/parse"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// completions is POST /v1/completions.
func (s *Server) completions(rw http.ResponseWriter, r *http.Request) {
	s.answer(rw.(*reply), r, func(m *Model, body []byte) (*job, error) {
		req, err := legacy.Decode(body, s.protocolOptions(m))
		if err != nil {
			return nil, err
		}
		x, err := readExtensions(body, &req.Request)
		if err != nil {
			return nil, err
		}
		if req.Params.Echo && req.Params.Logprobs {
			return nil, protocol.Invalid("echo", "echo together with logprobs is not supported: the prompt is not scored").WithCode("unsupported_value")
		}
		c := &req.Completion
		for i, id := range c.PromptIDs {
			if !m.Tokenizer.Known(id) {
				return nil, protocol.Invalid("prompt", "prompt[%d]: there is no token %d; ids go from 0 to %d", i, id, m.Tokenizer.VocabSize()-1)
			}
		}
		text := c.Prompt
		if c.PromptIDs != nil && req.Params.Echo {
			text = m.Tokenizer.Decode(c.PromptIDs)
		}
		return &job{
			m: m, req: &req.Request, ext: x, prefix: "cmpl-",
			render: func(context.Context) (*encoding.Prompt, error) {
				p, err := m.Encoder.EncodeCompletion(c, encoding.Options{})
				if err != nil {
					return nil, protocol.Invalid("prompt", "%s", err.Error())
				}
				return p, nil
			},
			parsing: func(how conversation.Parsing) parse.Options { return req.Parsing() },
			budget:  req.ResolveMaxTokens,
			encoder: func(h protocol.Header) wire { return legacy.NewStream(req, h, text) },
		}, nil
	})
}
