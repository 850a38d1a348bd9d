package grammar

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"sync"
)

// Source is the tokenizer a vocabulary is made from. *token.Tokenizer is one.
type Source interface {
	// VocabSize is the highest id plus one.
	VocabSize() int
	// Bytes gives the bytes of a vocabulary token or the spelling of an added token.
	Bytes(id int32) string
	// Added says whether the id is an added token: one that text never encodes to.
	Added(id int32) bool
	// Known says whether there is such a token.
	Known(id int32) bool
	// ID finds a token by its spelling.
	ID(piece string) (int32, bool)
	// Encode gives the ids of plain text.
	Encode(text string) []int32
}

// Control are the ids of the added tokens that have a meaning in an assistant turn; -1 is "the vocabulary has none".
type Control struct {
	EOS                 int32
	Think, EndThink     int32
	DSML                int32
	BOS, User           int32
	Assistant, Reminder int32
}

// VocabularyOptions adapt a vocabulary to a model.
type VocabularyOptions struct {
	// Width is the number of logits of the model; masks have this many bits. 0 is the size of the tokenizer. Ids without a token are
	// never allowed.
	Width int
	// EOS lists the ids that end a turn. Nil is the end token of the family.
	EOS []int32
	// CacheBytes bounds the token tables that grammars share; 0 is 128 MiB. Tables of live grammars outside the bound are kept by them.
	CacheBytes int
}

// Vocabulary is a tokenizer prepared for masks: its tokens as a tree of bytes, and the token tables that all grammars share. Make one for
// each model and keep it. It is safe for concurrent use.
type Vocabulary struct {
	source  Source
	width   int
	words   int
	eos     []int32
	control Control

	// The tree in preorder. Node 0 is the root; node i was reached with byte[i], its subtree ends before skip[i].
	char []byte
	skip []int32
	tok  []int32 // the token that ends here; -1 none; below -1: same[-2-tok]
	same [][]int32

	longest int      // bytes of the longest token
	plain   []uint32 // mask of all vocabulary tokens, added ones excluded
	anyText []uint32 // mask of what free text may hold: vocabulary tokens, grounding, the tool mark

	mu     sync.Mutex
	tables map[tableKey]*tableSet
	order  []tableKey // oldest first
	bytes  int
	limit  int
}

