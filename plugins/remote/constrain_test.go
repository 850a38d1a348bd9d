//go:build linux

package remote

import (
	"context"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/plugins/internal/tiny"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

// TestMasksAndBiasesCrossToTheWorker sends the largest tables that the bucket allows, then a small step, then one without any.
func TestMasksAndBiasesCrossToTheWorker(t *testing.T) {
	e, id := load(t, options("ref"))
	p := tiny.Program(8)
	tokens := []int32{1, 2, 3, 4, 5, 6, 7, 8}
	for seq, full := range []bool{true, false} {
		s := tiny.Step(uint64(seq+1), id, 0, tokens...)
		s.MaskWords = tiny.Vocab / 32
		want := make([]int32, len(tokens))
		for i, tok := range tokens {
			next := tiny.Next(tok)
			switch i % 4 {
			case 0: // one other id is allowed
				want[i] = (next + 1) % tiny.Vocab
				s.Masks = append(s.Masks, 0, 0)
				s.Masks[len(s.Masks)-2+int(want[i])/32] |= 1 << (want[i] % 32)
				s.Sampling[i].Mask = int32(len(s.Masks) / s.MaskWords)
			case 1: // the best is blocked and another id lifted
				want[i] = (next + 2) % tiny.Vocab
				s.Sampling[i].BiasFirst, s.Sampling[i].BiasCount = int32(len(s.Biases)), 2
				s.Biases = append(s.Biases, abi.Block(next), abi.Bias{Id: want[i], Add: 0.5})
			case 2: // nothing is allowed
				want[i] = -1
				s.Masks = append(s.Masks, 0, 0)
				s.Sampling[i].Mask = int32(len(s.Masks) / s.MaskWords)
			default:
				want[i] = next
			}
		}
		if full {
			s.Masks = append(s.Masks, make([]uint32, s.MaskWords*p.Bucket.MaskRows()-len(s.Masks))...)
			for len(s.Biases) < p.Bucket.Biases() {
				s.Biases = append(s.Biases, abi.Repeat(int32(len(s.Biases)%tiny.Vocab), 1.5))
			}
		}
		if err := e.Submit(s); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		r, err := e.Wait(ctx)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range want {
			if r.IDs[i] != w {
				t.Errorf("step %d row %d: id %d, want %d", seq, i, r.IDs[i], w)
			}
			if next := tiny.Next(tokens[i]); r.TopIDs[i*tiny.TopN] != next {
				t.Errorf("step %d row %d: best candidate %d, want %d whatever the mask", seq, i, r.TopIDs[i*tiny.TopN], next)
			}
		}
	}
	run(t, e, tiny.Step(3, id, 0, 1, 2))
	bad := tiny.Step(4, id, 0, 1)
	bad.Sampling[0].Mask = 1
	if err := e.Submit(bad); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(context.Background()); err == nil {
		t.Error("a mask that is not there was accepted")
	}
	run(t, e, tiny.Step(5, id, 0, 1, 2))
}
