package remote

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Options configure an executor. Zero values take the defaults.
type Options struct {
	Worker    string // worker executable
	Backend   string // name of the backend, given to the worker
	Library   string // shared object; empty for backends linked into the worker
	PluginDir string // directory of the manifest
	Pinned    string // SHA-256 the library must have, empty = any

	Index int                 // device number
	Open  backend.OpenOptions // settings of the device
	Env   []string            // "KEY=value" for the worker; nothing is inherited

	NoSandbox  bool     // no confinement of the worker
	Network    bool     // the worker may open TCP connections
	WritePaths []string // directories that the worker may write besides its scratch directory, absolute

	Depth        int           // steps in flight, 1 to 8; default 2
	SpinCap      time.Duration // longest spin while waiting; default 200 us, negative = never spin
	Deadline     time.Duration // of one step; default 30 s
	StartTimeout time.Duration // process start to Hello; default 10 s
	OpenTimeout  time.Duration // loading the library and opening the device; default 1 min
	LoadTimeout  time.Duration // one Compile, weights included; default 10 min
	Limits       supervise.Limits
	Logger       *slog.Logger // nil = none
}

func (o Options) withDefaults() Options {
	if o.Depth == 0 {
		o.Depth = 2
	}
	if o.Deadline == 0 {
		o.Deadline = 30 * time.Second
	}
	if o.StartTimeout == 0 {
		o.StartTimeout = 10 * time.Second
	}
	if o.OpenTimeout == 0 {
		o.OpenTimeout = time.Minute
	}
	if o.LoadTimeout == 0 {
		o.LoadTimeout = 10 * time.Minute
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Limits = o.Limits.WithDefaults()
	return o
}

func (o Options) validate() error {
	var errs []error
	bad := func(format string, a ...any) { errs = append(errs, fmt.Errorf("worker executor: "+format, a...)) }
	if o.Worker == "" {
		bad("no worker executable given")
	}
	if o.Backend == "" {
		bad("no backend name given")
	}
	if o.Depth < 1 || o.Depth > maxDepth {
		bad("depth %d, must be 1 to %d", o.Depth, maxDepth)
	}
	for name, d := range map[string]time.Duration{"deadline": o.Deadline, "start timeout": o.StartTimeout, "open timeout": o.OpenTimeout, "load timeout": o.LoadTimeout} {
		if d < 0 {
			bad("%s %s, must be positive", name, d)
		}
	}
	if o.Index < 0 {
		bad("device %d", o.Index)
	}
	for _, e := range o.Env {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			bad("environment entry %q, must be KEY=value", e)
		}
	}
	return errors.Join(errs...)
}

// maxDepth is the number of ring slots.
const maxDepth = 8

// Status is a snapshot for listings and metrics.
type Status struct {
	State    supervise.State
	Device   supervise.Knowledge
	Reason   string // why the device is not healthy
	PID      int
	Epoch    uint32 // worker lives so far
	SHA256   string // of the loaded library
	Layers   []string
	Notes    []string // facts the worker reported when it opened the device
	SpinTime time.Duration
	Parks    int64
}
