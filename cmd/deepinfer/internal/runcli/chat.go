package runcli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"golang.org/x/term"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

const chatHelp = `/help   this text
/clear  forget the conversation
/quit   end (also Ctrl-D, and Ctrl-C on an empty line)
Ctrl-C stops an answer.`

// chat talks with a person until they leave.
func (s *session) chat(ctx context.Context, in *os.File) error {
	if s.app.Encoder == nil {
		return usage("the checkpoint %s has no tokenizer.json, so text cannot be used; give token ids: --prompt-ids 1,2,3", s.model)
	}
	keys := &keys{r: in}
	editor := term.NewTerminal(struct {
		io.Reader
		io.Writer
	}{keys, s.out}, "> ")
	if !s.quiet {
		fmt.Fprintf(s.out, "%s on %s. /help lists the commands.\n", s.app.Name, s.app.Backend)
	}
	history := s.start()
	for {
		line, err := readLine(in, s.out, editor)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return &ExitError{Code: 1, Err: fmt.Errorf("read the prompt: %w", err)}
		}
		switch text := strings.TrimSpace(line); {
		case text == "":
			continue
		case text == "/quit", text == "/exit":
			return nil
		case text == "/clear":
			history = s.start()
			fmt.Fprintln(s.out, "The conversation is forgotten.")
			continue
		case text == "/help":
			fmt.Fprintln(s.out, chatHelp)
			continue
		case strings.HasPrefix(text, "/") && !strings.Contains(text, " "):
			fmt.Fprintf(s.out, "No command %s. /help lists them.\n", text)
			continue
		}
		turn := append(history[:len(history):len(history)], conversation.Message{Role: conversation.RoleUser, Content: line})
		reply, err := s.turn(ctx, turn)
		var exit *ExitError
		switch {
		case err == nil:
			history = append(turn, reply)
		case errors.As(err, &exit) && s.app.Engine.Err() == nil: // the person may go on, with a shorter prompt for example
			fmt.Fprintf(s.errs, "deepinfer: %v\n", err)
		default:
			return err
		}
	}
}

// turn answers the last message of the conversation. An answer that was stopped by Ctrl-C counts as far as it went.
func (s *session) turn(ctx context.Context, messages []conversation.Message) (conversation.Message, error) {
	reply := conversation.Message{Role: conversation.RoleAssistant}
	p, err := s.render(&conversation.Conversation{Messages: messages, Thinking: s.thinking})
	if err != nil {
		return reply, err
	}
	r, err := s.request(p.Tokens)
	if err != nil {
		return reply, err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	out := &printer{session: s}
	thought, text, err := out.answer(ctx, r, p.Parsing)
	if e := out.newline(); e != nil {
		return reply, e
	}
	if err != nil && ctx.Err() == nil {
		return reply, err
	}
	reply.Content = text
	if s.thinking {
		reply.Reasoning = &thought
	}
	return reply, nil
}

// readLine edits one line with the terminal in raw mode, which ends before an answer so that Ctrl-C is a signal again.
func readLine(in *os.File, out io.Writer, editor *term.Terminal) (string, error) {
	old, err := term.MakeRaw(int(in.Fd()))
	if err != nil {
		return "", err
	}
	defer term.Restore(int(in.Fd()), old)
	if w, h, err := term.GetSize(int(in.Fd())); err == nil && w > 0 {
		_ = editor.SetSize(w, h)
	}
	line, err := editor.ReadLine()
	if errors.Is(err, term.ErrPasteIndicator) {
		err = nil
	}
	if errors.Is(err, io.EOF) {
		fmt.Fprint(out, "\r\n")
	}
	return line, err
}

// keys is the keyboard. The line editor takes Ctrl-C as the end; on a line that has text it should only drop the line.
type keys struct {
	r     io.Reader
	typed bool // something stands on the line, as far as can be told from the keys
}

func (k *keys) Read(p []byte) (int, error) {
	n, err := k.r.Read(p)
	for i := range p[:n] {
		switch c := p[i]; {
		case c == 0x03 && k.typed: // Ctrl-C
			p[i] = 0x15 // Ctrl-U drops what stands before the cursor, where it is after typing
			k.typed = false
		case c == '\r' || c == '\n' || c == 0x15:
			k.typed = false
		case c >= 0x20 && c != 0x7f:
			k.typed = true
		}
	}
	return n, err
}
