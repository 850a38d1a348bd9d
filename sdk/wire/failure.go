package wire

import (
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// AsBackendError returns err's *backend.Error, with the context that was wrapped around it kept in the message, or wraps err as an internal failure of the given scope.
func AsBackendError(op string, scope backend.Scope, err error) *backend.Error {
	var e *backend.Error
	if errors.As(err, &e) {
		outer, ok := strings.CutSuffix(err.Error(), e.Error())
		if ok && outer == "" {
			return e
		}
		msg := err.Error()
		if ok {
			msg = outer + e.Op + ": " + e.Msg
		}
		return &backend.Error{Code: e.Code, Scope: e.Scope, Native: e.Native, Op: op, Msg: msg}
	}
	return &backend.Error{Code: abi.Internal, Scope: scope, Op: op, Msg: err.Error()}
}

// ToStatus turns a failure into a gRPC status that carries scope and native number.
func ToStatus(e *backend.Error) error {
	code := codes.Code(e.Code)
	if code == codes.OK || code > codes.Unauthenticated {
		code = codes.Internal
	}
	st := status.New(code, e.Error())
	if d, err := st.WithDetails(&controlpb.Failure{Code: uint32(code), Scope: uint32(e.Scope), Native: e.Native, Op: e.Op, Msg: e.Msg}); err == nil {
		st = d
	}
	return st.Err()
}

// FromStatus turns the error of a control call back into a *backend.Error where the worker sent one; other errors are wrapped with the call's name.
func FromStatus(call string, err error) error {
	if err == nil {
		return nil
	}
	st, ok := status.FromError(err)
	if !ok {
		return fmt.Errorf("worker call %s: %w", call, err)
	}
	for _, d := range st.Details() {
		if f, ok := d.(*controlpb.Failure); ok {
			scope := backend.Scope(f.Scope)
			if scope < backend.ScopeStep || scope > backend.ScopeHost {
				scope = backend.ScopeDevice
			}
			return &backend.Error{Code: f.Code, Scope: scope, Native: f.Native, Op: f.Op, Msg: f.Msg}
		}
	}
	return fmt.Errorf("worker call %s: %s: %s", call, st.Code(), st.Message())
}
