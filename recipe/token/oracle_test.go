package token

import (
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// oraclePieces cuts text as the three expressions say, one alternative after the other, rune by rune, with the tables of package unicode:
// slow, and written without a look at scanner.
func oraclePieces(text string) []string {
	newer := func(r rune, class uint8) bool {
		for _, n := range unicode16 {
			if r >= n.lo && r <= n.hi {
				return n.class == class
			}
		}
		return false
	}
	isolate := func(in [][]rune, match func(s []rune, i int) int) (out [][]rune) {
		for _, s := range in {
			gap := 0
			for i := 0; i < len(s); {
				n := match(s, i)
				if n == 0 {
					i++
					continue
				}
				if gap < i {
					out = append(out, s[gap:i])
				}
				out = append(out, s[i:i+n])
				i += n
				gap = i
			}
			if gap < len(s) {
				out = append(out, s[gap:])
			}
		}
		return out
	}
	run := func(s []rune, i, most int, f func(r rune) bool) (n int) {
		for i+n < len(s) && n < most && f(s[i+n]) {
			n++
		}
		return n
	}
	const all = 1 << 30
	punct := func(r rune) bool { return strings.ContainsRune("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", r) }
	letter := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' }
	lm := func(r rune) bool { return unicode.In(r, unicode.L, unicode.M) || newer(r, classL) }
	ps := func(r rune) bool { return unicode.In(r, unicode.P, unicode.S) || newer(r, classPS) }
	white := func(r rune) bool { return unicode.In(r, unicode.White_Space) }
	crlf := func(r rune) bool { return r == '\r' || r == '\n' }

	pieces := [][]rune{[]rune(text)}
	pieces = isolate(pieces, func(s []rune, i int) int {
		return run(s, i, 3, func(r rune) bool { return unicode.In(r, unicode.N) || newer(r, classN) })
	})
	pieces = isolate(pieces, func(s []rune, i int) int {
		return run(s, i, all, func(r rune) bool {
			return r >= 0x4E00 && r <= 0x9FA5 || r >= 0x3040 && r <= 0x309F || r >= 0x30A0 && r <= 0x30FF
		})
	})
	pieces = isolate(pieces, func(s []rune, i int) int {
		if punct(s[i]) {
			if n := run(s, i+1, all, letter); n > 0 {
				return 1 + n
			}
		}
		if r := s[i]; !crlf(r) && !unicode.In(r, unicode.L) && !newer(r, classL) && !ps(r) {
			if n := run(s, i+1, all, lm); n > 0 {
				return 1 + n
			}
		}
		if n := run(s, i, all, lm); n > 0 {
			return n
		}
		lead := 0
		if s[i] == ' ' {
			lead = 1
		}
		if n := run(s, i+lead, all, ps); n > 0 {
			return lead + n + run(s, i+lead+n, all, crlf)
		}
		w := run(s, i, all, white)
		for n := w; n > 0; n-- {
			if crlf(s[i+n-1]) {
				return n
			}
		}
		if w > 0 && i+w < len(s) && w > 1 {
			return w - 1
		}
		return w
	})
	var out []string
	for _, p := range pieces {
		out = append(out, string(p))
	}
	return out
}

func scannerPieces(text string) (out []string) {
	s := scanner{text: text, class: classes()}
	for s.pos < len(text) {
		from := s.pos
		out = append(out, text[from:s.next()])
	}
	return out
}

// Runes from every class and around every border that the expressions have.
var interesting = []rune("aZé'!<(½Ⅷ٣7 \t\n\r\v\u0085\u00a0\u2028\u3000\u200b\u200d\x00\x1f\u0301\u093f中龥\u9fa6あ\u3040\u3097\u309b\u30a0・ーㄅ한😀👨€＜｜▁𐍈\U000e0001\ufffd\uffff^`$+~")

func TestScannerAgreesWithTheExpressions(t *testing.T) {
	const seed = 5
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 30000 {
		text := make([]rune, 1+rng.IntN(14))
		for i := range text {
			switch rng.IntN(12) {
			case 0:
				for text[i] = rng.Int32N(unicode.MaxRune + 1); !utf8.ValidRune(text[i]); {
					text[i]++
				}
			case 1:
				text[i] = rng.Int32N(0x3200)
			case 2:
				if i > 0 {
					text[i] = text[i-1]
					break
				}
				fallthrough
			default:
				text[i] = interesting[rng.IntN(len(interesting))]
			}
		}
		s := string(text)
		if got, want := scannerPieces(s), oraclePieces(s); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %+q: pieces %+q, want %+q", seed, s, got, want)
		}
	}
}

