package conformance

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/refop"
)

// Options select and parametrise cases. The zero value runs everything with FP32 accumulation.
type Options struct {
	Ops  []string // names of ops ("gemm", "attend"); nil = all
	Seed uint64   // changes all inputs; 0 is the published set
	Acc  uint32   // accumulation type of the operands: abi.F32 (default) or abi.F64 for a device that reports F64
}

// Case is one op with one set of inputs.
type Case struct {
	Op    string
	Name  string // "gemm fp8 7x33x65"
	opt   Options
	build func(m *maker) any // returns the argument struct
}

// Run runs every selected case as a subtest of t, and Invariance when all are selected and the device claims level d1.
func Run(t *testing.T, dev backend.Device, opt Options) {
	t.Helper()
	cases, err := Cases(opt)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		t.Run(strings.ReplaceAll(c.Name, " ", "_"), func(t *testing.T) {
			if err := c.Check(dev); err != nil {
				t.Error(err)
			}
		})
	}
	if dev.Info().BatchInvariant && len(opt.Ops) == 0 {
		t.Run("invariance", func(t *testing.T) {
			if err := Invariance(dev, opt); err != nil {
				t.Error(err)
			}
		})
	}
}

// Cases lists the selected cases in a fixed order. An unknown op name is an error.
func Cases(opt Options) ([]Case, error) {
	if opt.Acc == 0 {
		opt.Acc = abi.F32
	}
	known := map[string]bool{}
	var out []Case
	for _, c := range all() {
		known[c.Op] = true
		if len(opt.Ops) > 0 {
			found := false
			for _, o := range opt.Ops {
				found = found || o == c.Op
			}
			if !found {
				continue
			}
		}
		c.opt = opt
		out = append(out, c)
	}
	for _, o := range opt.Ops {
		if !known[o] {
			return nil, fmt.Errorf("conformance: no cases for op %q", o)
		}
	}
	return out, nil
}

// space is where one execution of a case lives: the device under test, or the reference in host memory.
type space struct {
	gemm     backend.GEMM
	attn     backend.Attention
	a2a      backend.AllToAll
	vec      backend.Vector
	alloc    func(n int64) (unsafe.Pointer, error)
	upload   func(dst unsafe.Pointer, src []byte) error
	download func(dst []byte, src unsafe.Pointer) error
	prepare  func(*abi.Weight) error
	release  func(*abi.Weight) error
	sync     func() error
	free     func(unsafe.Pointer) error
}

func deviceSpace(d backend.Device) *space {
	return &space{gemm: d.GEMM(), attn: d.Attention(), a2a: d.AllToAll(), vec: d.Vector(), alloc: d.Alloc, upload: d.Upload, download: d.Download,
		prepare: d.Prepare, release: d.Release, sync: d.Sync, free: d.Free}
}

// reference runs refop in host memory.
func reference(acc uint32) *space {
	s := &space{
		alloc: func(n int64) (unsafe.Pointer, error) {
			b := make([]byte, n+64)
			p := unsafe.Pointer(&b[0])
			return unsafe.Add(p, (64-uintptr(p)%64)%64), nil
		},
		upload: func(dst unsafe.Pointer, src []byte) error {
			copy(unsafe.Slice((*byte)(dst), len(src)), src)
			return nil
		},
		download: func(dst []byte, src unsafe.Pointer) error {
			copy(dst, unsafe.Slice((*byte)(src), len(dst)))
			return nil
		},
		prepare: func(*abi.Weight) error { return nil },
		release: func(*abi.Weight) error { return nil },
		sync:    func() error { return nil },
		free:    func(unsafe.Pointer) error { return nil },
	}
	if acc == abi.F64 {
		o := refop.New[float64](nil)
		s.gemm, s.attn, s.a2a, s.vec = o, o, o, o
	} else {
		o := refop.New[float32](nil)
		s.gemm, s.attn, s.a2a, s.vec = o, o, o, o
	}
	return s
}

