package grammar

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// Kind says what a Spec constrains to.
type Kind uint8

// The kinds of constraints.
const (
	KindJSONSchema Kind = iota + 1 // Spec.Schema
	KindJSONObject                 // any JSON object
	KindRegex                      // Spec.Pattern, matched from end to end
	KindChoice                     // one of Spec.Choices, as it stands
	KindGrammar                    // Spec.Pattern, a grammar in Spec.Syntax
	KindTurn                       // Spec.Turn, a whole assistant turn with tools
)

// Spec is what an output must look like. It is a value; Compile does not keep its slices.
type Spec struct {
	Kind    Kind
	Schema  json.RawMessage
	Pattern string
	Syntax  string // KindGrammar: "lark"
	Choices []string
	Turn    *Turn

	Options Options

	// Activation lets free text stand before the constrained part. A Turn has its own.
	Activation Activation
}

// Options say how JSON Schema is read.
type Options struct {
	// Lenient ignores keywords that cannot be enforced instead of refusing the schema; Grammar.Unchecked lists them.
	Lenient bool
	// Closed makes additionalProperties false where a schema has keywords of objects and does not say. {"type": "object"} alone stays open.
	Closed bool
	// FlexibleWhitespace allows up to 2 line feeds and then 16 spaces wherever JSON allows whitespace inside a document. The default is
	// ", " and ": " and nothing else, the form the models were trained on.
	FlexibleWhitespace bool
}

// Activation says when the constraint begins. The zero value is: at once.
type Activation struct {
	// Thinking: the prompt ended inside the thinking part. Everything but control marks is free until the token that ends it.
	Thinking bool
	// ThinkingBound ends the thinking part after so many tokens; 0 is no bound.
	ThinkingBound int

	// Trigger is a byte sequence: text is free until it was written, then the constraint holds. "" is no trigger. It comes after the
	// thinking part.
	Trigger string
	// TriggerBound forces the trigger after so many tokens of free text; 0 is no bound.
	TriggerBound int
	// Optional lets the text end without the trigger.
	Optional bool
}

// Limits of a Spec. What is beyond is refused with TooLarge.
const (
	MaxSchemaBytes = 256 << 10
	MaxNesting     = 64     // of schemas in schemas
	MaxEnum        = 10_000 // values of one enum
	MaxRepeat      = 4096   // minItems, maxItems, minProperties, maxProperties
	MaxLength      = 1 << 24
	MaxChoices     = 10_000
)

// ErrorKind says why a Spec was refused.
type ErrorKind uint8

// The kinds of errors.
const (
	Invalid       ErrorKind = iota + 1 // not a schema, not an expression
	Unsupported                        // valid, and not enforceable
	Unsatisfiable                      // no text matches
	TooLarge                           // beyond a limit
	Timeout                            // not compiled within the deadline
)

// String names the kind in a word.
func (k ErrorKind) String() string {
	switch k {
	case Invalid:
		return "invalid"
	case Unsupported:
		return "unsupported"
	case Unsatisfiable:
		return "unsatisfiable"
	case TooLarge:
		return "too large"
	case Timeout:
		return "timeout"
	}
	return "unknown"
}

// Error is why a Spec cannot be compiled.
type Error struct {
	Kind ErrorKind
	// Pointer is the JSON pointer of the keyword in the schema; "" is the schema itself or no schema.
	Pointer string
	// Tool is the tool whose schema it is, or "".
	Tool   string
	Reason string
}

// Error gives place and reason.
func (e *Error) Error() string {
	where := ""
	if e.Tool != "" {
		where = fmt.Sprintf(" of tool %q", e.Tool)
	}
	if e.Pointer != "" {
		where += " at " + e.Pointer
	}
	return fmt.Sprintf("grammar: %s%s: %s", e.Kind, where, e.Reason)
}

