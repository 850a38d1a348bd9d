package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// fakeExec is a device whose "model" is a hash of the whole context, kept the way a real one keeps it: a chained value in the state slot's ring, one value
// per token in the granules, the preceding tokens from the history. A wrong slot, table, position, history or flag, a stale ring or a missing row changes
// the tokens. truth computes the same from the token ids alone.
type fakeExec struct {
	slots, granules int
	garbage         uint64

	progs   []*program.Program
	ring    [][]cell   // [slot][ringRows]
	cache   [][]uint64 // [granule][128]
	pending *program.Step
	res     program.Result
	out     atomic.Int32 // steps in flight
	wake    chan struct{}

	mu         sync.Mutex
	fault      func(st *program.Step) error // before a step runs; an error is returned from Wait
	submitErr  func(st *program.Step) error
	recoverErr error
	gate       chan struct{} // when not nil, Wait takes one value for each step
	hang       bool          // Wait and Recover return only when their context ends
	edit       func(r *program.Result)

	recovered atomic.Int32
	steps     []stepShape
}

type stepShape struct {
	program             uint32
	rows, seqs, logits  int
	images, width, topN int
}

type cell struct {
	pos  int
	hash uint64
}

const (
	ringRows = 128 + 8
	testHist = 3
	hidden   = 4
)

func newFake(slots, granules int) *fakeExec {
	f := &fakeExec{slots: slots, granules: granules, garbage: 12345, wake: make(chan struct{}, 1)}
	f.wipe()
	return f
}

func (f *fakeExec) wipe() {
	f.ring, f.cache = nil, nil
	for range f.slots {
		r := make([]cell, ringRows)
		for i := range r {
			f.garbage = mix(f.garbage, 1)
			r[i] = cell{pos: int(f.garbage % 500), hash: f.garbage}
		}
		f.ring = append(f.ring, r)
	}
	for range f.granules {
		c := make([]uint64, 128)
		for i := range c {
			f.garbage = mix(f.garbage, 2)
			c[i] = f.garbage
		}
		f.cache = append(f.cache, c)
	}
}

func mix(h, v uint64) uint64 {
	h ^= v + 0x9e3779b97f4a7c15 + h<<6 + h>>2
	h ^= h >> 30
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}

// contextHash chains one token.
func chain(prev uint64, id, flag int32, image uint64) uint64 {
	return mix(mix(mix(prev, uint64(id)), uint64(flag)), image)
}

// choose applies masks and biases the fake's way: ids are tried upwards from the one that draw gives, and a bias of 50 or more puts an id first. -1: none is
// left.
func choose(id int32, vocab int, allowed func(int32) bool, add func(int32) float32) int32 {
	best := int32(-1)
	for k := range int32(vocab) {
		c := (id + k) % int32(vocab)
		if !allowed(c) || math.IsInf(float64(add(c)), -1) {
			continue
		}
		if add(c) >= 50 {
			return c
		}
		if best < 0 {
			best = c
		}
	}
	return best
}

// adjusted is what the device makes of the masks and biases of row i.
func adjusted(st *program.Step, i int, id int32, vocab int) int32 {
	s := st.Sampling[i]
	if s.Forced >= 0 || s.Mask == 0 && s.BiasCount == 0 {
		return id
	}
	sums := map[int32]float32{}
	for _, b := range st.Biases[s.BiasFirst : s.BiasFirst+s.BiasCount] {
		if b.Id >= 0 {
			sums[b.Id] += b.Add
		}
	}
	mask := st.Masks[max(0, int(s.Mask)-1)*st.MaskWords:]
	return choose(id, vocab, func(c int32) bool { return s.Mask == 0 || mask[c/32]>>(c%32)&1 != 0 }, func(c int32) float32 { return sums[c] })
}

// draw is the model's head and sampler.
func draw(h uint64, s abi.Sampling, vocab int) (id int32, lp float32) {
	if s.Forced >= 0 {
		id = s.Forced
	} else if s.Temperature == 0 {
		id = int32(h % uint64(vocab))
	} else {
		id = int32(mix(mix(mix(h, s.Seed), uint64(s.Pos)), uint64(s.Salt)) % uint64(vocab))
	}
	return id, -float32(mix(h, uint64(id))%1000) / 100
}

func (f *fakeExec) Load(context.Context, ModelSpec) error { return nil }

func (f *fakeExec) Compile(_ context.Context, p *program.Program) (uint32, error) {
	f.progs = append(f.progs, p)
	return uint32(len(f.progs) - 1), nil
}

func (f *fakeExec) Submit(st *program.Step) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.submitErr != nil {
		if err := f.submitErr(st); err != nil {
			return err
		}
	}
	if f.out.Load() != 0 {
		return ErrFull
	}
	if err := st.Validate(f.progs[st.Program], f.slots, f.granules, testVocab); err != nil {
		return err
	}
	f.out.Store(1)
	f.pending = st
	f.wake <- struct{}{}
	return nil
}

