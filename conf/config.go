package conf

import (
	"slices"
	"time"
)

// Config is the whole configuration. The zero value is not usable: start from Default or Load.
type Config struct {
	Server      Server      `conf:"server"`
	Models      []Model     `conf:"model"`   // in the order of the file; Load and Default leave at least one
	Backends    []Backend   `conf:"backend"` // in the order of the file; empty = the caller picks one (Backend explains)
	Scheduler   Scheduler   `conf:"scheduler"`
	Cache       Cache       `conf:"cache"`
	Speculation Speculation `conf:"speculation"`
	Experts     Experts     `conf:"experts"`
	Cluster     Cluster     `conf:"cluster"`
	Limits      Limits      `conf:"limits"`
	Auth        Auth        `conf:"auth"`
	Log         Log         `conf:"log"`
	Telemetry   Telemetry   `conf:"telemetry"`

	origins map[string]Origin // by path; absent = default
}

// Server is the HTTP front.
type Server struct {
	Listen            string        `conf:"listen"`              // host:port of the public APIs; default "127.0.0.1:8080"; port 0 = any free port
	AdminListen       string        `conf:"admin_listen"`        // host:port of /debug; default "" = not served. Never expose it: profiles and flight records show prompts
	MaxBody           Size          `conf:"max_body"`            // bytes of one request body; default 64MiB; 1KiB .. 4GiB. Images arrive in base64, a third larger than the file
	MaxConnections    int           `conf:"max_connections"`     // open connections; default 20000; 1 .. 1000000. More are accepted only when others close
	ReadHeaderTimeout time.Duration `conf:"read_header_timeout"` // from accept to the last header line; default 10s; 0 = none (a slow client then holds a connection for ever)
	ReadTimeout       time.Duration `conf:"read_timeout"`        // from accept to the last byte of the body; default 60s; 0 = none
	WriteTimeout      time.Duration `conf:"write_timeout"`       // whole response; default 0 = none, because a stream may last for hours; stream_stall bounds readers
	IdleTimeout       time.Duration `conf:"idle_timeout"`        // keep-alive between requests; default 120s; 0 = none
	StreamStall       time.Duration `conf:"stream_stall"`        // how long a stream's reader may take nothing before its request is aborted; default 30s; 0 = for ever
	DrainTimeout      time.Duration `conf:"drain_timeout"`       // how long running requests may finish after SIGTERM; default 120s; 0 = cut at once
	CORSOrigins       []string      `conf:"cors_origins"`        // origins such as "https://chat.example.com" that browsers may call from; default none; "*" = any
	ResponsesDir      string        `conf:"responses_dir,path"`  // directory that keeps stored responses and the key of sealed reasoning over a restart; default "" = in memory
	ResponsesSize     Size          `conf:"responses_size"`      // bytes of stored responses, compressed; default 256MiB; 1MiB .. 1TiB. The oldest go first
	ResponsesAge      time.Duration `conf:"responses_age"`       // how long a response is stored; default 720h
	TLS               TLS           `conf:"tls"`
}

// TLS names the certificate of the public listener. Both empty = plain HTTP.
type TLS struct {
	Certificate string `conf:"certificate,path"` // PEM file, chain included; default ""
	Key         string `conf:"key,path"`         // PEM file; default ""
}

// Model is a checkpoint to serve. Its label is the name clients send.
type Model struct {
	Name       string   `conf:",label"`
	Path       string   `conf:"path,path"`   // checkpoint directory; default "" = the demo model inside the binary
	Backend    string   `conf:"backend"`     // label of a backend block, or a backend's own name; default "" = the block with the lowest order
	ServedName string   `conf:"served_name"` // name in responses and /v1/models; default "" = the label
	Aliases    []string `conf:"aliases"`     // further names that clients may send; default none
	Numerics   string   `conf:"numerics"`    // "reference" (the release's own rounding points; default) or "production" (those of DeepSeek's engine). Part of the KV identity
	Context    int      `conf:"context"`     // most tokens of prompt and answer together; default 0 = what the checkpoint allows; 256 .. 1048576. Costs memory only as it is used
	Thinking   string   `conf:"thinking"`    // when a request does not say: "on", "off", or "auto" (default) = the rule of the API that the request came through
}

