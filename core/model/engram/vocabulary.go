package engram

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode/utf8"
)

// Vocabulary is the id side of a byte-level BPE tokenizer.json: enough to build a token map without the tokenizer itself.
// It implements [Tokenizer].
type Vocabulary struct {
	pieces, texts []string
}

// ReadVocabulary reads the vocabulary and added tokens of a tokenizer.json.
func ReadVocabulary(raw []byte) (*Vocabulary, error) {
	var doc struct {
		Added []struct {
			ID      int    `json:"id"`
			Content string `json:"content"`
		} `json:"added_tokens"`
		Model struct {
			Type  string         `json:"type"`
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return nil, fmt.Errorf("parse tokenizer.json: %w", err)
	}
	if len(doc.Model.Vocab) == 0 {
		return nil, fmt.Errorf("parse tokenizer.json: model.vocab is empty or missing")
	}
	const limit = 1 << 24
	size := 0
	for piece, id := range doc.Model.Vocab {
		if id < 0 || id >= limit {
			return nil, fmt.Errorf("parse tokenizer.json: token %q has id %d, want 0 to %d", piece, id, limit-1)
		}
		size = max(size, id+1)
	}
	for _, a := range doc.Added {
		if a.ID < 0 || a.ID >= limit {
			return nil, fmt.Errorf("parse tokenizer.json: added token %q has id %d, want 0 to %d", a.Content, a.ID, limit-1)
		}
		size = max(size, a.ID+1)
	}
	v := &Vocabulary{pieces: make([]string, size), texts: make([]string, size)}
	table := byteRunes()
	for piece, id := range doc.Model.Vocab {
		raw := make([]byte, 0, len(piece))
		for _, r := range piece {
			if b, ok := table[r]; ok {
				raw = append(raw, b)
			} else {
				raw = utf8.AppendRune(raw, r)
			}
		}
		v.pieces[id], v.texts[id] = piece, strings.ToValidUTF8(string(raw), "\ufffd")
	}
	for _, a := range doc.Added {
		v.pieces[a.ID], v.texts[a.ID] = a.Content, a.Content
	}
	return v, nil
}

// Size returns the number of ids, 1 + the highest.
func (v *Vocabulary) Size() int { return len(v.pieces) }

// Piece returns the vocabulary string of an id.
func (v *Vocabulary) Piece(id int) string { return v.pieces[id] }

// Decode1 returns the text of an id, with U+FFFD for bytes that are not UTF-8.
func (v *Vocabulary) Decode1(id int) string { return v.texts[id] }

// byteRunes inverts the byte-level alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100 onwards.
func byteRunes() map[rune]byte {
	out := make(map[rune]byte, 256)
	next := rune(256)
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			out[rune(b)] = byte(b)
			continue
		}
		out[next] = byte(b)
		next++
	}
	return out
}
