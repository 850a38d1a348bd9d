package program

import "fmt"

// Code identifies an op of op set 1. Numbers are stable; new ops append.
type Code uint16

// Ops by family (architecture.md section 5).
const (
	GEMM Code = 1 + iota
	GEMMGrouped
	Head

	KVStore
	Compress
	IndexKey
	IndexSelect
	Attend
	AttendBlock

	Dispatch
	Combine
	GatherRows
	AllGather
	AllReduce

	Embed
	RMSNorm
	Rope
	Quantize
	Hadamard
	MHCMix
	MHCCollapse
	MHCExpand
	MHCMean
	Router
	Swiglu
	EngramHash
	EngramMix
	Markov
	Confidence
	Sample
	Verify
	Copy
	Cast
	Add
	Gelu
	VisionAttend
	VisionMerge

	codeEnd
)

// Family is the interface that serves an op.
type Family uint8

// Families.
const (
	FamilyGEMM Family = iota
	FamilyAttention
	FamilyAllToAll
	FamilyVector
)

// Slot describes one operand of an op.
type Slot struct {
	Name     string
	Out      bool // written by the op
	Optional bool
	Kinds    []Kind // allowed kinds; nil = any dense array (Temp, Const, Vector, Input, Output)
}

// Signature describes an op: its operands in order and the attributes it understands.
type Signature struct {
	Code   Code
	Name   string
	Family Family
	Slots  []Slot
	Attrs  []string
}

func in(name string) Slot           { return Slot{Name: name} }
func opt(name string) Slot          { return Slot{Name: name, Optional: true} }
func out(name string) Slot          { return Slot{Name: name, Out: true} }
func optOut(name string) Slot       { return Slot{Name: name, Out: true, Optional: true} }
func w(name string) Slot            { return Slot{Name: name, Kinds: []Kind{Weight}} }
func optW(name string) Slot         { return Slot{Name: name, Kinds: []Kind{Weight}, Optional: true} }
func reg(name string, k Kind) Slot  { return Slot{Name: name, Kinds: []Kind{k}} }
func regO(name string, k Kind) Slot { return Slot{Name: name, Kinds: []Kind{k}, Out: true} }
func optReg(name string, k Kind) Slot {
	return Slot{Name: name, Kinds: []Kind{k}, Optional: true}
}
func optRegO(name string, k Kind) Slot {
	return Slot{Name: name, Kinds: []Kind{k}, Optional: true, Out: true}
}

