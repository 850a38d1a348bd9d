// Package modelcli implements `deepinfer model inspect` and `deepinfer model verify`.
//
// Command is the way in, called by cmd/deepinfer. Inspect answers what a model is, how large its parts are and what fits on a
// device; its numbers come from the configuration and the tensor inventory, so config.json alone is enough. Verify reads the weights and
// lists everything that is wrong with them. Both are single-threaded from the caller's view.
package modelcli
