package conf

import (
	"bytes"
	"fmt"
	"math/big"
	"os"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/function"
)

// Bounds of a file. Configuration is short; these keep a broken or hostile file from eating the stack of the recursive parser.
const (
	maxFile    = 256 << 10 // bytes
	maxNesting = 64        // open brackets, braces and templates
	maxDigits  = 64        // of one number, its exponent at most maxExponent
)

// Parser reads HCL v2 as a koanf.Parser and checks it against the schema of Config.
//
// Labelled blocks become map[kind][label], other blocks map[kind]; values are string, bool, int64, float64, []any and map[string]any. Expressions
// may use arithmetic, string templates and env("NAME"); there are no variables. All problems of a file are reported at once.
// One goroutine at a time; after Unmarshal the parser knows where each value stands.
type Parser struct {
	File   string                   // for positions in messages
	Getenv func(name string) string // behind env("NAME"); nil = os.Getenv

	positions map[string]Origin   // of values, by path
	labels    map[string][]string // of a kind, in the order of the file
	partial   map[string]any      // what could be read of a file with problems; nil where its syntax is broken
}

// Unmarshal implements koanf.Parser.
func (p *Parser) Unmarshal(src []byte) (map[string]any, error) {
	p.positions = map[string]Origin{}
	p.labels = map[string][]string{}
	p.partial = nil
	var problems list
	if p.bounded(src, &problems); len(problems) > 0 {
		return nil, problems.join()
	}
	file, diags := hclsyntax.ParseConfig(src, p.File, hcl.InitialPos)
	if diags.HasErrors() {
		p.diagnose(diags, &problems)
		return nil, problems.join()
	}
	out := p.body(schema, file.Body.(*hclsyntax.Body), "", &problems)
	p.partial = out
	if err := problems.join(); err != nil {
		return nil, err
	}
	return out, nil
}

