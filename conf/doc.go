// Package conf holds the typed configuration of the engine and reads it from HCL v2 files, environment variables and flags.
//
// Config is the main type. cmd/deepinfer calls Load once at start and hands the parts to the packages that need them; `deepinfer config` calls
// Load, Validate, Warnings and Show. The order of precedence is defaults < file < environment < flags, and every value remembers where it was
// set, so that a problem names file:line:column, the variable or the flag.
//
//	cfg, err := conf.Load("deepinfer.hcl", os.Environ(), map[string]any{"server.listen": "127.0.0.1:9000"})
//	if err != nil {
//		return err // every problem at once, one a line
//	}
//	backend, ok := cfg.Backend(cfg.Model().Backend)
//
// Parser is the koanf.Parser behind it. It turns labelled blocks into map[kind][label] and refuses unknown keys and repeated labels, which the
// parser that comes with koanf drops in silence. The schema is the Config struct itself, read by reflection from its conf tags.
//
// A Config is plain data: safe to read from many goroutines once Load has returned, not safe to change while read.
package conf
