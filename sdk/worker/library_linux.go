package worker

import (
	"os"

	"github.com/deepinfer-go/deepinfer/sdk/wire"
)

// Passed is the library that the engine handed over.
type Passed struct {
	File      *os.File // sealed copy of the bytes that were hashed
	Path      string   // where it came from, for messages
	PluginDir string   // directory of its manifest
	Scratch   string   // private directory of this worker life
	Log       *os.File // fd 2, for the library's own log lines
}

// PassedLibrary returns the library the engine handed over, false when this worker serves backends of its own. For the resolve function.
func PassedLibrary() (Passed, bool, error) {
	path := os.Getenv(wire.EnvLibrary)
	if path == "" {
		return Passed{}, false, nil
	}
	f, err := inherit(wire.FDLibrary, "library "+path)
	if err != nil {
		return Passed{}, false, err
	}
	return Passed{File: f, Path: path, PluginDir: os.Getenv(wire.EnvPluginDir), Scratch: os.Getenv(wire.EnvScratch), Log: stderr}, true, nil
}
