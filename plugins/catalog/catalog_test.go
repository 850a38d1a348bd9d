package catalog

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"testing"
)

const good = `
name        = "good"
version     = "1.2.0"
abi         = "1.0"
library     = "good.so"
licence     = "Apache-2.0"
deps        = ["libx.so"]
requires {
  os   = ["linux"]
  arch = "amd64"
  cpu  = ["avx2"]
}
sandbox {
  devices = ["/dev/null"]
  network = false
}
`

func TestParse(t *testing.T) {
	m, err := Parse([]byte(good), "good.backend.hcl")
	if err != nil {
		t.Fatal(err)
	}
	want := &Manifest{Name: "good", Version: "1.2.0", ABIMajor: 1, Library: "good.so", Licence: "Apache-2.0", Score: DefaultScore, Deps: []string{"libx.so"},
		OS: []string{"linux"}, Arch: []string{"amd64"}, CPU: []string{"avx2"}, Devices: []string{"/dev/null"}}
	if !reflect.DeepEqual(m, want) {
		t.Errorf("got  %+v\nwant %+v", m, want)
	}
}

func TestParseNamesEveryProblem(t *testing.T) {
	for name, c := range map[string]struct{ src, want string }{
		"syntax":            {"name = ", "m.hcl:1"},
		"misspelt key":      {good + "\nlibary = \"x\"", `unknown attribute "libary"; did you mean "library"?`},
		"misspelt block":    {good + "\nsandbx {}", `unknown block "sandbx"; did you mean "sandbox"?`},
		"misspelt inner":    {strings.Replace(good, "cpu ", "cpus ", 1), `unknown attribute "cpus" in requires; did you mean "cpu"?`},
		"missing name":      {strings.Replace(good, `name        = "good"`, "", 1), "name is missing"},
		"missing library":   {strings.Replace(good, `library     = "good.so"`, "", 1), "library is missing"},
		"missing abi":       {strings.Replace(good, `abi         = "1.0"`, "", 1), "abi is missing"},
		"bad abi":           {strings.Replace(good, `"1.0"`, `"one"`, 1), `abi must be MAJOR or MAJOR.MINOR`},
		"bad name":          {strings.Replace(good, `"good"`, `"Good Backend"`, 1), `name "Good Backend"`},
		"absolute library":  {strings.Replace(good, `"good.so"`, `"/lib/good.so"`, 1), "relative to the manifest"},
		"escaping library":  {strings.Replace(good, `"good.so"`, `"../good.so"`, 1), "stays below its directory"},
		"wrong type":        {strings.Replace(good, `"1.2.0"`, "3", 1), "version must be a string"},
		"score range":       {good + "\nscore = 5000", "whole number from 0 to 1000"},
		"interpolation":     {strings.Replace(good, `"1.2.0"`, `"${x}"`, 1), "m.hcl:3"},
		"repeated block":    {good + "\nsandbox {}", "was given before"},
		"labelled block":    {strings.Replace(good, "sandbox {", `sandbox "x" {`, 1), "takes no label"},
		"list of numbers":   {strings.Replace(good, `["libx.so"]`, "[1]", 1), "deps must be a string or a list of strings"},
		"null":              {strings.Replace(good, `"1.2.0"`, "null", 1), "version has no value"},
		"position is given": {strings.Replace(good, `"1.2.0"`, "true", 1), "m.hcl:3,1-8"},
	} {
		if _, err := Parse([]byte(c.src), "m.hcl"); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want it to say %q", name, err, c.want)
		}
	}
	if _, err := Parse([]byte("name = 1\nversion = 2"), "m.hcl"); err == nil || strings.Count(err.Error(), "\n") < 3 {
		t.Errorf("not all problems at once: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, b []byte) {
		if m, err := Parse(b, "f"); err == nil && (m.Name == "" || m.Library == "") {
			t.Errorf("accepted without name or library: %+v", m)
		}
	})
}

