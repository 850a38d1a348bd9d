package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/hcl/v2/hclparse"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// LockName is the usual name of a lock file.
const LockName = "plugins.lock.hcl"

// Pin is what a lock file says of one backend; hashes are SHA-256 in hex.
type Pin struct{ Version, Manifest, Library string }

// Lock is a read lock file. Everything not in it is refused.
type Lock struct {
	Path string
	Pins map[string]Pin
}

// ReadLock reads a lock file.
func ReadLock(path string) (*Lock, error) {
	src, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	return parseLock(src, path)
}

func parseLock(src []byte, path string) (*Lock, error) {
	f, diags := hclparse.NewParser().ParseHCL(src, path)
	if diags.HasErrors() {
		return nil, fmt.Errorf("lock file: %w", diags)
	}
	body, ok := f.Body.(*hclsyntax.Body)
	if !ok {
		return nil, fmt.Errorf("lock file %s: not HCL native syntax", path)
	}
	l := &Lock{Path: path, Pins: map[string]Pin{}}
	var errs []error
	for name, a := range body.Attributes {
		errs = append(errs, fmt.Errorf("%s: unknown attribute %q", a.NameRange, name))
	}
	for _, b := range body.Blocks {
		if b.Type != "backend" || len(b.Labels) != 1 {
			errs = append(errs, fmt.Errorf(`%s: expected backend "NAME" { ... }`, b.TypeRange))
			continue
		}
		if _, dup := l.Pins[b.Labels[0]]; dup {
			errs = append(errs, fmt.Errorf("%s: backend %q is pinned twice", b.TypeRange, b.Labels[0]))
		}
		var p Pin
		errs = append(errs, fill(b.Body, " in backend", map[string]field{"version": text(&p.Version), "manifest": text(&p.Manifest), "library": text(&p.Library)}, nil)...)
		for what, h := range map[string]string{"manifest": p.Manifest, "library": p.Library} {
			if d, err := hex.DecodeString(h); err != nil || len(d) != sha256.Size {
				errs = append(errs, fmt.Errorf("%s: backend %q: %s must be a SHA-256 in hex", b.TypeRange, b.Labels[0], what))
			}
		}
		l.Pins[b.Labels[0]] = p
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return l, nil
}

// WriteLock pins every usable entry that has a library and writes the file. It returns the names pinned.
func WriteLock(path string, list []Entry) ([]string, error) {
	var out strings.Builder
	var names []string
	list = slices.Clone(list)
	slices.SortFunc(list, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	for _, e := range list {
		if e.State != Usable || e.Builtin {
			continue
		}
		sum, err := HashFile(e.LibPath)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "backend %s {\n  version  = %s\n  manifest = %q\n  library  = %q\n}\n\n", quote(e.Name), quote(e.Version), e.SHA256, sum)
		names = append(names, e.Name)
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".lock-*")
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	_, err = tmp.WriteString(out.String())
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		os.Remove(tmp.Name())
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	return names, nil
}

// HashFile is the SHA-256 of a file's content, in hex.
func HashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("hash %s: %w", path, err)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// quote writes an HCL string literal without interpolation.
func quote(s string) string {
	return strings.NewReplacer("${", "$${", "%{", "%%{").Replace(strconv.Quote(s))
}
