package grammar

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// jsonFrames bounds the nesting of generated JSON, below pyjson.MaxDepth.
const jsonFrames = 120

// types is a set of JSON types. A number is whole or not.
type types uint8

const (
	typeString types = 1 << iota
	typeWhole
	typeFraction
	typeBool
	typeNull
	typeObject
	typeArray

	typeNumber = typeWhole | typeFraction
	typeAny    = 1<<iota - 1
)

var typeNames = map[string]types{"string": typeString, "number": typeNumber, "integer": typeWhole, "boolean": typeBool, "null": typeNull,
	"object": typeObject, "array": typeArray}

// ref is a schema in the document.
type ref struct {
	v   *pyjson.Value
	ptr string
}

// conj is schemas that all hold. Empty: anything.
type conj []ref

// property is a declared property.
type property struct {
	key      string
	value    conj
	required bool
}

// alternative is a schema without references and combinations: what one arm of a union says.
type alternative struct {
	types     types
	mentioned types // types that some keyword speaks of
	enum      []pyjson.Value
	hasEnum   bool

	minLength, maxLength int // characters; -1 no bound
	patterns             []pattern

	number    numberRule
	multiples []ref

	props              []property
	required           []ref // names that are not declared
	rest               conj  // additionalProperties
	hasRest            bool
	minProps, maxProps int

	prefix             []conj
	items              conj
	minItems, maxItems int

	ptr string
}

type pattern struct {
	expr   string
	search bool
	ptr    string
}

// schemaCompiler turns a JSON Schema into a part of a grammar.
type schemaCompiler struct {
	b         *builder
	root      *pyjson.Value
	opts      Options
	tool      string
	rules     map[string]int32
	ids       map[*pyjson.Value]uint32
	memo      map[string][]*alternative
	unchecked []string
	conflict  *Error // the first contradiction met: why nothing matches, if nothing does
	depth     int
}

func newSchemaCompiler(b *builder, text []byte, opts Options) (*schemaCompiler, error) {
	if len(text) > MaxSchemaBytes {
		return nil, &Error{Kind: TooLarge, Reason: fmt.Sprintf("the schema has %d bytes, at most %d are possible", len(text), MaxSchemaBytes)}
	}
	root, err := pyjson.Parse(text)
	if err != nil {
		return nil, &Error{Kind: Invalid, Reason: "the schema is not JSON: " + err.Error()}
	}
	return &schemaCompiler{b: b, root: &root, opts: opts, rules: map[string]int32{}, ids: map[*pyjson.Value]uint32{}, memo: map[string][]*alternative{}}, nil
}

// compile builds the whole schema.
func (s *schemaCompiler) compile(enc encode, next int32) (int32, error) {
	n := s.value(conj{{s.root, ""}}, next)
	if !s.satisfiable(n) {
		return 0, s.noText()
	}
	return n, nil
}

// satisfiable says whether some text leads from a node to the end of the grammar built so far.
func (s *schemaCompiler) satisfiable(n int32) bool {
	probe := *s.b
	probe.nodes = slices.Clone(s.b.nodes)
	for i := range probe.nodes {
		probe.nodes[i].outs = slices.Clone(probe.nodes[i].outs)
	}
	probe.rules = slices.Clone(s.b.rules)
	return probe.finish(n)
}

func (s *schemaCompiler) noText() error {
	if s.conflict != nil {
		return s.conflict
	}
	return &Error{Kind: Unsatisfiable, Tool: s.tool, Reason: "no value satisfies the schema"}
}

func (s *schemaCompiler) fail(kind ErrorKind, ptr, format string, args ...any) {
	s.b.fail(&Error{Kind: kind, Pointer: ptr, Tool: s.tool, Reason: fmt.Sprintf(format, args...)})
}

// contradiction notes why a part of the schema has no value. That is no error by itself: an optional property may have none.
func (s *schemaCompiler) contradiction(ptr, format string, args ...any) {
	if s.conflict == nil {
		s.conflict = &Error{Kind: Unsatisfiable, Pointer: ptr, Tool: s.tool, Reason: fmt.Sprintf(format, args...)}
	}
}

// unchecked notes a keyword that masks do not enforce.
func (s *schemaCompiler) note(ptr string) {
	if !slices.Contains(s.unchecked, ptr) && len(s.unchecked) < 1000 {
		s.unchecked = append(s.unchecked, ptr)
	}
}

func (s *schemaCompiler) unsupported(ptr, format string, args ...any) {
	if s.opts.Lenient {
		s.note(ptr)
		return
	}
	s.fail(Unsupported, ptr, format, args...)
}

func escapePointer(key string) string {
	return strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// resolve finds what a $ref points to.
func (s *schemaCompiler) resolve(r string, at string) ref {
	path, local := strings.CutPrefix(r, "#")
	if !local || path != "" && path[0] != '/' {
		s.fail(Unsupported, at, "reference %q: only references into the same document (#/…) are supported", clip(r))
	}
	v := s.root
	if path == "" {
		return ref{v, ""}
	}
	for part := range strings.SplitSeq(path[1:], "/") {
		part = unescapePercent(part)
		part = strings.ReplaceAll(strings.ReplaceAll(part, "~1", "/"), "~0", "~")
		switch v.Kind {
		case pyjson.Object:
			v = v.Get(part)
		case pyjson.Array:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(v.Elems) {
				v = nil
			} else {
				v = &v.Elems[i]
			}
		default:
			v = nil
		}
		if v == nil {
			s.fail(Invalid, at, "reference %q points to nothing", clip(r))
		}
	}
	return ref{v, path}
}

func unescapePercent(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	var b []byte
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) && isHex(s[i+1:i+3]) {
			n, _ := strconv.ParseUint(s[i+1:i+3], 16, 8)
			b = append(b, byte(n))
			i += 2
			continue
		}
		b = append(b, s[i])
	}
	return string(b)
}

