// Package model describes DeepSeek-V4.1 and V4 as graphs: flat lists of ops over named weights and buffers, with the geometry of everything a sequence
// leaves behind (window rings, compressor tails, KV granules).
//
// NewGraph is the way in; core/plan lowers its result to a program. Below lie config (config.json), checkpoint (safetensors), engram (hash geometry, token
// map) and vision (image preprocessing). Graphs and geometries are plain values, safe to share once built.
package model
