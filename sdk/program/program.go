package program

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Format is the version of the encoded form. Decode refuses others.
const Format = 1

// Domain says what the leading dimension of a buffer counts.
type Domain uint8

// Domains. Fixed buffers have no step-dependent dimension.
const (
	Fixed  Domain = iota
	Rows          // all rows (tokens) of the step; in a vision program: patches
	Kept          // rows that the decoder half serves (bounded replay); identity unless Step.Kept is set
	Logits        // rows whose logits are wanted; in a vision program: merged cells
)

// String is the letter of the domain in the text form.
func (d Domain) String() string { return [...]string{"", "T", "K", "L"}[d&3] }

// Kind says where a buffer lives and who fills it.
type Kind uint8

// Kinds of buffers.
const (
	Temp   Kind = iota // workspace, offset from the memory plan
	Weight             // matrix in its on-disk format, bound by name
	Vector             // small weight (norm, bias, mixing matrix) as F32, bound by name, converted at load
	Const              // computed by the host when lowering (rotation speeds, primes), carried in Data
	Ring               // window ring of a state slot
	Tail               // compressor tail of a state slot
	Cache              // one layer's part of a KV granule
	Input              // filled from Step.Input before the run
	Output             // read back after the run
)

var kindNames = [...]string{"temp", "weight", "vector", "const", "ring", "tail", "cache", "input", "output"}

// String is the word of the kind in the text form.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Buffer is one named array. The leading dimension of a Rows, Kept or Logits buffer is Mul times the count of that domain.
type Buffer struct {
	Name   string `json:"name"`
	Kind   Kind   `json:"kind"`
	DType  uint32 `json:"dtype,omitempty"` // abi.F32, ...; 0 for Weight, Ring, Tail, Cache
	Domain Domain `json:"domain,omitempty"`
	Mul    int    `json:"mul,omitempty"`  // 0 means 1
	Dims   []int  `json:"dims,omitempty"` // dimensions after the domain's one (all of them for Fixed)

	Weight *WeightRef `json:"weight,omitempty"` // Weight and Vector
	Region *RegionRef `json:"region,omitempty"` // Ring, Tail, Cache
	Data   []byte     `json:"data,omitempty"`   // Const: little-endian elements of DType

	Offset int64 `json:"offset,omitempty"` // Temp, Input, Output: byte offset in the workspace, set by the memory plan
}

// Width is the number of elements of one leading row.
func (b *Buffer) Width() int {
	n := 1
	for _, d := range b.Dims {
		n *= d
	}
	return n
}

// RowsMul is Mul with its default.
func (b *Buffer) RowsMul() int { return max(b.Mul, 1) }

// Bytes is the size of the buffer when its domain has n members.
func (b *Buffer) Bytes(n int) int64 {
	e := int64(abi.ElemBytes(b.DType)) * int64(b.Width())
	if b.Domain == Fixed {
		return e
	}
	return e * int64(n) * int64(b.RowsMul())
}

// WeightRef names the checkpoint tensors behind a buffer.
type WeightRef struct {
	Format uint32   `json:"format"` // abi.WBF16, ...
	Tile   int      `json:"tile,omitempty"`
	N      int      `json:"n"`              // rows of one part
	K      int      `json:"k"`              // columns of one part
	Names  []string `json:"names"`          // one tensor per part, full checkpoint names; the scale of X.weight is X.scale
	From   int      `json:"from,omitempty"` // first row of the tensor (plain formats only): this buffer is rows From..From+N-1
}

// Pool is the device memory pool of a region.
type Pool uint8

// Pools.
const (
	StatePool Pool = iota // unit = state slot
	KVPool                // unit = granule
)

// RegionRef places packed rows inside the units of a pool; fields as abi.Region.
type RegionRef struct {
	Pool     Pool   `json:"pool"`
	Format   uint32 `json:"format"` // abi.RecNone for tails
	Offset   int64  `json:"offset"`
	Rows     int    `json:"rows"`
	RowBytes int    `json:"row_bytes"`
	Ratio    int    `json:"ratio"`
	Dim      int    `json:"dim"`
	Rope     int    `json:"rope,omitempty"`
	Planar   bool   `json:"planar,omitempty"`
}