// guard is the number of bytes on either side of an operand that no op may touch.
const guard = 64

// block is one allocation of a case.
type block struct {
	name  string
	p     unsafe.Pointer // start of the allocation
	n     int            // payload bytes
	class Class
	dtype uint32
	width int // elements of a row, for tolerances
	out   bool
}

// Class says how far an output may differ from the reference.
type Class uint8

// Classes, see the package comment.
const (
	Exact Class = iota
	Rounded
	Quantised
	Close
	Spent // an input that the op may overwrite: not compared
)

// maker builds the operands of a case in one space. Both spaces see the same random numbers.
type maker struct {
	*rand.Rand
	s       *space
	acc     uint32
	blocks  []block
	weights []*abi.Weight
	keep    []any // host memory that weights point at
	err     error
}

// Check runs the case on dev and on the reference, compares every output, and then checks that damaged arguments are refused.
func (c Case) Check(dev backend.Device) error {
	if c.opt.Acc == 0 {
		c.opt.Acc = abi.F32
	}
	ref, _, err := c.run(reference(c.opt.Acc))
	if err != nil {
		return fmt.Errorf("%s: reference: %w", c.Name, err)
	}
	sp := deviceSpace(dev)
	got, args, err := c.run(sp)
	defer got.close()
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	var errs []error
	for i := range ref.blocks {
		a, err := ref.read(&ref.blocks[i])
		if err != nil {
			return fmt.Errorf("%s: read back: %w", c.Name, err)
		}
		b, err := got.read(&got.blocks[i])
		if err != nil {
			return fmt.Errorf("%s: read back: %w", c.Name, err)
		}
		if err := compare(&ref.blocks[i], b, a, c.opt.Acc); err != nil {
			errs = append(errs, fmt.Errorf("%s: %s: %w", c.Name, ref.blocks[i].name, err))
		}
	}
	if len(errs) == 0 {
		if err := refusals(sp, args); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", c.Name, err))
		}
	}
	return errors.Join(errs...)
}

// run builds and executes the case in a space.
func (c Case) run(s *space) (*maker, any, error) {
	h := fnv.New64a()
	h.Write([]byte(c.Name))
	m := &maker{Rand: rand.New(rand.NewPCG(h.Sum64(), c.opt.Seed)), s: s, acc: c.opt.Acc}
	args := c.build(m)
	if m.err != nil {
		return m, nil, m.err
	}
	if err := invoke(s, args); err != nil {
		return m, nil, err
	}
	return m, args, s.sync()
}

func (m *maker) close() {
	for _, w := range m.weights {
		m.s.release(w)
	}
	for i := range m.blocks {
		m.s.free(m.blocks[i].p)
	}
}

func (m *maker) read(b *block) ([]byte, error) {
	raw := make([]byte, b.n+2*guard)
	return raw, m.s.download(raw, b.p)
}

// place puts bytes into the space, guarded, and returns the payload's address.
func (m *maker) place(name string, data []byte, dtype uint32, width int, class Class, out bool) unsafe.Pointer {
	raw := make([]byte, len(data)+2*guard)
	for i := range raw {
		raw[i] = 0xA5
	}
	copy(raw[guard:], data)
	p, err := m.s.alloc(int64(len(raw)))
	if err == nil {
		err = m.s.upload(p, raw)
	}
	if err != nil {
		m.err = fmt.Errorf("place %s: %w", name, err)
		p = unsafe.Pointer(unsafe.SliceData(raw))
	}
	m.blocks = append(m.blocks, block{name: name, p: p, n: len(data), class: class, dtype: dtype, width: width, out: out})
	return unsafe.Add(p, guard)
}

func product(d []int) int {
	n := 1
	for _, v := range d {
		n *= v
	}
	return n
}

func dims64(d []int) []int64 {
	v := make([]int64, len(d))
	for i := range d {
		v[i] = int64(d[i])
	}
	return v
}

