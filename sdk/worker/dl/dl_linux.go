package dl

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Options is what the library is told about its host.
type Options struct {
	PluginDir  string   // directory of the manifest, "" = directory of the library
	ScratchDir string   // writable directory, "" = none
	Log        *os.File // one JSON object per line, nil = none; stays open until the library is closed
	LogLevel   uint32   // 0 error .. 3 debug
}

// Library is a loaded backend.
type Library struct {
	name    string
	version string
	path    string
	handle  uintptr
	host    *abi.Host
	keep    []any // what host points at

	device    abi.DeviceFns
	memory    abi.MemoryFns
	queue     abi.QueueFns
	gemm      abi.GEMMFns
	attention abi.AttentionFns
	alltoall  abi.AllToAllFns
	vector    abi.VectorFns
	missing   []string // Vector entries the library lacks

	calls sync.Pool // *call

	mu       sync.Mutex
	restored []string
	open     int
	closed   bool
}

var _ backend.Backend = (*Library)(nil)

// Open loads the library at path.
func Open(path string, opt Options) (*Library, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("load backend %s: %w", path, err)
	}
	if opt.PluginDir == "" {
		opt.PluginDir = filepath.Dir(abs)
	}
	return load(abs, path, opt)
}

// OpenFile loads the library behind an open file, typically a sealed memfd: the bytes that were checked are the bytes that run. $ORIGIN means nothing
// there, so a library that brings files along finds them through opt.PluginDir. name is used in messages. f may be closed afterwards.
func OpenFile(f *os.File, name string, opt Options) (*Library, error) {
	defer runtime.KeepAlive(f)
	return load(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), name, opt)
}

func load(path, name string, opt Options) (l *Library, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("load backend %s: %w", name, err)
		}
	}()
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if st, e := f.Stat(); e == nil && !st.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	} else {
		err = inspect(f)
	}
	f.Close()
	if err != nil {
		return nil, err
	}
	l = &Library{path: path}
	l.calls.New = func() any { return newCall() }
	before := snapshot()
	l.handle, err = purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if e := l.checkHandlers(before); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	handle := l.handle
	defer func() {
		if err != nil {
			err = errors.Join(err, purego.Dlclose(handle))
		}
	}()
	entry, err := purego.Dlsym(l.handle, entryName)
	if err != nil {
		return nil, err
	}
	l.host = &abi.Host{Minor: abi.ABIMinor, LogFd: -1, LogLevel: opt.LogLevel}
	l.host.Size = uint32(unsafe.Sizeof(*l.host))
	l.host.PluginDir, l.host.ScratchDir = l.str(opt.PluginDir), l.str(opt.ScratchDir)
	if opt.Log != nil {
		l.host.LogFd = int32(opt.Log.Fd())
		l.keep = append(l.keep, opt.Log)
	}
	b := &abi.Backend{}
	b.Size = uint32(unsafe.Sizeof(*b))
	c := l.call()
	c.arg, c.arg2 = unsafe.Pointer(l.host), unsafe.Pointer(b)
	r, _, _ := purego.SyscallN(entry, uintptr(c.arg), uintptr(c.arg2), uintptr(unsafe.Pointer(&c.fail)))
	err = l.result(c, entryName, uint32(r))
	if e := l.checkHandlers(before); err == nil {
		err = e
	}
	if err != nil {
		return nil, err
	}
	if err := l.tables(b); err != nil {
		return nil, err
	}
	return l, nil
}

// checkHandlers puts back signal handlers that library code replaced and remembers which.
func (l *Library) checkHandlers(before *handlers) error {
	changed, err := before.restore()
	l.mu.Lock()
	l.restored = append(l.restored, changed...)
	l.mu.Unlock()
	return err
}

// str lends a Go string for the library's life.
func (l *Library) str(s string) abi.Str {
	if s == "" {
		return abi.Str{}
	}
	b := []byte(s)
	l.keep = append(l.keep, b)
	return abi.Str{Ptr: unsafe.Pointer(&b[0]), Len: uint64(len(b))}
}

// table copies a C table into its Go mirror; entries past the library's size stay zero.
func table[T any](dst *T, src unsafe.Pointer) {
	if src == nil {
		return
	}
	n := min(uintptr(*(*uint32)(src)), unsafe.Sizeof(*dst))
	copy(unsafe.Slice((*byte)(unsafe.Pointer(dst)), n), unsafe.Slice((*byte)(src), n))
}

func text(what string, s abi.Str) (string, error) {
	if s.Ptr == nil || s.Len == 0 || s.Len > 256 {
		return "", fmt.Errorf("its %s has %d bytes, must have 1 to 256", what, s.Len)
	}
	return string(unsafe.Slice((*byte)(s.Ptr), s.Len)), nil
}