// annotations are the keywords that constrain nothing beside a reference.
func annotation(key string) bool {
	switch key {
	case "title", "description", "default", "examples", "example", "$comment", "$schema", "$id", "id", "$defs", "definitions", "deprecated", "readOnly", "writeOnly",
		"$anchor", "contentMediaType", "contentEncoding", "nullable":
		return true
	}
	return false
}

// normal follows references that say nothing else, drops repetitions, and orders nothing: the first schema gives the property order.
func (s *schemaCompiler) normal(c conj) conj {
	out := make(conj, 0, len(c))
next:
	for _, r := range c {
		for hops := 0; hops < 100 && s.onlyRef(r.v); hops++ {
			r = s.resolve(r.v.Get("$ref").Text, r.ptr+"/$ref")
		}
		for _, o := range out {
			if o.v == r.v {
				continue next
			}
		}
		out = append(out, r)
	}
	return out
}

// onlyRef says whether a schema is a reference and nothing else that constrains.
func (s *schemaCompiler) onlyRef(v *pyjson.Value) bool {
	if r := v.Get("$ref"); r == nil || r.Kind != pyjson.String {
		return false
	}
	for i := range v.Members {
		if k := v.Members[i].Key; k != "$ref" && (!annotation(k) || k == "nullable") {
			return false
		}
	}
	return true
}

