package dl

import (
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// ops is the GEMM, Attention and AllToAll families of a device. Each method states the sizes of the structs it passes on; the rest is the library's.
type ops struct{ d *device }

func (o *ops) GEMM(a *abi.GEMMArgs) error {
	if a == nil {
		return absent("gemm")
	}
	size(a)
	size(a.W)
	return o.d.do("gemm", o.d.lib.gemm.Gemm, unsafe.Pointer(a))
}

func (o *ops) GEMMGrouped(a *abi.GEMMGroupedArgs) error {
	if a == nil {
		return absent("gemm_grouped")
	}
	size(a)
	size(a.W)
	return o.d.do("gemm_grouped", o.d.lib.gemm.GemmGrouped, unsafe.Pointer(a))
}

func (o *ops) Head(a *abi.HeadArgs) error {
	if a == nil {
		return absent("head")
	}
	size(a)
	size(a.W)
	return o.d.do("head", o.d.lib.gemm.Head, unsafe.Pointer(a))
}

func (o *ops) KVStore(a *abi.KVStoreArgs) error {
	if a == nil {
		return absent("kv_store")
	}
	size(a)
	size(a.Batch)
	size(&a.Ring)
	return o.d.do("kv_store", o.d.lib.attention.KVStore, unsafe.Pointer(a))
}

func (o *ops) Compress(a *abi.CompressArgs) error {
	if a == nil {
		return absent("compress")
	}
	size(a)
	size(a.Batch)
	size(&a.Tail)
	size(&a.Cache)
	return o.d.do("compress", o.d.lib.attention.Compress, unsafe.Pointer(a))
}

func (o *ops) IndexKey(a *abi.IndexKeyArgs) error {
	if a == nil {
		return absent("index_key")
	}
	size(a)
	size(a.Batch)
	size(&a.Cache)
	return o.d.do("index_key", o.d.lib.attention.IndexKey, unsafe.Pointer(a))
}

func (o *ops) IndexSelect(a *abi.IndexSelectArgs) error {
	if a == nil {
		return absent("index_select")
	}
	size(a)
	size(a.Batch)
	size(&a.Cache)
	return o.d.do("index_select", o.d.lib.attention.IndexSelect, unsafe.Pointer(a))
}

func (o *ops) Attend(a *abi.AttendArgs) error {
	if a == nil {
		return absent("attend")
	}
	size(a)
	size(a.Batch)
	size(&a.Ring)
	size(&a.Cache)
	return o.d.do("attend", o.d.lib.attention.Attend, unsafe.Pointer(a))
}

func (o *ops) AttendBlock(a *abi.AttendArgs) error {
	if a == nil {
		return absent("attend_block")
	}
	size(a)
	size(a.Batch)
	size(&a.Ring)
	size(&a.Cache)
	return o.d.do("attend_block", o.d.lib.attention.AttendBlock, unsafe.Pointer(a))
}

func (o *ops) Dispatch(a *abi.DispatchArgs) error {
	if a == nil {
		return absent("dispatch")
	}
	size(a)
	size(a.Batch)
	return o.d.do("dispatch", o.d.lib.alltoall.Dispatch, unsafe.Pointer(a))
}

func (o *ops) Combine(a *abi.CombineArgs) error {
	if a == nil {
		return absent("combine")
	}
	size(a)
	size(a.Batch)
	return o.d.do("combine", o.d.lib.alltoall.Combine, unsafe.Pointer(a))
}

func (o *ops) GatherRows(a *abi.GatherRowsArgs) error {
	if a == nil {
		return absent("gather_rows")
	}
	size(a)
	size(a.W)
	return o.d.do("gather_rows", o.d.lib.alltoall.GatherRows, unsafe.Pointer(a))
}

func (o *ops) AllGather(a *abi.CollectiveArgs) error {
	if a == nil {
		return absent("all_gather")
	}
	size(a)
	return o.d.do("all_gather", o.d.lib.alltoall.AllGather, unsafe.Pointer(a))
}

func (o *ops) AllReduce(a *abi.CollectiveArgs) error {
	if a == nil {
		return absent("all_reduce")
	}
	size(a)
	return o.d.do("all_reduce", o.d.lib.alltoall.AllReduce, unsafe.Pointer(a))
}

// vector is the Vector family; entries the library lacks are served by the portable Go ops, which work on host memory.
type vector struct {
	d   *device
	ref backend.Vector
}

func (o *vector) Embed(a *abi.EmbedArgs) error {
	if a == nil {
		return absent("embed")
	}
	if o.d.lib.vector.Embed == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Embed(a)
	}
	size(a)
	size(a.Batch)
	size(a.W)
	return o.d.do("embed", o.d.lib.vector.Embed, unsafe.Pointer(a))
}

