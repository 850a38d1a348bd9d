package backend

import (
	"fmt"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// bind builds the argument struct of every op once; steps only patch counts. The structs live as long as the executable.
func (e *Executable) bind() error {
	e.base = e.r.workspace
	e.calls, e.dims, e.grids, e.sample, e.image = e.calls[:0], nil, nil, nil, nil
	for i := range e.p.Ops {
		b := binding{e: e, op: &e.p.Ops[i], index: i}
		run, err := b.build()
		if err != nil {
			return fmt.Errorf("op %d %s %s: %w", i, b.op.Code, b.op.Label, err)
		}
		e.calls = append(e.calls, call{run: run, index: i, outs: b.outs})
	}
	return nil
}

// binding builds one op's arguments.
type binding struct {
	e     *Executable
	op    *program.Op
	index int
	outs  []observed
}

// tensor binds a dense operand; dst is the field in the argument struct, which step patching writes to.
func (b *binding) tensor(name string, dst *abi.Tensor) {
	i := b.op.Buf(name)
	if i < 0 {
		return
	}
	buf := &b.e.p.Buffers[i]
	p := b.e.fixed[i]
	if p == nil {
		p = unsafe.Add(b.e.base, buf.Offset)
	}
	t := abi.Tensor{Data: p, DType: buf.DType}
	k := 0
	if buf.Domain != program.Fixed {
		k = 1
	}
	t.Rank = uint32(k + len(buf.Dims))
	for j, d := range buf.Dims {
		t.Dim[k+j] = int64(d)
	}
	*dst = t
	if buf.Domain != program.Fixed && !(buf.Kind == program.Input && buf.Name == program.InputName && b.op.Code == program.Embed) {
		b.e.dims = append(b.e.dims, dimension{at: &dst.Dim[0], domain: buf.Domain, mul: int64(buf.RowsMul())})
	}
	for _, s := range program.Signatures[b.op.Code].Slots {
		if s.Name == name && s.Out {
			b.outs = append(b.outs, observed{buf.Name, dst})
		}
	}
}

func (b *binding) weight(name string) *abi.Weight {
	if i := b.op.Buf(name); i >= 0 {
		return b.e.weights[i]
	}
	return nil
}

func (b *binding) region(name string, dst *abi.Region) {
	i := b.op.Buf(name)
	if i < 0 {
		return
	}
	r := b.e.p.Buffers[i].Region
	*dst = abi.Region{Format: r.Format, Offset: r.Offset, Rows: int32(r.Rows), RowBytes: int32(r.RowBytes), Ratio: int32(r.Ratio), Dim: int32(r.Dim), Rope: int32(r.Rope)}
	dst.Size = uint32(unsafe.Sizeof(*dst))
	if r.Planar {
		dst.Planar = 1
	}
	if r.Pool == program.StatePool {
		dst.Base, dst.UnitStride = b.e.r.state, b.e.r.opt.SlotBytes
	} else {
		dst.Base, dst.UnitStride = b.e.r.kv, b.e.r.opt.Granule
	}
}

// batch is the row batch of the op's domain: that of its first dense operand with a domain.
func (b *binding) batch() *abi.Batch {
	for _, o := range b.op.Operands {
		switch b.e.p.Buffers[o.Buf].Domain {
		case program.Rows:
			return &b.e.batch[0]
		case program.Kept:
			return &b.e.batch[1]
		}
	}
	return &b.e.batch[0]
}

func (b *binding) num(name string) float64 { return b.op.Num(name, 0) }
func (b *binding) int(name string) uint32  { return round(b.num(name)) }

func size[T any](*T) uint32 { var v T; return uint32(unsafe.Sizeof(v)) }

// build returns the call of one op.
func (b *binding) build() (func() error, error) {
	dev := b.e.r.dev
	switch b.op.Code {
	case program.GEMM:
		a := &abi.GEMMArgs{ActGroup: b.int("act_group"), Groups: max(b.int("groups"), 1), W: b.weight("w")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("bias", &a.Bias)
		b.tensor("y", &a.Y)
		f := dev.GEMM()
		return func() error { return f.GEMM(a) }, nil
	case program.GEMMGrouped:
		a := &abi.GEMMGroupedArgs{ActGroup: b.int("act_group"), Layout: b.int("layout"), W: b.weight("w")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("offs", &a.Offs)
		b.tensor("y", &a.Y)
		f := dev.GEMM()
		return func() error { return f.GEMMGrouped(a) }, nil
	case program.Head:
		a := &abi.HeadArgs{W: b.weight("w")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("rows", &a.Rows)
		b.tensor("y", &a.Y)
		f := dev.GEMM()
		return func() error { return f.Head(a) }, nil

	case program.KVStore:
		a := &abi.KVStoreArgs{Batch: b.batch()}
		a.Size = size(a)
		b.tensor("rec", &a.Rec)
		b.region("ring", &a.Ring)
		f := dev.Attention()
		return func() error { return f.KVStore(a) }, nil
	case program.Compress:
		a := &abi.CompressArgs{Batch: b.batch(), Ratio: b.int("ratio"), Overlap: b.int("overlap"), Eps: b.num("eps")}
		a.Size = size(a)
		b.tensor("k", &a.K)
		b.tensor("s", &a.S)
		b.tensor("ape", &a.Ape)
		b.tensor("norm", &a.Norm)
		b.tensor("freq", &a.Freq)
		b.region("tail", &a.Tail)
		b.region("cache", &a.Cache)
		b.tensor("lat", &a.Lat)
		f := dev.Attention()
		return func() error { return f.Compress(a) }, nil
	case program.IndexKey:
		a := &abi.IndexKeyArgs{Batch: b.batch(), Hadamard: b.int("hadamard")}
		a.Size = size(a)
		b.tensor("k", &a.K)
		b.tensor("freq", &a.Freq)
		b.region("cache", &a.Cache)
		f := dev.Attention()
		return func() error { return f.IndexKey(a) }, nil
	case program.IndexSelect:
		a := &abi.IndexSelectArgs{Batch: b.batch(), TopK: b.int("top_k"), Mode: b.int("mode"), CandBlock: b.int("cand_block"), Scale: b.num("scale")}
		a.Size = size(a)
		b.tensor("q", &a.Q)
		b.tensor("w", &a.W)
		b.region("cache", &a.Cache)
		b.tensor("cand_in", &a.CandIn)
		b.tensor("cand_out", &a.CandOut)
		b.tensor("sel", &a.Sel)
		f := dev.Attention()
		return func() error { return f.IndexSelect(a) }, nil
	case program.Attend, program.AttendBlock:
		a := &abi.AttendArgs{Batch: b.batch(), Window: b.int("window"), OutMode: b.int("out_mode"), AllVisible: b.int("all_visible"), Scale: b.num("scale")}
		a.Size = size(a)
		b.tensor("q", &a.Q)
		b.tensor("rec", &a.Rec)
		b.tensor("sel", &a.Sel)
		b.tensor("sink", &a.Sink)
		b.tensor("freq", &a.Freq)
		b.region("ring", &a.Ring)
		b.region("cache", &a.Cache)
		b.tensor("out", &a.Out)
		f := dev.Attention()
		if b.op.Code == program.Attend {
			return func() error { return f.Attend(a) }, nil
		}
		return func() error { return f.AttendBlock(a) }, nil

	case program.Dispatch:
		a := &abi.DispatchArgs{Batch: b.batch(), Experts: b.int("experts")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("ids", &a.Ids)
		b.tensor("xg", &a.Xg)
		b.tensor("order", &a.Order)
		b.tensor("offs", &a.Offs)
		f := dev.AllToAll()
		return func() error { return f.Dispatch(a) }, nil
	case program.Combine:
		a := &abi.CombineArgs{Batch: b.batch(), Mode: b.int("mode")}
		a.Size = size(a)
		b.tensor("yg", &a.Yg)
		b.tensor("order", &a.Order)
		b.tensor("ids", &a.Ids)
		b.tensor("shared", &a.Shared)
		b.tensor("y", &a.Y)
		f := dev.AllToAll()
		return func() error { return f.Combine(a) }, nil
	case program.GatherRows:
		a := &abi.GatherRowsArgs{W: b.weight("w")}
		a.Size = size(a)
		b.tensor("ids", &a.Ids)
		b.tensor("y", &a.Y)
		f := dev.AllToAll()
		return func() error { return f.GatherRows(a) }, nil
	case program.AllGather, program.AllReduce:
		a := &abi.CollectiveArgs{}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		f := dev.AllToAll()
		if b.op.Code == program.AllGather {
			return func() error { return f.AllGather(a) }, nil
		}
		return func() error { return f.AllReduce(a) }, nil
	}
	return b.vector()
}

// vector builds the call of a Vector op.
func (b *binding) vector() (func() error, error) {
	f := b.e.r.dev.Vector()
	switch b.op.Code {
	case program.Embed:
		a := &abi.EmbedArgs{Batch: b.batch(), W: b.weight("w")}
		a.Size = size(a)
		b.tensor("image", &a.Image)
		b.tensor("y", &a.Y)
		if a.Image.Present() {
			b.e.image = &a.Image
		}
		return func() error { return f.Embed(a) }, nil
	case program.RMSNorm:
		a := &abi.RMSNormArgs{Eps: b.num("eps")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("w", &a.W)
		b.tensor("y", &a.Y)
		return func() error { return f.RMSNorm(a) }, nil
	case program.Rope:
		a := &abi.RopeArgs{Batch: b.batch(), Conj: b.int("conj"), Ratio: b.int("ratio")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("freq", &a.Freq)
		b.tensor("y", &a.Y)
		return func() error { return f.Rope(a) }, nil
	case program.Quantize:
		a := &abi.QuantizeArgs{Format: b.int("format"), Rope: b.int("rope")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		return func() error { return f.Quantize(a) }, nil
	case program.Hadamard:
		a := &abi.HadamardArgs{}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		return func() error { return f.Hadamard(a) }, nil
	case program.MHCMix:
		a := &abi.MHCMixArgs{Iters: b.int("iters"), HeadOnly: b.int("head_only"), Tf32: b.int("tf32"), HcEps: b.num("hc_eps"), Eps: b.num("eps")}
		a.Size = size(a)
		b.tensor("h", &a.H)
		b.tensor("fn", &a.Fn)
		b.tensor("base", &a.Base)
		b.tensor("scale", &a.Scale)
		b.tensor("pre", &a.Pre)
		b.tensor("post", &a.Post)
		b.tensor("comb", &a.Comb)
		return func() error { return f.MHCMix(a) }, nil
	case program.MHCCollapse:
		a := &abi.MHCCollapseArgs{}
		a.Size = size(a)
		b.tensor("h", &a.H)
		b.tensor("pre", &a.Pre)
		b.tensor("x", &a.X)
		return func() error { return f.MHCCollapse(a) }, nil
	case program.MHCExpand:
		a := &abi.MHCExpandArgs{}
		a.Size = size(a)
		b.tensor("y", &a.Y)
		b.tensor("h", &a.H)
		b.tensor("post", &a.Post)
		b.tensor("comb", &a.Comb)
		b.tensor("out", &a.Out)
		return func() error { return f.MHCExpand(a) }, nil
	case program.MHCMean:
		a := &abi.MHCMeanArgs{}
		a.Size = size(a)
		b.tensor("h", &a.H)
		b.tensor("x", &a.X)
		return func() error { return f.MHCMean(a) }, nil
	case program.Router:
		a := &abi.RouterArgs{Batch: b.batch(), TopK: b.int("top_k"), W: b.weight("w"), Tid2eid: b.weight("tid2eid"), Scale: b.num("scale"), DenomEps: b.num("denom_eps"), Temp: b.op.Num("temp", 1)}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("bias", &a.Bias)
		b.tensor("bias_vl", &a.BiasVl)
		b.tensor("ids", &a.Ids)
		b.tensor("weights", &a.Weights)
		b.tensor("counts", &a.Counts)
		return func() error { return f.Router(a) }, nil
	case program.Swiglu:
		a := &abi.SwigluArgs{OutMode: b.int("out_mode"), ActGroup: b.int("act_group"), Limit: b.num("limit")}
		a.Size = size(a)
		b.tensor("g", &a.G)
		b.tensor("u", &a.U)
		b.tensor("weights", &a.Weights)
		b.tensor("order", &a.Order)
		b.tensor("y", &a.Y)
		return func() error { return f.Swiglu(a) }, nil
	case program.EngramHash:
		a := &abi.EngramHashArgs{Batch: b.batch(), Heads: b.int("heads"), PadId: b.int("pad_id"), Map: b.weight("map")}
		a.Size = size(a)
		b.tensor("prime", &a.Prime)
		b.tensor("mult", &a.Mult)
		b.tensor("ids", &a.Ids)
		return func() error { return f.EngramHash(a) }, nil
	case program.EngramMix:
		a := &abi.EngramMixArgs{Batch: b.batch(), Eps: b.num("eps")}
		a.Size = size(a)
		b.tensor("h", &a.H)
		b.tensor("kv", &a.Kv)
		b.tensor("q_weight", &a.QWeight)
		b.tensor("k_weight", &a.KWeight)
		b.tensor("out", &a.Out)
		b.tensor("gate", &a.Gate)
		return func() error { return f.EngramMix(a) }, nil
	case program.Markov:
		a := &abi.MarkovArgs{Embed: b.weight("embed"), Head: b.weight("head")}
		a.Size = size(a)
		b.tensor("prev", &a.Prev)
		b.tensor("base", &a.Base)
		b.tensor("logits", &a.Logits)
		b.tensor("e", &a.E)
		return func() error { return f.Markov(a) }, nil
	case program.Confidence:
		a := &abi.ConfidenceArgs{W: b.weight("w")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("e", &a.E)
		b.tensor("conf", &a.Conf)
		return func() error { return f.Confidence(a) }, nil
	case program.Sample:
		a := &abi.SampleArgs{}
		a.Size = size(a)
		b.tensor("logits", &a.Logits)
		b.tensor("ids", &a.Ids)
		b.tensor("logprob", &a.Logprob)
		b.tensor("top_ids", &a.TopIds)
		b.tensor("top_logprob", &a.TopLogprob)
		b.e.sample = a
		return func() error { return f.Sample(a) }, nil
	case program.Verify:
		a := &abi.VerifyArgs{}
		a.Size = size(a)
		b.tensor("ids", &a.Ids)
		b.tensor("draft", &a.Draft)
		b.tensor("count", &a.Count)
		b.tensor("first", &a.First)
		b.tensor("accepted", &a.Accepted)
		return func() error { return f.Verify(a) }, nil
	case program.Copy:
		a := &abi.CopyArgs{}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("index", &a.Index)
		b.tensor("y", &a.Y)
		return func() error { return f.Copy(a) }, nil
	case program.Cast:
		a := &abi.CastArgs{}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		return func() error { return f.Cast(a) }, nil
	case program.Add:
		a := &abi.AddArgs{}
		a.Size = size(a)
		b.tensor("a", &a.A)
		b.tensor("b", &a.B)
		b.tensor("y", &a.Y)
		return func() error { return f.Add(a) }, nil
	case program.Gelu:
		a := &abi.GeluArgs{}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		return func() error { return f.Gelu(a) }, nil
	case program.VisionAttend:
		a := &abi.VisionAttendArgs{Heads: b.int("heads")}
		a.Size = size(a)
		b.tensor("qkv", &a.Qkv)
		b.tensor("freq", &a.Freq)
		b.tensor("out", &a.Out)
		b.e.grids = append(b.e.grids, grid{&a.GridH, &a.GridW})
		return func() error { return f.VisionAttend(a) }, nil
	case program.VisionMerge:
		a := &abi.VisionMergeArgs{R: b.int("r")}
		a.Size = size(a)
		b.tensor("x", &a.X)
		b.tensor("y", &a.Y)
		b.e.grids = append(b.e.grids, grid{&a.GridH, &a.GridW})
		return func() error { return f.VisionMerge(a) }, nil
	}
	return nil, fmt.Errorf("op set %d has no call for it", abi.OpSet)
}
