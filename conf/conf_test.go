package conf

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// The scripts in testdata hold files, variables and flags with the exact text of what Load says; -rewrite writes them anew, for review as a diff.
//
//	load [env=(A=1, B=2)] [flag=(server.listen=:1)] [show=(server.listen, ...)] [warn]
func TestScripts(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd != "load" {
				d.Fatalf(t, "unknown command %s", d.Cmd)
			}
			var environ, paths []string
			flags := map[string]any{}
			warn := false
			for _, a := range d.CmdArgs {
				switch a.Key {
				case "env":
					environ = a.Vals
				case "flag":
					for _, f := range a.Vals {
						k, v, _ := strings.Cut(f, "=")
						flags[k] = v
					}
				case "show":
					paths = a.Vals
				case "warn":
					warn = true
				default:
					d.Fatalf(t, "unknown argument %s", a.Key)
				}
			}
			c, err := load("f.hcl", []byte(d.Input), environ, flags)
			if err != nil {
				return err.Error() + "\n"
			}
			var b strings.Builder
			flat := c.flat()
			for _, p := range paths {
				p = strings.NewReplacer("<", `"`, ">", `"`, "_B_", " ").Replace(p) // arguments of a script hold neither quotes nor blanks
				v, ok := flat[p]
				if !ok {
					d.Fatalf(t, "no value %s; there are %v", p, slices.Sorted(func(yield func(string) bool) {
						for k := range flat {
							if !yield(k) {
								return
							}
						}
					}))
				}
				fmt.Fprintf(&b, "%s = %s # %s\n", p, literal(v.Value), v.Origin)
			}
			if warn {
				for _, w := range c.Warnings() {
					fmt.Fprintf(&b, "warning: %s\n", w)
				}
			}
			if b.Len() == 0 {
				return "ok\n"
			}
			return b.String()
		})
	})
}

func TestDefaultIsValidAndWithoutWarnings(t *testing.T) {
	c := Default()
	if err := c.Validate(); err != nil {
		t.Errorf("the defaults have problems:\n%v", err)
	}
	if w := c.Warnings(); len(w) > 0 {
		t.Errorf("the defaults have warnings: %v", w)
	}
	if loaded, err := Load("", nil, nil); err != nil {
		t.Error(err)
	} else if loaded.origins = nil; !reflect.DeepEqual(loaded, c) {
		t.Errorf("Load without anything gives\n%+v\nDefault gives\n%+v", loaded, c)
	}
}