// ID is the name that responses and /v1/models carry.
func (m Model) ID() string {
	if m.ServedName != "" {
		return m.ServedName
	}
	return m.Name
}

// Backend says which library runs a model and on what.
type Backend struct {
	Name        string         `conf:",label"`
	Library     string         `conf:"library"`          // "ref", "null", "fault" (in process) or a name of the catalog such as "cpu"; default "" = the label
	Order       int            `conf:"order"`            // the lowest is used where a model names none; equal = order of the file; default 0; -1000 .. 1000
	Directories []string       `conf:"directories,path"` // where manifests are looked for, first hit wins; default none = the directories of the caller (bin/backends of the build)
	Worker      string         `conf:"worker,path"`      // worker executable; default "" = deepinfer-worker beside deepinfer
	Devices     []int          `conf:"devices"`          // device numbers; default none = device 0
	Required    bool           `conf:"required"`         // true: the server does not start without it; default false = the next backend in order is tried
	Accumulate  string         `conf:"accumulate"`       // "float64" (ref, cpu: equals the oracle exactly) or "float32" (about twice as fast); "" (default): see Sums
	Threads     int            `conf:"threads"`          // worker threads of host backends; default 0 = every core that the process may use; 0 .. 4096
	Step        Step           `conf:"step"`             // hand-over of steps
	Restart     Restart        `conf:"restart"`          // what happens when the worker dies
	Sandbox     Sandbox        `conf:"sandbox"`          // what the worker may touch
	Config      map[string]any `conf:"config,free"`      // given to the library as one JSON object and checked by its own schema; default none
	Environment []string       `conf:"environment"`      // names of variables handed through to the worker, which starts with an empty environment; default none
}

// LibraryName is the library or, where none is set, the label.
func (b Backend) LibraryName() string {
	if b.Library != "" {
		return b.Library
	}
	return b.Name
}

// Step tunes how steps reach a worker.
type Step struct {
	Depth    int           `conf:"depth"`    // steps in flight; default 1; 1 .. 8. 2 hides the host's share of a step
	SpinCap  time.Duration `conf:"spin_cap"` // longest busy wait before sleeping; default 200us; 0 = never spin; at most 10ms. Spinning burns a core
	Deadline time.Duration `conf:"deadline"` // a step that takes longer counts as hung and its worker is replaced; default 60s; 0 = never
}

// Restart bounds how often a dead worker is started again.
type Restart struct {
	Max    int           `conf:"max"`    // crashes within window that put the backend in quarantine; default 5; 0 = never restart
	Window time.Duration `conf:"window"` // default 10m; at least 1s
}

// Sandbox limits a worker. A layer that the kernel lacks is reported, never skipped in silence.
type Sandbox struct {
	Enabled   bool     `conf:"enabled"`         // default true
	User      string   `conf:"user"`            // user to run as; default "" = the server's
	Network   bool     `conf:"network"`         // may the worker open sockets; default false
	ReadPaths []string `conf:"read_paths,path"` // further directories that it may read; default none
	Memory    Size     `conf:"memory"`          // address space; default 0 = no limit
}

// Scheduler shapes steps.
type Scheduler struct {
	MaxRows      int `conf:"max_rows"`      // rows (tokens) of one step; default 1024; 8 .. 65536. Workspace memory grows with it, so does the time that decodes wait behind a prefill
	MaxSeqs      int `conf:"max_seqs"`      // requests that run at once; default 64; 1 .. 4096. Each holds a private state slot
	PrefillChunk int `conf:"prefill_chunk"` // rows of one request's prompt per step; default 0 = all rows that decodes leave; at most max_rows
}

// Cache sizes the KV cache. Memory and Granules are two ways to say one thing: the smaller wins where both are set.
type Cache struct {
	Memory   Size        `conf:"memory"`   // default 0 = what the device has left after weights and workspace (host backends: a quarter of RAM)
	Granules int         `conf:"granules"` // pieces of 128 tokens; default 0 = from memory
	Prefix   PrefixCache `conf:"prefix"`
	Host     HostTier    `conf:"host"`
	Disk     DiskTier    `conf:"disk"`
}

