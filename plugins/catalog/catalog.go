package catalog

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Suffix ends the name of a manifest.
const Suffix = ".backend.hcl"

// States of an entry.
const (
	Usable  = "usable"
	Refused = "refused"
)

// Entry is one backend: a manifest on disk, or one built into the program.
type Entry struct {
	Manifest
	Builtin bool
	Path    string // manifest, absolute; empty for built-in ones
	LibPath string // library, absolute
	Dir     string // directory of the manifest
	SHA256  string // of the manifest
	Pinned  string // SHA-256 of the library demanded by the lock file, empty = none
	State   string
	Reason  error // why refused
}

// Options says what this machine is; zero values mean the running one.
type Options struct {
	OS, Arch string
	Unpinned bool  // read no lock file
	Lock     *Lock // pins for every directory; nil = each directory's own plugins.lock.hcl, where there is one
}

// Builtin describes a backend linked into the program. score 0: only when named.
func Builtin(name, version string, score int) Entry {
	return Entry{Manifest: Manifest{Name: name, Version: version, ABIMajor: abi.ABIMajor, ABIMinor: abi.ABIMinor, Score: score}, Builtin: true, State: Usable}
}

// Scan reads every manifest of the directories, in order, and checks each without loading anything. Problems are entries with state Refused, never a reason to stop: one
// broken backend does not hide the others. A directory that cannot be read is an entry without a name.
func Scan(dirs []string, opt Options) []Entry {
	if opt.OS == "" {
		opt.OS = runtime.GOOS
	}
	if opt.Arch == "" {
		opt.Arch = runtime.GOARCH
	}
	var out []Entry
	for _, dir := range dirs {
		abs, err := filepath.Abs(dir)
		if err == nil {
			dir = abs
		}
		names, err := fs.Glob(os.DirFS(dir), "*"+Suffix)
		if err == nil && len(names) == 0 {
			_, err = os.ReadDir(dir) // tells "empty" from "unreadable"
		}
		if err != nil {
			out = append(out, Entry{Dir: dir, State: Refused, Reason: fmt.Errorf("backend directory: %w", err)})
			continue
		}
		slices.Sort(names)
		here := opt
		if path := filepath.Join(dir, LockName); here.Lock == nil && !opt.Unpinned {
			switch here.Lock, err = ReadLock(path); {
			case errors.Is(err, fs.ErrNotExist):
				here.Lock = nil
			case err != nil: // a lock that cannot be read pins nothing, so nothing is accepted
				out = append(out, Entry{Dir: dir, State: Refused, Reason: err})
				here.Lock = &Lock{Path: path}
			}
		}
		for _, n := range names {
			out = append(out, load(filepath.Join(dir, n), here))
		}
	}
	return Unique(out)
}

// Unique refuses every entry whose name an earlier usable one has: two backends of one name are a mistake that must be seen.
func Unique(list []Entry) []Entry {
	first := map[string]string{}
	for i := range list {
		e := &list[i]
		if e.Name == "" || e.State != Usable {
			continue
		}
		if where, dup := first[e.Name]; dup {
			e.State, e.Reason = Refused, fmt.Errorf("backend %q is already defined by %s", e.Name, where)
			continue
		}
		first[e.Name] = e.Path
		if e.Builtin {
			first[e.Name] = "the program itself"
		}
	}
	return list
}

const maxManifest = 1 << 20

func load(path string, opt Options) Entry {
	e := Entry{Path: path, Dir: filepath.Dir(path), State: Refused}
	st, err := os.Stat(path)
	if err == nil && st.Size() > maxManifest {
		err = fmt.Errorf("%s: %d bytes, a manifest has at most %d", path, st.Size(), maxManifest)
	}
	var src []byte
	if err == nil {
		src, err = os.ReadFile(path)
	}
	if err != nil {
		e.Reason = fmt.Errorf("manifest: %w", err)
		return e
	}
	sum := sha256.Sum256(src)
	e.SHA256 = hex.EncodeToString(sum[:])
	base := strings.TrimSuffix(filepath.Base(path), Suffix)
	m, err := Parse(src, path)
	if err != nil {
		e.Name, e.Reason = base, err
		return e
	}
	e.Manifest = *m
	e.LibPath = filepath.Join(e.Dir, m.Library)
	if err := e.check(base, opt); err != nil {
		e.Reason = err
		return e
	}
	e.State = Usable
	return e
}