// compile builds a shared object; the test is skipped without a compiler.
func compile(t *testing.T, dir, name, source string, flags ...string) {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: shared objects for this test cannot be built")
	}
	src := filepath.Join(dir, name+".c")
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(gcc, append([]string{"-shared", "-fPIC", "-o", filepath.Join(dir, name), src}, flags...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const entrySource = `unsigned di_backend_v1(void *a, void *b, void *c) { return 12; }`

// manifest is good's text for another name and this machine.
func manifest(name string) string {
	return strings.NewReplacer(`"good"`, `"`+name+`"`, "good.so", name+".so", `"amd64"`, `"`+runtime.GOARCH+`"`, `"linux"`, `"`+runtime.GOOS+`"`).Replace(good)
}

func TestScanChecksWithoutLoading(t *testing.T) {
	dir := t.TempDir()
	// A constructor that ends the process shows that nothing is loaded here.
	compile(t, dir, "good.so", entrySource+"\n#include <stdlib.h>\n__attribute__((constructor)) static void c(void) { abort(); }")
	compile(t, dir, "old.so", `int di_backend_v0(void) { return 0; }`)
	compile(t, dir, "stranger.so", `int hello(void) { return 0; }`)
	for _, n := range []string{"good", "old", "stranger", "absent", "text", "twice"} {
		write(t, filepath.Join(dir, n+Suffix), manifest(n))
	}
	write(t, filepath.Join(dir, "text.so"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "foreign"+Suffix), strings.Replace(strings.Replace(manifest("foreign"), runtime.GOARCH, "pdp11", 1), "foreign.so", "good.so", 1))
	write(t, filepath.Join(dir, "future"+Suffix), strings.Replace(strings.Replace(manifest("future"), `"1.0"`, `"7.3"`, 1), "future.so", "good.so", 1))
	write(t, filepath.Join(dir, "renamed"+Suffix), strings.Replace(manifest("good"), `"good"`, `"other"`, 1))
	write(t, filepath.Join(dir, "broken"+Suffix), "name = {")
	write(t, filepath.Join(dir, "open.so"), "")
	write(t, filepath.Join(dir, "open"+Suffix), manifest("open"))
	if err := os.Chmod(filepath.Join(dir, "open.so"), 0o666); err != nil {
		t.Fatal(err)
	}
	second := t.TempDir()
	compile(t, second, "good.so", entrySource)
	write(t, filepath.Join(second, "good"+Suffix), manifest("good"))

	list := Scan([]string{dir, second, filepath.Join(dir, "nowhere")}, Options{})
	want := map[string]string{
		"good": "", "old": "exports di_backend_v0, this release loads di_backend_v1", "stranger": "does not export di_backend_v1", "absent": "no such file", "text": "not an ELF file",
		"twice": "no such file", "foreign": "needs architecture pdp11", "future": "ABI 7.3, this release loads 1.x", "other": "the file must be called", "broken": "manifest:", "open": "writable for everyone",
	}
	usable := 0
	for _, e := range list {
		if e.State == Usable {
			usable++
			if e.Name != "good" || e.Dir != dir {
				t.Errorf("usable: %+v", e)
			}
			continue
		}
		switch {
		case e.Dir == second:
			if !strings.Contains(e.Reason.Error(), "already defined by "+filepath.Join(dir, "good"+Suffix)) {
				t.Errorf("second good: %v", e.Reason)
			}
		case e.Name == "":
			if !strings.Contains(e.Reason.Error(), "nowhere") {
				t.Errorf("missing directory: %v", e.Reason)
			}
		case want[e.Name] == "" || !strings.Contains(e.Reason.Error(), want[e.Name]):
			t.Errorf("%s: %v, want it to say %q", e.Name, e.Reason, want[e.Name])
		}
	}
	if usable != 1 || len(list) != len(want)+2 {
		t.Errorf("%d entries, %d usable", len(list), usable)
	}
}

func TestChoose(t *testing.T) {
	list := []Entry{Builtin("ref", "1", 10), Builtin("null", "1", 0), {Manifest: Manifest{Name: "cpu", Score: 50}, State: Usable}, {Manifest: Manifest{Name: "bpu", Score: 50}, State: Usable},
		{Manifest: Manifest{Name: "sm100", Score: 90}, State: Refused, Reason: os.ErrNotExist}}
	if e, err := Choose(list, ""); err != nil || e.Name != "bpu" {
		t.Errorf("highest score, ties by name: %v %v", e.Name, err)
	}
	if e, err := Choose(list, "null"); err != nil || e.Name != "null" {
		t.Errorf("explicit: %v %v", e.Name, err)
	}
	if _, err := Choose(list, "sm100"); err == nil || !strings.Contains(err.Error(), "file does not exist") {
		t.Errorf("a refused backend is never replaced by another: %v", err)
	}
	if _, err := Choose(list, "cpuu"); err == nil || !strings.Contains(err.Error(), `did you mean "cpu"?`) || !strings.Contains(err.Error(), "bpu, cpu, null, ref, sm100") {
		t.Errorf("misspelt: %v", err)
	}
	if _, err := Choose(list[1:2], ""); err == nil {
		t.Error("a backend of score 0 was picked by itself")
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	compile(t, dir, "good.so", entrySource)
	write(t, filepath.Join(dir, "good"+Suffix), manifest("good"))
	path := filepath.Join(dir, LockName)
	names, err := WriteLock(path, Scan([]string{dir}, Options{}))
	if err != nil || !reflect.DeepEqual(names, []string{"good"}) {
		t.Fatal(names, err)
	}
	lock, err := ReadLock(path)
	if err != nil {
		t.Fatal(err)
	}
	e := Scan([]string{dir}, Options{Lock: lock})[0]
	if e.State != Usable || len(e.Pinned) != 64 {
		t.Fatalf("%+v", e)
	}
	write(t, filepath.Join(dir, "good"+Suffix), manifest("good")+"\n")
	if e := Scan([]string{dir}, Options{Lock: lock})[0]; e.State != Refused || !strings.Contains(e.Reason.Error(), "plugin lock") {
		t.Errorf("changed manifest: %v", e.Reason)
	}
	if e := Scan([]string{dir}, Options{Lock: &Lock{Path: "empty"}})[0]; e.State != Refused || !strings.Contains(e.Reason.Error(), "not in the lock file") {
		t.Errorf("unpinned: %v", e.Reason)
	}
	// The directory's own lock file counts without being asked for, also when it is broken.
	if e := Scan([]string{dir}, Options{})[0]; e.State != Refused || !strings.Contains(e.Reason.Error(), "plugin lock") {
		t.Errorf("lock file of the directory was overlooked: %+v", e)
	}
	write(t, path, "broken {")
	if l := Scan([]string{dir}, Options{}); len(l) != 2 || l[0].State != Refused || l[1].State != Refused {
		t.Errorf("broken lock file: %+v", l)
	}
	for _, bad := range []string{"x = 1", `backend {}`, `backend "a" { library = "zz" }`, "backend \"a\" {"} {
		if _, err := parseLock([]byte(bad), "l.hcl"); err == nil {
			t.Errorf("accepted: %s", bad)
		}
	}
	if quote(`a${b}`) != `"a$${b}"` {
		t.Error(quote(`a${b}`))
	}
}
