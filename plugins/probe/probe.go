package probe

import (
	"time"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Result of a probe.
const (
	OK      = "ok"      // the backend answered; the device list may be empty
	Refused = "refused" // not even tried: see Reason
	Failed  = "failed"  // the backend answered with an error
	Crashed = "crashed" // the process ended by itself
	Hung    = "hung"    // no answer before the deadline
)

// Report is what one probe found.
type Report struct {
	Backend string
	Path    string // library, empty for built-in backends
	SHA256  string // of the bytes that were loaded
	Result  string
	Reason  string // why not OK, with the last words of the process
	Devices []backend.Info
	Notes   []string // facts about loading: version, signal handlers put back
	Layers  []string // confinement of the process: "name: state"
	Took    time.Duration
}

// Options say how to probe.
type Options struct {
	Worker  string        // worker executable
	Timeout time.Duration // whole probe; default 15 s
	Env     []string      // "KEY=value" for the worker
}
