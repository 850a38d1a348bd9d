//go:build linux

package probe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/plugins/catalog"
)

var workerPath string

func TestMain(m *testing.M) { os.Exit(setup(m)) }

func setup(m *testing.M) int {
	dir, err := os.MkdirTemp("", "probe-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	workerPath = filepath.Join(dir, "deepinfer-worker")
	build := exec.Command("go", "build", "-o", workerPath, "github.com/deepinfer-go/deepinfer/cmd/deepinfer-worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build worker: %v\n%s", err, out)
		return 1
	}
	return m.Run()
}

func probe(t *testing.T, e catalog.Entry, timeout time.Duration) Report {
	t.Helper()
	before := runtime.NumGoroutine()
	r := Run(context.Background(), e, Options{Worker: workerPath, Timeout: timeout})
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	if n := runtime.NumGoroutine(); n > before {
		buf := make([]byte, 1<<16)
		t.Errorf("%d goroutines before, %d after\n%s", before, n, buf[:runtime.Stack(buf, true)])
	}
	return r
}

func TestBuiltin(t *testing.T) {
	r := probe(t, catalog.Builtin("ref", "1", 10), 0)
	if r.Result != OK || len(r.Devices) != 1 || r.Devices[0].Cores < 1 || len(r.Layers) == 0 || r.Took <= 0 {
		t.Errorf("%+v", r)
	}
}

func TestRefusedIsNotTried(t *testing.T) {
	r := Run(context.Background(), catalog.Entry{Manifest: catalog.Manifest{Name: "x"}, State: catalog.Refused, Reason: os.ErrPermission}, Options{Worker: "/nonexistent"})
	if r.Result != Refused || !strings.Contains(r.Reason, "permission") {
		t.Errorf("%+v", r)
	}
}

// scan builds a library, writes its manifest and returns the catalogue's entry.
func scan(t *testing.T, name, source string) catalog.Entry {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: libraries for this test cannot be built")
	}
	dir := t.TempDir()
	src := filepath.Join(dir, name+".c")
	manifest := fmt.Sprintf("name = %q\nversion = \"1\"\nabi = \"1.0\"\nlibrary = \"%s.so\"\n", name, name)
	for path, text := range map[string]string{src: source, filepath.Join(dir, name+catalog.Suffix): manifest} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", filepath.Join(dir, name+".so"), src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	list := catalog.Scan([]string{dir}, catalog.Options{})
	if len(list) != 1 || list[0].State != catalog.Usable {
		t.Fatalf("%+v", list)
	}
	return list[0]
}

const entry = "unsigned di_backend_v1(void *a, void *b, void *c) "

func TestBadLibrariesAreLines(t *testing.T) {
	for name, c := range map[string]struct {
		source, result, want string
		timeout              time.Duration
	}{
		"abort-on-load": {"#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { fputs(\"no licence\\n\", stderr); abort(); }\n" + entry + "{ return 0; }", Crashed, "no licence", 0},
		"exit-on-load":  {"#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { _Exit(9); }\n" + entry + "{ return 0; }", Crashed, "exit status 9", 0},
		"hang-on-load":  {"#include <unistd.h>\n__attribute__((constructor)) static void f(void) { for (;;) pause(); }\n" + entry + "{ return 0; }", Hung, "no answer within 700ms", 700 * time.Millisecond},
		"says-no":       {"#include <stdint.h>\n" + entry + "{ return 14; }", Failed, "says-no", 0},
		"empty-tables":  {entry + "{ return 0; }", Failed, "empty-tables", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := probe(t, scan(t, name, c.source), c.timeout)
			if r.Result != c.result || !strings.Contains(r.Reason, c.want) || len(r.SHA256) != 64 {
				t.Errorf("%s: %s\nwant %s: %s", r.Result, r.Reason, c.result, c.want)
			}
		})
	}
}

func TestChangedLibraryIsRefused(t *testing.T) {
	e := scan(t, "pinned", entry+"{ return 0; }")
	e.Pinned = strings.Repeat("ab", 32)
	if r := probe(t, e, 0); r.Result != Refused || !strings.Contains(r.Reason, "pinned is abab") {
		t.Errorf("%+v", r)
	}
}
