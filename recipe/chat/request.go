package chat

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Request is a decoded Chat Completions request.
type Request struct {
	protocol.Request

	// IncludeUsage is stream_options.include_usage.
	IncludeUsage bool
	// Functions says that the client used the legacy functions field and gets function_call answers.
	Functions bool
}

// Decode reads a request body. Errors are *protocol.Error.
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
	for _, step := range []func() *protocol.Error{d.thinking, d.params, d.tools, d.choice, d.messages, d.format, d.CheckSampling, d.finish} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return d.Request, nil
}

// thinking reads thinking, reasoning_effort and the template arguments that other servers take.
func (d *decoder) thinking() *protocol.Error {
	var t protocol.Thinking
	if n, ok := d.body.Has("thinking"); ok {
		if err := t.ReadThinking(n); err != nil {
			return err
		}
	}
	effort, given := d.body.Has("reasoning_effort")
	if !d.compat {
		if n, ok := d.body.Has("chat_template_kwargs"); ok {
			if err := n.Object(); err != nil {
				return err
			}
			if err := d.templateSwitch(&t, n); err != nil {
				return err
			}
			if e, ok := n.Has("reasoning_effort"); ok && !given {
				effort, given = e, true
			}
		}
		if err := d.templateSwitch(&t, d.body); err != nil {
			return err
		}
	}
	if given {
		if err := t.ReadEffort(effort, d.Options()); err != nil {
			return err
		}
	}
	t.Apply(&d.Request.Request)
	return nil
}

// templateSwitch reads enable_thinking, and thinking where it is a boolean.
func (d *decoder) templateSwitch(t *protocol.Thinking, n protocol.Node) *protocol.Error {
	for _, key := range []string{"enable_thinking", "thinking"} {
		if key == "thinking" && n.Path == "" {
			continue
		}
		on, err := n.OptBool(key)
		if err != nil {
			return err
		}
		if on != nil && !t.Set {
			t.Set, t.On = true, *on
		}
	}
	return nil
}

func (d *decoder) params() *protocol.Error {
	p := &d.Params
	if err := d.ReadSampling(d.body); err != nil {
		return err
	}
	if err := d.maxTokens(); err != nil {
		return err
	}
	n, err := d.body.OptUint("n")
	if err != nil {
		return err
	}
	if n != nil {
		switch {
		case d.compat && *n != 1:
			return protocol.Invalid("n", "Invalid n value (currently only n = 1 is supported)")
		case *n < 1 || *n > protocol.MaxChoices:
			return protocol.Invalid("n", "Invalid n value, the valid range of n is [1, %d]", protocol.MaxChoices)
		}
		p.N = int(*n)
	}
	if err := d.stop(); err != nil {
		return err
	}
	if err := d.streamOptions(); err != nil {
		return err
	}
	for _, f := range []struct {
		key string
		to  **float64
	}{{"frequency_penalty", &p.FrequencyPenalty}, {"presence_penalty", &p.PresencePenalty}} {
		v, err := d.body.OptFloat(f.key)
		if err != nil {
			return err
		}
		if v != nil && !(*v >= -2 && *v <= 2) {
			return protocol.Invalid(f.key, "Invalid %s value, the valid range of %s is [-2, 2]", f.key, f.key)
		}
		*f.to = v
	}
	seed, err := d.body.OptUint("seed")
	if err != nil {
		return err
	}
	if seed != nil {
		if *seed > math.MaxInt64 {
			return protocol.Invalid("seed", "Invalid seed value, the valid range of seed is [0, 2^63)")
		}
		s := int64(*seed)
		p.Seed = &s
	}
	if err := d.logprobs(); err != nil {
		return err
	}
	if d.compat {
		p.FrequencyPenalty, p.PresencePenalty = nil, nil
		return nil
	}
	if err := d.logitBias(); err != nil {
		return err
	}
	if topK, err := d.body.OptUint("top_k"); err != nil {
		return err
	} else if topK != nil && *topK < 1<<31 {
		k := int(*topK)
		p.TopK = &k
	}
	parallel, err := d.body.OptBool("parallel_tool_calls")
	if err != nil {
		return err
	}
	p.NoParallelTools = parallel != nil && !*parallel
	for _, f := range []struct {
		key string
		to  *string
	}{{"user", &d.User}, {"safety_identifier", &d.User}, {"prompt_cache_key", &d.CacheKey}} {
		s, err := d.body.OptString(f.key)
		if err != nil {
			return err
		}
		if s != nil {
			*f.to = *s
		}
	}
	return d.unsupported()
}

