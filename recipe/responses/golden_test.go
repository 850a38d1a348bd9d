package responses

import (
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/protocol"
	"github.com/deepinfer-go/deepinfer/recipe/protocol/protocoltest"
)

func decodeOnly(body []byte, opts protocol.Options) (*protocol.Request, error) {
	r, err := Decode(body, opts)
	if err != nil {
		return nil, err
	}
	return &r.Request, nil
}

func TestCompatEqualsTheReferenceOnEveryRequest(t *testing.T) {
	protocoltest.Prompts(t, "responses", 212, decodeOnly)
}

func TestCompatEqualsTheReferenceOnEveryLimit(t *testing.T) {
	protocoltest.Limits(t, "responses", 2, decodeOnly)
}

func TestCompatEqualsTheReferenceOnEveryStream(t *testing.T) {
	protocoltest.Streams(t, "responses", 39, func(body []byte, opts protocol.Options, h protocol.Header, _ *protocoltest.Case) (*protocol.Request, protocoltest.Encoder, error) {
		r, err := Decode(body, opts)
		if err != nil {
			return nil, nil, err
		}
		return &r.Request, NewStream(r, h), nil
	})
}
