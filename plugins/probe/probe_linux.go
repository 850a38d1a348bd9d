package probe

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/deepinfer-go/deepinfer/plugins/catalog"
	"github.com/deepinfer-go/deepinfer/plugins/launch"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// Run starts a worker, loads the backend there, lists its devices and ends the worker. It always returns, within the timeout and a moment, and leaves nothing behind.
func Run(ctx context.Context, entry catalog.Entry, opt Options) (r Report) {
	began := time.Now()
	r = Report{Backend: entry.Name, Path: entry.LibPath}
	defer func() { r.Took = time.Since(began) }()
	if opt.Timeout <= 0 {
		opt.Timeout = 15 * time.Second
	}
	if entry.State != catalog.Usable {
		r.Result, r.Reason = Refused, fmt.Sprint(entry.Reason)
		return r
	}
	ctx, cancel := context.WithTimeout(ctx, opt.Timeout)
	defer cancel()
	spec := launch.Spec{Worker: opt.Worker, Backend: entry.Name, Env: opt.Env, Epoch: 1, StartTimeout: opt.Timeout}
	if entry.LibPath != "" {
		lib, err := launch.SealLibrary(entry.LibPath, entry.Dir, entry.Pinned)
		if err != nil {
			r.Result, r.Reason = Refused, err.Error()
			return r
		}
		defer lib.Close()
		spec.Library, r.SHA256 = lib, lib.SHA256
	}
	p, err := launch.Start(ctx, spec)
	if err != nil {
		r.Result, r.Reason = outcome(ctx, err), err.Error()
		return r
	}
	for _, l := range p.Layers {
		r.Layers = append(r.Layers, l.Name+": "+l.State)
	}
	reply, err := p.Control.Fingerprint(ctx, &controlpb.FingerprintRequest{})
	if err != nil {
		err = wire.FromStatus("Fingerprint", err)
		var be *backend.Error
		if !errors.As(err, &be) {
			// The connection broke, or time is up: the end of the process is the better explanation.
			select {
			case <-p.Exited():
			case <-time.After(100 * time.Millisecond):
			}
			if dead := p.Err(); dead != nil {
				err = dead
			}
		}
		r.Result, r.Reason = outcome(ctx, err), err.Error()
		if r.Result == Hung {
			r.Reason = fmt.Sprintf("no answer within %s", opt.Timeout)
			if w := p.Words(); w != "" {
				r.Reason += "; its last words:\n  " + w
			}
		}
		p.Kill()
		if err := p.Stop(context.Background()); err != nil {
			r.Notes = append(r.Notes, "the probe process did not end cleanly: "+err.Error())
		}
		return r
	}
	r.Result, r.Notes = OK, reply.Notes
	for _, d := range reply.Devices {
		r.Devices = append(r.Devices, backend.Info{Name: d.Name, MemoryBytes: d.MemoryBytes, MemoryFree: d.MemoryFree, Cores: int(d.Cores), Features: d.Features,
			BatchInvariant: d.BatchInvariant, HostMemory: d.HostMemory, F64: d.F64, Missing: d.Missing})
	}
	if err := p.Stop(ctx); err != nil {
		r.Notes = append(r.Notes, "the probe process did not end cleanly: "+err.Error())
	}
	return r
}

func outcome(ctx context.Context, err error) string {
	var dead *launch.ExitError
	switch {
	case errors.As(err, &dead):
		return Crashed
	case ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded):
		return Hung
	}
	return Failed
}
