package conf

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Validate returns every problem of the values, or nil. Load has called it already; call it after changing a Config in code.
func (c *Config) Validate() error {
	var problems list
	c.check(&problems)
	return problems.join()
}

// checker states rules about values at paths.
type checker struct {
	c        *Config
	problems *list
}

func (k checker) bad(path string, value any, format string, args ...any) {
	k.problems.add(k.c.originOf(path), "%s = %s: %s", display(path), literal(value), fmt.Sprintf(format, args...))
}

func (k checker) between(path string, v, low, high int) {
	if v < low || v > high {
		k.bad(path, v, "want %d .. %d", low, high)
	}
}

func (k checker) atLeast(path string, v, low int) {
	if v < low {
		k.bad(path, v, "want %d or more", low)
	}
}

func (k checker) size(path string, v, low, high Size) {
	if v < low || v > high {
		k.bad(path, v, "want %s .. %s", low, high)
	}
}

func (k checker) duration(path string, v, low time.Duration) {
	if v < low {
		k.bad(path, v, "want %s or more", durationText(low))
	}
}

func (k checker) oneOf(path, v string, accepted ...string) {
	if slices.Contains(accepted, v) {
		return
	}
	quoted := make([]string, len(accepted))
	for i, a := range accepted {
		quoted[i] = strconv.Quote(a)
	}
	hint := ""
	if near := nearest(v, accepted); near != "" {
		hint = fmt.Sprintf("; did you mean %q?", near)
	}
	k.bad(path, v, "want %s%s", strings.Join(quoted, ", "), hint)
}

// address wants host:port; the host may be empty for all interfaces.
func (k checker) address(path, v string) {
	host, port, err := net.SplitHostPort(v)
	if err != nil {
		k.bad(path, v, `want host:port like "127.0.0.1:8080"`)
		return
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		k.bad(path, v, "port %q: want 0 .. 65535", port)
	}
	if strings.ContainsAny(host, " /") {
		k.bad(path, v, "host %q holds a blank or a slash", host)
	}
}

func (k checker) optionalAddress(path, v string) {
	if v != "" {
		k.address(path, v)
	}
}

const maxContext = 1 << 20

func (c *Config) check(problems *list) {
	k := checker{c, problems}
	k.server()
	k.models()
	k.backends()

	p := func(keys ...string) string { return join(keys...) }
	s := c.Scheduler
	k.between(p("scheduler", "max_rows"), s.MaxRows, 8, 65536)
	k.between(p("scheduler", "max_seqs"), s.MaxSeqs, 1, 4096)
	if s.PrefillChunk < 0 || s.PrefillChunk > s.MaxRows {
		k.bad(p("scheduler", "prefill_chunk"), s.PrefillChunk, "want 0 (no bound) .. max_rows (%d)", s.MaxRows)
	}
	rowsPerSeq := 1
	if c.Speculation.Mode != "off" {
		rowsPerSeq += c.Speculation.Drafts
	}
	if s.MaxSeqs > 0 && s.MaxRows >= 8 && s.MaxSeqs*rowsPerSeq > s.MaxRows {
		k.bad(p("scheduler", "max_seqs"), s.MaxSeqs, "each running request needs %d rows of a step, %d in all, and scheduler.max_rows is %d; lower max_seqs or raise max_rows",
			rowsPerSeq, s.MaxSeqs*rowsPerSeq, s.MaxRows)
	}

	k.size(p("cache", "memory"), c.Cache.Memory, 0, 1<<50)
	k.between(p("cache", "granules"), c.Cache.Granules, 0, 1<<30)
	k.oneOf(p("cache", "prefix", "scope"), c.Cache.Prefix.Scope, "tenant", "shared", "request")
	k.size(p("cache", "host", "memory"), c.Cache.Host.Memory, 0, 1<<50)
	k.size(p("cache", "disk", "size"), c.Cache.Disk.Size, 0, 1<<60)
	k.size(p("cache", "disk", "write_rate"), c.Cache.Disk.WriteRate, 0, 1<<50)
	if (c.Cache.Disk.Path == "") != (c.Cache.Disk.Size == 0) {
		k.bad(p("cache", "disk", "size"), c.Cache.Disk.Size, "cache.disk.path is %s; the disk tier needs both, or neither", literal(c.Cache.Disk.Path))
	}

	k.oneOf(p("speculation", "mode"), c.Speculation.Mode, "off", "fixed", "dynamic")
	k.between(p("speculation", "drafts"), c.Speculation.Drafts, 1, 16)

	k.oneOf(p("experts", "placement"), c.Experts.Placement, "static", "balanced")
	k.between(p("experts", "redundant"), c.Experts.Redundant, 0, 4096)
	k.duration(p("experts", "period"), c.Experts.Period, time.Second)

	k.cluster()

	k.between(p("limits", "max_tokens"), c.Limits.MaxTokens, 0, maxContext)
	k.between(p("limits", "prompt"), c.Limits.Prompt, 0, maxContext)
	k.between(p("limits", "queue"), c.Limits.Queue, 0, 1<<20)
	k.duration(p("limits", "queue_timeout"), c.Limits.QueueTimeout, 0)
	k.atLeast(p("limits", "tenant", "concurrent"), c.Limits.Tenant.Concurrent, 0)
	k.atLeast(p("limits", "tenant", "requests"), c.Limits.Tenant.Requests, 0)
	k.atLeast(p("limits", "tenant", "tokens"), c.Limits.Tenant.Tokens, 0)

	seen := map[string]bool{}
	for i, key := range c.Auth.APIKeys {
		switch { // the key itself is never printed
		case len(key) < 8:
			k.problems.add(c.originOf(p("auth", "api_keys")), "auth.api_keys: key %d has %d characters; want 8 or more", i+1, len(key))
		case strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' }):
			k.problems.add(c.originOf(p("auth", "api_keys")), "auth.api_keys: key %d holds a blank or a character that HTTP headers cannot carry", i+1)
		case seen[key]:
			k.problems.add(c.originOf(p("auth", "api_keys")), "auth.api_keys: key %d is there twice", i+1)
		}
		seen[key] = true
	}

	k.oneOf(p("log", "level"), c.Log.Level, "debug", "info", "warn", "error")
	k.oneOf(p("log", "format"), c.Log.Format, "text", "json")

	if u, err := url.Parse(c.Telemetry.Endpoint); c.Telemetry.Endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		k.bad(p("telemetry", "endpoint"), c.Telemetry.Endpoint, `want a URL like "http://127.0.0.1:4318"`)
	}
	if !(c.Telemetry.Sampling >= 0 && c.Telemetry.Sampling <= 1) {
		k.bad(p("telemetry", "sampling"), c.Telemetry.Sampling, "want 0 .. 1")
	}
	if c.Telemetry.Service == "" {
		k.bad(p("telemetry", "service"), "", "want a name")
	}
}

