package conversation

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Conversation is everything a prompt is rendered from.
type Conversation struct {
	Messages []Message
	Images   []Image

	// Thinking asks for a reasoning part before the answer. The servers' default is on; the zero value of the struct is off.
	Thinking bool
	// Effort is how long to reason; it is rendered only with Thinking.
	Effort Effort

	Tools          []ToolDef
	ToolChoice     ToolChoice
	ResponseFormat ResponseFormat

	// KeepReasoning keeps the reasoning of earlier turns where a profile would drop it: drop_thinking=false of the hf profiles, and a
	// prompt without tools in the recipe profiles.
	KeepReasoning bool
}

// Effort is the reasoning effort: a level or a number. The zero value is the model's default.
type Effort struct {
	Level   EffortLevel
	Numeric int // 1..100 (V4.1); 0 is unset and leaves Level to decide
}

// EffortLevel is one of the named efforts after mapping: minimal is low, medium is high, ultra is max.
type EffortLevel string

// The levels. EffortUnset is rendered like high.
const (
	EffortUnset EffortLevel = ""
	EffortLow   EffortLevel = "low"
	EffortHigh  EffortLevel = "high"
	EffortXHigh EffortLevel = "xhigh"
	EffortMax   EffortLevel = "max"
)

// ToolKind says how a tool takes its input.
type ToolKind uint8

// The kinds of tools.
const (
	ToolFunction      ToolKind = iota // JSON arguments by schema
	ToolCustomText                    // free text
	ToolCustomGrammar                 // text that matches Grammar
	ToolServer                        // run by the server itself; a function for the model
)

// ToolDef declares one tool.
type ToolDef struct {
	Name        string          // flattened, "ns::name" in a namespace
	Description *string         // nil when the client gave none
	Parameters  json.RawMessage // JSON Schema in the client's key order; nil when absent
	Strict      *bool
	Kind        ToolKind
	Namespace   string   // the namespace part of Name, or ""
	Grammar     *Grammar // ToolCustomGrammar only

	// Deferred leaves the tool out of the list until a message carries it in Message.Tools (V4.1).
	Deferred bool

	// Source is the client's function object as it came. The hf profiles render it instead of the fields above; nil: they render the
	// fields.
	Source json.RawMessage
}

// Grammar is the grammar of a custom tool.
type Grammar struct {
	Syntax     string // "lark" or "regex"
	Definition string
}

// ToolChoiceMode says whether the model may, must or must not call.
type ToolChoiceMode uint8

// The modes. The zero value is auto.
const (
	ChoiceAuto     ToolChoiceMode = iota
	ChoiceNone                    // tools are not listed
	ChoiceRequired                // the prompt opens a block
	ChoiceNamed                   // only the tool Name is listed and the prompt opens a block
)

// String gives the wire spelling; a named choice is "named".
func (m ToolChoiceMode) String() string {
	switch m {
	case ChoiceAuto:
		return "auto"
	case ChoiceNone:
		return "none"
	case ChoiceRequired:
		return "required"
	case ChoiceNamed:
		return "named"
	}
	return "invalid"
}

// ToolChoice is the client's rule for calls.
type ToolChoice struct {
	Mode ToolChoiceMode
	Name string // ChoiceNamed: the flattened name
	// Allowed limits the calls to these flattened names without changing the prompt; nil: all.
	Allowed []string
}

// FormatKind is the kind of answer asked for.
type FormatKind uint8

// The kinds. The zero value is free text.
const (
	FormatText FormatKind = iota
	FormatJSONObject
	FormatJSONSchema
	FormatRegex
	FormatGrammar
)

// ResponseFormat is the shape the answer must have.
type ResponseFormat struct {
	Kind   FormatKind
	Name   string          // FormatJSONSchema: the client's name for it
	Schema json.RawMessage // FormatJSONSchema: the schema in the client's key order
	Strict bool
	// Pattern is the expression of FormatRegex or the definition of FormatGrammar.
	Pattern string
	Syntax  string // FormatGrammar: "lark" or "gbnf"
}

// ActiveTools gives the tools the prompt may list: none with ChoiceNone, the named one with ChoiceNamed, else all. It may alias c.Tools.
func (c *Conversation) ActiveTools() []ToolDef {
	switch c.ToolChoice.Mode {
	case ChoiceNone:
		return nil
	case ChoiceNamed:
		for i := range c.Tools {
			if c.Tools[i].Name == c.ToolChoice.Name {
				return c.Tools[i : i+1]
			}
		}
		return nil
	}
	return c.Tools
}

// ForcesCall says whether the turn must make a call: choice required or named, and there are tools. Without thinking the prompt then
// ends inside the tool block; with thinking the model reasons first and the block is forced by constrained decoding.
func (c *Conversation) ForcesCall() bool {
	return (c.ToolChoice.Mode == ChoiceRequired || c.ToolChoice.Mode == ChoiceNamed) && len(c.ActiveTools()) > 0
}

// Continues gives the assistant message that the model is to continue, or nil.
func (c *Conversation) Continues() *Message {
	if n := len(c.Messages); n > 0 && c.Messages[n-1].Role == RoleAssistant && c.Messages[n-1].Prefix {
		return &c.Messages[n-1]
	}
	return nil
}

// Validate reports every structural fault at once: unknown roles and tasks, image parts outside Images, a named tool that does not
// exist, an effort out of range. It does not judge protocol rules such as "every call needs a result".
func (c *Conversation) Validate() error {
	var errs []error
	fault := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for i := range c.Messages {
		m := &c.Messages[i]
		if m.Role == 0 || int(m.Role) >= len(roleNames) {
			fault("message %d: unknown role %d", i, m.Role)
		}
		if !m.Task.Valid() {
			fault("message %d: unknown task %q; known are action, query, authority, domain, title, read_url", i, m.Task)
		}
		for j, p := range m.Parts {
			if p.Kind > PartImage {
				fault("message %d, part %d: unknown kind %d", i, j, p.Kind)
			}
			if p.Kind != PartImage {
				continue
			}
			if p.Image < 0 || p.Image >= len(c.Images) {
				fault("message %d, part %d: image %d does not exist, the conversation has %d", i, j, p.Image, len(c.Images))
			}
			if m.Role == RoleAssistant {
				fault("message %d, part %d: an assistant message cannot hold an image", i, j)
			}
		}
		if m.Prefix && m.Role == RoleAssistant && i != len(c.Messages)-1 {
			fault("message %d: prefix is allowed on the last message only", i)
		}
	}
	if n := c.Effort.Numeric; n < 0 || n > 100 {
		fault("reasoning effort %d: want 1..100, or 0 for the level", n)
	}
	switch c.Effort.Level {
	case EffortUnset, EffortLow, EffortHigh, EffortXHigh, EffortMax:
	default:
		fault("reasoning effort %q: want low, high, xhigh or max", c.Effort.Level)
	}
	if c.ToolChoice.Mode > ChoiceNamed {
		fault("unknown tool choice mode %d", c.ToolChoice.Mode)
	}
	if c.ToolChoice.Mode == ChoiceNamed && len(c.ActiveTools()) == 0 {
		fault("tool choice names %q, which is none of the %d tools", c.ToolChoice.Name, len(c.Tools))
	}
	if c.ResponseFormat.Kind > FormatGrammar {
		fault("unknown response format %d", c.ResponseFormat.Kind)
	}
	return errors.Join(errs...)
}
