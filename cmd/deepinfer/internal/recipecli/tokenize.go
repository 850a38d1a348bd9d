package recipecli

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/recipe/token"
)

// maxRepeatBytes bounds the text that one line can ask for.
const maxRepeatBytes = 1 << 28

func tokenizeCommand(s *session) *cobra.Command {
	special := false
	cmd := lineCommand(s, "tokenize", "Text to token ids",
		"Reads {\"id\", \"text\"} or {\"id\", \"hex\"}, and writes {\"id\", \"ids\"}. \"repeat\" repeats the text that many times. hex holds raw bytes;\n"+
			"every maximal part of them that is not UTF-8 counts as one U+FFFD.",
		func(line []byte) (any, error) {
			var c struct {
				ID     json.RawMessage `json:"id"`
				Text   *string         `json:"text"`
				Hex    *string         `json:"hex"`
				Repeat *int            `json:"repeat"`
			}
			if err := readLine(line, &c); err != nil {
				return nil, err
			}
			refuse := func(format string, args ...any) (any, error) {
				return answerError{ID: id(c.ID), Error: lineError{Stage: "decode", Status: 400, Message: fmt.Sprintf(format, args...)}}, nil
			}
			var text string
			switch {
			case c.Text != nil && c.Hex == nil:
				text = *c.Text
			case c.Hex != nil && c.Text == nil:
				raw, err := hex.DecodeString(*c.Hex)
				if err != nil {
					return refuse("hex: %v", err)
				}
				text = string(raw)
			default:
				return refuse("want either text or hex")
			}
			if c.Repeat != nil {
				if n := *c.Repeat; n < 0 || n > maxRepeatBytes || n*len(text) > maxRepeatBytes {
					return refuse("repeat %d of %d bytes: want between 0 and %d bytes in all", n, len(text), maxRepeatBytes)
				}
				text = strings.Repeat(text, *c.Repeat)
			}
			tok, err := s.plainTokenizer()
			if err != nil {
				return nil, err
			}
			ids := []int32{}
			if special {
				ids = tok.AppendEncodeSpecial(ids, text)
			} else {
				ids = tok.AppendEncode(ids, text)
			}
			return struct {
				ID  json.RawMessage `json:"id"`
				IDs []int32         `json:"ids"`
			}{id(c.ID), ids}, nil
		})
	cmd.Flags().BoolVar(&special, "special", false, "match the spellings of added tokens such as <think>")
	return cmd
}

func detokenizeCommand(s *session) *cobra.Command {
	return lineCommand(s, "detokenize", "Token ids to text, as a stream would show it",
		"Reads {\"id\", \"ids\"} and writes {\"id\", \"safe\", \"safe_end\", \"text\"}: safe[i] is the text that can be shown when ids[i] arrives, always whole\n"+
			"characters; safe_end is what is left at the end; text is all of it.",
		func(line []byte) (any, error) {
			var c struct {
				ID  json.RawMessage `json:"id"`
				IDs *[]int32        `json:"ids"`
			}
			if err := readLine(line, &c); err != nil {
				return nil, err
			}
			if c.IDs == nil {
				return answerError{ID: id(c.ID), Error: lineError{Stage: "decode", Status: 400, Message: "want ids"}}, nil
			}
			tok, err := s.plainTokenizer()
			if err != nil {
				return nil, err
			}
			stream := token.NewStream(tok)
			safe := make([]string, len(*c.IDs))
			var text strings.Builder
			for i, t := range *c.IDs {
				safe[i] = stream.Push(t)
				text.WriteString(safe[i])
			}
			end := stream.Flush()
			text.WriteString(end)
			return struct {
				ID      json.RawMessage `json:"id"`
				Safe    []string        `json:"safe"`
				SafeEnd string          `json:"safe_end"`
				Text    string          `json:"text"`
			}{id(c.ID), safe, end, text.String()}, nil
		})
}

// answerError is the answer to a request that is refused.
type answerError struct {
	ID    json.RawMessage `json:"id"`
	Error lineError       `json:"error"`
}

// id gives the id of a line, null when it has none.
func id(raw json.RawMessage) json.RawMessage {
	if raw == nil {
		return json.RawMessage("null")
	}
	return raw
}
