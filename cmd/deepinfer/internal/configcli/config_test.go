package configcli

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/conf"
)

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	cmd := Command()
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestEveryExamplePassesCheck(t *testing.T) {
	files, err := filepath.Glob("../../../../conf/examples/*.hcl")
	if err != nil || len(files) < 5 {
		t.Fatalf("examples: found %d files, %v", len(files), err)
	}
	for _, f := range files {
		out, err := run(t, "check", f)
		if err != nil {
			t.Errorf("%v", err)
		}
		if !strings.Contains(out, f+": ok") {
			t.Errorf("%s: printed %q", f, out)
		}
	}
}

func TestABadFileEndsWithCode2AndAllProblems(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bad.hcl")
	if err := os.WriteFile(file, []byte("server {\n  lisen = 1\n}\nlog {\n  level = \"loud\"\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"check", file}, {"show", "-c", file}} {
		out, err := run(t, args...)
		var e *Error
		if !errors.As(err, &e) || e.ExitCode() != 2 {
			t.Fatalf("%v: got %v (%T), want *Error with code 2", args, err, err)
		}
		want := file + ":2:3: unknown key \"lisen\" in server; did you mean \"listen\"?\n" + file + ":5:11: log.level = \"loud\": want \"debug\", \"info\", \"warn\", \"error\""
		if err.Error() != want {
			t.Errorf("%v: got\n%v\nwant\n%s", args, err, want)
		}
		if len(conf.Problems(e.Unwrap())) != 2 {
			t.Errorf("%v: want two problems, got %v", args, conf.Problems(e.Unwrap()))
		}
		if out != "" {
			t.Errorf("%v: printed %q beside the error", args, out)
		}
	}
}

func TestAMissingFileAndAnUnknownFormatEndWithCode2(t *testing.T) {
	for want, args := range map[string][]string{
		"no such file": {"check", filepath.Join(t.TempDir(), "none.hcl")},
		`"yaml"`:       {"show", "--format", "yaml"},
	} {
		_, err := run(t, args...)
		var e *Error
		if !errors.As(err, &e) || e.ExitCode() != 2 || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want code 2 and %q", args, err, want)
		}
	}
}

func TestShowNamesTheOriginOfEachValue(t *testing.T) {
	t.Setenv("DEEPINFER_LOG__LEVEL", "warn")
	file := filepath.Join(t.TempDir(), "f.hcl")
	if err := os.WriteFile(file, []byte("limits {\n  queue = 9\n}\nauth {\n  api_keys = [\"sk-very-secret\"]\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := run(t, "show", "-c", file)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{file + ":2:11", "# environment DEEPINFER_LOG__LEVEL", "# default", `["********"]`} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "very-secret") {
		t.Error("the key is shown")
	}
}
