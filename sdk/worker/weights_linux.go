package worker

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// weights is a backend.WeightSource over files that the engine passed: mapped read-only, tensors named by descriptors. Safe for concurrent use.
type weights struct {
	mu      sync.RWMutex
	files   []backend.WeightFile
	tensors map[string]backend.TensorInfo
}

// mapFile maps a passed file and closes the descriptor. Files come in order of their index.
func (w *weights) mapFile(f *os.File, index int, size int64, name string) error {
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("weight file %s: %w", name, err)
	}
	if size <= 0 || st.Size < size {
		return fmt.Errorf("weight file %s: has %d bytes, the engine announced %d; it was changed since the start", name, st.Size, size)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if index != len(w.files) {
		return fmt.Errorf("weight file %s: index %d, the next one is %d", name, index, len(w.files))
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("weight file %s: map %d bytes: %w", name, size, err)
	}
	w.files = append(w.files, backend.WeightFile{Name: name, Data: mem})
	return nil
}

// describe adds tensors; all of them must lie inside mapped files.
func (w *weights) describe(list []*controlpb.Tensor) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range list {
		if t.File < 0 || int(t.File) >= len(w.files) {
			return 0, fmt.Errorf("tensor %s: file %d of %d mapped", t.Name, t.File, len(w.files))
		}
		if n := int64(len(w.files[t.File].Data)); t.Offset < 0 || t.Size < 0 || t.Offset > n || t.Size > n-t.Offset {
			return 0, fmt.Errorf("tensor %s: bytes %d+%d of %s, which has %d", t.Name, t.Offset, t.Size, w.files[t.File].Name, n)
		}
		w.tensors[t.Name] = backend.TensorInfo{Name: t.Name, DType: t.Dtype, Shape: t.Shape, File: int(t.File), Offset: t.Offset, Size: t.Size}
	}
	return len(w.tensors), nil
}

// Tensor finds a described tensor.
func (w *weights) Tensor(name string) (backend.TensorInfo, bool) {
	w.mu.RLock()
	defer w.mu.RUnlock()
	t, ok := w.tensors[name]
	return t, ok
}

// Files lists the mapped files.
func (w *weights) Files() []backend.WeightFile {
	w.mu.RLock()
	defer w.mu.RUnlock()
	return w.files
}

var _ backend.WeightSource = (*weights)(nil)