func TestEveryExampleIsValid(t *testing.T) {
	files, err := filepath.Glob("examples/*.hcl")
	if err != nil || len(files) < 5 {
		t.Fatalf("examples: found %d files, %v", len(files), err)
	}
	for _, f := range files {
		if _, err := Load(f, nil, nil); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// What Show prints is a file that gives the same configuration back.
func TestShowIsAFileThatLoads(t *testing.T) {
	files, _ := filepath.Glob("examples/*.hcl")
	for _, f := range append(files, "") {
		c, err := Load(f, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		roundTrip(t, c)
	}
}

func roundTrip(t *testing.T, c *Config) {
	t.Helper()
	var b bytes.Buffer
	if err := c.Show(&b, "hcl"); err != nil {
		t.Fatal(err)
	}
	again, err := load("shown.hcl", b.Bytes(), nil, nil)
	if err != nil {
		t.Fatalf("what Show printed does not load: %v\n%s", err, b.String())
	}
	// Paths are made relative to the file once more: compare with those taken back.
	want, got := *c, *again
	want.origins, got.origins = nil, nil
	if !reflect.DeepEqual(toMap(schema, reflect.ValueOf(want)), toMap(schema, reflect.ValueOf(got))) {
		t.Fatalf("round trip differs\nwant %+v\ngot  %+v\ntext %s", want, got, b.String())
	}
}

func TestShowMasksSecrets(t *testing.T) {
	const secret = "sk-0123456789-visible"
	c, err := load("f.hcl", []byte(`auth { api_keys = ["`+secret+`"] }`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"hcl", "json"} {
		var b bytes.Buffer
		if err := c.Show(&b, format); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(b.String(), secret) || !strings.Contains(b.String(), "********") {
			t.Errorf("%s shows the key, or no mask:\n%s", format, b.String())
		}
	}
	if err := c.Show(&bytes.Buffer{}, "yaml"); err == nil || !strings.Contains(err.Error(), `"yaml"`) {
		t.Errorf("unknown format: %v", err)
	}
}

func TestProblemsNeverRepeatASecret(t *testing.T) {
	const secret = "sk-hidden-0123"
	for name, load := range map[string]func() error{
		"wrong type in the file": func() error { _, err := load("f", []byte(`auth { api_keys = "`+secret+`" }`), nil, nil); return err },
		"twice": func() error {
			_, err := load("f", []byte(`auth { api_keys = ["`+secret+`","`+secret+`"] }`), nil, nil)
			return err
		},
		"broken JSON": func() error { _, err := Load("", []string{`DEEPINFER_AUTH__API_KEYS=["` + secret}, nil); return err },
		"short":       func() error { _, err := Load("", []string{`DEEPINFER_AUTH__API_KEYS=sk-hid`}, nil); return err },
	} {
		if err := load(); err == nil {
			t.Errorf("%s: accepted", name)
		} else if strings.Contains(err.Error(), "sk-hid") {
			t.Errorf("%s: the message repeats the key: %v", name, err)
		}
	}
}

func TestJSONFormIsKeyedByPath(t *testing.T) {
	c, err := load("f.hcl", []byte("backend \"cpu\" {\n  threads = 4\n}"), []string{"DEEPINFER_SERVER__LISTEN=:81"}, map[string]any{"log.level": "debug"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := c.Show(&b, "json"); err != nil {
		t.Fatal(err)
	}
	var got map[string]Shown
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]Shown{
		`backend "cpu".threads`: {4.0, "f.hcl:2:13"},
		"server.listen":         {":81", "environment DEEPINFER_SERVER__LISTEN"},
		"log.level":             {"debug", "flag log.level"},
		"scheduler.max_seqs":    {64.0, "default"},
	} {
		if got[path] != want {
			t.Errorf("%s: got %v, want %v", path, got[path], want)
		}
	}
}

func TestFlagsMayBeTyped(t *testing.T) {
	c, err := Load("", nil, map[string]any{
		"server.read_timeout":   3 * time.Second,
		"cache.memory":          Size(1 << 30),
		"backend.v1.2.devices":  []int{1, 0},
		"server.cors_origins":   []string{"*"},
		"scheduler.max_seqs":    8,
		"telemetry.sampling":    0.5,
		"backend.v1.2.required": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Server.ReadTimeout != 3*time.Second || c.Cache.Memory != 1<<30 || c.Scheduler.MaxSeqs != 8 || c.Telemetry.Sampling != 0.5 ||
		!slices.Equal(c.Server.CORSOrigins, []string{"*"}) {
		t.Errorf("got %+v", c)
	}
	if len(c.Backends) != 1 || c.Backends[0].Name != "v1.2" || !slices.Equal(c.Backends[0].Devices, []int{1, 0}) || !c.Backends[0].Required {
		t.Errorf("backends %+v", c.Backends)
	}
}

func TestBackendIsTheOneWithTheLowestOrderOrTheNamedOne(t *testing.T) {
	c, err := load("f.hcl", []byte(`
		backend "a" { order = 2 }
		backend "b" {
			order   = 1
			library = "cpu"
		}
		backend "c" { order = 1 }`), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, ok := c.Backend(""); !ok || b.Name != "b" || b.LibraryName() != "cpu" {
		t.Errorf("lowest order: got %q %v", b.Name, ok)
	}
	if b, ok := c.Backend("a"); !ok || b.Name != "a" || b.LibraryName() != "a" {
		t.Errorf("named: got %q %v", b.Name, ok)
	}
	if b, ok := c.Backend("ref"); !ok || b.LibraryName() != "ref" || b.Step.Depth != 1 {
		t.Errorf("without a block: got %+v %v", b, ok)
	}
	if _, ok := Default().Backend(""); ok {
		t.Error("no block: want the caller to choose")
	}
}

func TestPathsOfAFileAreRelativeToIt(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "sub", "f.hcl")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("model \"m\" {\n path = \"../weights\"\n}\nbackend \"cpu\" {\n directories = [\"x\", \"/y\"]\n}"), 0o644); err != nil {
		t.Fatal(err)
	}
	c, err := Load(file, []string{"DEEPINFER_AUTH__FILE=keys"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "weights"); c.Models[0].Path != want {
		t.Errorf("path %s, want %s", c.Models[0].Path, want)
	}
	if want := []string{filepath.Join(dir, "sub", "x"), "/y"}; !slices.Equal(c.Backends[0].Directories, want) {
		t.Errorf("directories %v, want %v", c.Backends[0].Directories, want)
	}
	if c.Auth.File != "keys" {
		t.Errorf("a variable is relative to the working directory; got %s", c.Auth.File)
	}
}

func TestUnreadableFilesSayWhatWasTried(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big.hcl")
	if err := os.WriteFile(big, bytes.Repeat([]byte("#\n"), maxFile), 0o644); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(dir, "none.hcl"): "no such file",
		dir:                            "it is a directory",
		big:                            "at most 262144",
	} {
		if _, err := Load(path, nil, nil); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want the path and %q", path, err, want)
		}
	}
}

func TestValidateOfAConfigMadeInCode(t *testing.T) {
	c := Default()
	c.Server.Listen = "nowhere"
	c.Models[0].Numerics = "fast"
	c.Backends = []Backend{{Name: "x"}, {Name: "x"}}
	err := c.Validate()
	if got := len(Problems(err)); got < 6 {
		t.Errorf("got %d problems, want at least 6:\n%v", got, err)
	}
	var p *Problem
	if !errors.As(err, &p) || p.Origin.Source != FromDefault {
		t.Errorf("want *Problem without a place, got %v", err)
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]Size{
		"0": 0, "0B": 0, "1": 1, "2GiB": 2 << 30, "1.5 GB": 15e8, "512MB": 512e6, "64kib": 64 << 10, " 7 B ": 7, "4TB": 4e12, "1TiB": 1 << 40,
	} {
		if got, err := ParseSize(text); err != nil || got != want {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "GiB", "-1", "1PB", "1e30", "0x10", "1_000", "NaN", "Inf", "9223372036854775808", "8388608TiB", "2 GiB GiB", "1..2"} {
		if got, err := ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
	for _, s := range []Size{0, 1, 1000, 1024, 1 << 20, 200e6, 3 << 30, 123456789, 141e9, 1 << 50} {
		if got, err := ParseSize(s.String()); err != nil || got != s {
			t.Errorf("%d prints %q, which reads as %d, %v", s, s.String(), got, err)
		}
	}
}

func TestNearest(t *testing.T) {
	names := []string{"listen", "admin_listen", "max_body", "tls"}
	for name, want := range map[string]string{
		"lisen": "listen", "lsiten": "listen", "LISTEN": "listen", "max-body": "max_body", "server_listen": "listen", "tsl": "tls", "zebra": "", "x": "",
	} {
		if got := nearest(name, names); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	if d := distance("kitten", "sitting"); d != 3 {
		t.Errorf("kitten to sitting is %d, want 3", d)
	}
	if d := distance("ab", "ba"); d != 1 {
		t.Errorf("a swap is %d, want 1", d)
	}
}

// Every key has a rule for its comment: unit, default, range. This holds at least that a comment is there.
func TestEveryKeyIsExplained(t *testing.T) {
	src, err := os.ReadFile("config.go")
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	for _, line := range strings.Split(string(src), "\n") {
		if strings.Contains(line, "`conf:\"") && !strings.Contains(line, "//") && !strings.Contains(line, ",label") {
			typ := strings.Fields(line)[1]
			if typ[0] >= 'A' && typ[0] <= 'Z' && typ != "Size" { // a block: its type explains it
				continue
			}
			missing = append(missing, strings.TrimSpace(line))
		}
	}
	if len(missing) > 0 {
		t.Errorf("keys without a comment:\n%s", strings.Join(missing, "\n"))
	}
}

func TestDeepAndHugeInputIsRefusedNotFatal(t *testing.T) {
	for name, src := range map[string]string{
		"parentheses":  "scheduler {\n max_rows = " + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + "\n}",
		"lists":        "auth {\n api_keys = " + strings.Repeat("[", 100000) + "\n}",
		"blocks":       strings.Repeat("a {\n", 50000),
		"minus":        "scheduler {\n max_rows = " + strings.Repeat("-", 100000) + "1\n}",
		"not":          "backend \"b\" {\n required = " + strings.Repeat("!", 100000) + "true\n}",
		"conditionals": "scheduler {\n max_rows = " + strings.Repeat("true?1:", 30000) + "1\n}",
		"templates":    "server {\n listen = " + strings.Repeat("\"${", 50000) + "\n}",
		"exponent":     "scheduler {\n max_rows = 1e999999999\n}",
		"digits":       "scheduler {\n max_rows = " + strings.Repeat("9", 100000) + "\n}",
	} {
		_, err := load("f.hcl", []byte(src), nil, nil)
		if err == nil {
			t.Errorf("%s: accepted", name)
		} else if len(err.Error()) > 2000 {
			t.Errorf("%s: the message has %d bytes", name, len(err.Error()))
		}
	}
}

func FuzzParser(f *testing.F) {
	files, _ := filepath.Glob("examples/*.hcl")
	for _, name := range files {
		src, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	for _, s := range []string{
		"", "server {}", "server { listen = \"a:1\" }", "model \"a\" {\n context = 1 + 2 * 3\n}", "backend \"x\" {\n config {\n a = {b = [1, true, \"c\"]}\n d { e = 1.5 }\n }\n}",
		"server = 1", "model {}", "model \"a\" \"b\" {}", "server {\n listen = env(\"X\")\n}", "auth {\n api_keys = [for x in [1]: x]\n}",
		"server {\n listen = <<E\nx\nE\n}", "server {\n listen = \"$${x} %%{y}\"\n}", "limits {\n queue = null\n}", "\xff\xfe", "a b c",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		p := &Parser{File: "f.hcl", Getenv: func(string) string { return "v" }}
		m, err := p.Unmarshal(src)
		if err != nil {
			for _, problem := range Problems(err) {
				if problem.Origin.Source == FromFile && (problem.Origin.Line < 1 || problem.Origin.Column < 1) {
					t.Errorf("no place: %v", problem)
				}
			}
			return
		}
		text, err := p.Marshal(m)
		if err != nil {
			t.Fatalf("marshal what was parsed: %v", err)
		}
		again, err := p.Unmarshal(text)
		if err != nil {
			t.Fatalf("parse what was written: %v\n%s", err, text)
		}
		if !reflect.DeepEqual(m, again) {
			t.Fatalf("round trip\n%#v\n%#v\n%s", m, again, text)
		}
		if c, err := load("f.hcl", src, nil, nil); err == nil {
			for i := range c.Models {
				c.Models[i].Path = ""
			}
			var b bytes.Buffer
			if err := c.Show(&b, "hcl"); err != nil {
				t.Fatal(err)
			}
			_ = c.Warnings()
			if _, err := load("f.hcl", b.Bytes(), nil, nil); err != nil && len(c.Auth.APIKeys) < 2 {
				t.Fatalf("what Show printed does not load: %v\n%s", err, b.String())
			}
		}
	})
}
