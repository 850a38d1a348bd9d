//go:build !unix

package catalog

// trusted has no owner and mode bits to look at on this system.
func trusted(string) error { return nil }
