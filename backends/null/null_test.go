package null_test

import (
	"context"
	"testing"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

func open(t *testing.T) backend.Device {
	t.Helper()
	d, err := null.New().Open(context.Background(), 0, backend.OpenOptions{Config: []byte(" {} ")})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSampleDependsOnTheKeyAlone(t *testing.T) {
	d := open(t)
	defer d.Close()
	params := []abi.Sampling{{Seed: 1, Pos: 5, Forced: -1}, {Seed: 2, Pos: 5, Forced: -1}, {Seed: 1, Pos: 6, Forced: -1}, {Seed: 1, Pos: 5, Forced: 42}, {Seed: 1, Pos: 5, Forced: -1}}
	ids, lp := make([]int32, 5), make([]float32, 5)
	top, topLP := make([]int32, 15), make([]float32, 15)
	p := func(v []float32) unsafe.Pointer { return unsafe.Pointer(&v[0]) }
	a := &abi.SampleArgs{TopN: 3, Params: &params[0], Logits: abi.Of(nil, abi.F32, 5, 1000), Ids: abi.Of(unsafe.Pointer(&ids[0]), abi.I32, 5),
		Logprob: abi.Of(p(lp), abi.F32, 5), TopIds: abi.Of(unsafe.Pointer(&top[0]), abi.I32, 5, 3), TopLogprob: abi.Of(p(topLP), abi.F32, 5, 3)}
	if err := d.Vector().Sample(a); err != nil {
		t.Fatal(err)
	}
	if ids[0] != ids[4] || ids[0] == ids[1] || ids[0] == ids[2] || ids[3] != 42 {
		t.Errorf("ids %v: rows 0 and 4 have the same key, 1 another seed, 2 another position, 3 is forced to 42", ids)
	}
	if top[0] != ids[0] || top[1] != (ids[0]+1)%1000 || lp[0] >= 0 || topLP[14] != lp[0] {
		t.Errorf("top %v, log-probabilities %v %v", top, lp, topLP)
	}
	seen := map[int32]int{}
	for pos := range int32(5000) {
		seen[null.Token(abi.Sampling{Seed: 7, Pos: pos, Forced: -1}, 1000)]++
	}
	if len(seen) < 950 {
		t.Errorf("5000 positions hit %d of 1000 tokens", len(seen))
	}
}

func TestVerifyCompares(t *testing.T) {
	ids, draft := []int32{1, 2, 3, 9, 4}, []int32{1, 2, 7, 9, 5, 5}
	count, first, out := []int32{3, 1}, []int32{0, 3}, make([]int32, 2)
	i32 := func(v []int32, d ...int64) abi.Tensor { return abi.Of(unsafe.Pointer(&v[0]), abi.I32, d...) }
	d := open(t)
	defer d.Close()
	a := &abi.VerifyArgs{Ids: i32(ids, 5), Draft: i32(draft, 2, 3), Count: i32(count, 2), First: i32(first, 2), Accepted: i32(out, 2)}
	if err := d.Vector().Verify(a); err != nil || out[0] != 2 || out[1] != 1 {
		t.Errorf("accepted %v, error %v; want 2 and 1", out, err)
	}
	count[1] = 3
	if err := d.Vector().Verify(a); err == nil {
		t.Error("three drafts from row 3 of 5 were accepted")
	}
}

func TestMemory(t *testing.T) {
	d := open(t)
	p, err := d.Alloc(100)
	if err != nil || uintptr(p)%64 != 0 {
		t.Fatalf("alloc: %p, %v", p, err)
	}
	b := make([]byte, 3)
	if err := d.Upload(p, []byte{1, 2, 3}); err != nil {
		t.Fatal(err)
	}
	if err := d.Download(b, p); err != nil || b[2] != 3 {
		t.Errorf("read %v, %v", b, err)
	}
	if err := d.Free(p); err != nil {
		t.Error(err)
	}
	if err := d.Free(p); err == nil {
		t.Error("a second free was accepted")
	}
	if _, err := d.Alloc(-1); err == nil {
		t.Error("-1 bytes were allocated")
	}
	d.Close()
	if _, err := d.Alloc(1); err == nil {
		t.Error("a closed device allocates")
	}
	if _, err := null.New().Open(context.Background(), 1, backend.OpenOptions{}); err == nil {
		t.Error("device 1 was opened")
	}
}
