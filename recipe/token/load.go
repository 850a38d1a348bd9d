package token

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"math/bits"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"
)

// The three expressions of the pre-tokenizer that scanner implements, line breaks written as escapes (release files spell them raw).
var splits = [3]string{
	`\p{N}{1,3}`,
	"[一-龥\u3040-\u309f\u30a0-\u30ff]+",
	"[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
}

// Load reads a tokenizer.json file.
func Load(path string) (*Tokenizer, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read tokenizer: %w", err)
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Parse builds a tokenizer from the contents of a tokenizer.json file. It accepts byte-level BPE with the pre-tokenizer of DeepSeek V3,
// V4 and V4.1 and refuses everything else, because a wrong id corrupts prompts silently. data is not kept.
func Parse(data []byte) (*Tokenizer, error) {
	t, err := parse(data)
	if err != nil {
		return nil, fmt.Errorf("tokenizer.json: %w", err)
	}
	return t, nil
}

// file is what parse collects before the tables are built.
type file struct {
	vocab  *spellings
	merges []merge
	joined []byte // scratch
	added  []Added
	splits []string
	levels int // ByteLevel pre-tokenizers seen
}

// merge is one line of the merge list: the ids of both parts and of the result.
type merge struct{ left, right, id int32 }

type addedToken struct {
	Added
	loose bool // lstrip, rstrip or single_word
}

// Added is an entry of added_tokens.
type Added struct {
	ID         int32
	Content    string // the spelling
	Special    bool   // left out of shown text
	Normalized bool   // matched after the others
}

func parse(data []byte) (*Tokenizer, error) {
	s := &jsonScan{data: data}
	f := &file{}
	var sawModel, sawAdded, sawPre bool
	s.object(func(key []byte) {
		switch string(key) {
		case "added_tokens":
			sawAdded = true
			s.array(func(int) { f.addedToken(s) })
		case "normalizer":
			f.normalizer(s)
		case "pre_tokenizer":
			sawPre = true
			f.preTokenizer(s)
		case "model":
			sawModel = true
			f.model(s)
		default: // post_processor adds nothing here, decoder is the inverse of ByteLevel
			s.skip(1)
		}
	})
	if s.err == nil && s.peek() != 0 {
		s.fail("something follows the closing brace")
	}
	switch {
	case s.err != nil:
		return nil, s.err
	case !sawModel:
		return nil, errors.New(`there is no "model"`)
	case !sawAdded:
		return nil, errors.New(`there is no "added_tokens"`)
	case !sawPre || len(f.splits) != len(splits) || f.levels != 1:
		return nil, fmt.Errorf("the pre-tokenizer has %d splits and %d byte-level steps; only the one of DeepSeek V3 to V4.1 is supported, three splits and one step", len(f.splits), f.levels)
	}
	unescape := strings.NewReplacer("\r", `\r`, "\n", `\n`)
	for i, want := range splits {
		if got := unescape.Replace(f.splits[i]); got != want {
			return nil, fmt.Errorf("split %d of the pre-tokenizer is %q, want %q", i+1, got, want)
		}
	}
	return f.build()
}

func (f *file) addedToken(s *jsonScan) {
	a := addedToken{Added: Added{ID: -1}}
	s.object(func(key []byte) {
		switch string(key) {
		case "id":
			a.ID = int32(s.integer())
		case "content":
			a.Content = string(s.str())
		case "special":
			a.Special = s.boolean()
		case "normalized":
			a.Normalized = s.boolean()
		case "lstrip", "rstrip", "single_word":
			a.loose = s.boolean() || a.loose
		default:
			s.skip(2)
		}
	})
	switch {
	case s.err != nil:
	case a.ID < 0 || a.Content == "":
		s.fail("an added token needs an id and a content that is not empty")
	case a.ID > maxID:
		s.fail("added token %q has id %d, the largest supported is %d", a.Content, a.ID, maxID)
	case a.loose:
		s.fail("added token %q has lstrip, rstrip or single_word, which is not supported", a.Content)
	}
	f.added = append(f.added, a.Added)
}

// normalizer accepts null and an empty sequence.
func (f *file) normalizer(s *jsonScan) {
	if s.null() {
		return
	}
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			if typ := s.str(); s.err == nil && string(typ) != "Sequence" {
				s.fail("normalizer %q is not supported, only an empty sequence", typ)
			}
		case "normalizers":
			s.array(func(int) {
				s.skip(2)
				s.fail("a normalizer that is not empty is not supported")
			})
		default:
			s.skip(1)
		}
	})
}

