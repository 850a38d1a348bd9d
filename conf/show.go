package conf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Show writes the whole configuration, secrets masked. format "hcl" (or "") is a file that Load reads, each value with a comment that says where
// it comes from; "json" is an object of path to {value, origin}. The error is a write error or an unknown format.
func (c *Config) Show(w io.Writer, format string) error {
	switch format {
	case "", "hcl":
		var b bytes.Buffer
		c.showBlock(&b, schema, reflect.ValueOf(*c), "", "")
		_, err := w.Write(b.Bytes())
		return err
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(c.flat())
	}
	return fmt.Errorf("show configuration as %q: formats are hcl and json", format)
}

// Shown is one value of Show's JSON form.
type Shown struct {
	Value  any    `json:"value"`
	Origin string `json:"origin"`
}

func (c *Config) flat() map[string]Shown {
	out := map[string]Shown{}
	var walk func(n *node, v reflect.Value, path string)
	walk = func(n *node, v reflect.Value, path string) {
		for _, k := range n.children {
			f, p := v.Field(k.field), k.name
			if path != "" {
				p = join(path, k.name)
			}
			switch k.kind {
			case block:
				walk(k, f, p)
			case labelled:
				for i := range f.Len() {
					walk(k, f.Index(i), join(p, labelOf(f.Index(i))))
				}
			case free:
				out[display(p)] = Shown{f.Interface(), c.originOf(p).String()}
			default:
				out[display(p)] = Shown{masked(k, plain(f)), c.originOf(p).String()}
			}
		}
	}
	walk(schema, reflect.ValueOf(*c), "")
	return out
}

// originOf finds the origin of a value or, inside a free block that one flag set as a whole, of the block.
func (c *Config) originOf(path string) Origin {
	for {
		if o, ok := c.origins[path]; ok {
			return o
		}
		i := strings.LastIndex(path, sep)
		if i < 0 || !strings.Contains(path, sep+"config") {
			return Origin{}
		}
		path = path[:i]
	}
}

func masked(n *node, v any) any {
	if !n.secret {
		return v
	}
	l, ok := v.([]any)
	if !ok {
		return v
	}
	out := make([]any, len(l))
	for i := range out {
		out[i] = "********"
	}
	return out
}

func (c *Config) showBlock(b *bytes.Buffer, n *node, v reflect.Value, path, indent string) {
	type line struct{ key, value, origin string }
	var lines []line
	keyWidth, valueWidth := 0, 0
	for _, k := range n.children {
		if k.kind != leaf {
			continue
		}
		p := join(path, k.name)
		l := line{k.name, literal(masked(k, plain(v.Field(k.field)))), c.originOf(p).String()}
		keyWidth = max(keyWidth, len(l.key))
		if len(l.value) < 60 {
			valueWidth = max(valueWidth, len(l.value))
		}
		lines = append(lines, l)
	}
	for _, l := range lines {
		fmt.Fprintf(b, "%s%-*s = %-*s # %s\n", indent, keyWidth, l.key, valueWidth, l.value, l.origin)
	}
	for _, k := range n.children {
		p := k.name
		if path != "" {
			p = join(path, k.name)
		}
		f := v.Field(k.field)
		space := func() {
			if b.Len() > 0 && !bytes.HasSuffix(b.Bytes(), []byte("{\n")) {
				b.WriteByte('\n')
			}
		}
		switch k.kind {
		case block:
			space()
			fmt.Fprintf(b, "%s%s {\n", indent, k.name)
			c.showBlock(b, k, f, p, indent+"  ")
			fmt.Fprintf(b, "%s}\n", indent)
		case labelled:
			for i := range f.Len() {
				space()
				label := labelOf(f.Index(i))
				fmt.Fprintf(b, "%s%s %s {\n", indent, k.name, literal(label))
				c.showBlock(b, k, f.Index(i), join(p, label), indent+"  ")
				fmt.Fprintf(b, "%s}\n", indent)
			}
		case free:
			m, _ := f.Interface().(map[string]any)
			if len(m) == 0 {
				continue
			}
			space()
			fmt.Fprintf(b, "%s%s { # %s\n", indent, k.name, c.originOf(p))
			for _, key := range slices.Sorted(maps.Keys(m)) {
				fmt.Fprintf(b, "%s  %s = %s\n", indent, key, literal(m[key]))
			}
			fmt.Fprintf(b, "%s}\n", indent)
		}
	}
}

// marshalBody writes maps as Parser.Unmarshal gives them.
func marshalBody(b *bytes.Buffer, n *node, m map[string]any, indent string) error {
	for _, key := range slices.Sorted(maps.Keys(m)) {
		c := n.child(key)
		switch {
		case c == nil:
			return fmt.Errorf("write configuration: unknown key %q", key)
		case c.kind == leaf:
			fmt.Fprintf(b, "%s%s = %s\n", indent, key, literal(m[key]))
			continue
		}
		content, ok := m[key].(map[string]any)
		if !ok {
			return fmt.Errorf("write configuration: %s holds %T, want a map", key, m[key])
		}
		bodies := map[string]any{"": content}
		if c.kind == labelled {
			bodies = content
		}
		for _, label := range slices.Sorted(maps.Keys(bodies)) {
			head := key
			if c.kind == labelled {
				head += " " + literal(label)
			}
			fmt.Fprintf(b, "%s%s {\n", indent, head)
			inner, ok := bodies[label].(map[string]any)
			if !ok {
				return fmt.Errorf("write configuration: %s holds %T, want a map", head, bodies[label])
			}
			if c.kind == free {
				for _, k := range slices.Sorted(maps.Keys(inner)) {
					fmt.Fprintf(b, "%s  %s = %s\n", indent, k, literal(inner[k]))
				}
			} else if err := marshalBody(b, c, inner, indent+"  "); err != nil {
				return err
			}
			fmt.Fprintf(b, "%s}\n", indent)
		}
	}
	return nil
}

// literal writes a value as HCL.
func literal(v any) string {
	switch v := v.(type) {
	case string:
		return quote(v)
	case bool:
		return strconv.FormatBool(v)
	case time.Duration:
		return quote(durationText(v))
	case Size:
		return quote(v.String())
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1e15 {
			return strconv.FormatFloat(v, 'f', -1, 64)
		}
		return strconv.FormatFloat(v, 'g', -1, 64)
	case []any:
		items := make([]string, len(v))
		for i := range v {
			items[i] = literal(v[i])
		}
		return "[" + strings.Join(items, ", ") + "]"
	case map[string]any:
		var items []string
		for _, k := range slices.Sorted(maps.Keys(v)) {
			items = append(items, quote(k)+" = "+literal(v[k]))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	if r := reflect.ValueOf(v); r.Kind() == reflect.Slice {
		items := make([]string, r.Len())
		for i := range items {
			items[i] = literal(r.Index(i).Interface())
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// quote writes an HCL string: $ and % start templates only before a brace.
func quote(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for i, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\r':
			b.WriteString(`\r`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04x`, r)
		case (r == '$' || r == '%') && strings.HasPrefix(s[i+1:], "{"):
			b.WriteRune(r)
			b.WriteRune(r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}
