package conf

import (
	"net"
	"strings"
)

// later lists what is accepted but not yet served by this build. A capability leaves the list in the change that adds it.
var later = []struct {
	path string // a value or block; reported where it is set away from its default
	what string
}{
	{"speculation.mode", "speculative decoding"},
	{"experts.placement", "expert balancing"},
	{"experts.redundant", "redundant experts"},
	{"cluster.role", "clusters"},
	{"cluster.join", "clusters"},
	{"cluster.bus_listen", "clusters"},
	{"cluster.data_listen", "clusters"},
	{"cluster.parallel.data", "groups of several ranks"},
	{"cluster.parallel.expert", "groups of several ranks"},
	{"cluster.parallel.context", "groups of several ranks"},
	{"cache.host.memory", "the host tier of the cache"},
	{"cache.disk.path", "the disk tier of the cache"},
	{"limits.tenant.concurrent", "limits by tenant"},
	{"limits.tenant.requests", "limits by tenant"},
	{"limits.tenant.tokens", "limits by tenant"},
	{"telemetry.endpoint", "export of traces"},
	{"server.tls.certificate", "TLS on the listener"},
}

// laterBackends are catalog names whose library this build does not make.
var laterBackends = map[string]string{
	"sm100":     "the CUDA backend",
	"ascend950": "the Ascend backend",
}

// Warnings lists what is valid but probably not what was meant: features that this build does not have, and open doors. Order: by place.
func (c *Config) Warnings() []*Problem {
	var out list
	flat, base := c.flat(), Default().flat()
	for _, l := range later {
		if v, ok := flat[l.path]; ok && literal(v.Value) != literal(base[l.path].Value) {
			out.add(c.originOf(strings.ReplaceAll(l.path, ".", sep)), "%s = %s has no effect: this build lacks %s", l.path, literal(v.Value), l.what)
		}
	}
	for _, b := range c.Backends {
		if what, ok := laterBackends[b.LibraryName()]; ok {
			out.add(c.originOf(join("backend", b.Name)), "backend %q: %s is not part of this build; it runs only where its library is in one of the directories", b.Name, what)
		}
		if len(b.Devices) > 1 {
			out.add(c.originOf(join("backend", b.Name, "devices")), "backend %q: this build drives one device; device %d is used", b.Name, b.Devices[0])
		}
		if builtin(b.LibraryName()) && b.Sandbox.User != "" {
			out.add(c.originOf(join("backend", b.Name, "sandbox", "user")), "backend %q runs inside the server; its sandbox has no effect", b.Name)
		}
		for _, s := range []struct {
			key, what string
			set       bool
		}{
			{"user", "changing the worker's user", b.Sandbox.User != "" && !builtin(b.LibraryName())},
			{"memory", "a memory limit for the worker", b.Sandbox.Memory != 0 && !builtin(b.LibraryName())},
			{"read_paths", "limits on what the worker may read", len(b.Sandbox.ReadPaths) > 0},
		} {
			if s.set {
				out.add(c.originOf(join("backend", b.Name, "sandbox", s.key)), "backend %q: sandbox.%s has no effect: this build lacks %s", b.Name, s.key, s.what)
			}
		}
	}
	for _, m := range c.Models[min(1, len(c.Models)):] {
		out.add(c.originOf(join("model", m.Name)), "model %q: this build serves one model, %q", m.Name, c.Models[0].Name)
	}
	if host, _, err := net.SplitHostPort(c.Server.Listen); err == nil && len(c.Auth.APIKeys) == 0 && c.Auth.File == "" && !loopback(host) {
		out.add(c.originOf(join("server", "listen")), "server.listen = %s: reachable from other machines and no API key is asked for; set auth.api_keys or auth.file", literal(c.Server.Listen))
	}
	if host, _, err := net.SplitHostPort(c.Server.AdminListen); err == nil && !loopback(host) {
		out.add(c.originOf(join("server", "admin_listen")), "server.admin_listen = %s: profiles and flight records are reachable from other machines", literal(c.Server.AdminListen))
	}
	_ = out.join() // sorts
	return out
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
