package ref

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/refop"
)

// New returns the backend. It holds no state.
func New() backend.Backend { return ref{} }

type ref struct{}

// config is the `config` block of the backend.
type config struct {
	// Accumulate is the type of sums and element-wise functions: "float32" (default) or "float64".
	Accumulate string `json:"accumulate"`
}

// Name implements backend.Backend.
func (ref) Name() string { return "ref" }

// Devices implements backend.Backend: the machine's processor, always one.
func (ref) Devices(ctx context.Context) ([]backend.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return []backend.Info{info("float32", runtime.GOMAXPROCS(0))}, nil
}

// Open implements backend.Backend.
func (ref) Open(ctx context.Context, index int, opt backend.OpenOptions) (backend.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if index != 0 {
		return nil, fmt.Errorf("open ref device %d: there is one device, index 0", index)
	}
	cfg := config{Accumulate: "float32"}
	if raw := bytes.TrimSpace(opt.Config); len(raw) > 0 {
		dec := json.NewDecoder(bytes.NewReader(raw))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&cfg); err != nil {
			return nil, fmt.Errorf("open ref: config %s: %w; known keys: accumulate", raw, err)
		}
		if _, err := dec.Token(); !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("open ref: config %s: text after the object", raw)
		}
	}
	threads := opt.Threads
	if threads < 0 || threads > 1024 {
		return nil, fmt.Errorf("open ref: %d threads, must be 0 (all processors) to 1024", threads)
	}
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	d := &device{pool: newPool(threads), info: info(cfg.Accumulate, threads), blocks: map[unsafe.Pointer][]byte{}}
	switch cfg.Accumulate {
	case "float32":
		d.ops = refop.New[float32](d.pool.run)
	case "float64":
		d.ops = refop.New[float64](d.pool.run)
	default:
		d.pool.close()
		return nil, fmt.Errorf("open ref: accumulate %q, must be \"float32\" or \"float64\"", cfg.Accumulate)
	}
	return d, nil
}

func info(accumulate string, threads int) backend.Info {
	total, free := memory()
	return backend.Info{
		Name: "go " + runtime.GOARCH, MemoryBytes: total, MemoryFree: free, Cores: threads,
		Features: "accumulate=" + accumulate, BatchInvariant: true, HostMemory: true, F64: accumulate == "float64",
	}
}

// memory reads the machine's memory in bytes, 0 where the system does not say.
func memory() (total, free int64) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		w := strings.Fields(s.Text())
		if len(w) < 2 {
			continue
		}
		kib, err := strconv.ParseInt(w[1], 10, 64)
		if err != nil {
			continue
		}
		switch w[0] {
		case "MemTotal:":
			total = kib << 10
		case "MemAvailable:":
			free = kib << 10
		}
	}
	return total, free
}

// ops is what both accumulation types of refop.Ops offer.
type ops interface {
	backend.GEMM
	backend.Attention
	backend.AllToAll
	backend.Vector
	Prepare(*abi.Weight) error
	Release(*abi.Weight) error
}

type device struct {
	info backend.Info
	ops  ops
	pool *pool

	mu     sync.Mutex
	blocks map[unsafe.Pointer][]byte // live allocations by aligned address
	closed bool
}

var errClosed = &backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeDevice, Op: "ref", Msg: "the device is closed"}

func (d *device) Info() backend.Info           { return d.info }
func (d *device) GEMM() backend.GEMM           { return d.ops }
func (d *device) Attention() backend.Attention { return d.ops }
func (d *device) AllToAll() backend.AllToAll   { return d.ops }
func (d *device) Vector() backend.Vector       { return d.ops }

// Alloc implements backend.Device.
func (d *device) Alloc(n int64) (unsafe.Pointer, error) {
	if n < 0 || n > 1<<46 {
		return nil, &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "alloc", Msg: fmt.Sprintf("%d bytes, must be 0 to 2^46", n)}
	}
	if total, _ := memory(); total > 0 && n > total {
		return nil, &backend.Error{Code: abi.ResourceExhausted, Scope: backend.ScopeHost, Op: "alloc", Msg: fmt.Sprintf("%d bytes, the machine has %d", n, total)}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, errClosed
	}
	b := make([]byte, n+64) // Go hands out zeroed memory
	p := unsafe.Pointer(unsafe.SliceData(b))
	p = unsafe.Add(p, (64-uintptr(p)%64)%64)
	d.blocks[p] = b
	return p, nil
}

// Free implements backend.Device.
func (d *device) Free(p unsafe.Pointer) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, ok := d.blocks[p]; !ok {
		return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "free", Msg: fmt.Sprintf("%p was not allocated here, or freed before", p)}
	}
	delete(d.blocks, p)
	return nil
}

// Upload implements backend.Device.
func (d *device) Upload(dst unsafe.Pointer, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	if dst == nil {
		return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "upload", Msg: "destination is NULL"}
	}
	copy(unsafe.Slice((*byte)(dst), len(src)), src)
	return nil
}

// Download implements backend.Device.
func (d *device) Download(dst []byte, src unsafe.Pointer) error {
	if len(dst) == 0 {
		return nil
	}
	if src == nil {
		return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "download", Msg: "source is NULL"}
	}
	copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	return nil
}

// Prepare implements backend.Device.
func (d *device) Prepare(w *abi.Weight) error { return d.ops.Prepare(w) }

// Release implements backend.Device.
func (d *device) Release(w *abi.Weight) error { return d.ops.Release(w) }

// Sync implements backend.Device.
func (d *device) Sync() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return errClosed
	}
	return nil
}

// Close implements backend.Device. A second Close does nothing.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.closed = true
		d.blocks = nil
		d.pool.close()
	}
	return nil
}
