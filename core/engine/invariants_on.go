//go:build invariants

package engine

const checking = true