func (l *Library) tables(b *abi.Backend) error {
	var errs []error
	var err error
	if l.name, err = text("name", b.Name); err != nil {
		errs = append(errs, err)
	}
	if l.version, err = text("version", b.Version); err != nil {
		errs = append(errs, err)
	}
	if b.OpSet != abi.OpSet {
		errs = append(errs, fmt.Errorf("it implements op set %d, this release accepts %d", b.OpSet, abi.OpSet))
	}
	table(&l.device, b.Device)
	table(&l.memory, b.Memory)
	table(&l.queue, b.Queue)
	table(&l.gemm, b.Gemm)
	table(&l.attention, b.Attention)
	table(&l.alltoall, b.Alltoall)
	table(&l.vector, b.Vector)
	type entry struct {
		name string
		fn   uintptr
	}
	var lacks []string
	for _, e := range []entry{
		{"device.count", l.device.Count}, {"device.info", l.device.Info}, {"device.open", l.device.Open}, {"device.close", l.device.Close},
		{"memory.alloc", l.memory.Alloc}, {"memory.free", l.memory.Free}, {"memory.copy", l.memory.Copy},
		{"queue.create", l.queue.Create}, {"queue.destroy", l.queue.Destroy}, {"queue.sync", l.queue.Sync},
		{"gemm.gemm", l.gemm.Gemm}, {"gemm.gemm_grouped", l.gemm.GemmGrouped}, {"gemm.head", l.gemm.Head},
		{"attention.kv_store", l.attention.KVStore}, {"attention.compress", l.attention.Compress}, {"attention.index_key", l.attention.IndexKey},
		{"attention.index_select", l.attention.IndexSelect}, {"attention.attend", l.attention.Attend},
		{"alltoall.dispatch", l.alltoall.Dispatch}, {"alltoall.combine", l.alltoall.Combine}, {"alltoall.gather_rows", l.alltoall.GatherRows},
	} {
		if e.fn == 0 {
			lacks = append(lacks, e.name)
		}
	}
	if len(lacks) > 0 {
		errs = append(errs, fmt.Errorf("it lacks the required functions %s", strings.Join(lacks, ", ")))
	}
	v := &l.vector
	for _, e := range []entry{
		{"embed", v.Embed}, {"rms_norm", v.RmsNorm}, {"rope", v.Rope}, {"quantize", v.Quantize}, {"hadamard", v.Hadamard}, {"mhc_mix", v.MhcMix},
		{"mhc_collapse", v.MhcCollapse}, {"mhc_expand", v.MhcExpand}, {"mhc_mean", v.MhcMean}, {"router", v.Router}, {"swiglu", v.Swiglu},
		{"engram_hash", v.EngramHash}, {"engram_mix", v.EngramMix}, {"markov", v.Markov}, {"confidence", v.Confidence}, {"sample", v.Sample},
		{"verify", v.Verify}, {"copy", v.Copy}, {"cast", v.Cast}, {"add", v.Add}, {"gelu", v.Gelu}, {"vision_attend", v.VisionAttend},
		{"vision_merge", v.VisionMerge},
	} {
		if e.fn == 0 {
			l.missing = append(l.missing, e.name)
		}
	}
	return errors.Join(errs...)
}

// Name implements backend.Backend: the name the library gives itself.
func (l *Library) Name() string { return l.name }

// Version is the version the library gives itself.
func (l *Library) Version() string { return l.version }

// Restored lists the signals whose handlers the library replaced, at load or when a device was opened, and dl put back. An empty list is the rule; a name
// in it is a defect of the library worth a warning.
func (l *Library) Restored() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]string(nil), l.restored...)
}

// Devices implements backend.Backend.
func (l *Library) Devices(ctx context.Context) ([]backend.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := l.usable(); err != nil {
		return nil, err
	}
	c := l.call()
	r, _, _ := purego.SyscallN(l.device.Count, uintptr(unsafe.Pointer(&c.n)), uintptr(unsafe.Pointer(&c.fail)))
	n := c.n
	if err := l.result(c, "device count", uint32(r)); err != nil {
		return nil, err
	}
	if n > 4096 {
		return nil, fmt.Errorf("backend %s reports %d devices", l.name, n)
	}
	list := make([]backend.Info, 0, n)
	for i := range n {
		info, err := l.info(i)
		if err != nil {
			return list, err
		}
		list = append(list, info)
	}
	return list, nil
}

func (l *Library) info(i uint32) (backend.Info, error) {
	c := l.call()
	raw := &abi.DeviceInfo{}
	raw.Size = uint32(unsafe.Sizeof(*raw))
	c.arg = unsafe.Pointer(raw)
	r, _, _ := purego.SyscallN(l.device.Info, uintptr(i), uintptr(c.arg), uintptr(unsafe.Pointer(&c.fail)))
	if err := l.result(c, fmt.Sprintf("info of device %d", i), uint32(r)); err != nil {
		return backend.Info{}, err
	}
	zero := func(b []byte) string {
		s, _, _ := strings.Cut(string(b), "\x00")
		return s
	}
	return backend.Info{
		Name: zero(raw.Name[:]), MemoryBytes: int64(raw.MemoryBytes), MemoryFree: int64(raw.MemoryFree), Cores: int(raw.Cores), Features: zero(raw.Features[:]),
		BatchInvariant: raw.Caps&abi.CapBatchInvariant != 0, HostMemory: raw.Caps&abi.CapHostMemory != 0, F64: raw.Caps&abi.CapF64 != 0,
		Missing: l.missing,
	}, nil
}

