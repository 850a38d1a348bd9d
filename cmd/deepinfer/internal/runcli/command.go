package runcli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/app"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/configcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/progress"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/core/sample"
	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

const (
	defaultTokens = 512 // of an answer, where --max-tokens is not given
	maxLogprobs   = 20  // candidates that a step can report
	maxPrompt     = 64 << 20
)

// ExitError is an error with the exit code that the process should end with.
type ExitError = app.Error

func usage(format string, args ...any) error {
	return &ExitError{Code: 2, Err: fmt.Errorf(format, args...)}
}

// flags are the command line.
type flags struct {
	config, model, backend, numerics string
	prompt, promptIDs, forceIDs      string
	system, thinking, speculation    string
	maxTokens, logprobs              int
	temperature, topP                float64
	seed                             uint64
	ignoreEOS, json, quiet           bool
}

// job is a checked command line.
type job struct {
	flags
	set         func(name string) bool
	ids, force  []int32 // of --prompt-ids and --force-ids
	text        string  // prompt of a one-shot run
	oneShot     bool
	raw         bool // the prompt is ids
	interactive bool
}

// Command builds `deepinfer run`.
func Command() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Answer one prompt, score a continuation, or chat in the terminal",
		Long: `Runs the model in this process, without a server. With a prompt (--prompt, --prompt-ids, or text on standard input) it answers once; otherwise it chats.

--prompt is a user message, rendered as the model's chat format wants it. --prompt-ids are raw token ids, "1,2,3" or @FILE with a JSON array.
--force-ids draws nothing: it scores the given continuation of the prompt, one line a token.
Temperature and top-p are those of the model's generation_config.json unless given. Without -c the embedded demo model runs.`,
		Example: `  deepinfer run --prompt "What is 2 + 3?" --temperature 0
  deepinfer run --model ./DeepSeek-V4.1-Flash --prompt-ids @prompt.json --max-tokens 32 --json
  deepinfer run                                   # chat`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j := &job{flags: f, set: cmd.Flags().Changed}
			if err := j.check(cmd.InOrStdin()); err != nil {
				return err
			}
			return j.run(cmd)
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&f.config, "config", "c", "", "configuration file")
	fs.StringVar(&f.model, "model", "", "checkpoint directory (default: the configured model, else the embedded demo model)")
	fs.StringVar(&f.backend, "backend", "", "backend: a block of the configuration, or ref, cpu, null, fault (default: cpu where it is built, else ref)")
	fs.StringVar(&f.prompt, "prompt", "", "user message")
	fs.StringVar(&f.promptIDs, "prompt-ids", "", "prompt as token ids: 1,2,3 or @FILE (JSON array)")
	fs.StringVar(&f.forceIDs, "force-ids", "", "score this continuation instead of drawing one: 4,5,6 or @FILE (JSON array)")
	fs.IntVar(&f.maxTokens, "max-tokens", defaultTokens, "tokens of the answer at most")
	fs.Float64Var(&f.temperature, "temperature", 1, "0 takes the most likely token each time")
	fs.Float64Var(&f.topP, "top-p", 1, "share of the probability that is drawn from")
	fs.Uint64Var(&f.seed, "seed", 0, "seed of the draws (default: random)")
	fs.StringVar(&f.speculation, "speculation", "off", "off, fixed:K or dynamic")
	fs.BoolVar(&f.ignoreEOS, "ignore-eos", false, "go on after the token that ends an answer")
	fs.IntVar(&f.logprobs, "logprobs", 0, "report the N most likely tokens at each place (0 to 20)")
	fs.StringVar(&f.numerics, "numerics", "", "reference or production (default: as configured, else reference)")
	fs.BoolVar(&f.json, "json", false, "one JSON object a token, and one for the end")
	fs.StringVar(&f.system, "system", "", "system message")
	fs.StringVar(&f.thinking, "thinking", "", "on or off: whether the model reasons before it answers (default: as configured, else off)")
	fs.BoolVar(&f.quiet, "quiet", false, "no progress and no notices")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage("%w; see `deepinfer run --help`", err) })
	return cmd
}

