// Package plan lowers a model graph to a program: it binds the symbolic dimensions to a bucket of row counts and lays the temporary arrays out in one
// workspace so that arrays whose lives do not overlap share bytes.
//
// Lower is the way in; core/engine calls it once per bucket at start-up. Pure functions, no clock, file or goroutine.
package plan
