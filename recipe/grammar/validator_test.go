package grammar_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// validate is a plain JSON Schema validator for tests. It shares no code with the package: encoding/json, maps, regexp.
func validate(schema any, doc string) error {
	d := json.NewDecoder(strings.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("something after the document")
	}
	return (&validator{root: schema}).check(schema, v, "", 0)
}

func decodeSchema(text []byte) any {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		panic(err)
	}
	return v
}

type validator struct{ root any }

func number(v any) *big.Rat {
	n, ok := v.(json.Number)
	if !ok {
		return nil
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		return nil
	}
	return r
}

func integer(v any) int {
	r := number(v)
	return int(r.Num().Int64())
}

func same(a, b any) bool {
	if x, y := number(a), number(b); x != nil && y != nil {
		return x.Cmp(y) == 0
	}
	x, okX := a.([]any)
	y, okY := b.([]any)
	if okX && okY {
		if len(x) != len(y) {
			return false
		}
		for i := range x {
			if !same(x[i], y[i]) {
				return false
			}
		}
		return true
	}
	p, okX := a.(map[string]any)
	q, okY := b.(map[string]any)
	if okX && okY {
		if len(p) != len(q) {
			return false
		}
		for k := range p {
			if _, ok := q[k]; !ok || !same(p[k], q[k]) {
				return false
			}
		}
		return true
	}
	return reflect.DeepEqual(a, b)
}

func is(name string, v any) bool {
	switch v := v.(type) {
	case nil:
		return name == "null"
	case bool:
		return name == "boolean"
	case string:
		return name == "string"
	case json.Number:
		return name == "number" || name == "integer" && number(v).IsInt()
	case []any:
		return name == "array"
	case map[string]any:
		return name == "object"
	}
	return false
}

