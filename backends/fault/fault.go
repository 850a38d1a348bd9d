package fault

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Options configure the wrapper.
type Options struct {
	Rules string // as the package comment describes
	// Kill ends the process. nil = the operating system's kill signal to this process, which no deferred call survives.
	Kill func()
}

// New wraps inner. A config of the form {"rules": ["...", ...], "config": {...}} given to Open adds rules for that device and hands "config" to inner.
func New(inner backend.Backend, opt Options) (backend.Backend, error) {
	rules, err := Parse(opt.Rules)
	if err != nil {
		return nil, err
	}
	if opt.Kill == nil {
		opt.Kill = func() {
			if p, err := os.FindProcess(os.Getpid()); err == nil {
				p.Kill()
			}
			select {} // the signal is on its way
		}
	}
	return &faulty{in: inner, rules: compile(rules), kill: opt.Kill}, nil
}

type faulty struct {
	in    backend.Backend
	rules []*rule
	kill  func()
}

// rule is a Rule with its counters, which live as long as the backend.
type rule struct {
	Rule
	mu     sync.Mutex
	calls  int64 // matching calls so far
	firing int64
}

func compile(rules []Rule) []*rule {
	out := make([]*rule, len(rules))
	for i := range rules {
		out[i] = &rule{Rule: rules[i]}
	}
	return out
}

// Name implements backend.Backend.
func (*faulty) Name() string { return "fault" }

// Devices implements backend.Backend: those of the wrapped one.
func (f *faulty) Devices(ctx context.Context) ([]backend.Info, error) { return f.in.Devices(ctx) }

