package parity

import (
	"slices"
	"testing"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// TestOps judges float32 devices one op at a time: every op of the demo model gets exactly the inputs of the float64 run, and its output may differ only as
// float32 sums can: floats by 2e-6 of the tensor, BF16 outputs by one rounding step in at most one element of a thousand (and ten), decisions and packed codes by as few.
func TestOps(t *testing.T) {
	for _, d := range serving() {
		t.Run(d.name, func(t *testing.T) {
			a, b := open(t, exact, "demo", "reference"), open(t, d, "demo", "reference")
			ops, wrong, of := 0, 0, 0
			for i, p := range demoPrompts(t) {
				if i%8 != 0 {
					continue
				}
				ids := slices.Concat(p.IDs, p.Greedy)
				errs, err := CompareOps(a, b, ids[:min(len(ids), 160)])
				if err != nil {
					t.Fatal(err)
				}
				for _, e := range errs {
					prog := a.programs[0].prog
					ops++
					switch prog.Buffers[prog.Find(e.Buffer)].DType {
					case abi.BF16:
						wrong, of = wrong+e.Wrong, of+e.Of
						if e.Wrong > e.Of/1000+10 || e.Relative > 2e-3 || e.Largest > 1.0/64 {
							t.Fatalf("%s: op %d %s: %d of %d BF16 elements differ, relative %.2g, largest %.2g", p.ID, e.Op, e.Buffer, e.Wrong, e.Of, e.Relative, e.Largest)
						}
					case abi.F64:
						if e.Relative > 2e-6 {
							t.Fatalf("%s: op %d %s: relative error %.2g", p.ID, e.Op, e.Buffer, e.Relative)
						}
					case abi.F32: // log-probabilities
						if e.Largest > 2e-5 {
							t.Fatalf("%s: op %d %s: largest error %.2g", p.ID, e.Op, e.Buffer, e.Largest)
						}
					default:
						if e.Wrong > e.Of/1000+10 {
							t.Fatalf("%s: op %d %s: %d of %d decisions differ", p.ID, e.Op, e.Buffer, e.Wrong, e.Of)
						}
					}
				}
			}
			t.Logf("%d op outputs, %d of %d BF16 elements one step away", ops, wrong, of)
		})
	}
}
