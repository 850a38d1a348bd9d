package abi

import "unsafe"

// The structs below mirror di_backend_v1.h field by field; layout.golden holds both to it.
// Function pointers are code addresses inside the loaded library.

// Str mirrors di_str.
//
// D E2M1 packed, then D/32 UE8M0: D/2 + D/32 (index keys)
type Str struct {
	Ptr unsafe.Pointer
	Len uint64
}

// Tensor mirrors di_tensor.
//
// A dense array, row-major, innermost dimension contiguous. dim[0..rank-1] are used. stride is the distance in elements between rows of dim[0] (0 =
// product of the other dims). data NULL = operand absent. Frozen, 64 bytes.
type Tensor struct {
	Data     unsafe.Pointer
	DType    uint32
	Rank     uint32
	Dim      [4]int64
	Stride   int64
	Reserved uint64
}

// Fail mirrors di_fail.
type Fail struct {
	Size   uint32
	Code   uint32
	Scope  uint32
	Native int32
	Msg    unsafe.Pointer
	MsgCap uint64
	MsgLen uint64
}

// Ext mirrors di_ext.
type Ext struct {
	Size uint32
	Kind uint32
	Next unsafe.Pointer
}

// Weight mirrors di_weight.
//
// A weight as it lies in the checkpoint. parts > 1: a stack of equal matrices (experts), part p at data[p], scale[p]. The host keeps the bytes mapped
// until release. prepared belongs to the backend (packed copy, device copy).
type Weight struct {
	Size     uint32
	Format   uint32
	Tile     uint32
	Parts    uint32
	N        int64
	K        int64
	Data     unsafe.Pointer
	Scale    unsafe.Pointer
	Prepared unsafe.Pointer
	Name     Str
}

// Batch mirrors di_batch.
//
// Rows of one step in one row domain, grouped by sequence in order. Positions are absolute. A sequence s owns rows seq_first[s] ..
// seq_first[s]+seq_rows[s]-1, whose positions are consecutive.
type Batch struct {
	Size       uint32
	Rows       int32
	Seqs       int32
	TableWidth int32
	Token      *int32
	Pos        *int32
	Seq        *int32
	Flag       *int32
	ImageRow   *int32
	SeqFirst   *int32
	SeqRows    *int32
	SeqSlot    *int32
	SeqLow     *int32
	SeqWrite   *int32
	SeqTable   *int32
	Hist       *int32
	HistFlag   *int32
	NHist      int32
	Pad        int32
}

// Region mirrors di_region.
//
// A strided region of packed rows: the window ring or compressor tail of a state slot, or one layer's part of a KV granule. Row j of unit u starts at
// base + u*unit_stride + offset (+ j*row_bytes when interleaved).
type Region struct {
	Size       uint32
	Format     uint32
	Base       unsafe.Pointer
	UnitStride int64
	Offset     int64
	Rows       int32
	RowBytes   int32
	Ratio      int32
	Dim        int32
	Rope       int32
	Planar     int32
}

// GEMMArgs mirrors di_gemm_args.
//
// y[t,n] = sum_k act(x)[t,k] * w[n,k] (+ bias[n]), accumulated in FP32 in an order that depends on k alone; BF16 y is rounded once. act_group g > 0: x
// passes the A8 quantiser in groups of g along k (spec 2.6). groups G > 1: block diagonal, x [T,G*k], w [G*n',k] with w.n = G*n', y [T,G*n']. x BF16; y
// BF16, F32 or F64.
type GEMMArgs struct {
	Size     uint32
	ActGroup uint32
	Groups   uint32
	Pad      uint32
	W        *Weight
	X        Tensor
	Y        Tensor
	Bias     Tensor
}

// GEMMGroupedArgs mirrors di_gemm_grouped_args.
//
// x [E,M,k], offs I32 [E] = valid rows of each expert
type GEMMGroupedArgs struct {
	Size     uint32
	ActGroup uint32
	Layout   uint32
	Pad      uint32
	W        *Weight
	X        Tensor
	Y        Tensor
	Offs     Tensor
}

