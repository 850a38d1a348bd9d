package token

import (
	"hash/maphash"
	"math/bits"
	"runtime"
	"sync"
)

// Limits of the packed tables. Real files are far below: 129,280 ids and 127,741 merges.
const (
	idBits   = 20
	rankBits = 24
	maxID    = 1<<idBits - 1
	maxRank  = 1<<rankBits - 2
	noRank   = 1<<rankBits - 1
)

// Tokenizer turns text into token ids and back. It is immutable and safe for concurrent use.
type Tokenizer struct {
	size int // highest id + 1

	// Bytes of id i: blob[start[i]:start[i+1]]. An id without a token has none.
	blob  string
	start []uint32
	flags []uint8

	byteID [256]int32 // the token of each single byte

	// merge is an open-addressing table of left<<(idBits+rankBits) | right<<rankBits | rank; emptyMerge marks a free slot.
	merge      []uint64
	mergeShift uint
	merged     []int32 // rank to merged id

	// piece is an open-addressing table of the ids whose bytes, as a whole piece, encode to that one id; -1 is free.
	piece []int32
	seed  maphash.Seed

	list   []Added
	added  map[string]int32
	first  trie // added tokens that are matched before normalisation
	second trie // added tokens that are matched in what remains

	work sync.Pool // *worker
}

// Flags of an id.
const (
	flagUsed    = 1 << iota // there is such a token
	flagAdded               // it is one of added_tokens
	flagSpecial             // added, with the special flag
	flagWhole               // its bytes encode to it alone
)

const emptyMerge = ^uint64(0)

// VocabSize is the highest id plus one, at most the width of the model's logits.
func (t *Tokenizer) VocabSize() int { return t.size }

// Bytes gives the bytes that a token stands for: raw bytes, possibly part of a character, of a vocabulary token; the spelling of an
// added token. An id without a token gives "". The string shares memory with t and costs no allocation.
func (t *Tokenizer) Bytes(id int32) string {
	if id < 0 || int(id) >= t.size {
		return ""
	}
	return t.blob[t.start[id]:t.start[id+1]]
}

// ID gives the token whose spelling (added token) or bytes (vocabulary token) are piece. Added tokens come first.
func (t *Tokenizer) ID(piece string) (id int32, ok bool) {
	if id, ok = t.added[piece]; ok {
		return id, true
	}
	if id = t.lookup(piece); id >= 0 {
		return id, true
	}
	if len(piece) == 1 {
		return t.byteID[piece[0]], true
	}
	return 0, false
}

// Added says whether id is an added token: one that plain text never encodes to.
func (t *Tokenizer) Added(id int32) bool { return t.has(id, flagAdded) }

// Special says whether id is an added token with the special flag: one that is left out of shown text.
func (t *Tokenizer) Special(id int32) bool { return t.has(id, flagSpecial) }

// Known says whether there is a token with this id.
func (t *Tokenizer) Known(id int32) bool { return t.has(id, flagUsed) }

func (t *Tokenizer) has(id int32, flag uint8) bool {
	return id >= 0 && int(id) < t.size && t.flags[id]&flag != 0
}

// Encode gives the ids of text as plain text: the spelling of an added token is ordinary characters. Invalid UTF-8 counts as one U+FFFD
// for each maximal invalid subpart.
func (t *Tokenizer) Encode(text string) []int32 { return t.AppendEncode(nil, text) }

// EncodeSpecial is Encode with the spellings of added tokens matched, leftmost and longest first. Use it for trusted text only.
func (t *Tokenizer) EncodeSpecial(text string) []int32 { return t.AppendEncodeSpecial(nil, text) }

// AppendEncode appends what Encode gives to dst. Below 256 KiB it allocates only to grow dst, and when text is not valid UTF-8; from there on
// it uses GOMAXPROCS goroutines, which have ended when it returns.
func (t *Tokenizer) AppendEncode(dst []int32, text string) []int32 {
	if text == "" {
		return dst
	}
	text = ValidUTF8(text)
	if len(text) >= parallelBytes && runtime.GOMAXPROCS(0) > 1 {
		return t.parallel(dst, text)
	}
	w := t.worker()
	dst = w.plain(dst, text)
	t.work.Put(w)
	return dst
}

