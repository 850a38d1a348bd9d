package sched

import (
	"errors"
	"fmt"
)

// OverloadError says that the queue is full. The request may succeed later.
type OverloadError struct {
	Queued, Limit           int // requests
	QueuedTokens, MaxTokens int // prompt rows waiting or in prefill; MaxTokens 0 = this was not the reason
}

// Error names the limit and the fill.
func (e *OverloadError) Error() string {
	if e.MaxTokens > 0 {
		return fmt.Sprintf("overloaded: %d prompt tokens are waiting, the limit is %d; try again later", e.QueuedTokens, e.MaxTokens)
	}
	return fmt.Sprintf("overloaded: %d requests are waiting, the limit is %d; try again later", e.Queued, e.Limit)
}

// CapacityError says that a request can never run here: it needs more granules than the pool has.
type CapacityError struct {
	Tokens         int // prompt and continuation
	Need, Granules int
	GranuleTokens  int
}

// Error names the need and the pool.
func (e *CapacityError) Error() string {
	return fmt.Sprintf("request of %d tokens needs %d KV granules, the pool has %d (%d tokens): shorten the prompt or lower max_tokens", e.Tokens, e.Need, e.Granules, e.Granules*e.GranuleTokens)
}

// PoisonError ends a request that was in several steps in which the device was lost, the last time alone.
type PoisonError struct {
	Charges int // lost steps that held the request
	Cause   error
}

// Error says how often the device was lost.
func (e *PoisonError) Error() string {
	return fmt.Sprintf("the device failed %d times while it computed this request, the last time with nothing else in the step: it is not tried again (%v)", e.Charges, e.Cause)
}

// Unwrap returns the last failure.
func (e *PoisonError) Unwrap() error { return e.Cause }

// RetryError ends a request that lost its device state too often without making progress.
type RetryError struct {
	Losses int
	Cause  error
}

// Error says how often the device was lost.
func (e *RetryError) Error() string {
	return fmt.Sprintf("the device was lost %d times and this request made no progress in between: it is not tried again (%v)", e.Losses, e.Cause)
}

// Unwrap returns the last failure.
func (e *RetryError) Unwrap() error { return e.Cause }

// ErrExpired ends a request that waited in the queue past its deadline.
var ErrExpired = errors.New("the request waited in the queue past its deadline")