// HeadArgs mirrors di_head_args.
//
// logits[l,v] = sum_k x[rows[l],k] * w[v,k], not rounded. rows absent = identity.
type HeadArgs struct {
	Size uint32
	Pad  uint32
	W    *Weight
	X    Tensor
	Y    Tensor
	Rows Tensor
}

// KVStoreArgs mirrors di_kv_store_args.
//
// Commits window records: for each row with pos >= seq_low, ring[slot][pos mod ring.rows] = rec[row]; when a sequence has more rows than the ring, only
// the last ring.rows count. Runs after attend of the same layer. rec U8 [T, row_bytes].
type KVStoreArgs struct {
	Size  uint32
	Pad   uint32
	Batch *Batch
	Ring  Region
	Rec   Tensor
}

// CompressArgs mirrors di_compress_args.
//
// Pools groups of `ratio` tokens into latents (spec 4.5, appendix A). ratio 1: lat = RMS(k; norm) for each row; k BF16 [T,D]; s, tail, ape absent. ratio
// r > 1: k and s F32 (accumulation type) [T, c*D], c = overlap ? 2 : 1; s += ape[pos mod r] first. Rows (k,s) of each token go to tail[slot][pos mod
// tail.rows] (2*c*D floats, k then s). When pos+1 is a multiple of r the group ends at this row and lat[row] = RMS(bf16(softmax-pooled)); earlier rows
// come from this step or the tail. Overlap: previous group's first half, this group's second half. Rows that end no group leave lat[row] = 0. lat BF16
// [T,D], before rotation. cache.format != NONE: each latent is rotated at position pos+1-r, quantised to cache.format and written as entry (pos+1)/r-1,
// unless pos < seq_write.
type CompressArgs struct {
	Size    uint32
	Ratio   uint32
	Overlap uint32
	Pad     uint32
	Batch   *Batch
	K       Tensor
	S       Tensor
	Ape     Tensor
	Norm    Tensor
	Eps     float64
	Tail    Region
	Cache   Region
	Freq    Tensor
	Lat     Tensor
}

// IndexKeyArgs mirrors di_index_key_args.
//
// Index keys: k BF16 [T,Di] (normalised) of rows that end a group of cache.ratio tokens: rotate at pos+1-r, hadamard != 0: Hadamard and BF16 rounding,
// quantise to cache.format, write as entry (pos+1)/r-1 unless pos < seq_write.
type IndexKeyArgs struct {
	Size     uint32
	Hadamard uint32
	Batch    *Batch
	K        Tensor
	Freq     Tensor
	Cache    Region
}

// IndexSelectArgs mirrors di_index_select_args.
//
// Scores the visible entries j < (pos+1)/ratio of the row's sequence and keeps the top_k highest; ties to the lower position; -0 = 0. q BF16 [T,Hi,Di]
// quantised; w BF16 [T,Hi]. cand_in I32 [T,Bmax]: only entries of these blocks (ascending, -1 ends the list); absent = all. sel I32 [T,top_k]: ascending
// positions, then -1. cand_out (optional) I32 [T,cand_topk]: blocks of cand_block entries by maximum score, the newest block pinned, the cand_topk best,
// ascending, then -1.
type IndexSelectArgs struct {
	Size      uint32
	TopK      uint32
	Mode      uint32
	CandBlock uint32
	Batch     *Batch
	Q         Tensor
	W         Tensor
	Scale     float64
	Cache     Region
	CandIn    Tensor
	CandOut   Tensor
	Sel       Tensor
}

// AttendArgs mirrors di_attend_args.
//
// Sparse attention (spec 4.7, 4.8). Keys of the row at position p: window positions max(p-window+1, seq_low, 0)..p (rows below seq_low: p alone), those
// of this step from rec, earlier ones from the ring; then the cache entries of sel (ascending) or, with all_visible, entries j < (p+1)/ratio. The order
// of sums is: window ascending, then entries ascending. K = V. sink F32 [Hq], one unscaled logit, no value. q BF16 [T,Hq,D] rotated; rec U8
// [T,row_bytes]; out BF16 [T,Hq,D], rotated back at p with freq. P is rounded to BF16 before the value product, the denominator is not.
type AttendArgs struct {
	Size       uint32
	Window     uint32
	OutMode    uint32
	AllVisible uint32
	Batch      *Batch
	Q          Tensor
	Rec        Tensor
	Sel        Tensor
	Sink       Tensor
	Freq       Tensor
	Scale      float64
	Ring       Region
	Cache      Region
	Out        Tensor
}

