// Command deepinfer-worker is the stock worker: the process that holds one device for `deepinfer`. The engine starts it; it is of no use by hand.
//
// It loads the shared object that the engine passes as a sealed descriptor, through sdk/worker/dl and without cgo. Without a library it serves the backends written in Go, which
// tests use: ref, null, fault.
package main

import (
	"fmt"

	"github.com/deepinfer-go/deepinfer/backends/fault"
	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/worker"
	"github.com/deepinfer-go/deepinfer/sdk/worker/dl"
)

func main() { worker.Main(resolve) }

func resolve(name string) (backend.Backend, error) {
	p, passed, err := worker.PassedLibrary()
	if err != nil {
		return nil, err
	}
	if passed {
		defer p.File.Close() // the loader keeps its own mapping
		lib, err := dl.OpenFile(p.File, p.Path, dl.Options{PluginDir: p.PluginDir, ScratchDir: p.Scratch, Log: p.Log, LogLevel: 1})
		if err != nil {
			return nil, err
		}
		if lib.Name() != name {
			return nil, fmt.Errorf("library %s calls itself %q, its manifest says %q", p.Path, lib.Name(), name)
		}
		return library{lib}, nil
	}
	switch name {
	case "ref":
		return ref.New(), nil
	case "null":
		return null.New(), nil
	case "fault":
		return fault.New(ref.New(), fault.Options{})
	}
	return nil, fmt.Errorf("backend %q: no library was passed and this worker has only ref, null and fault built in", name)
}

// library adds what the operator should know about a loaded library.
type library struct{ *dl.Library }

// Notes implements worker.Noter.
func (l library) Notes() []string {
	out := []string{"library " + l.Name() + " " + l.Version()}
	for _, s := range l.Restored() {
		out = append(out, "the library replaced the handler of "+s+"; it was put back (a defect of the library)")
	}
	return out
}