func (f *file) preTokenizer(s *jsonScan) {
	if s.null() {
		return
	}
	s.object(func(key []byte) {
		if string(key) != "pretokenizers" {
			s.skip(1)
			return
		}
		s.array(func(int) {
			var typ, regex, behavior string
			var invert, prefix bool
			useRegex := false
			s.object(func(key []byte) {
				switch string(key) {
				case "type":
					typ = string(s.str())
				case "behavior":
					behavior = string(s.str())
				case "invert":
					invert = s.boolean()
				case "add_prefix_space":
					prefix = s.boolean()
				case "use_regex":
					useRegex = s.boolean()
				case "pattern":
					s.object(func(key []byte) {
						if string(key) != "Regex" {
							s.fail("a split pattern of kind %q is not supported", key)
							return
						}
						regex = string(s.str())
					})
				default:
					s.skip(3)
				}
			})
			switch {
			case s.err != nil:
			case typ == "Split" && behavior == "Isolated" && !invert && f.levels == 0:
				f.splits = append(f.splits, regex)
			case typ == "ByteLevel" && !prefix && !useRegex:
				f.levels++
			default:
				s.fail("pre-tokenizer step %q (behavior %q) is not supported", typ, behavior)
			}
		})
	})
}

func (f *file) model(s *jsonScan) {
	sawVocab, sawMerges := false, false
	s.object(func(key []byte) {
		switch string(key) {
		case "type":
			if typ := s.str(); s.err == nil && string(typ) != "BPE" {
				s.fail("model type %q is not supported, only BPE", typ)
			}
		case "unk_token", "dropout", "continuing_subword_prefix", "end_of_word_suffix":
			name := string(key)
			switch {
			case s.null():
			case s.peek() == '"' && name != "unk_token":
				if v := s.str(); len(v) != 0 {
					s.fail("%s is not supported", name)
				}
			default:
				s.fail("%s is not supported", name)
			}
		case "byte_fallback", "ignore_merges", "fuse_unk":
			name := string(key)
			if s.boolean() && name != "fuse_unk" {
				s.fail("%s is not supported", name)
			}
		case "vocab":
			sawVocab = true
			f.readVocab(s)
		case "merges":
			sawMerges = true
			f.readMerges(s)
		default:
			s.skip(2)
		}
	})
	if s.err == nil && !(sawVocab && sawMerges) {
		s.fail("the model needs vocab and merges")
	}
}

func (f *file) readVocab(s *jsonScan) {
	f.vocab = newSpellings(len(s.data) / 50)
	s.object(func(key []byte) {
		// The value's text follows; key stays valid because integer does not touch the scratch buffer.
		id := s.integer()
		switch {
		case s.err != nil:
		case id > maxID:
			s.fail("token %q has id %d, the largest supported is %d", key, id, maxID)
		case len(key) == 0:
			s.fail("id %d has an empty token", id)
		default:
			if err := f.vocab.add(key, int32(id)); err != nil {
				s.fail("%v", err)
			}
		}
	})
}

// spellings maps byte-level spellings to ids and back. It is a hash table over one buffer: a map of a quarter of a million small strings
// would cost more than all the rest of loading.
type spellings struct {
	buf   []byte
	at    []span // by id
	slots []int32
	count int
	seed  maphash.Seed
}

