package app

// Error is an error with the exit code that the process should end with: 1 for what failed, 2 for usage and configuration.
type Error struct {
	Code int
	Err  error
}

// Error returns the text of the wrapped error.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *Error) Unwrap() error { return e.Err }

// ExitCode returns Code.
func (e *Error) ExitCode() int { return e.Code }

func usage(err error) error { return &Error{Code: 2, Err: err} }
