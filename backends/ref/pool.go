package ref

import (
	"sync"
	"sync/atomic"
)

// pool runs index ranges on a fixed set of goroutines. One run at a time; the caller works too.
type pool struct {
	size    int
	wake    chan struct{} // one token per helper and run; closed by close
	ended   sync.WaitGroup
	closing bool

	// The current run. Written before the wake tokens are sent, read after one was received.
	fn    func(lo, hi int)
	n     int
	chunk int
	next  atomic.Int64 // first index nobody has taken
	busy  sync.WaitGroup
}

func newPool(threads int) *pool {
	p := &pool{size: threads, wake: make(chan struct{}, threads)}
	for range threads - 1 {
		p.ended.Add(1)
		go func() {
			defer p.ended.Done()
			for range p.wake {
				p.work()
				p.busy.Done()
			}
		}()
	}
	return p
}

// work takes chunks until none are left.
func (p *pool) work() {
	for {
		lo := int(p.next.Add(int64(p.chunk))) - p.chunk
		if lo >= p.n {
			return
		}
		p.fn(lo, min(lo+p.chunk, p.n))
	}
}

// run calls fn over disjoint ranges covering [0,n) and returns when all are done.
func (p *pool) run(n int, fn func(lo, hi int)) {
	if p.size == 1 || n < 2 || p.closing {
		fn(0, n)
		return
	}
	// Four chunks per worker even out unequal rows; multiples of four keep the column blocks of the matrix products whole.
	chunk := (n + 4*p.size - 1) / (4 * p.size)
	if chunk > 4 {
		chunk = (chunk + 3) &^ 3
	}
	p.fn, p.n, p.chunk = fn, n, chunk
	p.next.Store(0)
	helpers := min(p.size-1, (n+chunk-1)/chunk-1)
	p.busy.Add(helpers)
	for range helpers {
		p.wake <- struct{}{}
	}
	p.work()
	p.busy.Wait()
	p.fn = nil
}

// close ends the goroutines and waits for them.
func (p *pool) close() {
	p.closing = true
	close(p.wake)
	p.ended.Wait()
}
