package recipecli

import (
	"bytes"
	"encoding/json"
)

// marshal is json.Marshal without escapes for HTML, which the golden files do not have.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}