// tensor places values as a dense operand.
func (m *maker) tensor(name string, dtype uint32, data []byte, d ...int) abi.Tensor {
	return abi.Of(m.place(name, data, dtype, d[len(d)-1], Exact, false), dtype, dims64(d)...)
}

// result places an output whose former content must be overwritten.
func (m *maker) result(name string, dtype uint32, class Class, d ...int) abi.Tensor {
	data := bytes.Repeat([]byte{0x3c}, product(d)*abi.ElemBytes(dtype))
	return abi.Of(m.place(name, data, dtype, d[len(d)-1], class, true), dtype, dims64(d)...)
}

func asBytes[E any](v []E) []byte {
	if len(v) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
}

// gauss is nearly normal: four uniform numbers summed and scaled to variance 1. Adding and multiplying only, so the same on every machine.
func (m *maker) gauss() float64 {
	a, b := m.Uint64(), m.Uint64()
	s := float64(a>>32) + float64(a&math.MaxUint32) + float64(b>>32) + float64(b&math.MaxUint32)
	return (s*0x1p-32 - 2) * 1.7320508075688772
}

// bf16Values makes normal BF16 values with zeros, negative zeros and outliers between them.
func (m *maker) bf16Values(n int, scale float64) []uint16 {
	v := make([]uint16, n)
	for i := range v {
		x := m.gauss() * scale
		switch m.IntN(64) {
		case 0:
			x = 0
		case 1:
			x = math.Copysign(0, -1)
		case 2:
			x *= 16
		}
		v[i] = refop.BF16(x)
	}
	return v
}

func (m *maker) bf16(name string, scale float64, d ...int) abi.Tensor {
	return m.tensor(name, abi.BF16, asBytes(m.bf16Values(product(d), scale)), d...)
}

// f32 makes an F32 operand (a converted weight).
func (m *maker) f32(name string, mean, scale float64, d ...int) abi.Tensor {
	v := make([]float32, product(d))
	for i := range v {
		v[i] = float32(mean + m.gauss()*scale)
	}
	return m.tensor(name, abi.F32, asBytes(v), d...)
}

// accum makes an operand of the accumulation type.
func (m *maker) accum(name string, mean, scale float64, d ...int) abi.Tensor {
	v := make([]float64, product(d))
	for i := range v {
		v[i] = mean + m.gauss()*scale
	}
	return m.accumOf(name, v, d...)
}

func (m *maker) accumOf(name string, v []float64, d ...int) abi.Tensor {
	if m.acc == abi.F64 {
		return m.tensor(name, abi.F64, asBytes(v), d...)
	}
	f := make([]float32, len(v))
	for i := range v {
		f[i] = float32(v[i])
	}
	return m.tensor(name, abi.F32, asBytes(f), d...)
}

func (m *maker) i32(name string, v []int32, d ...int) abi.Tensor {
	return m.tensor(name, abi.I32, asBytes(v), d...)
}

// ints makes integers in [0,limit).
func (m *maker) ints(name string, limit int, d ...int) abi.Tensor {
	v := make([]int32, product(d))
	for i := range v {
		v[i] = int32(m.IntN(limit))
	}
	return m.i32(name, v, d...)
}

// freq makes rotation speeds base^(-i/n).
func (m *maker) freq(n int) abi.Tensor {
	v := make([]float32, n)
	x := float32(1)
	for i := range v {
		v[i] = x
		x *= 0.71
	}
	return m.tensor("freq", abi.F32, asBytes(v), n)
}

