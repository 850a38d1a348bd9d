package protocol

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// Error is a failure with the status and the fields that the protocols' error bodies have.
type Error struct {
	HTTP    int    // status
	Type    string // of the OpenAI shape; "" follows from HTTP
	Code    string // of the OpenAI shape; "" follows from HTTP
	Param   string // the field at fault, for example messages[1].content; "" is null
	Message string
	// Decoding marks a body that could not be read; compat does not promise the text of those.
	Decoding bool
	compat   bool
}

// Error gives the message, with the field in front unless the message names it.
func (e *Error) Error() string {
	if e.Param != "" && !strings.Contains(e.Message, e.Param) {
		return e.Param + ": " + e.Message
	}
	return e.Message
}

// Status is the HTTP status.
func (e *Error) Status() int { return e.HTTP }

// NewError makes an error of a status; Type and Code follow from it.
func NewError(status int, format string, args ...any) *Error {
	return &Error{HTTP: status, Message: fmt.Sprintf(format, args...)}
}

// Invalid is a 400 about one field.
func Invalid(param, format string, args ...any) *Error {
	return &Error{HTTP: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, args...)}
}

// Malformed is a 400 about a body or a field of the wrong type.
func Malformed(param, format string, args ...any) *Error {
	return &Error{HTTP: http.StatusBadRequest, Param: param, Message: fmt.Sprintf(format, args...), Decoding: true}
}

// WithCode sets the code of the OpenAI shape.
func (e *Error) WithCode(code string) *Error {
	e.Code = code
	return e
}

// AsError finds an Error in err, or makes one of status 500 whose text does not tell internals.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{HTTP: http.StatusInternalServerError, Message: "internal error"}
}

// compatible marks the error as one of the reference adapter.
func (e *Error) compatible() *Error {
	e.compat = true
	return e
}

func (e *Error) openAI() (typ, code string) {
	typ, code = e.Type, e.Code
	if e.compat {
		if e.HTTP >= 500 {
			return "internal_error", "internal_error"
		}
		return "invalid_request_error", "invalid_request_error"
	}
	if typ == "" {
		switch {
		case e.HTTP == http.StatusUnauthorized:
			typ = "authentication_error"
		case e.HTTP == http.StatusPaymentRequired:
			typ = "insufficient_quota"
		case e.HTTP == http.StatusForbidden:
			typ = "permission_error"
		case e.HTTP == http.StatusTooManyRequests:
			typ = "rate_limit_error"
		case e.HTTP >= 500:
			typ = "server_error"
		default:
			typ = "invalid_request_error"
		}
	}
	if code == "" {
		switch {
		case e.HTTP == http.StatusUnauthorized:
			code = "invalid_api_key"
		case e.HTTP == http.StatusPaymentRequired:
			code = "insufficient_balance"
		case e.HTTP == http.StatusNotFound:
			code = "not_found"
		case e.HTTP == http.StatusTooManyRequests:
			code = "rate_limit_exceeded"
		case e.HTTP == http.StatusServiceUnavailable:
			code = "overloaded"
		case e.HTTP >= 500:
			code = "internal_error"
		default:
			code = "invalid_request_error"
		}
	}
	return typ, code
}

// OpenAI is the body in the shape of Chat Completions, Completions and Responses.
func (e *Error) OpenAI() []byte {
	var w JSON
	w.Open().Key("error")
	e.appendOpenAI(&w)
	w.Close()
	return w.B
}

func (e *Error) appendOpenAI(w *JSON) {
	typ, code := e.openAI()
	w.Open().Key("message").Str(e.Message).Key("type").Str(typ).Key("param")
	if e.Param == "" || e.compat {
		w.Null()
	} else {
		w.Str(e.Param)
	}
	w.Key("code").Str(code).Close()
}

// AnthropicType is the error type of the Messages protocol.
func (e *Error) AnthropicType() string {
	switch e.HTTP {
	case http.StatusUnauthorized:
		return "authentication_error"
	case http.StatusPaymentRequired:
		return "billing_error"
	case http.StatusForbidden:
		return "permission_error"
	case http.StatusNotFound:
		return "not_found_error"
	case http.StatusRequestEntityTooLarge:
		return "request_too_large"
	case http.StatusTooManyRequests:
		return "rate_limit_error"
	case http.StatusGatewayTimeout:
		return "timeout_error"
	case http.StatusServiceUnavailable, 529:
		return "overloaded_error"
	}
	if e.HTTP >= 500 {
		return "api_error"
	}
	return "invalid_request_error"
}

// Anthropic is the body in the shape of Messages. The reference adapter answers in the OpenAI shape there; so does an error that came
// from compat.
func (e *Error) Anthropic(requestID string) []byte {
	if e.compat {
		return e.OpenAI()
	}
	var w JSON
	w.Open().Key("type").Str("error").Key("error").Open().Key("type").Str(e.AnthropicType()).Key("message").Str(e.Error()).Close()
	if requestID != "" {
		w.Key("request_id").Str(requestID)
	}
	w.Close()
	return w.B
}
