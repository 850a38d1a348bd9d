package conformance

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
	"github.com/deepinfer-go/deepinfer/sdk/refop"
)

// host is a device over refop in plain memory; tests replace single ops to see that the suite notices.
type host struct {
	*refop.Ops[float32]
	rms    func(*abi.RMSNormArgs) error
	sel    func(*abi.IndexSelectArgs) error
	mul    func(*abi.GEMMArgs) error
	add    func(*abi.AddArgs) error
	sample func(*abi.SampleArgs) error
	store  func(*abi.KVStoreArgs) error
	blocks map[unsafe.Pointer][]byte
}

func newHost() *host {
	return &host{Ops: refop.New[float32](nil), blocks: map[unsafe.Pointer][]byte{}}
}

func (h *host) Info() backend.Info           { return backend.Info{Name: "test", HostMemory: true} }
func (h *host) GEMM() backend.GEMM           { return gemmOf{h, h.Ops} }
func (h *host) Attention() backend.Attention { return attnOf{h, h.Ops} }
func (h *host) AllToAll() backend.AllToAll   { return h.Ops }
func (h *host) Vector() backend.Vector       { return vecOf{h, h.Ops} }
func (h *host) Sync() error                  { return nil }
func (h *host) Close() error                 { return nil }
func (h *host) Alloc(n int64) (unsafe.Pointer, error) {
	b := make([]byte, n+64)
	p := unsafe.Pointer(&b[0])
	p = unsafe.Add(p, (64-uintptr(p)%64)%64)
	h.blocks[p] = b
	return p, nil
}
func (h *host) Free(p unsafe.Pointer) error {
	if _, ok := h.blocks[p]; !ok {
		return errors.New("freed twice")
	}
	delete(h.blocks, p)
	return nil
}
func (h *host) Upload(dst unsafe.Pointer, src []byte) error {
	copy(unsafe.Slice((*byte)(dst), len(src)), src)
	return nil
}
func (h *host) Download(dst []byte, src unsafe.Pointer) error {
	copy(dst, unsafe.Slice((*byte)(src), len(dst)))
	return nil
}

type gemmOf struct {
	h *host
	*refop.Ops[float32]
}

func (g gemmOf) GEMM(a *abi.GEMMArgs) error {
	if g.h.mul != nil {
		return g.h.mul(a)
	}
	return g.Ops.GEMM(a)
}

type attnOf struct {
	h *host
	*refop.Ops[float32]
}

func (g attnOf) IndexSelect(a *abi.IndexSelectArgs) error {
	if g.h.sel != nil {
		return g.h.sel(a)
	}
	return g.Ops.IndexSelect(a)
}

func (g attnOf) KVStore(a *abi.KVStoreArgs) error {
	if g.h.store != nil {
		return g.h.store(a)
	}
	return g.Ops.KVStore(a)
}

type vecOf struct {
	h *host
	*refop.Ops[float32]
}

func (v vecOf) RMSNorm(a *abi.RMSNormArgs) error {
	if v.h.rms != nil {
		return v.h.rms(a)
	}
	return v.Ops.RMSNorm(a)
}

func (v vecOf) Add(a *abi.AddArgs) error {
	if v.h.add != nil {
		return v.h.add(a)
	}
	return v.Ops.Add(a)
}

func (v vecOf) Sample(a *abi.SampleArgs) error {
	if v.h.sample != nil {
		return v.h.sample(a)
	}
	return v.Ops.Sample(a)
}

// failing runs the cases of an op and returns the errors, joined.
func failing(t *testing.T, h *host, op string) string {
	t.Helper()
	cases, err := Cases(Options{Ops: []string{op}})
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) == 0 {
		t.Fatalf("no cases for %s", op)
	}
	var out []string
	for _, c := range cases {
		if err := c.Check(h); err != nil {
			out = append(out, err.Error())
		}
	}
	if len(h.blocks) > 0 {
		t.Errorf("%s: %d blocks were not freed", op, len(h.blocks))
	}
	return strings.Join(out, "\n")
}

// TestSuiteAcceptsTheReference and finds typical mistakes of a backend.
func TestSuiteAcceptsTheReference(t *testing.T) {
	for _, op := range []string{"gemm", "rms_norm", "index_select", "add", "sample", "kv_store"} {
		if s := failing(t, newHost(), op); s != "" {
			t.Errorf("%s: %s", op, s)
		}
	}
}

