package ref_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/conformance"
)

func open(t testing.TB, threads int, config string) backend.Device {
	t.Helper()
	d, err := ref.New().Open(context.Background(), 0, backend.OpenOptions{Threads: threads, Config: []byte(config)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestConformance(t *testing.T) {
	conformance.Run(t, open(t, 3, ""), conformance.Options{})
}

func TestConformanceFloat64(t *testing.T) {
	conformance.Run(t, open(t, 2, `{"accumulate":"float64"}`), conformance.Options{Acc: abi.F64})
}

func TestOpenRefusesNonsense(t *testing.T) {
	for _, c := range []struct {
		index   int
		threads int
		config  string
		want    string
	}{
		{1, 0, "", "index 0"},
		{0, -1, "", "threads"},
		{0, 5000, "", "threads"},
		{0, 0, `{"accumulate":"float16"}`, "float64"},
		{0, 0, `{"accumulte":"float64"}`, "known keys: accumulate"},
		{0, 0, `{} x`, "after the object"},
		{0, 0, `[`, "config ["},
	} {
		d, err := ref.New().Open(context.Background(), c.index, backend.OpenOptions{Threads: c.threads, Config: []byte(c.config)})
		if err == nil {
			d.Close()
			t.Errorf("index %d, %d threads, config %q: opened", c.index, c.threads, c.config)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("index %d, %d threads, config %q: error %q does not mention %q", c.index, c.threads, c.config, err, c.want)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := ref.New().Open(ctx, 0, backend.OpenOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled context gave %v", err)
	}
}

func TestInfo(t *testing.T) {
	infos, err := ref.New().Devices(context.Background())
	if err != nil || len(infos) != 1 {
		t.Fatalf("%v, %v", infos, err)
	}
	i := open(t, 2, `{"accumulate":"float64"}`).Info()
	if !i.BatchInvariant || !i.HostMemory || !i.F64 || i.Cores != 2 || len(i.Missing) != 0 {
		t.Errorf("info %+v", i)
	}
	if open(t, 1, "").Info().F64 {
		t.Error("a float32 device claims float64 accumulation")
	}
}

func TestCloseLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		d, err := ref.New().Open(context.Background(), 0, backend.OpenOptions{Threads: 8})
		if err != nil {
			t.Fatal(err)
		}
		if runtime.NumGoroutine() < before+7 {
			t.Error("no workers were started")
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Errorf("second close: %v", err)
		}
		if _, err := d.Alloc(1); err == nil {
			t.Error("a closed device allocates")
		}
		if err := d.Sync(); err == nil {
			t.Error("a closed device syncs")
		}
	}
	for range 1000 { // Close waits for the workers' last statement, not for the runtime to reap them
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, before %d", runtime.NumGoroutine(), before)
}

func TestMemory(t *testing.T) {
	d := open(t, 1, "")
	var p []unsafe.Pointer
	for _, n := range []int64{0, 1, 63, 64, 65, 1 << 20} {
		q, err := d.Alloc(n)
		if err != nil || q == nil || uintptr(q)%64 != 0 {
			t.Fatalf("alloc %d: %p, %v", n, q, err)
		}
		b := make([]byte, n)
		if err := d.Download(b, q); err != nil || slices.Max(append(b, 0)) != 0 {
			t.Errorf("%d bytes are not zero, %v", n, err)
		}
		for i := range b {
			b[i] = byte(i*7 + 1)
		}
		if err := d.Upload(q, b); err != nil {
			t.Error(err)
		}
		c := make([]byte, n)
		if err := d.Download(c, q); err != nil || !slices.Equal(b, c) {
			t.Errorf("%d bytes came back changed, %v", n, err)
		}
		p = append(p, q)
	}
	for _, q := range p {
		if err := d.Free(q); err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"second free":       d.Free(p[0]),
		"free of NULL":      d.Free(nil),
		"upload to NULL":    d.Upload(nil, []byte{1}),
		"download of NULL":  d.Download([]byte{1}, nil),
		"negative alloc":    second(d.Alloc(-1)),
		"monstrous alloc":   second(d.Alloc(1 << 50)),
		"weight of nothing": d.Prepare(&abi.Weight{}),
		"no weight":         d.Prepare(nil),
	} {
		var be *backend.Error
		if !errors.As(err, &be) {
			t.Errorf("%s gave %v", what, err)
		}
	}
}

func second(_ unsafe.Pointer, err error) error { return err }

// gemm is a product of t rows big enough to be split over workers.
type gemm struct {
	args abi.GEMMArgs
	x    []uint16
	y    []float32
}

func newGEMM(d backend.Device, rows int) (*gemm, error) {
	const n, k = 259, 256
	w := make([]uint16, n*k)
	g := &gemm{x: make([]uint16, rows*k), y: make([]float32, rows*n)}
	s := uint32(1)
	fill := func(v []uint16) {
		for i := range v {
			s = s*1664525 + 1013904223
			v[i] = uint16(s>>16)&0x83ff | 0x3c00 // magnitudes around 0.01
		}
	}
	fill(w)
	fill(g.x)
	data := []unsafe.Pointer{unsafe.Pointer(&w[0])}
	wt := &abi.Weight{Format: abi.WBF16, Parts: 1, N: n, K: k, Data: unsafe.Pointer(&data[0])}
	g.args = abi.GEMMArgs{Groups: 1, ActGroup: 32, W: wt, X: abi.Of(unsafe.Pointer(&g.x[0]), abi.BF16, int64(rows), k), Y: abi.Of(unsafe.Pointer(&g.y[0]), abi.F32, int64(rows), n)}
	return g, d.Prepare(wt)
}

// TestThreadsAndBatchDoNotMatter runs the same rows with other threads and beside other rows: every bit must be equal (level d1).
func TestThreadsAndBatchDoNotMatter(t *testing.T) {
	var want []float32
	for _, threads := range []int{1, 2, 3, 7} {
		d := open(t, threads, "")
		g, err := newGEMM(d, 13)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.GEMM().GEMM(&g.args); err != nil {
			t.Fatal(err)
		}
		if want == nil {
			want = slices.Clone(g.y)
		} else if !slices.Equal(g.y, want) {
			t.Errorf("%d threads give other values", threads)
		}
		for row := range 13 { // each row alone
			one := g.args
			one.X.Data, one.X.Dim[0], one.Y.Dim[0] = unsafe.Pointer(&g.x[row*256]), 1, 1
			if err := d.GEMM().GEMM(&one); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(g.y[:259], want[row*259:(row+1)*259]) {
				t.Errorf("%d threads: row %d alone gives other values", threads, row)
			}
		}
	}
}

// TestOpsDoNotAllocate holds a call on the step path to zero allocations once its scratch has grown.
func TestOpsDoNotAllocate(t *testing.T) {
	d := open(t, 2, "")
	g, err := newGEMM(d, 16)
	if err != nil {
		t.Fatal(err)
	}
	h, out := make([]uint16, 16*4*256), make([]uint16, 16*256)
	mean := &abi.MHCMeanArgs{H: abi.Of(unsafe.Pointer(&h[0]), abi.BF16, 16, 4, 256), X: abi.Of(unsafe.Pointer(&out[0]), abi.BF16, 16, 256)}
	var failed error
	run := func() {
		if err := d.GEMM().GEMM(&g.args); err != nil {
			failed = err
		}
		if err := d.Vector().MHCMean(mean); err != nil {
			failed = err
		}
	}
	run()
	run()
	if n := testing.AllocsPerRun(50, run); n > 0 {
		t.Errorf("%v allocations a run", n)
	}
	if failed != nil {
		t.Fatal(failed)
	}
}
