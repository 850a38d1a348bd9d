package parse

import (
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// typeSet is a set of JSON types; 0 means that nothing is known.
type typeSet uint8

const (
	typeString typeSet = 1 << iota
	typeNumber
	typeBool
	typeNull
	typeObject
	typeArray
)

// schema is what the parser needs of a tool's parameters.
type schema struct {
	props  map[string]typeSet
	closed bool // additionalProperties is false
}

func (s *schema) property(key string) (typeSet, bool) {
	if s == nil {
		return 0, false
	}
	t, ok := s.props[key]
	return t, ok
}

// compileSchema reads the declared properties of a tool; nil when nothing is declared about them.
func compileSchema(t *Tool) *schema {
	if t.Custom {
		return &schema{props: map[string]typeSet{"input": typeString}, closed: true}
	}
	root, err := pyjson.Parse(t.Parameters)
	if err != nil || root.Kind != pyjson.Object {
		return nil
	}
	props := root.Get("properties")
	if props == nil || props.Kind != pyjson.Object {
		return nil
	}
	s := &schema{props: make(map[string]typeSet, len(props.Members))}
	for i := range props.Members {
		s.props[props.Members[i].Key] = typesOf(&root, &props.Members[i].Value, 0)
	}
	if a := root.Get("additionalProperties"); a != nil && a.Kind == pyjson.False {
		s.closed = true
	}
	return s
}

var typeNames = map[string]typeSet{"string": typeString, "number": typeNumber, "integer": typeNumber, "boolean": typeBool,
	"null": typeNull, "object": typeObject, "array": typeArray}

// typesOf gives the types that a property may have, 0 when they cannot be told.
func typesOf(root, v *pyjson.Value, depth int) typeSet {
	if depth > 8 || v == nil || v.Kind != pyjson.Object {
		return 0
	}
	if ref := v.Get("$ref"); ref != nil && ref.Kind == pyjson.String {
		rest, ok := strings.CutPrefix(ref.Text, "#/")
		if !ok {
			return 0
		}
		at := root
		for _, step := range strings.Split(rest, "/") {
			if at = at.Get(strings.NewReplacer("~1", "/", "~0", "~").Replace(step)); at == nil {
				return 0
			}
		}
		return typesOf(root, at, depth+1)
	}
	if t := v.Get("type"); t != nil {
		if t.Kind == pyjson.String {
			return typeNames[t.Text]
		}
		var set typeSet
		for _, e := range t.Elems {
			if typeNames[e.Text] == 0 {
				return 0
			}
			set |= typeNames[e.Text]
		}
		return set
	}
	for _, word := range []string{"anyOf", "oneOf"} {
		if any := v.Get(word); any != nil && any.Kind == pyjson.Array {
			var set typeSet
			for i := range any.Elems {
				one := typesOf(root, &any.Elems[i], depth+1)
				if one == 0 {
					return 0
				}
				set |= one
			}
			return set
		}
	}
	var set typeSet
	values := v.Get("enum")
	if c := v.Get("const"); c != nil {
		values = &pyjson.Value{Kind: pyjson.Array, Elems: []pyjson.Value{*c}}
	}
	if values != nil {
		for _, e := range values.Elems {
			switch e.Kind {
			case pyjson.String:
				set |= typeString
			case pyjson.Number:
				set |= typeNumber
			case pyjson.True, pyjson.False:
				set |= typeBool
			case pyjson.Null:
				set |= typeNull
			case pyjson.Object:
				set |= typeObject
			case pyjson.Array:
				set |= typeArray
			}
		}
	}
	return set
}