// AppendEncodeSpecial appends what EncodeSpecial gives to dst.
func (t *Tokenizer) AppendEncodeSpecial(dst []int32, text string) []int32 {
	if text == "" {
		return dst
	}
	text = ValidUTF8(text)
	w := t.worker()
	t.first.split(text, func(plain string, id int32) {
		if id >= 0 {
			dst = append(dst, id)
			return
		}
		t.second.split(plain, func(plain string, id int32) {
			if id >= 0 {
				dst = append(dst, id)
			} else {
				dst = w.plain(dst, plain)
			}
		})
	})
	t.work.Put(w)
	return dst
}

func (t *Tokenizer) worker() *worker {
	if w, ok := t.work.Get().(*worker); ok {
		return w
	}
	return &worker{t: t}
}

// Decode gives the text of ids: the bytes of all tokens in order, added tokens spelled out, ids without a token left out, and one
// U+FFFD for each maximal part that is not UTF-8.
func (t *Tokenizer) Decode(ids []int32) string {
	n := 0
	for _, id := range ids {
		n += len(t.Bytes(id))
	}
	return ValidUTF8(string(t.AppendDecode(make([]byte, 0, n), ids)))
}

// AppendDecode appends the raw bytes of ids to dst.
func (t *Tokenizer) AppendDecode(dst []byte, ids []int32) []byte {
	for _, id := range ids {
		dst = append(dst, t.Bytes(id)...)
	}
	return dst
}

// lookup gives the token that the piece as a whole encodes to, or -1.
func (t *Tokenizer) lookup(piece string) int32 {
	mask := uint64(len(t.piece) - 1)
	for h := maphash.String(t.seed, piece) & mask; ; h = (h + 1) & mask {
		id := t.piece[h]
		if id < 0 || t.Bytes(id) == piece {
			return id
		}
	}
}

// rank gives the rank of the merge of two adjacent tokens, noRank when there is none.
func (t *Tokenizer) rank(left, right int32) uint32 {
	key := uint64(left)<<idBits | uint64(right)
	mask := uint64(len(t.merge) - 1)
	for h := key * 0x9E3779B97F4A7C15 >> t.mergeShift; ; h++ {
		e := t.merge[h&mask]
		if e>>rankBits == key {
			return uint32(e & noRank)
		}
		if e == emptyMerge {
			return noRank
		}
	}
}

// tableSize is the power of two that holds n entries at most half full.
func tableSize(n int) int {
	if n < 8 {
		n = 8
	}
	return 1 << bits.Len(uint(2*n-1))
}

// trie finds the spellings of added tokens. Nodes are stored child-and-sibling; node 0 is the root.
type trie struct {
	nodes []trieNode
	first [256]bool // bytes that some spelling starts with
}

type trieNode struct {
	b              byte
	child, sibling int32
	id             int32 // -1: no spelling ends here
}

func (t *trie) insert(spelling string, id int32) {
	if len(t.nodes) == 0 {
		t.nodes = append(t.nodes, trieNode{child: -1, sibling: -1, id: -1})
	}
	t.first[spelling[0]] = true
	n := int32(0)
	for i := 0; i < len(spelling); i++ {
		c := t.find(n, spelling[i])
		if c < 0 {
			c = int32(len(t.nodes))
			t.nodes = append(t.nodes, trieNode{b: spelling[i], child: -1, sibling: t.nodes[n].child, id: -1})
			t.nodes[n].child = c
		}
		n = c
	}
	t.nodes[n].id = id
}

func (t *trie) find(n int32, b byte) int32 {
	for c := t.nodes[n].child; c >= 0; c = t.nodes[c].sibling {
		if t.nodes[c].b == b {
			return c
		}
	}
	return -1
}

// split calls f for each spelling (with its id) and each non-empty stretch of text between them (with -1), in order.
func (t *trie) split(text string, f func(s string, id int32)) {
	gap := 0
	for i := 0; i < len(text); {
		if !t.first[text[i]] {
			i++
			continue
		}
		end, id := 0, int32(-1)
		for n, j := int32(0), i; j < len(text); {
			if n = t.find(n, text[j]); n < 0 {
				break
			}
			j++
			if t.nodes[n].id >= 0 {
				end, id = j, t.nodes[n].id
			}
		}
		if id < 0 {
			i++
			continue
		}
		if gap < i {
			f(text[gap:i], -1)
		}
		f(text[i:end], id)
		i, gap = end, end
	}
	if gap < len(text) {
		f(text[gap:], -1)
	}
}
