package parse

import "sync"

// Marks are control tokens inside the scan buffer. Text is valid UTF-8, so these bytes never occur in it. In token mode only marks are
// markup; in text mode the spellings are markup too.
const (
	markThink    = 0xF8 // <think>
	markEndThink = 0xF9 // </think>
	markDSML     = 0xFA // the tool marker between its angle brackets
	firstMark    = markThink
)

const (
	spellThink    = "<think>"
	spellEndThink = "</think>"
	spellDSML     = "｜DSML｜"
)

func spelling(b byte) string {
	switch b {
	case markThink:
		return spellThink
	case markEndThink:
		return spellEndThink
	case markDSML:
		return spellDSML
	}
	return ""
}

// action is what a completed pattern means; each state interprets its own.
type action uint8

const (
	actNone action = iota
	actThink
	actEndThink
	actOpen  // "<" mark
	actClose // "</" mark
	actInvoke
	actBlockEnd
	actQuote
	actParam
	actSpace
	actTrue
	actFalse
	actFence
	actJSON
	actFenceEnd
	actCloseParam
	actCloseInvoke
	actCloseBlock
	actOpenParam
	actOpenInvoke
)

// pattern is a byte string with an action. A pattern that holds spelled marks exists in a second form with mark bytes.
type pattern struct {
	text string
	act  action
}

// automaton is an Aho-Corasick machine as a table over byte classes. It is immutable.
type automaton struct {
	class [256]uint8
	width int
	next  []int16 // [node*width+class]
	out   []action
	size  []int16 // length of the pattern that out stands for
	depth []int16
	begin [256]bool // bytes that leave the root
}

func compile(patterns []pattern) *automaton {
	a := &automaton{width: 1}
	for _, p := range patterns {
		for i := 0; i < len(p.text); i++ {
			if a.class[p.text[i]] == 0 {
				a.class[p.text[i]] = uint8(a.width)
				a.width++
			}
		}
	}
	grow := func(depth int16) int16 {
		n := int16(len(a.out))
		for i := 0; i < a.width; i++ {
			a.next = append(a.next, -1)
		}
		a.out, a.size, a.depth = append(a.out, actNone), append(a.size, 0), append(a.depth, depth)
		return n
	}
	grow(0)
	for _, p := range patterns {
		n := int16(0)
		for i := 0; i < len(p.text); i++ {
			at := int(n)*a.width + int(a.class[p.text[i]])
			if a.next[at] < 0 {
				m := grow(int16(i + 1)) // may move a.next
				a.next[at] = m
			}
			n = a.next[at]
		}
		if a.out[n] == actNone {
			a.out[n], a.size[n] = p.act, int16(len(p.text))
		}
	}
	fail := make([]int16, len(a.out))
	var queue []int16
	for c := 0; c < a.width; c++ {
		if m := a.next[c]; m > 0 {
			queue = append(queue, m)
		} else {
			a.next[c] = 0
		}
	}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		f := fail[n]
		if a.out[n] == actNone {
			a.out[n], a.size[n] = a.out[f], a.size[f]
		}
		for c := 0; c < a.width; c++ {
			at, back := int(n)*a.width+c, a.next[int(f)*a.width+c]
			if m := a.next[at]; m >= 0 {
				fail[m] = back
				queue = append(queue, m)
			} else {
				a.next[at] = back
			}
		}
	}
	for b := 0; b < 256; b++ {
		a.begin[b] = a.next[a.class[b]] != 0
	}
	return a
}

func (a *automaton) step(node int16, b byte) int16 { return a.next[int(node)*a.width+int(a.class[b])] }

// machines are the automata of all states: [state][tools allowed][text mode].
type machines [stateCount][2][2]*automaton

var tables = sync.OnceValue(func() *machines {
	m := new(machines)
	for s := state(0); s < stateCount; s++ {
		for tools := 0; tools < 2; tools++ {
			for text := 0; text < 2; text++ {
				var list []pattern
				for _, p := range statePatterns(s, tools == 1) {
					marked, isMark := withMarks(p.text)
					if isMark {
						list = append(list, pattern{marked, p.act})
					}
					if !isMark || text == 1 {
						list = append(list, p)
					}
				}
				m[s][tools][text] = compile(list)
			}
		}
	}
	return m
})

// withMarks replaces the spelled marks of a pattern by mark bytes.
func withMarks(s string) (string, bool) {
	out, found := []byte(nil), false
	for i := 0; i < len(s); {
		n := 0
		for b := byte(firstMark); b <= markDSML; b++ {
			if sp := spelling(b); len(s)-i >= len(sp) && s[i:i+len(sp)] == sp {
				out, n, found = append(out, b), len(sp), true
				break
			}
		}
		if n == 0 {
			out, n = append(out, s[i]), 1
		}
		i += n
	}
	return string(out), found
}

// stopNode is a node of the machine for stop strings: sparse, because a stop string can be long. At most 16 strings share a prefix,
// so the list of children is short.
type stopNode struct {
	child, sibling int32
	fail           int32
	out            int32 // index of a stop string plus one; the longest that ends here
	depth          int32
	b              byte
}

// stopMachine finds the first stop string that completes.
type stopMachine struct {
	nodes []stopNode
	root  [256]int32
	words []string
}

func compileStops(words []string) *stopMachine {
	m := &stopMachine{nodes: make([]stopNode, 1), words: words}
	for w, word := range words {
		if word == "" {
			continue
		}
		n := int32(0)
		for i := 0; i < len(word); i++ {
			c := m.child(n, word[i])
			if c == 0 {
				c = int32(len(m.nodes))
				m.nodes = append(m.nodes, stopNode{sibling: m.nodes[n].child, depth: int32(i + 1), b: word[i]})
				m.nodes[n].child = c
				if n == 0 {
					m.root[word[i]] = c
				}
			}
			n = c
		}
		if m.nodes[n].out == 0 {
			m.nodes[n].out = int32(w + 1)
		}
	}
	queue := make([]int32, 0, len(m.nodes))
	for c := m.nodes[0].child; c != 0; c = m.nodes[c].sibling {
		queue = append(queue, c)
	}
	for len(queue) > 0 {
		n := queue[0]
		queue = queue[1:]
		if m.nodes[n].out == 0 {
			m.nodes[n].out = m.nodes[m.nodes[n].fail].out
		}
		for c := m.nodes[n].child; c != 0; c = m.nodes[c].sibling {
			m.nodes[c].fail = m.step(m.nodes[n].fail, m.nodes[c].b)
			queue = append(queue, c)
		}
	}
	return m
}

func (m *stopMachine) child(n int32, b byte) int32 {
	if n == 0 {
		return m.root[b]
	}
	for c := m.nodes[n].child; c != 0; c = m.nodes[c].sibling {
		if m.nodes[c].b == b {
			return c
		}
	}
	return 0
}

func (m *stopMachine) step(n int32, b byte) int32 {
	for {
		if c := m.child(n, b); c != 0 || n == 0 {
			return c
		}
		n = m.nodes[n].fail
	}
}
