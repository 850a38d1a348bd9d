package encoding

import (
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/image"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// writer collects one prompt: text, and marks over the parts of it that are not plain.
type writer struct {
	e    *Encoder
	conv *conversation.Conversation
	opts Options

	text   []byte
	marks  []mark
	err    error // the first fault met while writing
	forced bool  // the prompt ends inside a tool block
}

// mark covers text[start:end] with a control token, an image or ids that were sampled.
type mark struct {
	start, end int
	id         int32
	image      int // -1: none
	ids        []int32
}

func (w *writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf(format, args...)
	}
}

// plain writes ordinary text.
func (w *writer) plain(s string) { w.text = append(w.text, s...) }

// special writes a control token.
func (w *writer) special(c control) {
	if c.id < 0 {
		w.fail("the tokenizer has no token %s", c.text)
		return
	}
	start := len(w.text)
	w.text = append(w.text, c.text...)
	w.marks = append(w.marks, mark{start: start, end: len(w.text), id: c.id, image: -1})
}

// template writes text of the template itself: the markup and thinking spellings in it are control tokens.
func (w *writer) template(s string) {
	for {
		at, found := len(s), control{}
		for _, c := range []control{w.e.dsml, w.e.think, w.e.endThink} {
			if i := strings.Index(s[:at], c.text); i >= 0 {
				at, found = i, c
			}
		}
		w.plain(s[:at])
		if at == len(s) {
			return
		}
		w.special(found)
		s = s[at+len(found.text):]
	}
}

// answer writes text that an assistant turn holds: the grounding tokens in it are tokens, everything else is plain.
func (w *writer) answer(s string) {
	for len(w.e.grounding) > 0 {
		i := strings.Index(s, "<｜")
		if i < 0 {
			break
		}
		w.plain(s[:i])
		s = s[i:]
		n := len("<｜")
		for _, c := range w.e.grounding {
			if strings.HasPrefix(s, c.text) {
				w.special(c)
				n = 0
				s = s[len(c.text):]
				break
			}
		}
		w.plain(s[:n])
		s = s[n:]
	}
	w.plain(s)
}

// parts writes the text and images of a message.
func (w *writer) parts(parts []conversation.Part) {
	for _, p := range parts {
		if p.Kind == conversation.PartText {
			w.plain(p.Text)
			continue
		}
		n := len(w.marks)
		w.special(w.e.picture)
		if len(w.marks) > n {
			w.marks[n].image = p.Image
		}
	}
}

// Prompts from parallelBytes of text on are tokenised by several goroutines, in stretches of about stretchBytes.
const (
	parallelBytes = 1 << 18
	stretchBytes  = 1 << 16
)

// prompt tokenises what was written.
func (w *writer) prompt() (*Prompt, error) {
	p := &Prompt{Text: string(w.text)}
	for _, m := range w.marks {
		if m.ids == nil {
			p.SpecialRanges = append(p.SpecialRanges, [2]int{m.start, m.end})
		}
	}
	if w.opts.MatchAdded {
		p.Tokens = w.e.tok.EncodeSpecial(p.Text)
		return p, nil
	}
	whole := stretch{text: p.Text, marks: w.marks, end: len(p.Text)}
	if len(p.Text) < parallelBytes || runtime.GOMAXPROCS(0) == 1 {
		err := whole.encode(w)
		p.Tokens, p.Images = whole.tokens, whole.images
		return p, err
	}
	parts := whole.cut()
	next := make(chan *stretch, len(parts))
	for i := range parts {
		next <- &parts[i]
	}
	close(next)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(parts)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for part := range next {
				part.err = part.encode(w)
			}
		}()
	}
	wg.Wait()
	total := 0
	for i := range parts {
		if parts[i].err != nil {
			return nil, parts[i].err
		}
		total += len(parts[i].tokens)
	}
	p.Tokens = make([]int32, 0, total)
	for i := range parts {
		for _, span := range parts[i].images {
			span.Start += len(p.Tokens)
			p.Images = append(p.Images, span)
		}
		p.Tokens = append(p.Tokens, parts[i].tokens...)
	}
	return p, nil
}

// stretch is a part of a prompt that begins at its start or after a mark, and what it encodes to.
type stretch struct {
	text       string // of the whole prompt
	marks      []mark
	start, end int

	tokens []int32
	images []ImageSpan
	err    error
}