func (k checker) server() {
	s := k.c.Server
	p := func(key string) string { return join("server", key) }
	k.address(p("listen"), s.Listen)
	k.optionalAddress(p("admin_listen"), s.AdminListen)
	if s.AdminListen != "" && s.AdminListen == s.Listen && !strings.HasSuffix(s.Listen, ":0") {
		k.bad(p("admin_listen"), s.AdminListen, "the same as server.listen; the admin listener needs an address of its own")
	}
	k.size(p("max_body"), s.MaxBody, 1<<10, 4<<30)
	k.between(p("max_connections"), s.MaxConnections, 1, 1000000)
	k.duration(p("read_header_timeout"), s.ReadHeaderTimeout, 0)
	k.duration(p("read_timeout"), s.ReadTimeout, 0)
	k.duration(p("write_timeout"), s.WriteTimeout, 0)
	k.duration(p("idle_timeout"), s.IdleTimeout, 0)
	k.duration(p("stream_stall"), s.StreamStall, 0)
	k.duration(p("drain_timeout"), s.DrainTimeout, 0)
	k.size(p("responses_size"), s.ResponsesSize, 1<<20, 1<<40)
	k.duration(p("responses_age"), s.ResponsesAge, time.Second)
	for _, o := range s.CORSOrigins {
		u, err := url.Parse(o)
		if o != "*" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.Path != "" || u.RawQuery != "" || u.User != nil) {
			k.bad(p("cors_origins"), s.CORSOrigins, `%q is no origin; want scheme and host like "https://chat.example.com", or "*"`, o)
		}
	}
	if (s.TLS.Certificate == "") != (s.TLS.Key == "") {
		set, missing, value := "certificate", "key", s.TLS.Certificate
		if value == "" {
			set, missing, value = "key", "certificate", s.TLS.Key
		}
		k.bad(join("server", "tls", set), value, "server.tls.%s is missing; TLS needs both", missing)
	}
}

func (k checker) models() {
	names := map[string]string{}
	if len(k.c.Models) == 0 {
		k.problems.add(Origin{}, "no model is declared; want at least one")
	}
	for _, m := range k.c.Models {
		p := func(key string) string { return join("model", m.Name, key) }
		if msg := badLabel(m.Name); msg != "" {
			k.problems.add(Origin{}, "model label %q %s", m.Name, msg)
		}
		k.oneOf(p("numerics"), m.Numerics, "reference", "production")
		k.oneOf(p("thinking"), m.Thinking, "auto", "on", "off")
		if m.Context != 0 {
			k.between(p("context"), m.Context, 256, maxContext)
		}
		claim := func(path, name string) {
			other, taken := names[name]
			switch {
			case name == "":
				k.problems.add(k.c.originOf(path), "model %q: one of its names is empty", m.Name)
			case taken && other == m.Name:
				k.problems.add(k.c.originOf(path), "model %q: the name %q is there twice", m.Name, name)
			case taken:
				k.problems.add(k.c.originOf(path), "model %q: the name %q belongs to model %q already", m.Name, name, other)
			}
			names[name] = m.Name
		}
		at := p("served_name")
		if m.ServedName == "" {
			at = join("model", m.Name)
		}
		claim(at, m.ID())
		for _, a := range m.Aliases {
			claim(p("aliases"), a)
		}
		if m.Backend != "" {
			declared := make([]string, len(k.c.Backends))
			for i, b := range k.c.Backends {
				declared[i] = b.Name
			}
			// A backend without a block is allowed, so only a near miss of a declared label is surely a mistake.
			if near := nearest(m.Backend, declared); near != "" && near != m.Backend && !slices.Contains(declared, m.Backend) && !builtin(m.Backend) {
				k.bad(p("backend"), m.Backend, "no backend block has this label; did you mean %q?", near)
			}
			if strings.ContainsAny(m.Backend, "/\\ ") {
				k.bad(p("backend"), m.Backend, "want the label of a backend block or a backend's name, not a path")
			}
		}
	}
}