type span struct{ start, end uint32 }

func newSpellings(expected int) *spellings {
	v := &spellings{seed: maphash.MakeSeed(), slots: make([]int32, tableSize(expected))}
	for i := range v.slots {
		v.slots[i] = -1
	}
	return v
}

// get gives the spelling of an id, empty when it has none. The slice is valid until the next add.
func (v *spellings) get(id int) []byte {
	if id >= len(v.at) {
		return nil
	}
	return v.buf[v.at[id].start:v.at[id].end]
}

func (v *spellings) slot(piece []byte) int {
	mask := len(v.slots) - 1
	h := int(maphash.Bytes(v.seed, piece)) & mask
	for v.slots[h] >= 0 && !bytes.Equal(v.get(int(v.slots[h])), piece) {
		h = (h + 1) & mask
	}
	return h
}

// find gives the id of a spelling.
func (v *spellings) find(piece []byte) (id int32, ok bool) {
	id = v.slots[v.slot(piece)]
	return id, id >= 0
}

func (v *spellings) add(piece []byte, id int32) error {
	h := v.slot(piece)
	if old := v.slots[h]; old >= 0 {
		if old != id {
			return fmt.Errorf("token %q has two ids, %d and %d", piece, old, id)
		}
		return nil
	}
	if old := v.get(int(id)); len(old) > 0 {
		return fmt.Errorf("id %d has two tokens, %q and %q", id, old, piece)
	}
	for int(id) >= len(v.at) {
		v.at = append(v.at, span{})
	}
	v.at[id] = span{uint32(len(v.buf)), uint32(len(v.buf) + len(piece))}
	v.buf = append(v.buf, piece...)
	v.slots[h] = id
	if v.count++; 2*v.count > len(v.slots) {
		old := v.slots
		v.slots = make([]int32, 2*len(old))
		for i := range v.slots {
			v.slots[i] = -1
		}
		for _, id := range old {
			if id >= 0 {
				v.slots[v.slot(v.get(int(id)))] = id
			}
		}
	}
	return nil
}

// readMerges needs the vocabulary, which comes first in every file that the reference library writes.
func (f *file) readMerges(s *jsonScan) {
	if f.vocab == nil {
		s.fail("the merges come before the vocabulary")
		return
	}
	f.merges = make([]merge, 0, f.vocab.count)
	var left []byte
	s.array(func(i int) {
		var right []byte
		if s.peek() == '[' {
			n := 0
			s.array(func(j int) {
				switch piece := s.str(); j {
				case 0:
					left = append(left[:0], piece...) // piece is valid until the next one only
				case 1:
					right = piece
				}
				n++
			})
			if s.err == nil && n != 2 {
				s.fail("merge %d has %d parts, want 2", i, n)
			}
		} else {
			line := s.str()
			l, r, ok := bytes.Cut(line, []byte(" "))
			if s.err == nil && (!ok || bytes.IndexByte(r, ' ') >= 0) {
				s.fail("merge %d is %q, want two pieces and a space between them", i, line)
			}
			left, right = append(left[:0], l...), r
		}
		if s.err == nil && i > maxRank {
			s.fail("more than %d merges", maxRank)
		}
		if s.err != nil {
			return
		}
		f.joined = append(append(f.joined[:0], left...), right...)
		var m merge
		var ok1, ok2, ok3 bool
		m.left, ok1 = f.vocab.find(left)
		m.right, ok2 = f.vocab.find(right)
		m.id, ok3 = f.vocab.find(f.joined)
		if !ok1 || !ok2 || !ok3 {
			s.fail("merge %d joins %q and %q, which with their result must all be in the vocabulary", i, left, right)
		}
		f.merges = append(f.merges, m)
	})
}