// Pieces that the reference library gives for characters newer than package unicode.
func TestCharactersOfUnicode16(t *testing.T) {
	for _, c := range []struct {
		r    rune
		want []int // lengths of the pieces of "a?b ??!? 1?", in runes
	}{
		{0xA7CB, []int{3, 3, 1, 1, 1, 1, 1}},
		{0x11BF0, []int{1, 1, 1, 1, 2, 1, 1, 1, 2}},
		{0x1FAE9, []int{1, 1, 1, 5, 1, 1, 1}},
		{0x0378, []int{1, 2, 1, 2, 1, 1, 1, 1, 1}}, // not assigned
	} {
		s := string(c.r)
		var got []int
		for _, p := range scannerPieces("a" + s + "b " + s + s + "!" + s + " 1" + s) {
			got = append(got, utf8.RuneCountInString(p))
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("U+%04X: pieces %v, want %v", c.r, got, c.want)
		}
	}
}

// The heap and the scan are two ways to the same merges.
func TestLongAndShortMergesAgree(t *testing.T) {
	tok := smallTokenizer(t)
	w := &worker{t: tok}
	const seed = 6
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 3000 {
		b := make([]byte, 1+rng.IntN(shortPiece))
		for i := range b {
			b[i] = "abcdeab \xe4\xbd\xa0"[rng.IntN(11)]
		}
		short := w.merge(nil, string(b))
		if long := w.mergeLong(nil, string(b)); !reflect.DeepEqual(short, long) {
			t.Fatalf("seed %d: %q: scan %v, heap %v", seed, b, short, long)
		}
	}
}

// smallTokenizer has merges that fight for the same letters.
func smallTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(smallFile())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func smallFile() []byte {
	var b strings.Builder
	b.WriteString(`{"added_tokens":[{"id":400,"content":"<x>","special":true,"normalized":false,"lstrip":false,"rstrip":false,"single_word":false},` +
		`{"id":401,"content":"<x>y","special":false,"normalized":true}],"normalizer":null,"pre_tokenizer":{"type":"Sequence","pretokenizers":[`)
	for _, s := range splits {
		b.WriteString(`{"type":"Split","pattern":{"Regex":`)
		b.WriteString(quote(s))
		b.WriteString(`},"behavior":"Isolated","invert":false},`)
	}
	b.WriteString(`{"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},"model":{"type":"BPE","vocab":{`)
	for r, v := range byteOf {
		if v >= 0 {
			b.WriteString(quote(string(rune(r))))
			b.WriteString(":")
			b.WriteString(itoa(int(v)))
			b.WriteString(",")
		}
	}
	merges := [][2]string{{"a", "b"}, {"b", "c"}, {"ab", "c"}, {"c", "d"}, {"d", "e"}, {"cd", "e"}, {"ab", "ab"}, {"e", "a"}, {"abc", "de"}, {"Ġ", "a"}, {"Ġa", "b"}, {"ä", "½"}, {"ä½", "ł"}, {"bc", "d"}}
	for i, m := range merges {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(quote(m[0]+m[1]) + ":" + itoa(256+i))
	}
	b.WriteString(`},"merges":[`)
	for i, m := range merges {
		if i > 0 {
			b.WriteString(",")
		}
		b.WriteString(quote(m[0] + " " + m[1]))
	}
	b.WriteString("]}}")
	return []byte(b.String())
}

func TestMatchingIsLongestWithinOneKind(t *testing.T) {
	tok := smallTokenizer(t)
	// "<x>" is matched before normalisation, so the longer "<x>y" of the second kind never sees it.
	if got := tok.EncodeSpecial("<x>y<x"); !reflect.DeepEqual(got, []int32{400, 'y', '<', 'x'}) {
		t.Errorf("%v", got)
	}
}

