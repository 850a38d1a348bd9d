package backend

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// Backend is one kind of hardware.
type Backend interface {
	// Name is the backend's stable name: "ref", "cpu", ...
	Name() string
	// Devices lists what is usable now; an empty list with a nil error means "none here".
	Devices(ctx context.Context) ([]Info, error)
	// Open takes the device with that index of Devices.
	Open(ctx context.Context, index int, opt OpenOptions) (Device, error)
}

// OpenOptions are the settings of one device.
type OpenOptions struct {
	Threads int    // 0 = the backend's choice
	Config  []byte // JSON object of the `config` block, nil = none
}

// Info describes a device.
type Info struct {
	Name           string // "cpu avx2"
	MemoryBytes    int64
	MemoryFree     int64
	Cores          int
	Features       string   // space separated facts
	BatchInvariant bool     // claims level d1
	HostMemory     bool     // Alloc returns memory the host may touch
	F64            bool     // accepts F64 accumulation
	Missing        []string // ops of the Vector family that the SDK's portable code serves, by name
}

// Device is an opened device with one queue. Ops are enqueued in order and may return before the work is done; Sync waits.
type Device interface {
	Info() Info
	// Alloc returns zeroed device memory aligned to 64 bytes. The memory belongs to the device; Free or Close returns it.
	Alloc(bytes int64) (unsafe.Pointer, error)
	Free(unsafe.Pointer) error
	// Upload and Download copy between host and device in queue order; Download is complete when it returns.
	Upload(dst unsafe.Pointer, src []byte) error
	Download(dst []byte, src unsafe.Pointer) error
	// Prepare lets the device pack or copy a weight once. w and the bytes it names stay valid until Release or Close.
	Prepare(w *abi.Weight) error
	Release(w *abi.Weight) error

	GEMM() GEMM
	Attention() Attention
	AllToAll() AllToAll
	Vector() Vector

	Sync() error
	Close() error
}

// GEMM is the matrix family. Formulas, shapes and rounding: the argument structs of sdk/abi.
type GEMM interface {
	GEMM(*abi.GEMMArgs) error
	GEMMGrouped(*abi.GEMMGroupedArgs) error
	Head(*abi.HeadArgs) error
}

// Attention is the key-value family.
type Attention interface {
	KVStore(*abi.KVStoreArgs) error
	Compress(*abi.CompressArgs) error
	IndexKey(*abi.IndexKeyArgs) error
	IndexSelect(*abi.IndexSelectArgs) error
	Attend(*abi.AttendArgs) error
	AttendBlock(*abi.AttendArgs) error
}

// AllToAll is the exchange family. With one rank the exchange is a permutation.
type AllToAll interface {
	Dispatch(*abi.DispatchArgs) error
	Combine(*abi.CombineArgs) error
	GatherRows(*abi.GatherRowsArgs) error
	AllGather(*abi.CollectiveArgs) error
	AllReduce(*abi.CollectiveArgs) error
}

// Vector is everything row-wise.
type Vector interface {
	Embed(*abi.EmbedArgs) error
	RMSNorm(*abi.RMSNormArgs) error
	Rope(*abi.RopeArgs) error
	Quantize(*abi.QuantizeArgs) error
	Hadamard(*abi.HadamardArgs) error
	MHCMix(*abi.MHCMixArgs) error
	MHCCollapse(*abi.MHCCollapseArgs) error
	MHCExpand(*abi.MHCExpandArgs) error
	MHCMean(*abi.MHCMeanArgs) error
	Router(*abi.RouterArgs) error
	Swiglu(*abi.SwigluArgs) error
	EngramHash(*abi.EngramHashArgs) error
	EngramMix(*abi.EngramMixArgs) error
	Markov(*abi.MarkovArgs) error
	Confidence(*abi.ConfidenceArgs) error
	Sample(*abi.SampleArgs) error
	Verify(*abi.VerifyArgs) error
	Copy(*abi.CopyArgs) error
	Cast(*abi.CastArgs) error
	Add(*abi.AddArgs) error
	Gelu(*abi.GeluArgs) error
	VisionAttend(*abi.VisionAttendArgs) error
	VisionMerge(*abi.VisionMergeArgs) error
}

// Scope says what an error spoils; it decides recovery (plugin-architecture 3.6.4).
type Scope uint32

// Scopes, in growing severity.
const (
	ScopeStep    Scope = abi.ScopeStep
	ScopeProgram Scope = abi.ScopeProgram
	ScopeDevice  Scope = abi.ScopeDevice
	ScopeHost    Scope = abi.ScopeHost
)

// String names the scope.
func (s Scope) String() string {
	switch s {
	case ScopeStep:
		return "step"
	case ScopeProgram:
		return "program"
	case ScopeDevice:
		return "device"
	case ScopeHost:
		return "host"
	}
	return fmt.Sprintf("scope(%d)", uint32(s))
}

// Error is a failure reported by a backend.
type Error struct {
	Code   uint32 // gRPC code
	Scope  Scope
	Native int32  // vendor error number, 0 = none
	Op     string // op or call that failed: "gemm layers.3.attn.wq_a"
	Msg    string
}

// Error formats op, message, scope and native number.
func (e *Error) Error() string {
	s := e.Op + ": " + e.Msg + " (scope " + e.Scope.String()
	if e.Native != 0 {
		s += fmt.Sprintf(", native error %d", e.Native)
	}
	return s + ")"
}
