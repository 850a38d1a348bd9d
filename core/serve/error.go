package serve

import (
	"errors"
	"net/http"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// tooLong is the refusal of a prompt that does not fit.
func tooLong(prompt, answer, limit int) *protocol.Error {
	e := protocol.Invalid("messages", "This model's maximum context length is %d tokens. However, you requested %d tokens (%d in the messages, %d in the completion). Please reduce the length of the messages or completion.",
		limit, prompt+answer, prompt, answer)
	e.Code = "context_length_exceeded"
	return e
}

// apiError translates what the engine said. Errors that are no client's fault and not known here come back as nil.
func apiError(err error) *protocol.Error {
	var (
		api      *protocol.Error
		long     *engine.ContextError
		param    *sample.ParamError
		id       *engine.TokenError
		img      *engine.ImageError
		capacity *sched.CapacityError
		over     *sched.OverloadError
		poison   *sched.PoisonError
		retry    *sched.RetryError
		form     *engine.ConstraintError
	)
	unavailable := func(code, format string, args ...any) *protocol.Error {
		e := protocol.NewError(http.StatusServiceUnavailable, format, args...)
		e.Code = code
		return e
	}
	switch {
	case errors.As(err, &api):
		return api
	case errors.As(err, &long):
		return tooLong(long.Prompt, long.MaxTokens, long.Limit)
	case errors.As(err, &param):
		return protocol.Invalid(param.Name, "Invalid %s", param.Error())
	case errors.As(err, &id):
		return protocol.Invalid(id.Field, "%s", id.Error())
	case errors.As(err, &img):
		return protocol.Invalid("messages", "%s", img.Error())
	case errors.Is(err, engine.ErrNoVision):
		return protocol.Invalid("messages", "%s", err.Error()).WithCode("images_not_supported")
	case errors.Is(err, engine.ErrEmptyPrompt):
		return protocol.Invalid("messages", "%s", err.Error())
	case errors.As(err, &capacity):
		return protocol.Invalid("messages", "%s", capacity.Error()).WithCode("request_exceeds_capacity")
	case errors.As(err, &over):
		return protocol.NewError(http.StatusTooManyRequests, "The server is %s.", over.Error())
	case errors.Is(err, sched.ErrExpired):
		return unavailable("overloaded", "The server is overloaded: %s; try again later.", err.Error())
	case errors.Is(err, engine.ErrDraining), errors.Is(err, engine.ErrClosed):
		return unavailable("draining", "The server is shutting down.")
	case errors.As(err, &form):
		return protocol.NewError(http.StatusInternalServerError, "The answer could not be held to its form: %s.", form.Err.Error()).WithCode("constraint_failed")
	case errors.As(err, &poison), errors.As(err, &retry), errors.Is(err, sample.ErrNotANumber):
		return protocol.NewError(http.StatusInternalServerError, "The request could not be computed: %s.", err.Error())
	}
	return nil
}
