package conf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/knadh/koanf/providers/confmap"
	"github.com/knadh/koanf/providers/env/v2"
	"github.com/knadh/koanf/v2"
)

// EnvPrefix starts the name of every environment variable that sets a key: DEEPINFER_SERVER__LISTEN sets server.listen. Two underscores part the
// keys; a label is written in capitals with _ for everything that is no letter or digit.
const EnvPrefix = "DEEPINFER_"

// otherEnv are variables with our prefix that are not configuration.
var otherEnv = []string{
	"DEEPINFER_CPU", // forces a variant of the cpu kernels; read by the library
}

// Load reads the file at path ("" = no file) and lays environ ("NAME=value", as os.Environ gives it) and flags over it. Keys of flags are written
// server.listen, backend.NAME.threads, or without the label where one block of the kind is declared: model.path. Flag values may be typed or text.
//
// The result is complete and valid, or err holds every problem found (Problems lists them). A file that cannot be read is a problem as well.
// Relative paths in the file are relative to the file; those of variables and flags are relative to the working directory.
func Load(path string, environ []string, flags map[string]any) (*Config, error) {
	var src []byte
	if path != "" {
		var err error
		if src, err = readFile(path); err != nil {
			return nil, err
		}
	}
	return load(path, src, environ, flags)
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &Problem{Text: fmt.Sprintf("read configuration %s: no such file", path)}
	case err != nil:
		return nil, &Problem{Text: fmt.Sprintf("read configuration %s: %v", path, err)}
	case info.IsDir():
		return nil, &Problem{Text: fmt.Sprintf("read configuration %s: it is a directory; name a file", path)}
	case info.Size() > maxFile:
		return nil, &Problem{Text: fmt.Sprintf("read configuration %s: %d bytes; a configuration has at most %d", path, info.Size(), maxFile)}
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, &Problem{Text: fmt.Sprintf("read configuration %s: %v", path, err)}
	}
	return src, nil
}

// bytesProvider hands a file that is already in memory to koanf.
type bytesProvider []byte

func (b bytesProvider) ReadBytes() ([]byte, error) { return b, nil }

func (b bytesProvider) Read() (map[string]any, error) {
	return nil, errors.New("configuration files need a parser")
}

// loader lays the layers over each other.
type loader struct {
	k        *koanf.Koanf
	origins  map[string]Origin
	labels   map[string][]string // declared labels of a kind, in order
	problems list
}

func load(path string, src []byte, environ []string, flags map[string]any) (*Config, error) {
	l := &loader{k: koanf.New(sep), origins: map[string]Origin{}, labels: map[string][]string{}}
	defaults := toMap(schema, reflect.ValueOf(*Default()))
	delete(defaults, "model") // a declared model replaces the demo model
	if err := l.k.Load(confmap.Provider(defaults, ""), nil); err != nil {
		return nil, fmt.Errorf("lay out the defaults: %w", err)
	}
	fileBroken := false
	if path != "" {
		p := &Parser{File: path, Getenv: getenvOf(environ)}
		if err := l.k.Load(bytesProvider(src), p); err != nil {
			l.problems = append(l.problems, Problems(err)...)
			if p.partial == nil {
				fileBroken = true
			} else if err := l.k.Load(confmap.Provider(p.partial, ""), nil); err != nil {
				return nil, fmt.Errorf("lay the file over the defaults: %w", err)
			}
		}
		l.origins, l.labels = p.positions, p.labels
	}
	if len(l.labels["model"]) == 0 {
		l.labels["model"] = []string{DemoModel}
	}
	l.environment(environ, fileBroken)
	l.flags(flags, fileBroken)
	// The values are looked at even where a name was wrong, so that one run tells everything.
	c := l.decode()
	c.origins = l.origins
	c.check(&l.problems)
	if err := l.problems.join(); err != nil {
		return nil, err
	}
	return c, nil
}

func getenvOf(environ []string) func(string) string {
	return func(name string) string {
		for _, kv := range slices.Backward(environ) {
			if k, v, ok := strings.Cut(kv, "="); ok && k == name {
				return v
			}
		}
		return ""
	}
}

