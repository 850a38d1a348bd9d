package dl

import (
	"errors"
	"fmt"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/refop"
)

// device is an opened device with its queue.
type device struct {
	lib   *Library
	info  backend.Info
	dev   unsafe.Pointer
	queue unsafe.Pointer
	fam   ops
	vec   vector

	mu     sync.Mutex
	closed bool
}

var (
	_ backend.Device    = (*device)(nil)
	_ backend.GEMM      = (*ops)(nil)
	_ backend.Attention = (*ops)(nil)
	_ backend.AllToAll  = (*ops)(nil)
	_ backend.Vector    = (*vector)(nil)
)

func (d *device) families() {
	d.fam.d, d.vec.d = d, d
	if len(d.info.Missing) > 0 {
		d.vec.ref = refop.New[float32](nil)
	}
}

func (d *device) Info() backend.Info           { return d.info }
func (d *device) GEMM() backend.GEMM           { return &d.fam }
func (d *device) Attention() backend.Attention { return &d.fam }
func (d *device) AllToAll() backend.AllToAll   { return &d.fam }
func (d *device) Vector() backend.Vector       { return &d.vec }

func (d *device) errClosed(op string) error {
	return &backend.Error{Code: abi.FailedPrecondition, Scope: backend.ScopeDevice, Op: op, Msg: "the device is closed"}
}

// do runs one op: fn(device, queue, args, fail).
func (d *device) do(op string, fn uintptr, a unsafe.Pointer) error {
	if d.dev == nil {
		return d.errClosed(op)
	}
	if fn == 0 {
		return &backend.Error{Code: abi.Unimplemented, Scope: backend.ScopeProgram, Op: op, Msg: "backend " + d.lib.name + " does not implement it"}
	}
	c := d.lib.call()
	c.arg = a
	c.in = [8]uintptr{uintptr(d.dev), uintptr(d.queue), uintptr(c.arg), uintptr(unsafe.Pointer(&c.fail))}
	return d.lib.result(c, op, c.enter(fn, 4))
}

// Alloc implements backend.Device.
func (d *device) Alloc(n int64) (unsafe.Pointer, error) {
	if d.dev == nil {
		return nil, d.errClosed("alloc")
	}
	if n < 0 {
		return nil, &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: "alloc", Msg: fmt.Sprintf("%d bytes, must not be negative", n)}
	}
	c := d.lib.call()
	r, _, _ := purego.SyscallN(d.lib.memory.Alloc, uintptr(d.dev), uintptr(n), uintptr(unsafe.Pointer(&c.out)), uintptr(unsafe.Pointer(&c.fail)))
	p := c.out
	if err := d.lib.result(c, "alloc", uint32(r)); err != nil {
		return nil, err
	}
	if p == nil || uintptr(p)%64 != 0 {
		return nil, &backend.Error{Code: abi.Internal, Scope: backend.ScopeDevice, Op: "alloc", Msg: fmt.Sprintf("the library returned %p for %d bytes, must be aligned to 64", p, n)}
	}
	return p, nil
}

// Free implements backend.Device.
func (d *device) Free(p unsafe.Pointer) error {
	if d.dev == nil {
		return d.errClosed("free")
	}
	c := d.lib.call()
	r, _, _ := purego.SyscallN(d.lib.memory.Free, uintptr(d.dev), uintptr(p), uintptr(unsafe.Pointer(&c.fail)))
	return d.lib.result(c, "free", uint32(r))
}

func (d *device) copy(op string, dst, src unsafe.Pointer, n int, kind uintptr) error {
	if d.dev == nil {
		return d.errClosed(op)
	}
	if n == 0 {
		return nil
	}
	c := d.lib.call()
	c.arg, c.arg2 = dst, src
	c.in = [8]uintptr{uintptr(d.dev), uintptr(d.queue), uintptr(c.arg), uintptr(c.arg2), uintptr(n), kind, uintptr(unsafe.Pointer(&c.fail))}
	return d.lib.result(c, op, c.enter(d.lib.memory.Copy, 7))
}

// Upload implements backend.Device. src may be reused at once.
func (d *device) Upload(dst unsafe.Pointer, src []byte) error {
	if err := d.copy("upload", dst, unsafe.Pointer(unsafe.SliceData(src)), len(src), abi.CopyH2D); err != nil || d.info.HostMemory {
		return err
	}
	return d.Sync()
}

// Download implements backend.Device.
func (d *device) Download(dst []byte, src unsafe.Pointer) error {
	if err := d.copy("download", unsafe.Pointer(unsafe.SliceData(dst)), src, len(dst), abi.CopyD2H); err != nil {
		return err
	}
	return d.Sync()
}

// weightCall runs prepare or release, which a library may leave out.
func (d *device) weightCall(op string, fn uintptr, w *abi.Weight) error {
	if d.dev == nil {
		return d.errClosed(op)
	}
	if w == nil {
		return &backend.Error{Code: abi.InvalidArgument, Scope: backend.ScopeStep, Op: op, Msg: "weight is absent"}
	}
	if fn == 0 {
		return nil
	}
	size(w)
	c := d.lib.call()
	c.arg = unsafe.Pointer(w)
	r, _, _ := purego.SyscallN(fn, uintptr(d.dev), uintptr(c.arg), uintptr(unsafe.Pointer(&c.fail)))
	return d.lib.result(c, op, uint32(r))
}

// Prepare implements backend.Device.
func (d *device) Prepare(w *abi.Weight) error { return d.weightCall("prepare", d.lib.gemm.Prepare, w) }

// Release implements backend.Device.
func (d *device) Release(w *abi.Weight) error { return d.weightCall("release", d.lib.gemm.Release, w) }

// Sync implements backend.Device.
func (d *device) Sync() error {
	if d.dev == nil {
		return d.errClosed("sync")
	}
	c := d.lib.call()
	c.in = [8]uintptr{uintptr(d.dev), uintptr(d.queue), uintptr(unsafe.Pointer(&c.fail))}
	return d.lib.result(c, "sync", c.enter(d.lib.queue.Sync, 3))
}

func (d *device) closeDevice() error {
	c := d.lib.call()
	r, _, _ := purego.SyscallN(d.lib.device.Close, uintptr(d.dev), uintptr(unsafe.Pointer(&c.fail)))
	d.dev = nil
	return d.lib.result(c, "close "+d.lib.name, uint32(r))
}

// Close implements backend.Device. A second Close does nothing.
func (d *device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	c := d.lib.call()
	r, _, _ := purego.SyscallN(d.lib.queue.Destroy, uintptr(d.dev), uintptr(d.queue), uintptr(unsafe.Pointer(&c.fail)))
	err := d.lib.result(c, "destroy the queue", uint32(r))
	err = errors.Join(err, d.closeDevice())
	d.lib.done()
	return err
}

// size states the size of a struct that begins with one, so that the library knows which fields this build has. nil stays nil.
func size[T any](p *T) {
	if p != nil {
		*(*uint32)(unsafe.Pointer(p)) = uint32(unsafe.Sizeof(*p))
	}
}