// builtin says whether name is a backend inside the binary.
func builtin(name string) bool { return name == "ref" || name == "null" || name == "fault" }

func (k checker) backends() {
	seen := map[string]bool{}
	for _, b := range k.c.Backends {
		p := func(keys ...string) string { return join(append([]string{"backend", b.Name}, keys...)...) }
		if msg := badLabel(b.Name); msg != "" {
			k.problems.add(Origin{}, "backend label %q %s", b.Name, msg)
		}
		if seen[b.Name] {
			k.problems.add(Origin{}, "backend %q is declared twice", b.Name)
		}
		seen[b.Name] = true
		if strings.ContainsAny(b.LibraryName(), "/\\ ") {
			k.bad(p("library"), b.LibraryName(), "want a name from the catalog, not a path; put the directory into directories")
		}
		k.between(p("order"), b.Order, -1000, 1000)
		k.oneOf(p("accumulate"), b.Accumulate, "", "float32", "float64")
		if b.Accumulate == "float64" && !exactSums(b.LibraryName()) {
			k.bad(p("accumulate"), b.Accumulate, "only ref and cpu accumulate in float64; library is %q", b.LibraryName())
		}
		k.between(p("threads"), b.Threads, 0, 4096)
		devices := map[int]bool{}
		for _, d := range b.Devices {
			switch {
			case d < 0 || d > 1023:
				k.bad(p("devices"), b.Devices, "device %d: want 0 .. 1023", d)
			case devices[d]:
				k.bad(p("devices"), b.Devices, "device %d is there twice", d)
			}
			devices[d] = true
		}
		for _, name := range b.Environment {
			if name == "" || strings.ContainsAny(name, "= \x00") {
				k.bad(p("environment"), b.Environment, "%q is no name of a variable", name)
			}
		}
		k.between(p("step", "depth"), b.Step.Depth, 1, 8)
		if b.Step.SpinCap < 0 || b.Step.SpinCap > 10*time.Millisecond {
			k.bad(p("step", "spin_cap"), b.Step.SpinCap, "want 0s .. 10ms")
		}
		k.duration(p("step", "deadline"), b.Step.Deadline, 0)
		k.between(p("restart", "max"), b.Restart.Max, 0, 1000000)
		k.duration(p("restart", "window"), b.Restart.Window, time.Second)
		k.size(p("sandbox", "memory"), b.Sandbox.Memory, 0, 1<<60)
	}
}

func (k checker) cluster() {
	c := k.c.Cluster
	p := func(keys ...string) string { return join(append([]string{"cluster"}, keys...)...) }
	k.oneOf(p("role"), c.Role, "single", "fused", "prefill", "decode", "router")
	k.optionalAddress(p("bus_listen"), c.BusListen)
	k.optionalAddress(p("data_listen"), c.DataListen)
	for _, j := range c.Join {
		k.address(p("join"), j)
	}
	if (c.Role == "prefill" || c.Role == "decode") && c.DataListen == "" {
		k.bad(p("role"), c.Role, "needs cluster.data_listen, the address for KV hand-over")
	}
	if c.Role != "single" && c.Role != "" && len(c.Join) == 0 && c.BusListen == "" {
		k.bad(p("role"), c.Role, "needs cluster.join (members of a bus) or cluster.bus_listen (start one here)")
	}
	k.atLeast(p("prefill_threshold"), c.PrefillThreshold, 0)
	k.duration(p("lease"), c.Lease, time.Second)
	g := c.Parallel
	k.between(p("parallel", "data"), g.Data, 1, 4096)
	k.between(p("parallel", "expert"), g.Expert, 1, 4096)
	k.between(p("parallel", "context"), g.Context, 1, 64)
	if g.Data >= 1 && g.Expert >= 1 && g.Expert%g.Data != 0 {
		k.bad(p("parallel", "expert"), g.Expert, "want a multiple of cluster.parallel.data (%d)", g.Data)
	}
	if g.Rank < 0 || g.Rank >= max(g.Expert, 1) {
		k.bad(p("parallel", "rank"), g.Rank, "want 0 .. %d (below cluster.parallel.expert)", max(g.Expert, 1)-1)
	}
}