// environment lays the variables over the file. When the file could not be read its labels are unknown, so labelled keys are left for the next try.
func (l *loader) environment(environ []string, fileBroken bool) {
	p := env.Provider(sep, env.Opt{
		Prefix:      EnvPrefix,
		EnvironFunc: func() []string { return slices.Sorted(slices.Values(environ)) },
		TransformFunc: func(name, value string) (string, any) {
			o := Origin{Source: FromEnv, Name: name}
			if slices.Contains(otherEnv, name) {
				return "", nil
			}
			keys := strings.Split(strings.TrimPrefix(name, EnvPrefix), "__")
			if fileBroken && schema.child(strings.ToLower(keys[0])) != nil && schema.child(strings.ToLower(keys[0])).kind == labelled {
				return "", nil
			}
			path, n, err := l.resolve(keys, true)
			if err != nil {
				l.problems.add(o, "%v", err)
				return "", nil
			}
			v, err := fromText(n, value)
			if err != nil {
				l.problems.add(o, "%v", err)
				return "", nil
			}
			l.origins[path] = o
			return path, v
		},
	})
	if err := l.k.Load(p, nil); err != nil {
		l.problems.add(Origin{Source: FromEnv}, "%v", err)
	}
}

func (l *loader) flags(flags map[string]any, fileBroken bool) {
	layer := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		o := Origin{Source: FromFlag, Name: name}
		keys := strings.Split(name, ".")
		if n := schema.child(keys[0]); fileBroken && n != nil && n.kind == labelled {
			continue
		}
		path, n, err := l.resolve(keys, false)
		if err != nil {
			l.problems.add(o, "%v", err)
			continue
		}
		v := flags[name]
		if text, ok := v.(string); ok {
			if v, err = fromText(n, text); err != nil {
				l.problems.add(o, "%v", err)
				continue
			}
		}
		l.origins[path] = o
		layer[path] = v
	}
	if err := l.k.Load(confmap.Provider(layer, sep), nil); err != nil {
		l.problems.add(Origin{Source: FromFlag}, "%v", err)
	}
}

// resolve finds the value that the keys of a variable or flag mean, and registers the label it names.
func (l *loader) resolve(keys []string, isEnv bool) (string, *node, error) {
	say := func(keys []string) string {
		if isEnv {
			return EnvPrefix + strings.ToUpper(strings.Join(keys, "__"))
		}
		return strings.Join(keys, ".")
	}
	given := keys
	if isEnv {
		keys = make([]string, len(given))
		for i, k := range given {
			keys[i] = strings.ToLower(k)
		}
	}
	top := schema.child(keys[0])
	if top == nil {
		text := fmt.Sprintf("unknown block %q", keys[0])
		if block, key, ok := strings.Cut(keys[0], "_"); isEnv && ok && len(keys) == 1 && schema.child(block) != nil && schema.child(block).child(key) != nil {
			text += fmt.Sprintf("; did you mean %s?", say([]string{block, key})) // one underscore is part of a name, two part names
		} else if above := blocksWith(keys[0]); above != "" {
			text += fmt.Sprintf("; did you mean %s?", say(append([]string{above}, keys...)))
		} else if near := nearest(keys[0], schema.names()); near != "" {
			text += fmt.Sprintf("; did you mean %s?", say(append([]string{near}, keys[1:]...)))
		} else {
			text += "; known are " + strings.Join(schema.names(), ", ")
		}
		return "", nil, errors.New(text)
	}
	usable := func(n *node) bool { return n != nil && (n.kind == leaf || n.kind == free) }
	for _, k := range keys {
		if k == "" || strings.ContainsAny(k, sep+"\"\\") {
			return "", nil, fmt.Errorf("%q is no key; keys are written like %s", strings.Join(given, "."), say([]string{"server", "listen"}))
		}
	}
	if top.kind != labelled {
		n := top.at(keys[1:])
		if usable(n) {
			return join(keys...), n, nil
		}
		return "", nil, unresolved(top, keys[:1], keys[1:], say)
	}
	// backend.NAME.threads: flags allow dots in a label, variables write it in capitals.
	for i := len(keys) - 1; i >= 2; i-- {
		n := top.at(keys[i:])
		if !usable(n) || isEnv && i > 2 {
			continue
		}
		label := strings.Join(keys[1:i], ".")
		for _, known := range l.labels[top.name] {
			if known == label || isEnv && envName(known) == envName(label) {
				label = known
			}
		}
		if msg := badLabel(label); msg != "" {
			return "", nil, fmt.Errorf("%s label %q %s", top.name, label, msg)
		}
		l.declare(top.name, label)
		return join(append([]string{top.name, label}, keys[i:]...)...), n, nil
	}
	// model.path, for the only model. Nothing declared and no default: the label must be said.
	if n := top.at(keys[1:]); usable(n) {
		labels := l.labels[top.name]
		if len(labels) != 1 {
			return "", nil, fmt.Errorf("%d %s blocks are declared; say which: %s", len(labels), top.name, say(append([]string{keys[0], "NAME"}, keys[1:]...)))
		}
		return join(append([]string{top.name, labels[0]}, keys[1:]...)...), n, nil
	}
	if len(keys) > 2 {
		return "", nil, unresolved(top, keys[:2], keys[2:], say)
	}
	return "", nil, unresolved(top, keys[:1], keys[1:], say)
}

