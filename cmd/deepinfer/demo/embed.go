//go:build !nodemo

package demo

import (
	_ "embed"
	"io/fs"

	"github.com/deepinfer-go/deepinfer/internal/archive"
)

//go:embed model.tar.zst
var packed []byte

// Name is the served name of the demo model.
const Name = "spark-mini"

// Files unpacks the demo checkpoint (30 MB) into a file system rooted at its directory; nil without an error when the build left it out.
func Files() (fs.FS, error) {
	f, err := archive.Open(packed)
	if err != nil {
		return nil, err // the binary itself is damaged
	}
	return f, nil
}
