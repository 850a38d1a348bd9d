package app

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/demo"
	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Options choose what Open puts together. Config is required.
type Options struct {
	Config   *conf.Config
	Dir      string // checkpoint directory instead of the configured one
	Backend  string // backend instead of the configured one: a label of the file, or a library's name
	Numerics string // "reference" or "production" instead of the configured value

	Seqs int // requests that run at once, 0 = scheduler.max_seqs
	Rows int // bound of scheduler.max_rows, 0 = none

	Notice   func(line string)                      // one line for people; nil = dropped
	Progress func(stage string, done, total uint64) // total 0 = unknown; may be nil. Called from one goroutine at a time
	Logger   *slog.Logger                           // nil = silent
}

// App is a model ready to answer.
type App struct {
	Name      string // of the model, as clients call it
	Aliases   []string
	Model     *model.Model
	Geometry  *model.Geometry
	Engine    *engine.Engine
	Executor  engine.Executor
	Tokenizer *token.Tokenizer  // nil: the checkpoint has none, only token ids work
	Encoder   *encoding.Encoder // nil without Tokenizer
	Context   int               // tokens of prompt and answer together
	Backend   string            // library that runs
	Numerics  string
	Thinking  *bool // what the configuration says where a request says nothing; nil = nothing
	CacheSize int64 // bytes of the KV pool
}

// Open loads the model and starts its engine. Errors carry an exit code (Error); what is no usage error is a failure.
func Open(ctx context.Context, opt Options) (*App, error) {
	a, err := open(ctx, opt)
	if err != nil {
		return nil, errors.Join(err, a.release(context.WithoutCancel(ctx)))
	}
	return a, nil
}

