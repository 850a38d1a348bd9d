package plugincli

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/plugins/catalog"
)

// run executes the command and returns its output and error.
func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := New(Defaults{})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

// directory has a good backend, one without a library and one for another ABI.
func directory(t *testing.T) string {
	t.Helper()
	gcc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("no gcc: libraries for this test cannot be built")
	}
	dir := t.TempDir()
	src := filepath.Join(dir, "good.c")
	for name, text := range map[string]string{
		"good.c":                  "#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { _Exit(5); }\nunsigned di_backend_v1(void *a, void *b, void *c) { return 14; }",
		"good" + catalog.Suffix:   "name = \"good\"\nversion = \"1.0\"\nabi = \"1.0\"\nlibrary = \"good.so\"\nscore = 90\n",
		"absent" + catalog.Suffix: "name = \"absent\"\nversion = \"1.0\"\nabi = \"1.0\"\nlibrary = \"absent.so\"\n",
		"future" + catalog.Suffix: "name = \"future\"\nversion = \"1.0\"\nabi = \"9.0\"\nlibrary = \"good.so\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", filepath.Join(dir, "good.so"), src).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

func TestList(t *testing.T) {
	dir := directory(t)
	out, err := run(t, "list", "--dir", dir, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []row
	if err := json.Unmarshal([]byte(out), &rows); err != nil {
		t.Fatal(err)
	}
	got := map[string]row{}
	for _, r := range rows {
		got[r.Name] = r
	}
	if r := got["good"]; r.State != "usable" || !r.Default || r.Version != "1.0" || r.ABI != "1.0" || r.Library != filepath.Join(dir, "good.so") {
		t.Errorf("good: %+v", r)
	}
	if r := got["absent"]; r.State != "refused" || !strings.Contains(r.Reason, "absent.so") {
		t.Errorf("absent: %+v", r)
	}
	if r := got["future"]; r.State != "refused" || !strings.Contains(r.Reason, "ABI 9.0, this release loads 1.x") {
		t.Errorf("future: %+v", r)
	}
	for _, n := range []string{"ref", "null", "fault"} {
		if r := got[n]; !r.Builtin || r.State != "usable" || r.Default {
			t.Errorf("%s: %+v", n, r)
		}
	}
	text, err := run(t, "list", "--dir", dir)
	if err != nil || !strings.Contains(text, "usable, default") || !strings.Contains(text, "future is refused:") {
		t.Errorf("%v\n%s", err, text)
	}
	if text, err := run(t, "list"); err != nil || !strings.Contains(text, "ref") {
		t.Errorf("without directories: %v\n%s", err, text)
	}
}

func TestDirectoriesFromTheConfiguration(t *testing.T) {
	dir := directory(t)
	file := filepath.Join(t.TempDir(), "c.hcl")
	if err := os.WriteFile(file, []byte("backend \"good\" {\n  directories = [\""+dir+"\"]\n}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := run(t, "list", "-c", file); err != nil || !strings.Contains(out, "good") {
		t.Errorf("%v\n%s", err, out)
	}
	if err := os.WriteFile(file, []byte("backnd \"good\" {}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := run(t, "list", "-c", file)
	var code interface{ ExitCode() int }
	if !errors.As(err, &code) || code.ExitCode() != 2 || !strings.Contains(err.Error(), "backnd") {
		t.Errorf("bad configuration: %v", err)
	}
}

func TestProbe(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("worker processes need Linux")
	}
	dir := directory(t)
	worker := filepath.Join(t.TempDir(), "deepinfer-worker")
	build := exec.Command("go", "build", "-o", worker, "github.com/deepinfer-go/deepinfer/cmd/deepinfer-worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := run(t, "probe", "--dir", dir, "--worker", worker, "--json")
	if err != nil {
		t.Fatal(err)
	}
	var list []report
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]report{}
	for _, r := range list {
		got[r.Backend] = r
	}
	if r := got["ref"]; r.Result != "ok" || len(r.Devices) != 1 {
		t.Errorf("ref: %+v", r)
	}
	if r := got["good"]; r.Result != "crashed" || !strings.Contains(r.Reason, "exit status 5") {
		t.Errorf("good ends its process: %+v", r)
	}
	if r := got["absent"]; r.Result != "refused" {
		t.Errorf("absent: %+v", r)
	}
	text, err := run(t, "probe", "--dir", dir, "--worker", worker, "good", "ref")
	var code interface{ ExitCode() int }
	if !errors.As(err, &code) || code.ExitCode() != 1 || !strings.Contains(text, "device 0: ") {
		t.Errorf("%v\n%s", err, text)
	}
	if _, err := run(t, "probe", "--dir", dir, "--worker", worker, "goood"); err == nil || !strings.Contains(err.Error(), `did you mean "good"?`) {
		t.Error(err)
	}
	if _, err := run(t, "probe"); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Error(err)
	}
}

func TestLockAndVerify(t *testing.T) {
	dir := directory(t)
	if out, err := run(t, "lock", "--dir", dir); err != nil || !strings.Contains(out, "pins 1 backends: good") {
		t.Fatal(out, err)
	}
	for _, n := range []string{"absent", "future"} {
		if err := os.Remove(filepath.Join(dir, n+catalog.Suffix)); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := run(t, "verify", "--dir", dir); err != nil || !strings.Contains(out, "good: ok") {
		t.Fatal(out, err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "good.so"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString("x")
	f.Close()
	out, err := run(t, "verify", "--dir", dir)
	var code interface{ ExitCode() int }
	if !errors.As(err, &code) || code.ExitCode() != 1 || !strings.Contains(out, "pinned is") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err := run(t, "lock", "--dir", dir); err != nil || !strings.Contains(out, "pins 1 backends: good") {
		t.Errorf("a wanted change is not accepted: %v\n%s", err, out)
	}
	if out, err := run(t, "verify", "--dir", dir); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := run(t, "verify", "--dir", t.TempDir()); err == nil || !strings.Contains(err.Error(), "plugin lock") {
		t.Error(err)
	}
	if _, err := run(t, "lock"); err == nil || !strings.Contains(err.Error(), "--dir") {
		t.Error(err)
	}
}
