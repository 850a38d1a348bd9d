package backend

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// RunnerOptions size a runner's pools and name its weights.
type RunnerOptions struct {
	Weights   WeightSource
	SlotBytes int64 // unit stride of the state pool
	Slots     int
	Granule   int64 // unit stride of the KV pool
	Granules  int
	Progress  func(done, total int64) // bytes of weights bound; may be nil
}

// Runner executes programs over one Device: it owns the pools, the bound weights and the workspace, which all executables share, so one step runs at a time.
// Weights are bound once and shared by every program that names them. One goroutine at a time.
type Runner struct {
	dev      Device
	opt      RunnerOptions
	state    unsafe.Pointer
	kv       unsafe.Pointer
	weights  map[string]*abi.Weight
	vectors  map[string]unsafe.Pointer
	consts   map[string]unsafe.Pointer
	pointers []([]unsafe.Pointer) // keeps the pointer arrays and realigned copies of weights reachable

	workspace      unsafe.Pointer
	workspaceBytes int64
	inputs         unsafe.Pointer // device copy of the step's arrays
	inputsBytes    int
	staging        []byte // host image of inputs

	done, total int64
}

// NewRunner allocates the pools on dev. Close frees them; the device itself stays the caller's.
func NewRunner(dev Device, opt RunnerOptions) (*Runner, error) {
	r := &Runner{dev: dev, opt: opt, weights: map[string]*abi.Weight{}, vectors: map[string]unsafe.Pointer{}, consts: map[string]unsafe.Pointer{}}
	var err error
	if r.state, err = dev.Alloc(opt.SlotBytes * int64(opt.Slots)); err != nil {
		return nil, fmt.Errorf("allocate %d state slots of %d bytes: %w", opt.Slots, opt.SlotBytes, err)
	}
	if r.kv, err = dev.Alloc(opt.Granule * int64(opt.Granules)); err != nil {
		return nil, fmt.Errorf("allocate %d KV granules of %d bytes: %w", opt.Granules, opt.Granule, err)
	}
	if opt.Weights != nil {
		for _, f := range opt.Weights.Files() {
			r.total += int64(len(f.Data))
		}
	}
	return r, nil
}

// Close returns everything the runner took from the device.
func (r *Runner) Close() error {
	var errs []error
	for _, w := range r.weights {
		errs = append(errs, r.dev.Release(w))
	}
	free := func(p unsafe.Pointer) {
		if p != nil {
			errs = append(errs, r.dev.Free(p))
		}
	}
	for _, p := range r.vectors {
		free(p)
	}
	for _, p := range r.consts {
		free(p)
	}
	free(r.workspace)
	free(r.inputs)
	free(r.state)
	free(r.kv)
	r.weights, r.vectors, r.consts = nil, nil, nil
	r.workspace, r.inputs, r.state, r.kv = nil, nil, nil, nil
	return errors.Join(errs...)
}

// Pools returns the state and KV pools, for tests and for copies between tiers.
func (r *Runner) Pools() (state, kv unsafe.Pointer) { return r.state, r.kv }