// DispatchArgs mirrors di_dispatch_args.
//
// Groups (row, slot) pairs by expert: xg[i] = x[order[i]/K], order I32 [T*K] sorted by expert then by pair index, offs I32 [E+1]. group NULL = one rank.
type DispatchArgs struct {
	Size    uint32
	Experts uint32
	Group   unsafe.Pointer
	Batch   *Batch
	X       Tensor
	Ids     Tensor
	Xg      Tensor
	Order   Tensor
	Offs    Tensor
}

// CombineArgs mirrors di_combine_args.
//
// y[t] = bf16(sum over slots of yg[i] with order[i] = t*K+slot, plus shared[t]). shared may be absent.
type CombineArgs struct {
	Size   uint32
	Mode   uint32
	Group  unsafe.Pointer
	Batch  *Batch
	Yg     Tensor
	Order  Tensor
	Ids    Tensor
	Shared Tensor
	Y      Tensor
}

// GatherRowsArgs mirrors di_gather_rows_args.
//
// y[t, c*k .. ] = bf16(dequantised row ids[t,c] of w). ids I32 [T,C]; y BF16 [T,C*k].
type GatherRowsArgs struct {
	Size  uint32
	Pad   uint32
	Group unsafe.Pointer
	W     *Weight
	Ids   Tensor
	Y     Tensor
}

// CollectiveArgs mirrors di_collective_args.
//
// all_gather: y [ranks*rows, ...] = x of each rank in order. all_reduce: y = sum over ranks in rank order, FP32. group NULL: copy.
type CollectiveArgs struct {
	Size  uint32
	Pad   uint32
	Group unsafe.Pointer
	X     Tensor
	Y     Tensor
}

// EmbedArgs mirrors di_embed_args.
//
// y[t,c,:] = row token[t] of w, or image[image_row[t]] where >= 0, for each of the hc streams. y BF16 [T,hc,H].
type EmbedArgs struct {
	Size  uint32
	Pad   uint32
	Batch *Batch
	W     *Weight
	Image Tensor
	Y     Tensor
}

// RMSNormArgs mirrors di_rms_norm_args.
//
// y = bf16(w * x * rsqrt(mean(x^2)+eps)) over the last dim; w F32 [n] or absent (= 1). x, y BF16.
type RMSNormArgs struct {
	Size uint32
	Pad  uint32
	X    Tensor
	W    Tensor
	Y    Tensor
	Eps  float64
}

// RopeArgs mirrors di_rope_args.
//
// Rotates interleaved pairs of the last 2*len(freq) dims at the row's position (ratio r > 1: at pos+1-r): angle = fp32(pos)*fp32(freq) rounded to FP32,
// cos and sin accurate and rounded to FP32, result rounded to BF16. conj: the inverse. x, y BF16 [T,D] or [T,Hq,D]; y may equal x.
type RopeArgs struct {
	Size  uint32
	Conj  uint32
	Ratio uint32
	Pad   uint32
	Batch *Batch
	X     Tensor
	Freq  Tensor
	Y     Tensor
}

// QuantizeArgs mirrors di_quantize_args.
//
// Packs (y U8 records) or simulates storage (y BF16: dequantised values) of x BF16 over the last dim; rope: R of DI_REC_A8_64_ROPE.
type QuantizeArgs struct {
	Size   uint32
	Format uint32
	Rope   uint32
	Pad    uint32
	X      Tensor
	Y      Tensor
}

// HadamardArgs mirrors di_hadamard_args.
//
// Walsh-Hadamard of the last dim (Sylvester order), times n^-0.5, rounded to BF16.
type HadamardArgs struct {
	Size uint32
	Pad  uint32
	X    Tensor
	Y    Tensor
}