// check looks at everything that can be judged before the model is loaded.
func (j *job) check(stdin io.Reader) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	params := sample.Params{Temperature: float32(j.temperature), TopP: float32(j.topP)}
	if err := params.Validate(); err != nil {
		for _, e := range each(err) {
			var p *sample.ParamError
			if errors.As(e, &p) {
				bad("--%s %v: must be %s", strings.ReplaceAll(p.Name, "_", "-"), p.Value, p.Want)
			} else {
				errs = append(errs, e)
			}
		}
	}
	if j.maxTokens < 1 || j.maxTokens > math.MaxInt32 {
		bad("--max-tokens %d: must be at least 1", j.maxTokens)
	}
	if j.logprobs < 0 || j.logprobs > maxLogprobs {
		bad("--logprobs %d: must be 0 to %d", j.logprobs, maxLogprobs)
	}
	if j.thinking != "" && j.thinking != "on" && j.thinking != "off" {
		bad("--thinking %q: must be on or off", j.thinking)
	}
	if j.numerics != "" && j.numerics != "reference" && j.numerics != "production" {
		bad("--numerics %q: must be reference or production", j.numerics)
	}
	if err := checkSpeculation(j.speculation); err != nil {
		errs = append(errs, err)
	}
	if j.set("prompt") && j.set("prompt-ids") {
		bad("--prompt and --prompt-ids: give one of them")
	}
	var err error
	if j.set("prompt-ids") {
		j.raw, j.oneShot = true, true
		if j.ids, err = readIDs(j.promptIDs); err != nil {
			bad("--prompt-ids: %w", err)
		}
		for _, name := range []string{"system", "thinking"} {
			if j.set(name) {
				bad("--%s has no effect on --prompt-ids: ids are used as they are", name)
			}
		}
	}
	if j.set("force-ids") {
		if j.force, err = readIDs(j.forceIDs); err != nil {
			bad("--force-ids: %w", err)
		}
		for _, name := range []string{"temperature", "top-p", "seed", "max-tokens", "ignore-eos"} {
			if j.set(name) {
				bad("--%s has no effect on --force-ids: nothing is drawn", name)
			}
		}
	}
	if len(errs) > 0 {
		return &ExitError{Code: 2, Err: errors.Join(errs...)}
	}
	if j.set("prompt") {
		j.oneShot, j.text = true, j.prompt
	}
	if !j.oneShot {
		if f, ok := stdin.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			if j.json || j.set("force-ids") {
				return usage("--json and --force-ids need a prompt: --prompt TEXT, --prompt-ids IDS, or text on standard input")
			}
			j.interactive = true
			return nil
		}
		raw, err := io.ReadAll(io.LimitReader(stdin, maxPrompt+1))
		if err != nil {
			return &ExitError{Code: 1, Err: fmt.Errorf("read the prompt from standard input: %w", err)}
		}
		if len(raw) > maxPrompt {
			return usage("prompt on standard input: more than %d bytes", maxPrompt)
		}
		j.oneShot, j.text = true, strings.TrimRight(string(raw), "\r\n")
	}
	if !j.raw {
		if strings.TrimSpace(j.text) == "" {
			return usage("the prompt is empty: give --prompt TEXT, --prompt-ids IDS, or text on standard input")
		}
		if !utf8.ValidString(j.text) {
			return usage("the prompt is not valid UTF-8")
		}
	}
	return nil
}

// each lists the errors that were joined.
func each(err error) []error {
	if j, ok := err.(interface{ Unwrap() []error }); ok {
		return j.Unwrap()
	}
	return []error{err}
}

func checkSpeculation(s string) error {
	if s == "off" {
		return nil
	}
	if s != "dynamic" {
		k, ok := strings.CutPrefix(s, "fixed:")
		n, err := strconv.Atoi(k)
		if !ok || err != nil || n < 1 {
			return fmt.Errorf("--speculation %q: must be off, fixed:K with K of 1 or more, or dynamic", s)
		}
	}
	return fmt.Errorf("--speculation %s: this build has no speculative decoding; leave it off", s)
}

// readIDs reads "1,2,3", or @FILE with a JSON array.
func readIDs(s string) ([]int32, error) {
	if name, ok := strings.CutPrefix(s, "@"); ok {
		raw, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		var ids []int32
		if err := json.Unmarshal(raw, &ids); err != nil {
			return nil, fmt.Errorf("%s: want a JSON array of token ids: %w", name, err)
		}
		if len(ids) == 0 {
			return nil, fmt.Errorf("%s holds no ids", name)
		}
		return ids, nil
	}
	var ids []int32
	for i, f := range strings.Split(s, ",") {
		n, err := strconv.ParseInt(strings.TrimSpace(f), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("entry %d is %q: want token ids such as 1,2,3, or @FILE", i+1, strings.TrimSpace(f))
		}
		ids = append(ids, int32(n))
	}
	return ids, nil
}

