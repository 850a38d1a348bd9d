package engine

import (
	"context"
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Geometry is what the engine must know of a model.
type Geometry struct {
	Window        int     // W; 0 = 128
	GranuleTokens int     // tokens of a KV granule; 0 = 128
	NHist         int     // preceding tokens that each sequence of a step carries (Program.NHist)
	Vocab         int     // V
	MaxContext    int     // prompt and answer together at most
	EOS           []int32 // ids that end an answer
	ImageToken    int32   // id of every position of an image span; <= 0 = the model takes no images
	Downsample    int     // r: an image cell covers r x r patches; needed with Vision
}

// Options configure an engine.
type Options struct {
	// Executor must have been loaded, with the pool sizes of Limits. The engine compiles programs on it and is its only user from then on; the caller
	// closes it after the engine.
	Executor Executor
	Geometry Geometry
	Programs []*program.Program // the main graph by bucket, ascending; a step runs in the smallest that fits
	Vision   *program.Program   // optional: the image tower
	// Limits bound the scheduler. Slots and Granules are required. MaxRows, MaxSeqs, MaxLogits default to the largest bucket.
	Limits sched.Limits

	Blocked []int32 // ids that no request draws, at most sample.MaxBiasIDs; forced ids may be among them

	QueueTimeout   time.Duration // a request that waits longer for its first step ends with sched.ErrExpired; 0 = never
	StreamBuffer   int           // tokens that wait for a slow reader before its request ends with ErrSlowConsumer; 0 = 65536
	CompileTimeout time.Duration // for all programs together; 0 = 10 minutes

	Clock  func() time.Time // nil = time.Now
	Random func() uint64    // seeds of requests that bring none; nil = the system's random source. Called from many goroutines.
	Logger *slog.Logger     // nil = silent
}

// compiled is a program with its id.
type compiled struct {
	id     uint32
	bucket program.Bucket
	prog   *program.Program
}

// Engine runs requests. All methods are safe for concurrent use.
type Engine struct {
	exec         Executor
	geo          Geometry
	programs     []compiled
	vision       *compiled
	patch        int // width of a vision input row
	hidden       int // width of an image row of the main programs, 0 = none
	topN         int // candidates per logit row at most
	blocked      []int32
	blocks       []abi.Bias // the entries that block them
	queueTimeout time.Duration
	streamBuffer int
	clock        func() time.Time
	random       func() uint64
	log          *slog.Logger

	cmds    chan command
	closing chan struct{}      // closed by Close
	done    chan struct{}      // closed when both goroutines have ended
	once    sync.Once          // for closing
	stop    context.CancelFunc // ends the executor calls
	fatal   atomic.Pointer[error]

	loop loop // owned by the loop goroutine
}

// New compiles the programs and starts the engine. Close stops it.
func New(opt Options) (*Engine, error) {
	if opt.Executor == nil || len(opt.Programs) == 0 {
		return nil, errors.New("new engine: an executor and at least one program are needed")
	}
	g := opt.Geometry
	if g.Window == 0 {
		g.Window = 128
	}
	if g.GranuleTokens == 0 {
		g.GranuleTokens = 128
	}
	var errs []error
	for _, f := range []struct {
		name   string
		v, low int
	}{{"window", g.Window, 1}, {"granule tokens", g.GranuleTokens, 1}, {"history", g.NHist, 0}, {"vocabulary", g.Vocab, 1}, {"context", g.MaxContext, 2}} {
		if f.v < f.low || f.v > 1<<31-1 {
			errs = append(errs, fmt.Errorf("new engine: %s %d: must be in %d..2147483647", f.name, f.v, f.low))
		}
	}
	for _, id := range g.EOS {
		if id < 0 || int(id) >= g.Vocab {
			errs = append(errs, fmt.Errorf("new engine: end id %d outside a vocabulary of %d", id, g.Vocab))
		}
	}
	blocks, err := checkBlocked(opt.Blocked, g.Vocab)
	if err != nil {
		errs = append(errs, err)
	}
	e := &Engine{
		blocked: slices.Clone(opt.Blocked), blocks: blocks,
		exec: opt.Executor, geo: g, topN: opt.Programs[0].TopN,
		queueTimeout: opt.QueueTimeout, streamBuffer: opt.StreamBuffer, clock: opt.Clock, random: opt.Random, log: opt.Logger,
		cmds: make(chan command, 64), closing: make(chan struct{}), done: make(chan struct{}),
	}
	if e.streamBuffer == 0 {
		e.streamBuffer = 1 << 16
	}
	if e.clock == nil {
		e.clock = time.Now
	}
	if e.random == nil {
		e.random = systemRandom
	}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	for i, p := range opt.Programs {
		if i > 0 {
			if a, b := opt.Programs[i-1].Bucket, p.Bucket; b.Rows <= a.Rows || b.Seqs < a.Seqs || b.Logits < a.Logits {
				errs = append(errs, fmt.Errorf("new engine: program %d has bucket %+v after %+v: programs must ascend", i, b, a))
			}
		}
		if p.NHist != g.NHist {
			errs = append(errs, fmt.Errorf("new engine: program %d reads %d preceding tokens, the geometry says %d", i, p.NHist, g.NHist))
		}
		width := 0
		if k := p.Find(program.InputName); k >= 0 {
			width = p.Buffers[k].Width()
		}
		if i > 0 && width != e.hidden {
			errs = append(errs, fmt.Errorf("new engine: program %d takes image rows of %d values, program 0 of %d", i, width, e.hidden))
		}
		e.hidden = width
		e.topN = min(e.topN, p.TopN)
	}
	if opt.Vision != nil {
		k := opt.Vision.Find(program.InputName)
		if k < 0 || g.Downsample < 1 || e.hidden == 0 {
			errs = append(errs, fmt.Errorf("new engine: a vision program needs an input, a geometry with downsample (is %d) and a main program with image rows of H values (is %d)", g.Downsample, e.hidden))
		} else {
			e.patch = opt.Vision.Buffers[k].Width()
		}
	}
	largest := opt.Programs[len(opt.Programs)-1].Bucket
	lim := opt.Limits
	for _, f := range []struct {
		name  string
		v     *int
		bound int
	}{{"rows", &lim.MaxRows, largest.Rows}, {"sequences", &lim.MaxSeqs, largest.Seqs}, {"logits", &lim.MaxLogits, largest.Logits}} {
		if *f.v == 0 {
			*f.v = f.bound
		}
		if *f.v > f.bound {
			errs = append(errs, fmt.Errorf("new engine: %d %s a step, the largest program holds %d", *f.v, f.name, f.bound))
		}
	}
	lim.GranuleTokens, lim.Window = g.GranuleTokens, g.Window
	s, err := sched.New(lim)
	if err != nil {
		errs = append(errs, err)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	timeout := opt.CompileTimeout
	if timeout == 0 {
		timeout = 10 * time.Minute
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	compile := func(p *program.Program) (compiled, error) {
		id, err := e.exec.Compile(ctx, p)
		if err != nil {
			err = fmt.Errorf("new engine: compile %s for %d rows: %w", p.Name, p.Bucket.Rows, err)
		}
		return compiled{id: id, bucket: p.Bucket, prog: p}, err
	}
	for _, p := range opt.Programs {
		c, err := compile(p)
		if err != nil {
			return nil, err
		}
		e.programs = append(e.programs, c)
	}
	if opt.Vision != nil {
		c, err := compile(opt.Vision)
		if err != nil {
			return nil, err
		}
		e.vision = &c
	}
	run, stop := context.WithCancel(context.Background())
	e.stop = stop
	e.loop.init(s)
	go e.device(run)
	go e.run()
	return e, nil
}

func systemRandom() uint64 {
	var b [8]byte
	_, _ = crand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return binary.LittleEndian.Uint64(b[:])
}

// Submit queues a request. Its stream ends with ErrCancelled when ctx ends. Errors: ErrEmptyPrompt, *ContextError, *TokenError, *ImageError,
// *sample.ParamError (possibly joined) for what is wrong with the request; *sched.OverloadError and *sched.CapacityError for what does not fit here;
// ErrDraining, ErrClosed and Err for the state of the engine. A request whose own matcher fails, or that may draw nothing, ends with *ConstraintError.
func (e *Engine) Submit(ctx context.Context, r Request) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q, err := e.check(r)
	if err != nil {
		return nil, err
	}
	if err := e.send(ctx, command{kind: cmdArrive, req: q}); err != nil {
		return nil, err
	}
	select { // the loop answers at once, whatever the device does
	case err := <-q.reply:
		if err != nil {
			return nil, err
		}
	case <-e.done:
		return nil, ErrClosed
	}
	q.stream.watch(ctx)
	return q.stream, nil
}

// EncodeImage runs the vision program over the patches of one image, BF16 [gridH*gridW, 3pp], and returns the rows of its cells, BF16 [cells, H] in reading
// order, cells = ceil(gridH/r)*ceil(gridW/r). It waits for its turn between other steps. patches belongs to the engine from the call on and must not change
// any more.
func (e *Engine) EncodeImage(ctx context.Context, patches []uint16, gridH, gridW int) ([]uint16, error) {
	if e.vision == nil {
		return nil, ErrNoVision
	}
	b := e.vision.bucket
	if gridH < 1 || gridW < 1 || gridH > b.Rows || gridW > b.Rows || gridH*gridW > b.Rows {
		return nil, &ImageError{Index: -1, Msg: fmt.Sprintf("image of %d x %d patches: the image tower takes up to %d patches", gridH, gridW, b.Rows)}
	}
	if len(patches) != gridH*gridW*e.patch {
		return nil, &ImageError{Index: -1, Msg: fmt.Sprintf("image of %d x %d patches: %d values, must be %d", gridH, gridW, len(patches), gridH*gridW*e.patch)}
	}
	r := e.geo.Downsample
	cells := (gridH + r - 1) / r * ((gridW + r - 1) / r)
	if cells > b.Logits {
		return nil, &ImageError{Index: -1, Msg: fmt.Sprintf("image of %d x %d patches: %d cells, the image tower gives up to %d", gridH, gridW, cells, b.Logits)}
	}
	job := &imageJob{patches: patches, gridH: gridH, gridW: gridW, cells: cells, reply: make(chan imageReply, 1)}
	if err := e.send(ctx, command{kind: cmdImage, image: job}); err != nil {
		return nil, err
	}
	select {
	case rep := <-job.reply:
		return rep.rows, rep.err
	case <-ctx.Done():
		_ = e.send(context.Background(), command{kind: cmdImageCancel, image: job}) // fails only when the engine has ended, and the job with it
		return nil, ctx.Err()
	case <-e.done:
		return nil, ErrClosed
	}
}

// Err returns why the engine can serve no more, nil while it can.
func (e *Engine) Err() error {
	if p := e.fatal.Load(); p != nil {
		return *p
	}
	return nil
}

// Facts returns the executor's facts.
func (e *Engine) Facts() Facts { return e.exec.Facts() }

// Limits returns the scheduler's limits, with defaults applied.
func (e *Engine) Limits() sched.Limits { return e.loop.sched.Limits() }

// Drain refuses new requests from now on and waits until all accepted ones have ended.
func (e *Engine) Drain(ctx context.Context) error {
	idle := make(chan struct{})
	if err := e.send(ctx, command{kind: cmdDrain, idle: idle}); err != nil {
		return err
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("drain: %w", ctx.Err())
	case <-e.done:
		return ErrClosed
	}
}

// Close cancels what still runs and stops the engine. It returns when no goroutine of the engine is left, or with ctx's error. The executor stays the
// caller's to close. Close may be called twice.
func (e *Engine) Close(ctx context.Context) error {
	e.once.Do(func() {
		close(e.closing)
		e.stop()
	})
	select {
	case <-e.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close engine: the executor did not return from its call: %w", ctx.Err())
	}
}

// send hands a command to the loop.
func (e *Engine) send(ctx context.Context, c command) error {
	select {
	case <-e.done: // also when the channel has room
		return ErrClosed
	default:
	}
	select {
	case e.cmds <- c:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.done:
		return ErrClosed
	}
}
