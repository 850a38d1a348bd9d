package plugincli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/app"
	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/plugins/catalog"
	"github.com/deepinfer-go/deepinfer/plugins/probe"
)

// Defaults are used where neither flags nor the configuration say otherwise.
type Defaults struct {
	Directories func() []string // where manifests are looked for
	Worker      func() string   // worker executable, "" = there is none
}

// Command returns `plugin` with the directories and the worker that run and serve use.
func Command() *cobra.Command {
	return New(Defaults{Directories: app.Directories, Worker: app.Worker})
}

// failure ends the program with a code of its own.
type failure struct {
	err  error
	code int
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// ExitCode is 2 for usage and configuration errors, else 1.
func (f *failure) ExitCode() int { return f.code }

type flags struct {
	def    Defaults
	file   string
	dirs   []string
	worker string
	json   bool
}

// New returns `plugin` with its subcommands.
func New(d Defaults) *cobra.Command {
	f := &flags{def: d}
	cmd := &cobra.Command{Use: "plugin", Short: "List, probe and pin backends", Args: cobra.NoArgs}
	p := cmd.PersistentFlags()
	p.StringVarP(&f.file, "config", "c", "", "configuration file")
	p.StringArrayVar(&f.dirs, "dir", nil, "directory of manifests, instead of those of the configuration; may be repeated")
	p.StringVar(&f.worker, "worker", "", "worker executable")
	p.BoolVar(&f.json, "json", false, "print one JSON array")
	cmd.AddCommand(f.list(), f.probe(), f.lock(), f.verify())
	return cmd
}

// where settles directories and worker.
func (f *flags) where() (dirs []string, worker string, err error) {
	dirs, worker = f.dirs, f.worker
	if f.file != "" {
		c, err := conf.Load(f.file, os.Environ(), nil)
		if err != nil {
			return nil, "", &failure{err, 2}
		}
		for _, b := range c.BackendOrder() {
			if len(f.dirs) == 0 {
				for _, d := range b.Directories {
					if !slices.Contains(dirs, d) {
						dirs = append(dirs, d)
					}
				}
			}
			if worker == "" {
				worker = b.Worker
			}
		}
	}
	if len(dirs) == 0 && f.def.Directories != nil {
		dirs = f.def.Directories()
	}
	if worker == "" && f.def.Worker != nil {
		worker = f.def.Worker()
	}
	return dirs, worker, nil
}

// builtins are linked into this program and into the stock worker. Only ref is ever chosen without being named.
func builtins() []catalog.Entry {
	return []catalog.Entry{catalog.Builtin("ref", "built in", 10), catalog.Builtin("null", "built in", 0), catalog.Builtin("fault", "built in", 0)}
}

func (f *flags) entries() ([]catalog.Entry, string, error) {
	dirs, worker, err := f.where()
	if err != nil {
		return nil, "", err
	}
	return catalog.Unique(append(builtins(), catalog.Scan(dirs, catalog.Options{})...)), worker, nil
}

// row is an entry as --json prints it.
type row struct {
	Name    string `json:"name"`
	Version string `json:"version,omitempty"`
	ABI     string `json:"abi,omitempty"`
	State   string `json:"state"`
	Reason  string `json:"reason,omitempty"`
	Score   int    `json:"score"`
	Path    string `json:"path,omitempty"`
	Library string `json:"library,omitempty"`
	Pinned  string `json:"pinned_sha256,omitempty"`
	Licence string `json:"licence,omitempty"`
	Builtin bool   `json:"builtin"`
	Default bool   `json:"default"` // taken when nothing names a backend
}

func (f *flags) list() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "Every backend that was found, and why one is refused", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Long: "Reads manifests and looks at libraries without loading any. A refused backend is listed with every reason.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			list, _, err := f.entries()
			if err != nil {
				return err
			}
			chosen, _ := catalog.Choose(list, "") // ref is always usable
			rows := make([]row, 0, len(list))
			for _, e := range list {
				r := row{Name: e.Name, Version: e.Version, State: e.State, Score: e.Score, Path: e.Path, Library: e.LibPath, Pinned: e.Pinned, Licence: e.Licence, Builtin: e.Builtin,
					Default: e.State == catalog.Usable && e.Name == chosen.Name}
				if e.ABIMajor > 0 {
					r.ABI = fmt.Sprintf("%d.%d", e.ABIMajor, e.ABIMinor)
				}
				if r.Path == "" {
					r.Path = e.Dir
				}
				if e.Reason != nil {
					r.Reason = e.Reason.Error()
				}
				rows = append(rows, r)
			}
			out := cmd.OutOrStdout()
			if f.json {
				return printJSON(out, rows)
			}
			t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(t, "NAME\tVERSION\tABI\tSTATE\tPATH")
			for _, r := range rows {
				state := r.State
				if r.Default {
					state += ", default"
				}
				if r.Pinned != "" {
					state += ", pinned"
				}
				fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", dash(r.Name), dash(r.Version), dash(r.ABI), state, dash(r.Path))
			}
			if err := t.Flush(); err != nil {
				return err
			}
			for _, r := range rows {
				if r.Reason != "" {
					fmt.Fprintf(out, "\n%s is refused:\n  %s\n", first(r.Name, r.Path), strings.ReplaceAll(r.Reason, "\n", "\n  "))
				}
			}
			return nil
		},
	}
}

