package encoding

import (
	"errors"
	"fmt"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/image"
	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// Options are the choices of one call. The zero value is the hardened rendering.
type Options struct {
	// Profile is used by the function Encode only; "" is V41Recipe.
	Profile Profile

	// Compat renders byte for byte what the reference adapter renders, its oddities included. docs/recipe.md lists the differences.
	Compat bool

	// MatchAdded tokenises the finished text as one string with added tokens matched, the way stacks around the model release do. User
	// text can then forge control tokens; it exists for comparison.
	MatchAdded bool
}

// Prompt is a rendered conversation.
type Prompt struct {
	Text string

	// Tokens are the ids to run. An image placeholder is one id in Text's place, or as many as the image takes when its size is known.
	Tokens []int32

	// SpecialRanges are the parts of Text, in UTF-8 bytes, half open and in order, that are control tokens; all else is plain text.
	SpecialRanges [][2]int

	// Images tells where pictures go, in the order of their placeholders.
	Images []ImageSpan

	// Parsing is where the output parser starts, without stop strings.
	Parsing conversation.Parsing
}

// ImageSpan is the place of one picture in Prompt.Tokens.
type ImageSpan struct {
	Image  int        // index into Conversation.Images
	Start  int        // first token
	Tokens int        // number of tokens: Plan.Tokens(), or 1 while the size of the image is unknown
	Plan   image.Plan // zero while the size is unknown
}

// Encoder renders prompts in one profile with one tokenizer. It is immutable and safe for concurrent use.
type Encoder struct {
	profile Profile
	tok     *token.Tokenizer
	markup  markup

	toolsBefore, toolsAfter string

	bos, eos, user, assistant, think, endThink, dsml control
	system, reminder, picture                        control // id -1: the tokenizer has none
	fimBegin, fimHole, fimEnd                        control
	tasks                                            map[conversation.Task]control
	grounding                                        []control
}

// control is a control token with its spelling in prompts.
type control struct {
	text string
	id   int32
}

// New makes an encoder. It fails when the tokenizer lacks a control token that every prompt of the profile needs: then the tokenizer
// belongs to another model.
func New(profile Profile, tok *token.Tokenizer) (*Encoder, error) {
	if _, err := ParseProfile(string(profile)); err != nil {
		return nil, err
	}
	if tok == nil {
		return nil, errors.New("prompt encoder: no tokenizer")
	}
	e := &Encoder{profile: profile, tok: tok, markup: profile.markup(), tasks: make(map[conversation.Task]control)}
	e.toolsBefore, e.toolsAfter = profile.toolPromptParts()
	var missing []string
	find := func(text string, required bool) control {
		id, ok := tok.ID(text)
		if ok && tok.Added(id) {
			return control{text, id}
		}
		if required {
			missing = append(missing, text)
		}
		return control{text, -1}
	}
	e.bos = find("<｜begin▁of▁sentence｜>", true)
	e.eos = find("<｜end▁of▁sentence｜>", true)
	e.user = find("<｜User｜>", true)
	e.assistant = find("<｜Assistant｜>", true)
	e.think = find("<think>", true)
	e.endThink = find("</think>", true)
	e.dsml = find("｜DSML｜", true)
	e.system = find("<｜System｜>", profile.V41())
	e.reminder = find("<｜latest_reminder｜>", false)
	e.fimBegin = find("<｜fim▁begin｜>", false)
	e.fimHole = find("<｜fim▁hole｜>", false)
	e.fimEnd = find("<｜fim▁end｜>", false)
	for _, t := range []conversation.Task{conversation.TaskAction, conversation.TaskQuery, conversation.TaskAuthority, conversation.TaskDomain,
		conversation.TaskTitle, conversation.TaskReadURL} {
		e.tasks[t] = find("<｜"+string(t)+"｜>", false)
	}
	for _, name := range []string{"ref", "box", "point", "polygon"} {
		for _, text := range []string{"<｜" + name + "｜>", "<｜/" + name + "｜>"} {
			if c := find(text, false); c.id >= 0 {
				e.grounding = append(e.grounding, c)
			}
		}
	}
	// One id, two spellings: the release file of V4.1 calls it <｜deepseek_image｜>, prompts always spell <｜image｜>. The V4 file has
	// another token of that name, which only the compatible rendering of a V4 prompt uses.
	e.picture = find("<｜image｜>", false)
	if profile.V41() {
		if c := find("<｜deepseek_image｜>", false); c.id >= 0 {
			e.picture.id = c.id
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("profile %s needs control tokens that the tokenizer lacks: %s; is this the tokenizer of the right model?", profile, strings.Join(missing, " "))
	}
	return e, nil
}

// Profile is the profile of e.
func (e *Encoder) Profile() Profile { return e.profile }

// EOS is the id that ends an assistant turn: the stop token of generation.
func (e *Encoder) EOS() int32 { return e.eos.id }

// Encode renders conv with the profile in opts. Servers keep an [Encoder] instead: making one looks up every control token.
func Encode(conv *conversation.Conversation, tok *token.Tokenizer, opts Options) (*Prompt, error) {
	profile := opts.Profile
	if profile == "" {
		profile = V41Recipe
	}
	e, err := New(profile, tok)
	if err != nil {
		return nil, err
	}
	return e.Encode(conv, opts)
}

// Encode renders conv, which it does not change. Errors are faults of the conversation, never of the server.
func (e *Encoder) Encode(conv *conversation.Conversation, opts Options) (*Prompt, error) {
	if err := e.check(conv, opts); err != nil {
		return nil, fmt.Errorf("render prompt: %w", err)
	}
	w := &writer{e: e, conv: conv, opts: opts}
	var err error
	if e.profile.hf() {
		err = w.release()
	} else {
		err = w.recipe()
	}
	if err == nil {
		err = w.err
	}
	if err != nil {
		return nil, fmt.Errorf("render prompt: %w", err)
	}
	p, err := w.prompt()
	if err != nil {
		return nil, fmt.Errorf("render prompt: %w", err)
	}
	p.Parsing = w.parsing()
	return p, nil
}

// check refuses what cannot be rendered. The compatible rendering lets odd but harmless structure pass.
func (e *Encoder) check(conv *conversation.Conversation, opts Options) error {
	if !opts.Compat {
		if err := conv.Validate(); err != nil {
			return err
		}
		if !e.profile.V41() && len(conv.Images) > 0 {
			return fmt.Errorf("profile %s has no images: the model cannot see them", e.profile)
		}
		if m := conv.Continues(); m != nil && len(m.ToolCalls) > 0 {
			return errors.New("an assistant message to be continued cannot hold tool calls")
		}
		return nil
	}
	for i := range conv.Messages {
		m := &conv.Messages[i]
		if m.Role < conversation.RoleSystem || m.Role > conversation.RoleDeveloper || !m.Task.Valid() {
			return fmt.Errorf("message %d: unknown role or task", i)
		}
		for _, p := range m.Parts {
			if p.Kind == conversation.PartImage && (p.Image < 0 || p.Image >= len(conv.Images)) {
				return fmt.Errorf("message %d: image %d does not exist, the conversation has %d", i, p.Image, len(conv.Images))
			}
		}
	}
	return nil
}

// EncodeCompletion renders a text without turns. Without a suffix it is the begin token and the text; with one it asks to fill the
// middle.
func (e *Encoder) EncodeCompletion(c *conversation.Completion, opts Options) (*Prompt, error) {
	w := &writer{e: e, conv: &conversation.Conversation{}, opts: opts}
	w.opts.MatchAdded = opts.MatchAdded || c.AllowSpecial
	body := func() {
		if c.PromptIDs == nil {
			w.plain(c.Prompt)
			return
		}
		from := len(w.text)
		w.plain(e.tok.Decode(c.PromptIDs))
		w.marks = append(w.marks, mark{start: from, end: len(w.text), ids: c.PromptIDs, image: -1})
	}
	for _, id := range c.PromptIDs {
		if !e.tok.Known(id) {
			return nil, fmt.Errorf("render prompt: token id %d does not exist, the vocabulary has %d", id, e.tok.VocabSize())
		}
	}
	switch {
	case c.Suffix != nil:
		w.special(e.bos)
		w.special(e.fimBegin)
		body()
		w.special(e.fimHole)
		w.plain(*c.Suffix)
		w.special(e.fimEnd)
	case c.PromptIDs != nil:
		body() // ids are the whole prompt, begin token included if the client wants one
	default:
		w.special(e.bos)
		body()
	}
	if w.err != nil {
		return nil, fmt.Errorf("render prompt: %w", w.err)
	}
	return w.prompt()
}
