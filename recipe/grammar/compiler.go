package grammar

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// CompilerOptions bound a Compiler.
type CompilerOptions struct {
	// Deadline bounds one compilation; 0 is 20 s.
	Deadline time.Duration
	// CacheBytes bounds the grammars that are kept; 0 is 64 MiB. A grammar that is larger is compiled and not kept.
	CacheBytes int
	// Parallel bounds the compilations that run at once; 0 is half of GOMAXPROCS, at least 1. Others wait; waiting counts against their
	// deadline.
	Parallel int
}

// Compiler compiles grammars away from the path of other requests and keeps what it compiled. Equal specs are compiled once. It is safe
// for concurrent use.
type Compiler struct {
	v    *Vocabulary
	opts CompilerOptions
	run  chan struct{} // one for each compilation that may run

	mu      sync.Mutex
	entries map[[32]byte]*entry
	recent  *list.List // of *entry, most recent first
	bytes   int
	stats   CompilerStats
}

// CompilerStats count what a Compiler did.
type CompilerStats struct {
	Hits, Misses, Failures, Evictions int
	Grammars, Bytes                   int // kept now
}

// entry is a grammar, or one being made.
type entry struct {
	key     [32]byte
	ready   chan struct{}
	grammar *Grammar
	err     error
	bytes   int
	waiting int
	cancel  context.CancelFunc
	place   *list.Element
}

// NewCompiler makes a compiler for a vocabulary.
func NewCompiler(v *Vocabulary, opts CompilerOptions) *Compiler {
	if opts.Deadline <= 0 {
		opts.Deadline = 20 * time.Second
	}
	if opts.CacheBytes <= 0 {
		opts.CacheBytes = 64 << 20
	}
	if opts.Parallel <= 0 {
		opts.Parallel = max(1, runtime.GOMAXPROCS(0)/2)
	}
	return &Compiler{v: v, opts: opts, run: make(chan struct{}, opts.Parallel), entries: map[[32]byte]*entry{}, recent: list.New()}
}

// Stats gives the counts so far.
func (c *Compiler) Stats() CompilerStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Grammars, s.Bytes = c.recent.Len(), c.bytes
	return s
}

// failureBytes is what a remembered failure counts.
const failureBytes = 1024

// Compile gives the grammar of a spec, from the cache or made now on another goroutine, which ends with the deadline or when nobody waits
// any more. It blocks until then or until ctx ends: call it while the request is being prepared, never from a step loop. Errors are *Error,
// or ctx's. A spec that failed fails again at once while it is remembered.
func (c *Compiler) Compile(ctx context.Context, spec Spec) (*Grammar, error) {
	key, err := spec.key()
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	e, ok := c.entries[key]
	if ok {
		c.stats.Hits++
		if e.place != nil {
			c.recent.MoveToFront(e.place)
		}
	} else {
		c.stats.Misses++
		work, cancel := context.WithTimeout(context.Background(), c.opts.Deadline)
		e = &entry{key: key, ready: make(chan struct{}), cancel: cancel}
		c.entries[key] = e
		go c.make(work, e, spec)
	}
	e.waiting++
	c.mu.Unlock()

	select {
	case <-e.ready:
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.waiting--
	select {
	case <-e.ready:
		return e.grammar, e.err
	default:
	}
	if e.waiting == 0 {
		e.cancel()
		if c.entries[key] == e {
			delete(c.entries, key)
		}
	}
	return nil, fmt.Errorf("grammar: wait for the compilation: %w", context.Cause(ctx))
}

// make compiles on its own goroutine. A panic is an error of this spec alone.
func (c *Compiler) make(ctx context.Context, e *entry, spec Spec) {
	defer e.cancel()
	g, err := func() (g *Grammar, err error) {
		defer func() {
			if r := recover(); r != nil {
				g, err = nil, &Error{Kind: Invalid, Reason: fmt.Sprintf("the compiler failed: %v", r)}
			}
		}()
		select {
		case c.run <- struct{}{}:
			defer func() { <-c.run }()
		case <-ctx.Done():
			return nil, &Error{Kind: Timeout, Reason: fmt.Sprintf("not begun in time: %d others are being compiled", c.opts.Parallel)}
		}
		return Compile(ctx, spec, c.v)
	}()

	c.mu.Lock()
	defer c.mu.Unlock()
	e.grammar, e.err, e.bytes = g, err, failureBytes
	if err != nil {
		c.stats.Failures++
	} else {
		e.bytes = g.Size()
	}
	close(e.ready)
	if c.entries[e.key] != e {
		return // nobody waited
	}
	// What failed for want of time may work when the machine is less busy.
	var typed *Error
	if e.bytes > c.opts.CacheBytes || err != nil && (!errors.As(err, &typed) || typed.Kind == Timeout) {
		delete(c.entries, e.key)
		return
	}
	e.place = c.recent.PushFront(e)
	c.bytes += e.bytes
	for c.bytes > c.opts.CacheBytes {
		last := c.recent.Back()
		old := last.Value.(*entry)
		c.recent.Remove(last)
		c.bytes -= old.bytes
		delete(c.entries, old.key)
		c.stats.Evictions++
	}
}