// PrefixCache lets requests share the KV of equal beginnings.
type PrefixCache struct {
	Enabled bool   `conf:"enabled"` // default true
	Scope   string `conf:"scope"`   // who shares: "tenant" (default), "shared" (everybody: timing reveals what others asked) or "request" (nobody)
}

// HostTier keeps evicted KV in main memory.
type HostTier struct {
	Memory Size `conf:"memory"` // default 0 = off
}

// DiskTier keeps KV on local disk across restarts.
type DiskTier struct {
	Path      string `conf:"path,path"`  // directory; default "" = off
	Size      Size   `conf:"size"`       // default 0 = off
	WriteRate Size   `conf:"write_rate"` // bytes a second; default 200MB; 0 = no limit. Flash wears out
}

// Speculation sets how many drafted tokens are verified. The answer's tokens do not depend on it.
type Speculation struct {
	Mode   string `conf:"mode"`   // "off" (default), "fixed" (always drafts tokens) or "dynamic" (by measured acceptance and load)
	Drafts int    `conf:"drafts"` // fixed: tokens a step; dynamic: the most; default 5; 1 .. 16
}

// Experts places routed experts over the ranks of an expert-parallel group.
type Experts struct {
	Placement string        `conf:"placement"` // "static" (default: as numbered) or "balanced" (moved after the measured load)
	Redundant int           `conf:"redundant"` // spare slots of the group that hold copies of hot experts; default 0; 0 .. 4096
	Period    time.Duration `conf:"period"`    // between placements; default 10m; at least 1s
}

// Cluster joins several machines. Role "single" needs nothing else.
type Cluster struct {
	Role             string        `conf:"role"`              // "single" (default), "fused", "prefill", "decode" or "router"
	Name             string        `conf:"name"`              // this member; default "" = host name
	Join             []string      `conf:"join"`              // host:port of bus members; default none = this one starts the bus
	BusListen        string        `conf:"bus_listen"`        // host:port of the embedded bus; default "" = not started
	DataListen       string        `conf:"data_listen"`       // host:port for KV hand-over; default ""; needed by prefill and decode
	PrefillThreshold int           `conf:"prefill_threshold"` // new prompt tokens above which a decode member asks a prefill member; default 1024
	Lease            time.Duration `conf:"lease"`             // a hand-over not renewed for so long is given up; default 30s; at least 1s
	Parallel         Parallel      `conf:"parallel"`
}

// Parallel is the shape of one device group. One process may drive several ranks.
type Parallel struct {
	Data    int `conf:"data"`    // replicas with their own requests; default 1
	Expert  int `conf:"expert"`  // ranks that share the experts; default 1; a multiple of data
	Context int `conf:"context"` // ranks that share one request's KV; default 1
	Rank    int `conf:"rank"`    // first rank of this process; default 0; below expert
}

// Limits protects the server from too much.
type Limits struct {
	MaxTokens    int           `conf:"max_tokens"`    // most tokens of one answer; default 0 = what the context leaves
	Prompt       int           `conf:"prompt"`        // most tokens of one prompt; default 0 = the context
	Queue        int           `conf:"queue"`         // requests that wait; default 0 = 8 for each of scheduler.max_seqs; more are answered 429
	QueueTimeout time.Duration `conf:"queue_timeout"` // longest wait before the first step; default 60s; 0 = for ever
	Tenant       Tenant        `conf:"tenant"`
}

// Tenant is what one API key may use. 0 = no limit.
type Tenant struct {
	Concurrent int `conf:"concurrent"` // requests at once; default 0
	Requests   int `conf:"requests"`   // a minute; default 0
	Tokens     int `conf:"tokens"`     // prompt and answer together, a minute; default 0
}

// Auth lists who may call. Nothing set = everybody who reaches the port.
type Auth struct {
	APIKeys []string `conf:"api_keys,secret"` // accepted as Authorization: Bearer KEY or x-api-key: KEY; default none; 8 characters or more each
	File    string   `conf:"file,path"`       // further keys, one a line as NAME:KEY or KEY, # starts a comment; default ""
}