// Marshal implements koanf.Parser for the maps that Unmarshal gives.
func (p *Parser) Marshal(m map[string]any) ([]byte, error) {
	var b bytes.Buffer
	if err := marshalBody(&b, schema, m, ""); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func (p *Parser) origin(r hcl.Range) Origin {
	return Origin{Source: FromFile, Name: p.File, Line: r.Start.Line, Column: r.Start.Column}
}

// bounded refuses what the recursive parser could not survive.
func (p *Parser) bounded(src []byte, problems *list) {
	if len(src) > maxFile {
		problems.add(Origin{Source: FromFile, Name: p.File, Line: 1, Column: 1}, "the file has %d bytes; a configuration has at most %d", len(src), maxFile)
		return
	}
	tokens, _ := hclsyntax.LexConfig(src, p.File, hcl.InitialPos)
	depth, run := 0, 0
	for _, t := range tokens {
		switch t.Type {
		case hclsyntax.TokenOBrace, hclsyntax.TokenOBrack, hclsyntax.TokenOParen, hclsyntax.TokenTemplateInterp, hclsyntax.TokenTemplateControl, hclsyntax.TokenOQuote, hclsyntax.TokenOHeredoc:
			depth++
		case hclsyntax.TokenCBrace, hclsyntax.TokenCBrack, hclsyntax.TokenCParen, hclsyntax.TokenTemplateSeqEnd, hclsyntax.TokenCQuote, hclsyntax.TokenCHeredoc:
			depth--
		}
		switch t.Type { // prefix operators and conditionals recurse without brackets
		case hclsyntax.TokenMinus, hclsyntax.TokenBang, hclsyntax.TokenQuestion:
			run++
		case hclsyntax.TokenNewline:
			run = 0
		}
		if depth > maxNesting || run > maxNesting {
			problems.add(p.origin(t.Range), "nested deeper than %d levels", maxNesting)
			return
		}
		if t.Type == hclsyntax.TokenNumberLit {
			exponent := ""
			if i := bytes.IndexAny(t.Bytes, "eE"); i >= 0 {
				exponent = strings.TrimLeft(string(t.Bytes[i+1:]), "+-0")
			}
			if len(t.Bytes) > maxDigits || len(exponent) > 2 {
				problems.add(p.origin(t.Range), "the number is too long or too large")
				return
			}
		}
	}
}

func (p *Parser) diagnose(diags hcl.Diagnostics, problems *list) {
	for _, d := range diags {
		if d.Severity != hcl.DiagError {
			continue
		}
		o := Origin{Source: FromFile, Name: p.File, Line: 1, Column: 1}
		if d.Subject != nil {
			o = p.origin(*d.Subject)
		}
		text := strings.TrimSuffix(d.Summary, ".")
		if d.Detail != "" {
			text += ": " + strings.TrimSuffix(strings.ReplaceAll(d.Detail, "\n", " "), ".")
		}
		problems.add(o, "%s", text)
	}
}

// body reads a block whose schema is n into a map.
func (p *Parser) body(n *node, body *hclsyntax.Body, path string, problems *list) map[string]any {
	out := map[string]any{}
	in := func(name string) string {
		if path == "" {
			return name
		}
		return join(path, name)
	}
	where := ""
	if path != "" {
		where = " in " + display(path)
	}
	for _, a := range body.Attributes {
		c := n.child(a.Name)
		switch {
		case c == nil:
			p.unknown(n, a.Name, where, a.NameRange, problems)
			continue
		case c.kind == labelled:
			problems.add(p.origin(a.NameRange), "%s is a block with a label; write %s \"NAME\" { ... }", a.Name, a.Name)
			continue
		case c.kind == block || c.kind == free:
			problems.add(p.origin(a.NameRange), "%s is a block; write %s { ... } without =", a.Name, a.Name)
			continue
		}
		p.value(out, a, in(a.Name), problems)
	}
	seen := map[string]hcl.Range{}
	for _, b := range body.Blocks {
		c := n.child(b.Type)
		at := b.TypeRange
		switch {
		case c == nil:
			p.unknown(n, b.Type, where, at, problems)
			continue
		case c.kind == leaf:
			problems.add(p.origin(at), "%s%s is a value, not a block; write %s = and %s", b.Type, where, b.Type, c.want())
			continue
		case c.kind == labelled && len(b.Labels) != 1:
			problems.add(p.origin(at), "%s needs one label, found %d; write %s \"NAME\" { ... }", b.Type, len(b.Labels), b.Type)
			continue
		case c.kind != labelled && len(b.Labels) > 0:
			problems.add(p.origin(b.LabelRanges[0]), "%s takes no label, found %q; write %s { ... }", b.Type, b.Labels[0], b.Type)
			continue
		}
		key := b.Type
		target := in(b.Type)
		if c.kind == labelled {
			label := b.Labels[0]
			if msg := badLabel(label); msg != "" {
				problems.add(p.origin(b.LabelRanges[0]), "%s label %q %s", b.Type, label, msg)
				continue
			}
			key, target = join(b.Type, label), join(target, label)
			at = b.LabelRanges[0]
		}
		if first, ok := seen[key]; ok {
			problems.add(p.origin(at), "%s is already set at line %d; a block may stand once", display(target), first.Start.Line)
			continue
		}
		seen[key] = at
		p.positions[target] = p.origin(b.TypeRange)
		var content map[string]any
		if c.kind == free {
			content = p.freeBody(b.Body, target, problems)
		} else {
			content = p.body(c, b.Body, target, problems)
		}
		if c.kind != labelled {
			out[b.Type] = content
			continue
		}
		kind, _ := out[b.Type].(map[string]any)
		if kind == nil {
			kind = map[string]any{}
			out[b.Type] = kind
		}
		kind[b.Labels[0]] = content
		p.labels[b.Type] = append(p.labels[b.Type], b.Labels[0])
	}
	return out
}

// freeBody reads a block without a schema of ours.
func (p *Parser) freeBody(body *hclsyntax.Body, path string, problems *list) map[string]any {
	out := map[string]any{}
	for _, a := range body.Attributes {
		p.value(out, a, join(path, a.Name), problems)
	}
	for _, b := range body.Blocks {
		if _, ok := out[b.Type]; ok || len(b.Labels) > 0 {
			problems.add(p.origin(b.TypeRange), "%s in %s: blocks here stand once and take no label", b.Type, display(path))
			continue
		}
		p.positions[join(path, b.Type)] = p.origin(b.TypeRange)
		out[b.Type] = p.freeBody(b.Body, join(path, b.Type), problems)
	}
	return out
}

func (p *Parser) unknown(n *node, name, where string, at hcl.Range, problems *list) {
	text := fmt.Sprintf("unknown key %q%s", name, where)
	if above := blocksWith(name); n == schema && above != "" {
		text += "; it belongs into " + above + " { ... }"
	} else if near := nearest(name, n.names()); near != "" {
		text += fmt.Sprintf("; did you mean %q?", near)
	} else {
		text += "; known are " + strings.Join(n.names(), ", ")
	}
	problems.add(p.origin(at), "%s", text)
}

// blocksWith names a block of the first level that has the key, for keys that stand outside their block.
func blocksWith(key string) string {
	for _, c := range schema.children {
		if c.child(key) != nil {
			return c.name
		}
	}
	return ""
}

func badLabel(label string) string {
	switch {
	case label == "":
		return "is empty"
	case len(label) > 200:
		return "is longer than 200 bytes"
	}
	for _, r := range label {
		if r < ' ' || r == 0x7f || r == '"' || r == '\\' || r == '\uFFFD' {
			return "holds a quote, a backslash or a control character"
		}
	}
	return ""
}

func (p *Parser) value(out map[string]any, a *hclsyntax.Attribute, path string, problems *list) {
	var bad *hcl.Range
	_ = hclsyntax.VisitAll(a.Expr, func(e hclsyntax.Node) hcl.Diagnostics {
		switch e.(type) {
		case *hclsyntax.ForExpr, *hclsyntax.SplatExpr:
			if bad == nil {
				r := e.Range()
				bad = &r
			}
		}
		return nil
	})
	if bad != nil {
		problems.add(p.origin(*bad), "%s: for and [*] are not available here; write the list out", display(path))
		return
	}
	v, diags := a.Expr.Value(&hcl.EvalContext{Functions: map[string]function.Function{"env": p.envFunction()}})
	if diags.HasErrors() {
		p.diagnose(diags, problems)
		return
	}
	native, err := nativeOf(v)
	if err != nil {
		problems.add(p.origin(a.Expr.Range()), "%s: %v", display(path), err)
		return
	}
	out[a.Name] = native
	p.positions[path] = p.origin(a.Expr.Range())
}

func (p *Parser) envFunction() function.Function {
	getenv := p.Getenv
	if getenv == nil {
		getenv = os.Getenv
	}
	return function.New(&function.Spec{
		Params: []function.Parameter{{Name: "name", Type: cty.String}},
		Type:   function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			name := args[0].AsString()
			text := getenv(name)
			if text == "" {
				return cty.NilVal, fmt.Errorf("the environment variable %s is not set or empty", name)
			}
			return cty.StringVal(text), nil
		},
	})
}