func (c *validator) check(schema, v any, at string, depth int) error {
	if depth > 500 {
		return fmt.Errorf("%s: the schema never ends", at)
	}
	if b, ok := schema.(bool); ok {
		if !b {
			return fmt.Errorf("%s: false schema", at)
		}
		return nil
	}
	s := schema.(map[string]any)
	if s["nullable"] == true && v == nil {
		return nil
	}
	if r, ok := s["$ref"].(string); ok {
		target := c.root
		for _, part := range strings.Split(strings.TrimPrefix(strings.TrimPrefix(r, "#"), "/"), "/") {
			if part != "" {
				target = target.(map[string]any)[part]
			}
		}
		if err := c.check(target, v, at, depth+1); err != nil {
			return err
		}
	}
	if t, ok := s["type"]; ok {
		list, many := t.([]any)
		if !many {
			list = []any{t}
		}
		found := false
		for _, x := range list {
			found = found || is(x.(string), v)
		}
		if !found {
			return fmt.Errorf("%s: %v is not of type %v", at, v, t)
		}
	}
	if e, ok := s["enum"].([]any); ok {
		found := false
		for _, x := range e {
			found = found || same(x, v)
		}
		if !found {
			return fmt.Errorf("%s: %v is not in %v", at, v, e)
		}
	}
	if x, ok := s["const"]; ok && !same(x, v) {
		return fmt.Errorf("%s: %v is not %v", at, v, x)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			var last error
			for _, x := range list {
				if last = c.check(x, v, at, depth+1); last == nil {
					break
				}
			}
			if last != nil {
				return fmt.Errorf("%s: no arm of %s: %w", at, key, last)
			}
		}
	}
	if list, ok := s["allOf"].([]any); ok {
		for _, x := range list {
			if err := c.check(x, v, at, depth+1); err != nil {
				return err
			}
		}
	}
	switch v := v.(type) {
	case string:
		n := utf8.RuneCountInString(v)
		if x, ok := s["minLength"]; ok && n < integer(x) {
			return fmt.Errorf("%s: %d characters", at, n)
		}
		if x, ok := s["maxLength"]; ok && n > integer(x) {
			return fmt.Errorf("%s: %d characters", at, n)
		}
		if p, ok := s["pattern"].(string); ok && !regexp.MustCompile(p).MatchString(v) {
			return fmt.Errorf("%s: %q does not match %q", at, v, p)
		}
		if f, ok := s["format"].(string); ok {
			if err := format(f, v); err != nil {
				return fmt.Errorf("%s: %q is no %s: %w", at, v, f, err)
			}
		}
	case json.Number:
		x := number(v)
		for key, bad := range map[string]func(int) bool{"minimum": func(c int) bool { return c < 0 }, "exclusiveMinimum": func(c int) bool { return c <= 0 },
			"maximum": func(c int) bool { return c > 0 }, "exclusiveMaximum": func(c int) bool { return c >= 0 }} {
			if b, ok := s[key]; ok && bad(x.Cmp(number(b))) {
				return fmt.Errorf("%s: %v against %s %v", at, v, key, b)
			}
		}
		if m, ok := s["multipleOf"]; ok && !new(big.Rat).Quo(x, number(m)).IsInt() {
			return fmt.Errorf("%s: %v is no multiple of %v", at, v, m)
		}
	case []any:
		if x, ok := s["minItems"]; ok && len(v) < integer(x) {
			return fmt.Errorf("%s: %d items", at, len(v))
		}
		if x, ok := s["maxItems"]; ok && len(v) > integer(x) {
			return fmt.Errorf("%s: %d items", at, len(v))
		}
		prefix, _ := s["prefixItems"].([]any)
		for i, e := range v {
			var sub any = true
			if i < len(prefix) {
				sub = prefix[i]
			} else if x, ok := s["items"]; ok {
				sub = x
			}
			if err := c.check(sub, e, fmt.Sprintf("%s/%d", at, i), depth+1); err != nil {
				return err
			}
		}
	case map[string]any:
		if x, ok := s["minProperties"]; ok && len(v) < integer(x) {
			return fmt.Errorf("%s: %d properties", at, len(v))
		}
		if x, ok := s["maxProperties"]; ok && len(v) > integer(x) {
			return fmt.Errorf("%s: %d properties", at, len(v))
		}
		if r, ok := s["required"].([]any); ok {
			for _, k := range r {
				if _, ok := v[k.(string)]; !ok {
					return fmt.Errorf("%s: %v is missing", at, k)
				}
			}
		}
		props, _ := s["properties"].(map[string]any)
		for k, e := range v {
			var sub any = true
			if x, ok := props[k]; ok {
				sub = x
			} else if x, ok := s["additionalProperties"]; ok {
				sub = x
			}
			if err := c.check(sub, e, at+"/"+k, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

func format(name, v string) (err error) {
	ok := true
	switch name {
	case "date":
		_, err = time.Parse("2006-01-02", v)
	case "time":
		_, err = time.Parse("15:04:05.999999999Z07:00", strings.ToUpper(v))
	case "date-time":
		_, err = time.Parse(time.RFC3339Nano, strings.ToUpper(v))
	case "ipv4":
		var a netip.Addr
		a, err = netip.ParseAddr(v)
		ok = a.Is4()
	case "ipv6":
		var a netip.Addr
		a, err = netip.ParseAddr(v)
		ok = a.Is6() && a.Zone() == ""
	case "uuid":
		ok = regexp.MustCompile(`(?i)^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`).MatchString(v)
	case "uri":
		var u *url.URL
		u, err = url.Parse(v)
		ok = err == nil && u.Scheme != ""
	case "email":
		at := strings.LastIndexByte(v, '@')
		ok = at > 0 && format("hostname", v[at+1:]) == nil
	case "hostname":
		for _, l := range strings.Split(v, ".") {
			ok = ok && len(l) > 0 && len(l) <= 63 && l[0] != '-' && l[len(l)-1] != '-' && strings.Trim(strings.ToLower(l), "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
		}
	}
	if err == nil && !ok {
		err = fmt.Errorf("malformed")
	}
	return err
}
