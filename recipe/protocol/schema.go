package protocol

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// checkSchema says what is wrong with a JSON Schema, in the words of a validator run on the meta-schema, or "".
func checkSchema(v *pyjson.Value) string {
	switch v.Kind {
	case pyjson.True, pyjson.False:
		return ""
	case pyjson.Object:
	default:
		return notOf(v, "boolean", "object")
	}
	for i := range v.Members {
		m := &v.Members[i]
		if problem := checkKeyword(m.Key, &m.Value); problem != "" {
			return problem
		}
	}
	return ""
}

func notOf(v *pyjson.Value, types ...string) string {
	text := string(AppendCompact(nil, v))
	if len(types) == 1 {
		return fmt.Sprintf("%s is not of type %q", text, types[0])
	}
	for i, t := range types {
		types[i] = fmt.Sprintf("%q", t)
	}
	return fmt.Sprintf("%s is not of types %s", text, strings.Join(types, ", "))
}

func checkKeyword(key string, v *pyjson.Value) string {
	switch key {
	case "type":
		known := func(v *pyjson.Value) bool {
			if v.Kind != pyjson.String {
				return false
			}
			switch v.Text {
			case "array", "boolean", "integer", "null", "number", "object", "string":
				return true
			}
			return false
		}
		ok := known(v)
		if v.Kind == pyjson.Array && len(v.Elems) > 0 {
			ok = true
			seen := map[string]bool{}
			for i := range v.Elems {
				ok = ok && known(&v.Elems[i]) && !seen[v.Elems[i].Text]
				seen[v.Elems[i].Text] = true
			}
		}
		if !ok {
			return string(AppendCompact(nil, v)) + " is not valid under any of the schemas listed in the 'anyOf' keyword"
		}
	case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
		if v.Kind != pyjson.Object {
			return notOf(v, "object")
		}
		for i := range v.Members {
			if problem := checkSchema(&v.Members[i].Value); problem != "" {
				return problem
			}
		}
	case "items", "additionalProperties", "contains", "not", "if", "then", "else", "propertyNames", "unevaluatedItems", "unevaluatedProperties":
		return checkSchema(v)
	case "anyOf", "oneOf", "allOf", "prefixItems":
		if v.Kind != pyjson.Array {
			return notOf(v, "array")
		}
		if len(v.Elems) == 0 {
			return "[] has less than 1 item"
		}
		for i := range v.Elems {
			if problem := checkSchema(&v.Elems[i]); problem != "" {
				return problem
			}
		}
	case "required":
		if v.Kind != pyjson.Array {
			return notOf(v, "array")
		}
		seen := map[string]bool{}
		for i := range v.Elems {
			if v.Elems[i].Kind != pyjson.String {
				return notOf(&v.Elems[i], "string")
			}
			if seen[v.Elems[i].Text] {
				return string(AppendCompact(nil, v)) + " has non-unique elements"
			}
			seen[v.Elems[i].Text] = true
		}
	case "enum":
		if v.Kind != pyjson.Array {
			return notOf(v, "array")
		}
	case "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties", "minContains", "maxContains":
		if v.Kind != pyjson.Number || strings.ContainsAny(v.Text, ".eE") {
			return notOf(v, "integer")
		}
		if strings.HasPrefix(v.Text, "-") && v.Text != "-0" {
			return v.Text + " is less than the minimum of 0"
		}
	case "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf":
		if v.Kind != pyjson.Number {
			return notOf(v, "number")
		}
	case "pattern", "format", "title", "description", "$ref", "$id", "$schema", "$anchor", "$comment", "contentEncoding", "contentMediaType":
		if v.Kind != pyjson.String {
			return notOf(v, "string")
		}
		if key == "pattern" {
			// Look-around is legal here and unknown to Go; only what no dialect accepts is refused.
			if _, err := regexp.Compile(v.Text); err != nil && !strings.Contains(v.Text, "(?") {
				return fmt.Sprintf("%s is not a \"regex\"", AppendCompact(nil, v))
			}
		}
	case "uniqueItems", "deprecated", "readOnly", "writeOnly":
		if v.Kind != pyjson.True && v.Kind != pyjson.False {
			return notOf(v, "boolean")
		}
	}
	return ""
}

// strictSchema rewrites a schema the way strict mode asks: no additional properties, every property required, no keywords for lengths.
func strictSchema(v *pyjson.Value) (pyjson.Value, string) {
	if v.Kind != pyjson.Object {
		return *v, ""
	}
	if v.Get("type") == nil && v.Get("anyOf") == nil && v.Get("$ref") == nil {
		return *v, "one of `type`, `anyOf`, `$ref` field is required"
	}
	out := pyjson.Value{Kind: pyjson.Object}
	props := v.Get("properties")
	isObject := props != nil && props.Kind == pyjson.Object
	if t := v.Get("type"); t != nil && t.Kind == pyjson.String && t.Text == "object" {
		isObject = true
	}
	each := func(v *pyjson.Value) (pyjson.Value, string) {
		copied := pyjson.Value{Kind: v.Kind}
		for i := range v.Elems {
			one, problem := strictSchema(&v.Elems[i])
			if problem != "" {
				return copied, problem
			}
			copied.Elems = append(copied.Elems, one)
		}
		for i := range v.Members {
			one, problem := strictSchema(&v.Members[i].Value)
			if problem != "" {
				return copied, problem
			}
			copied.Members = append(copied.Members, pyjson.Member{Key: v.Members[i].Key, Value: one})
		}
		return copied, ""
	}
	for i := range v.Members {
		m := v.Members[i]
		var problem string
		switch m.Key {
		case "minLength", "maxLength", "minItems", "maxItems":
			continue
		case "additionalProperties", "required":
			if isObject {
				continue
			}
		case "properties", "$defs", "definitions", "anyOf":
			m.Value, problem = each(&m.Value)
		case "items":
			m.Value, problem = strictSchema(&m.Value)
		}
		if problem != "" {
			return out, problem
		}
		out.Members = append(out.Members, m)
	}
	if !isObject {
		return out, ""
	}
	required := pyjson.Value{Kind: pyjson.Array}
	if props != nil {
		for i := range props.Members {
			required.Elems = append(required.Elems, pyjson.Value{Kind: pyjson.String, Text: props.Members[i].Key})
		}
	}
	if given := v.Get("required"); given != nil {
		have := map[string]bool{}
		for i := range given.Elems {
			have[given.Elems[i].Text] = true
		}
		same := len(have) == len(required.Elems)
		for i := range required.Elems {
			same = same && have[required.Elems[i].Text]
		}
		if !same {
			return out, "!Required properties must match all properties in the object"
		}
	}
	out.Members = append(out.Members, pyjson.Member{Key: "additionalProperties", Value: pyjson.Value{Kind: pyjson.False}},
		pyjson.Member{Key: "required", Value: required})
	return out, ""
}
