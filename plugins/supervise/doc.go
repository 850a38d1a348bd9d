// Package supervise decides when a worker is started, doubted, restarted or given up, and which requests poison workers. It is pure: time comes in as a value, nothing
// is started here.
//
// The main type is Supervisor, one per worker link; plugins/remote feeds it events and obeys. Poison keeps the charges of requests and is used by whoever knows
// which requests were in a lost step.
//
// Concurrency: one caller at a time for each value.
package supervise