func (d *decoder) maxTokens() *protocol.Error {
	read := func(key string) (*int64, *protocol.Error) {
		n, err := d.body.OptUint(key)
		if err != nil || n == nil {
			return nil, err
		}
		bound := d.MaxTokensBound()
		if *n < 1 || *n > uint64(bound) {
			return nil, protocol.Invalid(key, "Invalid %s value, the valid range of %s is [1, %d]", key, key, bound)
		}
		v := int64(*n)
		return &v, nil
	}
	max, err := read("max_tokens")
	if err != nil {
		return err
	}
	d.Params.MaxTokens = max
	if d.compat {
		return nil
	}
	completion, err := read("max_completion_tokens")
	if err != nil {
		return err
	}
	if completion != nil {
		if max != nil && *max != *completion {
			return protocol.Invalid("max_completion_tokens", "max_tokens is %d and max_completion_tokens is %d; give one of them, or the same value", *max, *completion)
		}
		d.Params.MaxTokens = completion
	}
	return nil
}

func (d *decoder) stop() *protocol.Error {
	n, ok := d.body.Has("stop")
	if !ok {
		return nil
	}
	if n.Kind == pyjson.String {
		return d.StopStrings([]string{n.Text}, "stop", true)
	}
	if n.Kind != pyjson.Array {
		return n.Wrong("a string or an array of strings")
	}
	var list []string
	for i := range n.Elems {
		s, err := n.At(i).String()
		if err != nil {
			return err
		}
		list = append(list, s)
	}
	return d.StopStrings(list, "stop", false)
}

func (d *decoder) streamOptions() *protocol.Error {
	n, ok := d.body.Has("stream_options")
	if !ok {
		return nil
	}
	if err := n.Object(); err != nil {
		return err
	}
	usage, err := n.OptBool("include_usage")
	if err != nil {
		return err
	}
	if !d.Stream {
		return protocol.Invalid("stream_options", "stream_options should be set along with stream = true")
	}
	d.IncludeUsage = usage != nil && *usage
	return nil
}

func (d *decoder) logprobs() *protocol.Error {
	on, err := d.body.OptBool("logprobs")
	if err != nil {
		return err
	}
	top, err := d.body.OptUint("top_logprobs")
	if err != nil {
		return err
	}
	d.Params.Logprobs = on != nil && *on
	if top == nil {
		return nil
	}
	if *top > protocol.MaxTopLogprobs {
		return protocol.Invalid("top_logprobs", "Invalid top_logprobs value, the valid range of top_logprobs is [0, 20].")
	}
	if !d.Params.Logprobs {
		return protocol.Invalid("top_logprobs", "Invalid top_logprobs and logprobs value, logprobs must be set to true if top_logprobs is used.")
	}
	n := int(*top)
	d.Params.TopLogprobs = &n
	return nil
}

func (d *decoder) logitBias() *protocol.Error {
	n, ok := d.body.Has("logit_bias")
	if !ok {
		return nil
	}
	if err := n.Object(); err != nil {
		return err
	}
	bias := make(map[int32]float32, len(n.Members))
	for i := range n.Members {
		m := &n.Members[i]
		at := protocol.Node{Value: &m.Value, Path: "logit_bias." + m.Key}
		id, perr := strconv.ParseInt(m.Key, 10, 32)
		if perr != nil || id < 0 {
			return protocol.Invalid(at.Path, "Invalid logit_bias key %q, keys are token ids", m.Key)
		}
		v, err := at.Float()
		if err != nil {
			return err
		}
		if !(v >= -100 && v <= 100) {
			return protocol.Invalid(at.Path, "Invalid logit_bias value, the valid range is [-100, 100]")
		}
		bias[int32(id)] = float32(v)
	}
	d.Params.LogitBias = bias
	return nil
}

