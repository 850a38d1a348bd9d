package backend

// TensorInfo locates one tensor of a checkpoint.
type TensorInfo struct {
	Name   string
	DType  string // safetensors spelling: "BF16", "F8_E4M3", "F8_E8M0", "I8", "F32", "I64", "I32"
	Shape  []int64
	File   int   // index into Files
	Offset int64 // byte offset in that file
	Size   int64 // bytes
}

// WeightFile is one file that holds tensors. Data is its mapped content, read-only, valid until the source is closed. Path is empty for embedded files.
type WeightFile struct {
	Name string
	Path string
	Data []byte
}

// WeightSource finds tensors by their checkpoint name. core/model/checkpoint implements it over a directory or embedded files; the worker implements it
// over descriptors and mapped arenas. Methods are safe for concurrent use.
type WeightSource interface {
	Tensor(name string) (TensorInfo, bool)
	Files() []WeightFile
}

// Bytes returns the content of a tensor.
func Bytes(s WeightSource, t TensorInfo) []byte {
	return s.Files()[t.File].Data[t.Offset : t.Offset+t.Size : t.Offset+t.Size]
}