// unresolved explains why the keys below prefix lead nowhere.
func unresolved(top *node, prefix, keys []string, say func([]string) string) error {
	n := top
	for i, k := range keys {
		c := n.child(k)
		if c != nil && c.kind == leaf && i+1 < len(keys) {
			return fmt.Errorf("%s is a value and holds no %q", say(append(slices.Clone(prefix), keys[:i+1]...)), keys[i+1])
		}
		if c == nil {
			here := append(slices.Clone(prefix), keys[:i]...)
			if near := nearest(k, n.names()); near != "" {
				return fmt.Errorf("unknown key %q in %s; did you mean %s?", k, strings.Join(here, "."), say(append(append(here, near), keys[i+1:]...)))
			}
			return fmt.Errorf("unknown key %q in %s; known are %s", k, strings.Join(here, "."), strings.Join(n.names(), ", "))
		}
		n = c
	}
	return fmt.Errorf("%s is a block; name one of its keys: %s", say(append(slices.Clone(prefix), keys...)), strings.Join(n.names(), ", "))
}

// envName is a label as a variable spells it.
func envName(label string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, label)
}

func (l *loader) declare(kind, label string) {
	if !slices.Contains(l.labels[kind], label) {
		l.labels[kind] = append(l.labels[kind], label)
	}
}

// fromText turns the text of a variable or flag into the kind of value that a file would give.
func fromText(n *node, text string) (any, error) {
	switch {
	case n.kind == free || strings.HasPrefix(text, "[") && n.typ.Kind() == reflect.Slice:
		var v any
		d := json.NewDecoder(strings.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&v); err != nil || d.More() {
			if n.kind == free { // a plain word below config {} is a string
				return text, nil
			}
			return nil, refuse(n, text, " in JSON")
		}
		return fromJSON(v), nil
	case n.typ.Kind() == reflect.Slice:
		out := []any{}
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item == "" {
				continue
			}
			v, err := scalar(n, n.typ.Elem(), item)
			if err != nil {
				return nil, err
			}
			out = append(out, v)
		}
		return out, nil
	}
	return scalar(n, n.typ, text)
}

func scalar(n *node, t reflect.Type, text string) (any, error) {
	switch {
	case t == durationType || t == sizeType || t.Kind() == reflect.String:
		return text, nil
	case t.Kind() == reflect.Bool && (text == "true" || text == "false"):
		return text == "true", nil
	case t.Kind() == reflect.Bool:
		return nil, refuse(n, text, "")
	}
	var x json.Number
	if err := json.Unmarshal([]byte(text), &x); err != nil || text[0] == '"' {
		return nil, refuse(n, text, "")
	}
	return fromJSON(x), nil
}

// refuse says that text is no value of n, without repeating a secret.
func refuse(n *node, text, suffix string) error {
	if n.secret {
		return fmt.Errorf("the value is not %s%s", n.want(), suffix)
	}
	return fmt.Errorf("%q is not %s%s", text, n.want(), suffix)
}

func fromJSON(v any) any {
	switch v := v.(type) {
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		f, _ := v.Float64()
		return f
	case []any:
		for i := range v {
			v[i] = fromJSON(v[i])
		}
	case map[string]any:
		for k := range v {
			v[k] = fromJSON(v[k])
		}
	}
	return v
}

// decode turns the merged maps into a Config. Labelled blocks stand in the order in which they were declared.
func (l *loader) decode() *Config {
	c := Default()
	c.Models = nil
	raw := l.k.Raw()
	for _, top := range schema.children {
		field := reflect.ValueOf(c).Elem().Field(top.field)
		if top.kind != labelled {
			l.fill(top, field, raw[top.name], top.name)
			continue
		}
		blocks, _ := raw[top.name].(map[string]any)
		for _, label := range l.labels[top.name] {
			var v reflect.Value
			if top.name == "model" {
				v = reflect.ValueOf(new(defaultModel(label))).Elem()
			} else {
				v = reflect.ValueOf(new(defaultBackend(label))).Elem()
			}
			if content, ok := blocks[label]; ok {
				l.fill(top, v, content, join(top.name, label))
			}
			field.Set(reflect.Append(field, v))
		}
	}
	return c
}