// cut splits s after marks: what a mark covers belongs to no piece of the text around it.
func (s *stretch) cut() []stretch {
	var out []stretch
	first, start := 0, s.start
	for i, m := range s.marks {
		if m.end-start >= stretchBytes {
			out = append(out, stretch{text: s.text, marks: s.marks[first : i+1], start: start, end: m.end})
			first, start = i+1, m.end
		}
	}
	return append(out, stretch{text: s.text, marks: s.marks[first:], start: start, end: s.end})
}

func (s *stretch) encode(w *writer) error {
	tok, pos := w.e.tok, s.start
	s.tokens = make([]int32, 0, (s.end-s.start)/3+len(s.marks))
	for _, m := range s.marks {
		s.tokens = tok.AppendEncode(s.tokens, s.text[pos:m.start])
		pos = m.end
		switch {
		case m.ids != nil:
			s.tokens = append(s.tokens, m.ids...)
		case m.image < 0:
			s.tokens = append(s.tokens, m.id)
		default:
			span := ImageSpan{Image: m.image, Start: len(s.tokens), Tokens: 1}
			if img := &w.conv.Images[m.image]; img.Width > 0 || img.Height > 0 {
				plan, err := image.Fit(img.Width, img.Height, img.Detail)
				if err != nil {
					return err
				}
				span.Plan, span.Tokens = plan, plan.Tokens()
			}
			for range span.Tokens {
				s.tokens = append(s.tokens, m.id)
			}
			s.images = append(s.images, span)
		}
	}
	s.tokens = tok.AppendEncode(s.tokens, s.text[pos:s.end])
	return nil
}

// parsing is where the output parser starts, by what was written.
func (w *writer) parsing() conversation.Parsing {
	p := w.conv.Parsing(nil)
	p.StartsInCalls = w.forced
	return p
}

// schemas writes one line for each tool.
func (w *writer) schemas(tools []conversation.ToolDef) {
	for i := range tools {
		if i > 0 {
			w.plain("\n")
		}
		if w.e.profile.hf() {
			w.releaseSchema(&tools[i])
		} else {
			w.recipeSchema(&tools[i])
		}
	}
}

func (w *writer) recipeSchema(t *conversation.ToolDef) {
	description := ""
	if t.Description != nil {
		description = *t.Description
	}
	line := pyjson.AppendString([]byte(`{"name": `), t.Name)
	line = pyjson.AppendString(append(line, `, "description": `...), description)
	line = append(line, `, "parameters": `...)
	if t.Parameters == nil {
		line = append(line, "{}"...)
	} else {
		line = w.appendJSON(line, t.Parameters, "parameters of tool "+t.Name)
	}
	w.text = append(append(w.text, line...), '}')
}

// releaseSchema writes the client's function object as it came; without one, the fields that are set.
func (w *writer) releaseSchema(t *conversation.ToolDef) {
	if t.Source == nil {
		line := pyjson.AppendString([]byte(`{"name": `), t.Name)
		if t.Description != nil {
			line = pyjson.AppendString(append(line, `, "description": `...), *t.Description)
		}
		if t.Parameters != nil {
			line = w.appendJSON(append(line, `, "parameters": `...), t.Parameters, "parameters of tool "+t.Name)
		}
		if t.Strict != nil {
			line = fmt.Appendf(line, `, "strict": %v`, *t.Strict)
		}
		w.text = append(append(w.text, line...), '}')
		return
	}
	v, err := pyjson.Parse(t.Source)
	if err != nil || v.Kind != pyjson.Object {
		w.fail("definition of tool %s is no JSON object: %v", t.Name, err)
		return
	}
	if name := v.Get("name"); name != nil && t.Namespace != "" {
		*name = pyjson.Value{Kind: pyjson.String, Text: t.Name}
	}
	w.text = v.Append(w.text, w.e.profile.numbers())
}

func (w *writer) appendJSON(dst, src []byte, what string) []byte {
	v, err := pyjson.Parse(src)
	if err != nil {
		w.fail("%s: %w", what, err)
		return dst
	}
	return v.Append(dst, w.e.profile.numbers())
}

// tools writes the tool prompt.
func (w *writer) tools(tools []conversation.ToolDef) {
	w.template(w.e.toolsBefore)
	w.schemas(tools)
	w.template(w.e.toolsAfter)
}