// Operand binds a named slot of an op to a buffer.
type Operand struct {
	Name string `json:"name"`
	Buf  int    `json:"buf"`
}

// Attr is one named number of an op.
type Attr struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"` // integers are exact up to 2^53
}

// Op is one operation. Operands and Attrs follow the order of its Signature.
type Op struct {
	Code     Code      `json:"code"`
	Label    string    `json:"label"` // "layers.3.attn.wq_a": where in the model it belongs
	Operands []Operand `json:"operands"`
	Attrs    []Attr    `json:"attrs,omitempty"`
}

// Buf returns the buffer index bound to an operand name, -1 when absent.
func (o *Op) Buf(name string) int {
	for _, p := range o.Operands {
		if p.Name == name {
			return p.Buf
		}
	}
	return -1
}

// Num returns an attribute, or def when absent.
func (o *Op) Num(name string, def float64) float64 {
	for _, a := range o.Attrs {
		if a.Name == name {
			return a.Value
		}
	}
	return def
}

// Int returns an integer attribute, or def when absent.
func (o *Op) Int(name string, def int) int { return int(o.Num(name, float64(def))) }

// Bucket bounds the counts of a step that this program serves.
type Bucket struct {
	Rows   int `json:"rows"`   // T
	Seqs   int `json:"seqs"`   // S
	Logits int `json:"logits"` // L
}

// Program is a lowered graph for one bucket.
type Program struct {
	Format    int      `json:"format"`
	OpSet     int      `json:"op_set"`
	Name      string   `json:"name"`    // "main", "vision"
	Profile   string   `json:"profile"` // "reference", "production"
	Acc       uint32   `json:"acc"`     // abi.F32 or abi.F64: dtype of accumulation tensors
	Bucket    Bucket   `json:"bucket"`
	TopN      int      `json:"top_n"`      // capacity of the top_ids output
	Workspace int64    `json:"workspace"`  // bytes, set by the memory plan
	SlotBytes int64    `json:"slot_bytes"` // unit stride of the state pool
	Granule   int64    `json:"granule"`    // unit stride of the KV pool
	NHist     int      `json:"n_hist"`     // preceding tokens each sequence supplies
	Buffers   []Buffer `json:"buffers"`
	Ops       []Op     `json:"ops"`
}

// Count returns how many members a domain has in a bucket or step with these counts.
func (b Bucket) Count(d Domain) int {
	switch d {
	case Rows, Kept:
		return b.Rows
	case Logits:
		return b.Logits
	}
	return 1
}

// Vocab returns the number of logits of a row, 0 for a program that draws nothing.
func (p *Program) Vocab() int {
	for i := range p.Ops {
		if o := &p.Ops[i]; o.Code == Sample {
			if b := o.Buf("logits"); b >= 0 && b < len(p.Buffers) {
				return p.Buffers[b].Width()
			}
		}
	}
	return 0
}

// Find returns the index of a buffer by name, -1 when there is none.
func (p *Program) Find(name string) int {
	for i := range p.Buffers {
		if p.Buffers[i].Name == name {
			return i
		}
	}
	return -1
}

// Encode returns the wire form: JSON with the format number first.
func (p *Program) Encode() ([]byte, error) { return json.Marshal(p) }

// Decode reads the wire form and validates it. Bytes of any origin are safe to pass.
func Decode(b []byte) (*Program, error) {
	var v struct{ Format, OpSet int }
	head := struct {
		Format *int `json:"format"`
		OpSet  *int `json:"op_set"`
	}{&v.Format, &v.OpSet}
	if err := json.Unmarshal(b, &head); err != nil {
		return nil, fmt.Errorf("decode program: %w", err)
	}
	if v.Format != Format {
		return nil, fmt.Errorf("decode program: format %d, this build reads format %d", v.Format, Format)
	}
	if v.OpSet != abi.OpSet {
		return nil, fmt.Errorf("decode program: op set %d, this build knows op set %d", v.OpSet, abi.OpSet)
	}
	p := new(Program)
	if err := json.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("decode program: %w", err)
	}
	if err := p.Validate(); err != nil {
		return nil, errors.Join(errors.New("decode program: not valid"), err)
	}
	return p, nil
}