func dash(s string) string { return first(s, "-") }

func first(s ...string) string {
	for _, x := range s {
		if x != "" {
			return x
		}
	}
	return ""
}

func printJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// found is a device as --json prints it.
type found struct {
	Name           string   `json:"name"`
	MemoryBytes    int64    `json:"memory_bytes"`
	MemoryFree     int64    `json:"memory_free"`
	Cores          int      `json:"cores"`
	Features       string   `json:"features,omitempty"`
	BatchInvariant bool     `json:"batch_invariant"`
	HostMemory     bool     `json:"host_memory"`
	F64            bool     `json:"f64"`
	Missing        []string `json:"served_by_sdk,omitempty"`
}

// report is a probe as --json prints it.
type report struct {
	Backend string   `json:"backend"`
	Library string   `json:"library,omitempty"`
	SHA256  string   `json:"sha256,omitempty"`
	Result  string   `json:"result"`
	Reason  string   `json:"reason,omitempty"`
	Devices []found  `json:"devices"`
	Notes   []string `json:"notes,omitempty"`
	Sandbox []string `json:"sandbox,omitempty"`
	TookMS  int64    `json:"took_ms"`
}

func (f *flags) probe() *cobra.Command {
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "probe [NAME...]", Short: "Load each backend in a process of its own and list its devices", SilenceUsage: true, SilenceErrors: true,
		Long: `Starts a throw-away worker for every backend named (default: all that are usable, and ref), loads the library there and asks for its devices.
A library that crashes or hangs is a line of the report. Exit code 1 when a named backend does not answer.`,
		RunE: func(cmd *cobra.Command, names []string) error {
			list, worker, err := f.entries()
			if err != nil {
				return err
			}
			if worker == "" {
				return errors.New("no deepinfer-worker beside the executable: build it (`make build`) or give --worker PATH")
			}
			if timeout <= 0 {
				return &failure{fmt.Errorf("--timeout %s: must be positive", timeout), 2}
			}
			var todo []catalog.Entry
			for _, n := range names {
				e, err := catalog.Choose(list, n)
				if err != nil {
					return &failure{err, 1}
				}
				todo = append(todo, e)
			}
			if len(names) == 0 {
				for _, e := range list {
					if e.Score > 0 || e.State == catalog.Refused {
						todo = append(todo, e)
					}
				}
			}
			reports := make([]report, 0, len(todo))
			bad := 0
			for _, e := range todo {
				r := probe.Run(cmd.Context(), e, probe.Options{Worker: worker, Timeout: timeout})
				if r.Result != probe.OK && len(names) > 0 {
					bad++
				}
				o := report{Backend: first(r.Backend, e.Dir), Library: r.Path, SHA256: r.SHA256, Result: r.Result, Reason: r.Reason, Notes: r.Notes, Sandbox: r.Layers, TookMS: r.Took.Milliseconds(), Devices: []found{}}
				for _, d := range r.Devices {
					o.Devices = append(o.Devices, found{d.Name, d.MemoryBytes, d.MemoryFree, d.Cores, d.Features, d.BatchInvariant, d.HostMemory, d.F64, d.Missing})
				}
				reports = append(reports, o)
				if !f.json {
					print(cmd.OutOrStdout(), o)
				}
			}
			if f.json {
				if err := printJSON(cmd.OutOrStdout(), reports); err != nil {
					return err
				}
			}
			if bad > 0 {
				return &failure{fmt.Errorf("%d of %d backends did not answer", bad, len(todo)), 1}
			}
			return nil
		},
	}
	cmd.Flags().DurationVar(&timeout, "timeout", 15*time.Second, "limit for each backend")
	return cmd
}

