package checkpoint

// DType is a safetensors element type, spelled as in the file.
type DType string

// Element types. The model uses the first six; the others occur in files of test vectors.
const (
	F8E4M3 DType = "F8_E4M3" // OCP E4M3 "fn": no infinities, codes 0x7F and 0xFF are NaN
	F8E8M0 DType = "F8_E8M0" // a power of two; byte b is 2^(b-127), 255 is NaN
	I8     DType = "I8"      // two packed FP4 (E2M1) values, low nibble first
	BF16   DType = "BF16"
	F32    DType = "F32"
	I64    DType = "I64"
	U8     DType = "U8"
	I32    DType = "I32"
	I16    DType = "I16"
	U16    DType = "U16"
	U32    DType = "U32"
	U64    DType = "U64"
	F16    DType = "F16"
	F64    DType = "F64"
	Bool   DType = "BOOL"
)

// Size returns the bytes of one element, or 0 for a type this package does not know.
func (d DType) Size() int64 {
	switch d {
	case F8E4M3, F8E8M0, I8, U8, Bool:
		return 1
	case BF16, F16, I16, U16:
		return 2
	case F32, I32, U32:
		return 4
	case I64, U64, F64:
		return 8
	}
	return 0
}