// open returns what it has got so far also when it fails.
func open(ctx context.Context, opt Options) (a *App, err error) {
	if opt.Notice == nil {
		opt.Notice = func(string) {}
	}
	if opt.Progress == nil {
		opt.Progress = func(string, uint64, uint64) {}
	}
	if opt.Logger == nil {
		opt.Logger = slog.New(slog.DiscardHandler)
	}
	cfg, mc := opt.Config, opt.Config.Model()
	a = &App{Name: mc.ID(), Aliases: mc.Aliases, Numerics: mc.Numerics}
	if mc.ServedName != "" {
		a.Aliases = append([]string{mc.Name}, mc.Aliases...)
	}
	if opt.Numerics != "" {
		a.Numerics = opt.Numerics
	}
	if a.Numerics != "reference" && a.Numerics != "production" {
		return a, usage(fmt.Errorf("numerics %q: must be reference or production", a.Numerics))
	}
	if mc.Thinking == "on" || mc.Thinking == "off" {
		on := mc.Thinking == "on"
		a.Thinking = &on
	}
	candidates, err := backends(cfg, opt.Backend, mc.Backend)
	if err != nil {
		return a, err
	}
	opt.Progress("reading the model", 0, 0)
	if err := a.openModel(opt, mc); err != nil {
		return a, err
	}
	if err := ctx.Err(); err != nil {
		return a, err
	}
	if err := a.openTokenizer(); err != nil {
		return a, err
	}
	a.Context = a.Model.Config.MaxPositionEmbeddings
	if mc.Context > a.Context {
		return a, usage(fmt.Errorf("model %q: context = %d: the checkpoint allows %d (max_position_embeddings)", mc.Name, mc.Context, a.Context))
	}
	if mc.Context > 0 {
		a.Context = mc.Context
	}

	// The first backend of the list that starts is taken. A list of one is a choice: then its error is the answer.
	var tried []error
	for i, c := range candidates {
		if err = a.start(ctx, opt, c); err == nil {
			break
		}
		if ctx.Err() != nil {
			return a, ctx.Err()
		}
		tried = append(tried, fmt.Errorf("backend %q: %w", c.Name, err))
		var u *Error
		if errors.As(err, &u) || c.Required || i == len(candidates)-1 {
			if errors.As(err, &u) {
				return a, &Error{Code: u.Code, Err: errors.Join(tried...)}
			}
			return a, errors.Join(tried...)
		}
		opt.Notice(fmt.Sprintf("backend %q did not start (%v); trying %q", c.Name, oneLine(err), candidates[i+1].Name))
	}
	return a, nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func (a *App) openModel(opt Options, mc conf.Model) (err error) {
	dir := opt.Dir
	if dir == "" {
		dir = mc.Path
	} else if opt.Dir != mc.Path {
		a.Name, a.Aliases = baseName(opt.Dir), nil
	}
	if dir != "" {
		if info, e := os.Stat(dir); e != nil || !info.IsDir() {
			if e == nil {
				e = errors.New("not a directory")
			}
			return usage(fmt.Errorf("model %s: %w; give the directory that holds config.json and the safetensors files", dir, e))
		}
		if a.Model, err = model.Load(dir); err != nil {
			return brief(err, dir)
		}
		return nil
	}
	files, err := demo.Files()
	if err != nil {
		return fmt.Errorf("unpack the embedded demo model: %w", err)
	}
	if files == nil {
		return usage(errors.New("this build has no demo model (it was built with the tag nodemo); give a checkpoint: --model DIR, or model \"NAME\" { path = ... } in the configuration"))
	}
	a.Model, err = model.LoadFS(files, "the embedded demo model")
	return err
}

// brief cuts an error that has a line for each of many tensors.
func brief(err error, dir string) error {
	const keep = 6
	lines := strings.Split(strings.TrimRight(err.Error(), "\n"), "\n")
	if len(lines) <= keep+2 {
		return err
	}
	return &cut{text: fmt.Sprintf("%s\n... and %d more lines; `deepinfer model verify %s` gives them all", strings.Join(lines[:keep], "\n"), len(lines)-keep, dir), err: err}
}

// cut is an error with a shorter text.
type cut struct {
	text string
	err  error
}

func (c *cut) Error() string { return c.text }
func (c *cut) Unwrap() error { return c.err }

func baseName(dir string) string {
	dir = strings.TrimRight(strings.ReplaceAll(dir, `\`, "/"), "/")
	if i := strings.LastIndexByte(dir, '/'); i >= 0 {
		dir = dir[i+1:]
	}
	if dir == "" || dir == "." || dir == ".." {
		return "model"
	}
	return dir
}

// openTokenizer reads tokenizer.json. A checkpoint without one can be used with token ids alone.
func (a *App) openTokenizer() error {
	raw, err := fs.ReadFile(a.Model.Files, "tokenizer.json")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the tokenizer: %w", err)
	}
	t, err := token.Parse(raw)
	if err != nil {
		return err // names tokenizer.json
	}
	c := a.Model.Config
	if t.VocabSize() > c.VocabSize {
		return fmt.Errorf("tokenizer.json has ids up to %d, the model's vocabulary has %d entries (vocab_size): the tokenizer belongs to another model", t.VocabSize()-1, c.VocabSize)
	}
	profile := encoding.V41Recipe
	if c.V4() {
		profile = encoding.V4Recipe
	}
	enc, err := encoding.New(profile, t)
	if err != nil {
		return fmt.Errorf("tokenizer.json: %w", err)
	}
	if eos := int(enc.EOS()); !contains(a.Model.Generation.EOSTokenIDs, eos) {
		return fmt.Errorf("tokenizer.json ends an answer with token %d, the model's configuration with %v: the tokenizer belongs to another model", eos, a.Model.Generation.EOSTokenIDs)
	}
	a.Tokenizer, a.Encoder = t, enc
	return nil
}

func contains(list []int, v int) bool {
	for _, x := range list {
		if x == v {
			return true
		}
	}
	return false
}

// start brings the model up on one backend, or leaves nothing behind.
func (a *App) start(ctx context.Context, opt Options, c candidate) (err error) {
	exec, acc, err := c.executor(opt)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, exec.Close(context.WithoutCancel(ctx)))
		}
	}()
	cfg := opt.Config
	gopt := model.Options{Numerics: a.Numerics, Acc: acc}
	graph, err := model.NewGraph(a.Model.Config, gopt)
	if err != nil {
		return usage(err)
	}
	geo := graph.Geometry

	rows := cfg.Scheduler.MaxRows
	if opt.Rows > 0 {
		rows = min(rows, opt.Rows)
	}
	seqs := cfg.Scheduler.MaxSeqs
	if opt.Seqs > 0 {
		seqs = min(seqs, opt.Seqs)
	}
	if seqs > rows {
		return usage(fmt.Errorf("scheduler.max_seqs = %d is more than scheduler.max_rows = %d: every running request needs a row of the step", seqs, rows))
	}
	granules, err := a.granules(cfg, geo, seqs)
	if err != nil {
		return err
	}
	a.CacheSize = int64(granules) * geo.GranuleStride

	opt.Progress("planning", 0, 0)
	var programs []*program.Program
	for _, n := range plan.Buckets(rows) {
		p, err := plan.Lower(graph, program.Bucket{Rows: n, Seqs: min(n, seqs), Logits: n})
		if err != nil {
			return err
		}
		programs = append(programs, p)
	}
	eg := engine.Geometry{
		Window: geo.Window, GranuleTokens: model.GranuleTokens, NHist: geo.NHist, Vocab: a.Model.Config.VocabSize, MaxContext: a.Context, ImageToken: -1,
	}
	for _, id := range a.Model.Generation.EOSTokenIDs {
		eg.EOS = append(eg.EOS, int32(id))
	}
	var tower *program.Program
	if v := a.Model.Config.Vision; v != nil && a.Model.Config.ImageTokenID >= 0 {
		vg, err := model.NewVisionGraph(a.Model.Config, gopt)
		if err != nil {
			return err
		}
		r := v.DownsampleRatio
		if tower, err = plan.Lower(vg, program.Bucket{Rows: v.MaxImageTokens * r * r, Seqs: 1, Logits: v.MaxImageTokens}); err != nil {
			return err
		}
		eg.ImageToken, eg.Downsample = int32(a.Model.Config.ImageTokenID), r
	}

	const stage = "loading weights"
	opt.Progress(stage, 0, 0)
	err = exec.Load(ctx, engine.ModelSpec{
		Weights: a.Model.Weights, SlotBytes: geo.SlotBytes, Slots: seqs, Granule: geo.GranuleStride, Granules: granules,
		Progress: func(done, total int64) { opt.Progress(stage, uint64(done), uint64(total)) },
	})
	if err != nil {
		return err
	}
	opt.Progress("compiling", 0, 0)
	e, err := engine.New(engine.Options{
		Executor: exec, Geometry: eg, Programs: programs, Vision: tower,
		Limits:       sched.Limits{Slots: seqs, Granules: granules, MaxRows: rows, MaxSeqs: seqs, MaxLogits: rows, MaxQueue: cfg.QueueLimit()},
		QueueTimeout: cfg.Limits.QueueTimeout, Logger: opt.Logger,
	})
	if err != nil {
		return err
	}
	a.Engine, a.Executor, a.Geometry, a.Backend = e, exec, geo, c.LibraryName()
	return nil
}

// granules sizes the KV pool: what the configuration says, else what all requests could use, bounded by a quarter of main memory.
func (a *App) granules(cfg *conf.Config, geo *model.Geometry, seqs int) (int, error) {
	const size = model.GranuleTokens
	full := (a.Context + size - 1) / size // one request that fills the context
	stride := max(geo.GranuleStride, 1)
	n, from := 0, ""
	if m := int64(cfg.Cache.Memory); m > 0 {
		n, from = int(min(m/stride, 1<<30)), fmt.Sprintf("cache.memory = %d bytes", m)
	}
	if g := cfg.Cache.Granules; g > 0 && (n == 0 && from == "" || g < n) {
		n, from = g, fmt.Sprintf("cache.granules = %d", g)
	}
	if from == "" {
		n = min(seqs*full, 1<<20)
		if total := memoryTotal(); total > 0 {
			n = min(n, int(total/4/stride))
		}
		n, from = max(n, 1), "a quarter of main memory"
	}
	if cfg.Cache.Memory == 0 && cfg.Cache.Granules == 0 && n >= full {
		return n, nil
	}
	if n < 2 {
		return 0, usage(fmt.Errorf("%s: holds %d granules of %d bytes (%d tokens each): needs at least %d bytes for a short request, and %d for one that fills the context of %d tokens", from, n, stride, size, 2*stride, int64(full)*stride, a.Context))
	}
	return n, nil
}

// Close stops the engine and ends the backend. Requests that run are cancelled: drain the engine first.
func (a *App) Close(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, 15*time.Second)
		defer cancel()
	}
	return a.release(ctx)
}

func (a *App) release(ctx context.Context) error {
	var errs []error
	if a.Engine != nil {
		errs = append(errs, a.Engine.Close(ctx))
	}
	if a.Executor != nil {
		errs = append(errs, a.Executor.Close(ctx))
	}
	if a.Model != nil {
		errs = append(errs, a.Model.Close())
	}
	return errors.Join(errs...)
}

// accumulator translates the configured type of sums.
func accumulator(name string) uint32 {
	if name == "float64" {
		return abi.F64
	}
	return abi.F32
}