func (j *job) run(cmd *cobra.Command) (err error) {
	cfg, err := configcli.Load(j.config, nil)
	if err != nil {
		return err
	}
	if m := cfg.Speculation.Mode; m != "off" && !j.set("speculation") {
		return usage("speculation.mode = %q in the configuration: this build has no speculative decoding; leave it off", m)
	}
	stderr := cmd.ErrOrStderr()
	bar := &progress.Bar{}
	if f, ok := stderr.(*os.File); ok {
		bar = progress.New(f, j.quiet)
	}
	defer bar.Close()
	notice := func(line string) {
		if !j.quiet {
			bar.Println(stderr, "deepinfer: "+line)
		}
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a, err := app.Open(ctx, app.Options{
		Config: cfg, Dir: j.model, Backend: j.backend, Numerics: j.numerics, Seqs: 1, Rows: 512, Notice: notice, Progress: bar.Update,
	})
	bar.Close()
	if err != nil {
		if ctx.Err() != nil {
			return &ExitError{Code: 1, Err: errors.New("interrupted while the model was loading")}
		}
		return err
	}
	defer func() {
		if e := a.Close(context.Background()); e != nil && err == nil {
			err = &ExitError{Code: 1, Err: fmt.Errorf("shut down: %w", e)}
		}
	}()
	s := &session{job: j, app: a, out: cmd.OutOrStdout(), errs: stderr, thinking: j.thinks(a)}
	if f, ok := s.out.(*os.File); ok {
		s.terminal = term.IsTerminal(int(f.Fd()))
	}
	if j.interactive {
		stop() // the chat handles interrupts itself
		return s.chat(cmd.Context(), cmd.InOrStdin().(*os.File))
	}
	ids := j.ids
	if !j.raw {
		conv := conversation.Conversation{Thinking: s.thinking}
		conv.Messages = s.start()
		conv.Messages = append(conv.Messages, conversation.Message{Role: conversation.RoleUser, Content: j.text})
		p, err := s.render(&conv)
		if err != nil {
			return err
		}
		ids = p.Tokens
		s.parsing = &p.Parsing
	}
	if len(j.force) > 0 {
		return s.score(ctx, ids)
	}
	return s.once(ctx, ids)
}

func (j *job) thinks(a *app.App) bool {
	if j.thinking != "" {
		return j.thinking == "on"
	}
	return a.Thinking != nil && *a.Thinking
}

// params are the model's defaults under the flags.
func (j *job) params(g config.Generation) sample.Params {
	p := sample.Params{Temperature: float32(g.Temperature), TopP: float32(g.TopP), TopK: g.TopK}
	if !g.DoSample {
		p = sample.Greedy()
	}
	if j.set("temperature") {
		p.Temperature = float32(j.temperature)
		if !g.DoSample {
			p.TopP, p.TopK = float32(g.TopP), g.TopK
		}
	}
	if j.set("top-p") {
		p.TopP = float32(j.topP)
	}
	if j.set("seed") {
		p.Seed, p.Seeded = j.seed, true
	}
	return p
}

// request builds the engine's request for a prompt.
func (s *session) request(ids []int32) (engine.Request, error) {
	r := engine.Request{ID: "run", Prompt: ids, MaxTokens: s.maxTokens, Sampling: s.params(s.app.Model.Generation), IgnoreEOS: s.ignoreEOS, TopN: s.logprobs}
	if !s.set("max-tokens") {
		if left := s.app.Context - len(ids); left >= 1 {
			r.MaxTokens = min(r.MaxTokens, left)
		}
	}
	return r, nil
}

// failed gives an engine's error its exit code.
func failed(err error) error {
	var c *engine.ContextError
	var t *engine.TokenError
	var p *sample.ParamError
	var i *engine.ImageError
	code := 1
	if errors.As(err, &c) || errors.As(err, &t) || errors.As(err, &p) || errors.As(err, &i) || errors.Is(err, engine.ErrEmptyPrompt) {
		code = 2
	}
	if errors.Is(err, engine.ErrCancelled) || errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	return &ExitError{Code: code, Err: err}
}