// Signatures is the op table, indexed by Code. Operand and attribute names are those of the argument structs in sdk/abi.
var Signatures = [codeEnd]Signature{
	GEMM:        {Name: "gemm", Family: FamilyGEMM, Slots: []Slot{in("x"), w("w"), opt("bias"), out("y")}, Attrs: []string{"act_group", "groups"}},
	GEMMGrouped: {Name: "gemm_grouped", Family: FamilyGEMM, Slots: []Slot{in("x"), w("w"), in("offs"), out("y")}, Attrs: []string{"act_group", "layout"}},
	Head:        {Name: "head", Family: FamilyGEMM, Slots: []Slot{in("x"), w("w"), opt("rows"), out("y")}},

	KVStore: {Name: "kv_store", Family: FamilyAttention, Slots: []Slot{in("rec"), regO("ring", Ring)}},
	Compress: {Name: "compress", Family: FamilyAttention, Slots: []Slot{in("k"), opt("s"), opt("ape"), in("norm"), opt("freq"),
		optRegO("tail", Tail), optRegO("cache", Cache), out("lat")}, Attrs: []string{"ratio", "overlap", "eps"}},
	IndexKey: {Name: "index_key", Family: FamilyAttention, Slots: []Slot{in("k"), in("freq"), regO("cache", Cache)}, Attrs: []string{"hadamard"}},
	IndexSelect: {Name: "index_select", Family: FamilyAttention, Slots: []Slot{in("q"), in("w"), reg("cache", Cache), opt("cand_in"), optOut("cand_out"), out("sel")},
		Attrs: []string{"top_k", "mode", "cand_block", "scale"}},
	Attend: {Name: "attend", Family: FamilyAttention, Slots: []Slot{in("q"), in("rec"), opt("sel"), in("sink"), in("freq"), reg("ring", Ring), optReg("cache", Cache), out("out")},
		Attrs: []string{"window", "out_mode", "all_visible", "scale"}},
	AttendBlock: {Name: "attend_block", Family: FamilyAttention, Slots: []Slot{in("q"), in("rec"), opt("sel"), in("sink"), in("freq"), reg("ring", Ring), optReg("cache", Cache), out("out")},
		Attrs: []string{"window", "out_mode", "all_visible", "scale"}},

	Dispatch:   {Name: "dispatch", Family: FamilyAllToAll, Slots: []Slot{in("x"), in("ids"), out("xg"), out("order"), out("offs")}, Attrs: []string{"experts"}},
	Combine:    {Name: "combine", Family: FamilyAllToAll, Slots: []Slot{in("yg"), in("order"), in("ids"), opt("shared"), out("y")}, Attrs: []string{"mode"}},
	GatherRows: {Name: "gather_rows", Family: FamilyAllToAll, Slots: []Slot{w("w"), in("ids"), out("y")}},
	AllGather:  {Name: "all_gather", Family: FamilyAllToAll, Slots: []Slot{in("x"), out("y")}},
	AllReduce:  {Name: "all_reduce", Family: FamilyAllToAll, Slots: []Slot{in("x"), out("y")}},

	Embed:    {Name: "embed", Family: FamilyVector, Slots: []Slot{w("w"), opt("image"), out("y")}},
	RMSNorm:  {Name: "rms_norm", Family: FamilyVector, Slots: []Slot{in("x"), opt("w"), out("y")}, Attrs: []string{"eps"}},
	Rope:     {Name: "rope", Family: FamilyVector, Slots: []Slot{in("x"), in("freq"), out("y")}, Attrs: []string{"conj", "ratio"}},
	Quantize: {Name: "quantize", Family: FamilyVector, Slots: []Slot{in("x"), out("y")}, Attrs: []string{"format", "rope"}},
	Hadamard: {Name: "hadamard", Family: FamilyVector, Slots: []Slot{in("x"), out("y")}},
	MHCMix: {Name: "mhc_mix", Family: FamilyVector, Slots: []Slot{in("h"), in("fn"), in("base"), in("scale"), out("pre"), optOut("post"), optOut("comb")},
		Attrs: []string{"iters", "head_only", "tf32", "hc_eps", "eps"}},
	MHCCollapse: {Name: "mhc_collapse", Family: FamilyVector, Slots: []Slot{in("h"), opt("pre"), out("x")}},
	MHCExpand:   {Name: "mhc_expand", Family: FamilyVector, Slots: []Slot{in("y"), in("h"), in("post"), in("comb"), out("out")}},
	MHCMean:     {Name: "mhc_mean", Family: FamilyVector, Slots: []Slot{in("h"), out("x")}},
	Router: {Name: "router", Family: FamilyVector, Slots: []Slot{in("x"), w("w"), optW("tid2eid"), opt("bias"), opt("bias_vl"), out("ids"), out("weights"), optOut("counts")},
		Attrs: []string{"top_k", "scale", "denom_eps", "temp"}},
	Swiglu:       {Name: "swiglu", Family: FamilyVector, Slots: []Slot{in("g"), in("u"), opt("weights"), opt("order"), out("y")}, Attrs: []string{"out_mode", "act_group", "limit"}},
	EngramHash:   {Name: "engram_hash", Family: FamilyVector, Slots: []Slot{w("map"), in("prime"), in("mult"), out("ids")}, Attrs: []string{"heads", "pad_id"}},
	EngramMix:    {Name: "engram_mix", Family: FamilyVector, Slots: []Slot{in("h"), in("kv"), in("q_weight"), in("k_weight"), out("out"), optOut("gate")}, Attrs: []string{"eps"}},
	Markov:       {Name: "markov", Family: FamilyVector, Slots: []Slot{w("embed"), w("head"), in("prev"), in("base"), out("logits"), out("e")}},
	Confidence:   {Name: "confidence", Family: FamilyVector, Slots: []Slot{w("w"), in("x"), in("e"), out("conf")}},
	Sample:       {Name: "sample", Family: FamilyVector, Slots: []Slot{in("logits"), out("ids"), out("logprob"), out("top_ids"), out("top_logprob")}},
	Verify:       {Name: "verify", Family: FamilyVector, Slots: []Slot{in("ids"), in("draft"), in("count"), in("first"), out("accepted")}},
	Copy:         {Name: "copy", Family: FamilyVector, Slots: []Slot{in("x"), opt("index"), out("y")}},
	Cast:         {Name: "cast", Family: FamilyVector, Slots: []Slot{in("x"), out("y")}},
	Add:          {Name: "add", Family: FamilyVector, Slots: []Slot{in("a"), in("b"), out("y")}},
	Gelu:         {Name: "gelu", Family: FamilyVector, Slots: []Slot{in("x"), out("y")}},
	VisionAttend: {Name: "vision_attend", Family: FamilyVector, Slots: []Slot{in("qkv"), in("freq"), out("out")}, Attrs: []string{"heads"}},
	VisionMerge:  {Name: "vision_merge", Family: FamilyVector, Slots: []Slot{in("x"), out("y")}, Attrs: []string{"r"}},
}

// String is the op's name, as in the text form and in error messages.
func (c Code) String() string {
	if c > 0 && c < codeEnd {
		return Signatures[c].Name
	}
	return fmt.Sprintf("op(%d)", uint16(c))
}

// Known reports whether this op set has the code.
func (c Code) Known() bool { return c > 0 && c < codeEnd }