// Log is the process log on standard error.
type Log struct {
	Level  string `conf:"level"`  // "debug", "info" (default), "warn" or "error". debug may show prompts
	Format string `conf:"format"` // "text" (default) or "json"
}

// Telemetry is metrics and traces.
type Telemetry struct {
	Metrics  bool    `conf:"metrics"`  // serve /metrics; default true
	Endpoint string  `conf:"endpoint"` // OTLP collector as http://host:port or https://host:port; default "" = no traces
	Sampling float64 `conf:"sampling"` // share of requests traced; default 0.01; 0 .. 1. Failed requests are always traced
	Service  string  `conf:"service"`  // service.name of traces; default "deepinfer"
}

// DemoModel is the label of the model that is served where the configuration names none.
const DemoModel = "spark-mini"

// Default returns the configuration that applies where nothing is set: the embedded demo model on the caller's choice of backend.
func Default() *Config {
	return &Config{
		Server: Server{
			Listen: "127.0.0.1:8080", MaxBody: 64 << 20, MaxConnections: 20000,
			ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute,
			StreamStall: 30 * time.Second, DrainTimeout: 2 * time.Minute, ResponsesSize: 256 << 20, ResponsesAge: 30 * 24 * time.Hour,
		},
		Models:      []Model{defaultModel(DemoModel)},
		Scheduler:   Scheduler{MaxRows: 1024, MaxSeqs: 64},
		Cache:       Cache{Prefix: PrefixCache{Enabled: true, Scope: "tenant"}, Disk: DiskTier{WriteRate: 200e6}},
		Speculation: Speculation{Mode: "off", Drafts: 5},
		Experts:     Experts{Placement: "static", Period: 10 * time.Minute},
		Cluster:     Cluster{Role: "single", PrefillThreshold: 1024, Lease: 30 * time.Second, Parallel: Parallel{Data: 1, Expert: 1, Context: 1}},
		Limits:      Limits{QueueTimeout: time.Minute},
		Log:         Log{Level: "info", Format: "text"},
		Telemetry:   Telemetry{Metrics: true, Sampling: 0.01, Service: "deepinfer"},
	}
}

func defaultModel(name string) Model {
	return Model{Name: name, Numerics: "reference", Thinking: "auto"}
}

func defaultBackend(name string) Backend {
	return Backend{
		Name:    name,
		Step:    Step{Depth: 1, SpinCap: 200 * time.Microsecond, Deadline: time.Minute},
		Restart: Restart{Max: 5, Window: 10 * time.Minute},
		Sandbox: Sandbox{Enabled: true},
	}
}

// Sums returns the type in which the backend sums: as configured, else float64 on the backends that are exact in it (ref, cpu, and fault over ref) and float32
// on every other.
func (b *Backend) Sums() string {
	switch {
	case b.Accumulate != "":
		return b.Accumulate
	case exactSums(b.LibraryName()):
		return "float64"
	}
	return "float32"
}

func exactSums(library string) bool {
	return library == "ref" || library == "cpu" || library == "fault"
}

// Model returns the model to serve: the first of the file.
func (c *Config) Model() Model {
	if len(c.Models) == 0 {
		return defaultModel(DemoModel)
	}
	return c.Models[0]
}

// Backend returns the backend called name: the block with that label, or else a block with defaults for the library of that name. An empty name
// means the block with the lowest order; ok is false where there is none, and the caller picks a library.
func (c *Config) Backend(name string) (b Backend, ok bool) {
	if name == "" {
		order := c.BackendOrder()
		if len(order) == 0 {
			return Backend{}, false
		}
		return order[0], true
	}
	for _, b := range c.Backends {
		if b.Name == name {
			return b, true
		}
	}
	return defaultBackend(name), true
}

// BackendOrder returns the backends by ascending order, equal ones as the file has them.
func (c *Config) BackendOrder() []Backend {
	out := slices.Clone(c.Backends)
	slices.SortStableFunc(out, func(a, b Backend) int { return a.Order - b.Order })
	return out
}

// QueueLimit is how many requests may wait, with the default worked out.
func (c *Config) QueueLimit() int {
	if c.Limits.Queue > 0 {
		return c.Limits.Queue
	}
	return 8 * c.Scheduler.MaxSeqs
}