// nativeOf turns a value of HCL into plain Go.
func nativeOf(v cty.Value) (any, error) {
	if v.IsNull() {
		return nil, fmt.Errorf("null is not a value; leave the key out for its default")
	}
	if !v.IsWhollyKnown() {
		return nil, fmt.Errorf("the value is not known")
	}
	t := v.Type()
	switch {
	case t == cty.String:
		return v.AsString(), nil
	case t == cty.Bool:
		return v.True(), nil
	case t == cty.Number:
		f := v.AsBigFloat()
		if f.IsInf() {
			return nil, fmt.Errorf("the number is not finite")
		}
		if i, accuracy := f.Int64(); accuracy == big.Exact {
			return i, nil
		}
		x, _ := f.Float64()
		return x, nil
	case t.IsTupleType() || t.IsListType() || t.IsSetType():
		out := []any{}
		for it := v.ElementIterator(); it.Next(); {
			_, e := it.Element()
			x, err := nativeOf(e)
			if err != nil {
				return nil, err
			}
			out = append(out, x)
		}
		return out, nil
	case t.IsObjectType() || t.IsMapType():
		out := map[string]any{}
		for it := v.ElementIterator(); it.Next(); {
			k, e := it.Element()
			x, err := nativeOf(e)
			if err != nil {
				return nil, err
			}
			out[k.AsString()] = x
		}
		return out, nil
	}
	return nil, fmt.Errorf("a value of type %s cannot stand here", t.FriendlyName())
}