// Grammar is a compiled Spec for one vocabulary. It is immutable but for token tables, which are made when first needed, and safe for
// concurrent use.
type Grammar struct {
	v         *Vocabulary
	nodes     []node
	rules     []rule
	start     int32
	phase     int32 // -1: constrained from the start
	phases    []phase
	bound     textBound
	frames    int32
	unchecked []string
	size      int
}

// phase is a stretch of free text.
type phase struct {
	mask     []uint32
	allowed  int
	mayEnd   bool
	dormant  bool  // nothing worth a mask
	bound    int32 // tokens; 0 is none
	closing  int32 // the only id after the bound
	triggers []trigger
}

func (p *phase) exhausted(n int32) bool { return p.bound > 0 && n >= p.bound }

// trigger ends a phase: a control token, possibly only after a certain byte.
type trigger struct {
	id    int32
	after byte
	phase int32 // the next phase, or -1 and
	start int32 // a node
}

// textBound forces a trigger text: threads in the automaton free go on in the literal.
type textBound struct {
	limit   int32 // 0: none
	free    int32 // node
	literal int32 // node
	matched []int32
}

// Vocabulary gives what the grammar was compiled for.
func (g *Grammar) Vocabulary() *Vocabulary { return g.v }

// Size estimates the bytes that the grammar holds, tables included.
func (g *Grammar) Size() int {
	n := g.size
	for i := range g.nodes {
		if s := g.nodes[i].set; s != nil && s.d.enumeration {
			n += int(s.bytes.Load())
		}
	}
	return n
}

// Unchecked lists what the masks do not enforce, as JSON pointers of keywords, in the order of the schema. A server that promises validity
// checks the finished document for these.
func (g *Grammar) Unchecked() []string { return g.unchecked }

// Compile makes the grammar of a spec. It may take long for adversarial input: call it off the path of other requests, with a deadline, or
// use a Compiler. Errors are *Error.
func Compile(ctx context.Context, spec Spec, v *Vocabulary) (g *Grammar, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case buildError:
			g, err = nil, typed(ctx, r.err)
		default:
			panic(r)
		}
	}()
	b := newBuilder(ctx, v)
	g = &Grammar{v: v, phase: -1, frames: maxFrames}
	if err := spec.compile(b, g); err != nil {
		return nil, typed(ctx, err)
	}
	g.nodes, g.rules = b.nodes, b.rules
	g.warm(ctx)
	return g, nil
}

func typed(ctx context.Context, err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e
	case ctx.Err() != nil:
		return &Error{Kind: Timeout, Reason: fmt.Sprintf("not compiled in time: %v", context.Cause(ctx))}
	case errors.Is(err, errTooLarge):
		return &Error{Kind: TooLarge, Reason: err.Error()}
	}
	return &Error{Kind: Invalid, Reason: err.Error()}
}

func (s *Spec) compile(b *builder, g *Grammar) error {
	if s.Kind == KindTurn {
		if s.Turn == nil {
			return &Error{Kind: Invalid, Reason: "a turn was asked for and none was given"}
		}
		return s.Turn.compile(b, g, s.Options)
	}
	body, err := s.body(b, g)
	if err != nil {
		return err
	}
	a := s.Activation
	if a.Trigger != "" {
		if body, err = b.freeText(a, body, g); err != nil {
			return err
		}
	}
	g.start = body
	if a.Thinking {
		if err := b.thinking(g, int32(a.ThinkingBound), false, trigger{phase: -1, start: body}); err != nil {
			return err
		}
	}
	return b.seal(g, body)
}

// seal finishes the graph.
func (b *builder) seal(g *Grammar, starts ...int32) error {
	if r, ok := b.leftRecursive(); ok {
		return &Error{Kind: Unsupported, Reason: fmt.Sprintf("rule %d calls itself before it has read anything (left recursion)", r)}
	}
	if !b.finish(starts...) {
		return &Error{Kind: Unsatisfiable, Reason: "no text matches"}
	}
	b.attach()
	g.size = 96*len(b.nodes) + b.bytes
	return nil
}