// weight makes random weights in an on-disk format. parts > 1 makes a stack.
func (m *maker) weight(name string, format uint32, tile, parts, n, k int) *abi.Weight {
	data, scale := make([]unsafe.Pointer, parts), make([]unsafe.Pointer, parts)
	hold := func(b []byte) unsafe.Pointer {
		w := make([]uint64, len(b)/8+1) // 8-byte aligned
		p := unsafe.Pointer(&w[0])
		copy(unsafe.Slice((*byte)(p), len(b)), b)
		m.keep = append(m.keep, w)
		return p
	}
	codes := func(n int) []byte {
		b := make([]byte, n)
		for i := range b {
			for b[i] = byte(m.Uint32()); b[i]&0x7f == 0x7f; b[i] = byte(m.Uint32()) {
			}
		}
		return b
	}
	scales := func(n int, lo, hi int) []byte {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(lo + m.IntN(hi-lo+1))
		}
		return b
	}
	up := func(a, b int) int { return (a + b - 1) / b }
	for p := range parts {
		switch format {
		case abi.WBF16:
			data[p] = hold(asBytes(m.bf16Values(n*k, 0.1)))
		case abi.WF32:
			v := make([]float32, n*k)
			for i := range v {
				v[i] = float32(m.gauss() * 0.1)
			}
			data[p] = hold(asBytes(v))
		case abi.WFP8Tile:
			data[p], scale[p] = hold(codes(n*k)), hold(scales(up(n, tile)*up(k, tile), 110, 116))
		case abi.WFP8Row:
			data[p], scale[p] = hold(codes(n*k)), hold(scales(n*up(k, tile), 110, 116))
		case abi.WMXFP4:
			b := make([]byte, n*k/2)
			for i := range b {
				b[i] = byte(m.Uint32())
			}
			data[p], scale[p] = hold(b), hold(scales(n*k/32, 119, 124))
		}
	}
	return m.weightOf(name, format, tile, n, k, data, scale)
}

// weightOf wraps bytes that m already holds.
func (m *maker) weightOf(name string, format uint32, tile, n, k int, data, scale []unsafe.Pointer) *abi.Weight {
	m.keep = append(m.keep, data, scale)
	w := &abi.Weight{Format: format, Tile: uint32(tile), Parts: uint32(len(data)), N: int64(n), K: int64(k), Data: unsafe.Pointer(&data[0]),
		Name: abi.Str{Ptr: unsafe.Pointer(unsafe.StringData(name)), Len: uint64(len(name))}}
	w.Size = uint32(unsafe.Sizeof(*w))
	switch format {
	case abi.WFP8Tile, abi.WFP8Row, abi.WMXFP4:
		w.Scale = unsafe.Pointer(&scale[0])
	}
	if err := m.s.prepare(w); err != nil && m.err == nil {
		m.err = fmt.Errorf("prepare %s: %w", name, err)
	}
	m.weights = append(m.weights, w)
	return w
}

// table makes an integer weight.
func (m *maker) table(name string, format uint32, n, k int, v []int64) *abi.Weight {
	b := asBytes(v)
	if format == abi.WI32 {
		s := make([]int32, len(v))
		for i := range v {
			s[i] = int32(v[i])
		}
		b = asBytes(s)
	}
	w := make([]uint64, len(b)/8+1)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), len(b)), b)
	m.keep = append(m.keep, w)
	return m.weightOf(name, format, 0, n, k, []unsafe.Pointer{unsafe.Pointer(&w[0])}, []unsafe.Pointer{nil})
}

