package deepinfer_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/deepinfer-go/deepinfer"

// pkg is what the rules need of `go list -json`.
type pkg struct {
	ImportPath   string
	Dir          string
	GoFiles      []string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

var packages = sync.OnceValues(func() ([]pkg, error) {
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Dir,GoFiles,Imports,TestImports,XTestImports", "./...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.New("go list ./...: " + err.Error() + "\n" + stderr.String())
	}
	var all []pkg
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
})

func allPackages(t *testing.T) []pkg {
	t.Helper()
	all, err := packages()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 5 {
		t.Fatalf("go list found %d packages", len(all))
	}
	return all
}

// within says whether path is dir or below it.
func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func withinAny(path string, dirs []string) bool {
	return slices.ContainsFunc(dirs, func(d string) bool { return within(path, d) })
}

// direction says what the packages below from may import: of this module ours, of other modules others, of the standard library all but not.
type direction struct {
	from   string
	ours   []string
	others []string
	not    []string
	reason string
}

// wireModules are what the two ends of the plugin link are made of.
var wireModules = []string{"golang.org/x/sys", "github.com/ebitengine/purego", "google.golang.org/grpc", "google.golang.org/protobuf", "google.golang.org/genproto",
	"github.com/hashicorp/go-plugin", "github.com/hashicorp/go-hclog"}

// The first rule whose from holds the package applies.
var directions = []direction{
	{
		from: "sdk", ours: []string{"sdk"}, others: wireModules,
		reason: "a backend author builds against sdk alone, so it stays small and knows nothing of the engine",
	},
	{
		from: "recipe", ours: []string{"recipe"}, others: []string{"golang.org/x/text"},
		reason: "the API adapter is usable on its own, without the engine",
	},
	{
		from: "core/sched", ours: []string{"core/kv", "core/sched", "core/spec", "core/sample", "sdk"}, not: impure,
		reason: "the scheduler is a pure state machine: time arrives as a value, so that the simulator and replayed scripts run the same code",
	},
	{
		from: "core/kv", ours: []string{"core/kv", "sdk"}, not: impure,
		reason: "the cache index is a pure state machine, as the scheduler is",
	},
	{
		from: "core/spec", ours: []string{"core/spec", "sdk"}, not: impure,
		reason: "the speculative controller is a pure state machine, as the scheduler is",
	},
	{
		from: "core/eplb", ours: []string{"core/eplb", "sdk"}, not: impure,
		reason: "placements follow from counters alone, so that every rank computes the same one",
	},
	{
		from: "core/plan", ours: []string{"core/model", "core/plan", "sdk"}, not: impure,
		reason: "lowering a graph is a function of the graph; the same model always gives the same program",
	},
	{
		from: "core/serve", ours: []string{"core", "sdk", "recipe", "internal/archive"}, others: coreModules,
		reason: "the HTTP front is the one place where the engine meets the API adapter",
	},
	{
		from: "core", ours: []string{"core", "sdk", "internal/archive"}, others: coreModules,
		reason: "the engine knows no vendor and no process: plugins and backends come in through core/engine.Executor; only core/serve knows recipe",
	},
	{
		from: "backends", ours: []string{"sdk", "backends"}, others: []string{"golang.org/x/sys"},
		reason: "our backends get no more than anybody else's: what they need is in sdk",
	},
	{
		from: "plugins", ours: []string{"plugins", "sdk", "core/engine"}, others: append([]string{"github.com/agext/levenshtein", "github.com/hashicorp/hcl/v2", "github.com/zclconf/go-cty", "github.com/landlock-lsm/go-landlock"}, wireModules...),
		reason: "the host side of plugins implements core/engine.Executor and needs nothing else of the engine",
	},
	{
		from: "conf", ours: []string{"conf"}, others: []string{"github.com/knadh/koanf", "github.com/hashicorp/hcl/v2", "github.com/zclconf/go-cty"},
		reason: "configuration is data; the commands carry it to the packages, so that no package depends on how it was written",
	},
	{
		from: "cmd/deepinfer-worker", ours: []string{"cmd/deepinfer-worker", "sdk", "backends"}, others: wireModules,
		reason: "the worker is what loads foreign code: it holds nothing of the engine",
	},
	{
		from: "cmd", ours: []string{"cmd", "core", "plugins", "conf", "backends", "sdk", "recipe", "internal"}, others: []string{""},
		reason: "commands put the pieces together",
	},
	{
		from: "bench", ours: []string{"core", "plugins", "backends", "sdk", "recipe", "internal"}, others: []string{""},
		reason: "programs that measure",
	},
	{
		from: "internal/parity", ours: []string{"internal", "core", "sdk", "backends", "plugins", "recipe"},
		reason: "helpers of tests",
	},
	{
		from: "internal", ours: []string{"internal"}, others: []string{"github.com/klauspost/compress", "golang.org/x/sys"},
		reason: "what everybody may use knows nobody",
	},
}

