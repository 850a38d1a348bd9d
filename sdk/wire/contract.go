package wire

import (
	"context"
	"errors"

	plugin "github.com/hashicorp/go-plugin"
	"google.golang.org/grpc"

	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// Descriptors a worker inherits, by number. The order is part of the wire contract.
const (
	FDLifeline = 3 // read end of a pipe; end of file = the engine is gone, leave
	FDRing     = 4 // step ring
	FDLink     = 5 // SOCK_SEQPACKET socket that carries further files
	FDLibrary  = 6 // sealed copy of the backend library; only when EnvLibrary is set
)

// Environment of a worker. Nothing else is inherited but what the configuration names and what the plugin library adds.
const (
	EnvBackend   = "DEEPINFER_WORKER_BACKEND"    // name given to the worker's resolve function
	EnvLibrary   = "DEEPINFER_WORKER_LIBRARY"    // original path of the library behind FDLibrary, for messages
	EnvPluginDir = "DEEPINFER_WORKER_PLUGIN_DIR" // directory of the manifest: where a library finds its companions
	EnvScratch   = "DEEPINFER_WORKER_SCRATCH"    // private directory of this worker life
	EnvSandbox   = "DEEPINFER_WORKER_SANDBOX"    // what stays allowed, joined by colons: directories that may be written, SandboxNetwork; absent = no confinement
)

// SandboxNetwork in EnvSandbox leaves TCP open: ranks of a group that spans hosts need it.
const SandboxNetwork = "network"

// Major is the wire major, negotiated by the plugin handshake. Ring layout, ABI and op set have numbers of their own, agreed by Hello.
const Major = 1

// MaxMessage bounds a control message in bytes.
const MaxMessage = 64 << 20

// Handshake is the cookie of the worker protocol; it tells a worker started by hand from one started by the engine.
var Handshake = plugin.HandshakeConfig{MagicCookieKey: "DEEPINFER_WORKER_COOKIE", MagicCookieValue: "c1b9e2a6-step-ring"}

// PluginName is the one plugin a worker serves.
const PluginName = "control"

// PluginSets lists the plugin by wire major. server is nil on the engine's side.
func PluginSets(server controlpb.ControlServer) map[int]plugin.PluginSet {
	return map[int]plugin.PluginSet{Major: {PluginName: &controlPlugin{server: server}}}
}

// controlPlugin ties the control service to the plugin library.
type controlPlugin struct {
	plugin.NetRPCUnsupportedPlugin
	server controlpb.ControlServer
}

// GRPCServer registers the service in a worker.
func (p *controlPlugin) GRPCServer(_ *plugin.GRPCBroker, s *grpc.Server) error {
	if p.server == nil {
		return errors.New("control service: this side is the engine's, it serves nothing")
	}
	controlpb.RegisterControlServer(s, p.server)
	return nil
}

// GRPCClient makes the engine's stub.
func (p *controlPlugin) GRPCClient(_ context.Context, _ *plugin.GRPCBroker, c *grpc.ClientConn) (any, error) {
	return controlpb.NewControlClient(c), nil
}

var _ plugin.GRPCPlugin = (*controlPlugin)(nil)
