package recipecli

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
)

// encodeCase is one line of `recipe encode`.
type encodeCase struct {
	ID           json.RawMessage `json:"id"`
	API          string          `json:"api"`
	Profile      string          `json:"profile"`
	Options      json.RawMessage `json:"options"`
	Request      json.RawMessage `json:"request"`
	PromptTokens *int64          `json:"prompt_tokens"`
	ContextLimit *int64          `json:"context_limit"`
}

// body is the request as bytes: a string holds the raw text of a body, anything else is the body.
func (c *encodeCase) body() ([]byte, error) {
	if len(c.Request) == 0 {
		return nil, fmt.Errorf("want a request")
	}
	if c.Request[0] != '"' {
		return c.Request, nil
	}
	var text string
	err := json.Unmarshal(c.Request, &text)
	return []byte(text), err
}

// converted is a request on its way to the encoder, with what the answer says about it.
type converted struct {
	conv       *conversation.Conversation
	completion *conversation.Completion // instead of conv
	profile    encoding.Profile         // that the request resolved to
	extra      map[string]any           // keys of the answer that depend on the API; nil values are left out
	inference  any                      // nil: nothing was asked for
	parsing    *parsing                 // nil: from the prompt, with stop
	stop       []string
	maxTokens  *int64
	// placedImages lists the images in the order of their placeholders instead of all that the conversation has.
	placedImages bool
}

// converter turns the body of one API into a conversation. The error is the answer's.
type converter func(s *session, c *encodeCase, body []byte) (*converted, *lineError)

// converterOf finds the converter of an API, nil when there is none.
func converterOf(api string) converter {
	switch api {
	case "conversation":
		return convertConversation
	case "hf":
		return convertRelease
	case "fim":
		return convertCompletion
	}
	if decoders[api] != nil {
		return convertProtocol
	}
	return nil
}

func encodeCommand(s *session) *cobra.Command {
	return lineCommand(s, "encode", "Request to prompt and token ids",
		"Reads {\"id\", \"api\", \"profile\", \"options\"?, \"request\"} and writes {\"id\", \"prompt\", \"tokens\", \"special_ranges\", \"images\", \"inference\", \"parsing\"} or\n"+
			"{\"id\", \"error\"}. api is chat, responses, messages, conversation (the JSON form of a conversation), hf (the input of the model release's\n"+
			"encoder) or fim. A request that is a string is the raw text of a body. With prompt_tokens and context_limit the answer has max_tokens.",
		func(line []byte) (any, error) {
			var c encodeCase
			if err := readLine(line, &c); err != nil {
				return nil, err
			}
			out, fault, err := s.encode(&c)
			if err != nil {
				return nil, err
			}
			if fault != nil {
				return answerError{ID: id(c.ID), Error: *fault}, nil
			}
			return out, nil
		})
}

func badRequest(stage, format string, args ...any) *lineError {
	return &lineError{Stage: stage, Status: 400, Message: fmt.Sprintf(format, args...)}
}

// answer is what `recipe encode` writes.
type answer struct {
	ID            json.RawMessage `json:"id"`
	Prompt        string          `json:"prompt"`
	SpecialRanges [][2]int        `json:"special_ranges"`
	Tokens        []int32         `json:"tokens"`
	Images        []imageJSON     `json:"images,omitempty"`
	Inference     any             `json:"inference"`
	Parsing       parsing         `json:"parsing"`
	MaxTokens     *int64          `json:"max_tokens,omitempty"`
	extra         map[string]any
}

// MarshalJSON adds the keys that depend on the API.
func (a answer) MarshalJSON() ([]byte, error) {
	type plain answer
	out, err := marshal(plain(a))
	if err != nil || len(a.extra) == 0 {
		return out, err
	}
	more, err := marshal(a.extra)
	if err != nil {
		return nil, err
	}
	return append(append(out[:len(out)-1], ','), more[1:]...), nil
}

// imageJSON is an image as the answer shows it.
type imageJSON struct {
	Kind    string `json:"kind"`
	Detail  string `json:"detail"`
	Path    string `json:"path"`
	URL     string `json:"url,omitempty"`
	DataURL string `json:"data_url,omitempty"`
	Data    string `json:"data,omitempty"`
}

// parsing is conversation.Parsing with the names of the golden files.
type parsing struct {
	ParseToolCalls       bool     `json:"parse_tool_calls"`
	StartsInToolCalls    bool     `json:"starts_in_tool_calls"`
	ParseJSONOutput      bool     `json:"parse_json_output"`
	ThinkingInitialStage string   `json:"thinking_initial_stage"`
	StopSequences        []string `json:"stop_sequences"`
}

func parsingJSON(p conversation.Parsing) parsing {
	out := parsing{p.ToolCalls, p.StartsInCalls, p.JSONOutput, p.Stage.String(), p.StopStrings}
	if out.StopSequences == nil {
		out.StopSequences = []string{}
	}
	return out
}

func imagesJSON(images []conversation.Image) []imageJSON {
	var out []imageJSON
	for _, img := range images {
		j := imageJSON{Detail: string(img.Detail), Path: img.Path}
		if j.Detail == "" {
			j.Detail = string(conversation.DetailHigh)
		}
		switch img.Kind {
		case conversation.ImageDataURL:
			j.Kind, j.DataURL = "data_url", img.URL
		case conversation.ImageBytes:
			j.Kind, j.Data = "bytes", base64.StdEncoding.EncodeToString(img.Data)
		default:
			j.Kind, j.URL = "url", img.URL
		}
		out = append(out, j)
	}
	return out
}

