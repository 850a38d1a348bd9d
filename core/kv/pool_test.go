package kv

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func newPool(t *testing.T, granules, slots int) *Pool {
	t.Helper()
	p, err := NewPool(Options{Granules: granules, Slots: slots, GranuleTokens: 4})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestOptionsNameEveryBadSetting(t *testing.T) {
	_, err := NewPool(Options{Granules: 0, Slots: -3, GranuleTokens: -1})
	for _, want := range []string{"granules 0", "slots -3", "granule tokens -1"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %q", err, want)
		}
	}
}

func TestReservationIsACounterAndBindingCannotFail(t *testing.T) {
	p := newPool(t, 5, 3)
	var a, b, c Lease
	if !p.Admit(&a, 9) || !p.Admit(&b, 8) {
		t.Fatal("3 + 2 granules do not fit into 5")
	}
	if len(a.Table()) != 0 || p.Available() != 0 {
		t.Fatalf("table %v, available %d: want empty and 0", a.Table(), p.Available())
	}
	if p.Admit(&c, 1) || c.Held() || c.Slot() != -1 {
		t.Fatal("a sixth granule was promised")
	}
	p.Cover(&a, 1)
	p.Cover(&b, 8)
	p.Cover(&a, 9)
	if got := p.Stats(); got.FreeGranules != 0 || got.Promised != 0 || got.FreeSlots != 1 {
		t.Fatalf("stats %+v", got)
	}
	seen := map[int32]bool{}
	for _, g := range append(append([]int32{}, a.Table()...), b.Table()...) {
		if seen[g] {
			t.Fatalf("granule %d handed out twice", g)
		}
		seen[g] = true
	}
	p.Free(&a)
	p.Free(&a) // holds nothing: no effect
	if !p.Admit(&c, 12) {
		t.Fatal("freed granules are not available")
	}
	if err := p.Check([]*Lease{&a, &b, &c}); err != nil {
		t.Fatal(err)
	}
}

func TestCoverBeyondThePromisePanics(t *testing.T) {
	p := newPool(t, 8, 1)
	var l Lease
	p.Admit(&l, 4)
	defer func() {
		if r := recover(); r == nil || !strings.Contains(r.(string), "5 tokens need 2 granules") {
			t.Errorf("panic %v", r)
		}
	}()
	p.Cover(&l, 5)
}

func TestExtendAsksForTheDifference(t *testing.T) {
	p := newPool(t, 4, 2)
	var a, b Lease
	p.Admit(&a, 4)
	p.Admit(&b, 8)
	if !p.Extend(&a, 8) || p.Extend(&a, 9) || a.Promised() != 2 {
		t.Fatalf("promise %d of pool %+v", a.Promised(), p.Stats())
	}
}

func TestSharedGranulesAreFreedByTheLastHolder(t *testing.T) {
	p := newPool(t, 6, 2)
	var a, b Lease
	p.Admit(&a, 12)
	p.Cover(&a, 12)
	p.Admit(&b, 12)
	if err := p.Share(&b, a.Table()[:2]); err != nil {
		t.Fatal(err)
	}
	if b.Promised() != 1 || p.Available() != 2 {
		t.Fatalf("promised %d, available %d; want 1 and 2", b.Promised(), p.Available())
	}
	p.Free(&a)
	if err := p.Check([]*Lease{&a, &b}); err != nil {
		t.Fatal(err)
	}
	if got := p.Stats().FreeGranules; got != 4 {
		t.Fatalf("%d free granules while two are shared, want 4", got)
	}
	p.Free(&b)
	if got := p.Stats().FreeGranules; got != 6 {
		t.Fatalf("%d free granules at the end, want 6", got)
	}
	var c Lease
	p.Admit(&c, 4)
	if err := p.Share(&c, []int32{0}); err == nil {
		t.Error("a free granule was shared")
	}
}

func TestRandomOperationsKeepTheBooks(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, seed))
	p := newPool(t, 24, 6)
	leases := make([]*Lease, 8)
	want := make([]int, 8) // tokens reserved
	for i := range leases {
		leases[i] = new(Lease)
	}
	for op := range 20000 {
		i := r.IntN(len(leases))
		l := leases[i]
		switch {
		case !l.Held():
			if n := 1 + r.IntN(40); p.Admit(l, n) {
				want[i] = n
				if j := r.IntN(len(leases)); r.IntN(3) == 0 && j != i && leases[j].Held() {
					from := leases[j].Table()
					if err := p.Share(l, from[:min(len(from), p.Need(n))]); err != nil {
						t.Fatal(err)
					}
				}
			}
		case r.IntN(3) == 0:
			p.Free(l)
		default:
			p.Cover(l, r.IntN(want[i]+1))
		}
		if err := p.Check(leases); err != nil {
			t.Fatalf("seed %d, operation %d: %v", seed, op, err)
		}
	}
	for _, l := range leases {
		p.Free(l)
	}
	if s := p.Stats(); s.FreeGranules != 24 || s.FreeSlots != 6 || s.Promised != 0 {
		t.Fatalf("leaked: %+v", s)
	}
}

func TestCheckFindsBrokenBooks(t *testing.T) {
	p := newPool(t, 4, 2)
	var l Lease
	p.Admit(&l, 8)
	p.Cover(&l, 8)
	p.refs[l.granules[0]]++
	if err := p.Check([]*Lease{&l}); err == nil || !strings.Contains(err.Error(), "INV-8") {
		t.Errorf("error %v, want INV-8", err)
	}
	p.refs[l.granules[0]]--
	p.free = append(p.free, l.granules[0])
	if err := p.Check([]*Lease{&l}); err == nil || !strings.Contains(err.Error(), "INV-8") {
		t.Errorf("error %v, want INV-8", err)
	}
}