// unsupported refuses what would change the answer's form and cannot be done.
func (d *decoder) unsupported() *protocol.Error {
	if n, ok := d.body.Has("audio"); ok {
		return protocol.Invalid(n.Path, "audio output is not supported").WithCode("unsupported_parameter")
	}
	if n, ok := d.body.Has("modalities"); ok {
		if err := n.Array(); err != nil {
			return err
		}
		for i := range n.Elems {
			if s, err := n.At(i).String(); err != nil {
				return err
			} else if s != "text" {
				return protocol.Invalid(n.At(i).Path, "modality %q is not supported, only text is", s).WithCode("unsupported_parameter")
			}
		}
	}
	for _, key := range []string{"prediction", "web_search_options"} {
		if _, ok := d.body.Has(key); ok {
			d.Warnings = append(d.Warnings, key+" has no effect")
		}
	}
	return nil
}

func (d *decoder) tools() *protocol.Error {
	if n, ok := d.body.Has("tools"); ok {
		if err := n.Array(); err != nil {
			return err
		}
		for i := range n.Elems {
			t, err := d.tool(n.At(i))
			if err != nil {
				return err
			}
			d.Conversation.Tools = append(d.Conversation.Tools, t)
		}
		return d.UniqueTools()
	}
	n, ok := d.body.Has("functions")
	if !ok || d.compat {
		return nil
	}
	if err := n.Array(); err != nil {
		return err
	}
	d.Functions = true
	for i := range n.Elems {
		t, err := d.FunctionTool(n.At(i), "parameters", n.At(i).Path)
		if err != nil {
			return err
		}
		d.Conversation.Tools = append(d.Conversation.Tools, t)
	}
	return d.UniqueTools()
}

func (d *decoder) tool(n protocol.Node) (t conversation.ToolDef, err *protocol.Error) {
	if err := n.Object(); err != nil {
		return t, err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return t, err
	}
	inner, ok := n.Given(kind)
	switch {
	case kind == "function" && !ok, kind == "custom" && !d.compat && !ok:
		return t, n.Missing(kind)
	case kind == "function":
		return d.FunctionTool(inner, "parameters", inner.Path)
	case kind == "custom" && !d.compat:
		return d.customTool(inner)
	}
	at, _ := n.Given("type")
	if d.compat {
		return t, at.Variant("function")
	}
	return t, at.Variant("function", "custom")
}

func (d *decoder) customTool(n protocol.Node) (t conversation.ToolDef, err *protocol.Error) {
	name, err := n.ReqString("name")
	if err != nil {
		return t, err
	}
	description, err := n.OptString("description")
	if err != nil {
		return t, err
	}
	var g *conversation.Grammar
	if f, ok := n.Has("format"); ok {
		if g, err = protocol.ReadCustomFormat(f); err != nil {
			return t, err
		}
	}
	if err := d.CheckToolName(name, n.Path+".name"); err != nil {
		return t, err
	}
	return protocol.WrapCustom(name, description, g), nil
}

func (d *decoder) choice() *protocol.Error {
	key := "tool_choice"
	n, ok := d.body.Has(key)
	if !ok && d.Functions {
		key = "function_call"
		n, ok = d.body.Has(key)
	}
	if ok {
		if err := d.readChoice(n, key == "function_call"); err != nil {
			return err
		}
	}
	return d.CheckChoice(key)
}

