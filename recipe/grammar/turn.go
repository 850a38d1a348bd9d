package grammar

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// Turn is the structure of one assistant turn:
//
//	turn  = [ thinking </think> ] body end
//	body  = text [ block ]            tools may be called
//	      | "\n\n" block              tools must be called
//	      | answer                    a response format
//	      | answer | "\n\n" block     a response format, and tools may be called
//	block = calls in the markup of the family, arguments by the tools' schemas
//
// Free text costs nothing until the tool mark is sampled after "<"; from there on the block is constrained. A block that begins inside
// the thinking part ends it.
type Turn struct {
	// V4 selects the markup of the V4 family; the default is that of V4.1.
	V4 bool

	Tools  []conversation.ToolDef // those that may be called
	Choice conversation.ToolChoice
	// NoParallel allows one call.
	NoParallel bool
	// Strict constrains the arguments of every tool by its schema. Without it only tools that are strict are; of the others the markup
	// and the name are.
	Strict bool

	// Thinking: the prompt ends inside the thinking part. ThinkingBound ends it after so many tokens; 0 is no bound.
	Thinking      bool
	ThinkingBound int
	// InBlock: the prompt ends after the line that opens the block.
	InBlock bool

	Format conversation.ResponseFormat
}

// TurnOf derives the turn from a conversation and its parameters.
func TurnOf(c *conversation.Conversation, p *conversation.Params, v4 bool) Turn {
	parsing := c.Parsing(nil)
	t := Turn{V4: v4, Tools: c.ActiveTools(), Choice: c.ToolChoice, NoParallel: p.NoParallelTools, Format: c.ResponseFormat, InBlock: parsing.StartsInCalls,
		Thinking: parsing.Stage == conversation.StageReasoning || parsing.Stage == conversation.StageReasoningContinuation}
	if p.ThinkingBudget != nil {
		t.ThinkingBound = int(min(max(*p.ThinkingBudget, 1), 1<<30))
	}
	return t
}

// Constrains says whether the turn constrains anything: a turn of free text without tools needs no grammar.
func (t *Turn) Constrains() bool {
	return len(t.callable()) > 0 || t.Format.Kind != conversation.FormatText || t.Thinking && t.ThinkingBound > 0
}

// callable gives the tools that may be called.
func (t *Turn) callable() []conversation.ToolDef {
	if t.Choice.Mode == conversation.ChoiceNone {
		return nil
	}
	var list []conversation.ToolDef
	for _, d := range t.Tools {
		if t.Choice.Mode == conversation.ChoiceNamed && d.Name != t.Choice.Name || t.Choice.Allowed != nil && !slices.Contains(t.Choice.Allowed, d.Name) {
			continue
		}
		list = append(list, d)
	}
	return list
}

// markup is the spelling of a family.
type markup struct {
	mark                     int32
	block, invoke, parameter string
	bare                     bool // a call without arguments may lack the empty line
}

func (t *Turn) compile(b *builder, g *Grammar, opts Options) error {
	tools := t.callable()
	forced := t.Choice.Mode == conversation.ChoiceRequired || t.Choice.Mode == conversation.ChoiceNamed
	if forced && len(tools) == 0 {
		return &Error{Kind: Unsatisfiable, Reason: fmt.Sprintf("a call is required (tool choice %v) and no tool may be called", t.Choice.Mode)}
	}
	g.frames = jsonFrames
	for _, d := range tools {
		if d.Grammar != nil {
			g.frames = maxFrames
		}
	}

	var afterMark, opener, inside int32 = -1, -1, -1
	if len(tools) > 0 {
		m := markup{mark: b.v.control.DSML, block: " calls", invoke: " invoke", parameter: " parameter"}
		if t.V4 {
			m = markup{mark: b.v.control.DSML, block: "tool_calls", invoke: "invoke", parameter: "parameter", bare: true}
		}
		if m.mark < 0 {
			return &Error{Kind: Unsupported, Reason: "the vocabulary has no token ｜DSML｜, so tools cannot be called"}
		}
		var err error
		if inside, err = t.calls(b, g, &m, tools, opts); err != nil {
			return err
		}
		afterMark = b.literal(m.block+">\n", inside)
		opener = b.literal("\n\n<", b.token(m.mark, afterMark))
	}

	answer := int32(-1)
	if spec, ok := ResponseSpec(t.Format); ok && !forced {
		spec.Options.Lenient = spec.Options.Lenient || opts.Lenient
		spec.Options.FlexibleWhitespace = opts.FlexibleWhitespace
		n, err := spec.body(b, g)
		if err != nil {
			return err
		}
		if len(tools) > 0 {
			g.frames = max(g.frames, jsonFrames)
		}
		answer = n
	}

	// What the constrained part begins with; none when the body is free text.
	start := int32(-1)
	switch {
	case forced && t.InBlock:
		start = inside
	case forced:
		start = opener
	case answer >= 0 && opener >= 0:
		start = b.split(answer, opener)
	case answer >= 0:
		start = answer
	}
	var mark []trigger
	if afterMark >= 0 {
		mark = []trigger{{id: b.v.control.DSML, after: '<', phase: -1, start: afterMark}}
	}

	var starts []int32
	for _, n := range []int32{start, afterMark} {
		if n >= 0 {
			starts = append(starts, n)
		}
	}
	then := trigger{phase: -1, start: start}
	if start < 0 {
		p := phase{mask: slices.Clone(b.v.anyText), mayEnd: true, dormant: true, triggers: mark}
		for _, id := range b.v.eos {
			setBit(p.mask, id)
		}
		p.allowed = countBits(p.mask)
		then.phase = int32(len(g.phases))
		g.phase = then.phase
		g.phases = append(g.phases, p)
	} else {
		g.start = start
	}
	if t.Thinking {
		if err := b.thinking(g, int32(t.ThinkingBound), start < 0, then, mark...); err != nil {
			return err
		}
	}
	return b.seal(g, starts...)
}

