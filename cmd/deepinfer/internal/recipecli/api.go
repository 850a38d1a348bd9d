package recipecli

import (
	"encoding/json"
	"fmt"

	"github.com/deepinfer-go/deepinfer/recipe/chat"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/messages"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/responses"
)

// decoders read the body of each protocol, and give the keys that only its answers have.
var decoders = map[string]func(body []byte, opts protocol.Options) (*protocol.Request, map[string]any, error){
	"chat": func(body []byte, opts protocol.Options) (*protocol.Request, map[string]any, error) {
		r, err := chat.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, nil, nil
	},
	"responses": func(body []byte, opts protocol.Options) (*protocol.Request, map[string]any, error) {
		r, err := responses.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		extra := make(map[string]any)
		names := make(map[string][2]string) // of the declared tools, not of those that a search found later
		for i := range r.Conversation.Tools {
			t := &r.Conversation.Tools[i]
			if pair, ok := r.NamespaceTools()[t.Name]; ok && !t.Deferred {
				names[t.Name] = pair
			}
		}
		if len(names) > 0 {
			extra["namespace_tools"] = names
		}
		return &r.Request, extra, nil
	},
	"messages": func(body []byte, opts protocol.Options) (*protocol.Request, map[string]any, error) {
		r, err := messages.Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, nil, nil
	},
}

// decodingOptions reads the options of a line. Without --compat every model name is accepted and the line's profile decides the family.
func (s *session) decodingOptions(api string, raw json.RawMessage, profile encoding.Profile) (protocol.Options, error) {
	o := protocol.Options{Compat: s.compat}
	if !s.compat {
		o.V4 = !profile.V41()
	}
	var in struct {
		DefaultThinkingMode      *bool             `json:"default_thinking_mode"`
		ReasoningContentBehavior string            `json:"reasoning_content_behavior"`
		ResponsesWebSearch       string            `json:"responses_web_search"`
		MessagesWebSearch        string            `json:"messages_web_search"`
		ThinkingBound            int64             `json:"thinking_max_tokens_upper_bound"`
		PlainBound               int64             `json:"non_thinking_max_tokens_upper_bound"`
		Aliases                  map[string]string `json:"aliases"`
	}
	if len(raw) == 0 {
		return o, nil
	}
	if err := json.Unmarshal(raw, &in); err != nil {
		return o, err
	}
	o.ThinkingOff = in.DefaultThinkingMode != nil && !*in.DefaultThinkingMode
	o.RequireReasoning = in.ReasoningContentBehavior == "reject"
	search := in.ResponsesWebSearch
	if api == "messages" {
		search = in.MessagesWebSearch
	}
	switch search {
	case "reject":
		o.WebSearch = protocol.WebSearchReject
	case "drop":
		o.WebSearch = protocol.WebSearchDrop
	case "":
	default:
		return o, fmt.Errorf("web search %q: want drop or reject", search)
	}
	o.ThinkingMaxTokens, o.PlainMaxTokens = in.ThinkingBound, in.PlainBound
	if len(in.Aliases) > 0 && s.compat {
		o.Models = make(map[string]protocol.Model, len(in.Aliases))
		for name, p := range in.Aliases {
			o.Models[name] = protocol.Model{Name: name, V4: p == string(encoding.V4Recipe)}
		}
	}
	return o, nil
}

// inference is what the request asks of sampling, with the names of the golden files.
type inference struct {
	MaxTokens   *int64      `json:"max_tokens"`
	Temperature *float64    `json:"temperature"`
	TopP        *float64    `json:"top_p"`
	Logprobs    bool        `json:"logprobs"`
	TopLogprobs *int        `json:"top_logprobs"`
	Seed        *int64      `json:"seed"`
	Constraint  *constraint `json:"constraint"`
}

type constraint struct {
	Kind   string `json:"kind"`
	Schema string `json:"schema"`
}

func convertProtocol(s *session, c *encodeCase, body []byte) (*converted, *lineError) {
	profile, err := encoding.ParseProfile(c.Profile)
	if err != nil {
		return nil, badRequest("decode", "%v", err)
	}
	opts, err := s.decodingOptions(c.API, c.Options, profile)
	if err != nil {
		return nil, badRequest("decode", "options: %v", err)
	}
	req, extra, err := decoders[c.API](body, opts)
	if err != nil {
		return nil, protocolError(err)
	}
	// In compat the model's name decides between the two families.
	resolved := profile
	if s.compat {
		resolved = encoding.V41Recipe
		if req.Target.V4 {
			resolved = encoding.V4Recipe
		}
	}
	if extra == nil {
		extra = make(map[string]any)
	}
	extra["conversation"] = summary(&req.Conversation, req.Conversation.ActiveTools())
	extra["stream"] = req.Stream
	if resolved != profile {
		extra["resolved_profile"] = string(resolved)
	}
	temperature, topP := req.Sampling()
	in := inference{MaxTokens: req.Params.MaxTokens, Temperature: &temperature, TopP: &topP, Logprobs: req.Params.Logprobs, TopLogprobs: req.Params.TopLogprobs, Seed: req.Params.Seed}
	if k := req.Constraint; k != nil {
		in.Constraint = &constraint{string(k.Kind), k.Schema}
	}
	r := &converted{conv: &req.Conversation, profile: resolved, extra: extra, inference: in, placedImages: true}
	r.stop = req.Params.Stop
	if c.PromptTokens != nil && c.ContextLimit != nil {
		n, err := req.ResolveMaxTokens(*c.PromptTokens, *c.ContextLimit)
		if err != nil {
			return nil, protocolError(err)
		}
		r.maxTokens = &n
	}
	return r, nil
}

// protocolError is the error of a protocol package as an answer shows it.
func protocolError(err error) *lineError {
	e := protocol.AsError(err)
	out := &lineError{Stage: "convert", Status: e.Status(), Message: e.Message}
	if e.Decoding {
		out.Stage = "decode"
		if e.Param != "" {
			out.Param, _ = marshal(e.Param)
		}
		return out
	}
	var body struct {
		Error struct {
			Type  string          `json:"type"`
			Param json.RawMessage `json:"param"`
			Code  string          `json:"code"`
		} `json:"error"`
	}
	if json.Unmarshal(e.OpenAI(), &body) == nil {
		out.Type, out.Param, out.Code = body.Error.Type, body.Error.Param, body.Error.Code
	}
	return out
}