// MHCMixArgs mirrors di_mhc_mix_args.
//
// mHC mixes (spec 3.3). h BF16 [T,hc,H]; fn F32 [hc*(hc+2), hc*H]; base, scale F32. pre, post F32 [T,hc]; comb F32 [T,hc*hc] (row i source, column j).
// head_only: fn [hc, hc*H], only pre is written, scale [1] (V4 HyperHead). tf32: fn rounded to 10 mantissa bits first.
type MHCMixArgs struct {
	Size     uint32
	Iters    uint32
	HeadOnly uint32
	Tf32     uint32
	H        Tensor
	Fn       Tensor
	Base     Tensor
	Scale    Tensor
	Pre      Tensor
	Post     Tensor
	Comb     Tensor
	HcEps    float64
	Eps      float64
}

// MHCCollapseArgs mirrors di_mhc_collapse_args.
//
// x = bf16(sum_c pre[c] h[c]), pre absent = (1,0,..). x BF16 [T,H].
type MHCCollapseArgs struct {
	Size uint32
	Pad  uint32
	H    Tensor
	Pre  Tensor
	X    Tensor
}

// MHCExpandArgs mirrors di_mhc_expand_args.
//
// out[j] = bf16(post[j]*y + sum_i comb[i][j]*h[i]); out may equal h.
type MHCExpandArgs struct {
	Size uint32
	Pad  uint32
	Y    Tensor
	H    Tensor
	Post Tensor
	Comb Tensor
	Out  Tensor
}

// MHCMeanArgs mirrors di_mhc_mean_args.
//
// x = bf16(mean over streams of h) (DSpark taps). x rows may be strided.
type MHCMeanArgs struct {
	Size uint32
	Pad  uint32
	H    Tensor
	X    Tensor
}

// RouterArgs mirrors di_router_args.
//
// Router (spec 5.1, 5.2). x BF16 [T,H]; w BF16 [E,H] (values x as F32); bias, bias_vl F32 [E] (bias_vl for rows with flag bit 0, absent = bias); tid2eid
// weight I64 [V,K]: ids come from the table. ids I32 [T,K] in selection order; weights F32 [T,K] = sc/(sum+denom_eps)*scale; counts I32 [E] optional
// histogram.
type RouterArgs struct {
	Size     uint32
	TopK     uint32
	Batch    *Batch
	W        *Weight
	Tid2eid  *Weight
	X        Tensor
	Bias     Tensor
	BiasVl   Tensor
	Ids      Tensor
	Weights  Tensor
	Counts   Tensor
	Scale    float64
	DenomEps float64
	Temp     float64
}

// SwigluArgs mirrors di_swiglu_args.
//
// a = silu(min(g,limit)) * clamp(u,-limit,limit) [* weights[order[t]]]; limit 0 = none. g, u, y BF16 [R,I]; weights F32 flat, order I32 [R], both or
// neither.
type SwigluArgs struct {
	Size     uint32
	OutMode  uint32
	ActGroup uint32
	Pad      uint32
	G        Tensor
	U        Tensor
	Weights  Tensor
	Order    Tensor
	Y        Tensor
	Limit    float64
}

// EngramHashArgs mirrors di_engram_hash_args.
//
// Engram rows (spec 6.4). map I32 weight [V]; prime, mult I64; heads columns per order. ids I32 [T,C].
type EngramHashArgs struct {
	Size  uint32
	Heads uint32
	PadId uint32
	Pad   uint32
	Batch *Batch
	Map   *Weight
	Prime Tensor
	Mult  Tensor
	Ids   Tensor
}

// EngramMixArgs mirrors di_engram_mix_args.
//
// Gated injection (spec 6.5): kv BF16 [T,(hc+1)*H]; q_weight, k_weight F32 [hc,H]; out may equal h; gate F32 [T,hc] optional. Rows with flag bit 0 have
// gate 0.
type EngramMixArgs struct {
	Size    uint32
	Pad     uint32
	Batch   *Batch
	H       Tensor
	Kv      Tensor
	QWeight Tensor
	KWeight Tensor
	Out     Tensor
	Gate    Tensor
	Eps     float64
}

