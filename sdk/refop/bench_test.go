package refop

import (
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// BenchmarkGEMM measures one core at the shapes of the demo model: one row (decode) and 64 rows (prefill).
func BenchmarkGEMM(b *testing.B) {
	for _, rows := range []int{1, 64} {
		b.Run(map[int]string{1: "decode", 64: "prefill"}[rows], func(b *testing.B) {
			const n, k = 512, 256
			w, x, y := make([]uint16, n*k), make([]uint16, rows*k), make([]uint16, rows*n)
			for i := range w {
				w[i] = BF16(float32(i%13) * 0.01)
			}
			for i := range x {
				x[i] = BF16(float32(i%11) * 0.1)
			}
			p := unsafe.Pointer(&w[0])
			wt := &abi.Weight{Format: abi.WBF16, Parts: 1, N: n, K: k, Data: unsafe.Pointer(&p)}
			o := New[float32](nil)
			if err := o.Prepare(wt); err != nil {
				b.Fatal(err)
			}
			a := &abi.GEMMArgs{ActGroup: 32, W: wt, X: of(abi.BF16, x, int64(rows), k), Y: of(abi.BF16, y, int64(rows), n)}
			b.ReportAllocs()
			for b.Loop() {
				if err := o.GEMM(a); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*float64(rows)*n*k/b.Elapsed().Seconds()/1e9, "GMAC/s")
		})
	}
}