func (l *Library) usable() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return fmt.Errorf("backend %s is closed", l.name)
	}
	return nil
}

// Open implements backend.Backend.
func (l *Library) Open(ctx context.Context, index int, opt backend.OpenOptions) (backend.Device, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if index < 0 || index > 4096 || opt.Threads < 0 || opt.Threads > 1<<16 {
		return nil, fmt.Errorf("open %s device %d with %d threads: out of range", l.name, index, opt.Threads)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil, fmt.Errorf("open %s device %d: the backend is closed", l.name, index)
	}
	l.open++
	l.mu.Unlock()
	d, err := l.openDevice(uint32(index), opt)
	if err != nil {
		l.done()
		return nil, err
	}
	return d, nil
}

func (l *Library) openDevice(index uint32, opt backend.OpenOptions) (*device, error) {
	info, err := l.info(index)
	if err != nil {
		return nil, err
	}
	if len(l.missing) > 0 && !info.HostMemory {
		return nil, fmt.Errorf("open %s device %d: the library lacks the Vector ops %s and its memory is not host memory, so the portable ones cannot serve them",
			l.name, index, strings.Join(l.missing, ", "))
	}
	d := &device{lib: l, info: info}
	before := snapshot()
	c := l.call()
	a := &abi.OpenArgs{Threads: uint32(opt.Threads)}
	a.Size = uint32(unsafe.Sizeof(*a))
	if len(opt.Config) > 0 {
		a.Config = abi.Str{Ptr: unsafe.Pointer(&opt.Config[0]), Len: uint64(len(opt.Config))}
	}
	c.arg = unsafe.Pointer(a)
	r, _, _ := purego.SyscallN(l.device.Open, uintptr(index), uintptr(c.arg), uintptr(unsafe.Pointer(&c.out)), uintptr(unsafe.Pointer(&c.fail)))
	d.dev = c.out
	err = l.result(c, fmt.Sprintf("open %s device %d", l.name, index), uint32(r))
	if e := l.checkHandlers(before); err == nil && e != nil {
		err = errors.Join(e, d.closeDevice())
	}
	if err != nil {
		return nil, err
	}
	if d.dev == nil {
		return nil, fmt.Errorf("open %s device %d: the library reported success without a device", l.name, index)
	}
	c = l.call()
	r, _, _ = purego.SyscallN(l.queue.Create, uintptr(d.dev), uintptr(unsafe.Pointer(&c.out)), uintptr(unsafe.Pointer(&c.fail)))
	d.queue = c.out
	if err := l.result(c, "create a queue", uint32(r)); err != nil {
		return nil, errors.Join(err, d.closeDevice())
	}
	d.families()
	return d, nil
}

func (l *Library) done() {
	l.mu.Lock()
	l.open--
	l.mu.Unlock()
}

// Close unloads the library. It refuses while devices are open. A second Close does nothing.
func (l *Library) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	if l.open > 0 {
		return fmt.Errorf("close backend %s: %d devices are still open", l.name, l.open)
	}
	l.closed = true
	return purego.Dlclose(l.handle)
}

// call is the memory of one crossing that the library may write to. It lives on the heap: addresses handed to C must not move.
type call struct {
	fail abi.Fail
	buf  [1024]byte
	out  unsafe.Pointer
	n    uint32
	arg  unsafe.Pointer // keeps the arguments reachable and off the stack
	arg2 unsafe.Pointer
	in   [8]uintptr // argument list; one made at the call would be allocated each time
}

// enter calls fn with the first n values of in.
func (c *call) enter(fn uintptr, n int) uint32 {
	r, _, _ := purego.SyscallN(fn, c.in[:n]...)
	return uint32(r)
}

func newCall() *call {
	c := &call{}
	c.fail.Msg = unsafe.Pointer(&c.buf[0])
	return c
}

func (l *Library) call() *call {
	c := l.calls.Get().(*call)
	c.fail.Size, c.fail.Code, c.fail.Scope, c.fail.Native = uint32(unsafe.Sizeof(c.fail)), 0, 0, 0
	c.fail.MsgCap, c.fail.MsgLen = uint64(len(c.buf)), 0
	c.out, c.n = nil, 0
	return c
}

// result turns a return code into an error and gives the call back.
func (l *Library) result(c *call, op string, rc uint32) error {
	var err error
	if rc != abi.OK {
		e := &backend.Error{Code: rc, Scope: backend.Scope(c.fail.Scope), Native: c.fail.Native, Op: op, Msg: strings.ToValidUTF8(string(c.buf[:min(c.fail.MsgLen, uint64(len(c.buf)))]), "?")}
		if e.Scope < backend.ScopeStep || e.Scope > backend.ScopeHost {
			e.Scope = backend.ScopeDevice // a library that does not say may have spoilt everything
		}
		if e.Msg == "" {
			e.Msg = fmt.Sprintf("the library gave code %d without a message", rc)
		}
		err = e
	}
	c.arg, c.arg2 = nil, nil
	l.calls.Put(c)
	return err
}