// body builds the constrained part.
func (s *Spec) body(b *builder, g *Grammar) (int32, error) {
	switch s.Kind {
	case KindJSONSchema, KindJSONObject:
		text := []byte(s.Schema)
		if s.Kind == KindJSONObject {
			text = []byte(`{"type":"object"}`)
		}
		c, err := newSchemaCompiler(b, text, s.Options)
		if err != nil {
			return 0, err
		}
		g.frames = jsonFrames
		n, err := c.compile(encodeJSON, returnNode)
		g.unchecked = c.unchecked
		return n, err
	case KindRegex:
		r, err := parseRegex(s.Pattern, encodeRaw, false)
		if err != nil {
			return 0, err
		}
		d, err := compileRx(b.ctx, r)
		if err != nil {
			return 0, err
		}
		if d == nil {
			return 0, &Error{Kind: Unsatisfiable, Reason: fmt.Sprintf("no text matches the expression %q", clip(s.Pattern))}
		}
		b.bytes += d.bytes()
		return b.automaton(d, 0, -1, returnNode), nil
	case KindChoice:
		if len(s.Choices) == 0 {
			return 0, &Error{Kind: Unsatisfiable, Reason: "there is no choice"}
		}
		if len(s.Choices) > MaxChoices {
			return 0, &Error{Kind: TooLarge, Reason: fmt.Sprintf("%d choices, at most %d are possible", len(s.Choices), MaxChoices)}
		}
		return b.words(s.Choices, returnNode), nil
	case KindGrammar:
		return compileLark(b, s.Syntax, s.Pattern, encodeRaw, returnNode)
	}
	return 0, &Error{Kind: Invalid, Reason: fmt.Sprintf("unknown kind %d of constraint", s.Kind)}
}

// words matches one of the texts, in automata of bounded size.
func (b *builder) words(list []string, next int32) int32 {
	var outs []int32
	for len(list) > 0 {
		r, size := alt(), 0
		for len(list) > 0 && (size == 0 || size+len(list[0]) < 30_000) {
			r.sub = append(r.sub, lit(list[0]))
			size += len(list[0])
			list = list[1:]
		}
		if len(r.sub) == 1 {
			outs = append(outs, b.literal(r.sub[0].lit, next))
			continue
		}
		d, err := compileRx(b.ctx, r)
		if err != nil {
			b.fail(err)
		}
		if b.bytes += d.bytes(); b.bytes > 256<<20 {
			b.fail(&Error{Kind: TooLarge, Reason: "the grammar's automata take more than 256 MiB"})
		}
		outs = append(outs, b.automaton(d, 0, -1, next))
	}
	return b.split(outs...)
}

// freeText puts text without the trigger, then the trigger, before a node.
func (b *builder) freeText(a Activation, body int32, g *Grammar) (int32, error) {
	if len(a.Trigger) > 256 {
		return 0, &Error{Kind: TooLarge, Reason: fmt.Sprintf("a trigger of %d bytes, at most 256 are possible", len(a.Trigger))}
	}
	// The automaton that finds the first occurrence; its states are the lengths of the matched prefix.
	d := &dfa{classes: 256}
	for c := range 256 {
		d.class[c] = uint8(c)
	}
	t := a.Trigger
	for k := range len(t) {
		d.accept = append(d.accept, false)
		for c := range 256 {
			s := t[:k] + string([]byte{byte(c)})
			n := min(len(s), len(t))
			for n > 0 && s[len(s)-n:] != t[:n] {
				n--
			}
			d.next = append(d.next, uint16(n))
		}
	}
	d.accept = append(d.accept, true)
	for range 256 {
		d.next = append(d.next, dead)
	}
	d, err := d.finish(b.ctx)
	if err != nil {
		return 0, err
	}
	free := b.automaton(d, 0, -1, body)
	if a.TriggerBound > 0 {
		g.bound = textBound{limit: int32(a.TriggerBound), free: free, literal: b.literal(t, body), matched: make([]int32, d.states())}
		for q, k := int32(0), 0; k < len(t); k++ {
			g.bound.matched[q] = int32(k)
			q = d.step(q, t[k])
		}
	}
	if !a.Optional {
		return free, nil
	}
	// Text that may end is the same automaton with every state accepting; it never gets to the body.
	e := *d
	e.accept = make([]bool, d.states())
	for q := range e.accept {
		e.accept[q] = !d.accept[q]
	}
	for i, to := range e.next {
		if to != dead && d.accept[to] {
			e.next[i] = dead
		}
	}
	f, err := e.finish(b.ctx)
	if err != nil {
		return 0, err
	}
	if f == nil {
		return free, nil
	}
	return b.split(free, b.automaton(f, 0, -1, returnNode)), nil
}