func (o *vector) RMSNorm(a *abi.RMSNormArgs) error {
	if a == nil {
		return absent("rms_norm")
	}
	if o.d.lib.vector.RmsNorm == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.RMSNorm(a)
	}
	size(a)
	return o.d.do("rms_norm", o.d.lib.vector.RmsNorm, unsafe.Pointer(a))
}

func (o *vector) Rope(a *abi.RopeArgs) error {
	if a == nil {
		return absent("rope")
	}
	if o.d.lib.vector.Rope == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Rope(a)
	}
	size(a)
	size(a.Batch)
	return o.d.do("rope", o.d.lib.vector.Rope, unsafe.Pointer(a))
}

func (o *vector) Quantize(a *abi.QuantizeArgs) error {
	if a == nil {
		return absent("quantize")
	}
	if o.d.lib.vector.Quantize == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Quantize(a)
	}
	size(a)
	return o.d.do("quantize", o.d.lib.vector.Quantize, unsafe.Pointer(a))
}

func (o *vector) Hadamard(a *abi.HadamardArgs) error {
	if a == nil {
		return absent("hadamard")
	}
	if o.d.lib.vector.Hadamard == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Hadamard(a)
	}
	size(a)
	return o.d.do("hadamard", o.d.lib.vector.Hadamard, unsafe.Pointer(a))
}

func (o *vector) MHCMix(a *abi.MHCMixArgs) error {
	if a == nil {
		return absent("mhc_mix")
	}
	if o.d.lib.vector.MhcMix == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.MHCMix(a)
	}
	size(a)
	return o.d.do("mhc_mix", o.d.lib.vector.MhcMix, unsafe.Pointer(a))
}

func (o *vector) MHCCollapse(a *abi.MHCCollapseArgs) error {
	if a == nil {
		return absent("mhc_collapse")
	}
	if o.d.lib.vector.MhcCollapse == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.MHCCollapse(a)
	}
	size(a)
	return o.d.do("mhc_collapse", o.d.lib.vector.MhcCollapse, unsafe.Pointer(a))
}

func (o *vector) MHCExpand(a *abi.MHCExpandArgs) error {
	if a == nil {
		return absent("mhc_expand")
	}
	if o.d.lib.vector.MhcExpand == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.MHCExpand(a)
	}
	size(a)
	return o.d.do("mhc_expand", o.d.lib.vector.MhcExpand, unsafe.Pointer(a))
}

func (o *vector) MHCMean(a *abi.MHCMeanArgs) error {
	if a == nil {
		return absent("mhc_mean")
	}
	if o.d.lib.vector.MhcMean == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.MHCMean(a)
	}
	size(a)
	return o.d.do("mhc_mean", o.d.lib.vector.MhcMean, unsafe.Pointer(a))
}

func (o *vector) Router(a *abi.RouterArgs) error {
	if a == nil {
		return absent("router")
	}
	if o.d.lib.vector.Router == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Router(a)
	}
	size(a)
	size(a.Batch)
	size(a.W)
	size(a.Tid2eid)
	return o.d.do("router", o.d.lib.vector.Router, unsafe.Pointer(a))
}

func (o *vector) Swiglu(a *abi.SwigluArgs) error {
	if a == nil {
		return absent("swiglu")
	}
	if o.d.lib.vector.Swiglu == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Swiglu(a)
	}
	size(a)
	return o.d.do("swiglu", o.d.lib.vector.Swiglu, unsafe.Pointer(a))
}

