package token

import "unicode/utf8"

// Stream turns ids, one at a time, into text that is safe to show: always whole characters. It belongs to one goroutine.
//
// A byte that can no longer become part of a valid character is replaced at once, one U+FFFD for each maximal invalid subpart, so that
// the concatenation equals the WHATWG decoding of all bytes however the tokens cut them.
type Stream struct {
	t       *Tokenizer
	pending []byte // at most 3 bytes: an unfinished character
	buf     []byte
}

// NewStream gives a stream at the start of a text.
func NewStream(t *Tokenizer) *Stream { return &Stream{t: t} }

// Push takes the next id and gives the text that became safe, possibly none. A token with the special flag gives no text of its own, and
// like every added token it ends an unfinished character. An id without a token gives nothing.
func (s *Stream) Push(id int32) string {
	piece := s.t.Bytes(id)
	if s.t.has(id, flagAdded) {
		held := s.Flush()
		if s.t.has(id, flagSpecial) {
			return held
		}
		return held + piece
	}
	if len(s.pending) == 0 && utf8.ValidString(piece) {
		return piece // the usual case: no copy
	}
	s.pending = append(s.pending, piece...)
	var held int
	s.buf, held = appendValid(s.buf[:0], s.pending, true)
	s.pending = append(s.pending[:0], s.pending[len(s.pending)-held:]...)
	return string(s.buf)
}

// Flush ends the text: what is left of an unfinished character becomes U+FFFD. The stream can be used again.
func (s *Stream) Flush() string {
	if len(s.pending) == 0 {
		return ""
	}
	s.buf, _ = appendValid(s.buf[:0], s.pending, false)
	s.pending = s.pending[:0]
	return string(s.buf)
}

// Pending gives the number of bytes held back.
func (s *Stream) Pending() int { return len(s.pending) }

// Reset drops what is held back.
func (s *Stream) Reset() { s.pending = s.pending[:0] }
