package refop

import (
	"unsafe"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// Dispatch implements backend.AllToAll for one rank.
func (o *Ops[F]) Dispatch(a *abi.DispatchArgs) error {
	c := checker{op: "dispatch"}
	c.group(a.Group)
	t, k, e := int(a.Ids.Dim[0]), int(a.Ids.Dim[1]), int(a.Experts)
	h := int(a.X.Dim[1])
	c.shape("ids", &a.Ids, abi.I32, t, k)
	c.shape("x", &a.X, abi.BF16, t, h)
	c.shape("xg", &a.Xg, abi.BF16, t*k, h)
	c.flat("order", &a.Order, abi.I32, t*k)
	c.flat("offs", &a.Offs, abi.I32, e+1)
	if c.err != nil {
		return c.err
	}
	offs := abi.Slice[int32](&a.Offs)
	clear(offs)
	if t*k == 0 {
		return nil
	}
	for r := range t {
		for s, id := range row[int32](&a.Ids, r) {
			if id < 0 || int(id) >= e {
				return fault("dispatch", "ids[%d,%d] is expert %d of %d", r, s, id, e)
			}
			offs[id+1]++
		}
	}
	for i := range e {
		offs[i+1] += offs[i]
	}
	o.a.reset()
	next := o.a.ints(e)
	copy(next, offs)
	order := abi.Slice[int32](&a.Order)
	for r := range t {
		for s, id := range row[int32](&a.Ids, r) {
			order[next[id]] = int32(r*k + s)
			next[id]++
		}
	}
	for i, p := range order {
		copy(row[uint16](&a.Xg, i), row[uint16](&a.X, int(p)/k))
	}
	return nil
}

// Combine implements backend.AllToAll for one rank.
func (o *Ops[F]) Combine(a *abi.CombineArgs) error {
	c := checker{op: "combine"}
	c.group(a.Group)
	t, k, h := int(a.Ids.Dim[0]), int(a.Ids.Dim[1]), int(a.Y.Dim[1])
	c.shape("ids", &a.Ids, abi.I32, t, k)
	c.shape("y", &a.Y, abi.BF16, t, h)
	c.shape("yg", &a.Yg, abi.BF16, t*k, h)
	c.flat("order", &a.Order, abi.I32, t*k)
	if a.Shared.Present() {
		c.shape("shared", &a.Shared, abi.BF16, t, h)
	}
	if a.Mode > abi.CombineSlot {
		c.fail("unknown mode %d", a.Mode)
	}
	if c.err != nil || t == 0 {
		return c.err
	}
	o.a.reset()
	inv := o.a.ints(t * k)
	for i := range inv {
		inv[i] = -1
	}
	for i, p := range abi.Slice[int32](&a.Order) {
		if p < 0 || int(p) >= t*k || inv[p] >= 0 {
			return fault("combine", "order[%d] is %d: must be a permutation of 0 to %d", i, p, t*k-1)
		}
		inv[p] = int32(i)
	}
	o.loop = loopJob[F]{o: o, op: loopCombine, p: unsafe.Pointer(a), n: inv}
	o.do(t, k*h, &o.loop)
	return nil
}

func (j *loopJob[F]) combine(sc *scratch[F], i int) {
	a := (*abi.CombineArgs)(j.p)
	k, h := int(a.Ids.Dim[1]), int(a.Y.Dim[1])
	acc := sc.floats(h)
	clear(acc)
	if a.Mode == abi.CombineSlot && a.Shared.Present() {
		widen(acc, row[uint16](&a.Shared, i))
	}
	slots := sc.ints(k)
	for s := range slots {
		slots[s] = int32(s)
	}
	if a.Mode == abi.CombineExpert { // by ascending expert id, stable
		ids := row[int32](&a.Ids, i)
		for s := 1; s < k; s++ {
			for q := s; q > 0 && ids[slots[q]] < ids[slots[q-1]]; q-- {
				slots[q], slots[q-1] = slots[q-1], slots[q]
			}
		}
	}
	for _, s := range slots {
		for q, v := range row[uint16](&a.Yg, int(j.n[i*k+int(s)])) {
			acc[q] += F(Wide(v))
		}
	}
	if a.Mode == abi.CombineExpert && a.Shared.Present() {
		for q, v := range row[uint16](&a.Shared, i) {
			acc[q] += F(Wide(v))
		}
	}
	narrow(row[uint16](&a.Y, i), acc)
}

// GatherRows implements backend.AllToAll for one rank.
func (o *Ops[F]) GatherRows(a *abi.GatherRowsArgs) error {
	c := checker{op: "gather_rows"}
	c.group(a.Group)
	c.weight("w", a.W)
	if c.err != nil {
		return c.err
	}
	t, n := int(a.Ids.Dim[0]), int(a.Ids.Dim[1])
	c.shape("ids", &a.Ids, abi.I32, t, n)
	c.shape("y", &a.Y, abi.BF16, t, n*int(a.W.K))
	if c.err != nil || t == 0 {
		return c.err
	}
	for r := range t {
		for i, id := range row[int32](&a.Ids, r) {
			if id < 0 || int64(id) >= a.W.N {
				return fault("gather_rows", "ids[%d,%d] is row %d of %d", r, i, id, a.W.N)
			}
		}
	}
	o.loop = loopJob[F]{o: o, op: loopGather, p: unsafe.Pointer(a)}
	o.do(t, n*int(a.W.K)*2, &o.loop)
	return nil
}

func (j *loopJob[F]) gather(sc *scratch[F], i int) {
	a := (*abi.GatherRowsArgs)(j.p)
	k := int(a.W.K)
	tmp := sc.floats(k)
	y := row[uint16](&a.Y, i)
	for q, id := range row[int32](&a.Ids, i) {
		decodeRow(tmp, a.W, 0, int64(id))
		narrow(y[q*k:(q+1)*k], tmp)
	}
}

// AllGather implements backend.AllToAll for one rank: a copy.
func (o *Ops[F]) AllGather(a *abi.CollectiveArgs) error { return o.collective("all_gather", a) }

// AllReduce implements backend.AllToAll for one rank: a copy.
func (o *Ops[F]) AllReduce(a *abi.CollectiveArgs) error { return o.collective("all_reduce", a) }

func (o *Ops[F]) collective(op string, a *abi.CollectiveArgs) error {
	c := checker{op: op}
	c.group(a.Group)
	c.sameShape(&a.X, &a.Y)
	if c.err != nil || a.X.Dim[0] == 0 {
		return c.err
	}
	for i := range int(a.X.Dim[0]) {
		copyRow(&a.Y, i, &a.X, i)
	}
	return nil
}

func (c *checker) group(g unsafe.Pointer) {
	if g != nil && c.err == nil {
		c.err = &backend.Error{Code: abi.Unimplemented, Scope: backend.ScopeProgram, Op: c.op, Msg: "exchange between ranks: this backend has one rank"}
	}
}

// sameShape checks that x and y have the same dtype and dimensions.
func (c *checker) sameShape(x, y *abi.Tensor) {
	if c.err != nil {
		return
	}
	if abi.ElemBytes(x.DType) == 0 || x.DType != y.DType || x.Rank != y.Rank || x.Rank < 1 || x.Rank > 4 {
		c.fail("x is %s of rank %d, y %s of rank %d: must be equal", dtypeName(x.DType), x.Rank, dtypeName(y.DType), y.Rank)
		return
	}
	c.rows("x", x, x.DType)
	c.rows("y", y, y.DType)
	for i := range int(x.Rank) {
		if x.Dim[i] != y.Dim[i] {
			c.fail("dimension %d of x is %d, of y %d: must be equal", i, x.Dim[i], y.Dim[i])
		}
	}
}

// copyRow copies one row of dim 0 between operands of one dtype and width.
func copyRow(y *abi.Tensor, i int, x *abi.Tensor, k int) {
	e := abi.ElemBytes(x.DType)
	n := x.Width() * e
	if n == 0 {
		return
	}
	copy(unsafe.Slice((*byte)(unsafe.Add(y.Data, i*y.RowStride()*e)), n), unsafe.Slice((*byte)(unsafe.Add(x.Data, k*x.RowStride()*e)), n))
}