func (o *vector) EngramHash(a *abi.EngramHashArgs) error {
	if a == nil {
		return absent("engram_hash")
	}
	if o.d.lib.vector.EngramHash == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.EngramHash(a)
	}
	size(a)
	size(a.Batch)
	size(a.Map)
	return o.d.do("engram_hash", o.d.lib.vector.EngramHash, unsafe.Pointer(a))
}

func (o *vector) EngramMix(a *abi.EngramMixArgs) error {
	if a == nil {
		return absent("engram_mix")
	}
	if o.d.lib.vector.EngramMix == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.EngramMix(a)
	}
	size(a)
	size(a.Batch)
	return o.d.do("engram_mix", o.d.lib.vector.EngramMix, unsafe.Pointer(a))
}

func (o *vector) Markov(a *abi.MarkovArgs) error {
	if a == nil {
		return absent("markov")
	}
	if o.d.lib.vector.Markov == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Markov(a)
	}
	size(a)
	size(a.Embed)
	size(a.Head)
	return o.d.do("markov", o.d.lib.vector.Markov, unsafe.Pointer(a))
}

func (o *vector) Confidence(a *abi.ConfidenceArgs) error {
	if a == nil {
		return absent("confidence")
	}
	if o.d.lib.vector.Confidence == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Confidence(a)
	}
	size(a)
	size(a.W)
	return o.d.do("confidence", o.d.lib.vector.Confidence, unsafe.Pointer(a))
}

func (o *vector) Sample(a *abi.SampleArgs) error {
	if a == nil {
		return absent("sample")
	}
	if o.d.lib.vector.Sample == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Sample(a)
	}
	size(a)
	return o.d.do("sample", o.d.lib.vector.Sample, unsafe.Pointer(a))
}

func (o *vector) Verify(a *abi.VerifyArgs) error {
	if a == nil {
		return absent("verify")
	}
	if o.d.lib.vector.Verify == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Verify(a)
	}
	size(a)
	return o.d.do("verify", o.d.lib.vector.Verify, unsafe.Pointer(a))
}

func (o *vector) Copy(a *abi.CopyArgs) error {
	if a == nil {
		return absent("copy")
	}
	if o.d.lib.vector.Copy == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Copy(a)
	}
	size(a)
	return o.d.do("copy", o.d.lib.vector.Copy, unsafe.Pointer(a))
}

func (o *vector) Cast(a *abi.CastArgs) error {
	if a == nil {
		return absent("cast")
	}
	if o.d.lib.vector.Cast == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Cast(a)
	}
	size(a)
	return o.d.do("cast", o.d.lib.vector.Cast, unsafe.Pointer(a))
}

func (o *vector) Add(a *abi.AddArgs) error {
	if a == nil {
		return absent("add")
	}
	if o.d.lib.vector.Add == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Add(a)
	}
	size(a)
	return o.d.do("add", o.d.lib.vector.Add, unsafe.Pointer(a))
}

func (o *vector) Gelu(a *abi.GeluArgs) error {
	if a == nil {
		return absent("gelu")
	}
	if o.d.lib.vector.Gelu == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.Gelu(a)
	}
	size(a)
	return o.d.do("gelu", o.d.lib.vector.Gelu, unsafe.Pointer(a))
}

func (o *vector) VisionAttend(a *abi.VisionAttendArgs) error {
	if a == nil {
		return absent("vision_attend")
	}
	if o.d.lib.vector.VisionAttend == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.VisionAttend(a)
	}
	size(a)
	return o.d.do("vision_attend", o.d.lib.vector.VisionAttend, unsafe.Pointer(a))
}

func (o *vector) VisionMerge(a *abi.VisionMergeArgs) error {
	if a == nil {
		return absent("vision_merge")
	}
	if o.d.lib.vector.VisionMerge == 0 && o.d.dev != nil {
		if err := o.d.Sync(); err != nil { // earlier ops of the queue may still write what this one reads
			return err
		}
		return o.ref.VisionMerge(a)
	}
	size(a)
	return o.d.do("vision_merge", o.d.lib.vector.VisionMerge, unsafe.Pointer(a))
}

func absent(op string) error {
	return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: op, Msg: "arguments are absent"}
}
