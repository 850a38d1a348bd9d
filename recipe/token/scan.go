package token

import (
	"unicode"
	"unicode/utf8"
)

// scanner cuts valid UTF-8 text into the pieces of the pre-tokenizer: three splits, each applied to the pieces of the one before,
//
//	\p{N}{1,3}
//	[一-龥぀-ゟ゠-ヿ]+
//	[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+ | ?[\p{P}\p{S}]+[\r\n]* | \s*[\r\n]+ | \s+(?!\S) | \s+
//
// where what an expression matches and what lies between two matches both become pieces. The first two cut the text into segments
// (up to three digits, a run of Chinese and kana, a run of anything else); the third works inside a segment and takes the segment's
// end for the end of the text. Every rune is looked at a bounded number of times.
type scanner struct {
	text  string
	class *[unicode.MaxRune + 1]uint8
	pos   int // start of the next piece
	seg   int // end of the segment that pos is in; pos == seg: the next segment starts here
	whole bool
}

// next gives the end of the piece that starts at s.pos, and moves there. Call it while s.pos < len(s.text).
func (s *scanner) next() int {
	if s.pos == s.seg {
		s.segment()
	}
	if s.whole {
		s.whole = false
		s.pos = s.seg
		return s.pos
	}
	end := s.match(s.pos)
	if end < 0 { // nothing matches: the gap up to the next match is one piece
		_, n := s.rune(s.pos)
		end = s.pos + n
		for end < s.seg {
			if s.match(end) >= 0 {
				break
			}
			_, n := s.rune(end)
			end += n
		}
	}
	s.pos = end
	return end
}

// rune gives class bits and length of the rune at i.
func (s *scanner) rune(i int) (class uint8, n int) {
	if c := s.text[i]; c < utf8.RuneSelf {
		return s.class[c], 1
	}
	r, n := utf8.DecodeRuneInString(s.text[i:])
	return s.class[r], n
}

// segment finds the end of the segment that starts at s.pos.
func (s *scanner) segment() {
	first, n := s.rune(s.pos)
	i := s.pos + n
	switch {
	case first&classN != 0:
		for k := 1; k < 3 && i < len(s.text); k++ {
			c, n := s.rune(i)
			if c&classN == 0 {
				break
			}
			i += n
		}
		s.whole = true // digits match nothing of the third split
	case first&classCJK != 0:
		for i < len(s.text) {
			c, n := s.rune(i)
			if c&classCJK == 0 {
				break
			}
			i += n
		}
	default:
		for i < len(s.text) {
			c, n := s.rune(i)
			if c&(classN|classCJK) != 0 {
				break
			}
			i += n
		}
	}
	s.seg = i
}

// match gives the end of the match of the third split at i, or -1.
func (s *scanner) match(i int) int {
	c0 := s.text[i]
	if c0 < utf8.RuneSelf && asciiPunct(c0) {
		j := i + 1
		for j < s.seg && asciiLetter(s.text[j]) {
			j++
		}
		if j > i+1 {
			return j
		}
		return s.punct(j)
	}
	class, n := s.rune(i)
	if class&(classL|classM) != 0 {
		return s.letters(i + n)
	}
	j := i + n
	if class&classPS != 0 {
		return s.punct(j)
	}
	if class&classCRLF == 0 && j < s.seg {
		next, m := s.rune(j)
		if next&(classL|classM) != 0 { // one leading rune, then letters
			return s.letters(j + m)
		}
		if c0 == ' ' && next&classPS != 0 {
			return s.punct(j + m)
		}
	}
	if class&classW == 0 {
		return -1
	}
	// A run of white space: up to its last line break, else all but its last rune, else all.
	lineEnd, last := -1, i
	if class&classCRLF != 0 {
		lineEnd = j
	}
	for j < s.seg {
		c, m := s.rune(j)
		if c&classW == 0 {
			break
		}
		last = j
		j += m
		if c&classCRLF != 0 {
			lineEnd = j
		}
	}
	switch {
	case lineEnd >= 0:
		return lineEnd
	case j == s.seg || last == i:
		return j
	}
	return last
}

// letters gives the end of the run of letters and marks at i.
func (s *scanner) letters(i int) int {
	for i < s.seg {
		if c := s.text[i]; c < utf8.RuneSelf {
			if !asciiLetter(c) {
				break
			}
			i++
			continue
		}
		c, n := s.rune(i)
		if c&(classL|classM) == 0 {
			break
		}
		i += n
	}
	return i
}

// punct gives the end of the run of punctuation and symbols at i and of the line breaks after it.
func (s *scanner) punct(i int) int {
	for i < s.seg {
		c, n := s.rune(i)
		if c&classPS == 0 {
			break
		}
		i += n
	}
	for i < s.seg && (s.text[i] == '\r' || s.text[i] == '\n') {
		i++
	}
	return i
}