// compare holds one operand of the device to the reference, guards included.
func compare(b *block, got, want []byte, acc uint32) error {
	for i := range guard {
		if got[i] != 0xA5 || got[len(got)-1-i] != 0xA5 {
			return fmt.Errorf("wrote outside its %d bytes", b.n)
		}
	}
	if b.class == Spent {
		return nil
	}
	got, want = got[guard:guard+b.n], want[guard:guard+b.n]
	if !b.out || b.class == Exact {
		for i := range want {
			if got[i] != want[i] {
				e := max(abi.ElemBytes(b.dtype), 1)
				if !b.out {
					return fmt.Errorf("input was changed at byte %d", i)
				}
				return fmt.Errorf("element %d (row %d) differs at byte %d: %#02x, reference %#02x", i/e, i/e/max(b.width, 1), i%e, got[i], want[i])
			}
		}
		return nil
	}
	g, w := values(got, b.dtype), values(want, b.dtype)
	differ := 0
	worst, at := 0.0, -1
	for row := 0; row < len(w); row += b.width {
		end := min(row+b.width, len(w))
		top := 0.0
		for _, v := range w[row:end] {
			if a := math.Abs(v); a > top && !math.IsInf(a, 0) {
				top = a
			}
		}
		for i := row; i < end; i++ {
			if g[i] == w[i] || math.IsNaN(g[i]) && math.IsNaN(w[i]) {
				continue
			}
			differ++
			d := math.Abs(g[i] - w[i])
			var limit float64
			switch b.class {
			case Rounded: // one BF16 unit of the larger value, or the noise of the sum where it cancels
				limit = max(math.Max(math.Abs(g[i]), math.Abs(w[i]))*0x1p-7, top*0x1p-14)
			case Quantised: // one step of an E4M3 or E2M1 code at the top of its group
				limit = top * 0.36
			case Close:
				limit = top*0x1p-15 + 1e-30
				if acc == abi.F64 {
					limit = top*0x1p-40 + 1e-300
				}
				if b.dtype == abi.F32 && acc == abi.F64 {
					limit = top * 0x1p-20
				}
			}
			if b.dtype == abi.U8 {
				continue // codes: only their number counts
			}
			if !(d <= limit) && (at < 0 || !(d <= worst)) {
				worst, at = d, i
			}
		}
	}
	if at >= 0 {
		return fmt.Errorf("element %d of row %d is %v, reference %v (%d of %d differ)", at%b.width, at/b.width, g[at], w[at], differ, len(w))
	}
	if b.class != Close {
		if most := 4 + len(w)*3/100; differ > most {
			return fmt.Errorf("%d of %d elements differ, tolerance %d", differ, len(w), most)
		}
	}
	return nil
}

// values reads raw bytes as numbers; U8 operands are compared by code.
func values(b []byte, dtype uint32) []float64 {
	var v []float64
	switch dtype {
	case abi.BF16:
		for i := 0; i < len(b); i += 2 {
			v = append(v, float64(refop.Wide(uint16(b[i])|uint16(b[i+1])<<8)))
		}
	case abi.F32:
		for _, x := range unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4) {
			v = append(v, float64(x))
		}
	case abi.F64:
		v = append(v, unsafe.Slice((*float64)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/8)...)
	default:
		for _, x := range b {
			v = append(v, float64(x))
		}
	}
	return v
}

// refusals damages the arguments one operand at a time; each must give INVALID_ARGUMENT at step scope, and no crash.
func refusals(s *space, args any) error {
	v := reflect.ValueOf(args).Elem()
	if b, ok := args.(*blockArgs); ok {
		v = reflect.ValueOf(&b.AttendArgs).Elem()
	}
	try := func(what string, damage, repair func()) error {
		damage()
		err := invoke(s, args)
		if serr := s.sync(); err == nil {
			err = serr
		}
		repair()
		var be *backend.Error
		switch {
		case err == nil:
			return fmt.Errorf("accepted %s", what)
		case !errors.As(err, &be):
			return fmt.Errorf("%s gave an error without code and scope: %w", what, err)
		case be.Code != abi.InvalidArgument || be.Scope != backend.ScopeStep:
			return fmt.Errorf("%s gave code %d, scope %s; want INVALID_ARGUMENT (3), scope step: %w", what, be.Code, be.Scope, err)
		case be.Msg == "":
			return fmt.Errorf("%s was refused without a message", what)
		}
		return nil
	}
	var errs []error
	for i := range v.NumField() {
		name := v.Type().Field(i).Name
		switch f := v.Field(i).Addr().Interface().(type) {
		case *abi.Tensor:
			if !f.Present() || f.Dim[0] == 0 {
				continue
			}
			old := *f
			back := func() { *f = old }
			errs = append(errs, try(name+" of an unknown dtype", func() { f.DType = 99 }, back))
			errs = append(errs, try(name+" with a negative dimension", func() { f.Dim[0] = -1 }, back))
			errs = append(errs, try(name+" without dimensions", func() { f.Rank = 0 }, back))
			if abi.ElemBytes(f.DType) > 1 {
				errs = append(errs, try(name+" off its alignment", func() { f.Data = unsafe.Add(f.Data, 1) }, back))
			}
		case **abi.Batch:
			if *f == nil {
				continue
			}
			old := *f
			errs = append(errs, try("a batch with more rows than the operands", func() { b := *old; b.Rows++; *f = &b }, func() { *f = old }))
		case **abi.Weight:
			if *f == nil || name == "Tid2eid" {
				continue
			}
			old := *f
			errs = append(errs, try("weight "+name+" absent", func() { *f = nil }, func() { *f = old }))
		}
	}
	return errors.Join(errs...)
}

