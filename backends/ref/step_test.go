package ref_test

import (
	"testing"

	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// decodeStep is one new token for each of n sequences at position pos.
func decodeStep(n, pos, nHist int) *program.Step {
	width := pos/model.GranuleTokens + 1
	s := &program.Step{TopN: 3, Rows: program.Batch{TableWidth: width}}
	b := &s.Rows
	for i := range int32(n) {
		b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow = append(b.Token, 5+i), append(b.Pos, int32(pos)), append(b.Seq, i), append(b.Flag, 0), append(b.ImageRow, -1)
		b.SeqFirst, b.SeqRows, b.SeqSlot = append(b.SeqFirst, i), append(b.SeqRows, 1), append(b.SeqSlot, i)
		b.SeqLow, b.SeqWrite = append(b.SeqLow, 0), append(b.SeqWrite, 0)
		for g := range width {
			b.Table = append(b.Table, i*int32(width)+int32(g))
		}
		for range nHist {
			b.Hist, b.HistFlag = append(b.Hist, 9), append(b.HistFlag, 0)
		}
		s.Logits = append(s.Logits, i)
		s.Sampling = append(s.Sampling, abi.Sampling{Seed: 1, Pos: int32(pos + 1), Temperature: 0.7, TopP: 0.9, Forced: -1})
	}
	return s
}

// TestStepDoesNotAllocate holds a whole decode step of each architecture, from the step's arrays to the drawn tokens, to zero allocations.
func TestStepDoesNotAllocate(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4"} {
		t.Run(set, func(t *testing.T) {
			m, err := model.Load(fixture.Dir(t, "model/"+set+"/checkpoint"))
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			g, err := model.NewGraph(m.Config, model.Options{Acc: abi.F32})
			if err != nil {
				t.Fatal(err)
			}
			p, err := plan.Lower(g, program.Bucket{Rows: 4, Seqs: 4, Logits: 4})
			if err != nil {
				t.Fatal(err)
			}
			r, err := backend.NewRunner(open(t, 2, ""), backend.RunnerOptions{Weights: m.Weights, SlotBytes: g.Geometry.SlotBytes, Slots: 4, Granule: g.Geometry.GranuleStride, Granules: 16})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			exe, err := r.Compile(p)
			if err != nil {
				t.Fatal(err)
			}
			step, res := decodeStep(4, 300, g.Geometry.NHist), new(program.Result)
			if err := step.Validate(p, 4, 16, m.Config.VocabSize); err != nil {
				t.Fatal(err)
			}
			run := func() {
				if e := exe.Run(step, res); e != nil {
					err = e
				}
			}
			for range 5 {
				run()
			}
			n := testing.AllocsPerRun(20, run)
			if err != nil {
				t.Fatal(err)
			}
			if n > 0 {
				t.Errorf("%v allocations a step", n)
			}
			if len(res.IDs) != 4 || len(res.TopIDs) != 12 {
				t.Errorf("result %+v", res)
			}
		})
	}
}