func (f *fakeExec) Wait(ctx context.Context) (*program.Result, error) {
	select {
	case <-f.wake:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	st := f.pending
	f.mu.Lock()
	fault, gate, hang, edit := f.fault, f.gate, f.hang, f.edit
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	defer f.out.Store(0)
	if fault != nil {
		if err := fault(st); err != nil {
			// A failed step has spoiled what it touched.
			for _, s := range st.Rows.SeqSlot {
				for i := range f.ring[s] {
					f.ring[s][i] = cell{pos: -1}
				}
			}
			return nil, err
		}
	}
	f.run(st)
	if edit != nil {
		edit(&f.res)
	}
	return &f.res, nil
}

func (f *fakeExec) run(st *program.Step) {
	r := &f.res
	*r = program.Result{Seq: st.Seq, IDs: r.IDs[:0], LogProb: r.LogProb[:0], TopIDs: r.TopIDs[:0], TopLogProb: r.TopLogProb[:0], Rows: r.Rows[:0]}
	b := &st.Rows
	f.steps = append(f.steps, stepShape{st.Program, len(b.Token), len(b.SeqSlot), len(st.Logits), len(st.Input) / hidden, b.TableWidth, st.TopN})
	if st.GridH > 0 {
		for c := range st.Cells {
			h := uint64(c)
			for _, v := range st.Input {
				h = mix(h, uint64(v))
			}
			for k := range hidden {
				r.Rows = append(r.Rows, uint16(mix(h, uint64(k))))
			}
		}
		return
	}
	hashes := make([]uint64, len(b.Token))
	for i, id := range b.Token {
		q, pos := b.Seq[i], int(b.Pos[i])
		ring := f.ring[b.SeqSlot[q]]
		var prev uint64
		if pos > 0 {
			c := ring[(pos-1)%ringRows]
			prev = c.hash
			if c.pos != pos-1 {
				prev = mix(0xbad, uint64(c.pos))
			}
		}
		var image uint64
		if k := b.ImageRow[i]; k >= 0 {
			for _, v := range st.Input[int(k)*hidden : (int(k)+1)*hidden] {
				image = mix(image, uint64(v))
			}
		}
		h := chain(prev, id, b.Flag[i], image)
		ring[pos%ringRows] = cell{pos, h}
		table := b.Table[int(q)*b.TableWidth : (int(q)+1)*b.TableWidth]
		f.cache[table[pos/128]][pos%128] = mix(uint64(id), uint64(pos))
		// preceding tokens, from this step's rows or the history
		for k := 1; k <= testHist; k++ {
			at := i - k
			if at >= int(b.SeqFirst[q]) {
				h = mix(h, uint64(b.Token[at])<<2|uint64(b.Flag[at]))
			} else {
				j := int(q)*testHist + testHist + (at - int(b.SeqFirst[q]))
				h = mix(h, uint64(b.Hist[j])<<2|uint64(b.HistFlag[j]))
			}
		}
		hashes[i] = h
	}
	for l, row := range st.Logits {
		q, pos := b.Seq[row], int(b.Pos[row])
		table := b.Table[int(q)*b.TableWidth : (int(q)+1)*b.TableWidth]
		h := hashes[row]
		for p := 0; p <= pos; p++ {
			h = mix(h, f.cache[table[p/128]][p%128])
		}
		id, lp := draw(h, st.Sampling[l], testVocab)
		if a := adjusted(st, l, id, testVocab); a != id {
			id, lp = a, -float32(mix(h, uint64(a))%1000)/100
		}
		r.IDs, r.LogProb = append(r.IDs, id), append(r.LogProb, lp)
		for k := range st.TopN {
			r.TopIDs = append(r.TopIDs, int32(mix(h, uint64(k))%testVocab))
			r.TopLogProb = append(r.TopLogProb, -float32(k))
		}
	}
}

// truth computes what fakeExec must answer for row pos of the context ids.
func truth(ids []int32, images map[int][]uint16, imageToken int32, pos int) uint64 {
	flag := func(p int) int32 {
		if p < 0 {
			return flagMissing
		}
		if imageToken > 0 && ids[p] == imageToken {
			return flagImage
		}
		return 0
	}
	var h uint64
	for p := 0; p <= pos; p++ {
		var image uint64
		for _, v := range images[p] {
			image = mix(image, uint64(v))
		}
		h = chain(h, ids[p], flag(p), image)
	}
	for k := 1; k <= testHist; k++ {
		var id int32
		if pos >= k {
			id = ids[pos-k]
		}
		h = mix(h, uint64(id)<<2|uint64(flag(pos-k)))
	}
	for p := 0; p <= pos; p++ {
		h = mix(h, mix(uint64(ids[p]), uint64(p)))
	}
	return h
}

func (f *fakeExec) Recover(ctx context.Context) error {
	f.mu.Lock()
	hang := f.hang
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return ctx.Err()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.recoverErr != nil {
		return f.recoverErr
	}
	select {
	case <-f.wake: // a step that was never waited for
	default:
	}
	f.out.Store(0)
	f.wipe()
	f.recovered.Add(1)
	return ctx.Err()
}

func (f *fakeExec) Facts() Facts                { return Facts{Backend: "fake", Depth: 1} }
func (f *fakeExec) Close(context.Context) error { return nil }

func (f *fakeExec) set(fn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	fn()
}

var errKilled = fmt.Errorf("worker killed: %w", ErrLost)
var errBad = errors.New("bad step")

const testVocab = 997

// testProgram is the shell of a program: what the engine reads of one.
func testProgram(rows int) *program.Program {
	return &program.Program{
		Format: program.Format, OpSet: abi.OpSet, Name: "main", Acc: abi.F32, TopN: 5, NHist: testHist,
		Bucket:  program.Bucket{Rows: rows, Seqs: min(rows, 16), Logits: min(rows, 32)},
		Buffers: []program.Buffer{{Name: program.InputName, Kind: program.Input, DType: abi.BF16, Domain: program.Rows, Dims: []int{hidden}}},
	}
}

func visionProgram() *program.Program {
	return &program.Program{
		Format: program.Format, OpSet: abi.OpSet, Name: "vision", Acc: abi.F32,
		Bucket:  program.Bucket{Rows: 64, Seqs: 1, Logits: 16},
		Buffers: []program.Buffer{{Name: program.InputName, Kind: program.Input, DType: abi.BF16, Domain: program.Rows, Dims: []int{6}}},
	}
}
