package conf

import (
	"strings"
	"testing"
)

// One underscore where two part block and key is the commonest slip with variables.
func TestEnvironmentWithOneUnderscoreIsExplained(t *testing.T) {
	for given, want := range map[string]string{
		"DEEPINFER_SERVER_LISTEN=127.0.0.1:1": "DEEPINFER_SERVER__LISTEN",
		"DEEPINFER_LIMITS_MAX_TOKENS=5":       "DEEPINFER_LIMITS__MAX_TOKENS",
		"DEEPINFER_SERVR__LISTEN=x":           "DEEPINFER_SERVER__LISTEN",
	} {
		if _, err := Load("", []string{given}, nil); err == nil || !strings.Contains(err.Error(), "did you mean "+want+"?") {
			t.Errorf("%s: %v\nshould suggest %s", given, err, want)
		}
	}
}
