// Package servecli implements `deepinfer serve`: the HTTP server and its life from listening to draining.
//
// Command is the way in, called by cmd/deepinfer. The server listens before the model is loaded, so that probes see it loading. SIGTERM and SIGINT drain it: readiness
// goes at once, running requests may finish within server.drain_timeout; a second signal cuts them. Errors carry an exit code. A process runs one command.
package servecli
