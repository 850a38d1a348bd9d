package protocol

import (
	"unicode/utf8"

	"github.com/deepinfer-go/deepinfer/recipe/parse"
)

// Logprobs writes log-probabilities as both OpenAI protocols show them.
func (w *JSON) Logprobs(logs []parse.TokenLogprob, compat bool) {
	one := func(bytes string, logprob float64) {
		w.Key("token").Str(tokenText(bytes, compat)).Key("logprob").Float(logprob).Key("bytes").Array()
		for i := 0; i < len(bytes); i++ {
			w.Int(int64(bytes[i]))
		}
		w.End()
	}
	w.Array()
	for i := range logs {
		w.Open()
		one(logs[i].Bytes, logs[i].Logprob)
		w.Key("top_logprobs").Array()
		for _, top := range logs[i].Top {
			w.Open()
			one(top.Bytes, top.Logprob)
			w.Close()
		}
		w.End().Close()
	}
	w.End()
}

// TokenText spells a token: its text, or its bytes escaped after bytes: when they are no text.
func TokenText(b string) string { return tokenText(b, false) }

// tokenText spells a token: its text, or its bytes escaped when they are no text.
func tokenText(b string, compat bool) string {
	if utf8.ValidString(b) {
		return b
	}
	const hex = "0123456789abcdef"
	var out []byte
	if !compat {
		out = append(out, "bytes:"...)
	}
	for i := 0; i < len(b); i++ {
		out = append(out, '\\', 'x', hex[b[i]>>4], hex[b[i]&15])
	}
	return string(out)
}
