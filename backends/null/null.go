package null

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// New returns the backend. It holds no state.
func New() backend.Backend { return null{} }

type null struct{}

var facts = backend.Info{Name: "null", Cores: 1, Features: "computes nothing", BatchInvariant: true, HostMemory: true, F64: true}

// Name implements backend.Backend.
func (null) Name() string { return "null" }

// Devices implements backend.Backend.
func (null) Devices(ctx context.Context) ([]backend.Info, error) {
	return []backend.Info{facts}, ctx.Err()
}

// Open implements backend.Backend.
func (null) Open(ctx context.Context, index int, opt backend.OpenOptions) (backend.Device, error) {
	if index != 0 {
		return nil, fmt.Errorf("open null device %d: there is one device, index 0", index)
	}
	if c := bytes.TrimSpace(opt.Config); len(c) > 0 && !bytes.Equal(c, []byte("{}")) {
		return nil, fmt.Errorf("open null: config %s: there are no settings", c)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return &device{blocks: map[unsafe.Pointer][]byte{}}, nil
}

type device struct {
	mu     sync.Mutex
	blocks map[unsafe.Pointer][]byte
	closed bool
}

func refused(op, format string, a ...any) error {
	return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: op, Msg: fmt.Sprintf(format, a...)}
}

func (d *device) Info() backend.Info           { return facts }
func (d *device) GEMM() backend.GEMM           { return ops{} }
func (d *device) Attention() backend.Attention { return ops{} }
func (d *device) AllToAll() backend.AllToAll   { return ops{} }
func (d *device) Vector() backend.Vector       { return ops{} }

// Alloc implements backend.Device.
func (d *device) Alloc(n int64) (unsafe.Pointer, error) {
	if n < 0 || n > 1<<46 {
		return nil, refused("alloc", "%d bytes, must be 0 to 2^46", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, &backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeDevice, Op: "alloc", Msg: "the device is closed"}
	}
	b := make([]byte, n+64)
	p := unsafe.Pointer(unsafe.SliceData(b))
	p = unsafe.Add(p, (64-uintptr(p)%64)%64)
	d.blocks[p] = b
	return p, nil
}

// Free implements backend.Device.
func (d *device) Free(p unsafe.Pointer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.blocks[p]; !ok {
		return refused("free", "%p was not allocated here, or freed before", p)
	}
	delete(d.blocks, p)
	return nil
}

// Upload implements backend.Device.
func (d *device) Upload(dst unsafe.Pointer, src []byte) error {
	if len(src) > 0 {
		if dst == nil {
			return refused("upload", "destination is NULL")
		}
		copy(unsafe.Slice((*byte)(dst), len(src)), src)
	}
	return nil
}

// Download implements backend.Device.
func (d *device) Download(dst []byte, src unsafe.Pointer) error {
	if len(dst) > 0 {
		if src == nil {
			return refused("download", "source is NULL")
		}
		copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	}
	return nil
}

// Prepare implements backend.Device.
func (d *device) Prepare(*abi.Weight) error { return nil }

// Release implements backend.Device.
func (d *device) Release(*abi.Weight) error { return nil }

// Sync implements backend.Device.
func (d *device) Sync() error { return nil }

// Close implements backend.Device.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed, d.blocks = true, nil
	return nil
}

// Token is the id that sample draws: a function of the row's key and the vocabulary size alone.
func Token(p abi.Sampling, vocab int) int32 {
	if p.Forced >= 0 {
		return p.Forced
	}
	h := p.Seed ^ uint64(uint32(p.Pos))<<32 ^ uint64(p.Salt)
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	h ^= h >> 31
	return int32(h % uint64(vocab))
}

// ops are the four families.
type ops struct{}

