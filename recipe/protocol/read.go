package protocol

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Node is a JSON value of a request with the place where it stands.
type Node struct {
	*pyjson.Value
	Path string
}

// Parse reads a request body: one JSON object.
func Parse(body []byte, opts Options) (Node, *Error) {
	limit := opts.MaxBody
	if limit == 0 {
		limit = DefaultMaxBody
	}
	if len(body) > limit {
		return Node{}, NewError(http.StatusRequestEntityTooLarge, "request body of %d bytes exceeds the limit of %d bytes", len(body), limit)
	}
	v, err := pyjson.Parse(body)
	if err != nil && !opts.Compat {
		// Clients cut strings between the halves of a surrogate pair; that is no reason to refuse a conversation.
		if fixed, changed := replaceLoneSurrogates(body); changed {
			v, err = pyjson.Parse(fixed)
		}
	}
	if err != nil {
		return Node{}, Malformed("", "invalid JSON request: %v", err)
	}
	if v.Kind != pyjson.Object {
		return Node{}, Malformed("", "invalid request body: expected a JSON object, got %s", kindName(&v))
	}
	return Node{Value: &v}, nil
}

func kindName(v *pyjson.Value) string {
	switch v.Kind {
	case pyjson.Null:
		return "null"
	case pyjson.True, pyjson.False:
		return "a boolean"
	case pyjson.Number:
		return "the number " + v.Text
	case pyjson.String:
		s := v.Text
		if len(s) > 40 {
			s = strings.ToValidUTF8(s[:40], "") + "…"
		}
		return strconv.Quote(s)
	case pyjson.Array:
		return "an array"
	}
	return "an object"
}

// replaceLoneSurrogates replaces \uD800..\uDFFF escapes without a partner by \uFFFD.
func replaceLoneSurrogates(body []byte) ([]byte, bool) {
	hex := func(i int) (uint64, bool) {
		if i+6 > len(body) || body[i] != '\\' || body[i+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(body[i+2:i+6]), 16, 16)
		return n, err == nil
	}
	var out []byte
	changed := false
	for i := 0; i < len(body); {
		if body[i] != '\\' || i+1 >= len(body) {
			n := bytes.IndexByte(body[i+1:], '\\')
			if n < 0 {
				n = len(body) - i - 1
			}
			out = append(out, body[i:i+1+n]...)
			i += 1 + n
			continue
		}
		c, ok := hex(i)
		switch {
		case !ok:
			out = append(out, body[i:i+2]...)
			i += 2
		case c >= 0xD800 && c < 0xDC00:
			if d, ok := hex(i + 6); ok && d >= 0xDC00 && d < 0xE000 {
				out = append(out, body[i:i+12]...)
				i += 12
				break
			}
			fallthrough
		case c >= 0xDC00 && c < 0xE000:
			out = append(out, `\uFFFD`...)
			i += 6
			changed = true
		default:
			out = append(out, body[i:i+6]...)
			i += 6
		}
	}
	return out, changed
}

// At is an element of an array.
func (n Node) At(i int) Node {
	return Node{Value: &n.Elems[i], Path: fmt.Sprintf("%s[%d]", n.Path, i)}
}

// Has finds a key of an object; a null counts as absent.
func (n Node) Has(key string) (Node, bool) {
	if n.Value == nil {
		return Node{}, false
	}
	v := n.Get(key)
	if v == nil || v.Kind == pyjson.Null {
		return Node{}, false
	}
	return n.child(key, v), true
}

// Given finds a key of an object, null or not.
func (n Node) Given(key string) (Node, bool) {
	v := n.Get(key)
	if v == nil {
		return Node{}, false
	}
	return n.child(key, v), true
}

func (n Node) child(key string, v *pyjson.Value) Node {
	path := key
	if n.Path != "" {
		path = n.Path + "." + key
	}
	return Node{Value: v, Path: path}
}

// Without gives the object without a key.
func (n Node) Without(key string) Node {
	v := pyjson.Value{Kind: pyjson.Object}
	for _, m := range n.Members {
		if m.Key != key {
			v.Members = append(v.Members, m)
		}
	}
	return Node{Value: &v, Path: n.Path}
}

