package catalog

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/agext/levenshtein"
	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// DefaultScore is the score of a manifest that states none. Higher wins; 0 means "only when named".
const DefaultScore = 50

// Manifest is the content of NAME.backend.hcl.
type Manifest struct {
	Name     string
	Version  string
	ABIMajor int
	ABIMinor int
	Library  string // relative to the manifest
	Licence  string
	Score    int
	Deps     []string // libraries loaded first, relative to the manifest or absolute
	OS       []string // empty = any
	Arch     []string // empty = any
	Driver   string   // lowest driver version, for people
	CPU      []string // CPU features, for people and for the backend's own check
	Devices  []string // device nodes a sandbox must leave open
	Network  bool     // wants sockets
	Report   string   // hash of the conformance report, empty = none held
}

// nameRE is what a backend may be called; file names, labels and metrics are built from it.
var nameRE = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,62}$`)

// field tells how an attribute is stored; absent ones keep their default.
type field func(v cty.Value) error

func text(dst *string) field {
	return func(v cty.Value) error {
		if v.Type() != cty.String {
			return errors.New("must be a string in quotes")
		}
		*dst = v.AsString()
		return nil
	}
}

func list(dst *[]string) field {
	return func(v cty.Value) error {
		if v.Type() == cty.String {
			*dst = []string{v.AsString()}
			return nil
		}
		if !v.CanIterateElements() {
			return errors.New("must be a string or a list of strings")
		}
		for it := v.ElementIterator(); it.Next(); {
			_, e := it.Element()
			if e.IsNull() || e.Type() != cty.String {
				return errors.New("must be a string or a list of strings")
			}
			*dst = append(*dst, e.AsString())
		}
		return nil
	}
}

func number(dst *int, low, high int) field {
	return func(v cty.Value) error {
		if v.Type() == cty.Number {
			if f, _ := v.AsBigFloat().Float64(); f == math.Trunc(f) && f >= float64(low) && f <= float64(high) {
				*dst = int(f)
				return nil
			}
		}
		return fmt.Errorf("must be a whole number from %d to %d", low, high)
	}
}

func truth(dst *bool) field {
	return func(v cty.Value) error {
		if v.Type() != cty.Bool {
			return errors.New("must be true or false")
		}
		*dst = v.True()
		return nil
	}
}

func version(major, minor *int) field {
	return func(v cty.Value) error {
		s := ""
		switch v.Type() {
		case cty.String:
			s = v.AsString()
		case cty.Number:
			s = v.AsBigFloat().Text('f', -1)
		}
		a, b, dotted := strings.Cut(s, ".")
		x, err1 := strconv.ParseUint(a, 10, 16)
		y, err2 := uint64(0), error(nil)
		if dotted {
			y, err2 = strconv.ParseUint(b, 10, 16)
		}
		if err1 != nil || err2 != nil {
			return errors.New(`must be MAJOR or MAJOR.MINOR, for example "1.0"`)
		}
		*major, *minor = int(x), int(y)
		return nil
	}
}

// Parse reads a manifest. All problems are returned at once, each with file:line:column. Bytes of any origin are safe to pass.
func Parse(src []byte, file string) (*Manifest, error) {
	f, diags := hclparse.NewParser().ParseHCL(src, file)
	if diags.HasErrors() {
		return nil, fmt.Errorf("manifest: %w", diags)
	}
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok {
		return nil, fmt.Errorf("manifest %s: not HCL native syntax", file)
	}
	m := &Manifest{Score: DefaultScore}
	var errs []error
	errs = append(errs, fill(body, "", map[string]field{
		"name": text(&m.Name), "version": text(&m.Version), "abi": version(&m.ABIMajor, &m.ABIMinor), "library": text(&m.Library),
		"licence": text(&m.Licence), "license": text(&m.Licence), "score": number(&m.Score, 0, 1000), "deps": list(&m.Deps), "conformance": text(&m.Report), "description": text(new(string)),
	}, map[string]map[string]field{
		"requires": {"os": list(&m.OS), "arch": list(&m.Arch), "cpu": list(&m.CPU), "driver": text(&m.Driver)},
		"sandbox":  {"devices": list(&m.Devices), "network": truth(&m.Network)},
	})...)
	missing := func(name string) { errs = append(errs, fmt.Errorf("%s: %s is missing", file, name)) }
	switch {
	case m.Name == "":
		missing("name")
	case !nameRE.MatchString(m.Name):
		errs = append(errs, fmt.Errorf("%s: name %q: lower-case letters, digits, - and _, beginning with a letter", file, m.Name))
	}
	if m.Version == "" {
		missing("version")
	}
	if body.Attributes["abi"] == nil {
		missing("abi")
	}
	switch {
	case m.Library == "":
		missing("library")
	case filepath.IsAbs(m.Library) || !filepath.IsLocal(m.Library):
		errs = append(errs, fmt.Errorf("%s: library %q must be a path relative to the manifest that stays below its directory", file, m.Library))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return m, nil
}

func fill(body *hclsyntax.Body, where string, fields map[string]field, blocks map[string]map[string]field) []error {
	var errs []error
	for name, a := range body.Attributes {
		set, ok := fields[name]
		if !ok {
			errs = append(errs, fmt.Errorf("%s: unknown attribute %q%s%s", a.NameRange, name, where, nearest(name, fields)))
			continue
		}
		v, diags := a.Expr.Value(nil)
		if diags.HasErrors() {
			errs = append(errs, diags)
			continue
		}
		if v.IsNull() || !v.IsWhollyKnown() {
			errs = append(errs, fmt.Errorf("%s: %s has no value", a.NameRange, name))
			continue
		}
		if err := set(v); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s %w", a.NameRange, name, err))
		}
	}
	seen := map[string]hcl.Range{}
	for _, b := range body.Blocks {
		sub, ok := blocks[b.Type]
		switch first, dup := seen[b.Type]; {
		case !ok:
			errs = append(errs, fmt.Errorf("%s: unknown block %q%s", b.TypeRange, b.Type, nearest(b.Type, blocks)))
		case dup:
			errs = append(errs, fmt.Errorf("%s: block %q was given before at %s", b.TypeRange, b.Type, first))
		case len(b.Labels) > 0:
			errs = append(errs, fmt.Errorf("%s: block %q takes no label", b.TypeRange, b.Type))
		default:
			errs = append(errs, fill(b.Body, " in "+b.Type, sub, nil)...)
		}
		seen[b.Type] = b.TypeRange
	}
	return errs
}

// nearest suggests a known name, when one is close.
func nearest[V any](name string, known map[string]V) string {
	best, dist := "", 4
	for k := range known {
		if d := levenshtein.Distance(name, k, nil); d < dist || d == dist && k < best {
			best, dist = k, d
		}
	}
	if best == "" || dist >= max(2, len(name)) {
		return ""
	}
	return fmt.Sprintf("; did you mean %q?", best)
}
