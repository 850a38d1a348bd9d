package parse

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// Vocabulary turns token ids into bytes. *token.Tokenizer is one.
type Vocabulary interface {
	// Bytes gives the bytes of a vocabulary token or the spelling of an added token, "" for an id without a token.
	Bytes(id int32) string
	// Added says whether the id is an added token.
	Added(id int32) bool
	// Special says whether the id is an added token that is left out of shown text.
	Special(id int32) bool
	// Known says whether there is such a token.
	Known(id int32) bool
	// ID finds a token by its spelling.
	ID(piece string) (int32, bool)
}

// Tool is a declared tool, as far as the hardened grammar needs it.
type Tool struct {
	Name       string
	Parameters json.RawMessage // JSON Schema; nil: nothing is known about the parameters
	Custom     bool            // the call has one string parameter called input
}

// Options say what the prompt and the request allow.
type Options struct {
	conversation.Parsing

	// Plain looks for stop strings only: every token is text, line feeds at the start included. For completions without turns.
	Plain bool

	// Compat gives the behaviour of the reference adapter instead of the hardened grammar.
	Compat bool

	// Tools are the declared tools. In text mode a block counts as markup only when it calls one of them. Nil: any name is good.
	Tools []Tool

	// Vocabulary is needed for Tokens. With it compat counts reasoning tokens the way the reference does: by tokenising the text.
	Vocabulary Vocabulary

	// FilterJSON makes the hardened grammar honour JSONOutput: text around the JSON document is dropped. Set it when the backend cannot
	// constrain its output. Compat always honours it.
	FilterJSON bool

	// NoCoerce leaves the model's string flag as it is when the schema contradicts it.
	NoCoerce bool

	// KeepTruncatedArgs leaves the arguments of a cut call cut, as compat does, instead of closing them.
	KeepTruncatedArgs bool
}

// ToolsOf lists the active tools of a conversation.
func ToolsOf(c *conversation.Conversation) []Tool {
	active := c.ActiveTools()
	tools := make([]Tool, 0, len(active))
	for i := range active {
		t := &active[i]
		custom := t.Kind == conversation.ToolCustomText || t.Kind == conversation.ToolCustomGrammar
		tools = append(tools, Tool{Name: t.Name, Parameters: t.Parameters, Custom: custom})
	}
	return tools
}

func (o *Options) validate() error {
	if len(o.StopStrings) > 16 {
		return fmt.Errorf("parse: %d stop strings, at most 16 are possible", len(o.StopStrings))
	}
	for i, s := range o.StopStrings {
		if s == "" {
			return fmt.Errorf("parse: stop string %d is empty", i)
		}
	}
	if o.Stage > conversation.StageContentContinuation {
		return fmt.Errorf("parse: unknown stage %d", o.Stage)
	}
	return nil
}

// resolve finds the declared tool that a written name means: the name itself, else the only one that differs in case, else the only
// one that is equal without its namespace.
func (o *Options) resolve(name string) (*Tool, bool) {
	for i := range o.Tools {
		if o.Tools[i].Name == name {
			return &o.Tools[i], true
		}
	}
	only := func(same func(declared string) bool) *Tool {
		var found *Tool
		for i := range o.Tools {
			if same(o.Tools[i].Name) {
				if found != nil {
					return nil
				}
				found = &o.Tools[i]
			}
		}
		return found
	}
	if t := only(func(d string) bool { return strings.EqualFold(d, name) }); t != nil {
		return t, true
	}
	bare := func(s string) string {
		if i := strings.LastIndex(s, "::"); i >= 0 {
			return s[i+2:]
		}
		return s
	}
	if t := only(func(d string) bool { return bare(d) == bare(name) }); t != nil && name != "" {
		return t, true
	}
	return nil, false
}
