// Package configcli implements `deepinfer config check | show`.
//
// Command is the way in, called by cmd/deepinfer. A configuration that cannot be used ends in *Error, which carries exit code 2. Nothing here
// starts a goroutine.
package configcli