// byteOf maps the runes of the byte-level alphabet back to bytes: printable Latin-1 stands for itself, the other 68 bytes are U+0100
// onwards in order. -1: not in the alphabet.
var byteOf = func() (table [0x144]int16) {
	for i := range table {
		table[i] = -1
	}
	next := 0x100
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = int16(b)
		} else {
			table[next] = int16(b)
			next++
		}
	}
	return table
}()

// unmap appends the bytes that a byte-level spelling stands for; ok is false, and nothing is appended, when a rune is not in the alphabet.
func unmap(dst, piece []byte) (out []byte, ok bool) {
	n := len(dst)
	for _, r := range string(piece) {
		if r >= rune(len(byteOf)) || byteOf[r] < 0 {
			return dst[:n], false
		}
		dst = append(dst, byte(byteOf[r]))
	}
	return dst, true
}

// build makes the tables.
func (f *file) build() (*Tokenizer, error) {
	size := len(f.vocab.at)
	for _, a := range f.added {
		size = max(size, int(a.ID)+1)
	}
	t := &Tokenizer{size: size, flags: make([]uint8, size), start: make([]uint32, size+1), seed: maphash.MakeSeed()}
	spelling, err := t.setAdded(f.added)
	if err != nil {
		return nil, err
	}
	for _, a := range f.added {
		if old := f.vocab.get(int(a.ID)); len(old) > 0 && string(old) != a.Content {
			return nil, fmt.Errorf("id %d is the added token %q and also %q in the vocabulary", a.ID, a.Content, old)
		}
		if old, ok := f.vocab.find([]byte(a.Content)); ok && old != a.ID {
			return nil, fmt.Errorf("added token %q has id %d, but %d in the vocabulary", a.Content, a.ID, old)
		}
	}

	blob := make([]byte, 0, 1<<20)
	for i := range t.byteID {
		t.byteID[i] = -1
	}
	inAlphabet := make([]bool, size)
	for id := range size {
		t.start[id] = uint32(len(blob))
		piece := f.vocab.get(id)
		switch {
		case spelling[id] != "":
			blob = append(blob, spelling[id]...)
		case len(piece) > 0:
			t.flags[id] |= flagUsed
			var ok bool
			if blob, ok = unmap(blob, piece); !ok {
				blob = append(blob, piece...)
			} else {
				inAlphabet[id] = true
				if n := len(blob); n-int(t.start[id]) == 1 {
					t.byteID[blob[n-1]] = int32(id)
				}
			}
		}
	}
	t.start[size] = uint32(len(blob))
	t.blob = string(blob)
	for b, id := range t.byteID {
		if id < 0 {
			return nil, fmt.Errorf("the vocabulary has no token for byte %#02x", b)
		}
	}

	f.buildMerges(t)
	t.buildPieces(inAlphabet)
	return t, nil
}

func (f *file) buildMerges(t *Tokenizer) {
	n := tableSize(len(f.merges))
	t.merge = make([]uint64, n)
	t.mergeShift = uint(64 - bits.Len(uint(n-1)))
	for i := range t.merge {
		t.merge[i] = emptyMerge
	}
	t.merged = make([]int32, len(f.merges))
	for rank, m := range f.merges {
		t.merged[rank] = m.id
		key := uint64(m.left)<<idBits | uint64(m.right)
		mask := uint64(n - 1)
		h := key * 0x9E3779B97F4A7C15 >> t.mergeShift
		for t.merge[h&mask] != emptyMerge && t.merge[h&mask]>>rankBits != key {
			h++
		}
		t.merge[h&mask] = key<<rankBits | uint64(rank) // of equal pairs the last one counts, as in the reference
	}
}