func TestSuiteFindsMistakes(t *testing.T) {
	ops := refop.New[float32](nil)
	for _, c := range []struct {
		op, want string
		spoil    func(h *host)
	}{
		{"rms_norm", "reference", func(h *host) { // forgets the last row
			h.rms = func(a *abi.RMSNormArgs) error {
				if a.X.Dim[0] > 1 && a.X.DType == abi.BF16 {
					b := *a
					b.X.Dim[0]--
					b.Y.Dim[0]--
					return ops.RMSNorm(&b)
				}
				return ops.RMSNorm(a)
			}
		}},
		{"rms_norm", "outside", func(h *host) { // writes one element too many
			h.rms = func(a *abi.RMSNormArgs) error {
				err := ops.RMSNorm(a)
				if err == nil && a.Y.Dim[0] > 0 {
					*(*uint16)(unsafe.Add(a.Y.Data, 2*a.Y.Len())) = 1
				}
				return err
			}
		}},
		{"rms_norm", "accepted", func(h *host) { // checks nothing
			h.rms = func(a *abi.RMSNormArgs) error {
				if err := ops.RMSNorm(a); err != nil {
					return nil
				}
				return nil
			}
		}},
		{"rms_norm", "without code", func(h *host) { // refuses in its own way
			h.rms = func(a *abi.RMSNormArgs) error {
				if ops.RMSNorm(a) != nil {
					return errors.New("no")
				}
				return nil
			}
		}},
		{"gemm", "reference", func(h *host) { // leaves the input unquantised
			h.mul = func(a *abi.GEMMArgs) error {
				b := *a
				b.ActGroup = 0
				return ops.GEMM(&b)
			}
		}},
		{"gemm", "reference", func(h *host) { // ignores the groups
			h.mul = func(a *abi.GEMMArgs) error {
				b := *a
				if b.Groups > 1 && b.W != nil {
					w := *b.W
					w.K *= int64(b.Groups)
					b.Groups = 1
					if w.K*w.N > a.W.K*a.W.N { // there are not that many weights: use the first block for all
						b.X.Dim[1], b.X.Dim[2] = 1, a.W.K
						b.X.Stride = int64(a.X.Width())
						b.W = a.W
					}
				}
				return ops.GEMM(&b)
			}
		}},
		{"index_select", "differs", func(h *host) { // drops the lowest position of every selection
			h.sel = func(a *abi.IndexSelectArgs) error {
				err := ops.IndexSelect(a)
				if s := abi.Slice[int32](&a.Sel); err == nil && len(s) > 0 {
					s[0]++
				}
				return err
			}
		}},
		{"add", "differs", func(h *host) { // truncates instead of rounding
			h.add = func(a *abi.AddArgs) error {
				if err := ops.Add(a); err != nil {
					return err
				}
				x, b, y := abi.Slice[uint16](&a.A), abi.Slice[uint16](&a.B), abi.Slice[uint16](&a.Y)
				for i := range y {
					s := refop.Wide(x[i]) + refop.Wide(b[i])
					y[i] = uint16(*(*uint32)(unsafe.Pointer(&s)) >> 16)
				}
				return nil
			}
		}},
		{"sample", "differs", func(h *host) { // draws with the next position's noise
			h.sample = func(a *abi.SampleArgs) error {
				if a.Params == nil || a.Logits.Dim[0] < 1 || a.Logits.Dim[0] > 1000 {
					return ops.Sample(a)
				}
				p := append([]abi.Sampling(nil), unsafe.Slice(a.Params, a.Logits.Dim[0])...)
				for i := range p {
					p[i].Pos++
				}
				b := *a
				b.Params = &p[0]
				return ops.Sample(&b)
			}
		}},
		{"kv_store", "differs", func(h *host) { // stores rows below the bound too
			h.store = func(a *abi.KVStoreArgs) error {
				if a.Batch == nil || a.Batch.Seqs == 0 {
					return ops.KVStore(a)
				}
				low := make([]int32, a.Batch.Seqs)
				b, bt := *a, *a.Batch
				bt.SeqLow = &low[0]
				b.Batch = &bt
				return ops.KVStore(&b)
			}
		}},
	} {
		h := newHost()
		c.spoil(h)
		if s := failing(t, h, c.op); !strings.Contains(s, c.want) {
			t.Errorf("%s: the suite says %q, want something with %q", c.op, s, c.want)
		}
	}
}

// TestInvarianceFindsSplits runs the check on a device that adds differently when it has one row.
func TestInvarianceFindsSplits(t *testing.T) {
	if err := Invariance(newHost(), Options{}); err != nil {
		t.Fatal(err)
	}
	h := newHost()
	h.mul = func(a *abi.GEMMArgs) error {
		err := h.Ops.GEMM(a)
		if a.Y.Dim[0] == 1 && a.Y.DType == abi.F32 { // one unit in the last place of one value
			*(*uint32)(unsafe.Add(a.Y.Data, 40)) ^= 1
		}
		return err
	}
	if err := Invariance(h, Options{}); err == nil || !strings.Contains(err.Error(), "gemm fp8: row 0 has other bits in a call of 1 rows") {
		t.Errorf("error %v", err)
	}
	if len(h.blocks) > 0 {
		t.Errorf("%d blocks were not freed", len(h.blocks))
	}
}

func TestUnknownOp(t *testing.T) {
	if _, err := Cases(Options{Ops: []string{"gem"}}); err == nil || !strings.Contains(err.Error(), `"gem"`) {
		t.Errorf("error %v", err)
	}
}

// TestEveryOpHasCases holds the list to the op set: an op without cases cannot be claimed.
func TestEveryOpHasCases(t *testing.T) {
	have := map[string]int{}
	names := map[string]bool{}
	for _, c := range all() {
		have[c.Op]++
		if names[c.Name] {
			t.Errorf("two cases are called %q", c.Name)
		}
		names[c.Name] = true
	}
	have["all_reduce"] = have["all_gather"] // run together
	for _, op := range opNames() {
		if have[op] == 0 {
			t.Errorf("op %s has no case", op)
		}
	}
}

func opNames() []string {
	var out []string
	for _, s := range program.Signatures {
		if s.Name != "" {
			out = append(out, s.Name)
		}
	}
	return out
}