// Compile binds a program: every weight it names is found, checked and prepared, every argument struct is built. All missing weights are reported at once.
func (r *Runner) Compile(p *program.Program) (*Executable, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	if p.Acc == abi.F64 && !r.dev.Info().F64 {
		return nil, fmt.Errorf("compile %s: the program accumulates in F64, device %s does not", p.Name, r.dev.Info().Name)
	}
	if p.SlotBytes > r.opt.SlotBytes || p.Granule > r.opt.Granule {
		return nil, fmt.Errorf("compile %s: slots of %d and granules of %d bytes, the pools have %d and %d", p.Name, p.SlotBytes, p.Granule, r.opt.SlotBytes, r.opt.Granule)
	}
	e := &Executable{r: r, p: p, weights: make([]*abi.Weight, len(p.Buffers)), fixed: make([]unsafe.Pointer, len(p.Buffers))}
	var errs []error
	for i := range p.Buffers {
		b := &p.Buffers[i]
		var err error
		switch b.Kind {
		case program.Weight:
			e.weights[i], err = r.weight(b.Weight)
		case program.Vector:
			e.fixed[i], err = r.vector(b.Weight)
		case program.Const:
			e.fixed[i], err = r.constant(b.Data)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", b.Name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("compile %s: %w", p.Name, err)
	}
	if p.Workspace > r.workspaceBytes {
		if r.workspace != nil {
			if err := r.dev.Free(r.workspace); err != nil {
				return nil, err
			}
			r.workspace = nil
		}
		ws, err := r.dev.Alloc(p.Workspace)
		if err != nil {
			return nil, fmt.Errorf("compile %s: allocate a workspace of %d bytes: %w", p.Name, p.Workspace, err)
		}
		r.workspace, r.workspaceBytes = ws, p.Workspace
	}
	return e, nil
}

// storage is what a weight format looks like in a checkpoint.
var storage = map[uint32]struct {
	dtypes []string
	bits   int // per element of the matrix
}{
	abi.WBF16: {[]string{"BF16"}, 16}, abi.WF32: {[]string{"F32"}, 32}, abi.WFP8Tile: {[]string{"F8_E4M3"}, 8}, abi.WFP8Row: {[]string{"F8_E4M3"}, 8},
	abi.WMXFP4: {[]string{"I8", "U8"}, 4}, abi.WI64: {[]string{"I64"}, 64}, abi.WI32: {[]string{"I32"}, 32},
}

func (r *Runner) find(name string, dtypes ...string) ([]byte, string, error) {
	if r.opt.Weights == nil {
		return nil, "", fmt.Errorf("tensor %s: no weights were loaded", name)
	}
	t, ok := r.opt.Weights.Tensor(name)
	if !ok {
		return nil, "", fmt.Errorf("tensor %s is missing from the checkpoint", name)
	}
	for _, d := range dtypes {
		if t.DType == d {
			return Bytes(r.opt.Weights, t), d, nil
		}
	}
	return nil, "", fmt.Errorf("tensor %s has dtype %s, want %v", name, t.DType, dtypes)
}

func (r *Runner) weight(ref *program.WeightRef) (*abi.Weight, error) {
	key := fmt.Sprintf("%s|%d|%d|%d", ref.Names[0], ref.Format, ref.From, ref.N)
	if w, ok := r.weights[key]; ok {
		return w, nil
	}
	st, ok := storage[ref.Format]
	if !ok {
		return nil, fmt.Errorf("unknown weight format %d", ref.Format)
	}
	rowBytes := ref.K * st.bits / 8
	var scaleBytes int
	switch ref.Format {
	case abi.WFP8Tile:
		scaleBytes = ((ref.N + ref.Tile - 1) / ref.Tile) * ((ref.K + ref.Tile - 1) / ref.Tile)
	case abi.WFP8Row, abi.WMXFP4:
		scaleBytes = ref.N * ((ref.K + ref.Tile - 1) / ref.Tile)
	}
	data, scale := make([]unsafe.Pointer, len(ref.Names)), make([]unsafe.Pointer, len(ref.Names))
	var errs []error
	var bound int64
	for i, name := range ref.Names {
		b, _, err := r.find(name, st.dtypes...)
		if err == nil && len(b) < (ref.From+ref.N)*rowBytes {
			err = fmt.Errorf("tensor %s has %d bytes, rows %d to %d of %d bytes were expected", name, len(b), ref.From, ref.From+ref.N, rowBytes)
		}
		if err == nil && ref.From == 0 && ref.Format != abi.WBF16 && len(b) != ref.N*rowBytes {
			err = fmt.Errorf("tensor %s has %d bytes, want %d", name, len(b), ref.N*rowBytes)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		data[i] = r.aligned(b[ref.From*rowBytes:(ref.From+ref.N)*rowBytes], st.bits/8)
		bound += int64(ref.N * rowBytes)
		if scaleBytes == 0 {
			continue
		}
		sname := name[:max(0, len(name)-len("weight"))] + "scale"
		s, _, err := r.find(sname, "F8_E8M0")
		if err == nil && len(s) != scaleBytes {
			err = fmt.Errorf("tensor %s has %d bytes, want %d", sname, len(s), scaleBytes)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		scale[i] = unsafe.Pointer(&s[0])
		bound += int64(scaleBytes)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	name := ref.Names[0]
	w := &abi.Weight{Format: ref.Format, Tile: uint32(ref.Tile), Parts: uint32(len(ref.Names)), N: int64(ref.N), K: int64(ref.K),
		Data: unsafe.Pointer(&data[0]), Name: abi.Str{Ptr: unsafe.Pointer(unsafe.StringData(name)), Len: uint64(len(name))}}
	w.Size = uint32(unsafe.Sizeof(*w))
	if scaleBytes > 0 {
		w.Scale = unsafe.Pointer(&scale[0])
	}
	if err := r.dev.Prepare(w); err != nil {
		return nil, fmt.Errorf("prepare weight %s: %w", name, err)
	}
	r.pointers = append(r.pointers, data, scale)
	r.weights[key] = w
	r.progress(bound)
	return w, nil
}

// aligned returns a pointer to b that is a multiple of the element size; a checkpoint may place tensors at odd offsets, those are copied once.
func (r *Runner) aligned(b []byte, elem int) unsafe.Pointer {
	p := unsafe.Pointer(&b[0])
	if elem < 2 || uintptr(p)%uintptr(elem) == 0 {
		return p
	}
	c := make([]uint64, (len(b)+7)/8)
	p = unsafe.Pointer(&c[0])
	copy(unsafe.Slice((*byte)(p), len(b)), b)
	r.pointers = append(r.pointers, []unsafe.Pointer{p})
	return p
}

func (r *Runner) progress(n int64) {
	r.done += n
	if r.opt.Progress != nil {
		r.opt.Progress(min(r.done, r.total), r.total)
	}
}

// vector converts a small weight to F32 on the device.
func (r *Runner) vector(ref *program.WeightRef) (unsafe.Pointer, error) {
	name := ref.Names[0]
	if p, ok := r.vectors[name]; ok {
		return p, nil
	}
	raw, dtype, err := r.find(name, "BF16", "F32")
	if err != nil {
		return nil, err
	}
	n := ref.N * ref.K
	out := raw
	if dtype == "BF16" {
		out = make([]byte, 0, 4*n)
		for i := 0; i+1 < len(raw); i += 2 {
			out = binary.LittleEndian.AppendUint32(out, uint32(binary.LittleEndian.Uint16(raw[i:]))<<16)
		}
	}
	if len(out) != 4*n {
		return nil, fmt.Errorf("tensor %s has %d values, want %d", name, len(out)/4, n)
	}
	p, err := r.upload(out)
	if err != nil {
		return nil, err
	}
	r.vectors[name] = p
	r.progress(int64(len(raw)))
	return p, nil
}

func (r *Runner) constant(data []byte) (unsafe.Pointer, error) {
	if p, ok := r.consts[string(data)]; ok {
		return p, nil
	}
	p, err := r.upload(data)
	if err == nil {
		r.consts[string(data)] = p
	}
	return p, err
}

func (r *Runner) upload(data []byte) (unsafe.Pointer, error) {
	p, err := r.dev.Alloc(int64(len(data)))
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes: %w", len(data), err)
	}
	return p, r.dev.Upload(p, data)
}

// Executable is a program bound to a runner. One goroutine at a time, shared with every other executable of the runner.
type Executable struct {
	// Observe, when set, is called after each op with every dense array it wrote, still in device memory. For tests and bisecting.
	Observe func(op int, name string, t abi.Tensor)

	r       *Runner
	p       *program.Program
	weights []*abi.Weight
	fixed   []unsafe.Pointer

	base   unsafe.Pointer // workspace the argument structs were built for
	batch  [2]abi.Batch   // Rows, Kept
	calls  []call
	counts [4]int // members of each domain in this step
	dims   []dimension
	grids  []grid
	sample *abi.SampleArgs
	image  *abi.Tensor // optional payload of embed
}

// call is one op ready to run; outs are its dense outputs for Observe.
type call struct {
	run   func() error
	index int
	outs  []observed
}

type observed struct {
	name string
	t    *abi.Tensor
}

// dimension is a leading dimension to patch each step.
type dimension struct {
	at     *int64
	domain program.Domain
	mul    int64
}

type grid struct{ h, w *uint32 }

// Program returns the program the executable runs.
func (e *Executable) Program() *program.Program { return e.p }

// Run executes one step and fills res, whose slices it reuses. The step was validated against this program; the caller vouches for that.
func (e *Executable) Run(st *program.Step, res *program.Result) error {
	start := time.Now()
	if e.base != e.r.workspace || e.calls == nil {
		if err := e.bind(); err != nil {
			return err
		}
	}
	if err := e.load(st); err != nil {
		return &Error{Code: abi.Internal, Scope: ScopeDevice, Op: "load step inputs", Msg: err.Error()}
	}
	for d := range e.counts {
		e.counts[d] = st.Count(program.Domain(d))
	}
	for _, d := range e.dims {
		*d.at = int64(e.counts[d.domain]) * d.mul
	}
	for _, g := range e.grids {
		*g.h, *g.w = uint32(st.GridH), uint32(st.GridW)
	}
	if e.sample != nil {
		e.sample.TopN = uint32(st.TopN)
		e.sample.TopIds.Dim[1], e.sample.TopLogprob.Dim[1] = int64(st.TopN), int64(st.TopN)
	}
	for i := range e.calls {
		c := &e.calls[i]
		if err := c.run(); err != nil {
			return e.fail(c.index, err)
		}
		if e.Observe != nil {
			if err := e.r.dev.Sync(); err != nil {
				return e.fail(c.index, err)
			}
			for _, o := range c.outs {
				if o.t.Present() {
					e.Observe(c.index, o.name, *o.t)
				}
			}
		}
	}
	if err := e.store(st, res); err != nil {
		return err
	}
	runtime.KeepAlive(st)
	res.Seq, res.HostNS = st.Seq, time.Since(start).Nanoseconds()
	return nil
}

// fail names the op of an error and keeps its scope.
func (e *Executable) fail(op int, err error) error {
	o := &e.p.Ops[op]
	var be *Error
	if errors.As(err, &be) {
		c := *be
		c.Op = o.Code.String() + " " + o.Label
		return &c
	}
	return &Error{Code: abi.Internal, Scope: ScopeDevice, Op: o.Code.String() + " " + o.Label, Msg: err.Error()}
}

// load copies the step's arrays into device memory in one transfer and points the batches at them.
func (e *Executable) load(st *program.Step) error {
	buf := e.r.staging[:0]
	if buf == nil {
		buf = make([]byte, 0, 1<<16)
	}
	var at [40]int
	n := 0
	put := func(v []int32) {
		at[n] = len(buf)
		n++
		buf = append(buf, bytesOf(v)...)
		for len(buf)%64 != 0 {
			buf = append(buf, 0)
		}
	}
	rows := func(b *program.Batch) {
		for _, v := range [...][]int32{b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow, b.SeqFirst, b.SeqRows, b.SeqSlot, b.SeqLow, b.SeqWrite, b.Table, b.Hist, b.HistFlag} {
			put(v)
		}
	}
	rows(&st.Rows)
	kept := &st.Rows
	if st.Kept.Token != nil {
		kept = &st.Kept
		rows(kept)
	}
	var tables [3]int // sampling, masks, biases
	for i, raw := range [...][]byte{bytesOf(st.Sampling), bytesOf(st.Masks), bytesOf(st.Biases)} {
		tables[i] = len(buf)
		buf = append(buf, raw...)
		for len(buf)%64 != 0 {
			buf = append(buf, 0)
		}
	}
	e.r.staging = buf
	if len(buf) > e.r.inputsBytes {
		if e.r.inputs != nil {
			if err := e.r.dev.Free(e.r.inputs); err != nil {
				return err
			}
			e.r.inputs = nil
		}
		size := len(buf) * 2
		p, err := e.r.dev.Alloc(int64(size))
		if err != nil {
			e.r.inputsBytes = 0
			return err
		}
		e.r.inputs, e.r.inputsBytes = p, size
	}
	if err := e.r.dev.Upload(e.r.inputs, buf); err != nil {
		return err
	}
	point := func(dst *abi.Batch, b *program.Batch, k int) {
		p := func(i int) *int32 { return (*int32)(unsafe.Add(e.r.inputs, at[k+i])) }
		*dst = abi.Batch{Size: uint32(unsafe.Sizeof(*dst)), Rows: int32(len(b.Token)), Seqs: int32(len(b.SeqSlot)), TableWidth: int32(b.TableWidth),
			Token: p(0), Pos: p(1), Seq: p(2), Flag: p(3), ImageRow: p(4), SeqFirst: p(5), SeqRows: p(6), SeqSlot: p(7), SeqLow: p(8), SeqWrite: p(9),
			SeqTable: p(10), Hist: p(11), HistFlag: p(12), NHist: int32(e.p.NHist)}
	}
	point(&e.batch[0], &st.Rows, 0)
	if kept == &st.Rows {
		e.batch[1] = e.batch[0]
	} else {
		point(&e.batch[1], kept, 13)
	}
	if e.sample != nil {
		a := e.sample
		a.Params = (*abi.Sampling)(unsafe.Add(e.r.inputs, tables[0]))
		a.Masks, a.MaskRows, a.MaskWords, a.Biases, a.BiasRows = nil, 0, uint32(st.MaskWords), nil, uint32(len(st.Biases))
		if len(st.Masks) > 0 && st.MaskWords > 0 {
			a.Masks, a.MaskRows = (*uint32)(unsafe.Add(e.r.inputs, tables[1])), uint32(len(st.Masks)/st.MaskWords)
		}
		if len(st.Biases) > 0 {
			a.Biases = (*abi.Bias)(unsafe.Add(e.r.inputs, tables[2]))
		}
	}
	for i := range e.p.Buffers {
		b := &e.p.Buffers[i]
		if b.Kind != program.Input {
			continue
		}
		dst := unsafe.Add(e.r.workspace, b.Offset)
		var src []byte
		switch b.Name {
		case program.InputName:
			if len(st.Input) > 0 {
				src = unsafe.Slice((*byte)(unsafe.Pointer(&st.Input[0])), 2*len(st.Input))
			}
			if e.image != nil {
				e.image.Data = nil
				if src != nil {
					e.image.Data, e.image.Dim[0] = dst, int64(len(st.Input)/b.Width())
				}
			}
		case program.LogitsIndex:
			src = bytesOf(st.Logits)
		case program.KeptIndex:
			src = bytesOf(st.KeptIndex)
		}
		if len(src) > 0 {
			if err := e.r.dev.Upload(dst, src); err != nil {
				return err
			}
		}
	}
	return nil
}

// store copies the outputs back.
func (e *Executable) store(st *program.Step, res *program.Result) error {
	l := e.counts[program.Logits]
	res.IDs, res.LogProb, res.TopIDs, res.TopLogProb, res.Rows = res.IDs[:0], res.LogProb[:0], res.TopIDs[:0], res.TopLogProb[:0], res.Rows[:0]
	for i := range e.p.Buffers {
		b := &e.p.Buffers[i]
		if b.Kind != program.Output || l == 0 {
			continue
		}
		src := unsafe.Add(e.r.workspace, b.Offset)
		var dst []byte
		switch b.Name {
		case program.OutIDs:
			res.IDs = grow(res.IDs, l)
			dst = bytesOf(res.IDs)
		case program.OutLogProb:
			res.LogProb = grow(res.LogProb, l)
			dst = bytesOf(res.LogProb)
		case program.OutTopIDs:
			res.TopIDs = grow(res.TopIDs, l*st.TopN)
			dst = bytesOf(res.TopIDs)
		case program.OutTopLogProb:
			res.TopLogProb = grow(res.TopLogProb, l*st.TopN)
			dst = bytesOf(res.TopLogProb)
		case program.OutRows:
			res.Rows = grow(res.Rows, l*b.Width())
			dst = unsafe.Slice((*byte)(unsafe.Pointer(&res.Rows[0])), 2*len(res.Rows))
		}
		if len(dst) == 0 {
			continue
		}
		if err := e.r.dev.Download(dst, src); err != nil {
			return &Error{Code: abi.Internal, Scope: ScopeDevice, Op: "read back " + b.Name, Msg: err.Error()}
		}
	}
	if err := e.r.dev.Sync(); err != nil {
		return &Error{Code: abi.Internal, Scope: ScopeDevice, Op: "finish step", Msg: err.Error()}
	}
	return nil
}

func grow[E any](s []E, n int) []E {
	if cap(s) < n {
		return make([]E, n)
	}
	return s[:n]
}

func bytesOf[E any](v []E) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// round reports whether v is a whole number that fits 32 bits; attributes of that kind reach the ABI as uint32.
func round(v float64) uint32 {
	if v < 0 || v > math.MaxUint32 || v != math.Trunc(v) {
		return 0
	}
	return uint32(v)
}
