package responses

import (
	_ "embed"
	"fmt"
	"sort"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Request is a decoded Responses request.
type Request struct {
	protocol.Request

	PreviousResponseID string
	Store              bool // the client wants the response kept
	Background         bool
	Truncate           bool   // truncation auto: drop the oldest turns until the prompt fits
	Summary            string // reasoning.summary, "" when not asked for
	Encrypted          bool   // include has reasoning.encrypted_content
	MaxToolCalls       *int64
	Metadata           map[string]string

	// Input are this request's own items as JSON, for a store.
	Input []byte

	echo  echo
	names map[string][2]string // flattened name to namespace and name
}

// echo is what the response object repeats of the request.
type echo struct {
	instructions *string
	raw          protocol.Node // the body
	effort       *string
}

// NamespaceTools maps flattened tool names to namespace and name.
func (r *Request) NamespaceTools() map[string][2]string { return r.names }

// Store gives Decode what a server keeps. Every function may be nil.
type Store struct {
	// Items gives the items of a response and of all before it, input and output in order, as a JSON array.
	Items func(id string) ([]byte, bool)
	// Item gives one item by its id.
	Item func(id string) ([]byte, bool)
	// Unseal opens encrypted_content of a reasoning item. An error refuses the request.
	Unseal func(sealed string) (reasoning string, err error)
}

// Decode reads a request body for a server that keeps nothing. Errors are *protocol.Error.
func Decode(body []byte, opts protocol.Options) (*Request, error) {
	return DecodeWith(body, opts, Store{})
}

// DecodeWith reads a request body with what a server keeps.
func DecodeWith(body []byte, opts protocol.Options, store Store) (*Request, error) {
	r, err := decode(body, opts, store)
	if err != nil {
		return nil, protocol.Finish(opts, err)
	}
	return r, nil
}

type decoder struct {
	*Request
	compat bool
	body   protocol.Node
	store  Store

	turn     *conversation.Message // the assistant turn being built
	pending  []string
	called   map[string]bool
	answered map[string]bool
	late     [][]conversation.ToolDef // tools that the results of the current run brought
}

func decode(body []byte, opts protocol.Options, store Store) (*Request, *protocol.Error) {
	node, err := protocol.Parse(body, opts)
	if err != nil {
		return nil, err
	}
	base, err := protocol.Begin(node, opts)
	if err != nil {
		return nil, err
	}
	d := &decoder{Request: &Request{Request: base, Store: true}, compat: opts.Compat, body: node, store: store,
		called: map[string]bool{}, answered: map[string]bool{}}
	d.echo.raw = node
	d.names = map[string][2]string{}
	for _, step := range []func() *protocol.Error{d.thinking, d.params, d.tools, d.input, d.choice, d.format, d.CheckSampling} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	d.Constrain()
	return d.Request, nil
}

func (d *decoder) thinking() *protocol.Error {
	var t protocol.Thinking
	if n, ok := d.body.Has("thinking"); ok && !d.compat {
		if err := t.ReadThinking(n); err != nil {
			return err
		}
	}
	if n, ok := d.body.Has("reasoning"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		if e, ok := n.Has("effort"); ok {
			if err := t.ReadEffort(e, d.Options()); err != nil {
				return err
			}
			if t.Effort != "" {
				d.echo.effort = &t.Effort
			}
		}
		summary, err := n.OptString("summary")
		if err != nil {
			return err
		}
		if summary == nil && !d.compat {
			if summary, err = n.OptString("generate_summary"); err != nil {
				return err
			}
		}
		if summary != nil {
			d.Summary = *summary
		}
	}
	t.Apply(&d.Request.Request)
	return nil
}

func (d *decoder) params() *protocol.Error {
	p := &d.Params
	if err := d.ReadSampling(d.body); err != nil {
		return err
	}
	max, err := d.body.OptUint("max_output_tokens")
	if err != nil {
		return err
	}
	if max != nil {
		bound := d.MaxTokensBound()
		if *max < 1 || *max > uint64(bound) {
			return protocol.Invalid("max_output_tokens", "Invalid max_tokens value, the valid range of max_tokens is [1, %d]", bound)
		}
		n := int64(*max)
		p.MaxTokens = &n
	}
	top, err := d.body.OptUint("top_logprobs")
	if err != nil {
		return err
	}
	if top != nil {
		if *top > protocol.MaxTopLogprobs {
			return protocol.Invalid("top_logprobs", "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].")
		}
		n := int(*top)
		p.TopLogprobs, p.Logprobs = &n, d.compat || n > 0
	}
	if d.compat {
		return nil
	}
	for _, f := range []struct {
		key string
		to  *string
	}{{"user", &d.User}, {"safety_identifier", &d.User}, {"prompt_cache_key", &d.CacheKey}, {"previous_response_id", &d.PreviousResponseID}} {
		s, err := d.body.OptString(f.key)
		if err != nil {
			return err
		}
		if s != nil {
			*f.to = *s
		}
	}
	for _, f := range []struct {
		key string
		to  *bool
	}{{"store", &d.Store}, {"background", &d.Background}} {
		b, err := d.body.OptBool(f.key)
		if err != nil {
			return err
		}
		if b != nil {
			*f.to = *b
		}
	}
	if d.Background && !d.Store {
		return protocol.Invalid("background", "background needs store")
	}
	parallel, err := d.body.OptBool("parallel_tool_calls")
	if err != nil {
		return err
	}
	p.NoParallelTools = parallel != nil && !*parallel
	calls, err := d.body.OptUint("max_tool_calls")
	if err != nil {
		return err
	}
	if calls != nil && *calls < 1<<31 {
		n := int64(*calls)
		d.MaxToolCalls = &n
	}
	return d.moreParams()
}

func (d *decoder) moreParams() *protocol.Error {
	truncation, err := d.body.OptString("truncation")
	if err != nil {
		return err
	}
	if truncation != nil {
		switch *truncation {
		case "auto":
			d.Truncate = true
		case "disabled":
		default:
			n, _ := d.body.Given("truncation")
			return n.Variant("auto", "disabled")
		}
	}
	if n, ok := d.body.Has("include"); ok {
		if err := n.Array(); err != nil {
			return err
		}
		for i := range n.Elems {
			s, err := n.At(i).String()
			if err != nil {
				return err
			}
			switch s {
			case "reasoning.encrypted_content":
				d.Encrypted = true
			case "message.output_text.logprobs":
				d.Params.Logprobs = true
			}
		}
	}
	if n, ok := d.body.Has("metadata"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		d.Metadata = map[string]string{}
		for i := range n.Members {
			m := &n.Members[i]
			if m.Value.Kind != pyjson.String {
				return protocol.Node{Value: &m.Value, Path: "metadata." + m.Key}.Wrong("a string")
			}
			d.Metadata[m.Key] = m.Value.Text
		}
	}
	if n, ok := d.body.Has("prompt"); ok {
		return protocol.Invalid(n.Path, "prompt templates are not supported; send the input itself").WithCode("unsupported_parameter")
	}
	if n, ok := d.body.Has("conversation"); ok {
		if d.PreviousResponseID != "" {
			return protocol.Invalid(n.Path, "conversation and previous_response_id exclude each other")
		}
		return protocol.Invalid(n.Path, "conversations are not kept by this server; use previous_response_id or send the whole input").WithCode("unsupported_parameter")
	}
	return nil
}

//go:embed apply_patch.txt
var applyPatch string

const applyPatchParameters = `{"type":"object","additionalProperties":false,"properties":{"input":{"type":"string","description":"The entire contents of the apply_patch command (the *** Begin Patch ... *** End Patch envelope)."}},"required":["input"]}`

func (d *decoder) tools() *protocol.Error {
	n, ok := d.body.Has("tools")
	if !ok {
		return nil
	}
	if err := n.Array(); err != nil {
		return err
	}
	for i := range n.Elems {
		list, err := d.tool(n.At(i))
		if err != nil {
			return err
		}
		d.Conversation.Tools = append(d.Conversation.Tools, list...)
	}
	return d.UniqueTools()
}

// tool reads one entry of a tool list: any number of tools for the model.
func (d *decoder) tool(n protocol.Node) ([]conversation.ToolDef, *protocol.Error) {
	if err := n.Object(); err != nil {
		return nil, err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return nil, err
	}
	switch {
	case kind == "function":
		t, err := d.function(n)
		return []conversation.ToolDef{t}, err
	case kind == "namespace":
		return d.namespace(n)
	case kind == "custom":
		t, err := d.custom(n)
		return []conversation.ToolDef{t}, err
	case kind == "tool_search":
		return d.toolSearch(n)
	case strings.HasPrefix(kind, "web_search"):
		if d.Options().WebSearch == protocol.WebSearchReject {
			return nil, protocol.Invalid(n.Path+".type", "Server tools are not supported")
		}
	}
	if !d.compat {
		d.Warnings = append(d.Warnings, fmt.Sprintf("%s: tools of type %s are not available; the tool was left out", n.Path, kind))
	}
	return nil, nil
}

func (d *decoder) function(n protocol.Node) (conversation.ToolDef, *protocol.Error) {
	t, err := d.FunctionTool(n, "parameters", n.Path)
	t.Deferred = false // every tool is listed from the start
	return t, err
}

func (d *decoder) namespace(n protocol.Node) ([]conversation.ToolDef, *protocol.Error) {
	name, err := n.ReqString("name")
	if err != nil {
		return nil, err
	}
	description, err := n.OptString("description")
	if err != nil {
		return nil, err
	}
	if err := d.CheckToolName(name, n.Path+".name"); err != nil {
		return nil, err
	}
	list, ok := n.Has("tools")
	if !ok {
		return nil, n.Missing("tools")
	}
	if err := list.Array(); err != nil {
		return nil, err
	}
	var out []conversation.ToolDef
	for i := range list.Elems {
		in := list.At(i)
		if err := in.Object(); err != nil {
			return nil, err
		}
		kind, err := in.ReqString("type")
		if err != nil {
			return nil, err
		}
		if kind == "custom" && d.compat {
			custom, err := in.ReqString("name")
			if err != nil {
				return nil, err
			}
			return nil, protocol.Invalid(in.Path, "Currently custom tools are not allowed inside a namespace. Found custom tool '%s' in %s.", custom, in.Path)
		}
		var t conversation.ToolDef
		switch kind {
		case "function":
			t, err = d.function(in)
		case "custom":
			t, err = d.custom(in)
		default:
			at, _ := in.Given("type")
			return nil, at.Variant("function", "custom")
		}
		if err != nil {
			return nil, err
		}
		text := ""
		if description != nil {
			text = *description
		}
		text += "\n"
		if t.Description != nil {
			text += *t.Description
		}
		bare := t.Name
		t.Namespace, t.Description, t.Source = name, &text, nil
		t.Name = d.free(name + "::" + bare)
		d.names[t.Name] = [2]string{name, bare}
		out = append(out, t)
	}
	return out, nil
}

// free gives the first of name, name_1, name_2 … that no namespaced tool has.
func (d *decoder) free(name string) string {
	try := name
	for i := 1; ; i++ {
		if _, taken := d.names[try]; !taken {
			return try
		}
		try = fmt.Sprintf("%s_%d", name, i)
	}
}

func (d *decoder) custom(n protocol.Node) (t conversation.ToolDef, err *protocol.Error) {
	name, err := n.ReqString("name")
	if err != nil {
		return t, err
	}
	description, err := n.OptString("description")
	if err != nil {
		return t, err
	}
	if d.compat {
		if name != "apply_patch" {
			return t, protocol.Invalid(n.Path, "Unsupported custom tool: '%s'. Only 'apply_patch' is supported.", name)
		}
		text := applyPatch
		return conversation.ToolDef{Name: name, Description: &text, Parameters: []byte(applyPatchParameters), Kind: conversation.ToolCustomText}, nil
	}
	if err := d.CheckToolName(name, n.Path+".name"); err != nil {
		return t, err
	}
	var g *conversation.Grammar
	if f, ok := n.Has("format"); ok {
		if g, err = protocol.ReadCustomFormat(f); err != nil {
			return t, err
		}
	}
	return protocol.WrapCustom(name, description, g), nil
}

// toolSearch makes a tool search that the client runs a function of the model (V4.1).
func (d *decoder) toolSearch(n protocol.Node) ([]conversation.ToolDef, *protocol.Error) {
	execution, err := n.OptString("execution")
	if err != nil {
		return nil, err
	}
	if d.Target.V4 || execution == nil || *execution != "client" {
		return nil, nil
	}
	t := conversation.ToolDef{Name: "tool_search"}
	if t.Description, err = n.OptString("description"); err != nil {
		return nil, err
	}
	if p, ok := n.Has("parameters"); ok {
		t.Parameters = p.JSON()
	}
	return []conversation.ToolDef{t}, nil
}

func (d *decoder) input() *protocol.Error {
	instructions, hasInstructions := d.body.Has("instructions")
	input, hasInput := d.body.Has("input")
	if !hasInput && !hasInstructions && (d.compat || d.PreviousResponseID == "") {
		return protocol.Invalid("input", "Either input or instructions must be provided")
	}
	if hasInstructions {
		if err := d.instructions(instructions); err != nil {
			return err
		}
	}
	if d.PreviousResponseID != "" {
		if err := d.previous(); err != nil {
			return err
		}
	}
	if hasInput {
		d.Input = input.JSON()
		switch input.Kind {
		case pyjson.String:
			if err := d.settle(); err != nil {
				return err
			}
			d.flush()
			d.add(conversation.Message{Role: conversation.RoleUser, Content: input.Text})
		case pyjson.Array:
			if len(input.Elems) == 0 && (d.compat || d.PreviousResponseID == "") {
				return protocol.Invalid("input", "Input items array must not be empty")
			}
			if err := d.items(input); err != nil {
				return err
			}
		default:
			return input.Wrong("a string or an array of items")
		}
	}
	if err := d.settle(); err != nil {
		return err
	}
	d.flush()
	d.flushLate()
	return nil
}

func (d *decoder) instructions(n protocol.Node) *protocol.Error {
	if n.Kind == pyjson.String {
		d.echo.instructions = &n.Text
		if n.Text != "" {
			d.add(conversation.Message{Role: conversation.RoleSystem, Content: n.Text})
		}
		return nil
	}
	if d.compat || n.Kind != pyjson.Array {
		return n.Wrong("a string")
	}
	return d.items(n)
}

// previous puts the items of the response to continue in front.
func (d *decoder) previous() *protocol.Error {
	var data []byte
	ok := false
	if d.store.Items != nil {
		data, ok = d.store.Items(d.PreviousResponseID)
	}
	if !ok {
		return protocol.Invalid("previous_response_id", "Previous response with id '%s' not found.", d.PreviousResponseID).WithCode("previous_response_not_found")
	}
	v, err := pyjson.Parse(data)
	if err != nil || v.Kind != pyjson.Array {
		return protocol.NewError(500, "stored response '%s' cannot be read", d.PreviousResponseID)
	}
	return d.items(protocol.Node{Value: &v, Path: "previous_response"})
}

func (d *decoder) items(n protocol.Node) *protocol.Error {
	for i := range n.Elems {
		if err := d.item(n.At(i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *decoder) add(m conversation.Message) {
	d.Conversation.Messages = append(d.Conversation.Messages, m)
}

// assistant gives the turn being built; a new one starts after the tools that results brought.
func (d *decoder) assistant() *conversation.Message {
	if d.turn == nil {
		d.flushLate()
		d.turn = &conversation.Message{Role: conversation.RoleAssistant}
	}
	return d.turn
}

// flush ends the turn being built.
func (d *decoder) flush() {
	if d.turn == nil {
		return
	}
	if d.compat {
		calls := d.turn.ToolCalls
		sort.SliceStable(calls, func(i, j int) bool { return calls[i].ID < calls[j].ID })
	}
	d.add(*d.turn)
	d.turn = nil
}

// flushLate puts tools that results brought into system messages.
func (d *decoder) flushLate() {
	for _, tools := range d.late {
		d.add(conversation.Message{Role: conversation.RoleSystem, Tools: tools})
	}
	d.late = nil
}

func (d *decoder) settle() *protocol.Error {
	if len(d.pending) > 0 {
		return protocol.Invalid("input", "No tool output found for tool call %s.", d.pending[0])
	}
	return nil
}

func (d *decoder) item(n protocol.Node) *protocol.Error {
	if n.Kind != pyjson.Object {
		return protocol.Malformed(n.Path, "invalid request body: invalid input item")
	}
	kind, err := n.OptString("type")
	if err != nil {
		return err
	}
	if kind == nil {
		if _, ok := n.Has("role"); !ok {
			return protocol.Malformed(n.Path, "invalid request body: invalid input item: neither type nor role")
		}
		return d.message(n)
	}
	switch *kind {
	case "message":
		return d.message(n)
	case "reasoning":
		return d.reasoning(n)
	case "function_call", "custom_tool_call":
		return d.call(n, *kind == "custom_tool_call")
	case "function_call_output", "custom_tool_call_output":
		return d.output(n)
	case "tool_search_call":
		if !d.Target.V4 {
			return d.searchCall(n)
		}
	case "tool_search_output":
		if !d.Target.V4 {
			return d.searchOutput(n)
		}
	case "item_reference":
		return d.reference(n)
	default:
		if !d.compat {
			d.Warnings = append(d.Warnings, fmt.Sprintf("%s: items of type %s are ignored", n.Path, *kind))
		}
	}
	return nil
}

func (d *decoder) reference(n protocol.Node) *protocol.Error {
	if d.compat {
		return nil
	}
	id, err := n.ReqString("id")
	if err != nil {
		return err
	}
	if d.store.Item != nil {
		if data, ok := d.store.Item(id); ok {
			v, perr := pyjson.Parse(data)
			if perr != nil {
				return protocol.NewError(500, "stored item '%s' cannot be read", id)
			}
			return d.item(protocol.Node{Value: &v, Path: n.Path})
		}
	}
	return protocol.Invalid(n.Path+".id", "Item with id '%s' not found.", id)
}

func (d *decoder) message(n protocol.Node) *protocol.Error {
	role, err := n.ReqString("role")
	if err != nil {
		return err
	}
	var to conversation.Role
	switch role {
	case "user":
		to = conversation.RoleUser
	case "assistant":
		to = conversation.RoleAssistant
	case "system":
		to = conversation.RoleSystem
	case "developer":
		to = conversation.RoleSystem
		if d.compat && d.Target.V4 {
			to = conversation.RoleUser
		}
	default:
		at, _ := n.Given("role")
		return at.Variant("user", "assistant", "system", "developer")
	}
	c, ok := n.Given("content")
	if !ok {
		return n.Missing("content")
	}
	if to == conversation.RoleAssistant {
		m := conversation.Message{Role: to}
		if err := d.content(c, &m, n.Path); err != nil {
			return err
		}
		if d.compat {
			if err := d.settle(); err != nil {
				return err
			}
		}
		turn := d.assistant()
		if turn.Content != "" {
			turn.Content += "\n\n"
		}
		turn.Content += m.Text()
		return nil
	}
	if err := d.settle(); err != nil {
		return err
	}
	d.flush()
	d.flushLate()
	m := conversation.Message{Role: to}
	if err := d.content(c, &m, n.Path); err != nil {
		return err
	}
	d.add(m)
	return nil
}

// content reads a string or content parts; place is the item.
func (d *decoder) content(c protocol.Node, m *conversation.Message, place string) *protocol.Error {
	if c.Kind == pyjson.String {
		m.Content = c.Text
		return nil
	}
	if c.Kind != pyjson.Array {
		return c.Wrong("a string or an array of content parts")
	}
	var blocks []conversation.Part
	for i := range c.Elems {
		part, err := d.part(c.At(i), m.Role, place, fmt.Sprintf("%s.content[%d]", place, i))
		if err != nil {
			return err
		}
		blocks = append(blocks, part)
	}
	m.Parts = conversation.JoinBlocks(blocks)
	if m.Parts != nil && !m.HasImage() {
		m.Content, m.Parts = m.Text(), nil
	}
	return nil
}

func (d *decoder) part(n protocol.Node, role conversation.Role, place, at string) (part conversation.Part, err *protocol.Error) {
	if err := n.Object(); err != nil {
		return part, err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return part, err
	}
	switch {
	case kind == "input_text" || kind == "output_text" || kind == "text" && !d.compat:
		s, err := n.ReqString("text")
		return conversation.TextPart(s), err
	case kind == "refusal" && !d.compat:
		s, err := n.ReqString("refusal")
		return conversation.TextPart(s), err
	case kind == "input_image":
		return d.image(n, role, place, at)
	case kind == "input_file":
		return d.file(n, place, at)
	}
	k, _ := n.Given("type")
	return part, k.Variant("input_text", "output_text", "input_image", "input_file")
}

func (d *decoder) image(n protocol.Node, role conversation.Role, place, at string) (part conversation.Part, err *protocol.Error) {
	url, err := n.OptString("image_url")
	if err != nil {
		return part, err
	}
	file, err := n.OptString("file_id")
	if err != nil {
		return part, err
	}
	detail, err := protocol.ReadDetail(n)
	if err != nil {
		return part, err
	}
	switch {
	case url != nil && file != nil:
		return part, protocol.Invalid(n.Path, "%s: input_image cannot have both image_url and file_id", at)
	case file != nil:
		return part, protocol.Invalid(n.Path+".file_id", "%s: file_id is not supported. Pass the image as a base64 data url instead.", at)
	case url == nil:
		return part, protocol.Invalid(n.Path, "%s: input_image must have image_url or file_id", at)
	case role == conversation.RoleAssistant:
		return part, protocol.Invalid(n.Path, "Image in assistant message is not supported")
	}
	return d.AddImage(*url, detail, place, n.Path+".image_url")
}

func (d *decoder) file(n protocol.Node, place, at string) (part conversation.Part, err *protocol.Error) {
	if d.compat {
		return conversation.TextPart("[Unsupported Document]"), nil
	}
	data, err := n.OptString("file_data")
	if err != nil {
		return part, err
	}
	name, err := n.OptString("filename")
	if err != nil {
		return part, err
	}
	switch {
	case data == nil:
		return part, protocol.Invalid(n.Path, "%s: input_file needs file_data; files cannot be fetched by id or URL", at).WithCode("unsupported_value")
	case strings.HasPrefix(*data, "data:image/"):
		return d.AddImage(*data, conversation.DetailHigh, place, n.Path+".file_data")
	case strings.HasPrefix(*data, "data:text/"):
		if k := strings.Index(*data, "base64,"); k >= 0 {
			if text, ok := protocol.DecodeBase64((*data)[k+len("base64,"):]); ok {
				return conversation.TextPart(protocol.Document(name, text)), nil
			}
		}
		return part, protocol.Invalid(n.Path+".file_data", "%s: Invalid base64 data", at)
	}
	return part, protocol.Invalid(n.Path+".file_data", "%s: file type not supported; image and text files are", at).WithCode("unsupported_value")
}

func (d *decoder) reasoning(n protocol.Node) *protocol.Error {
	texts, err := d.texts(n, "content")
	if err != nil {
		return err
	}
	if d.compat {
		if err := d.settle(); err != nil {
			return err
		}
	} else if len(texts) == 0 {
		sealed, err := n.OptString("encrypted_content")
		if err != nil {
			return err
		}
		if sealed != nil && d.store.Unseal != nil {
			text, uerr := d.store.Unseal(*sealed)
			if uerr != nil {
				return protocol.Invalid(n.Path+".encrypted_content", "encrypted_content cannot be opened: %v", uerr).WithCode("invalid_encrypted_content")
			}
			if text != "" {
				texts = []string{text}
			}
		}
		if len(texts) == 0 {
			if texts, err = d.texts(n, "summary"); err != nil {
				return err
			}
		}
	}
	turn := d.assistant()
	for _, s := range texts {
		if turn.Reasoning == nil {
			turn.Reasoning = new(string)
		} else {
			*turn.Reasoning += "\n"
		}
		*turn.Reasoning += s
	}
	return nil
}

// texts reads an optional array of parts with a text.
func (d *decoder) texts(n protocol.Node, key string) ([]string, *protocol.Error) {
	list, ok := n.Has(key)
	if !ok {
		return nil, nil
	}
	if err := list.Array(); err != nil {
		return nil, err
	}
	var out []string
	for i := range list.Elems {
		p := list.At(i)
		if err := p.Object(); err != nil {
			return nil, err
		}
		s, err := p.ReqString("text")
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// open registers a call.
func (d *decoder) open(n protocol.Node, id string) *protocol.Error {
	switch {
	case id == "":
		return protocol.Invalid(n.Path+".call_id", "Invalid '%s.call_id': empty string. Expected a string with minimum length 1, but got an empty string instead.", n.Path)
	case d.called[id]:
		return protocol.Invalid(n.Path+".call_id", "Duplicate 'call_id': %s.", id)
	}
	d.called[id] = true
	d.pending = append(d.pending, id)
	return nil
}

// close registers the output of a call.
func (d *decoder) close(n protocol.Node, id string) *protocol.Error {
	if d.answered[id] {
		return protocol.Invalid(n.Path+".call_id", "Duplicate tool output for call_id: %s.", id)
	}
	for i, p := range d.pending {
		if p == id {
			d.pending = append(d.pending[:i], d.pending[i+1:]...)
			d.answered[id] = true
			return nil
		}
	}
	return protocol.Invalid(n.Path+".call_id", "No tool call found for tool output with call_id %s.", id)
}

func (d *decoder) call(n protocol.Node, custom bool) *protocol.Error {
	id, err := n.ReqString("call_id")
	if err != nil {
		return err
	}
	name, err := n.ReqString("name")
	if err != nil {
		return err
	}
	space, err := n.OptString("namespace")
	if err != nil {
		return err
	}
	if space != nil && *space != "" {
		name = *space + "::" + name
	}
	call := conversation.ToolCall{ID: id, Name: name, Custom: custom}
	if custom {
		input, err := n.ReqString("input")
		if err != nil {
			return err
		}
		call.Arguments = protocol.CustomArguments(input)
	} else {
		a, ok := n.Given("arguments")
		switch {
		case !ok:
			return n.Missing("arguments")
		case a.Kind == pyjson.Object && !d.compat:
			call.Arguments = string(a.JSON())
		default:
			if call.Arguments, err = a.String(); err != nil {
				return err
			}
			if call.Arguments == "" && !d.compat {
				call.Arguments = "{}"
			}
		}
	}
	if err := d.open(n, id); err != nil {
		return err
	}
	turn := d.assistant()
	turn.ToolCalls = append(turn.ToolCalls, call)
	return nil
}

func (d *decoder) output(n protocol.Node) *protocol.Error {
	id, err := n.ReqString("call_id")
	if err != nil {
		return err
	}
	out, ok := n.Given("output")
	if !ok {
		return n.Missing("output")
	}
	if err := d.close(n, id); err != nil {
		return err
	}
	d.flush()
	m := conversation.Message{Role: conversation.RoleTool, ToolCallID: id}
	if err := d.content(out, &m, n.Path); err != nil {
		return err
	}
	d.add(m)
	return nil
}

func (d *decoder) searchCall(n protocol.Node) *protocol.Error {
	id, err := n.ReqString("call_id")
	if err != nil {
		return err
	}
	call := conversation.ToolCall{ID: id, Name: "tool_search", Arguments: "{}"}
	if a, ok := n.Has("arguments"); ok {
		call.Arguments = string(a.JSON())
		if a.Kind == pyjson.String {
			call.Arguments = a.Text
		}
	}
	if err := d.open(n, id); err != nil {
		return err
	}
	turn := d.assistant()
	turn.ToolCalls = append(turn.ToolCalls, call)
	return nil
}

// searchOutput reads the tools that a search found: they are the result and join the prompt.
func (d *decoder) searchOutput(n protocol.Node) *protocol.Error {
	id, err := n.ReqString("call_id")
	if err != nil {
		return err
	}
	list, ok := n.Given("tools")
	if !ok {
		return n.Missing("tools")
	}
	if err := list.Array(); err != nil {
		return err
	}
	if err := d.close(n, id); err != nil {
		return err
	}
	d.flush()
	var w protocol.JSON
	w.Array()
	var found []conversation.ToolDef
	for i := range list.Elems {
		tools, err := d.tool(list.At(i))
		if err != nil {
			return err
		}
		foundTools(&w, list.At(i))
		for k := range tools {
			tools[k].Deferred = true
		}
		found = append(found, tools...)
	}
	w.End()
	d.add(conversation.Message{Role: conversation.RoleTool, ToolCallID: id, Content: string(w.B)})
	if len(found) > 0 {
		d.late = append(d.late, found)
		for _, t := range found {
			if !d.has(t.Name) {
				d.Conversation.Tools = append(d.Conversation.Tools, t)
			}
		}
	}
	return nil
}

func (d *decoder) has(name string) bool {
	for i := range d.Conversation.Tools {
		if d.Conversation.Tools[i].Name == name {
			return true
		}
	}
	return false
}

// foundTools writes the functions of a tool entry, each with its namespace.
func foundTools(w *protocol.JSON, n protocol.Node) {
	one := func(f, space protocol.Node) {
		w.Open().Key("type").Str("function")
		functionEcho(w, f)
		if space.Value != nil {
			w.Key("namespace").Open().Key("name")
			optional(w, space, "name")
			w.Key("description")
			optional(w, space, "description")
			w.Close()
		}
		w.Close()
	}
	kind, _ := n.OptString("type")
	switch {
	case kind != nil && *kind == "function":
		one(n, protocol.Node{})
	case kind != nil && *kind == "namespace":
		if list, ok := n.Has("tools"); ok {
			for i := range list.Elems {
				one(list.At(i), n)
			}
		}
	}
}

// optional writes a key's value, null when it is absent.
func optional(w *protocol.JSON, n protocol.Node, key string) {
	if v, ok := n.Given(key); ok {
		w.Value(v.Value)
	} else {
		w.Null()
	}
}

func functionEcho(w *protocol.JSON, f protocol.Node) {
	for _, key := range []string{"name", "description", "parameters", "strict"} {
		w.Key(key)
		optional(w, f, key)
	}
}

func (d *decoder) choice() *protocol.Error {
	if n, ok := d.body.Has("tool_choice"); ok {
		if err := d.readChoice(n); err != nil {
			return err
		}
	}
	return d.CheckChoice("tool_choice")
}

func (d *decoder) readChoice(n protocol.Node) *protocol.Error {
	choice := &d.Conversation.ToolChoice
	if n.Kind == pyjson.String {
		switch n.Text {
		case "none":
			choice.Mode = conversation.ChoiceNone
		case "auto":
		case "required":
			choice.Mode = conversation.ChoiceRequired
		default:
			return n.Variant("none", "auto", "required", "a tool")
		}
		return nil
	}
	if err := n.Object(); err != nil {
		return err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return err
	}
	switch {
	case kind == "function" || kind == "custom":
		name, err := d.chosen(n)
		if err != nil {
			return err
		}
		choice.Mode, choice.Name = conversation.ChoiceNamed, name
		return nil
	case kind == "allowed_tools" && !d.compat:
		return d.allowed(n)
	case kind == "web_search" || strings.HasPrefix(kind, "web_search_2"):
		return nil // the tool itself was left out
	}
	at, _ := n.Given("type")
	if d.compat {
		return at.Variant("function", "custom", "web_search")
	}
	return protocol.Invalid(at.Path, "tools of type %s are not available", kind).WithCode("unsupported_value")
}

// chosen gives the flattened name of a tool that a choice names, with its namespace or, when that is clear, without.
func (d *decoder) chosen(n protocol.Node) (string, *protocol.Error) {
	name, err := n.ReqString("name")
	if err != nil || d.compat {
		return name, err
	}
	space, err := n.OptString("namespace")
	if err != nil {
		return "", err
	}
	if space != nil && *space != "" {
		return *space + "::" + name, nil
	}
	if d.has(name) {
		return name, nil
	}
	found := name
	hits := 0
	for flat, pair := range d.names {
		if pair[1] == name {
			found = flat
			hits++
		}
	}
	if hits == 1 {
		return found, nil
	}
	return name, nil
}

func (d *decoder) allowed(n protocol.Node) *protocol.Error {
	choice := &d.Conversation.ToolChoice
	mode, err := n.ReqString("mode")
	if err != nil {
		return err
	}
	switch mode {
	case "auto":
	case "required":
		choice.Mode = conversation.ChoiceRequired
	default:
		at, _ := n.Given("mode")
		return at.Variant("auto", "required")
	}
	list, ok := n.Has("tools")
	if !ok {
		return n.Missing("tools")
	}
	if err := list.Array(); err != nil {
		return err
	}
	choice.Allowed = []string{}
	for i := range list.Elems {
		t := list.At(i)
		if err := t.Object(); err != nil {
			return err
		}
		kind, err := t.ReqString("type")
		if err != nil {
			return err
		}
		if kind != "function" && kind != "custom" {
			continue
		}
		name, err := d.chosen(t)
		if err != nil {
			return err
		}
		choice.Allowed = append(choice.Allowed, name)
	}
	return nil
}

func (d *decoder) format() *protocol.Error {
	text, ok := d.body.Has("text")
	if !ok {
		return nil
	}
	if err := text.Object(); err != nil {
		return err
	}
	n, ok := text.Has("format")
	if !ok {
		return nil
	}
	if err := n.Object(); err != nil {
		return err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return err
	}
	f := &d.Conversation.ResponseFormat
	switch {
	case kind == "text":
	case kind == "json_object":
		f.Kind = conversation.FormatJSONObject
	case kind == "json_schema":
		name, err := n.ReqString("name")
		if err != nil {
			return err
		}
		schema, ok := n.Given("schema")
		if !ok {
			return n.Missing("schema")
		}
		strict, err := n.OptBool("strict")
		if err != nil {
			return err
		}
		return d.JSONFormat(name, schema, strict != nil && *strict)
	case kind == "grammar" && !d.compat:
		f.Kind, f.Syntax = conversation.FormatGrammar, "lark"
		f.Pattern, err = n.ReqString("grammar")
		return err
	default:
		at, _ := n.Given("type")
		return at.Variant("text", "json_schema", "json_object")
	}
	return nil
}
