package recipecli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/release"
)

// ExitError is an error with the exit code the process should end with: 1 when a line could not be read, 2 for wrong usage.
type ExitError struct {
	Code int
	Err  error
}

// Error returns the text of the wrapped error.
func (e *ExitError) Error() string { return e.Err.Error() }

// Unwrap returns the wrapped error.
func (e *ExitError) Unwrap() error { return e.Err }

// ExitCode returns Code.
func (e *ExitError) ExitCode() int { return e.Code }

// Command builds the cobra command `recipe` with its subcommands.
func Command() *cobra.Command {
	s := &session{}
	cmd := &cobra.Command{
		Use:   "recipe",
		Short: "Render prompts, tokenize and parse model output (JSON lines)",
		Long: "Work with prompts, tokens and model output without a model. Every subcommand reads one JSON object a line from standard\n" +
			"input and writes one for each to standard output, in the same order.",
		Args: cobra.NoArgs,
	}
	flags := cmd.PersistentFlags()
	flags.BoolVar(&s.compat, "compat", false, "behave byte for byte like the reference adapter, its oddities included")
	flags.StringVar(&s.tokenizer, "tokenizer", "", "tokenizer.json to use, or v4, v4.1 or v4.1-recipe for a built-in one (default: the built-in one of each line's profile)")
	for _, sub := range subcommands {
		cmd.AddCommand(sub(s))
	}
	return cmd
}

// subcommands build the subcommands around one session.
var subcommands = [...]func(*session) *cobra.Command{encodeCommand, parseCommand, streamCommand, tokenizeCommand, detokenizeCommand}

// session is what the subcommands of one run share: the flags, and what is made from them once.
type session struct {
	compat    bool
	tokenizer string

	loaded   *token.Tokenizer                  // of the flag; nil until it is read
	encoders map[encoding.Profile]*encodingSet // by profile
}

type encodingSet struct {
	encoder *encoding.Encoder
	tok     *token.Tokenizer
}

// base gives the tokenizer of the flag, nil without one.
func (s *session) base() (*token.Tokenizer, error) {
	if s.loaded != nil || s.tokenizer == "" {
		return s.loaded, nil
	}
	var err error
	switch s.tokenizer {
	case release.V4, release.V41, release.V41Recipe:
		s.loaded, err = release.Load(s.tokenizer)
	default:
		s.loaded, err = token.Load(s.tokenizer)
	}
	if err != nil {
		return nil, &ExitError{2, fmt.Errorf("--tokenizer: %w", err)}
	}
	return s.loaded, nil
}

// plainTokenizer gives the tokenizer for text without a profile.
func (s *session) plainTokenizer() (*token.Tokenizer, error) {
	tok, err := s.base()
	if tok == nil && err == nil {
		return release.Load(release.V41)
	}
	return tok, err
}

// encoder gives the encoder and tokenizer of a profile. A release tokenizer of the other family is turned into the right one, so that one
// --tokenizer serves lines of both.
func (s *session) encoder(profile encoding.Profile) (*encoding.Encoder, *token.Tokenizer, error) {
	if set := s.encoders[profile]; set != nil {
		return set.encoder, set.tok, nil
	}
	tok, err := s.base()
	switch {
	case err != nil:
		return nil, nil, err
	case tok != nil:
		tok, err = release.Fit(tok, profile.V41())
	case profile.V41():
		tok, err = release.Load(release.V41Recipe)
	default:
		tok, err = release.Load(release.V4)
	}
	if err != nil {
		return nil, nil, err
	}
	enc, err := encoding.New(profile, tok)
	if err != nil {
		return nil, nil, &ExitError{2, fmt.Errorf("--tokenizer %s: %w", s.tokenizer, err)}
	}
	if s.encoders == nil {
		s.encoders = make(map[encoding.Profile]*encodingSet)
	}
	s.encoders[profile] = &encodingSet{enc, tok}
	return enc, tok, nil
}

// lineCommand makes a subcommand of a function from one line to its answer. The answer is printed as JSON. An error ends the run when it
// is an ExitError with code 2 (nothing later can work); any other means that the line could not be read.
func lineCommand(s *session, use, short, long string, handle func(line []byte) (any, error)) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  long,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := s.base(); err != nil { // fail before the first line is waited for
				return err
			}
			return lines(cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr(), handle)
		},
	}
}

// lines answers every line of in. Lines end at "\n" only: text may hold other line separators.
func lines(in io.Reader, out, report io.Writer, handle func(line []byte) (any, error)) error {
	r := bufio.NewReaderSize(in, 1<<16)
	w := bufio.NewWriterSize(out, 1<<16)
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	unread := 0
	for n := 1; ; n++ {
		line, readErr := r.ReadBytes('\n')
		if readErr != nil && readErr != io.EOF {
			return &ExitError{1, errors.Join(fmt.Errorf("read line %d: %w", n, readErr), w.Flush())}
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			answer, err := handle(line)
			var exit *ExitError
			if errors.As(err, &exit) && exit.Code == 2 {
				return errors.Join(err, w.Flush())
			}
			if err != nil {
				unread++
				fmt.Fprintf(report, "line %d: %v\n", n, err)
				answer = map[string]any{"id": nil, "error": lineError{Stage: "read", Status: 400, Message: err.Error()}}
			}
			if err := enc.Encode(answer); err != nil {
				return &ExitError{1, fmt.Errorf("write the answer to line %d: %w", n, err)}
			}
			if r.Buffered() == 0 { // interactive use: answer before the next line is waited for
				if err := w.Flush(); err != nil {
					return &ExitError{1, fmt.Errorf("write the answer to line %d: %w", n, err)}
				}
			}
		}
		if readErr == io.EOF {
			break
		}
	}
	if err := w.Flush(); err != nil {
		return &ExitError{1, fmt.Errorf("write the answers: %w", err)}
	}
	if unread > 0 {
		return &ExitError{1, fmt.Errorf("%d lines could not be read", unread)}
	}
	return nil
}

// lineError is the error of one request in its answer.
type lineError struct {
	Stage   string          `json:"stage"` // decode: the request did not parse; convert: it is not allowed; render: no prompt can be made; read: the line is no object
	Status  int             `json:"status"`
	Message string          `json:"message"`
	Type    string          `json:"type,omitempty"`
	Param   json.RawMessage `json:"param,omitempty"`
	Code    string          `json:"code,omitempty"`
}

// readLine decodes a line that must be an object; unknown keys are allowed, golden lines carry their answers.
func readLine(line []byte, into any) error {
	if line[0] != '{' {
		return errors.New("want a JSON object")
	}
	if err := json.Unmarshal(line, into); err != nil {
		return fmt.Errorf("want a JSON object of the documented form: %w", err)
	}
	return nil
}