// Open implements backend.Backend.
func (f *faulty) Open(ctx context.Context, index int, opt backend.OpenOptions) (backend.Device, error) {
	d := &device{rules: f.rules, kill: f.kill, closing: make(chan struct{}), layer: "", step: 0}
	if raw := bytes.TrimSpace(opt.Config); len(raw) > 0 {
		var c struct {
			Rules  []string        `json:"rules"`
			Config json.RawMessage `json:"config"`
		}
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		err := dec.Decode(&c)
		if err == nil {
			if _, end := dec.Token(); !errors.Is(end, io.EOF) {
				err = errors.New("text after the object")
			}
		}
		if err != nil {
			return nil, fmt.Errorf("open fault: config %s: %w; known keys: rules, config", raw, err)
		}
		rules, err := Parse(strings.Join(c.Rules, "\n"))
		if err != nil {
			return nil, fmt.Errorf("open fault: %w", err)
		}
		d.rules = slices.Concat(f.rules, compile(rules))
		opt.Config = c.Config
	}
	// A hang during open ends with the caller's context: there is no device to close yet.
	stop := context.AfterFunc(ctx, d.stop)
	err := d.at("open", nil)
	if !stop() {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if d.in, err = f.in.Open(ctx, index, opt); err != nil {
		return nil, err
	}
	d.gemm, d.attn, d.a2a, d.vec = d.in.GEMM(), d.in.Attention(), d.in.AllToAll(), d.in.Vector()
	return d, nil
}

type device struct {
	in    backend.Device
	gemm  backend.GEMM
	attn  backend.Attention
	a2a   backend.AllToAll
	vec   backend.Vector
	rules []*rule
	kill  func()

	once    sync.Once
	closing chan struct{} // closed by Close

	mu     sync.Mutex
	layer  string // named by the last weight
	step   int64
	worked bool // ops ran since the last Sync
	poison error
}

func (d *device) stop() { d.once.Do(func() { close(d.closing) }) }

// at runs before a call; an error takes its place.
func (d *device) at(op string, w *abi.Weight) error {
	isOp := !slices.Contains(deviceCalls, op)
	name := ""
	if w != nil && w.Name.Ptr != nil && w.Name.Len < 1<<16 {
		name = unsafe.String((*byte)(w.Name.Ptr), int(w.Name.Len))
	}
	d.mu.Lock()
	if d.poison != nil && op != "free" && op != "release" {
		defer d.mu.Unlock()
		return d.poison
	}
	if isOp {
		d.worked = true
		if l := layerOf(name); l != "" {
			d.layer = l
		}
	}
	layer, step := d.layer, d.step
	if op == "sync" && d.worked {
		d.worked = false
		d.step++
	}
	d.mu.Unlock()
	for _, r := range d.rules {
		if !r.fires(op, isOp, layer, name, step) {
			continue
		}
		switch r.Action {
		case Delay:
			t := time.NewTimer(r.Delay)
			select {
			case <-t.C:
			case <-d.closing:
				t.Stop()
			}
		case Hang:
			<-d.closing
			return d.fail(&backend.Error{Code: abi.Unavailable, Scope: backend.ScopeDevice, Op: op, Msg: "injected hang ended by close"})
		case Kill:
			d.kill()
		default:
			return d.fail(&backend.Error{Code: r.Code, Scope: r.Scope, Op: op, Msg: r.Msg})
		}
		return nil
	}
	return nil
}

// fail returns err and, from scope device on, keeps it for every later call.
func (d *device) fail(err *backend.Error) error {
	if err.Scope >= backend.ScopeDevice {
		d.mu.Lock()
		d.poison = err
		d.mu.Unlock()
	}
	return err
}

func (r *rule) fires(op string, isOp bool, layer, weight string, step int64) bool {
	if r.Ops == nil && !isOp || r.Ops != nil && !slices.Contains(r.Ops, op) {
		return false
	}
	if r.Layer != "" && r.Layer != layer || r.Weight != "" && !strings.Contains(weight, r.Weight) {
		return false
	}
	if r.Step >= 0 && step != r.Step || step < r.From {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls++
	if r.Call > 0 && r.calls != r.Call || r.Every > 0 && r.calls%r.Every != 0 || r.Times > 0 && r.firing >= r.Times {
		return false
	}
	r.firing++
	return true
}

// layerOf finds "3" in "layers.3.attn.wq_a.weight" and "mtp.0" in "mtp.0.main_proj.weight"; a prefix "model." is skipped.
func layerOf(name string) string {
	name = strings.TrimPrefix(name, "model.")
	for _, p := range [...]string{"layers.", "mtp."} {
		rest, ok := strings.CutPrefix(name, p)
		if !ok {
			continue
		}
		n := strings.IndexByte(rest, '.')
		if n <= 0 {
			continue
		}
		if p == "mtp." {
			return name[:len(p)+n]
		}
		return rest[:n]
	}
	return ""
}

// Info implements backend.Device.
func (d *device) Info() backend.Info {
	i := d.in.Info()
	i.Name += " with faults"
	return i
}

func (d *device) GEMM() backend.GEMM           { return d.ops() }
func (d *device) Attention() backend.Attention { return d.ops() }
func (d *device) AllToAll() backend.AllToAll   { return d.ops() }
func (d *device) Vector() backend.Vector       { return d.ops() }

// Alloc implements backend.Device.
func (d *device) Alloc(n int64) (unsafe.Pointer, error) {
	if err := d.at("alloc", nil); err != nil {
		return nil, err
	}
	return d.in.Alloc(n)
}

// Free implements backend.Device.
func (d *device) Free(p unsafe.Pointer) error {
	if err := d.at("free", nil); err != nil {
		return err
	}
	return d.in.Free(p)
}

// Upload implements backend.Device.
func (d *device) Upload(dst unsafe.Pointer, src []byte) error {
	if err := d.at("upload", nil); err != nil {
		return err
	}
	return d.in.Upload(dst, src)
}

// Download implements backend.Device.
func (d *device) Download(dst []byte, src unsafe.Pointer) error {
	if err := d.at("download", nil); err != nil {
		return err
	}
	return d.in.Download(dst, src)
}

// Prepare implements backend.Device.
func (d *device) Prepare(w *abi.Weight) error {
	if err := d.at("prepare", w); err != nil {
		return err
	}
	return d.in.Prepare(w)
}

// Release implements backend.Device.
func (d *device) Release(w *abi.Weight) error {
	if err := d.at("release", w); err != nil {
		return err
	}
	return d.in.Release(w)
}

// Sync implements backend.Device.
func (d *device) Sync() error {
	if err := d.at("sync", nil); err != nil {
		return err
	}
	return d.in.Sync()
}

// Close implements backend.Device. It ends a hanging call.
func (d *device) Close() error {
	d.stop()
	return d.in.Close()
}
