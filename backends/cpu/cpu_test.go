package cpu

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/backends/cpu/cputest"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/conformance"
	"github.com/deepinfer-go/deepinfer/sdk/worker/dl"
)

func library(t testing.TB) *dl.Library {
	t.Helper()
	lib, err := dl.Open(cputest.Build(t), dl.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return lib
}

func open(t testing.TB, config string, threads int) backend.Device {
	t.Helper()
	dev, err := library(t).Open(context.Background(), 0, backend.OpenOptions{Threads: threads, Config: []byte(config)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// variants lists the kernel variants this machine can run.
func variants(t testing.TB) []string {
	list := []string{"generic"}
	infos, err := library(t).Devices(context.Background())
	if err != nil || len(infos) != 1 {
		t.Fatalf("%d devices, %v", len(infos), err)
	}
	if strings.Contains(infos[0].Features, "kernels=avx2") {
		list = append(list, "avx2")
	}
	return list
}

func TestEveryOpAgreesWithTheReference(t *testing.T) {
	for _, v := range variants(t) {
		for acc, dtype := range map[string]uint32{"float32": abi.F32, "float64": abi.F64} {
			t.Run(v+"/"+acc, func(t *testing.T) {
				conformance.Run(t, open(t, `{"cpu":"`+v+`","accumulate":"`+acc+`"}`, 2), conformance.Options{Acc: dtype})
			})
		}
	}
}

func TestOnlyTheEntryPointIsExported(t *testing.T) {
	f, err := elf.Open(cputest.Build(t))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF {
			got = append(got, s.Name)
		}
	}
	if len(got) != 1 || got[0] != "di_backend_v1" {
		t.Fatalf("exported symbols %v, must be di_backend_v1 alone", got)
	}
}

func TestDeviceFacts(t *testing.T) {
	lib := library(t)
	if lib.Name() != "cpu" || lib.Version() == "" || len(lib.Restored()) != 0 {
		t.Fatalf("name %q, version %q, replaced handlers %v", lib.Name(), lib.Version(), lib.Restored())
	}
	info := open(t, "", 0).Info()
	if !info.BatchInvariant || !info.HostMemory || !info.F64 || len(info.Missing) != 0 || info.Cores < 1 || info.MemoryBytes <= 0 || info.MemoryFree <= 0 {
		t.Fatalf("%+v", info)
	}
}

func TestBadConfigurationsAreRefusedWithTheReason(t *testing.T) {
	lib := library(t)
	for config, want := range map[string]string{
		`{"cpu":"sse9"}`:         `this machine has "auto", "generic"`,
		`{"cores":"2"}`:          "unknown key cores",
		`{"accumulate":"half"}`:  `must be "float64" or "float32"`,
		`{"cpu":2}`:              "a string was expected",
		`{"cpu":"auto"`:          "'}' was expected",
		`{"cpu":"auto",}`:        "a key was expected",
		`{"cpu":"auto"} x`:       "text after the object",
		`["cpu"]`:                "'{' was expected",
		`{"cpu"`:                 "':' was expected",
		`{"`:                     "bad string",
		`{"cpu":"auto" "x":"y"}`: "',' or '}' was expected",
	} {
		if dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{Config: []byte(config)}); err == nil {
			dev.Close()
			t.Errorf("%s: accepted", config)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", config, err, want)
		}
	}
	for _, good := range []string{"", "{}", " null ", `{ "cpu" : "generic" }`} {
		if dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{Config: []byte(good)}); err != nil {
			t.Errorf("%q: %v", good, err)
		} else {
			dev.Close()
		}
	}
	if _, err := lib.Open(context.Background(), 1, backend.OpenOptions{}); err == nil || !strings.Contains(err.Error(), "no device 1") {
		t.Errorf("device 1: %v", err)
	}
	if _, err := lib.Open(context.Background(), 0, backend.OpenOptions{Threads: 5000}); err == nil || !strings.Contains(err.Error(), "5000 threads") {
		t.Errorf("5000 threads: %v", err)
	}
}

func TestNoThreadsAreLeftAfterClose(t *testing.T) {
	lib := library(t)
	count := func() int {
		d, err := os.ReadDir("/proc/self/task")
		if err != nil {
			t.Skip("no /proc/self/task here")
		}
		n := 0
		for _, e := range d {
			if name, err := os.ReadFile("/proc/self/task/" + e.Name() + "/comm"); err == nil && strings.TrimSpace(string(name)) == "deepinfer-cpu" {
				n++
			}
		}
		return n
	}
	dev, err := lib.Open(context.Background(), 0, backend.OpenOptions{Threads: 7})
	if err != nil {
		t.Fatal(err)
	}
	for range 1000 { // a new thread names itself
		if count() == 6 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if n := count(); n != 6 {
		t.Errorf("%d helper threads with 7 asked for, want 6", n)
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d helper threads after close", n)
	}
	if err := dev.Sync(); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("sync after close: %v", err)
	}
}

// gemmInput is a product on the device.
type gemmInput struct {
	dev  backend.Device
	w    *abi.Weight
	data []unsafe.Pointer
	raw  []byte
	scl  []byte
	x, y unsafe.Pointer
}

func lcg(s *uint64) uint64 {
	*s = *s*6364136223846793005 + 1442695040888963407
	return *s >> 33
}

// newGEMM makes an FP8 weight and room for rows of input and F32 output.
func newGEMM(t testing.TB, dev backend.Device, n, k, rows int) *gemmInput {
	t.Helper()
	g := &gemmInput{dev: dev, raw: make([]byte, n*k), scl: make([]byte, (n+31)/32*((k+31)/32))}
	seed := uint64(n*7919 + k)
	for i := range g.raw {
		if g.raw[i] = byte(lcg(&seed)); g.raw[i]&0x7f == 0x7f {
			g.raw[i] = 0x3a
		}
	}
	for i := range g.scl {
		g.scl[i] = byte(110 + lcg(&seed)%8)
	}
	g.data = []unsafe.Pointer{unsafe.Pointer(&g.raw[0]), unsafe.Pointer(&g.scl[0])}
	g.w = &abi.Weight{Format: abi.WFP8Tile, Tile: 32, Parts: 1, N: int64(n), K: int64(k), Data: unsafe.Pointer(&g.data[0]), Scale: unsafe.Pointer(&g.data[1])}
	if err := dev.Prepare(g.w); err != nil {
		t.Fatal(err)
	}
	var err error
	if g.x, err = dev.Alloc(int64(rows * k * 2)); err != nil {
		t.Fatal(err)
	}
	if g.y, err = dev.Alloc(int64(rows * n * 4)); err != nil {
		t.Fatal(err)
	}
	x := unsafe.Slice((*uint16)(g.x), rows*k)
	for i := range x {
		x[i] = uint16(0x3f00 + lcg(&seed)%0x180 + lcg(&seed)%2<<15)
	}
	return g
}

func (g *gemmInput) args(rows int) *abi.GEMMArgs {
	return &abi.GEMMArgs{W: g.w, ActGroup: 32, X: abi.Of(g.x, abi.BF16, int64(rows), g.w.K), Y: abi.Of(g.y, abi.F32, int64(rows), g.w.N)}
}

func TestRowsDoNotDependOnTheirBatchNorOnThreadsNorOnTheVariant(t *testing.T) {
	const n, k, rows = 83, 517, 131
	var want []uint32
	for _, v := range variants(t) {
		for _, threads := range []int{1, 3} {
			g := newGEMM(t, open(t, `{"cpu":"`+v+`"}`, threads), n, k, rows)
			if err := g.dev.GEMM().GEMM(g.args(rows)); err != nil {
				t.Fatal(err)
			}
			all := append([]uint32(nil), unsafe.Slice((*uint32)(g.y), rows*n)...)
			if want == nil {
				want = all
			}
			for i := range want {
				if all[i] != want[i] {
					t.Fatalf("%s with %d threads: element %d is %#x, elsewhere %#x", v, threads, i, all[i], want[i])
				}
			}
			x := append([]uint16(nil), unsafe.Slice((*uint16)(g.x), rows*k)...)
			for _, r := range []int{0, 1, 64, 130} {
				copy(unsafe.Slice((*uint16)(g.x), k), x[r*k:(r+1)*k])
				if err := g.dev.GEMM().GEMM(g.args(1)); err != nil {
					t.Fatal(err)
				}
				for i, y := range unsafe.Slice((*uint32)(g.y), n) {
					if y != want[r*n+i] {
						t.Fatalf("%s with %d threads: row %d alone has %#x in column %d, in the batch %#x", v, threads, r, y, i, want[r*n+i])
					}
				}
			}
		}
	}
}

func TestPackedBytesAreReportedAndReturned(t *testing.T) {
	lib := library(t)
	packed := func() (n int) {
		infos, err := lib.Devices(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range strings.Fields(infos[0].Features) {
			fmt.Sscanf(f, "packed_bytes=%d", &n)
		}
		return n
	}
	before := packed()
	g := newGEMM(t, open(t, "", 1), 64, 128, 1)
	if got := packed() - before; got != 0 {
		t.Errorf("%d bytes packed before the first product", got)
	}
	if err := g.dev.GEMM().GEMM(g.args(1)); err != nil {
		t.Fatal(err)
	}
	if got := packed() - before; got != 64*128*2 {
		t.Errorf("%d bytes packed for 64x128 as BF16", got)
	}
	if err := g.dev.Release(g.w); err != nil {
		t.Fatal(err)
	}
	if got := packed() - before; got != 0 {
		t.Errorf("%d bytes packed after release", got)
	}
}

func TestMemory(t *testing.T) {
	dev := open(t, "", 1)
	p, err := dev.Alloc(100)
	if err != nil || uintptr(p)%64 != 0 {
		t.Fatalf("%p, %v", p, err)
	}
	for _, b := range unsafe.Slice((*byte)(p), 100) {
		if b != 0 {
			t.Fatal("memory is not zeroed")
		}
	}
	if err := dev.Upload(p, make([]byte, 129)); err == nil || !strings.Contains(err.Error(), "its memory ends after 128") {
		t.Errorf("upload past the end: %v", err)
	}
	if err := dev.Free(p); err != nil {
		t.Error(err)
	}
	if err := dev.Free(p); err == nil || !strings.Contains(err.Error(), "freed before") {
		t.Errorf("second free: %v", err)
	}
	if _, err := dev.Alloc(1 << 50); err == nil || err.(*backend.Error).Code != abi.ResourceExhausted {
		t.Errorf("2^50 bytes: %v", err)
	}
	if p, err = dev.Alloc(0); err != nil || p == nil {
		t.Errorf("0 bytes: %p, %v", p, err)
	}
}

func TestSlotsAndGranulesOutsideThePoolAreRefused(t *testing.T) {
	dev := open(t, "", 1)
	const d, ring = 32, 4
	pool, err := dev.Alloc(3 * ring * (d + 1)) // rounded up, so the check is against the next slot after that
	if err != nil {
		t.Fatal(err)
	}
	rec, _ := dev.Alloc(d + 1)
	ints := func(v int32) *int32 {
		p, err := dev.Alloc(4)
		if err != nil {
			t.Fatal(err)
		}
		*(*int32)(p) = v
		return (*int32)(p)
	}
	for slot, refused := range map[int32]bool{0: false, 2: false, 3: true, -1: true, 1 << 30: true} {
		b := &abi.Batch{Rows: 1, Seqs: 1, Token: ints(0), Pos: ints(0), Seq: ints(0), Flag: ints(0), SeqFirst: ints(0), SeqRows: ints(1), SeqSlot: ints(slot), SeqLow: ints(0), SeqWrite: ints(0)}
		a := &abi.KVStoreArgs{Batch: b, Rec: abi.Of(rec, abi.U8, 1, d+1),
			Ring: abi.Region{Format: abi.RecA8x32, Base: pool, UnitStride: ring * (d + 1), Rows: ring, RowBytes: d + 1, Ratio: 1, Dim: d}}
		err := dev.Attention().KVStore(a)
		if (err != nil) != refused {
			t.Errorf("slot %d: %v", slot, err)
		}
		if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("state slot %d", slot)) {
			t.Errorf("slot %d: %v does not name it", slot, err)
		}
	}
}

func TestSteadyCallsAllocateNothingInGo(t *testing.T) {
	g := newGEMM(t, open(t, "", 1), 32, 64, 4)
	a := g.args(4)
	f := g.dev.GEMM()
	if n := testing.AllocsPerRun(200, func() {
		if err := f.GEMM(a); err != nil {
			t.Fatal(err)
		}
	}); n > 0 {
		t.Errorf("%v allocations per call", n)
	}
}

// The shapes are those of one decode step of the full model's attention and shared expert, and of the demo model.
func BenchmarkGEMM(b *testing.B) {
	for _, s := range [][3]int{{1280, 5120, 1}, {2304, 5120, 1}, {2304, 5120, 8}, {256, 256, 1}, {2304, 5120, 128}} {
		b.Run(fmt.Sprintf("n=%d/k=%d/rows=%d", s[0], s[1], s[2]), func(b *testing.B) {
			g := newGEMM(b, open(b, "", runtime.NumCPU()), s[0], s[1], s[2])
			a := g.args(s[2])
			if err := g.dev.GEMM().GEMM(a); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.SetBytes(int64(2 * s[0] * s[1]))
			for b.Loop() {
				if err := g.dev.GEMM().GEMM(a); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(s[0])*float64(s[1])*float64(s[2])*2*float64(b.N)/1e9/b.Elapsed().Seconds(), "GFLOP/s")
		})
	}
}
