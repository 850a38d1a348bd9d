//go:build !nodemo

package demo

import (
	_ "embed"
	"io/fs"
	"sync"

	"github.com/deepinfer-go/deepinfer/internal/archive"
)

//go:embed model.tar.zst
var packed []byte

// Name is the served name of the demo model.
const Name = "spark-mini"

// Files returns the demo checkpoint as a file system rooted at its directory, nil when the build left it out. The first call unpacks it (30 MB).
var Files = sync.OnceValues(func() (fs.FS, error) {
	f, err := archive.Open(packed)
	if err != nil {
		return nil, err // the binary itself is damaged
	}
	return f, nil
})