// formatText says whether a response format has a text in the prompt.
func formatText(f *conversation.ResponseFormat) bool {
	return f.Kind == conversation.FormatJSONObject || f.Kind == conversation.FormatJSONSchema
}

// format writes the text of a response format, if it has one.
func (w *writer) format(f *conversation.ResponseFormat) {
	switch f.Kind {
	case conversation.FormatJSONObject:
		if w.e.profile == V4Recipe {
			w.plain(formatJSONV4)
		} else {
			w.plain(formatIntro + `{"type": "json_object"}`)
		}
	case conversation.FormatJSONSchema:
		w.plain(formatIntro)
		w.text = w.appendJSON(w.text, f.Schema, "schema of the response format")
	}
}

// calls writes the tool block of an assistant turn, the blank line before it included.
func (w *writer) calls(calls []conversation.ToolCall) {
	m := w.e.markup
	// v4/recipe ends every line where the others separate lines: the two differ only for lists without entries.
	terminate := w.e.profile == V4Recipe
	w.plain("\n\n<")
	w.special(w.e.dsml)
	w.plain(m.block + ">\n")
	for i := range calls {
		if i > 0 && !terminate {
			w.plain("\n")
		}
		w.plain("<")
		w.special(w.e.dsml)
		w.plain(m.invoke + ` name="` + calls[i].Name + "\">\n")
		for j, arg := range w.arguments(calls[i].Arguments) {
			if j > 0 && !terminate {
				w.plain("\n")
			}
			w.argument(arg)
			if terminate {
				w.plain("\n")
			}
		}
		if !terminate {
			w.plain("\n")
		}
		w.plain("</")
		w.special(w.e.dsml)
		w.plain(m.invoke + ">")
		if terminate {
			w.plain("\n")
		}
	}
	if !terminate {
		w.plain("\n")
	}
	w.plain("</")
	w.special(w.e.dsml)
	w.plain(m.block + ">")
}

// arguments gives the members of an arguments text; one that is no object becomes one string parameter named "arguments".
func (w *writer) arguments(text string) []pyjson.Member {
	v, err := pyjson.Parse([]byte(text))
	if err == nil && v.Kind == pyjson.String && !w.opts.Compat { // encoded twice, as some clients do
		if inner, err2 := pyjson.Parse([]byte(v.Text)); err2 == nil {
			v = inner
		}
	}
	if err != nil || v.Kind != pyjson.Object {
		return []pyjson.Member{{Key: "arguments", Value: pyjson.Value{Kind: pyjson.String, Text: text}}}
	}
	return v.Members
}

func (w *writer) argument(arg pyjson.Member) {
	m := w.e.markup
	w.plain("<")
	w.special(w.e.dsml)
	w.plain(m.parameter + ` name="` + arg.Key + `" string="`)
	if arg.Value.Kind == pyjson.String {
		w.plain(`true">` + arg.Value.Text)
	} else {
		w.plain(`false">`)
		w.text = arg.Value.Append(w.text, w.e.profile.numbers())
	}
	w.plain("</")
	w.special(w.e.dsml)
	w.plain(m.parameter + ">")
}

// result writes a tool message.
func (w *writer) result(m *conversation.Message) {
	w.plain("<tool_result>")
	if m.IsError && !w.opts.Compat && !strings.HasPrefix(m.Text(), "Error") {
		w.plain("Error: ")
	}
	w.parts(m.AllParts())
	w.plain("</tool_result>")
}

// replay covers the text from start to here with the ids that the turn was sampled as, if they are of the same kind as what was
// rendered: with thinking when thinking was rendered, without when not.
func (w *writer) replay(m *conversation.Message, start int, thinking bool) {
	if m.ReplayIDs == nil || w.err != nil {
		return
	}
	sampledThinking := false
	for _, id := range m.ReplayIDs {
		if !w.e.tok.Known(id) {
			return
		}
		sampledThinking = sampledThinking || id == w.e.endThink.id
	}
	if sampledThinking != thinking {
		return
	}
	ids := m.ReplayIDs
	if n := len(ids); n == 0 || ids[n-1] != w.e.eos.id {
		ids = append(ids[:n:n], w.e.eos.id)
	}
	keep := len(w.marks)
	for keep > 0 && w.marks[keep-1].start >= start {
		keep--
	}
	w.marks = append(w.marks[:keep], mark{start: start, end: len(w.text), ids: ids, image: -1})
}
