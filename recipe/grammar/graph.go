package grammar

import (
	"context"
	"fmt"
)

// A grammar is a graph of nodes. Each rule is a part of the graph that ends in return nodes; a call goes to a rule's start and comes back
// to the node after the call. Between calls everything is regular.
type node struct {
	kind     nodeKind
	next     int32
	outs     []int32   // split
	lit      string    // literal
	d        *dfa      // automaton
	set      *tableSet // its tables, once the graph is complete
	min, max int32     // counted automaton: characters; max < 0 is no bound
	id       int32     // token: the id of a control token
	rule     int32     // call
}

type nodeKind uint8

const (
	nodeReturn nodeKind = iota
	nodeLiteral
	nodeAutomaton
	nodeToken
	nodeSplit
	nodeCall
)

// Limits of one grammar.
const (
	maxNodes = 400_000
	maxRules = 50_000
	// maxFrames bounds the nesting of calls while matching a grammar; masks close what is open in time. For JSON see jsonFrames.
	maxFrames = 1000
)

// builder makes a grammar's graph. Parts are built backwards: each function takes the node that follows.
type builder struct {
	ctx   context.Context
	v     *Vocabulary
	nodes []node
	rules []rule
	// automata by their identity, so that equal leaves are one.
	dfas  map[string]*dfa
	bytes int
}

type rule struct {
	start  int32 // -1 until built
	height int32 // frames it needs at least
}

const returnNode = 0 // every builder's first node

func newBuilder(ctx context.Context, v *Vocabulary) *builder {
	return &builder{ctx: ctx, v: v, nodes: []node{{kind: nodeReturn}}, dfas: map[string]*dfa{}}
}

// buildError is raised by the builder when a limit is passed; Compile turns it into an error.
type buildError struct{ err error }

func (b *builder) fail(err error) { panic(buildError{err}) }

func (b *builder) add(n node) int32 {
	if len(b.nodes) >= maxNodes {
		b.fail(&Error{Kind: TooLarge, Reason: fmt.Sprintf("the grammar has more than %d nodes", maxNodes)})
	}
	if len(b.nodes)&1023 == 0 && b.ctx.Err() != nil {
		b.fail(b.ctx.Err())
	}
	b.nodes = append(b.nodes, n)
	return int32(len(b.nodes) - 1)
}

func (b *builder) literal(s string, next int32) int32 {
	if s == "" {
		return next
	}
	if n := &b.nodes[next]; n.kind == nodeLiteral && len(s)+len(n.lit) <= 4096 {
		s, next = s+n.lit, n.next
	}
	if b.bytes += len(s); b.bytes > 64<<20 {
		b.fail(&Error{Kind: TooLarge, Reason: "the grammar's texts have more than 64 MiB"})
	}
	return b.add(node{kind: nodeLiteral, lit: s, next: next})
}

func (b *builder) token(id int32, next int32) int32 {
	return b.add(node{kind: nodeToken, id: id, next: next})
}

// split gives a node that goes on with any of outs; without one nothing matches.
func (b *builder) split(outs ...int32) int32 {
	if len(outs) == 1 {
		return outs[0]
	}
	return b.add(node{kind: nodeSplit, outs: outs})
}

func (b *builder) automaton(d *dfa, min, max int, next int32) int32 {
	if d == nil {
		return b.split()
	}
	return b.add(node{kind: nodeAutomaton, d: d, min: int32(min), max: int32(max), next: next})
}

// attach gives each automaton its tables.
func (b *builder) attach() {
	for i := range b.nodes {
		n := &b.nodes[i]
		if n.kind != nodeAutomaton {
			continue
		}
		follow, budget := byteSet{}, 400
		if n.d.open() && !b.first(n.next, &follow, &budget) {
			follow = allBytes
		}
		n.set = b.v.tableSet(n.d, follow)
	}
}

// regular compiles an expression once for each name.
func (b *builder) regular(name string, make func() (*dfa, error)) *dfa {
	if d, ok := b.dfas[name]; ok {
		return d
	}
	d, err := make()
	if err != nil {
		b.fail(err)
	}
	if d != nil {
		if b.bytes += d.bytes(); b.bytes > 256<<20 {
			b.fail(&Error{Kind: TooLarge, Reason: "the grammar's automata take more than 256 MiB"})
		}
	}
	b.dfas[name] = d
	return d
}

func (b *builder) expression(name string, r *rx, next int32) int32 {
	return b.automaton(b.regular(name, func() (*dfa, error) { return compileRx(b.ctx, r) }), 0, -1, next)
}

// newRule reserves a rule, so that it can be called before it is built.
func (b *builder) newRule() int32 {
	if len(b.rules) >= maxRules {
		b.fail(&Error{Kind: TooLarge, Reason: fmt.Sprintf("the grammar has more than %d rules", maxRules)})
	}
	b.rules = append(b.rules, rule{start: -1})
	return int32(len(b.rules) - 1)
}

func (b *builder) call(rule, next int32) int32 {
	return b.add(node{kind: nodeCall, rule: rule, next: next})
}