// thinking adds the free phase of a thinking part, which ends with its closing token.
func (b *builder) thinking(g *Grammar, bound int32, mayEnd bool, then trigger, more ...trigger) error {
	id := b.v.control.EndThink
	if id < 0 {
		return &Error{Kind: Unsupported, Reason: "the vocabulary has no token </think>, so a thinking part has no end"}
	}
	then.id = id
	p := phase{mask: slices.Clone(b.v.anyText), mayEnd: mayEnd, dormant: mayEnd, bound: bound, closing: id, triggers: append(more, then)}
	setBit(p.mask, id)
	if mayEnd {
		for _, e := range b.v.eos {
			setBit(p.mask, e)
		}
	}
	p.allowed = countBits(p.mask)
	g.phase = int32(len(g.phases))
	g.phases = append(g.phases, p)
	return nil
}

// Bounds of warm. What is beyond is made when a mask first needs it, in a few milliseconds each.
const (
	warmTables = 600
	warmBytes  = 16 << 20
)

// warm makes the token tables that masks need, so that no request waits for them in its decode loop. It stops early rather than fail.
func (g *Grammar) warm(ctx context.Context) {
	tables, size := 0, 0
	for i := range g.nodes {
		s := g.nodes[i].set
		if s == nil || s.d.enumeration {
			continue
		}
		for q := range s.d.states() {
			if s.has(int32(q)) {
				continue
			}
			if tables >= warmTables || size >= warmBytes || ctx.Err() != nil {
				return
			}
			tables++
			size += s.at(int32(q)).size()
		}
	}
}

// key identifies the spec among those of one vocabulary.
func (s *Spec) key() ([32]byte, error) {
	text, err := json.Marshal(struct {
		Kind       Kind
		Schema     []byte
		Pattern    string
		Syntax     string
		Choices    []string
		Turn       *Turn
		Options    Options
		Activation Activation
	}{s.Kind, s.Schema, s.Pattern, s.Syntax, s.Choices, s.Turn, s.Options, s.Activation})
	if err != nil {
		return [32]byte{}, &Error{Kind: Invalid, Reason: err.Error()}
	}
	return sha256.Sum256(text), nil
}

// ResponseSpec gives the spec of a response format. ok is false for free text.
func ResponseSpec(f conversation.ResponseFormat) (spec Spec, ok bool) {
	spec.Options.Lenient = !f.Strict
	switch f.Kind {
	case conversation.FormatJSONObject:
		spec.Kind = KindJSONObject
	case conversation.FormatJSONSchema:
		spec.Kind, spec.Schema, spec.Options.Closed = KindJSONSchema, f.Schema, f.Strict
	case conversation.FormatRegex:
		spec.Kind, spec.Pattern = KindRegex, f.Pattern
	case conversation.FormatGrammar:
		spec.Kind, spec.Pattern, spec.Syntax = KindGrammar, f.Pattern, f.Syntax
	default:
		return Spec{}, false
	}
	return spec, true
}