// Missing is the error for a required key.
func (n Node) Missing(key string) *Error {
	return Malformed(n.child(key, nil).Path, "invalid request body: missing field `%s`", key)
}

// Wrong is the error for a value of the wrong type.
func (n Node) Wrong(want string) *Error {
	return Malformed(n.Path, "invalid request body: expected %s, got %s", want, kindName(n.Value))
}

// Variant is the error for a string that is none of the known ones.
func (n Node) Variant(known ...string) *Error {
	return Malformed(n.Path, "invalid request body: unknown value %s, expected one of %s", kindName(n.Value), strings.Join(known, ", "))
}

// String reads a string.
func (n Node) String() (string, *Error) {
	if n.Kind != pyjson.String {
		return "", n.Wrong("a string")
	}
	return n.Text, nil
}

// Bool reads a boolean.
func (n Node) Bool() (bool, *Error) {
	switch n.Kind {
	case pyjson.True:
		return true, nil
	case pyjson.False:
		return false, nil
	}
	return false, n.Wrong("a boolean")
}

// Object checks for an object.
func (n Node) Object() *Error {
	if n.Kind != pyjson.Object {
		return n.Wrong("an object")
	}
	return nil
}

// Array checks for an array.
func (n Node) Array() *Error {
	if n.Kind != pyjson.Array {
		return n.Wrong("an array")
	}
	return nil
}

// Float reads a number.
func (n Node) Float() (float64, *Error) {
	if n.Kind != pyjson.Number {
		return 0, n.Wrong("a number")
	}
	f, err := strconv.ParseFloat(n.Text, 64)
	if err != nil || math.IsInf(f, 0) {
		return 0, n.Wrong("a number")
	}
	return f, nil
}

// Uint reads an integer of at least 0, without a detour through float64.
func (n Node) Uint() (uint64, *Error) {
	if n.Kind != pyjson.Number {
		return 0, n.Wrong("an integer")
	}
	u, err := strconv.ParseUint(n.Text, 10, 64)
	if err != nil {
		return 0, n.Wrong("an integer of at least 0")
	}
	return u, nil
}

// The optional readers give nil for an absent or null key.

// OptString reads an optional string.
func (n Node) OptString(key string) (*string, *Error) {
	v, ok := n.Has(key)
	if !ok {
		return nil, nil
	}
	s, err := v.String()
	if err != nil {
		return nil, err
	}
	return &s, nil
}

// OptBool reads an optional boolean.
func (n Node) OptBool(key string) (*bool, *Error) {
	v, ok := n.Has(key)
	if !ok {
		return nil, nil
	}
	b, err := v.Bool()
	if err != nil {
		return nil, err
	}
	return &b, nil
}

// OptFloat reads an optional number.
func (n Node) OptFloat(key string) (*float64, *Error) {
	v, ok := n.Has(key)
	if !ok {
		return nil, nil
	}
	f, err := v.Float()
	if err != nil {
		return nil, err
	}
	return &f, nil
}

// OptUint reads an optional integer of at least 0.
func (n Node) OptUint(key string) (*uint64, *Error) {
	v, ok := n.Has(key)
	if !ok {
		return nil, nil
	}
	u, err := v.Uint()
	if err != nil {
		return nil, err
	}
	return &u, nil
}

// ReqString reads a required string.
func (n Node) ReqString(key string) (string, *Error) {
	v, ok := n.Given(key)
	if !ok {
		return "", n.Missing(key)
	}
	return v.String()
}

// JSON gives the value as compact JSON in the client's key order and number spelling.
func (n Node) JSON() []byte { return appendExact(nil, n.Value) }

// appendExact prints numbers as they were written.
func appendExact(dst []byte, v *pyjson.Value) []byte {
	switch v.Kind {
	case pyjson.Number:
		return append(dst, v.Text...)
	case pyjson.Array:
		dst = append(dst, '[')
		for i := range v.Elems {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendExact(dst, &v.Elems[i])
		}
		return append(dst, ']')
	case pyjson.Object:
		dst = append(dst, '{')
		for i := range v.Members {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(pyjson.AppendString(dst, v.Members[i].Key), ':')
			dst = appendExact(dst, &v.Members[i].Value)
		}
		return append(dst, '}')
	}
	return v.Append(dst, pyjson.Exact)
}
