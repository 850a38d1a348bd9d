//go:build !nodemo

package demo

import (
	"embed"
	"io/fs"
)

//go:embed model
var embedded embed.FS

// Name is the served name of the demo model.
const Name = "spark-mini"

// Files returns the demo checkpoint as a file system rooted at its directory, nil when the build left it out.
func Files() fs.FS {
	sub, err := fs.Sub(embedded, "model")
	if err != nil {
		panic(err) // the directory is embedded above
	}
	return sub
}
