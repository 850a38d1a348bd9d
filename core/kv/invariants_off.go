//go:build !invariants

package kv

const checking = false
