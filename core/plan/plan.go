package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// align is the alignment of workspace arrays in bytes: one cache line, and what abi promises to ops.
const align = 64

// Buckets returns the row counts for which programs are built, ascending: powers of two up to maxRows, and maxRows itself. A step runs in the smallest that
// fits; the count only bounds the workspace, results do not depend on it.
func Buckets(maxRows int) []int {
	var b []int
	for n := 1; n < maxRows; n *= 4 {
		b = append(b, n)
	}
	return append(b, maxRows)
}

// Lower binds a graph to a bucket. The returned program is validated.
func Lower(g *model.Graph, bucket program.Bucket) (*program.Program, error) {
	p := &program.Program{
		Format: program.Format, OpSet: abi.OpSet, Name: g.Name, Profile: g.Opt.Numerics, Acc: g.Opt.Acc, Bucket: bucket,
		Buffers: slices.Clone(g.Buffers), Ops: g.Ops,
	}
	if g.Geometry != nil {
		p.SlotBytes, p.Granule, p.NHist, p.TopN = g.Geometry.SlotBytes, g.Geometry.GranuleStride, g.Geometry.NHist, model.TopN
	}
	p.Workspace = layOut(p)
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("lower %s for %d rows: %w", g.Name, bucket.Rows, err)
	}
	return p, nil
}

// life is the span of ops in which a buffer's bytes matter.
type life struct {
	buf         int
	first, last int // op indices, inclusive; -1 = before the first op
	bytes       int64
}

// lives returns the workspace buffers in order of their first op. Inputs live from the start, outputs to the end.
func lives(p *program.Program) []life {
	at := make([]int, len(p.Buffers)) // index into ls, plus one
	var ls []life
	touch := func(b, op int) {
		k := p.Buffers[b].Kind
		if k != program.Temp && k != program.Input && k != program.Output {
			return
		}
		if at[b] == 0 {
			bytes := (p.Buffers[b].Bytes(p.Bucket.Count(p.Buffers[b].Domain)) + align - 1) / align * align
			ls = append(ls, life{buf: b, first: op, last: op, bytes: bytes})
			at[b] = len(ls)
		}
		ls[at[b]-1].last = op
	}
	for i := range p.Buffers {
		if p.Buffers[i].Kind == program.Input {
			touch(i, -1)
		}
	}
	for i := range p.Ops {
		for _, q := range p.Ops[i].Operands {
			touch(q.Buf, i)
		}
	}
	for i := range ls {
		if p.Buffers[ls[i].buf].Kind == program.Output {
			ls[i].last = len(p.Ops)
		}
	}
	return ls
}

// layOut assigns offsets, largest buffers first, each to the lowest offset that is free during its life, and returns the workspace size.
func layOut(p *program.Program) int64 {
	ls := lives(p)
	slices.SortStableFunc(ls, func(a, b life) int { return cmp.Compare(b.bytes, a.bytes) })
	var placed []life
	var total int64
	for _, l := range ls {
		var busy []life // placed buffers alive at the same time, by offset
		for _, q := range placed {
			if q.first <= l.last && l.first <= q.last {
				busy = append(busy, q)
			}
		}
		slices.SortFunc(busy, func(a, b life) int { return cmp.Compare(p.Buffers[a.buf].Offset, p.Buffers[b.buf].Offset) })
		var off int64
		for _, q := range busy {
			o := p.Buffers[q.buf].Offset
			if off+l.bytes <= o {
				break
			}
			off = max(off, o+q.bytes)
		}
		p.Buffers[l.buf].Offset = off
		placed = append(placed, l)
		total = max(total, off+l.bytes)
	}
	return total
}