// NewVocabulary prepares a tokenizer. It takes some 100 ms for 129,280 tokens and keeps about 10 MB.
func NewVocabulary(source Source, opts VocabularyOptions) (*Vocabulary, error) {
	n := source.VocabSize()
	if opts.Width == 0 {
		opts.Width = n
	}
	if opts.Width < 1 || opts.Width > 1<<20 {
		return nil, fmt.Errorf("grammar: %d logits, possible are 1 to %d", opts.Width, 1<<20)
	}
	if opts.CacheBytes == 0 {
		opts.CacheBytes = 128 << 20
	}
	v := &Vocabulary{source: source, width: opts.Width, words: (opts.Width + 31) / 32, eos: opts.EOS, limit: opts.CacheBytes, tables: map[tableKey]*tableSet{}}
	find := func(piece string) int32 {
		if id, ok := source.ID(piece); ok && source.Added(id) && int(id) < v.width {
			return id
		}
		return -1
	}
	v.control = Control{
		EOS: find("<｜end▁of▁sentence｜>"), Think: find("<think>"), EndThink: find("</think>"), DSML: find("｜DSML｜"), BOS: find("<｜begin▁of▁sentence｜>"),
		User: find("<｜User｜>"), Assistant: find("<｜Assistant｜>"), Reminder: find("<｜latest_reminder｜>"),
	}
	if v.eos == nil && v.control.EOS >= 0 {
		v.eos = []int32{v.control.EOS}
	}
	if len(v.eos) == 0 {
		return nil, fmt.Errorf("grammar: the vocabulary has no token <｜end▁of▁sentence｜>; name the ids that end a turn in VocabularyOptions.EOS")
	}
	for _, id := range v.eos {
		if id < 0 || int(id) >= v.width {
			return nil, fmt.Errorf("grammar: end id %d is outside the %d logits", id, v.width)
		}
	}

	type entry struct {
		bytes string
		id    int32
	}
	var list []entry
	v.plain, v.anyText = make([]uint32, v.words), make([]uint32, v.words)
	for id := range int32(min(n, v.width)) {
		if !source.Known(id) {
			continue
		}
		if source.Added(id) || slices.Contains(v.eos, id) {
			continue
		}
		if b := source.Bytes(id); b != "" {
			list = append(list, entry{b, id})
			v.longest = max(v.longest, len(b))
			setBit(v.plain, id)
		}
	}
	copy(v.anyText, v.plain)
	if v.control.DSML >= 0 {
		setBit(v.anyText, v.control.DSML)
	}
	for _, name := range [...]string{"ref", "box", "point", "polygon"} { // grounding, which models write in answers
		for _, form := range [...]string{"<｜" + name + "｜>", "<｜/" + name + "｜>"} {
			if id := find(form); id >= 0 {
				setBit(v.anyText, id)
			}
		}
	}
	slices.SortFunc(list, func(a, b entry) int {
		if a.bytes < b.bytes {
			return -1
		} else if a.bytes > b.bytes {
			return 1
		}
		return int(a.id - b.id)
	})

	add := func(b byte) int32 {
		v.char, v.skip, v.tok = append(v.char, b), append(v.skip, 0), append(v.tok, -1)
		return int32(len(v.char) - 1)
	}
	path := []int32{add(0)}
	last := ""
	for _, e := range list {
		common := 0
		for common < len(last) && common < len(e.bytes) && last[common] == e.bytes[common] {
			common++
		}
		for len(path) > common+1 {
			v.skip[path[len(path)-1]] = int32(len(v.char))
			path = path[:len(path)-1]
		}
		for i := common; i < len(e.bytes); i++ {
			path = append(path, add(e.bytes[i]))
		}
		switch node := path[len(path)-1]; {
		case v.tok[node] == -1:
			v.tok[node] = e.id
		case v.tok[node] >= 0:
			v.same = append(v.same, []int32{v.tok[node], e.id})
			v.tok[node] = int32(-1 - len(v.same))
		default:
			s := &v.same[-2-v.tok[node]]
			*s = append(*s, e.id)
		}
		last = e.bytes
	}
	for _, node := range path {
		v.skip[node] = int32(len(v.char))
	}

	// The inside of a JSON string and of a raw value are in nearly every grammar.
	ctx := context.Background()
	for _, leaf := range []func(context.Context) (*dfa, error){stringAutomaton, rawAutomaton} {
		d, err := leaf(ctx)
		if err != nil {
			return nil, fmt.Errorf("grammar: %w", err)
		}
		follow := allBytes
		if d.open() {
			follow = byteSet{}
			follow.add('<')
		}
		set := v.tableSet(d, follow)
		for q := range d.states() {
			set.at(int32(q))
		}
	}
	return v, nil
}

// Words is the length of a mask in 32-bit words.
func (v *Vocabulary) Words() int { return v.words }

// Width is the number of logits.
func (v *Vocabulary) Width() int { return v.width }

// Control gives the ids of the control tokens.
func (v *Vocabulary) Control() Control { return v.control }

func (v *Vocabulary) isEOS(id int32) bool { return slices.Contains(v.eos, id) }

// markNode sets the bits of the tokens that end at a node of the tree.
func (v *Vocabulary) markNode(dst []uint32, node int32) {
	switch t := v.tok[node]; {
	case t >= 0:
		setBit(dst, t)
	case t < -1:
		for _, id := range v.same[-2-t] {
			setBit(dst, id)
		}
	}
}

func setBit(mask []uint32, id int32)      { mask[id>>5] |= 1 << (id & 31) }
func hasBit(mask []uint32, id int32) bool { return mask[id>>5]&(1<<(id&31)) != 0 }

func countBits(mask []uint32) int {
	n := 0
	for _, w := range mask {
		n += bits.OnesCount32(w)
	}
	return n
}
