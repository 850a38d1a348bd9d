package fault

import (
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// ops puts the rules before each op of the wrapped device.
type ops struct{ d *device }

func (d *device) ops() ops { return ops{d} }

var (
	_ backend.GEMM      = ops{}
	_ backend.Attention = ops{}
	_ backend.AllToAll  = ops{}
	_ backend.Vector    = ops{}
)

func (o ops) GEMM(a *abi.GEMMArgs) error {
	if err := o.d.at("gemm", a.W); err != nil {
		return err
	}
	return o.d.gemm.GEMM(a)
}

func (o ops) GEMMGrouped(a *abi.GEMMGroupedArgs) error {
	if err := o.d.at("gemm_grouped", a.W); err != nil {
		return err
	}
	return o.d.gemm.GEMMGrouped(a)
}

func (o ops) Head(a *abi.HeadArgs) error {
	if err := o.d.at("head", a.W); err != nil {
		return err
	}
	return o.d.gemm.Head(a)
}

func (o ops) KVStore(a *abi.KVStoreArgs) error {
	if err := o.d.at("kv_store", nil); err != nil {
		return err
	}
	return o.d.attn.KVStore(a)
}

func (o ops) Compress(a *abi.CompressArgs) error {
	if err := o.d.at("compress", nil); err != nil {
		return err
	}
	return o.d.attn.Compress(a)
}

func (o ops) IndexKey(a *abi.IndexKeyArgs) error {
	if err := o.d.at("index_key", nil); err != nil {
		return err
	}
	return o.d.attn.IndexKey(a)
}

func (o ops) IndexSelect(a *abi.IndexSelectArgs) error {
	if err := o.d.at("index_select", nil); err != nil {
		return err
	}
	return o.d.attn.IndexSelect(a)
}

func (o ops) Attend(a *abi.AttendArgs) error {
	if err := o.d.at("attend", nil); err != nil {
		return err
	}
	return o.d.attn.Attend(a)
}

func (o ops) AttendBlock(a *abi.AttendArgs) error {
	if err := o.d.at("attend_block", nil); err != nil {
		return err
	}
	return o.d.attn.AttendBlock(a)
}

func (o ops) Dispatch(a *abi.DispatchArgs) error {
	if err := o.d.at("dispatch", nil); err != nil {
		return err
	}
	return o.d.a2a.Dispatch(a)
}

func (o ops) Combine(a *abi.CombineArgs) error {
	if err := o.d.at("combine", nil); err != nil {
		return err
	}
	return o.d.a2a.Combine(a)
}

func (o ops) GatherRows(a *abi.GatherRowsArgs) error {
	if err := o.d.at("gather_rows", a.W); err != nil {
		return err
	}
	return o.d.a2a.GatherRows(a)
}

func (o ops) AllGather(a *abi.CollectiveArgs) error {
	if err := o.d.at("all_gather", nil); err != nil {
		return err
	}
	return o.d.a2a.AllGather(a)
}

func (o ops) AllReduce(a *abi.CollectiveArgs) error {
	if err := o.d.at("all_reduce", nil); err != nil {
		return err
	}
	return o.d.a2a.AllReduce(a)
}

func (o ops) Embed(a *abi.EmbedArgs) error {
	if err := o.d.at("embed", a.W); err != nil {
		return err
	}
	return o.d.vec.Embed(a)
}

func (o ops) RMSNorm(a *abi.RMSNormArgs) error {
	if err := o.d.at("rms_norm", nil); err != nil {
		return err
	}
	return o.d.vec.RMSNorm(a)
}

func (o ops) Rope(a *abi.RopeArgs) error {
	if err := o.d.at("rope", nil); err != nil {
		return err
	}
	return o.d.vec.Rope(a)
}

func (o ops) Quantize(a *abi.QuantizeArgs) error {
	if err := o.d.at("quantize", nil); err != nil {
		return err
	}
	return o.d.vec.Quantize(a)
}

func (o ops) Hadamard(a *abi.HadamardArgs) error {
	if err := o.d.at("hadamard", nil); err != nil {
		return err
	}
	return o.d.vec.Hadamard(a)
}

func (o ops) MHCMix(a *abi.MHCMixArgs) error {
	if err := o.d.at("mhc_mix", nil); err != nil {
		return err
	}
	return o.d.vec.MHCMix(a)
}

func (o ops) MHCCollapse(a *abi.MHCCollapseArgs) error {
	if err := o.d.at("mhc_collapse", nil); err != nil {
		return err
	}
	return o.d.vec.MHCCollapse(a)
}

func (o ops) MHCExpand(a *abi.MHCExpandArgs) error {
	if err := o.d.at("mhc_expand", nil); err != nil {
		return err
	}
	return o.d.vec.MHCExpand(a)
}

func (o ops) MHCMean(a *abi.MHCMeanArgs) error {
	if err := o.d.at("mhc_mean", nil); err != nil {
		return err
	}
	return o.d.vec.MHCMean(a)
}

func (o ops) Router(a *abi.RouterArgs) error {
	if err := o.d.at("router", a.W); err != nil {
		return err
	}
	return o.d.vec.Router(a)
}

func (o ops) Swiglu(a *abi.SwigluArgs) error {
	if err := o.d.at("swiglu", nil); err != nil {
		return err
	}
	return o.d.vec.Swiglu(a)
}

func (o ops) EngramHash(a *abi.EngramHashArgs) error {
	if err := o.d.at("engram_hash", a.Map); err != nil {
		return err
	}
	return o.d.vec.EngramHash(a)
}

func (o ops) EngramMix(a *abi.EngramMixArgs) error {
	if err := o.d.at("engram_mix", nil); err != nil {
		return err
	}
	return o.d.vec.EngramMix(a)
}

func (o ops) Markov(a *abi.MarkovArgs) error {
	if err := o.d.at("markov", a.Head); err != nil {
		return err
	}
	return o.d.vec.Markov(a)
}

func (o ops) Confidence(a *abi.ConfidenceArgs) error {
	if err := o.d.at("confidence", a.W); err != nil {
		return err
	}
	return o.d.vec.Confidence(a)
}

func (o ops) Sample(a *abi.SampleArgs) error {
	if err := o.d.at("sample", nil); err != nil {
		return err
	}
	return o.d.vec.Sample(a)
}

func (o ops) Verify(a *abi.VerifyArgs) error {
	if err := o.d.at("verify", nil); err != nil {
		return err
	}
	return o.d.vec.Verify(a)
}

func (o ops) Copy(a *abi.CopyArgs) error {
	if err := o.d.at("copy", nil); err != nil {
		return err
	}
	return o.d.vec.Copy(a)
}

func (o ops) Cast(a *abi.CastArgs) error {
	if err := o.d.at("cast", nil); err != nil {
		return err
	}
	return o.d.vec.Cast(a)
}

func (o ops) Add(a *abi.AddArgs) error {
	if err := o.d.at("add", nil); err != nil {
		return err
	}
	return o.d.vec.Add(a)
}

func (o ops) Gelu(a *abi.GeluArgs) error {
	if err := o.d.at("gelu", nil); err != nil {
		return err
	}
	return o.d.vec.Gelu(a)
}

func (o ops) VisionAttend(a *abi.VisionAttendArgs) error {
	if err := o.d.at("vision_attend", nil); err != nil {
		return err
	}
	return o.d.vec.VisionAttend(a)
}

func (o ops) VisionMerge(a *abi.VisionMergeArgs) error {
	if err := o.d.at("vision_merge", nil); err != nil {
		return err
	}
	return o.d.vec.VisionMerge(a)
}