// key identifies a conjunction.
func (s *schemaCompiler) key(c conj) string {
	var b []byte
	for _, r := range c {
		id, ok := s.ids[r.v]
		if !ok {
			id = uint32(len(s.ids))
			s.ids[r.v] = id
		}
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	return string(b)
}

// maxAlternatives bounds the arms of one union after unions inside unions are written out.
const maxAlternatives = 1024

// alternatives gives the arms of a conjunction.
func (s *schemaCompiler) alternatives(c conj) []*alternative {
	k := s.key(c)
	if list, ok := s.memo[k]; ok {
		return list
	}
	list := []*alternative{unconstrained()}
	for _, r := range c {
		list = s.cross(list, s.expand(r, nil), r.ptr)
	}
	out := list[:0]
	for _, a := range list {
		if a.types == typeAny && a.mentioned != 0 && !a.hasEnum {
			a.types = a.mentioned // keywords of one type and no type given: that type is meant
		}
		if a.types == 0 {
			continue
		}
		if s.opts.Closed && !a.hasRest && a.mentioned&typeObject != 0 {
			a.rest, a.hasRest = conj{{falseSchema, a.ptr}}, true
		}
		out = append(out, a)
	}
	s.memo[k] = out
	return out
}

// falseSchema stands for additionalProperties where Options.Closed adds it.
var falseSchema = &pyjson.Value{Kind: pyjson.False}

func unconstrained() *alternative {
	return &alternative{types: typeAny, maxLength: -1, maxProps: -1, maxItems: -1, number: numberRule{places: -1}}
}

func (s *schemaCompiler) cross(a, b []*alternative, ptr string) []*alternative {
	if len(a)*len(b) > maxAlternatives {
		s.fail(TooLarge, ptr, "%d x %d combinations of alternatives, at most %d are possible", len(a), len(b), maxAlternatives)
	}
	var out []*alternative
	for _, x := range a {
		for _, y := range b {
			if z := s.merge(x, y); z != nil {
				out = append(out, z)
			}
		}
	}
	return out
}

// expand writes out one schema. open are the references being followed: coming back to one without having entered a property or an
// item adds nothing to a union and makes an intersection empty.
func (s *schemaCompiler) expand(r ref, open []*pyjson.Value) []*alternative {
	switch r.v.Kind {
	case pyjson.True:
		return []*alternative{unconstrained()}
	case pyjson.False:
		s.contradiction(r.ptr, "the schema false allows nothing")
		return nil
	case pyjson.Object:
	default:
		s.fail(Invalid, r.ptr, "a schema is an object or a boolean")
	}
	if slices.Contains(open, r.v) {
		s.contradiction(r.ptr, "the schema refers to itself and nothing else")
		return nil
	}
	if len(open) > 200 {
		s.fail(TooLarge, r.ptr, "references are nested more than 200 deep")
	}
	open = append(slices.Clip(open), r.v)
	list := s.keywords(r)
	for i := range r.v.Members {
		m := &r.v.Members[i]
		ptr := r.ptr + "/" + escapePointer(m.Key)
		switch m.Key {
		case "$ref":
			if m.Value.Kind != pyjson.String {
				s.fail(Invalid, ptr, "a reference is a string")
			}
			list = s.cross(list, s.expand(s.resolve(m.Value.Text, ptr), open), ptr)
		case "anyOf", "oneOf":
			var arms []*alternative
			for _, arm := range s.schemas(&m.Value, ptr) {
				arms = append(arms, s.expand(arm, open)...)
				if len(arms) > maxAlternatives {
					s.fail(TooLarge, ptr, "more than %d alternatives", maxAlternatives)
				}
			}
			if m.Key == "oneOf" && len(m.Value.Elems) > 1 {
				s.note(ptr) // enforced as anyOf
			}
			list = s.cross(list, arms, ptr)
		case "allOf":
			for _, part := range s.schemas(&m.Value, ptr) {
				list = s.cross(list, s.expand(part, open), ptr)
			}
		}
	}
	if n := r.v.Get("nullable"); n != nil && n.Kind == pyjson.True {
		null := unconstrained()
		null.types = typeNull
		list = append(list, null)
	}
	return list
}

func (s *schemaCompiler) schemas(v *pyjson.Value, ptr string) []ref {
	if v.Kind != pyjson.Array || len(v.Elems) == 0 {
		s.fail(Invalid, ptr, "an array of at least one schema is needed")
	}
	list := make([]ref, len(v.Elems))
	for i := range v.Elems {
		list[i] = ref{&v.Elems[i], ptr + "/" + strconv.Itoa(i)}
	}
	return list
}

func (s *schemaCompiler) size(v *pyjson.Value, ptr string, limit int) int {
	n, err := strconv.Atoi(strings.TrimSuffix(v.Text, ".0"))
	if v.Kind != pyjson.Number || err != nil || n < 0 {
		s.fail(Invalid, ptr, "a whole number, 0 or more, is needed")
	}
	if n > limit {
		s.fail(TooLarge, ptr, "%d is too large, at most %d is possible", n, limit)
	}
	return n
}

// keywords reads what a schema says without its references and combinations.
func (s *schemaCompiler) keywords(r ref) []*alternative {
	a := unconstrained()
	a.ptr = r.ptr
	var required, prefix, extra *ref
	for i := range r.v.Members {
		m := &r.v.Members[i]
		v, ptr := &m.Value, r.ptr+"/"+escapePointer(m.Key)
		sub := ref{v, ptr}
		switch m.Key {
		case "type":
			a.types = 0
			list := []pyjson.Value{*v}
			if v.Kind == pyjson.Array {
				list = v.Elems
			}
			for i := range list {
				t, ok := typeNames[list[i].Text]
				if list[i].Kind != pyjson.String || !ok {
					s.fail(Invalid, ptr, "unknown type %s", clip(list[i].String(pyjson.Python)))
				}
				a.types |= t
			}
		case "enum":
			if v.Kind != pyjson.Array {
				s.fail(Invalid, ptr, "an array of values is needed")
			}
			if len(v.Elems) > MaxEnum {
				s.fail(TooLarge, ptr, "%d values, at most %d are possible", len(v.Elems), MaxEnum)
			}
			a.restrict(v.Elems)
			if len(a.enum) == 0 {
				s.contradiction(ptr, "no value is left")
			}
		case "const":
			a.restrict([]pyjson.Value{*v})
			if len(a.enum) == 0 {
				s.contradiction(ptr, "the value is not one of enum")
			}

		case "minLength":
			a.mentioned |= typeString
			a.minLength = s.size(v, ptr, MaxLength)
		case "maxLength":
			a.mentioned |= typeString
			a.maxLength = s.size(v, ptr, 1<<30)
			if a.maxLength >= MaxLength {
				a.maxLength = -1
				s.note(ptr)
			}
		case "pattern":
			a.mentioned |= typeString
			if v.Kind != pyjson.String {
				s.fail(Invalid, ptr, "a regular expression is needed")
			}
			a.patterns = append(a.patterns, pattern{v.Text, true, ptr})
		case "format":
			if v.Kind != pyjson.String {
				s.fail(Invalid, ptr, "the name of a format is needed")
			}
			if f, ok := formats[v.Text]; ok {
				a.mentioned |= typeString
				a.patterns = append(a.patterns, pattern{f, false, ptr})
			} else {
				s.note(ptr) // an annotation, by the standard
			}

		case "minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum":
			a.mentioned |= typeNumber
			s.limit(a, r, m.Key, v, ptr)
		case "multipleOf":
			a.mentioned |= typeNumber
			a.multiples = append(a.multiples, sub)

		case "properties":
			a.mentioned |= typeObject
			if v.Kind != pyjson.Object {
				s.fail(Invalid, ptr, "an object of schemas is needed")
			}
			for i := range v.Members {
				p := &v.Members[i]
				a.props = append(a.props, property{key: p.Key, value: conj{{&p.Value, ptr + "/" + escapePointer(p.Key)}}})
			}
		case "required":
			required = &sub
		case "additionalProperties":
			a.mentioned |= typeObject
			a.rest, a.hasRest = conj{sub}, true
		case "minProperties":
			a.mentioned |= typeObject
			a.minProps = s.size(v, ptr, MaxRepeat)
		case "maxProperties":
			a.mentioned |= typeObject
			a.maxProps = s.size(v, ptr, MaxRepeat)

		case "items":
			a.mentioned |= typeArray
			if v.Kind == pyjson.Array { // before 2020-12
				prefix = &sub
			} else {
				a.items = conj{sub}
			}
		case "prefixItems":
			a.mentioned |= typeArray
			prefix = &sub
		case "additionalItems":
			extra = &sub
		case "minItems":
			a.mentioned |= typeArray
			a.minItems = s.size(v, ptr, MaxRepeat)
		case "maxItems":
			a.mentioned |= typeArray
			a.maxItems = s.size(v, ptr, MaxRepeat)
		case "uniqueItems":
			if v.Kind == pyjson.True {
				s.note(ptr)
			}

		case "patternProperties", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "dependencies", "contains", "minContains",
			"maxContains", "propertyNames", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "$recursiveRef":
			s.unsupported(ptr, "the keyword %s is not supported", m.Key)
		}
	}
	if required != nil {
		a.mentioned |= typeObject
		if required.v.Kind != pyjson.Array {
			s.fail(Invalid, required.ptr, "an array of names is needed")
		}
		for i := range required.v.Elems {
			e := &required.v.Elems[i]
			if e.Kind != pyjson.String {
				s.fail(Invalid, required.ptr+"/"+strconv.Itoa(i), "a name is needed")
			}
			a.require(ref{e, required.ptr + "/" + strconv.Itoa(i)})
		}
	}
	if prefix != nil {
		list := []ref{}
		if len(prefix.v.Elems) > 0 {
			list = s.schemas(prefix.v, prefix.ptr)
		}
		for _, x := range list {
			a.prefix = append(a.prefix, conj{x})
		}
		if extra != nil && a.items == nil {
			a.items = conj{*extra}
		}
	}
	return []*alternative{a}
}

func (a *alternative) require(name ref) {
	for i := range a.props {
		if a.props[i].key == name.v.Text {
			a.props[i].required = true
			return
		}
	}
	for _, r := range a.required {
		if r.v.Text == name.v.Text {
			return
		}
	}
	a.required = append(a.required, name)
}

// restrict keeps the values that are in list.
func (a *alternative) restrict(list []pyjson.Value) {
	if !a.hasEnum {
		a.enum, a.hasEnum = list, true
		return
	}
	in := map[string]bool{}
	for i := range list {
		in[canonical(&list[i])] = true
	}
	var keep []pyjson.Value
	for i := range a.enum {
		if in[canonical(&a.enum[i])] {
			keep = append(keep, a.enum[i])
		}
	}
	a.enum = keep
}

// canonical is equal for equal values, whatever the order of keys and the spelling of numbers.
func canonical(v *pyjson.Value) string {
	switch v.Kind {
	case pyjson.Number:
		if d, err := parseDecimal(v.Text); err == nil {
			return d.rat().RatString()
		}
	case pyjson.Array:
		var b strings.Builder
		b.WriteByte('[')
		for i := range v.Elems {
			b.WriteString(canonical(&v.Elems[i]) + ",")
		}
		return b.String() + "]"
	case pyjson.Object:
		var list []string
		for i := range v.Members {
			list = append(list, string(pyjson.AppendString(nil, v.Members[i].Key))+canonical(&v.Members[i].Value))
		}
		slices.Sort(list)
		return "{" + strings.Join(list, ",") + "}"
	}
	return v.String(pyjson.Python)
}

// limit reads a bound of a number, in the numeric form or in that of draft 4 (a flag beside minimum or maximum).
func (s *schemaCompiler) limit(a *alternative, r ref, key string, v *pyjson.Value, ptr string) {
	low := strings.HasSuffix(key, "inimum")
	strict := strings.HasPrefix(key, "exclusive")
	if strict && (v.Kind == pyjson.True || v.Kind == pyjson.False) {
		return
	}
	if !strict {
		flag := "exclusiveMaximum"
		if low {
			flag = "exclusiveMinimum"
		}
		if f := r.v.Get(flag); f != nil && f.Kind == pyjson.True {
			strict = true
		}
	}
	if v.Kind != pyjson.Number {
		s.fail(Invalid, ptr, "a number is needed")
	}
	d, err := parseDecimal(v.Text)
	if err != nil {
		s.fail(Invalid, ptr, "%v", err)
	}
	b := bound{set: true, strict: strict, at: d}
	if low {
		a.number.lo = tighter(a.number.lo, b, 1)
	} else {
		a.number.hi = tighter(a.number.hi, b, -1)
	}
}

// tighter gives the stronger of two bounds; sign is 1 for lower bounds, -1 for upper.
func tighter(a, b bound, sign int) bound {
	switch {
	case !a.set:
		return b
	case !b.set:
		return a
	}
	c := sign * a.at.rat().Cmp(b.at.rat())
	if c > 0 || c == 0 && a.strict {
		return a
	}
	return b
}

// merge gives what satisfies both, nil when that is nothing.
func (s *schemaCompiler) merge(a, b *alternative) *alternative {
	z := *a
	if z.ptr == "" {
		z.ptr = b.ptr
	}
	z.types &= b.types
	if z.types == 0 {
		s.contradiction(b.ptr, "no type is left")
		return nil
	}
	z.mentioned |= b.mentioned
	z.enum = slices.Clone(a.enum)
	if b.hasEnum {
		z.restrict(b.enum)
		if len(z.enum) == 0 {
			s.contradiction(b.ptr, "no value is left")
			return nil
		}
	}
	z.minLength = max(a.minLength, b.minLength)
	z.maxLength = least(a.maxLength, b.maxLength)
	z.patterns = append(slices.Clip(a.patterns), b.patterns...)
	z.number.lo = tighter(a.number.lo, b.number.lo, 1)
	z.number.hi = tighter(a.number.hi, b.number.hi, -1)
	z.multiples = append(slices.Clip(a.multiples), b.multiples...)

	z.minProps = max(a.minProps, b.minProps)
	z.maxProps = least(a.maxProps, b.maxProps)
	z.props = nil
	for _, p := range a.props {
		i := slices.IndexFunc(b.props, func(q property) bool { return q.key == p.key })
		if i >= 0 {
			p.value = append(slices.Clip(p.value), b.props[i].value...)
			p.required = p.required || b.props[i].required
		} else if b.hasRest {
			p.value = append(slices.Clip(p.value), b.rest...)
		}
		z.props = append(z.props, p)
	}
	for _, p := range b.props {
		if slices.ContainsFunc(a.props, func(q property) bool { return q.key == p.key }) {
			continue
		}
		if a.hasRest {
			p.value = append(slices.Clip(p.value), a.rest...)
		}
		z.props = append(z.props, p)
	}
	z.rest = append(slices.Clip(a.rest), b.rest...)
	z.hasRest = a.hasRest || b.hasRest
	z.required = nil
	for _, r := range append(slices.Clip(a.required), b.required...) {
		z.require(r)
	}

	z.minItems = max(a.minItems, b.minItems)
	z.maxItems = least(a.maxItems, b.maxItems)
	z.prefix = nil
	for i := range max(len(a.prefix), len(b.prefix)) {
		z.prefix = append(z.prefix, append(slices.Clip(a.item(i)), b.item(i)...))
	}
	z.items = append(slices.Clip(a.items), b.items...)
	return &z
}

func (a *alternative) item(i int) conj {
	if i < len(a.prefix) {
		return a.prefix[i]
	}
	return a.items
}

func least(a, b int) int {
	if a < 0 {
		return b
	}
	if b < 0 {
		return a
	}
	return min(a, b)
}

// value builds a conjunction as JSON.
func (s *schemaCompiler) value(c conj, next int32) int32 {
	c = s.normal(c)
	if s.depth++; s.depth > MaxNesting {
		ptr := ""
		if len(c) > 0 {
			ptr = c[0].ptr
		}
		s.fail(TooLarge, ptr, "schemas are nested more than %d deep", MaxNesting)
	}
	defer func() { s.depth-- }()
	k := s.key(c)
	if r, ok := s.rules[k]; ok {
		return s.b.call(r, next)
	}
	list := s.alternatives(c)
	if len(list) == 1 && list[0].types == typeAny && !list[0].hasEnum {
		return s.b.call(s.anything(), next)
	}
	deep := false
	for _, a := range list {
		deep = deep || !a.hasEnum && a.types&(typeObject|typeArray) != 0
	}
	if !deep {
		return s.build(list, encodeJSON, next)
	}
	r := s.b.newRule()
	s.rules[k] = r
	start := s.build(list, encodeJSON, returnNode)
	s.b.rules[r].start = start
	return s.b.call(r, next)
}

// anything is the rule of any JSON value.
func (s *schemaCompiler) anything() int32 {
	const k = "any value"
	if r, ok := s.rules[k]; ok {
		return r
	}
	r := s.b.newRule()
	s.rules[k] = r
	a := unconstrained()
	start := s.build([]*alternative{a}, encodeJSON, returnNode)
	s.b.rules[r].start = start
	return r
}

// build builds alternatives: as JSON, or raw, where only strings have a form.
func (s *schemaCompiler) build(list []*alternative, enc encode, next int32) int32 {
	var outs []int32
	for _, a := range list {
		if a.hasEnum {
			if n, ok := s.enumeration(a, enc, next); ok {
				outs = append(outs, n)
			}
			continue
		}
		if a.types&typeString != 0 {
			outs = append(outs, s.str(a, enc, next))
		}
		if enc == encodeRaw {
			continue
		}
		if a.types&typeNumber != 0 {
			outs = append(outs, s.num(a, next))
		}
		if a.types&typeBool != 0 {
			outs = append(outs, s.b.literal("true", next), s.b.literal("false", next))
		}
		if a.types&typeNull != 0 {
			outs = append(outs, s.b.literal("null", next))
		}
		if a.types&typeObject != 0 {
			outs = append(outs, s.object(a, next))
		}
		if a.types&typeArray != 0 {
			outs = append(outs, s.array(a, next))
		}
	}
	return s.b.split(outs...)
}

// enumeration builds the values of enum that satisfy the rest.
func (s *schemaCompiler) enumeration(a *alternative, enc encode, next int32) (int32, bool) {
	var words []string
	seen := map[string]bool{}
	for i := range a.enum {
		v := &a.enum[i]
		if enc == encodeRaw && v.Kind != pyjson.String || !s.allows(a, v) {
			continue
		}
		w := v.Text
		if enc == encodeJSON {
			w = v.String(pyjson.Python)
		}
		if !seen[w] {
			seen[w] = true
			words = append(words, w)
		}
	}
	if len(words) == 0 {
		s.contradiction(a.ptr, "no value of enum satisfies the rest of the schema")
		return 0, false
	}
	return s.b.words(words, next), true
}

// allows says whether an enumerated value satisfies the scalar keywords beside it. Objects and arrays are checked by type alone; a schema
// that lists them next to other keywords is noted.
func (s *schemaCompiler) allows(a *alternative, v *pyjson.Value) bool {
	switch v.Kind {
	case pyjson.Null:
		return a.types&typeNull != 0
	case pyjson.True, pyjson.False:
		return a.types&typeBool != 0
	case pyjson.Object:
		if len(a.props)+len(a.required)+a.minProps > 0 || a.hasRest || a.maxProps >= 0 {
			s.note(a.ptr + "/enum")
		}
		return a.types&typeObject != 0
	case pyjson.Array:
		if len(a.prefix)+a.minItems > 0 || a.items != nil || a.maxItems >= 0 {
			s.note(a.ptr + "/enum")
		}
		return a.types&typeArray != 0
	case pyjson.Number:
		d, err := parseDecimal(v.Text)
		if err != nil {
			return false
		}
		if a.types&typeFraction == 0 && (a.types&typeWhole == 0 || d.frac != "") {
			return false
		}
		x := d.rat()
		if lo := a.number.lo; lo.set {
			if c := x.Cmp(lo.at.rat()); c < 0 || c == 0 && lo.strict {
				return false
			}
		}
		if hi := a.number.hi; hi.set {
			if c := x.Cmp(hi.at.rat()); c > 0 || c == 0 && hi.strict {
				return false
			}
		}
		for _, m := range a.multiples {
			s.note(m.ptr)
		}
		return true
	}
	if a.types&typeString == 0 {
		return false
	}
	n := utf8.RuneCountInString(v.Text)
	if n < a.minLength || a.maxLength >= 0 && n > a.maxLength {
		return false
	}
	for _, p := range a.patterns {
		if d := s.pattern(p, encodeRaw); d == nil || !d.match(v.Text) {
			return false
		}
	}
	return true
}

// pattern compiles a pattern of a string, quotes included in JSON.
func (s *schemaCompiler) pattern(p pattern, enc encode) *dfa {
	name := fmt.Sprint("pattern ", enc, p.search, p.expr)
	return s.b.regular(name, func() (*dfa, error) {
		r, err := parseRegex(p.expr, enc, p.search)
		if err != nil {
			if s.opts.Lenient {
				s.note(p.ptr)
				return stringOf(s.b.ctx, enc)
			}
			return nil, &Error{Kind: Unsupported, Pointer: p.ptr, Tool: s.tool, Reason: err.Error()}
		}
		if enc == encodeJSON {
			r = cat(lit(`"`), r, lit(`"`))
		}
		d, err := compileRx(s.b.ctx, r)
		if err == errTooLarge {
			err = &Error{Kind: TooLarge, Pointer: p.ptr, Tool: s.tool, Reason: fmt.Sprintf("the automaton of %q has more than %d states", clip(p.expr), maxStates)}
		}
		return d, err
	})
}

func stringAutomaton(ctx context.Context) (*dfa, error) {
	d, err := compileRx(ctx, cat(lit(`"`), star(jsonChar()), lit(`"`)))
	if err != nil {
		return nil, err
	}
	head := d.step(0, '"')
	return d.withCount(head, d.step(head, '"')), nil
}

func rawAutomaton(ctx context.Context) (*dfa, error) {
	d, err := compileRx(ctx, star(rawChar()))
	if err != nil {
		return nil, err
	}
	return d.withCount(0, -1), nil
}

// stringOf is any string, counted.
func stringOf(ctx context.Context, enc encode) (*dfa, error) {
	if enc == encodeJSON {
		return stringAutomaton(ctx)
	}
	return rawAutomaton(ctx)
}

// str builds a string.
func (s *schemaCompiler) str(a *alternative, enc encode, next int32) int32 {
	if a.maxLength >= 0 && a.minLength > a.maxLength {
		s.contradiction(a.ptr+"/minLength", "minLength %d is above maxLength %d", a.minLength, a.maxLength)
		return s.b.split()
	}
	free := func() *dfa {
		return s.b.regular(fmt.Sprint("string ", enc), func() (*dfa, error) { return stringOf(s.b.ctx, enc) })
	}
	if len(a.patterns) == 0 {
		return s.b.automaton(free(), a.minLength, a.maxLength, next)
	}
	d := s.pattern(a.patterns[0], enc)
	name := fmt.Sprint("both ", enc, a.patterns[0])
	both := func(more string, ptr string, other func() (*dfa, error)) {
		if d == nil {
			return
		}
		name += more
		x := d
		d = s.b.regular(name, func() (*dfa, error) {
			o, err := other()
			if err != nil || o == nil {
				return nil, err
			}
			r, err := intersect(s.b.ctx, x, o)
			if err == errTooLarge {
				err = &Error{Kind: TooLarge, Pointer: ptr, Tool: s.tool, Reason: "pattern and length together need too many states"}
			}
			return r, err
		})
	}
	for _, p := range a.patterns[1:] {
		both(fmt.Sprint(p), p.ptr, func() (*dfa, error) { return s.pattern(p, enc), nil })
	}
	if a.minLength > 0 || a.maxLength >= 0 {
		ptr := a.patterns[0].ptr
		both(fmt.Sprint(" length ", a.minLength, " ", a.maxLength), ptr, func() (*dfa, error) {
			r := repeat(enc.runes(everyRune), a.minLength, a.maxLength)
			if enc == encodeJSON {
				r = cat(lit(`"`), r, lit(`"`))
			}
			o, err := compileRx(s.b.ctx, r)
			if err == errTooLarge {
				err = &Error{Kind: TooLarge, Pointer: ptr, Tool: s.tool, Reason: "a pattern with a length this large is not possible"}
			}
			return o, err
		})
	}
	if d == nil {
		s.contradiction(a.patterns[0].ptr, "no string satisfies the pattern and what stands beside it")
	}
	if d != nil && d.counted { // a lenient schema whose patterns all were ignored
		return s.b.automaton(free(), a.minLength, a.maxLength, next)
	}
	return s.b.automaton(d, 0, -1, next)
}

// num builds a number.
func (s *schemaCompiler) num(a *alternative, next int32) int32 {
	rule := a.number
	rule.integer = a.types&typeFraction == 0
	for _, m := range a.multiples {
		d, err := parseDecimal(m.v.Text)
		if m.v.Kind != pyjson.Number || err != nil || d.neg || d.zero() {
			s.fail(Invalid, m.ptr, "a number above 0 is needed")
		}
		step, err := strconv.Atoi(d.whole)
		switch {
		case d.frac == "" && err == nil && step == 1:
			rule.integer = true
		case d.frac == "" && err == nil && step <= maxStep && rule.step == 0:
			rule.step = step
		case d.whole == "0" && strings.Trim(d.frac, "0") == "1" && rule.places < 0 && len(d.frac) <= 20:
			if !rule.integer {
				rule.places = len(d.frac)
			}
		default:
			s.note(m.ptr)
		}
	}
	d := s.b.regular(fmt.Sprint("number ", rule), func() (*dfa, error) { return rule.compile(s.b.ctx) })
	if d == nil {
		s.contradiction(a.ptr, "no number satisfies the bounds")
	}
	return s.b.automaton(d, 0, -1, next)
}

// space is the whitespace that may stand inside a document.
func (s *schemaCompiler) space(next int32) int32 {
	if !s.opts.FlexibleWhitespace {
		return next
	}
	return s.b.expression("space", cat(repeat(lit("\n"), 0, 2), repeat(lit(" "), 0, 16)), next)
}

func (s *schemaCompiler) comma(next int32) int32 {
	if !s.opts.FlexibleWhitespace {
		return s.b.literal(", ", next)
	}
	return s.space(s.b.literal(",", s.space(next)))
}

func (s *schemaCompiler) colon(next int32) int32 {
	if !s.opts.FlexibleWhitespace {
		return s.b.literal(": ", next)
	}
	return s.space(s.b.literal(":", s.space(next)))
}

// declared gives the properties in order: those of the schema, then required names that it does not declare.
func (s *schemaCompiler) declared(a *alternative) []property {
	props := slices.Clone(a.props)
	for _, r := range a.required {
		if a.hasRest && len(a.rest) == 1 && a.rest[0].v.Kind == pyjson.False {
			s.contradiction(r.ptr, "%q is required, but not declared, and no other properties are allowed", r.v.Text)
		}
		props = append(props, property{key: r.v.Text, value: a.rest, required: true})
	}
	return props
}

// otherKey is the automaton of the keys that are not declared.
func (s *schemaCompiler) otherKey(props []property, enc encode) *dfa {
	name := fmt.Sprint("key ", enc)
	for _, p := range props {
		name += fmt.Sprintf("%q", p.key)
	}
	return s.b.regular(name, func() (*dfa, error) {
		var all *rx
		if enc == encodeJSON {
			all = cat(lit(`"`), star(jsonChar()), lit(`"`))
		} else { // raw: one line, without the quote that ends it
			all = plus(alt(utf8Range(utf8Range(utf8Range(nil, 0x20, '"'-1), '"'+1, 0x7E), 0x80, utf8.MaxRune)...))
		}
		d, err := compileRx(s.b.ctx, all)
		if err != nil || len(props) == 0 {
			return d, err
		}
		names := alt()
		for _, p := range props {
			if enc == encodeRaw {
				names.sub = append(names.sub, lit(p.key))
				continue
			}
			r := cat(lit(`"`))
			for _, c := range p.key {
				r.sub = append(r.sub, everyForm(c))
			}
			r.sub = append(r.sub, lit(`"`))
			names.sub = append(names.sub, r)
		}
		n, err := compileRx(s.b.ctx, names)
		if err != nil {
			return nil, err
		}
		return subtract(s.b.ctx, d, n)
	})
}

// everyForm matches a character of a JSON string in each way it can be written.
func everyForm(c rune) *rx {
	r := encodeJSON.runes([]rune{c, c})
	if c == '/' {
		r.sub = append(r.sub, lit(`\/`))
	}
	unit := func(u rune) *rx {
		x := cat(lit(`\u`))
		for shift := 12; shift >= 0; shift -= 4 {
			x.sub = append(x.sub, hexDigit(byte(u>>shift&15)))
		}
		return x
	}
	if c > 0xFFFF {
		c -= 0x10000
		r.sub = append(r.sub, cat(unit(0xD800+c>>10), unit(0xDC00+c&0x3FF)))
	} else {
		r.sub = append(r.sub, unit(c))
	}
	return r
}

// entryList is what objects and parameters have in common: entries in order, each required or not, then others, with the count bounded.
type entryList struct {
	props    []property
	min, max int
	entry    func(p *property, next int32) int32 // key and value
	other    func(next int32) int32              // an undeclared entry; nil: none
	comma    func(next int32) int32
	end      func(empty bool) int32
	ptr      string
}

// entries builds a list. The result is the node before the first entry.
func (s *schemaCompiler) entries(l entryList) int32 {
	n := len(l.props)
	// Counts above top are not told apart.
	top := max(1, l.min)
	if l.max >= 0 {
		top = max(top, l.max)
	}
	if n*top > 100_000 {
		s.fail(TooLarge, l.ptr, "%d properties with a count of up to %d", n, top)
	}
	over := func(c int) bool { return l.max >= 0 && c > l.max }
	bump := func(c int) int { return min(c+1, top) }
	none := s.b.split()

	// By count of entries so far: done ends the list, bare writes the next entry, row does either, with the separator. One separator before
	// all that may follow keeps the ways to go on few until the key begins.
	done, bare, row := make([]int32, top+1), make([]int32, top+1), make([]int32, top+1)
	either := func(c int) int32 {
		if bare[c] == none {
			return done[c]
		}
		next := bare[c]
		if c > 0 {
			next = l.comma(next)
		}
		if done[c] == none {
			return next
		}
		return s.b.split(done[c], next)
	}
	more := func(c int) bool { return l.max < 0 || c < l.max }
	for c := range row {
		row[c] = s.b.add(node{kind: nodeSplit}) // others may follow each other without end
	}
	for c := top; c >= 0; c-- {
		done[c], bare[c] = none, none
		if c >= l.min && !over(c) {
			done[c] = l.end(c == 0)
		}
		if l.other != nil && more(c) {
			bare[c] = l.other(row[bump(c)])
		}
		s.b.nodes[row[c]].outs = []int32{either(c)}
	}
	for i := n - 1; i >= 0; i-- {
		p := &l.props[i]
		made := map[int32]int32{}
		fresh := make([]int32, top+1)
		for c := range row {
			if c > i { // that many entries cannot have been written before this one
				done[c], bare[c], fresh[c] = none, none, none
				continue
			}
			e := none
			if more(c) {
				target := row[bump(c)]
				var ok bool
				if e, ok = made[target]; !ok {
					e = l.entry(p, target)
					made[target] = e
				}
			}
			switch {
			case p.required:
				done[c], bare[c] = none, e
			case e != none && bare[c] != none:
				bare[c] = s.b.split(e, bare[c])
			case e != none:
				bare[c] = e
			}
			fresh[c] = either(c)
		}
		row = fresh
	}
	return row[0]
}

// object builds an object.
func (s *schemaCompiler) object(a *alternative, next int32) int32 {
	props := s.declared(a)
	if a.maxProps >= 0 && a.minProps > a.maxProps {
		s.contradiction(a.ptr+"/minProperties", "minProperties %d is above maxProperties %d", a.minProps, a.maxProps)
		return s.b.split()
	}
	l := entryList{props: props, min: a.minProps, max: a.maxProps, comma: s.comma, ptr: a.ptr}
	l.entry = func(p *property, next int32) int32 {
		return s.b.literal(string(pyjson.AppendString(nil, p.key)), s.colon(s.value(p.value, next)))
	}
	if s.restAllowed(a) {
		l.other = func(next int32) int32 {
			return s.b.automaton(s.otherKey(props, encodeJSON), 0, -1, s.colon(s.value(a.rest, next)))
		}
	}
	closing := s.b.literal("}", next)
	l.end = func(empty bool) int32 {
		if empty {
			return closing
		}
		return s.space(closing)
	}
	return s.b.literal("{", s.space(s.entries(l)))
}

// restAllowed says whether there can be properties that are not declared.
func (s *schemaCompiler) restAllowed(a *alternative) bool {
	for _, r := range a.rest {
		if r.v.Kind == pyjson.False {
			return false
		}
	}
	return true
}

// array builds an array.
func (s *schemaCompiler) array(a *alternative, next int32) int32 {
	if a.maxItems >= 0 && a.minItems > a.maxItems {
		s.contradiction(a.ptr+"/minItems", "minItems %d is above maxItems %d", a.minItems, a.maxItems)
		return s.b.split()
	}
	closing := s.b.literal("]", next)
	end := s.space(closing)
	n := max(len(a.prefix), a.minItems, 1)
	var after int32 // the node after n items
	if a.maxItems >= 0 {
		n = a.maxItems
		after = end
	} else {
		after = s.b.add(node{kind: nodeSplit})
		more := s.comma(s.value(a.items, after))
		s.b.nodes[after].outs = []int32{end, more}
	}
	for i := n - 1; i >= 0; i-- {
		item := s.value(a.item(i), after)
		if i > 0 {
			item = s.comma(item)
		}
		switch {
		case i < a.minItems:
			after = item
		case i == 0:
			after = s.b.split(closing, item)
		default:
			after = s.b.split(end, item)
		}
	}
	if n == 0 {
		after = closing
	}
	return s.b.literal("[", s.space(after))
}