func quote(s string) string {
	b := []byte{'"'}
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b = append(b, '\\', byte(r))
		case r < 0x20:
			b = append(b, `\u00`...)
			b = append(b, "0123456789abcdef"[r>>4], "0123456789abcdef"[r&15])
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	return string(append(b, '"'))
}

func itoa(n int) string {
	if n < 10 {
		return string(rune('0' + n))
	}
	return itoa(n/10) + string(rune('0'+n%10))
}

// Cutting a text for parallel work must not change one id.
func TestShardsEncodeAsTheWhole(t *testing.T) {
	tok := smallTokenizer(t)
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, seed))
	for round := range 10 {
		var b strings.Builder
		for b.Len() < 3*shardBytes {
			switch rng.IntN(4 + round%2*40) { // every second text is mostly words, with few places to cut in the others
			case 0:
				b.WriteString("  \n 12 你好，")
			case 1:
				b.WriteRune(interesting[rng.IntN(len(interesting))])
			case 2:
				b.WriteString("word  ")
			default:
				b.WriteString("abcde")
			}
		}
		text := b.String()
		parts := shards(text)
		if strings.Join(parts, "") != text {
			t.Fatalf("seed %d, round %d: the shards are not the text", seed, round)
		}
		if round%2 == 0 && len(parts) < 2 {
			t.Fatalf("seed %d, round %d: one shard", seed, round)
		}
		w := &worker{t: tok}
		want := w.plain(nil, text)
		if got := tok.parallel(nil, text); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d, round %d: ids differ", seed, round)
		}
	}
	// Every single place that cut accepts, not only the ones that shards picks.
	for range 3000 {
		text := make([]rune, 2+rng.IntN(14))
		for i := range text {
			text[i] = interesting[rng.IntN(len(interesting))]
		}
		s := string(text)
		for from := 0; from < len(s); from++ {
			at := cut(s, from, len(s))
			if at == len(s) {
				break
			}
			if got, want := append(scannerPieces(s[:at]), scannerPieces(s[at:])...), scannerPieces(s); !reflect.DeepEqual(got, want) {
				t.Fatalf("seed %d: %+q cut at %d: %+q, want %+q", seed, s, at, got, want)
			}
			from = at
		}
	}
	if got := shards(strings.Repeat("你", shardBytes)); len(got) != 1 {
		t.Errorf("%d shards of a text without a place to cut", len(got))
	}
}

func FuzzParse(f *testing.F) {
	f.Add(smallFile())
	f.Add([]byte(`{"model":{"type":"BPE","vocab":{},"merges":[]}}`))
	f.Add([]byte(`{"added_tokens":[{"id":1,"content":"x"}],"pre_tokenizer":{}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Parse(data)
		if err != nil {
			return
		}
		for _, text := range []string{"abcdeab <x>y", "\xff\x80 7", strings.Repeat("ab", 100)} {
			if got := tok.Decode(tok.Encode(text)); got != ValidUTF8(text) {
				t.Fatalf("%q comes back as %q", text, got)
			}
			tok.Decode(tok.EncodeSpecial(text))
		}
	})
}

func FuzzRoundTrip(f *testing.F) {
	tok := smallTokenizer(f)
	f.Add("abcde <x> 你好 123\n\n  x", uint8(3))
	f.Add("\xf0\x9f\x98", uint8(1))
	f.Fuzz(func(t *testing.T, text string, cut uint8) {
		want := ValidUTF8(text)
		ids := tok.Encode(text)
		if got := tok.Decode(ids); got != want {
			t.Fatalf("%q comes back as %q", text, got)
		}
		if got := tok.Decode(tok.EncodeSpecial(text)); got != want {
			t.Fatalf("%q comes back from special as %q", text, got)
		}
		s := NewStream(tok)
		var b strings.Builder
		for _, id := range ids {
			b.WriteString(s.Push(id))
		}
		if b.WriteString(s.Flush()); b.String() != want {
			t.Fatalf("%q streams as %q", text, b.String())
		}
		if got, want := scannerPieces(want), oraclePieces(want); !reflect.DeepEqual(got, want) {
			t.Fatalf("%+q: pieces %+q, want %+q", text, got, want)
		}
	})
}