// first collects the bytes that a match from a node can begin with. It gives false when that depends on what comes after the rule, or is
// too long to find out.
func (b *builder) first(n int32, dst *byteSet, budget *int) bool {
	if *budget--; *budget < 0 {
		return false
	}
	switch x := &b.nodes[n]; x.kind {
	case nodeReturn, nodeCall:
		return false
	case nodeLiteral:
		dst.add(x.lit[0])
	case nodeToken:
	case nodeSplit:
		for _, o := range x.outs {
			if !b.first(o, dst, budget) {
				return false
			}
		}
	case nodeAutomaton:
		dst.or(&x.d.live[0])
		if x.d.accept[0] && x.min == 0 {
			return b.first(x.next, dst, budget)
		}
	}
	return true
}

// finish removes what can never be completed and computes what each rule needs. It gives false when the start can never be completed.
func (b *builder) finish(starts ...int32) bool {
	// cost[n] is the least number of frames below the rule's own that a match from n to the rule's end needs; rules start out impossible.
	const never = int32(1) << 30
	cost := make([]int32, len(b.nodes))
	for i := range cost {
		cost[i] = never
	}
	cost[returnNode] = 0
	for i := range b.rules {
		b.rules[i].height = never
	}
	eval := func(i int) int32 {
		switch n := &b.nodes[i]; n.kind {
		case nodeReturn:
			return 0
		case nodeSplit:
			c := never
			for _, o := range n.outs {
				c = min(c, cost[o])
			}
			return c
		case nodeCall:
			h := b.rules[n.rule].height
			if h >= never || cost[n.next] >= never {
				return never
			}
			if b.nodes[n.next].kind != nodeReturn {
				h++ // a call at the end of a rule needs no frame
			}
			return max(h, cost[n.next])
		default:
			return cost[n.next]
		}
	}
	for changed := true; changed; {
		if b.ctx.Err() != nil {
			b.fail(b.ctx.Err())
		}
		changed = false
		for i := range b.nodes { // what follows was built before, so one pass settles nearly everything
			if c := eval(i); c < cost[i] {
				cost[i] = c
				changed = true
			}
		}
		for i := range b.rules {
			r := &b.rules[i]
			if r.start >= 0 && cost[r.start] < r.height {
				r.height = cost[r.start]
				changed = true
			}
		}
	}
	for i := range b.nodes {
		n := &b.nodes[i]
		if n.kind == nodeSplit {
			keep := n.outs[:0]
			for _, o := range n.outs {
				if cost[o] < never {
					keep = append(keep, o)
				}
			}
			n.outs = keep
		} else if cost[i] >= never && n.kind != nodeReturn {
			*n = node{kind: nodeSplit}
		}
	}
	for _, s := range starts {
		if cost[s] >= never {
			return false
		}
		if cost[s] > jsonFrames-20 {
			b.fail(&Error{Kind: TooLarge, Reason: fmt.Sprintf("the smallest text nests %d levels deep", cost[s])})
		}
	}
	return true
}

// leftRecursive finds a rule that can call itself, other than as its last step, without having read anything.
func (b *builder) leftRecursive() (int32, bool) {
	// nullable rules and nodes
	null := make([]bool, len(b.nodes))
	null[returnNode] = true
	for changed := true; changed; {
		changed = false
		for i := range b.nodes {
			if null[i] {
				continue
			}
			n := &b.nodes[i]
			ok := false
			switch n.kind {
			case nodeSplit:
				for _, o := range n.outs {
					ok = ok || null[o]
				}
			case nodeCall:
				ok = null[n.next] && b.rules[n.rule].start >= 0 && null[b.rules[n.rule].start]
			case nodeAutomaton:
				ok = n.d.accept[0] && n.min == 0 && null[n.next]
			}
			if ok {
				null[i], changed = true, true
			}
		}
	}
	// Depth-first over "reaches without reading"; growing edges push a frame.
	type edge struct {
		to    int32
		grows bool
	}
	edges := make([][]edge, len(b.rules))
	for r := range b.rules {
		seen := map[int32]bool{}
		todo := []int32{b.rules[r].start}
		for len(todo) > 0 {
			i := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if i < 0 || seen[i] {
				continue
			}
			seen[i] = true
			n := &b.nodes[i]
			switch n.kind {
			case nodeSplit:
				todo = append(todo, n.outs...)
			case nodeAutomaton:
				if n.d.accept[0] && n.min == 0 {
					todo = append(todo, n.next)
				}
			case nodeCall:
				edges[r] = append(edges[r], edge{n.rule, b.nodes[n.next].kind != nodeReturn})
				if s := b.rules[n.rule].start; s >= 0 && null[s] {
					todo = append(todo, n.next)
				}
			}
		}
	}
	// A cycle with a growing edge: the target of a growing edge reaches its source.
	reach := func(from, to int32) bool {
		seen := map[int32]bool{}
		todo := []int32{from}
		for len(todo) > 0 {
			r := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			if r == to {
				return true
			}
			if seen[r] {
				continue
			}
			seen[r] = true
			for _, e := range edges[r] {
				todo = append(todo, e.to)
			}
		}
		return false
	}
	for r := range edges {
		for _, e := range edges[r] {
			if e.grows && reach(e.to, int32(r)) {
				return int32(r), true
			}
		}
	}
	return 0, false
}
