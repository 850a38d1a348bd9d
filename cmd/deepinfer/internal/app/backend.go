package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/deepinfer-go/deepinfer/backends/fault"
	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/plugins/catalog"
	"github.com/deepinfer-go/deepinfer/plugins/local"
	"github.com/deepinfer-go/deepinfer/plugins/remote"
	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Directories are where backend libraries are looked for when the configuration names no directory: those of the build, and `backends` beside the
// executable. Ones that do not exist are left out.
func Directories() []string {
	list := []string{filepath.Join("bin", "backends")}
	if exe, err := executable(); err == nil {
		list = append(list, filepath.Join(filepath.Dir(exe), "backends"))
	}
	var out []string
	seen := map[string]bool{}
	for _, d := range list {
		abs, err := filepath.Abs(d)
		if err != nil || seen[abs] {
			continue
		}
		seen[abs] = true
		if info, err := os.Stat(abs); err == nil && info.IsDir() {
			out = append(out, abs)
		}
	}
	return out
}

func executable() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(exe); err == nil {
		exe = real
	}
	return exe, nil
}

// Worker is the stock worker beside the executable, or "" where there is none.
func Worker() string {
	exe, err := executable()
	if err != nil {
		return ""
	}
	path := filepath.Join(filepath.Dir(exe), "deepinfer-worker")
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// candidate is a backend that may run the model.
type candidate struct {
	conf.Backend
	note string // said when it is taken
}

// backends lists the candidates, best first. A name from the flag or the model leaves no alternative.
func backends(cfg *conf.Config, flag, ofModel string) ([]candidate, error) {
	one := func(name, from string) ([]candidate, error) {
		b, _ := cfg.Backend(name)
		known := builtin(b.LibraryName())
		for _, e := range catalog.Scan(directories(b), catalog.Options{}) {
			known = known || e.Name == b.LibraryName()
		}
		if !known {
			var labels []string
			for _, x := range cfg.Backends {
				labels = append(labels, x.Name)
			}
			err := fmt.Errorf("%s: no backend %q: built in are ref, null and fault; %s%s was not found in %s", from, name, b.LibraryName(), catalog.Suffix, places(directories(b)))
			if len(labels) > 0 {
				err = fmt.Errorf("%w; the configuration has %s", err, strings.Join(labels, ", "))
			}
			return nil, usage(err)
		}
		b.Required = true
		return []candidate{{Backend: b}}, nil
	}
	switch {
	case flag != "":
		return one(flag, "--backend")
	case ofModel != "":
		return one(ofModel, "model backend")
	}
	var out []candidate
	for _, b := range cfg.BackendOrder() {
		out = append(out, candidate{Backend: b})
	}
	if len(out) > 0 {
		return out, nil
	}
	cpu, _ := cfg.Backend("cpu")
	reason := "no cpu library in " + places(directories(cpu))
	for _, e := range catalog.Scan(directories(cpu), catalog.Options{}) {
		switch {
		case e.Name != "cpu":
		case e.State != catalog.Usable:
			reason = "cpu library refused: " + strings.ReplaceAll(e.Reason.Error(), "\n", "; ")
		case Worker() == "":
			reason = "no deepinfer-worker beside the executable to run the cpu library"
		default:
			cpu.Required = true
			return []candidate{{Backend: cpu}}, nil
		}
	}
	r, _ := cfg.Backend("ref")
	r.Required = true
	return []candidate{{Backend: r, note: "using the pure-Go backend ref, which is slower: " + reason + " (`make backends` builds it)"}}, nil
}

// places lists directories for a message.
func places(dirs []string) string {
	if len(dirs) == 0 {
		return "bin/backends and backends beside the executable, which do not exist"
	}
	return strings.Join(dirs, ", ")
}

func builtin(library string) bool { return library == "ref" || library == "null" || library == "fault" }

func directories(b conf.Backend) []string {
	if len(b.Directories) > 0 {
		return b.Directories
	}
	return Directories()
}

// executor makes the executor of a candidate and says in which type the programs sum.
func (c candidate) executor(opt Options) (engine.Executor, uint32, error) {
	if c.note != "" {
		opt.Notice(c.note)
	}
	device := 0
	if len(c.Devices) > 0 {
		device = c.Devices[0]
	}
	limits := supervise.Limits{Crashes: max(c.Restart.Max, 1), Window: c.Restart.Window} // one crash = never again
	name, acc := c.LibraryName(), accumulator(c.Sums())
	if builtin(name) {
		b, config, err := c.inProcess(name, acc)
		if err != nil {
			return nil, 0, err
		}
		e, err := local.New(local.Options{Backend: b, Index: device, Open: backend.OpenOptions{Threads: c.Threads, Config: config}, Depth: c.Step.Depth, Limits: limits, Logger: opt.Logger})
		return e, acc, err
	}
	dirs := directories(c.Backend)
	entry, err := catalog.Choose(catalog.Scan(dirs, catalog.Options{}), name)
	if err != nil {
		return nil, 0, fmt.Errorf("%w; looked in %s", err, places(dirs))
	}
	worker := c.Worker
	if worker == "" {
		worker = Worker()
	}
	if worker == "" {
		return nil, 0, errors.New("no deepinfer-worker beside the executable: build it (`make build`) or set worker in the backend's block")
	}
	if _, err := os.Stat(worker); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, 0, usage(fmt.Errorf("worker %s does not exist", worker))
		}
		return nil, 0, fmt.Errorf("worker: %w", err)
	}
	settings := maps.Clone(c.Config)
	if name == "cpu" || c.Accumulate != "" { // other libraries need not know the key
		if settings == nil {
			settings = map[string]any{}
		}
		settings["accumulate"] = c.Sums()
	}
	var config []byte
	if len(settings) > 0 {
		if config, err = json.Marshal(settings); err != nil {
			return nil, 0, usage(fmt.Errorf("config: %w", err))
		}
	}
	var env []string
	for _, k := range c.Environment {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	spin := c.Step.SpinCap
	if spin == 0 {
		spin = -1
	}
	deadline := c.Step.Deadline
	if deadline == 0 {
		deadline = 365 * 24 * time.Hour // "never", to an executor whose zero means its default
	}
	e, err := remote.New(remote.Options{
		Worker: worker, Backend: name, Library: entry.LibPath, PluginDir: entry.Dir, Pinned: entry.Pinned,
		Index: device, Open: backend.OpenOptions{Threads: c.Threads, Config: config}, Env: env,
		NoSandbox: !c.Sandbox.Enabled, Network: c.Sandbox.Network,
		Depth: c.Step.Depth, SpinCap: spin, Deadline: deadline, Limits: limits, Logger: opt.Logger,
	})
	return e, acc, err
}

// inProcess returns a built-in backend and the JSON of its settings.
func (c candidate) inProcess(name string, acc uint32) (backend.Backend, []byte, error) {
	config := maps.Clone(c.Config)
	if config == nil {
		config = map[string]any{}
	}
	sums := map[string]any{"accumulate": "float32"}
	if acc == abi.F64 {
		sums["accumulate"] = "float64"
	}
	var b backend.Backend
	var err error
	switch name {
	case "ref":
		b = ref.New()
		maps.Copy(config, sums)
	case "null":
		b = null.New()
		if len(config) == 0 {
			return b, nil, nil
		}
	default:
		b, err = fault.New(ref.New(), fault.Options{})
		if inner, ok := config["config"].(map[string]any); ok {
			inner = maps.Clone(inner)
			maps.Copy(inner, sums)
			config["config"] = inner
		} else if _, set := config["config"]; !set {
			config["config"] = sums
		}
	}
	if err != nil {
		return nil, nil, err
	}
	raw, err := json.Marshal(config)
	if err != nil {
		return nil, nil, usage(fmt.Errorf("config: %w", err))
	}
	return b, raw, nil
}