func (d *decoder) readChoice(n protocol.Node, legacy bool) *protocol.Error {
	choice := &d.Conversation.ToolChoice
	if n.Kind == pyjson.String {
		switch n.Text {
		case "none":
			choice.Mode = conversation.ChoiceNone
		case "auto":
			choice.Mode = conversation.ChoiceAuto
		case "required":
			choice.Mode = conversation.ChoiceRequired
		default:
			return n.Variant("none", "auto", "required", "a tool")
		}
		return nil
	}
	if n.Kind != pyjson.Object {
		return n.Wrong("none, auto, required or a tool")
	}
	named := func(in protocol.Node) *protocol.Error {
		name, err := in.ReqString("name")
		choice.Mode, choice.Name = conversation.ChoiceNamed, name
		return err
	}
	if legacy {
		return named(n)
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return err
	}
	at, _ := n.Given("type")
	switch {
	case kind == "function" || kind == "custom" && !d.compat:
		in, ok := n.Has(kind)
		if !ok {
			return n.Missing(kind)
		}
		if err := in.Object(); err != nil {
			return err
		}
		return named(in)
	case kind == "allowed_tools" && !d.compat:
		in, ok := n.Has("allowed_tools")
		if !ok {
			return n.Missing("allowed_tools")
		}
		return d.allowed(in)
	case d.compat:
		return at.Variant("function")
	}
	return at.Variant("function", "custom", "allowed_tools")
}

// allowed reads {"mode": "auto"|"required", "tools": [{"type": "function", "function": {"name"}}]}.
func (d *decoder) allowed(n protocol.Node) *protocol.Error {
	choice := &d.Conversation.ToolChoice
	if err := n.Object(); err != nil {
		return err
	}
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
		in := t
		for _, key := range []string{"function", "custom"} {
			if f, ok := t.Has(key); ok {
				in = f
			}
		}
		name, err := in.ReqString("name")
		if err != nil {
			return err
		}
		choice.Allowed = append(choice.Allowed, name)
	}
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
		return protocol.Invalid("messages", "Empty input messages")
	}
	p := pairing{d: d}
	for i := range n.Elems {
		if err := d.message(n.At(i), i, i == len(n.Elems)-1, &p); err != nil {
			return err
		}
	}
	return p.settle()
}

// pairing checks that every call is answered at once and only once.
type pairing struct {
	d       *decoder
	pending map[string]bool
}

const (
	errUnanswered = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. (insufficient tool messages following tool_calls message)"
	errNotAsked   = "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id', The following tool_call_ids did not have response messages: %s"
	errNoCall     = "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'"
)

func (p *pairing) settle() *protocol.Error {
	if len(p.pending) > 0 {
		return protocol.Invalid("messages", errUnanswered)
	}
	return nil
}

func (p *pairing) answer(id, path string) *protocol.Error {
	if len(p.pending) == 0 {
		return protocol.Invalid(path, errNoCall)
	}
	if !p.pending[id] {
		return protocol.Invalid(path, errNotAsked, id)
	}
	delete(p.pending, id)
	return nil
}

func (d *decoder) message(n protocol.Node, i int, last bool, p *pairing) *protocol.Error {
	if err := n.Object(); err != nil {
		return err
	}
	role, err := n.ReqString("role")
	if err != nil {
		return err
	}
	if role == "developer" && !d.compat {
		role = "system"
	}
	if role != "tool" && !(role == "function" && !d.compat) {
		if err := p.settle(); err != nil {
			return err
		}
	}
	m := conversation.Message{}
	at := fmt.Sprintf(".messages[%d]", i)
	switch role {
	case "system", "user":
		m.Role = conversation.RoleUser
		if role == "system" {
			m.Role = conversation.RoleSystem
		}
		if err := d.content(n, &m, at); err != nil {
			return err
		}
		if role == "system" && m.Text() == "" && !m.HasImage() {
			return nil
		}
	case "latest_reminder":
		m.Role = conversation.RoleReminder
		if m.Content, err = n.ReqString("content"); err != nil {
			return err
		}
	case "assistant":
		if err := d.assistant(n, &m, i, last, p, at); err != nil {
			return err
		}
	case "tool":
		m.Role = conversation.RoleTool
		if m.ToolCallID, err = n.ReqString("tool_call_id"); err != nil {
			return err
		}
		if err := d.content(n, &m, at); err != nil {
			return err
		}
		if err := p.answer(m.ToolCallID, n.Path+".tool_call_id"); err != nil {
			return err
		}
	case "function":
		if d.compat {
			r, _ := n.Given("role")
			return r.Variant("system", "user", "assistant", "tool", "latest_reminder")
		}
		m.Role = conversation.RoleTool
		if m.ToolCallID, err = n.ReqString("name"); err != nil {
			return err
		}
		if err := d.content(n, &m, at); err != nil {
			return err
		}
		if err := p.answer(m.ToolCallID, n.Path+".name"); err != nil {
			return err
		}
	default:
		r, _ := n.Given("role")
		return r.Variant("system", "user", "assistant", "tool", "latest_reminder")
	}
	d.Conversation.Messages = append(d.Conversation.Messages, m)
	return nil
}