// MarkovArgs mirrors di_markov_args.
//
// logits[s] = base[s] + head . embed[prev[s]]; e = that embed row. prev I32 [S]; base, logits F32 [S,V]; e BF16 [S,rank].
type MarkovArgs struct {
	Size   uint32
	Pad    uint32
	Embed  *Weight
	Head   *Weight
	Prev   Tensor
	Base   Tensor
	Logits Tensor
	E      Tensor
}

// ConfidenceArgs mirrors di_confidence_args.
//
// conf[s] = w . [x[s]; e[s]], F32 [S].
type ConfidenceArgs struct {
	Size uint32
	Pad  uint32
	W    *Weight
	X    Tensor
	E    Tensor
	Conf Tensor
}

// Sampling mirrors di_sampling.
//
// How one logit row is drawn. Frozen at 48 bytes (array element).
type Sampling struct {
	Seed        uint64
	Pos         int32
	Salt        uint32
	Temperature float32
	TopP        float32
	MinP        float32
	TopK        int32
	Forced      int32
	Mask        int32 // row of the mask table, from 1; 0 = none
	BiasFirst   int32
	BiasCount   int32
}

// Bias mirrors di_bias.
//
// One change of one logit z. id >= 0: z[id] += add; add = -inf blocks the id. id < 0: z[~id] is divided by add where positive and multiplied by it
// elsewhere (repetition penalty), add > 0. Frozen at 8 bytes (array element).
type Bias struct {
	Id  int32
	Add float32
}

// SampleArgs mirrors di_sample_args.
//
// spec serving 8.2, 8.3. z = logits; the row's biases in their order, in the type of logits; ids whose mask bit is 0 become -inf; then the filters
// temperature, top-k, top-p, min-p and Gumbel-max with Philox-4x32-10 keyed by (seed; id/4, pos, purpose 0, salt), or the argmax of z. A row with mask
// or biases that leave no id above -inf gets id -1, which is not an error.
//
// logits F32 [L,V]; params: L di_sampling in device memory; ids I32 [L]; logprob F32 [L] (from the logits before any change; -inf for id -1); top_ids
// I32, top_logprob F32 [L,N] of the same logits, best first, ties to the lower id.
//
// masks: mask_rows rows of mask_words words in device memory, bit i%32 of word i/32 = id i is allowed, 32*mask_words >= V, bits from V on mean nothing.
// biases: bias_rows entries in device memory. Both may be nil with 0 rows.
type SampleArgs struct {
	Size       uint32
	TopN       uint32
	Params     *Sampling
	Logits     Tensor
	Ids        Tensor
	Logprob    Tensor
	TopIds     Tensor
	TopLogprob Tensor
	Masks      *uint32
	Biases     *Bias
	MaskRows   uint32
	MaskWords  uint32
	BiasRows   uint32
	Pad        uint32
}

// VerifyArgs mirrors di_verify_args.
//
// accepted[s] = length of the longest prefix of draft[s,:n[s]] equal to ids rows first[s].. ; I32.
type VerifyArgs struct {
	Size     uint32
	Pad      uint32
	Ids      Tensor
	Draft    Tensor
	Count    Tensor
	First    Tensor
	Accepted Tensor
}

// CopyArgs mirrors di_copy_args.
//
// y[i] = x[index[i]] by rows of dim[0] (index absent = identity). Same dtype.
type CopyArgs struct {
	Size  uint32
	Pad   uint32
	X     Tensor
	Index Tensor
	Y     Tensor
}

// CastArgs mirrors di_cast_args.
//
// y = x converted (BF16 <-> F32 <-> F64, RNE).
type CastArgs struct {
	Size uint32
	Pad  uint32
	X    Tensor
	Y    Tensor
}

// AddArgs mirrors di_add_args.
//
// y = bf16(a + b).
type AddArgs struct {
	Size uint32
	Pad  uint32
	A    Tensor
	B    Tensor
	Y    Tensor
}

// GeluArgs mirrors di_gelu_args.
//
// y = bf16(gelu_erf(x)).
type GeluArgs struct {
	Size uint32
	Pad  uint32
	X    Tensor
	Y    Tensor
}

