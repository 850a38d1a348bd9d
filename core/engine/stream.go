package engine

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
)

// FinishReason says how a request ended.
type FinishReason string

// Finish reasons. A request that was cancelled or failed is never reported as stop or length.
const (
	FinishStop   FinishReason = "stop"   // an end id was drawn, which is the last event, with Stop set; or the matcher is done
	FinishLength FinishReason = "length" // MaxTokens were drawn, or all forced ids are scored
	FinishAbort  FinishReason = "abort"  // cancelled
	FinishError  FinishReason = "error"
)

// Event is one token of an answer.
type Event struct {
	sample.Token      // a copy; Top belongs to the reader
	Pos          int  // absolute index of the token in the context
	Stop         bool // an end id
}

// Usage counts the tokens of a request.
type Usage struct {
	Prompt      int
	Generated   int // drawn or scored so far
	Preemptions int // times its rows had to be computed again
}

// Stream delivers the tokens of one request in order. Next is for one caller at a time; the other methods are safe at any time.
type Stream struct {
	e     *Engine
	req   *request
	limit int
	seed  uint64
	wake  chan struct{} // capacity 1: something changed

	mu     sync.Mutex
	buf    []Event
	head   int
	usage  Usage
	finish FinishReason // "" while it runs
	err    error
	detach func() bool // stops watching the request's context
}

// Next returns the next token. After the last one it returns io.EOF for an answer that ended by stop or length, and otherwise the error that ended it:
// ErrCancelled, or what failed. When ctx ends first, its error is returned and the stream goes on.
func (s *Stream) Next(ctx context.Context) (Event, error) {
	for {
		s.mu.Lock()
		if s.head < len(s.buf) {
			ev := s.buf[s.head]
			s.buf[s.head] = Event{}
			if s.head++; s.head == len(s.buf) {
				s.buf, s.head = s.buf[:0], 0
			}
			s.mu.Unlock()
			return ev, nil
		}
		if s.finish != "" {
			err := s.err
			s.mu.Unlock()
			if err == nil {
				err = io.EOF
			}
			return Event{}, err
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// Finish returns the finish reason, "" while the request runs. Tokens may still wait to be read.
func (s *Stream) Finish() FinishReason {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.finish
}

// Usage returns the counts so far.
func (s *Stream) Usage() Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.usage
}

// Seed returns the seed the tokens are drawn with: repeating the request with it gives the same tokens.
func (s *Stream) Seed() uint64 { return s.seed }

// Cancel ends the request. Tokens that were delivered can still be read; then Next returns ErrCancelled. It may be called at any time, also twice.
func (s *Stream) Cancel() { s.cancel(nil) }

func (s *Stream) cancel(cause error) {
	err := ErrCancelled
	if cause != nil {
		err = fmt.Errorf("%w: %w", ErrCancelled, cause)
	}
	// The reader is told at once; slot and granules come back when the step that holds them retires.
	if s.end(FinishAbort, err) {
		s.e.send(context.Background(), command{kind: cmdCancel, req: s.req})
	}
}

// watch cancels the request when ctx ends.
func (s *Stream) watch(ctx context.Context) {
	if ctx.Done() == nil {
		return
	}
	stop := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	s.mu.Lock()
	if s.finish == "" {
		s.detach = stop
		stop = nil
	}
	s.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// push appends a token. It reports false when the reader is too far behind, and true with no effect when the stream has ended.
func (s *Stream) push(ev Event) bool {
	s.mu.Lock()
	if s.finish != "" {
		s.mu.Unlock()
		return true
	}
	if len(s.buf)-s.head >= s.limit {
		s.mu.Unlock()
		return false
	}
	if s.head > 64 && s.head > len(s.buf)/2 { // a reader that never quite catches up must not make the array grow
		n := copy(s.buf, s.buf[s.head:])
		clear(s.buf[n:])
		s.buf, s.head = s.buf[:n], 0
	}
	s.buf = append(s.buf, ev)
	s.usage.Generated++
	s.mu.Unlock()
	s.signal()
	return true
}

// end finishes the stream once; it reports whether this call did.
func (s *Stream) end(why FinishReason, err error) bool {
	s.mu.Lock()
	if s.finish != "" {
		s.mu.Unlock()
		return false
	}
	s.finish, s.err = why, err
	detach := s.detach
	s.detach = nil
	s.mu.Unlock()
	if detach != nil {
		detach()
	}
	s.signal()
	return true
}

func (s *Stream) preempted() {
	s.mu.Lock()
	s.usage.Preemptions++
	s.mu.Unlock()
}

func (s *Stream) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// ended translates the scheduler's reason.
func (s *Stream) ended(e sched.End, closed bool) {
	switch e.Reason {
	case sched.Stop:
		s.end(FinishStop, nil)
	case sched.Length:
		s.end(FinishLength, nil)
	case sched.Cancelled:
		err := ErrCancelled
		if closed {
			err = fmt.Errorf("%w: %w", ErrCancelled, ErrClosed)
		}
		s.end(FinishAbort, err)
	default:
		s.end(FinishError, e.Err)
	}
}
