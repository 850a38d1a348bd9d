package abi

// Constants of di_backend_v1.h, in its order.
const (
	ABIMajor           = 1
	ABIMinor           = 0
	OpSet              = 1
	OK                 = 0
	InvalidArgument    = 3
	NotFound           = 5
	ResourceExhausted  = 8
	FailedPrecondition = 9
	Unimplemented      = 12
	Internal           = 13
	Unavailable        = 14
	ScopeStep          = 1
	ScopeProgram       = 2
	ScopeDevice        = 3
	ScopeHost          = 4
	F32                = 1
	F64                = 2
	BF16               = 3
	I32                = 4
	I64                = 5
	U8                 = 6
	WBF16              = 1
	WF32               = 2
	WFP8Tile           = 3
	WFP8Row            = 4
	WMXFP4             = 5
	WI64               = 6
	WI32               = 7
	RecNone            = 0
	RecA8x32           = 1
	RecA8x64Rope       = 2
	RecF4E4x16         = 3
	RecF4E8x32         = 4
	GroupedContiguous  = 0
	GroupedMasked      = 1
	ScoreF32           = 0
	ScoreBF16          = 1
	AttendBF16         = 0
	AttendA8           = 1
	CombineExpert      = 0
	CombineSlot        = 1
	ActBF16            = 0
	ActA8              = 1
	CapBatchInvariant  = 1
	CapHostMemory      = 2
	CapF64             = 4
	CopyH2D            = 1
	CopyD2H            = 2
	CopyD2D            = 3
)