// content reads the content of a message: a string or blocks.
func (d *decoder) content(n protocol.Node, m *conversation.Message, at string) *protocol.Error {
	c, ok := n.Given("content")
	if !ok {
		return n.Missing("content")
	}
	if c.Kind == pyjson.Null && m.Role == conversation.RoleTool && !d.compat {
		return nil
	}
	return d.readContent(c, m, at)
}

func (d *decoder) readContent(c protocol.Node, m *conversation.Message, at string) *protocol.Error {
	if c.Kind == pyjson.String {
		m.Content = c.Text
		return nil
	}
	if c.Kind != pyjson.Array {
		return protocol.Malformed(c.Path, "invalid request body: content should be a string or a list")
	}
	var blocks []conversation.Part
	for i := range c.Elems {
		part, err := d.block(c.At(i), m.Role, at)
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

func (d *decoder) block(n protocol.Node, role conversation.Role, at string) (part conversation.Part, err *protocol.Error) {
	if err := n.Object(); err != nil {
		return part, err
	}
	kind, err := n.ReqString("type")
	if err != nil {
		return part, err
	}
	textOf := func(key string) (conversation.Part, *protocol.Error) {
		s, err := n.ReqString(key)
		return conversation.TextPart(s), err
	}
	switch {
	case kind == "text", kind == "input_text" && !d.compat, kind == "output_text" && !d.compat:
		return textOf("text")
	case kind == "refusal" && !d.compat:
		return textOf("refusal")
	case kind == "image_url":
		img, ok := n.Given("image_url")
		if !ok {
			return part, n.Missing("image_url")
		}
		var url string
		detail := conversation.DetailHigh
		if img.Kind == pyjson.String && !d.compat {
			url = img.Text
		} else {
			if err := img.Object(); err != nil {
				return part, err
			}
			if url, err = img.ReqString("url"); err != nil {
				return part, err
			}
			if detail, err = protocol.ReadDetail(img); err != nil {
				return part, err
			}
		}
		if role == conversation.RoleAssistant {
			return part, protocol.Invalid(n.Path, "Image in assistant message is not supported")
		}
		return d.AddImage(url, detail, at, img.Path)
	case kind == "file":
		return d.file(n, role, at)
	}
	k, _ := n.Given("type")
	return part, k.Variant("text", "image_url", "file")
}

func (d *decoder) file(n protocol.Node, role conversation.Role, at string) (part conversation.Part, err *protocol.Error) {
	f, ok := n.Given("file")
	if !ok {
		return part, n.Missing("file")
	}
	if err := f.Object(); err != nil {
		return part, err
	}
	if d.compat {
		return part, protocol.Invalid(f.Path, "%s: file must have a file_id or file_data", at)
	}
	data, err := f.OptString("file_data")
	if err != nil {
		return part, err
	}
	if id, err := f.OptString("file_id"); err != nil {
		return part, err
	} else if id != nil {
		return part, protocol.Invalid(f.Path+".file_id", "no file with id %q; send the data itself in file_data", *id).WithCode("unsupported_value")
	}
	switch {
	case data == nil:
		return part, protocol.Invalid(f.Path, "file must have a file_id or file_data")
	case strings.HasPrefix(*data, "data:image/"):
		if role == conversation.RoleAssistant {
			return part, protocol.Invalid(n.Path, "Image in assistant message is not supported")
		}
		return d.AddImage(*data, conversation.DetailHigh, at, f.Path+".file_data")
	case strings.HasPrefix(*data, "data:text/"):
		if k := strings.Index(*data, "base64,"); k >= 0 {
			if text, ok := protocol.DecodeBase64((*data)[k+len("base64,"):]); ok {
				name, err := f.OptString("filename")
				if err != nil {
					return part, err
				}
				return conversation.TextPart(protocol.Document(name, text)), nil
			}
		}
		return part, protocol.Invalid(f.Path+".file_data", "%s: Invalid base64 data", at)
	}
	return part, protocol.Invalid(f.Path+".file_data", "file type not supported; image and text files are").WithCode("unsupported_value")
}

func (d *decoder) assistant(n protocol.Node, m *conversation.Message, i int, last bool, p *pairing, at string) *protocol.Error {
	m.Role = conversation.RoleAssistant
	content, hasContent := n.Has("content")
	if hasContent {
		if err := d.readContent(content, m, at); err != nil {
			return err
		}
	}
	var err *protocol.Error
	if m.Reasoning, err = n.OptString("reasoning_content"); err != nil {
		return err
	}
	if m.Reasoning == nil && !d.compat {
		if m.Reasoning, err = n.OptString("reasoning"); err != nil {
			return err
		}
	}
	calls, hasCalls := n.Has("tool_calls")
	if hasCalls {
		if err := calls.Array(); err != nil {
			return err
		}
		if len(calls.Elems) == 0 {
			if d.compat {
				return protocol.Invalid(calls.Path, "Invalid 'messages[%d].tool_calls': empty array. Expected an array with minimum length 1, but got an empty array instead.", i)
			}
			hasCalls = false
		}
	}
	if legacy, ok := n.Has("function_call"); ok && !hasCalls && !d.compat {
		if err := d.legacyCall(legacy, m, p); err != nil {
			return err
		}
		hasCalls = true
	} else if hasCalls {
		if err := d.calls(calls, m, i, p); err != nil {
			return err
		}
	}
	prefix, err := n.OptBool("prefix")
	if err != nil {
		return err
	}
	if !hasContent && !hasCalls && (d.compat || m.Reasoning == nil) {
		return protocol.Invalid(n.Path, "Invalid assistant message: content or tool_calls must be set")
	}
	if prefix != nil && *prefix {
		m.Prefix = true
		if !last {
			return protocol.Invalid(n.Path+".prefix", "Invalid completion message: prefix set true with message which is not final message or message role is not assistant")
		}
	}
	if d.Options().RequireReasoning && d.Conversation.Thinking && hasCalls && m.Reasoning == nil {
		return protocol.Invalid(n.Path+".reasoning_content", "The `reasoning_content` in the thinking mode must be passed back to the API.")
	}
	return nil
}

func (d *decoder) calls(list protocol.Node, m *conversation.Message, index int, p *pairing) *protocol.Error {
	p.pending = map[string]bool{}
	for i := range list.Elems {
		n := list.At(i)
		if err := n.Object(); err != nil {
			return err
		}
		id, err := n.ReqString("id")
		if err != nil {
			return err
		}
		kind := "function"
		if t, err := n.OptString("type"); err != nil {
			return err
		} else if t != nil {
			kind = *t
		} else if d.compat {
			return n.Missing("type")
		}
		call := conversation.ToolCall{ID: id}
		switch {
		case kind == "function":
			f, ok := n.Given("function")
			if !ok {
				return n.Missing("function")
			}
			if err := d.function(f, &call); err != nil {
				return err
			}
		case kind == "custom" && !d.compat:
			f, ok := n.Given("custom")
			if !ok {
				return n.Missing("custom")
			}
			if err := f.Object(); err != nil {
				return err
			}
			if call.Name, err = f.ReqString("name"); err != nil {
				return err
			}
			input, err := f.ReqString("input")
			if err != nil {
				return err
			}
			call.Arguments, call.Custom = protocol.CustomArguments(input), true
		default:
			t, _ := n.Given("type")
			return t.Variant("function")
		}
		if p.pending[id] {
			return protocol.Invalid(n.Path+".id", "Duplicate value for 'tool_call_id' of %s in message[%d]", id, index)
		}
		p.pending[id] = true
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return nil
}

func (d *decoder) function(f protocol.Node, call *conversation.ToolCall) (err *protocol.Error) {
	if err := f.Object(); err != nil {
		return err
	}
	if call.Name, err = f.ReqString("name"); err != nil {
		return err
	}
	a, ok := f.Given("arguments")
	switch {
	case ok && a.Kind == pyjson.Object && !d.compat:
		call.Arguments = string(a.JSON())
	case !ok && !d.compat, ok && a.Kind == pyjson.Null && !d.compat:
		call.Arguments = "{}"
	case !ok:
		return f.Missing("arguments")
	default:
		if call.Arguments, err = a.String(); err != nil {
			return err
		}
		if call.Arguments == "" && !d.compat {
			call.Arguments = "{}"
		}
	}
	return nil
}

// legacyCall reads function_call of an assistant message; the function message after it answers by name.
func (d *decoder) legacyCall(n protocol.Node, m *conversation.Message, p *pairing) *protocol.Error {
	call := conversation.ToolCall{}
	if err := d.function(n, &call); err != nil {
		return err
	}
	call.ID = call.Name
	p.pending = map[string]bool{call.ID: true}
	m.ToolCalls = []conversation.ToolCall{call}
	return nil
}

func (d *decoder) format() *protocol.Error {
	n, ok := d.body.Has("response_format")
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
		if !d.mentionsJSON() {
			return protocol.Invalid("messages", "Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'.")
		}
	case kind == "json_schema":
		in, ok := n.Given("json_schema")
		if !ok {
			return n.Missing("json_schema")
		}
		if err := in.Object(); err != nil {
			return err
		}
		name, err := in.OptString("name")
		if err != nil {
			return err
		}
		strict, err := in.OptBool("strict")
		if err != nil {
			return err
		}
		schema, ok := in.Given("schema")
		if !ok {
			return in.Missing("schema")
		}
		label := ""
		if name != nil {
			label = *name
		}
		if err := d.JSONFormat(label, schema, strict != nil && *strict); err != nil {
			return err
		}
	case kind == "regex":
		if f.Pattern, err = n.ReqString("regex"); err != nil {
			return err
		}
		f.Kind = conversation.FormatRegex
	case kind == "grammar" && !d.compat:
		if f.Pattern, err = n.ReqString("grammar"); err != nil {
			return err
		}
		f.Kind, f.Syntax = conversation.FormatGrammar, "lark"
		if s, err := n.OptString("syntax"); err != nil {
			return err
		} else if s != nil {
			f.Syntax = *s
		}
	default:
		t, _ := n.Given("type")
		return t.Variant("json_object", "json_schema", "regex", "text")
	}
	return nil
}

func (d *decoder) mentionsJSON() bool {
	for i := range d.Conversation.Messages {
		if strings.Contains(strings.ToLower(d.Conversation.Messages[i].Text()), "json") {
			return true
		}
	}
	return false
}

func (d *decoder) finish() *protocol.Error {
	if c := &d.Conversation; c.Continues() != nil {
		if len(c.ActiveTools()) > 0 {
			return protocol.Invalid("tools", "Function call should not be used with prefix")
		}
		if c.ResponseFormat.Kind == conversation.FormatJSONObject {
			return protocol.Invalid("response_format", "response_format json_object should not be used with prefix")
		}
	}
	d.Constrain()
	return nil
}