func print(out io.Writer, r report) {
	fmt.Fprintf(out, "%s: %s (%d ms)\n", r.Backend, r.Result, r.TookMS)
	line := func(format string, a ...any) { fmt.Fprintf(out, "  "+format+"\n", a...) }
	if r.Reason != "" {
		line("%s", strings.ReplaceAll(r.Reason, "\n", "\n  "))
	}
	if r.Library != "" {
		line("library %s", r.Library)
	}
	if r.SHA256 != "" {
		line("sha256 %s", r.SHA256)
	}
	for i, d := range r.Devices {
		line("device %d: %s, %s of memory (%s free), %d cores", i, d.Name, size(d.MemoryBytes), size(d.MemoryFree), d.Cores)
		var facts []string
		for _, x := range []struct {
			on   bool
			text string
		}{{d.BatchInvariant, "batch-invariant"}, {d.HostMemory, "host memory"}, {d.F64, "float64 sums"}, {d.Features != "", d.Features}} {
			if x.on {
				facts = append(facts, x.text)
			}
		}
		if len(facts) > 0 {
			line("  %s", strings.Join(facts, "; "))
		}
		if len(d.Missing) > 0 {
			line("  served by the SDK's portable code: %s", strings.Join(d.Missing, ", "))
		}
	}
	if r.Result == probe.OK && len(r.Devices) == 0 {
		line("no device here")
	}
	for _, n := range r.Notes {
		line("note: %s", n)
	}
	if len(r.Sandbox) > 0 {
		line("sandbox: %s", strings.Join(r.Sandbox, ", "))
	}
}

func size(n int64) string {
	if n <= 0 {
		return "unknown amount"
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// directory is the one directory whose lock file is meant.
func (f *flags) directory() (string, error) {
	dirs, _, err := f.where()
	if err != nil {
		return "", err
	}
	if len(dirs) != 1 {
		return "", &failure{fmt.Errorf("the lock file belongs to one directory and there are %d (%s); give --dir DIR", len(dirs), strings.Join(dirs, ", ")), 2}
	}
	return dirs[0], nil
}

func (f *flags) lock() *cobra.Command {
	return &cobra.Command{
		Use: "lock", Short: "Pin the backends of a directory by version and SHA-256", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		Long: "Writes " + catalog.LockName + " into the directory. From then on only what it lists is accepted there, with exactly these bytes.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := f.directory()
			if err != nil {
				return err
			}
			// Without the old pins: locking is how a wanted change is accepted.
			path := filepath.Join(dir, catalog.LockName)
			names, err := catalog.WriteLock(path, catalog.Scan([]string{dir}, catalog.Options{Unpinned: true}))
			if err != nil {
				return err
			}
			if f.json {
				return printJSON(cmd.OutOrStdout(), append([]string{}, names...))
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s pins %d backends: %s\n", path, len(names), dash(strings.Join(names, ", ")))
			return nil
		},
	}
}

// check is one line of verify.
type check struct {
	Backend string `json:"backend"`
	OK      bool   `json:"ok"`
	Reason  string `json:"reason,omitempty"`
}

func (f *flags) verify() *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "Compare a directory with its lock file; exit code 1 when something differs", Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := f.directory()
			if err != nil {
				return err
			}
			lock, err := catalog.ReadLock(filepath.Join(dir, catalog.LockName))
			if err != nil {
				return fmt.Errorf("%w; `deepinfer plugin lock` writes one", err)
			}
			var checks []check
			seen := map[string]bool{}
			for _, e := range catalog.Scan([]string{dir}, catalog.Options{Lock: lock}) {
				c := check{Backend: first(e.Name, e.Dir), OK: e.State == catalog.Usable}
				seen[e.Name] = true
				switch {
				case !c.OK:
					c.Reason = e.Reason.Error()
				default:
					if sum, err := catalog.HashFile(e.LibPath); err != nil || sum != e.Pinned {
						c.OK, c.Reason = false, fmt.Sprintf("library %s: sha256 is %s, pinned is %s", e.LibPath, dash(sum), e.Pinned)
						if err != nil {
							c.Reason = err.Error()
						}
					}
				}
				checks = append(checks, c)
			}
			for name := range lock.Pins {
				if !seen[name] {
					checks = append(checks, check{Backend: name, Reason: "pinned and not there"})
				}
			}
			slices.SortFunc(checks, func(a, b check) int { return strings.Compare(a.Backend, b.Backend) })
			bad := 0
			for _, c := range checks {
				if !c.OK {
					bad++
				}
				if !f.json {
					fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", c.Backend, first(strings.ReplaceAll(c.Reason, "\n", "\n  "), "ok"))
				}
			}
			if f.json {
				if err := printJSON(cmd.OutOrStdout(), append([]check{}, checks...)); err != nil {
					return err
				}
			}
			if bad > 0 {
				return &failure{fmt.Errorf("%d of %d backends differ from %s", bad, len(checks), lock.Path), 1}
			}
			return nil
		},
	}
}
