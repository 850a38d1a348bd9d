package engram

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// TokenMapFile is the name of the optional file beside a checkpoint that holds its token map: int32 little endian, one
// entry per id of the configuration. Where it exists it wins over every computed map.
const TokenMapFile = "engram_token_map.i32"

// ReleaseTokenMapSHA256 is the hash of the released model's map (129,280 int32, little endian).
const ReleaseTokenMapSHA256 = "c60a86322ec17b4142bfef3c57a8d81fb428550cdf487f88a4320cb59fe46481"

// Tokenizer is what BuildTokenMap needs of a tokenizer.
type Tokenizer interface {
	// Size returns the number of ids, added tokens included; ids are 0..Size()-1.
	Size() int
	// Decode1 returns the text of a single id, special tokens included, without clean-up. Bytes that are not UTF-8 appear
	// as U+FFFD.
	Decode1(id int) string
	// Piece returns the raw vocabulary string of an id.
	Piece(id int) string
}

// BuildTokenMap computes the compressed id of each of vocab token ids from a tokenizer: ids whose normalised text agrees share
// one, numbered in order of first appearance. Ids beyond the tokenizer get that of the pad token. It also returns the number of
// distinct compressed ids, which must equal engram_compressed_vocab_size: the multipliers depend on it.
func BuildTokenMap(tok Tokenizer, vocab, pad int) (tokenMap []int32, distinct int, err error) {
	size := tok.Size()
	if pad < 0 || pad >= size {
		return nil, 0, fmt.Errorf("build engram token map: pad token %d is not among the %d ids of the tokenizer", pad, size)
	}
	ids := make(map[string]int32, size)
	tokenMap = make([]int32, max(size, vocab))
	for i := range size {
		text := tok.Decode1(i)
		key := text
		if strings.ContainsRune(text, unicode.ReplacementChar) {
			key = tok.Piece(i)
		} else if n := Normalize(text); n != "" {
			key = n
		}
		id, ok := ids[key]
		if !ok {
			id = int32(len(ids))
			ids[key] = id
		}
		tokenMap[i] = id
	}
	for i := size; i < len(tokenMap); i++ {
		tokenMap[i] = tokenMap[pad]
	}
	return tokenMap[:vocab], len(ids), nil
}

// Normalize reduces a token's text to what Engram distinguishes: compatibility forms, accents, case and kinds of white
// space are dropped. A text that is one space stays one space.
func Normalize(text string) string {
	decomposed := norm.NFD.String(norm.NFKC.String(text))
	var b strings.Builder
	b.Grow(len(decomposed))
	inSpace := false
	for _, r := range decomposed {
		if unicode.Is(unicode.M, r) {
			continue
		}
		if r == ' ' || r == '\t' || r == '\r' || r == '\n' {
			if !inSpace {
				b.WriteByte(' ')
			}
			inSpace = true
			continue
		}
		inSpace = false
		b.WriteRune(unicode.ToLower(r))
	}
	out := b.String()
	if out == " " {
		return out
	}
	// The reference protects a lone space as U+E000 while it strips, so a literal U+E000 comes out as a space too.
	return strings.ReplaceAll(strings.TrimFunc(out, whiteSpace), "\ue000", " ")
}

// whiteSpace is the Unicode White_Space property, as the reference's Strip uses it. It does not include U+001C..U+001F.
func whiteSpace(r rune) bool { return unicode.Is(unicode.White_Space, r) }

// SyntheticTokenMap is the map of a model without tokenizer: id mod compressed.
func SyntheticTokenMap(vocab, compressed int) []int32 {
	out := make([]int32, vocab)
	for i := range out {
		out[i] = int32(i % max(compressed, 1))
	}
	return out
}

// ReadTokenMap decodes the content of a [TokenMapFile] and checks it against the configuration.
func ReadTokenMap(raw []byte, vocab, compressed int) ([]int32, error) {
	if len(raw) != 4*vocab {
		return nil, fmt.Errorf("%s: found %d bytes, want %d: 4 for each of %d token ids", TokenMapFile, len(raw), 4*vocab, vocab)
	}
	out := make([]int32, vocab)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
		if out[i] < 0 || int(out[i]) >= compressed {
			return nil, fmt.Errorf("%s: token %d maps to %d, want 0 to %d (engram_compressed_vocab_size is %d)",
				TokenMapFile, i, out[i], compressed-1, compressed)
		}
	}
	return out, nil
}

// Distinct counts the different compressed ids of a map.
func Distinct(tokenMap []int32) int {
	seen := make(map[int32]struct{}, len(tokenMap))
	for _, id := range tokenMap {
		seen[id] = struct{}{}
	}
	return len(seen)
}

// HashTokenMap returns the SHA-256, in hex, of a map as int32 little endian.
func HashTokenMap(tokenMap []int32) string {
	raw := make([]byte, 0, 4*len(tokenMap))
	for _, id := range tokenMap {
		raw = binary.LittleEndian.AppendUint32(raw, uint32(id))
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}
