package conf

import (
	"reflect"
	"slices"
	"strings"
	"time"
)

// The schema is the Config struct read by reflection: one node for each field with a conf tag.

type nodeKind int

const (
	leaf     nodeKind = iota // a value
	block                    // server { ... }
	labelled                 // model "NAME" { ... }
	free                     // config { ... } with whatever the library's schema says
)

type node struct {
	name     string
	kind     nodeKind
	typ      reflect.Type
	field    int // index in the parent struct
	secret   bool
	path     bool // relative values of a file are relative to that file
	children []*node
}

var (
	schema       = nodeOf("", reflect.TypeFor[Config](), -1)
	durationType = reflect.TypeFor[time.Duration]()
	sizeType     = reflect.TypeFor[Size]()
)

func nodeOf(tag string, typ reflect.Type, field int) *node {
	name, options, _ := strings.Cut(tag, ",")
	n := &node{name: name, typ: typ, field: field, secret: options == "secret", path: options == "path"}
	fields := typ
	switch {
	case options == "free":
		n.kind = free
		return n
	case typ.Kind() == reflect.Struct:
		n.kind = block
	case typ.Kind() == reflect.Slice && typ.Elem().Kind() == reflect.Struct:
		n.kind = labelled
		fields = typ.Elem()
	default:
		return n
	}
	for i := range fields.NumField() {
		f := fields.Field(i)
		if tag := f.Tag.Get("conf"); tag != "" && tag != ",label" {
			n.children = append(n.children, nodeOf(tag, f.Type, i))
		}
	}
	return n
}

func (n *node) child(name string) *node {
	i := slices.IndexFunc(n.children, func(c *node) bool { return c.name == name })
	if i < 0 {
		return nil
	}
	return n.children[i]
}

func (n *node) names() []string {
	out := make([]string, len(n.children))
	for i, c := range n.children {
		out[i] = c.name
	}
	return out
}

// at follows keys below n; nil where one of them is unknown. Anything below a free block exists.
func (n *node) at(keys []string) *node {
	for _, k := range keys {
		if n.kind == free {
			return n
		}
		if n = n.child(k); n == nil {
			return nil
		}
	}
	return n
}

// want says what a value of the leaf looks like.
func (n *node) want() string {
	switch n.typ {
	case durationType:
		return `a duration like "200us" or "10m"`
	case sizeType:
		return `a size like "2GiB"`
	}
	switch n.typ.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if n.typ.Elem().Kind() == reflect.Int {
			return "a list of whole numbers like [0, 1]"
		}
		return `a list of strings like ["a", "b"]`
	}
	return "a string"
}

// sep joins the keys of a path: a label may hold dots and slashes, a control character it may not.
const sep = "\x1f"

func join(keys ...string) string { return strings.Join(keys, sep) }

// display writes a path as people write it: backend "cpu".step.depth
func display(path string) string {
	keys := strings.Split(path, sep)
	var b strings.Builder
	b.WriteString(keys[0])
	for i, k := range keys[1:] {
		if n := schema.child(keys[0]); i == 0 && n != nil && n.kind == labelled {
			b.WriteString(` "` + k + `"`)
		} else {
			b.WriteString("." + k)
		}
	}
	return b.String()
}

// nearest returns the candidate closest to name, or "" where none is near enough to be what was meant.
func nearest(name string, candidates []string) string {
	best, bestDistance := "", max(1, min(3, len(name)/2))+1
	for _, c := range candidates {
		if d := distance(strings.ToLower(name), strings.ToLower(c)); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	if best == "" { // listen for server_listen, thread for threads_count
		for _, c := range candidates {
			if len(c) >= 3 && len(name) >= 3 && (strings.Contains(name, c) || strings.Contains(c, name)) {
				return c
			}
		}
	}
	return best
}

// distance counts insertions, deletions, substitutions and swaps of neighbours (optimal string alignment).
func distance(a, b string) int {
	if len(a) > 64 || len(b) > 64 {
		return 1 << 20
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}
