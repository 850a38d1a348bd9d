// Package app puts the pieces of an engine together: configuration, model, program, backend, executor, tokenizer.
//
// Open returns an App, which `deepinfer run` and `deepinfer serve` use and Close. Which backend runs is decided here: the flag, else the model's or
// the file's, else cpu where its library is found, else ref with a notice. A backend that was named and cannot start is an error; nothing takes its place.
//
// An App's parts are safe for concurrent use as their own packages say. Open and Close are for one caller.
package app
