package token

// shortPiece is the length in bytes up to which a piece is merged by scanning for the lowest rank; longer pieces use a heap. The scan
// is quadratic with a tiny constant, the heap is O(n log n) whatever the input.
const shortPiece = 64

// worker is the scratch of one encoding call.
type worker struct {
	t *Tokenizer

	ids   [shortPiece]int32
	ranks [shortPiece]uint32 // ranks[i] is the rank of the pair (i, i+1)

	nodes []node
	heap  []uint64 // rank<<32 | position
}

// node is a symbol of a long piece in a doubly linked list; positions are its indices.
type node struct {
	id         int32
	prev, next int32  // -1 at the ends
	rank       uint32 // of the pair (this, next); noRank when there is none or the node is gone
}

// plain appends the ids of valid UTF-8 text without matching added tokens.
func (w *worker) plain(dst []int32, text string) []int32 {
	s := scanner{text: text, class: classes()}
	for s.pos < len(text) {
		from := s.pos
		piece := text[from:s.next()]
		if len(piece) == 1 {
			dst = append(dst, w.t.byteID[piece[0]])
		} else if id := w.t.lookup(piece); id >= 0 {
			dst = append(dst, id)
		} else {
			dst = w.merge(dst, piece)
		}
	}
	if cap(w.nodes) > 1<<16 { // do not keep the memory of one huge piece for ever
		w.nodes, w.heap = nil, nil
	}
	return dst
}

// merge appends the ids of one piece: lowest rank first, leftmost on ties.
func (w *worker) merge(dst []int32, piece string) []int32 {
	if len(piece) > shortPiece {
		return w.mergeLong(dst, piece)
	}
	t, n := w.t, len(piece)
	ids, ranks := w.ids[:n], w.ranks[:n]
	best, at := uint32(noRank), 0
	for i := range n {
		ids[i] = t.byteID[piece[i]]
		if i > 0 {
			r := t.rank(ids[i-1], ids[i])
			ranks[i-1] = r
			if r < best {
				best, at = r, i-1
			}
		}
	}
	ranks[n-1] = noRank
	for best != noRank {
		ids[at] = t.merged[best]
		copy(ids[at+1:n], ids[at+2:n])
		copy(ranks[at+1:n], ranks[at+2:n]) // the pair (at, at+1) is set below
		n--
		if at+1 < n {
			ranks[at] = t.rank(ids[at], ids[at+1])
		} else {
			ranks[at] = noRank
		}
		if at > 0 {
			ranks[at-1] = t.rank(ids[at-1], ids[at])
		}
		best = noRank
		for i, r := range ranks[:n] {
			if r < best {
				best, at = r, i
			}
		}
	}
	return append(dst, ids[:n]...)
}

func (w *worker) mergeLong(dst []int32, piece string) []int32 {
	t, n := w.t, len(piece)
	if cap(w.nodes) < n {
		w.nodes = make([]node, n)
		w.heap = make([]uint64, 0, n+n/2)
	}
	nodes := w.nodes[:n]
	w.heap = w.heap[:0]
	for i := range nodes {
		nodes[i] = node{id: t.byteID[piece[i]], prev: int32(i) - 1, next: int32(i) + 1, rank: noRank}
	}
	nodes[n-1].next = -1
	for i := range n - 1 {
		if r := t.rank(nodes[i].id, nodes[i+1].id); r != noRank {
			nodes[i].rank = r
			w.heap = append(w.heap, uint64(r)<<32|uint64(i))
		}
	}
	for i := len(w.heap)/2 - 1; i >= 0; i-- {
		w.down(i)
	}
	for len(w.heap) > 0 {
		top := w.heap[0]
		last := len(w.heap) - 1
		w.heap[0] = w.heap[last]
		w.heap = w.heap[:last]
		w.down(0)
		i, r := int32(uint32(top)), uint32(top>>32)
		if nodes[i].rank != r { // the pair has changed since
			continue
		}
		right := nodes[i].next
		nodes[i].id = t.merged[r]
		nodes[i].next = nodes[right].next
		nodes[right].rank = noRank
		if next := nodes[i].next; next >= 0 {
			nodes[next].prev = i
		}
		w.repair(i)
		if prev := nodes[i].prev; prev >= 0 {
			w.repair(prev)
		}
	}
	for i := int32(0); i >= 0; i = nodes[i].next {
		dst = append(dst, nodes[i].id)
	}
	return dst
}

// repair sets the rank of the pair at node i anew and queues it.
func (w *worker) repair(i int32) {
	n := &w.nodes[i]
	n.rank = noRank
	if n.next < 0 {
		return
	}
	if r := w.t.rank(n.id, w.nodes[n.next].id); r != noRank {
		n.rank = r
		w.heap = append(w.heap, uint64(r)<<32|uint64(i))
		for c := len(w.heap) - 1; c > 0; {
			p := (c - 1) / 2
			if w.heap[p] <= w.heap[c] {
				break
			}
			w.heap[p], w.heap[c] = w.heap[c], w.heap[p]
			c = p
		}
	}
}

// down restores the heap below i.
func (w *worker) down(i int) {
	h := w.heap
	for {
		c := 2*i + 1
		if c >= len(h) {
			return
		}
		if c+1 < len(h) && h[c+1] < h[c] {
			c++
		}
		if h[i] <= h[c] {
			return
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
}