// setAdded sets the list of added tokens: flags, spellings and tries. It gives the spelling of each id.
func (t *Tokenizer) setAdded(list []Added) (spelling []string, err error) {
	t.added, t.list = make(map[string]int32, len(list)), list
	t.first, t.second = trie{}, trie{}
	spelling = make([]string, t.size)
	for _, a := range list {
		if old, ok := t.added[a.Content]; ok && old != a.ID {
			return nil, fmt.Errorf("added token %q has two ids, %d and %d", a.Content, old, a.ID)
		}
		if old := spelling[a.ID]; old != "" && old != a.Content {
			return nil, fmt.Errorf("id %d has two added tokens, %q and %q", a.ID, old, a.Content)
		}
		spelling[a.ID] = a.Content
		t.added[a.Content] = a.ID
		t.flags[a.ID] |= flagUsed | flagAdded
		if a.Special {
			t.flags[a.ID] |= flagSpecial
		}
		if a.Normalized {
			t.second.insert(a.Content, a.ID)
		} else {
			t.first.insert(a.Content, a.ID)
		}
	}
	return spelling, nil
}

// AddedTokens gives the added tokens in the order of the file. The slice is the caller's.
func (t *Tokenizer) AddedTokens() []Added { return slices.Clone(t.list) }

// WithAdded gives a tokenizer whose added tokens of the same ids are replaced by tokens; each must replace one. The V4 and V4.1 files
// differ by nothing but such a list. Vocabulary and merges are shared with t, which does not change.
func (t *Tokenizer) WithAdded(tokens ...Added) (*Tokenizer, error) {
	list := slices.Clone(t.list)
	for _, a := range tokens {
		i := slices.IndexFunc(list, func(old Added) bool { return old.ID == a.ID })
		if i < 0 || a.Content == "" {
			return nil, fmt.Errorf("added token %q with id %d replaces none", a.Content, a.ID)
		}
		list[i] = a
	}
	out := &Tokenizer{size: t.size, byteID: t.byteID, merge: t.merge, mergeShift: t.mergeShift, merged: t.merged, piece: t.piece, seed: t.seed}
	out.flags = make([]uint8, t.size)
	for id, f := range t.flags {
		if f&flagAdded == 0 {
			out.flags[id] = f
		}
	}
	spelling, err := out.setAdded(list)
	if err != nil {
		return nil, err
	}
	out.start = make([]uint32, t.size+1)
	var blob []byte
	for id := range t.size {
		out.start[id] = uint32(len(blob))
		if s := spelling[id]; s != "" {
			blob = append(blob, s...)
		} else {
			blob = append(blob, t.Bytes(int32(id))...)
		}
	}
	out.start[t.size] = uint32(len(blob))
	out.blob = string(blob)
	return out, nil
}

// buildPieces fills the table of whole pieces. A token may be in it only if merging its bytes gives exactly that token, which holds for
// every token of a real file but is not a law; so each one is checked.
func (t *Tokenizer) buildPieces(inAlphabet []bool) {
	var wg sync.WaitGroup
	workers := runtime.GOMAXPROCS(0)
	for k := range workers {
		wg.Add(1)
		go func() { // every worker has its own ids, and flags are one byte an id
			defer wg.Done()
			w := &worker{t: t}
			var ids []int32
			for id := t.size * k / workers; id < t.size*(k+1)/workers; id++ {
				piece := t.Bytes(int32(id))
				if !inAlphabet[id] || !utf8.ValidString(piece) { // pieces are cut from valid text
					continue
				}
				if ids = w.merge(ids[:0], piece); len(ids) == 1 && ids[0] == int32(id) {
					t.flags[id] |= flagWhole
				}
			}
		}()
	}
	wg.Wait()
	count := 0
	for _, f := range t.flags {
		if f&flagWhole != 0 {
			count++
		}
	}
	t.piece = make([]int32, tableSize(count))
	for i := range t.piece {
		t.piece[i] = -1
	}
	mask := uint64(len(t.piece) - 1)
	for id := range t.size {
		if t.flags[id]&flagWhole == 0 {
			continue
		}
		h := maphash.String(t.seed, t.Bytes(int32(id))) & mask
		for t.piece[h] >= 0 {
			h = (h + 1) & mask
		}
		t.piece[h] = int32(id)
	}
}
