package protocol

import (
	"encoding/base64"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// FunctionTool reads {name, description, parameters, strict} of a function tool; schema is the key of the parameters. at is the path of
// the tool for error texts, for example tools[0].function.
func (r *Request) FunctionTool(n Node, schema, at string) (conversation.ToolDef, *Error) {
	t := conversation.ToolDef{}
	var err *Error
	if err = n.Object(); err != nil {
		return t, err
	}
	if t.Name, err = n.ReqString("name"); err != nil {
		return t, err
	}
	if t.Description, err = n.OptString("description"); err != nil {
		return t, err
	}
	if t.Strict, err = n.OptBool("strict"); err != nil {
		return t, err
	}
	if deferred, err := n.OptBool("defer_loading"); err != nil {
		return t, err
	} else if deferred != nil && !r.Target.V4 {
		t.Deferred = *deferred
	}
	if params, ok := n.Has(schema); ok {
		t.Parameters = params.JSON()
	}
	t.Source = n.JSON()
	if err := checkName(t.Name, at+".name"); err != nil {
		return t, err
	}
	return t, r.checkParameters(&t, at+"."+schema)
}

// checkParameters checks a tool's schema and rewrites it when it is strict.
func (r *Request) checkParameters(t *conversation.ToolDef, path string) *Error {
	if t.Parameters == nil {
		return nil
	}
	v, perr := pyjson.Parse(t.Parameters)
	if perr != nil {
		return Invalid(path, "Invalid schema for function '%s': %v", t.Name, perr)
	}
	if problem := checkSchema(&v); problem != "" {
		return Invalid(path, "Invalid schema for function '%s': %s", t.Name, problem)
	}
	if typ := v.Get("type"); typ == nil || typ.Kind != pyjson.String || typ.Text != "object" {
		got := "null"
		if typ != nil {
			got = string(AppendCompact(nil, typ))
		}
		if r.opts.Compat || len(v.Members) > 0 && typ != nil {
			return Invalid(path, "Invalid schema for function '%s': schema must be a JSON Schema of 'type: \"object\"', got 'type: %s'.", t.Name, got)
		}
	}
	if t.Strict != nil && *t.Strict {
		strict, problem := strictSchema(&v)
		if text, ok := strings.CutPrefix(problem, "!"); ok {
			return Invalid(path, "%s", text)
		} else if problem != "" {
			return Invalid(path, "Invalid tool parameters schema : %s", problem)
		}
		t.Parameters = appendExact(nil, &strict)
	}
	return nil
}

func checkName(name, path string) *Error {
	switch {
	case name == "":
		return Invalid(path, "Invalid '%s': empty string. Expected a string with minimum length 1, but got an empty string instead.", path)
	case len(name) > 128:
		if n := len([]rune(name)); n > 128 {
			return Invalid(path, "Invalid '%s': string too long. Expected a string with maximum length 128, but got a string with length %d instead.", path, n)
		}
	}
	for i := 0; i < len(name); i++ {
		b := name[i]
		if b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= '0' && b <= '9' || b == '_' || b == '-' {
			continue
		}
		return Invalid(path, "Invalid '%s': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.", path)
	}
	return nil
}

// UniqueTools checks that no name is taken twice.
func (r *Request) UniqueTools() *Error {
	seen := map[string]bool{}
	for _, t := range r.Conversation.Tools {
		if seen[t.Name] {
			return Invalid("tools", "Tool names must be unique.")
		}
		seen[t.Name] = true
	}
	return nil
}

// CheckChoice checks the tool choice against the tools and the mode.
func (r *Request) CheckChoice(param string) *Error {
	c := &r.Conversation
	if len(c.Tools) == 0 {
		if c.ToolChoice.Mode != conversation.ChoiceNone {
			c.ToolChoice = conversation.ToolChoice{}
		}
		return nil
	}
	choice := c.ToolChoice
	declared := func(name string) bool {
		for _, t := range c.Tools {
			if t.Name == name {
				return true
			}
		}
		return false
	}
	if choice.Mode == conversation.ChoiceNamed && !declared(choice.Name) {
		return Invalid(param, "Invalid value for 'tool_call': no function named '%s' was specified in the 'tools' parameter.", choice.Name)
	}
	for _, name := range choice.Allowed {
		if !declared(name) {
			return Invalid(param, "Invalid value for 'tool_choice': no tool named '%s' was specified in the 'tools' parameter.", name)
		}
	}
	if c.ForcesCall() && c.Thinking && (r.opts.Compat || r.opts.RefuseForcedCalls) {
		return Invalid(param, "Thinking mode does not support this tool_choice")
	}
	return nil
}

// JSONFormat checks the schema of a json_schema response format.
func (r *Request) JSONFormat(name string, schema Node, strict bool) *Error {
	if problem := checkSchema(schema.Value); problem != "" {
		return Invalid(schema.Path, "Invalid json schema: %s", problem)
	}
	f := &r.Conversation.ResponseFormat
	*f = conversation.ResponseFormat{Kind: conversation.FormatJSONSchema, Name: name, Schema: schema.JSON(), Strict: strict}
	if strict {
		if _, problem := strictSchema(schema.Value); problem != "" {
			if text, ok := strings.CutPrefix(problem, "!"); ok {
				return Invalid(schema.Path, "%s", text)
			}
			return Invalid(schema.Path, "Invalid json schema: %s", problem)
		}
	}
	return nil
}

// Constrain derives the output constraint from tools and response format.
func (r *Request) Constrain() {
	c := &r.Conversation
	if tools := c.ActiveTools(); len(tools) > 0 {
		kind := ConstrainCalls
		if c.ForcesCall() {
			kind = ConstrainOneBlock
		}
		r.Constraint = &Constraint{Kind: kind, Schema: string(toolList(tools))}
		return
	}
	f := &c.ResponseFormat
	switch f.Kind {
	case conversation.FormatJSONObject:
		r.Constraint = &Constraint{Kind: ConstrainJSON}
	case conversation.FormatJSONSchema:
		v, err := pyjson.Parse(f.Schema)
		if err != nil {
			return
		}
		if f.Strict {
			v, _ = strictSchema(&v)
		}
		r.Constraint = &Constraint{Kind: ConstrainJSON, Schema: string(AppendCompact(nil, &v))}
	case conversation.FormatRegex:
		r.Constraint = &Constraint{Kind: ConstrainRegex, Schema: f.Pattern}
	case conversation.FormatGrammar:
		r.Constraint = &Constraint{Kind: ConstrainGrammar, Schema: f.Pattern}
	}
}

func toolList(tools []conversation.ToolDef) []byte {
	var w JSON
	w.Array()
	for i := range tools {
		t := &tools[i]
		w.Open().Key("type").Str("function").Key("function").Open().Key("name").Str(t.Name).Key("description").OrNull(t.Description).Key("parameters")
		if v, err := pyjson.Parse(t.Parameters); err == nil {
			w.Value(&v)
		} else {
			w.Open().Close()
		}
		w.Key("strict")
		if t.Strict == nil {
			w.Null()
		} else {
			w.Bool(*t.Strict)
		}
		w.Close()
		if t.Deferred {
			w.Key("defer_loading").Bool(true)
		}
		w.Close()
	}
	return w.End().B
}

// Details are the spellings of image detail.
var details = []string{"low", "high", "original", "auto"}

// ReadDetail reads the optional detail of an image.
func ReadDetail(n Node) (conversation.Detail, *Error) {
	v, ok := n.Has("detail")
	if !ok {
		return conversation.DetailHigh, nil
	}
	s, err := v.String()
	if err != nil {
		return "", err
	}
	for _, d := range details {
		if s == d {
			return conversation.Detail(s), nil
		}
	}
	return "", v.Variant(details...)
}

// AddImage makes a part of an image given as URL or data URL. message is the place for error texts, for example .messages[0].
func (r *Request) AddImage(url string, detail conversation.Detail, message, param string) (conversation.Part, *Error) {
	kind := conversation.ImageURL
	switch {
	case strings.HasPrefix(url, "http://") || strings.HasPrefix(url, "https://"):
		if !r.opts.Compat && len(url) > maxImageURLBytes {
			return conversation.Part{}, Invalid(param, "%s: image URL of %d bytes exceeds the limit of %d bytes", message, len(url), maxImageURLBytes)
		}
	case strings.Contains(url, "base64,"):
		kind = conversation.ImageDataURL
		if _, ok := DecodeBase64(url[strings.Index(url, "base64,")+len("base64,"):]); !ok {
			return conversation.Part{}, Invalid(param, "%s: Invalid base64 data", message)
		}
	default:
		return conversation.Part{}, Invalid(param, "%s: Unsupported image_url format", message)
	}
	if r.Target.V4 {
		if r.opts.Compat {
			return conversation.TextPart("[Unsupported Image]"), nil
		}
		return conversation.Part{}, Invalid(param, "%s: the model %s takes no images", message, r.Model).WithCode("unsupported_value")
	}
	c := &r.Conversation
	c.Images = append(c.Images, conversation.Image{Kind: kind, URL: url, Detail: detail, Path: message})
	return conversation.ImagePart(len(c.Images) - 1), nil
}

// DecodeBase64 decodes base64 with or without padding.
func DecodeBase64(s string) ([]byte, bool) {
	b, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
	return b, err == nil
}

// StopStrings checks a list of stop strings; path is their field and single says that the client gave one string, not a list.
func (r *Request) StopStrings(list []string, path string, single bool) *Error {
	for i, s := range list {
		if s != "" {
			continue
		}
		at := path
		if !single {
			at = Node{Path: path}.index(i)
		}
		return Invalid(at, "Invalid '%s': empty string. Expected a string with minimum length 1, but got an empty string instead.", at)
	}
	if len(list) > MaxStopStrings {
		return Invalid(path, "Stop string array too long: %d", len(list))
	}
	r.Params.Stop = list
	return nil
}

func (n Node) index(i int) string {
	return n.Path + "[" + itoa(i) + "]"
}

func itoa(i int) string {
	var w JSON
	return string(w.Int(int64(i)).B)
}

// WrapCustom makes a custom tool a function with one string parameter, input; the grammar, if any, goes into the description too.
func WrapCustom(name string, description *string, g *conversation.Grammar) conversation.ToolDef {
	t := conversation.ToolDef{Name: name, Description: description, Kind: conversation.ToolCustomText, Grammar: g,
		Parameters: []byte(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)}
	if g != nil {
		t.Kind = conversation.ToolCustomGrammar
		text := "Input must match this " + g.Syntax + " grammar:\n" + g.Definition
		if description != nil && *description != "" {
			text = *description + "\n" + text
		}
		t.Description = &text
	}
	return t
}

// ReadCustomFormat reads {"type":"text"} or {"type":"grammar","syntax","definition"}, the latter also with its fields under "grammar".
func ReadCustomFormat(n Node) (*conversation.Grammar, *Error) {
	if err := n.Object(); err != nil {
		return nil, err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return nil, err
	}
	switch kind {
	case "text":
		return nil, nil
	case "grammar":
		if inner, ok := n.Has("grammar"); ok {
			n = inner
		}
		g := new(conversation.Grammar)
		if g.Syntax, err = n.ReqString("syntax"); err != nil {
			return nil, err
		}
		if g.Definition, err = n.ReqString("definition"); err != nil {
			return nil, err
		}
		if g.Syntax != "lark" && g.Syntax != "regex" {
			return nil, Invalid(n.Path+".syntax", "unknown grammar syntax %q; known are lark and regex", g.Syntax).WithCode("unsupported_value")
		}
		return g, nil
	}
	return nil, Invalid(n.Path+".type", "unknown custom tool format %q; known are text and grammar", kind).WithCode("unsupported_value")
}

// CustomArguments are the arguments of a custom tool's call as a function call.
func CustomArguments(input string) string {
	return string(append(pyjson.AppendString([]byte(`{"input": `), input), '}'))
}

// CustomInput is the inverse: the value of input, or the arguments themselves when there is none. strict asks for exactly that object.
func CustomInput(arguments string) (string, bool) {
	v, err := pyjson.Parse([]byte(arguments))
	if err != nil {
		return arguments, false
	}
	if v.Kind == pyjson.Object && len(v.Members) == 0 {
		return "", false // the call was cut before its input
	}
	in := v.Get("input")
	if in == nil || in.Kind != pyjson.String {
		return arguments, false
	}
	return in.Text, true
}

// CheckToolName checks the name of a tool that is no function.
func (r *Request) CheckToolName(name, path string) *Error { return checkName(name, path) }

// Document renders a text file as part of a message.
func Document(name *string, text []byte) string {
	title := "document"
	if name != nil && *name != "" {
		title = strings.NewReplacer(`"`, "'", "\n", " ", "<", "", ">", "").Replace(*name)
	}
	return "<document name=\"" + title + "\">\n" + strings.ToValidUTF8(string(text), "\uFFFD") + "\n</document>"
}
