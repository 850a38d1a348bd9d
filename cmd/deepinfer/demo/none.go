//go:build nodemo

package demo

import "io/fs"

// Name is the served name of the demo model.
const Name = "spark-mini"

// Files returns nil: this build left the demo model out.
func Files() (fs.FS, error) { return nil, nil }
