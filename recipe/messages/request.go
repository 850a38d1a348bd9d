package messages

import (
	"fmt"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Request is a decoded Messages request.
type Request struct {
	protocol.Request
}

// Decode reads a request body, of a message or of a token count. Errors are *protocol.Error.
func Decode(body []byte, opts protocol.Options) (*Request, error) {
	r, err := decode(body, opts)
	if err != nil {
		return nil, protocol.Finish(opts, err)
	}
	return r, nil
}

type decoder struct {
	*Request
	compat bool
	body   protocol.Node

	pending  []string // tool_use ids without a result
	asked    int      // message that made the pending calls
	late     []conversation.ToolDef
	lateSeen map[string]bool
}

func decode(body []byte, opts protocol.Options) (*Request, *protocol.Error) {
	node, err := protocol.Parse(body, opts)
	if err != nil {
		return nil, err
	}
	base, err := protocol.Begin(node, opts)
	if err != nil {
		return nil, err
	}
	d := &decoder{Request: &Request{Request: base}, compat: opts.Compat, body: node}
	for _, step := range []func() *protocol.Error{d.thinking, d.params, d.tools, d.choice, d.system, d.messages, d.format, d.CheckSampling} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	d.Constrain()
	return d.Request, nil
}

func (d *decoder) thinking() *protocol.Error {
	var t protocol.Thinking
	if n, ok := d.body.Has("thinking"); ok {
		if err := t.ReadThinking(n); err != nil {
			return err
		}
	}
	if n, ok := d.body.Has("output_config"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		if e, ok := n.Has("effort"); ok {
			if err := t.ReadEffort(e, d.Options()); err != nil {
				return err
			}
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
	max, err := d.body.OptUint("max_tokens")
	if err != nil {
		return err
	}
	if max != nil {
		bound := d.MaxTokensBound()
		if *max < 1 {
			return protocol.Invalid("max_tokens", "Invalid max_tokens value, the valid range of max_tokens is [1, %d]", bound)
		}
		n := bound
		if *max < uint64(bound) {
			n = int64(*max)
		}
		p.MaxTokens = &n
	}
	if err := d.stop(); err != nil {
		return err
	}
	if d.compat {
		return nil
	}
	topK, err := d.body.OptUint("top_k")
	if err != nil {
		return err
	}
	if topK != nil && *topK < 1<<31 {
		k := int(*topK)
		p.TopK = &k
	}
	if n, ok := d.body.Has("metadata"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		user, err := n.OptString("user_id")
		if err != nil {
			return err
		}
		if user != nil {
			d.User = *user
		}
	}
	return nil
}

func (d *decoder) stop() *protocol.Error {
	n, ok := d.body.Has("stop_sequences")
	if !ok {
		return nil
	}
	if err := n.Array(); err != nil {
		return err
	}
	var list []string
	for i := range n.Elems {
		s, err := n.At(i).String()
		if err != nil {
			return err
		}
		list = append(list, s)
	}
	path := "stop_sequences"
	if d.compat {
		path = "stop"
	}
	return d.StopStrings(list, path, false)
}

func (d *decoder) tools() *protocol.Error {
	n, ok := d.body.Has("tools")
	if !ok {
		return nil
	}
	if err := n.Array(); err != nil {
		return err
	}
	deferred := 0
	for i := range n.Elems {
		t, keep, err := d.tool(n.At(i), i)
		if err != nil {
			return err
		}
		if !keep {
			continue
		}
		if t.Deferred {
			deferred++
		}
		d.Conversation.Tools = append(d.Conversation.Tools, t)
	}
	if err := d.UniqueTools(); err != nil {
		return err
	}
	if deferred > 0 && deferred == len(d.Conversation.Tools) {
		return protocol.Invalid("tools", "tools: at least one tool must have defer_loading=false. All tools cannot be deferred.")
	}
	return nil
}

func (d *decoder) tool(n protocol.Node, i int) (t conversation.ToolDef, keep bool, err *protocol.Error) {
	if err := n.Object(); err != nil {
		return t, false, err
	}
	kind, err := n.OptString("type")
	if err != nil {
		return t, false, err
	}
	if kind != nil && (d.compat || *kind != "custom") {
		web := d.Options().WebSearch
		if strings.HasPrefix(*kind, "web_search") && (web == protocol.WebSearchDrop || web == protocol.WebSearchDefault && !d.compat) {
			d.Warnings = append(d.Warnings, n.Path+": web search is not available; the tool was left out")
			return t, false, nil
		}
		return t, false, protocol.Invalid(n.Path+".type", "tools[%d]: server tools are not supported", i)
	}
	if d.compat {
		n = n.Without("strict") // unknown to the reference
	}
	if t, err = d.FunctionTool(n, "input_schema", n.Path); err != nil {
		return t, false, err
	}
	if t.Parameters == nil {
		if d.compat {
			return t, false, protocol.Invalid(n.Path+".input_schema", "Invalid schema for function '%s': null is not of types \"boolean\", \"object\"", t.Name)
		}
		return t, false, protocol.Invalid(n.Path+".input_schema", "input_schema is required")
	}
	return t, true, nil
}

func (d *decoder) choice() *protocol.Error {
	if n, ok := d.body.Has("tool_choice"); ok {
		if err := n.Object(); err != nil {
			return err
		}
		kind, err := n.ReqString("type")
		if err != nil {
			return err
		}
		choice := &d.Conversation.ToolChoice
		switch kind {
		case "auto":
		case "any":
			if !d.compat {
				choice.Mode = conversation.ChoiceRequired
			}
		case "tool":
			name, err := n.ReqString("name")
			if err != nil {
				return err
			}
			choice.Mode, choice.Name = conversation.ChoiceNamed, name
		case "none":
			choice.Mode = conversation.ChoiceNone
		default:
			at, _ := n.Given("type")
			return at.Variant("auto", "any", "tool", "none")
		}
		alone, err := n.OptBool("disable_parallel_tool_use")
		if err != nil {
			return err
		}
		d.Params.NoParallelTools = alone != nil && *alone
	}
	return d.CheckChoice("tool_choice")
}

const billing = "x-anthropic-billing-header:"

func (d *decoder) system() *protocol.Error {
	n, ok := d.body.Has("system")
	if !ok {
		return nil
	}
	m := conversation.Message{Role: conversation.RoleSystem}
	switch n.Kind {
	case pyjson.String:
		m.Content = n.Text
		if !d.compat && !d.Options().KeepBillingHeader && strings.HasPrefix(m.Content, billing) {
			_, m.Content, _ = strings.Cut(m.Content, "\n") // the line changes with every request and would spoil the prefix cache
		}
	case pyjson.Array:
		var texts []string
		for i := range n.Elems {
			b := n.At(i)
			if err := b.Object(); err != nil {
				return err
			}
			kind, err := b.ReqString("type")
			if err != nil {
				return err
			}
			if kind != "text" {
				at, _ := b.Given("type")
				return at.Variant("text")
			}
			s, err := b.ReqString("text")
			if err != nil {
				return err
			}
			if strings.HasPrefix(s, billing) && (d.compat || i == 0 && !d.Options().KeepBillingHeader) {
				continue
			}
			texts = append(texts, s)
		}
		m.Content = strings.Join(texts, "\n\n")
	default:
		return n.Wrong("a string or an array of text blocks")
	}
	if m.Content == "" && !d.compat {
		return nil
	}
	d.Conversation.Messages = append(d.Conversation.Messages, m)
	return nil
}

func (d *decoder) messages() *protocol.Error {
	n, ok := d.body.Given("messages")
	if !ok {
		return d.body.Missing("messages")
	}
	if err := n.Array(); err != nil {
		return err
	}
	if len(n.Elems) == 0 {
		return protocol.Invalid("messages", "messages: at least one message is required")
	}
	for i := range n.Elems {
		if err := d.message(n.At(i), i); err != nil {
			return err
		}
	}
	if len(d.pending) > 0 {
		return protocol.Invalid(fmt.Sprintf("messages[%d]", d.asked), "messages.%d:%s", d.asked, d.unanswered())
	}
	d.flushLate()
	return nil
}

func (d *decoder) unanswered() string {
	return fmt.Sprintf("`tool_use` ids were found without `tool_result` blocks immediately after: %s. Each `tool_use` block must have a corresponding `tool_result` block in the next message.",
		strings.Join(d.pending, ", "))
}

// settle fails when calls are pending at message i.
func (d *decoder) settle(i int) *protocol.Error {
	if len(d.pending) == 0 {
		return nil
	}
	return protocol.Invalid(fmt.Sprintf("messages[%d]", i), "messages.%d: %s", i, d.unanswered())
}

func (d *decoder) add(m conversation.Message) {
	d.Conversation.Messages = append(d.Conversation.Messages, m)
}

// flushLate puts tools that results brought into a system message of their own.
func (d *decoder) flushLate() {
	if len(d.late) > 0 {
		d.add(conversation.Message{Role: conversation.RoleSystem, Tools: d.late})
		d.late, d.lateSeen = nil, nil
	}
}

func (d *decoder) message(n protocol.Node, i int) *protocol.Error {
	if err := n.Object(); err != nil {
		return err
	}
	role, err := n.ReqString("role")
	if err != nil {
		return err
	}
	c, ok := n.Given("content")
	if !ok {
		return n.Missing("content")
	}
	if c.Kind != pyjson.String && c.Kind != pyjson.Array {
		return c.Wrong("a string or an array of content blocks")
	}
	switch role {
	case "user", "assistant", "system":
	default:
		at, _ := n.Given("role")
		return at.Variant("user", "assistant", "system")
	}
	if c.Kind == pyjson.Array && len(c.Elems) == 0 {
		return protocol.Invalid(c.Path, "messages.%d: all messages must have non-empty content", i)
	}
	if role != "user" {
		if err := d.settle(i); err != nil {
			return err
		}
		d.flushLate()
	}
	switch role {
	case "user":
		return d.user(c, i)
	case "assistant":
		return d.assistant(c, i)
	}
	return d.midSystem(c, i)
}

// user reads a user message; each block becomes a message of its own, which the renderer joins again.
func (d *decoder) user(c protocol.Node, i int) *protocol.Error {
	if c.Kind == pyjson.String {
		if err := d.settle(i); err != nil {
			return err
		}
		d.add(conversation.Message{Role: conversation.RoleUser, Content: c.Text})
		return nil
	}
	answered := map[string]bool{}
	for j := range c.Elems {
		b := c.At(j)
		kind, err := d.kind(b)
		if err != nil {
			return err
		}
		if kind == "tool_result" {
			if err := d.result(b, i, j, answered); err != nil {
				return err
			}
			continue
		}
		if d.compat || len(d.pending) > 0 && !d.resultsFollow(c, j) {
			if err := d.settle(i); err != nil {
				return err
			}
		}
		part, skip, err := d.block(b, kind, "user", i, j)
		if err != nil {
			return err
		}
		if skip {
			continue
		}
		m := conversation.Message{Role: conversation.RoleUser}
		if part.Kind == conversation.PartText {
			m.Content = part.Text
		} else {
			m.Parts = []conversation.Part{part}
		}
		d.add(m)
	}
	return nil
}

// resultsFollow says whether all pending results stand later in the same message, which many clients do.
func (d *decoder) resultsFollow(c protocol.Node, from int) bool {
	missing := map[string]bool{}
	for _, id := range d.pending {
		missing[id] = true
	}
	for j := from; j < len(c.Elems); j++ {
		b := c.At(j)
		if id, ok := b.Has("tool_use_id"); ok {
			delete(missing, id.Text)
		}
	}
	return len(missing) == 0
}

func (d *decoder) kind(b protocol.Node) (string, *protocol.Error) {
	if err := b.Object(); err != nil {
		return "", err
	}
	return b.ReqString("type")
}

// block reads a text-like block. skip says that it is left out.
func (d *decoder) block(b protocol.Node, kind, role string, i, j int) (part conversation.Part, skip bool, err *protocol.Error) {
	switch kind {
	case "text":
		s, err := b.ReqString("text")
		return conversation.TextPart(s), false, err
	case "image":
		if role == "assistant" {
			return part, false, protocol.Invalid(b.Path, "Image in assistant message is unsupported")
		}
		part, err = d.image(b, fmt.Sprintf("messages.%d.content[%d]", i, j))
		return part, false, err
	case "document":
		s, err := d.document(b)
		return conversation.TextPart(s), false, err
	case "thinking", "redacted_thinking":
		if kind == "thinking" || !d.compat {
			return part, false, protocol.Invalid(b.Path, "messages.%d.content: thinking blocks may only be in `assistant` messages", i)
		}
	case "tool_use":
		return part, false, protocol.Invalid(b.Path, "messages.%d: `tool_use` blocks can only be in `assistant` messages", i)
	case "tool_result":
		return part, false, protocol.Invalid(b.Path, "messages.%d: `tool_result` blocks can only be in `user` messages", i)
	case "tool_addition":
		return part, false, protocol.Invalid(b.Path, "messages.%d: `tool_addition` blocks can only be in `system` messages", i)
	case "server_tool_use", "web_search_tool_result":
		web := d.Options().WebSearch
		if web == protocol.WebSearchDrop || web == protocol.WebSearchDefault && !d.compat {
			return part, true, nil
		}
		return part, false, protocol.Invalid(b.Path, "Unsupported content block: server tools are not supported")
	case "search_result":
		if !d.compat {
			s, err := d.searchResult(b)
			return conversation.TextPart(s), false, err
		}
	}
	at, _ := b.Given("type")
	return part, false, at.Variant("text", "image", "document", "thinking", "tool_use", "tool_result", "tool_addition")
}

// image reads {"source": {"type": "base64"|"url"|"file", ...}}; place is the compat spelling of where it stands.
func (d *decoder) image(b protocol.Node, place string) (part conversation.Part, err *protocol.Error) {
	src, ok := b.Given("source")
	if !ok {
		return part, b.Missing("source")
	}
	if err := src.Object(); err != nil {
		return part, err
	}
	kind, err := src.ReqString("type")
	if err != nil {
		return part, err
	}
	switch kind {
	case "base64":
		media, err := src.ReqString("media_type")
		if err != nil {
			return part, err
		}
		switch media {
		case "image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp":
		default:
			at, _ := src.Given("media_type")
			return part, at.Variant("image/jpeg", "image/jpg", "image/png", "image/gif", "image/webp")
		}
		data, err := src.ReqString("data")
		if err != nil {
			return part, err
		}
		_, ok := protocol.DecodeBase64(data)
		if !ok || d.compat && len(data)%4 != 0 {
			return part, protocol.Invalid(src.Path+".data", "%s: base64 decode error", place)
		}
		for len(data)%4 != 0 {
			data += "="
		}
		return d.AddImage("data:"+media+";base64,"+data, conversation.DetailHigh, place, b.Path)
	case "url":
		url, err := src.ReqString("url")
		if err != nil {
			return part, err
		}
		if !strings.HasPrefix(url, "http://") && !strings.HasPrefix(url, "https://") {
			return part, protocol.Invalid(src.Path+".url", "%s: invalid url: %q", place, url)
		}
		return d.AddImage(url, conversation.DetailHigh, place, b.Path)
	case "file":
		return part, protocol.Invalid(src.Path, "%s: file_id is not supported. Pass the image as a base64 data url instead.", place)
	}
	at, _ := src.Given("type")
	return part, at.Variant("base64", "url", "file")
}

// document reads a document block as text.
func (d *decoder) document(b protocol.Node) (string, *protocol.Error) {
	src, ok := b.Given("source")
	if !ok {
		return "", b.Missing("source")
	}
	if err := src.Object(); err != nil {
		return "", err
	}
	kind, err := src.ReqString("type")
	if err != nil {
		return "", err
	}
	media := kind
	if m, err := src.OptString("media_type"); err != nil {
		return "", err
	} else if m != nil {
		media = *m
	}
	if d.compat {
		return fmt.Sprintf("[Unsupported document type: %s]", media), nil
	}
	title, err := b.OptString("title")
	if err != nil {
		return "", err
	}
	switch {
	case kind == "text":
		data, err := src.ReqString("data")
		if err != nil {
			return "", err
		}
		return protocol.Document(title, []byte(data)), nil
	case kind == "base64" && strings.HasPrefix(media, "text/"):
		data, err := src.ReqString("data")
		if err != nil {
			return "", err
		}
		if text, ok := protocol.DecodeBase64(data); ok {
			return protocol.Document(title, text), nil
		}
		return "", protocol.Invalid(src.Path+".data", "base64 decode error")
	case kind == "content":
		content, ok := src.Has("content")
		if !ok {
			return "", src.Missing("content")
		}
		text, err := d.plainText(content)
		if err != nil {
			return "", err
		}
		return protocol.Document(title, []byte(text)), nil
	}
	return "", protocol.Invalid(src.Path, "document type %s is not supported; text documents are", media).WithCode("unsupported_value")
}

// plainText reads a string or an array of text blocks.
func (d *decoder) plainText(n protocol.Node) (string, *protocol.Error) {
	if n.Kind == pyjson.String {
		return n.Text, nil
	}
	if err := n.Array(); err != nil {
		return "", err
	}
	var texts []string
	for i := range n.Elems {
		kind, err := d.kind(n.At(i))
		if err != nil {
			return "", err
		}
		if kind != "text" {
			at, _ := n.At(i).Given("type")
			return "", at.Variant("text")
		}
		s, err := n.At(i).ReqString("text")
		if err != nil {
			return "", err
		}
		texts = append(texts, s)
	}
	return strings.Join(texts, "\n\n"), nil
}

func (d *decoder) searchResult(b protocol.Node) (string, *protocol.Error) {
	title, err := b.ReqString("title")
	if err != nil {
		return "", err
	}
	source, err := b.ReqString("source")
	if err != nil {
		return "", err
	}
	content, ok := b.Has("content")
	if !ok {
		return "", b.Missing("content")
	}
	text, err := d.plainText(content)
	if err != nil {
		return "", err
	}
	return title + "\n" + source + "\n" + text, nil
}

// result reads a tool_result block.
func (d *decoder) result(b protocol.Node, i, j int, answered map[string]bool) *protocol.Error {
	id, err := b.ReqString("tool_use_id")
	if err != nil {
		return err
	}
	at := -1
	for k, p := range d.pending {
		if p == id {
			at = k
		}
	}
	if at < 0 {
		if answered[id] {
			return protocol.Invalid(b.Path, "messages.%d.content.%d: each tool_use must have a single result. Found multiple `tool_result` blocks with id: %s", i, j, id)
		}
		return protocol.Invalid(b.Path, "unexpected `messages.%d.content.%d: tool_use_id` found in `tool_result` blocks: %s. Each `tool_result` block must have a corresponding `tool_use` block in the previous message.", i, j, id)
	}
	d.pending = append(d.pending[:at], d.pending[at+1:]...)
	answered[id] = true
	m := conversation.Message{Role: conversation.RoleTool, ToolCallID: id}
	failed, err := b.OptBool("is_error")
	if err != nil {
		return err
	}
	m.IsError = failed != nil && *failed
	if c, ok := b.Has("content"); ok {
		if err := d.resultContent(c, &m, i, j); err != nil {
			return err
		}
	}
	d.add(m)
	return nil
}

func (d *decoder) resultContent(c protocol.Node, m *conversation.Message, i, j int) *protocol.Error {
	if c.Kind == pyjson.String {
		m.Content = c.Text
		return nil
	}
	if err := c.Array(); err != nil {
		return err
	}
	var blocks []conversation.Part
	for k := range c.Elems {
		b := c.At(k)
		kind, err := d.kind(b)
		if err != nil {
			return err
		}
		switch kind {
		case "image":
			part, err := d.image(b, fmt.Sprintf("messages.%d.content.%d.tool_result", i, j))
			if err != nil {
				return err
			}
			blocks = append(blocks, part)
			continue
		case "tool_reference":
			name, err := b.ReqString("tool_name")
			if err != nil {
				return err
			}
			t := d.declared(name)
			if t == nil {
				return protocol.Invalid(b.Path, "messages.%d.content.%d: tool reference '%s' not found in available tools", i, j, name)
			}
			if t.Deferred && !d.lateSeen[name] {
				if d.lateSeen == nil {
					d.lateSeen = map[string]bool{}
				}
				d.lateSeen[name] = true
				d.late = append(d.late, *t)
			}
			blocks = append(blocks, conversation.TextPart(name))
			continue
		case "tool_use", "tool_result", "tool_addition", "thinking", "redacted_thinking":
			at, _ := b.Given("type")
			return at.Variant("text", "image", "tool_reference", "document", "search_result")
		}
		part, skip, err := d.block(b, kind, "user", i, j)
		if err != nil {
			return err
		}
		if !skip {
			blocks = append(blocks, part)
		}
	}
	m.Parts = conversation.JoinBlocks(blocks)
	if m.Parts != nil && !m.HasImage() {
		m.Content, m.Parts = m.Text(), nil
	}
	return nil
}

func (d *decoder) declared(name string) *conversation.ToolDef {
	for i := range d.Conversation.Tools {
		if d.Conversation.Tools[i].Name == name {
			return &d.Conversation.Tools[i]
		}
	}
	return nil
}

func (d *decoder) assistant(c protocol.Node, i int) *protocol.Error {
	m := conversation.Message{Role: conversation.RoleAssistant}
	if c.Kind == pyjson.String {
		m.Content = c.Text
		d.add(m)
		return nil
	}
	var texts, thoughts []string
	thought := false
	ids := map[string]bool{}
	for j := range c.Elems {
		b := c.At(j)
		kind, err := d.kind(b)
		if err != nil {
			return err
		}
		switch {
		case kind == "thinking":
			s, err := b.ReqString("thinking")
			if err != nil {
				return err
			}
			thoughts, thought = append(thoughts, s), true
			continue
		case kind == "redacted_thinking" && !d.compat:
			d.Warnings = append(d.Warnings, b.Path+": redacted thinking that this server did not write was left out")
			continue
		case kind == "tool_use":
			call, err := d.toolUse(b)
			if err != nil {
				return err
			}
			if ids[call.ID] {
				return protocol.Invalid(b.Path+".id", "messages.%d.content.%d: `tool_use` ids must be unique", i, j)
			}
			ids[call.ID] = true
			m.ToolCalls = append(m.ToolCalls, call)
			d.pending, d.asked = append(d.pending, call.ID), i
			continue
		}
		if len(d.pending) > 0 {
			if d.compat {
				return protocol.Invalid(b.Path, "messages.%d.%d: %s", i, j, d.unanswered())
			}
			if kind == "text" {
				d.Warnings = append(d.Warnings, b.Path+": text after tool_use was put before the calls")
			}
		}
		part, skip, err := d.block(b, kind, "assistant", i, j)
		if err != nil {
			return err
		}
		if !skip {
			texts = append(texts, part.Text)
		}
	}
	m.Content = strings.Join(texts, "\n\n")
	if thought {
		r := strings.Join(thoughts, "\n\n")
		m.Reasoning = &r
	}
	d.add(m)
	return nil
}

func (d *decoder) toolUse(b protocol.Node) (call conversation.ToolCall, err *protocol.Error) {
	if call.ID, err = b.ReqString("id"); err != nil {
		return call, err
	}
	if call.Name, err = b.ReqString("name"); err != nil {
		return call, err
	}
	input, ok := b.Given("input")
	if !ok {
		return call, b.Missing("input")
	}
	style := pyjson.Python
	if d.Target.V4 {
		style = pyjson.Rust
	}
	call.Arguments = input.Value.String(style)
	return call, nil
}

// midSystem reads a message of role system: instructions, or tools that join late.
func (d *decoder) midSystem(c protocol.Node, i int) *protocol.Error {
	m := conversation.Message{Role: conversation.RoleSystem}
	text := false
	if c.Kind == pyjson.String {
		m.Content, text = c.Text, true
	} else {
		var blocks []conversation.Part
		for j := range c.Elems {
			b := c.At(j)
			kind, err := d.kind(b)
			if err != nil {
				return err
			}
			if kind == "tool_addition" {
				if err := d.addition(b, &m, i, j); err != nil {
					return err
				}
				continue
			}
			part, skip, err := d.block(b, kind, "system", i, j)
			if err != nil {
				return err
			}
			if !skip {
				blocks, text = append(blocks, part), true
			}
		}
		m.Parts = conversation.JoinBlocks(blocks)
		if m.Parts != nil && !m.HasImage() {
			m.Content, m.Parts = m.Text(), nil
		}
	}
	if !d.Target.V4 {
		d.add(m)
		return nil
	}
	if !text {
		return nil // only additions, and V4 lists every tool from the start
	}
	d.add(conversation.Message{Role: conversation.RoleUser, Content: "<system-reminder>\n" + m.Text() + "\n</system-reminder>"})
	return nil
}

func (d *decoder) addition(b protocol.Node, m *conversation.Message, i, j int) *protocol.Error {
	ref, ok := b.Given("tool")
	if !ok {
		return b.Missing("tool")
	}
	if err := ref.Object(); err != nil {
		return err
	}
	name, err := ref.ReqString("name")
	if err != nil {
		return err
	}
	t := d.declared(name)
	if t == nil {
		return protocol.Invalid(b.Path, "messages.%d.content.%d: `tool_addition` references unknown tool '%s'", i, j, name)
	}
	if !d.Target.V4 {
		m.Tools = append(m.Tools, *t)
	}
	return nil
}

// format reads output_config.format, which compat ignores.
func (d *decoder) format() *protocol.Error {
	if d.compat {
		return nil
	}
	n, ok := d.body.Has("output_format")
	if c, has := d.body.Has("output_config"); has {
		if f, has := c.Has("format"); has {
			n, ok = f, true
		}
	}
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
	if kind != "json_schema" {
		at, _ := n.Given("type")
		return at.Variant("json_schema")
	}
	schema, ok := n.Given("schema")
	if !ok {
		return n.Missing("schema")
	}
	return d.JSONFormat("", schema, false)
}