var coreModules = []string{"golang.org/x", "github.com/prometheus", "go.opentelemetry.io/otel", "github.com/klauspost/compress", "github.com/coder/websocket",
	"github.com/nats-io", "github.com/cockroachdb/pebble"}

// impure is the part of the standard library that brings in a clock, the network, files, logging or goroutines.
var impure = []string{"time", "net", "os", "io/fs", "path/filepath", "log", "sync", "context", "runtime", "syscall", "math/rand", "crypto/rand", "embed"}

// testOnly are packages that must not reach a binary.
var testOnly = []string{"internal/fixture", "internal/parity", "recipe/token/tokentest", "recipe/protocol/protocoltest"}

func standard(path string) bool { return !strings.Contains(strings.SplitN(path, "/", 2)[0], ".") }

func TestImportDirections(t *testing.T) {
	for _, p := range allPackages(t) {
		if p.ImportPath == module {
			continue
		}
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		i := slices.IndexFunc(directions, func(d direction) bool { return within(from, d.from) })
		if i < 0 {
			t.Errorf("%s: no rule for this folder; the tree has core, backends, plugins, recipe, sdk, cmd, conf, bench and internal (ARCHITECTURE.md)", from)
			continue
		}
		d := directions[i]
		for _, path := range p.Imports {
			ours, mine := strings.CutPrefix(path, module+"/")
			switch {
			case path == "C":
				t.Errorf("%s uses cgo: the engine is pure Go, C is loaded at run time through sdk/worker/dl", from)
			case mine && within(ours, "cmd") && !within(from, "cmd"):
				t.Errorf("%s imports %s: nothing imports a command", from, ours)
			case mine && withinAny(ours, testOnly) && !withinAny(from, testOnly):
				t.Errorf("%s imports %s outside its tests: it must not reach a binary", from, ours)
			case mine && !withinAny(ours, d.ours):
				t.Errorf("%s imports %s, allowed are %v: %s", from, ours, d.ours, d.reason)
			case !mine && standard(path) && withinAny(path, d.not):
				t.Errorf("%s imports %s: %s", from, path, d.reason)
			case !mine && !standard(path) && !slices.Contains(d.others, "") && !withinAny(path, d.others):
				t.Errorf("%s imports %s, allowed of other modules are %v: %s", from, path, d.others, d.reason)
			}
		}
		for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
			if ours, mine := strings.CutPrefix(path, module+"/"); mine && within(ours, "cmd") && !within(from, "cmd") {
				t.Errorf("the tests of %s import %s: nothing imports a command", from, ours)
			}
		}
	}
}

// The pure packages start no goroutine and use no channel either.
func TestPureCoresHaveNoGoroutines(t *testing.T) {
	for _, p := range allPackages(t) {
		from := strings.TrimPrefix(p.ImportPath, module+"/")
		if !withinAny(from, []string{"core/sched", "core/kv", "core/spec", "core/eplb", "core/plan"}) {
			continue
		}
		for _, name := range p.GoFiles {
			fset := token.NewFileSet()
			file, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n.(type) {
				case *ast.GoStmt, *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
					t.Errorf("%s/%s:%d: goroutines and channels make runs differ; this package is a pure state machine", from, name, fset.Position(n.Pos()).Line)
				}
				return true
			})
		}
	}
}