// calls builds the inside of a block, from after its first line, and the end of the turn.
func (t *Turn) calls(b *builder, g *Grammar, m *markup, tools []conversation.ToolDef, opts Options) (int32, error) {
	end := b.literal("\n</", b.token(m.mark, b.literal(m.block+">", returnNode)))
	call := b.newRule()
	after := end
	if !t.NoParallel {
		loop := b.add(node{kind: nodeSplit})
		again := b.literal("\n", b.call(call, loop))
		b.nodes[loop].outs = []int32{end, again}
		after = loop
	}
	var outs []int32
	close := b.literal("\n</", b.token(m.mark, b.literal(m.invoke+">", returnNode)))
	bare := b.literal("</", b.token(m.mark, b.literal(m.invoke+">", returnNode)))
	for i := range tools {
		d := &tools[i]
		args, err := t.arguments(b, g, m, d, opts, close, bare)
		if err != nil {
			return 0, err
		}
		outs = append(outs, b.literal(d.Name+"\">\n", args))
	}
	start := b.literal("<", b.token(m.mark, b.literal(m.invoke+` name="`, b.split(outs...))))
	b.rules[call].start = start
	return b.call(call, after), nil
}

// arguments builds the parameters of one tool.
func (t *Turn) arguments(b *builder, g *Grammar, m *markup, d *conversation.ToolDef, opts Options, close, bare int32) (int32, error) {
	strict := t.Strict || d.Strict != nil && *d.Strict
	text := []byte(d.Parameters)
	custom := d.Kind == conversation.ToolCustomText || d.Kind == conversation.ToolCustomGrammar
	switch {
	case custom:
		strict = true
		text = []byte(`{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}`)
	case len(text) == 0 && strict:
		text = []byte(`{"type":"object","additionalProperties":false}`)
	case !strict:
		text = []byte(`{"type":"object"}`)
	}
	opts.Closed = opts.Closed || strict && !custom && d.Strict != nil && *d.Strict
	opts.Lenient = opts.Lenient || !strict
	s, err := newSchemaCompiler(b, text, opts)
	if err != nil {
		if e, ok := err.(*Error); ok {
			e.Tool = d.Name
		}
		return 0, err
	}
	s.tool = d.Name

	// param is one parameter from its key's end: a string stands raw, everything else as JSON.
	param := func(value conj, next int32) int32 {
		tail := b.literal("</", b.token(m.mark, b.literal(m.parameter+">", next)))
		value = s.normal(value)
		var raw, other []*alternative
		for _, a := range s.alternatives(value) {
			if a.types&typeString != 0 {
				raw = append(raw, a)
			}
			if a.types != typeString {
				c := *a
				c.types &^= typeString
				other = append(other, &c)
			}
		}
		var outs []int32
		switch {
		case custom && d.Grammar != nil:
			n, err := compileLark(b, d.Grammar.Syntax, d.Grammar.Definition, encodeRaw, tail)
			if err != nil {
				if e, ok := err.(*Error); ok {
					e.Tool = d.Name
				}
				b.fail(err)
			}
			outs = append(outs, b.literal(`" string="true">`, n))
		case len(raw) > 0:
			if n := s.build(raw, encodeRaw, tail); b.nodes[n].kind != nodeSplit || len(b.nodes[n].outs) > 0 {
				outs = append(outs, b.literal(`" string="true">`, n))
			}
		}
		switch {
		case len(raw) == 0:
			outs = append(outs, b.literal(`" string="false">`, s.value(value, tail)))
		case len(other) > 0:
			if n := s.build(other, encodeJSON, tail); b.nodes[n].kind != nodeSplit || len(b.nodes[n].outs) > 0 {
				outs = append(outs, b.literal(`" string="false">`, n))
			}
		}
		return b.split(outs...)
	}

	var outs []int32
	for _, a := range s.alternatives(s.normal(conj{{s.root, ""}})) {
		if a.types&typeObject == 0 || a.hasEnum {
			continue
		}
		props := s.declared(a)
		for _, p := range props {
			if p.key == "" || !utf8.ValidString(p.key) {
				s.fail(Unsupported, a.ptr+"/properties", "a parameter without a name cannot be written")
			}
		}
		l := entryList{props: props, min: a.minProps, max: a.maxProps, ptr: a.ptr}
		open := func(rest func() int32) int32 {
			return b.literal("<", b.token(m.mark, b.literal(m.parameter+` name="`, rest())))
		}
		l.entry = func(p *property, next int32) int32 {
			return open(func() int32 { return b.literal(p.key, param(p.value, next)) })
		}
		if s.restAllowed(a) {
			l.other = func(next int32) int32 {
				return open(func() int32 { return b.automaton(s.otherKey(props, encodeRaw), 0, -1, param(a.rest, next)) })
			}
		}
		l.comma = func(next int32) int32 { return b.literal("\n", next) }
		l.end = func(empty bool) int32 {
			if empty && m.bare {
				return b.split(close, bare)
			}
			return close
		}
		outs = append(outs, s.entries(l))
	}
	n := b.split(outs...)
	if !s.satisfiable(n) {
		return 0, s.noText()
	}
	for _, u := range s.unchecked {
		g.unchecked = append(g.unchecked, "/tools/"+escapePointer(d.Name)+u)
	}
	return n, nil
}