// check returns everything that is wrong, so that one look is enough.
func (e *Entry) check(base string, opt Options) error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if base != e.Name {
		bad("%s names backend %q; the file must be called %s%s", e.Path, e.Name, e.Name, Suffix)
	}
	if e.ABIMajor != abi.ABIMajor {
		bad("%s: ABI %d.%d, this release loads %d.x; install backend %s for this release", e.Path, e.ABIMajor, e.ABIMinor, abi.ABIMajor, e.Name)
	}
	if len(e.OS) > 0 && !slices.Contains(e.OS, opt.OS) {
		bad("%s: needs operating system %s, this is %s", e.Path, strings.Join(e.OS, " or "), opt.OS)
	}
	if len(e.Arch) > 0 && !slices.Contains(e.Arch, opt.Arch) {
		bad("%s: needs architecture %s, this is %s", e.Path, strings.Join(e.Arch, " or "), opt.Arch)
	}
	if opt.Lock != nil {
		if p, ok := opt.Lock.Pins[e.Name]; !ok {
			bad("%s: not in the lock file %s; run `deepinfer plugin lock`", e.Path, opt.Lock.Path)
		} else {
			e.Pinned = p.Library
			if p.Manifest != e.SHA256 {
				bad("%s: sha256 is %s, the lock file %s has %s; run `deepinfer plugin lock` if the change is wanted", e.Path, e.SHA256, opt.Lock.Path, p.Manifest)
			}
		}
	}
	f, err := os.Open(e.LibPath)
	if err != nil {
		bad("library: %w", err)
		return errors.Join(errs...)
	}
	defer f.Close()
	st, err := f.Stat()
	switch {
	case err != nil:
		bad("library: %w", err)
	case !st.Mode().IsRegular():
		bad("library %s is not a regular file", e.LibPath)
	default:
		for _, p := range []string{e.Dir, e.LibPath} {
			if err := trusted(p); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == 0 { // of a foreign machine's library nothing else is worth saying
			if err := CheckLibrary(f, opt.Arch); err != nil {
				bad("library %s: %w", e.LibPath, err)
			}
		}
	}
	return errors.Join(errs...)
}

// Choose picks a backend: the one named, or without a name the usable one with the highest score, ties by name. A named backend that is missing or refused is an
// error with the reason; nothing else is taken in its place.
func Choose(list []Entry, name string) (Entry, error) {
	if name != "" {
		known := map[string]bool{}
		var refused *Entry
		for i := range list {
			e := &list[i]
			if e.Name == name && e.State == Usable {
				return *e, nil
			}
			if e.Name == name && refused == nil {
				refused = e
			}
			if e.Name != "" {
				known[e.Name] = true
			}
		}
		if refused != nil {
			return Entry{}, fmt.Errorf("backend %q cannot be used: %w", name, refused.Reason)
		}
		names := make([]string, 0, len(known))
		for k := range known {
			names = append(names, k)
		}
		if len(names) == 0 {
			return Entry{}, fmt.Errorf("no backend named %q: no library is installed", name)
		}
		slices.Sort(names)
		return Entry{}, fmt.Errorf("no backend named %q; installed: %s%s", name, strings.Join(names, ", "), nearest(name, known))
	}
	best := -1
	var reasons []error
	for i := range list {
		e := &list[i]
		if e.State != Usable {
			reasons = append(reasons, e.Reason)
			continue
		}
		if e.Score > 0 && (best < 0 || e.Score > list[best].Score || e.Score == list[best].Score && e.Name < list[best].Name) {
			best = i
		}
	}
	if best < 0 {
		return Entry{}, errors.Join(append([]error{errors.New("no usable backend")}, reasons...)...)
	}
	return list[best], nil
}