func (ops) GEMM(*abi.GEMMArgs) error                 { return nil }
func (ops) GEMMGrouped(*abi.GEMMGroupedArgs) error   { return nil }
func (ops) Head(*abi.HeadArgs) error                 { return nil }
func (ops) KVStore(*abi.KVStoreArgs) error           { return nil }
func (ops) Compress(*abi.CompressArgs) error         { return nil }
func (ops) IndexKey(*abi.IndexKeyArgs) error         { return nil }
func (ops) IndexSelect(*abi.IndexSelectArgs) error   { return nil }
func (ops) Attend(*abi.AttendArgs) error             { return nil }
func (ops) AttendBlock(*abi.AttendArgs) error        { return nil }
func (ops) Dispatch(*abi.DispatchArgs) error         { return nil }
func (ops) Combine(*abi.CombineArgs) error           { return nil }
func (ops) GatherRows(*abi.GatherRowsArgs) error     { return nil }
func (ops) AllGather(*abi.CollectiveArgs) error      { return nil }
func (ops) AllReduce(*abi.CollectiveArgs) error      { return nil }
func (ops) Embed(*abi.EmbedArgs) error               { return nil }
func (ops) RMSNorm(*abi.RMSNormArgs) error           { return nil }
func (ops) Rope(*abi.RopeArgs) error                 { return nil }
func (ops) Quantize(*abi.QuantizeArgs) error         { return nil }
func (ops) Hadamard(*abi.HadamardArgs) error         { return nil }
func (ops) MHCMix(*abi.MHCMixArgs) error             { return nil }
func (ops) MHCCollapse(*abi.MHCCollapseArgs) error   { return nil }
func (ops) MHCExpand(*abi.MHCExpandArgs) error       { return nil }
func (ops) MHCMean(*abi.MHCMeanArgs) error           { return nil }
func (ops) Router(*abi.RouterArgs) error             { return nil }
func (ops) Swiglu(*abi.SwigluArgs) error             { return nil }
func (ops) EngramHash(*abi.EngramHashArgs) error     { return nil }
func (ops) EngramMix(*abi.EngramMixArgs) error       { return nil }
func (ops) Markov(*abi.MarkovArgs) error             { return nil }
func (ops) Confidence(*abi.ConfidenceArgs) error     { return nil }
func (ops) Copy(*abi.CopyArgs) error                 { return nil }
func (ops) Cast(*abi.CastArgs) error                 { return nil }
func (ops) Add(*abi.AddArgs) error                   { return nil }
func (ops) Gelu(*abi.GeluArgs) error                 { return nil }
func (ops) VisionAttend(*abi.VisionAttendArgs) error { return nil }
func (ops) VisionMerge(*abi.VisionMergeArgs) error   { return nil }

// Sample writes Token for each row, with the log-probability of a uniform choice; the best ids are that token and those after it.
func (ops) Sample(a *abi.SampleArgs) error {
	l, v := int(a.Logits.Dim[0]), int(a.Logits.Dim[1])
	if l == 0 {
		return nil
	}
	if a.Params == nil || v < 1 || a.Ids.Data == nil || a.Ids.DType != abi.I32 || int(a.Ids.Dim[0]) != l {
		return refused("sample", "%d rows need params, a vocabulary and as many ids", l)
	}
	lp := float32(-math.Log(float64(v)))
	ids, logprob := abi.Slice[int32](&a.Ids), floats(&a.Logprob)
	top, topLP := abi.Slice[int32](&a.TopIds), floats(&a.TopLogprob)
	for i, p := range unsafe.Slice(a.Params, l) {
		id := Token(p, v)
		ids[i] = id
		if logprob != nil {
			logprob[i] = lp
		}
		for k := range min(int(a.TopN), a.TopIds.Width()) {
			if top != nil {
				top[i*a.TopIds.RowStride()+k] = int32((int(id) + k) % v)
			}
			if topLP != nil {
				topLP[i*a.TopLogprob.RowStride()+k] = lp
			}
		}
	}
	return nil
}

// floats views an F32 output, nil when it is absent or of the wider type.
func floats(t *abi.Tensor) []float32 {
	if t.DType != abi.F32 {
		return nil
	}
	return abi.Slice[float32](t)
}

// Verify compares as every backend does: it decides how far a sequence advances.
func (ops) Verify(a *abi.VerifyArgs) error {
	ids, draft := abi.Slice[int32](&a.Ids), abi.Slice[int32](&a.Draft)
	count, first, out := abi.Slice[int32](&a.Count), abi.Slice[int32](&a.First), abi.Slice[int32](&a.Accepted)
	if len(count) < len(out) || len(first) < len(out) {
		return refused("verify", "%d sequences need as many counts and first rows", len(out))
	}
	for s := range out {
		d := draft[min(s*a.Draft.RowStride(), len(draft)):]
		if count[s] < 0 || int(count[s]) > len(d) || first[s] < 0 || int(first[s])+int(count[s]) > len(ids) {
			return refused("verify", "sequence %d verifies %d drafts from row %d of %d", s, count[s], first[s], len(ids))
		}
		k := int32(0)
		for k < count[s] && d[k] == ids[first[s]+k] {
			k++
		}
		out[s] = k
	}
	return nil
}
