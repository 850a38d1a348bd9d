// Package controlpb is the generated code of the worker's control service. The source is control.proto; docs/wire.md explains the calls and their order.
//
// Used by sdk/worker (server) and plugins/launch (client). Messages are plain data; clients and servers are safe for concurrent use.
package controlpb