// fill sets v, described by n, from raw.
func (l *loader) fill(n *node, v reflect.Value, raw any, path string) {
	if raw == nil {
		return
	}
	o := l.origins[path]
	switch n.kind {
	case block, labelled:
		m, ok := raw.(map[string]any)
		if !ok {
			l.problems.add(o, "%s is a block, not a value", display(path))
			return
		}
		for _, c := range n.children {
			if x, ok := m[c.name]; ok {
				l.fill(c, v.Field(c.field), x, join(path, c.name))
			}
		}
		return
	case free:
		m, ok := raw.(map[string]any)
		if !ok {
			l.problems.add(o, "%s = %s: want an object", display(path), literal(raw))
			return
		}
		v.Set(reflect.ValueOf(m))
		return
	}
	if err := assign(n, v, raw); err != nil {
		shown := " = " + literal(raw)
		if n.secret {
			shown = ""
		}
		l.problems.add(o, "%s%s: %v", display(path), shown, err)
		return
	}
	if n.path && o.Source == FromFile {
		relativeTo(filepath.Dir(o.Name), v)
	}
}

func relativeTo(dir string, v reflect.Value) {
	if v.Kind() == reflect.Slice {
		for i := range v.Len() {
			relativeTo(dir, v.Index(i))
		}
		return
	}
	if p := v.String(); p != "" && !filepath.IsAbs(p) {
		v.SetString(filepath.Join(dir, p))
	}
}

// assign sets a leaf. The error says what is wanted; the caller adds key and value.
func assign(n *node, v reflect.Value, raw any) error {
	if v.Kind() == reflect.Slice {
		in := reflect.ValueOf(raw)
		if in.Kind() != reflect.Slice {
			return fmt.Errorf("want %s", n.want())
		}
		if in.Len() == 0 {
			v.SetZero()
			return nil
		}
		out := reflect.MakeSlice(v.Type(), in.Len(), in.Len())
		for i := range in.Len() {
			if err := assign(n, out.Index(i), in.Index(i).Interface()); err != nil {
				return err
			}
		}
		v.Set(out)
		return nil
	}
	wrong := fmt.Errorf("want %s", n.want())
	if in := reflect.ValueOf(raw); in.IsValid() && in.Type() == v.Type() { // typed flags: time.Duration, Size, bool, string
		v.Set(in)
		return nil
	}
	switch {
	case v.Type() == durationType:
		text, ok := raw.(string)
		if !ok {
			return wrong
		}
		d, err := time.ParseDuration(strings.TrimSpace(text))
		if err != nil {
			return wrong
		}
		v.SetInt(int64(d))
		return nil
	case v.Type() == sizeType:
		if text, ok := raw.(string); ok {
			s, err := ParseSize(text)
			if err != nil {
				return wrong
			}
			v.SetInt(int64(s))
			return nil
		}
	}
	in := reflect.ValueOf(raw)
	switch v.Kind() {
	case reflect.String:
		if in.Kind() != reflect.String {
			return wrong
		}
		v.SetString(in.String())
	case reflect.Bool:
		if in.Kind() != reflect.Bool {
			return wrong
		}
		v.SetBool(in.Bool())
	case reflect.Int, reflect.Int64:
		switch {
		case in.CanInt():
			v.SetInt(in.Int())
		case in.CanFloat() && in.Float() == float64(int64(in.Float())) && in.Float() < 1<<62 && in.Float() > -(1<<62):
			v.SetInt(int64(in.Float()))
		default:
			return wrong
		}
	case reflect.Float64:
		switch {
		case in.CanInt():
			v.SetFloat(float64(in.Int()))
		case in.CanFloat():
			v.SetFloat(in.Float())
		default:
			return wrong
		}
	default:
		return wrong
	}
	return nil
}

// toMap is the inverse of fill: nested maps with plain values, as the parser gives them.
func toMap(n *node, v reflect.Value) map[string]any {
	out := map[string]any{}
	for _, c := range n.children {
		f := v.Field(c.field)
		switch c.kind {
		case block:
			out[c.name] = toMap(c, f)
		case labelled:
			kind := map[string]any{}
			for i := range f.Len() {
				e := f.Index(i)
				kind[labelOf(e)] = toMap(c, e)
			}
			if len(kind) > 0 {
				out[c.name] = kind
			}
		case free:
			if f.Len() > 0 {
				out[c.name] = f.Interface()
			}
		default:
			out[c.name] = plain(f)
		}
	}
	return out
}

func labelOf(v reflect.Value) string { return v.FieldByName("Name").String() }

func plain(v reflect.Value) any {
	switch x := v.Interface().(type) {
	case Size:
		return x.String()
	case time.Duration:
		return durationText(x)
	}
	switch v.Kind() {
	case reflect.Slice:
		out := make([]any, v.Len())
		for i := range out {
			out[i] = plain(v.Index(i))
		}
		return out
	case reflect.Int:
		return v.Int()
	}
	return v.Interface()
}