// invoke calls the op that takes args.
func invoke(s *space, args any) error {
	switch a := args.(type) {
	case *abi.GEMMArgs:
		return s.gemm.GEMM(a)
	case *abi.GEMMGroupedArgs:
		return s.gemm.GEMMGrouped(a)
	case *abi.HeadArgs:
		return s.gemm.Head(a)
	case *abi.KVStoreArgs:
		return s.attn.KVStore(a)
	case *abi.CompressArgs:
		return s.attn.Compress(a)
	case *abi.IndexKeyArgs:
		return s.attn.IndexKey(a)
	case *abi.IndexSelectArgs:
		return s.attn.IndexSelect(a)
	case *abi.AttendArgs:
		return s.attn.Attend(a)
	case *blockArgs:
		return s.attn.AttendBlock(&a.AttendArgs)
	case *abi.DispatchArgs:
		return s.a2a.Dispatch(a)
	case *abi.CombineArgs:
		return s.a2a.Combine(a)
	case *abi.GatherRowsArgs:
		return s.a2a.GatherRows(a)
	case *abi.CollectiveArgs:
		if err := s.a2a.AllGather(a); err != nil {
			return err
		}
		return s.a2a.AllReduce(a)
	case *abi.EmbedArgs:
		return s.vec.Embed(a)
	case *abi.RMSNormArgs:
		return s.vec.RMSNorm(a)
	case *abi.RopeArgs:
		return s.vec.Rope(a)
	case *abi.QuantizeArgs:
		return s.vec.Quantize(a)
	case *abi.HadamardArgs:
		return s.vec.Hadamard(a)
	case *abi.MHCMixArgs:
		return s.vec.MHCMix(a)
	case *abi.MHCCollapseArgs:
		return s.vec.MHCCollapse(a)
	case *abi.MHCExpandArgs:
		return s.vec.MHCExpand(a)
	case *abi.MHCMeanArgs:
		return s.vec.MHCMean(a)
	case *abi.RouterArgs:
		return s.vec.Router(a)
	case *abi.SwigluArgs:
		return s.vec.Swiglu(a)
	case *abi.EngramHashArgs:
		return s.vec.EngramHash(a)
	case *abi.EngramMixArgs:
		return s.vec.EngramMix(a)
	case *abi.MarkovArgs:
		return s.vec.Markov(a)
	case *abi.ConfidenceArgs:
		return s.vec.Confidence(a)
	case *abi.SampleArgs:
		return s.vec.Sample(a)
	case *abi.VerifyArgs:
		return s.vec.Verify(a)
	case *abi.CopyArgs:
		return s.vec.Copy(a)
	case *abi.CastArgs:
		return s.vec.Cast(a)
	case *abi.AddArgs:
		return s.vec.Add(a)
	case *abi.GeluArgs:
		return s.vec.Gelu(a)
	case *abi.VisionAttendArgs:
		return s.vec.VisionAttend(a)
	case *abi.VisionMergeArgs:
		return s.vec.VisionMerge(a)
	}
	return fmt.Errorf("conformance: no call for %T", args)
}

// blockArgs marks the arguments of attend_block, which shares its struct with attend.
type blockArgs struct{ abi.AttendArgs }