// VisionAttendArgs mirrors di_vision_attend_args.
//
// Full bidirectional attention over one image (spec 7.3): qkv BF16 [N,3*d], N = grid_h*grid_w; 2-D rotate-half RoPE with freq F32 [hd/4]; out BF16
// [N,d]; probabilities not rounded.
type VisionAttendArgs struct {
	Size  uint32
	Heads uint32
	GridH uint32
	GridW uint32
	Qkv   Tensor
	Freq  Tensor
	Out   Tensor
}

// VisionMergeArgs mirrors di_vision_merge_args.
//
// Zero-padded r x r cells, channel-major (spec 7.4): x BF16 [gh*gw,d] -> y BF16 [nh*nw, d*r*r].
type VisionMergeArgs struct {
	Size  uint32
	R     uint32
	GridH uint32
	GridW uint32
	X     Tensor
	Y     Tensor
}

// GEMMFns mirrors di_gemm_fns.
type GEMMFns struct {
	Size        uint32
	Pad         uint32
	Prepare     uintptr
	Release     uintptr
	Gemm        uintptr
	GemmGrouped uintptr
	Head        uintptr
}

// AttentionFns mirrors di_attention_fns.
type AttentionFns struct {
	Size        uint32
	Pad         uint32
	KVStore     uintptr
	Compress    uintptr
	IndexKey    uintptr
	IndexSelect uintptr
	Attend      uintptr
	AttendBlock uintptr
}

// AllToAllFns mirrors di_alltoall_fns.
type AllToAllFns struct {
	Size       uint32
	Pad        uint32
	Dispatch   uintptr
	Combine    uintptr
	GatherRows uintptr
	AllGather  uintptr
	AllReduce  uintptr
}

// VectorFns mirrors di_vector_fns.
type VectorFns struct {
	Size         uint32
	Pad          uint32
	Embed        uintptr
	RmsNorm      uintptr
	Rope         uintptr
	Quantize     uintptr
	Hadamard     uintptr
	MhcMix       uintptr
	MhcCollapse  uintptr
	MhcExpand    uintptr
	MhcMean      uintptr
	Router       uintptr
	Swiglu       uintptr
	EngramHash   uintptr
	EngramMix    uintptr
	Markov       uintptr
	Confidence   uintptr
	Sample       uintptr
	Verify       uintptr
	Copy         uintptr
	Cast         uintptr
	Add          uintptr
	Gelu         uintptr
	VisionAttend uintptr
	VisionMerge  uintptr
}

// DeviceInfo mirrors di_device_info.
//
// accepts DI_F64 accumulation tensors
type DeviceInfo struct {
	Size        uint32
	Caps        uint32
	Name        [64]byte
	MemoryBytes uint64
	MemoryFree  uint64
	Cores       uint32
	NumaNode    uint32
	Features    [256]byte
}

// OpenArgs mirrors di_open_args.
type OpenArgs struct {
	Size    uint32
	Threads uint32
	Config  Str
}

// DeviceFns mirrors di_device_fns.
type DeviceFns struct {
	Size  uint32
	Pad   uint32
	Count uintptr
	Info  uintptr
	Open  uintptr
	Close uintptr
}

// MemoryFns mirrors di_memory_fns.
type MemoryFns struct {
	Size  uint32
	Pad   uint32
	Alloc uintptr
	Free  uintptr
	Copy  uintptr
	Fill  uintptr
}

// QueueFns mirrors di_queue_fns.
type QueueFns struct {
	Size    uint32
	Pad     uint32
	Create  uintptr
	Destroy uintptr
	Sync    uintptr
}

// Host mirrors di_host.
type Host struct {
	Size       uint32
	Minor      uint32
	PluginDir  Str
	ScratchDir Str
	LogFd      int32
	LogLevel   uint32
	Ext        unsafe.Pointer
}

// Backend mirrors di_backend.
type Backend struct {
	Size      uint32
	Minor     uint32
	Name      Str
	Version   Str
	OpSet     uint32
	Pad       uint32
	Device    unsafe.Pointer
	Memory    unsafe.Pointer
	Queue     unsafe.Pointer
	Gemm      unsafe.Pointer
	Attention unsafe.Pointer
	Alltoall  unsafe.Pointer
	Vector    unsafe.Pointer
	Ext       unsafe.Pointer
}