// encode answers one case. fault is the request's, err ends the run or says that the line cannot be read.
func (s *session) encode(c *encodeCase) (out *answer, fault *lineError, err error) {
	convert := converterOf(c.API)
	if convert == nil {
		return nil, badRequest("decode", "api %q: want chat, responses, messages, conversation, hf or fim", c.API), nil
	}
	if c.Profile == "" {
		c.Profile = string(encoding.V41Recipe)
	}
	body, err := c.body()
	if err != nil {
		return nil, badRequest("decode", "%v", err), nil
	}
	r, fault := convert(s, c, body)
	if fault != nil {
		return nil, fault, nil
	}
	enc, _, err := s.encoder(r.profile)
	if err != nil {
		return nil, nil, err
	}
	opts := encoding.Options{Compat: s.compat}
	var p *encoding.Prompt
	if r.completion != nil {
		p, err = enc.EncodeCompletion(r.completion, opts)
	} else {
		p, err = enc.Encode(r.conv, opts)
	}
	if err != nil {
		return nil, badRequest("render", "%v", err), nil
	}
	out = &answer{ID: id(c.ID), Prompt: p.Text, SpecialRanges: p.SpecialRanges, Tokens: p.Tokens, Inference: r.inference, extra: r.extra}
	if out.SpecialRanges == nil {
		out.SpecialRanges = [][2]int{}
	}
	out.MaxTokens = r.maxTokens
	switch {
	case r.placedImages:
		for _, span := range p.Images {
			out.Images = append(out.Images, imagesJSON(r.conv.Images[span.Image:span.Image+1])...)
		}
	case r.conv != nil:
		out.Images = imagesJSON(r.conv.Images)
	}
	if r.parsing != nil {
		out.Parsing = *r.parsing
	} else {
		p.Parsing.StopStrings = r.stop
		out.Parsing = parsingJSON(p.Parsing)
	}
	return out, nil, nil
}

func convertConversation(s *session, c *encodeCase, body []byte) (*converted, *lineError) {
	profile, err := encoding.ParseProfile(c.Profile)
	if err != nil {
		return nil, badRequest("decode", "%v", err)
	}
	conv, err := conversation.Decode(body)
	if err != nil {
		return nil, badRequest("decode", "%v", err)
	}
	r := &converted{conv: &conv, profile: profile, inference: inference{}, extra: map[string]any{"conversation": summary(&conv, conv.Tools)}}
	if s.compat { // a bare conversation says nothing about parsing there: the defaults
		r.parsing = &parsing{ParseToolCalls: true, ThinkingInitialStage: conversation.StageOff.String(), StopSequences: []string{}}
	}
	return r, nil
}

// summary is what the answer says about the conversation.
func summary(conv *conversation.Conversation, listed []conversation.ToolDef) map[string]any {
	tools, roles := []string{}, []string{}
	for i := range listed {
		tools = append(tools, listed[i].Name)
	}
	for i := range conv.Messages {
		roles = append(roles, conv.Messages[i].Role.String())
	}
	var effort any
	if conv.Effort.Numeric != 0 {
		effort = conv.Effort.Numeric
	} else if conv.Effort.Level != conversation.EffortUnset {
		effort = string(conv.Effort.Level)
	}
	format := map[conversation.FormatKind]string{conversation.FormatText: "text", conversation.FormatJSONObject: "json_object",
		conversation.FormatJSONSchema: "json_schema", conversation.FormatRegex: "regex", conversation.FormatGrammar: "grammar"}[conv.ResponseFormat.Kind]
	choice := conv.ToolChoice.Mode.String()
	if conv.ToolChoice.Mode == conversation.ChoiceNamed { // the named tool is the only one listed
		choice = conversation.ChoiceRequired.String()
	}
	return map[string]any{"thinking_mode": conv.Thinking, "reasoning_effort": effort, "tool_choice": choice, "response_format": format, "tools": tools, "roles": roles}
}

func convertRelease(_ *session, c *encodeCase, body []byte) (*converted, *lineError) {
	profile, err := encoding.ParseProfile(c.Profile)
	if err != nil {
		return nil, badRequest("decode", "%v", err)
	}
	conv, err := conversation.DecodeRelease(body)
	if err != nil {
		return nil, badRequest("decode", "%v", err)
	}
	return &converted{conv: &conv, profile: profile, inference: inference{}}, nil
}

// convertCompletion reads {"prompt", "suffix"?}. The layout is the same in all profiles; "derived" stands for V4's.
func convertCompletion(_ *session, c *encodeCase, body []byte) (*converted, *lineError) {
	profile := encoding.V4Recipe
	if c.Profile != "derived" {
		var err error
		if profile, err = encoding.ParseProfile(c.Profile); err != nil {
			return nil, badRequest("decode", "%v", err)
		}
	}
	var req struct {
		Prompt json.RawMessage `json:"prompt"`
		Suffix *string         `json:"suffix"`
	}
	if err := json.Unmarshal(body, &req); err != nil {
		return nil, badRequest("decode", "completion: %v", err)
	}
	completion := &conversation.Completion{Suffix: req.Suffix}
	if err := json.Unmarshal(req.Prompt, &completion.Prompt); err != nil {
		if err := json.Unmarshal(req.Prompt, &completion.PromptIDs); err != nil {
			return nil, badRequest("decode", "completion: prompt must be a text or an array of token ids")
		}
	}
	return &converted{completion: completion, profile: profile, inference: inference{}}, nil
}
