package launch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	plugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
)

// Spec says which worker to start.
type Spec struct {
	Worker  string   // worker executable
	Backend string   // name for the worker's resolve function
	Library *Library // sealed library, nil for backends linked into the worker
	Env     []string // "KEY=value" from the configuration; the host's environment is not inherited
	Epoch   uint32   // worker life, written into the ring
	Policy  wire.Policy

	Sandbox      Sandbox
	StartTimeout time.Duration // handshake and Hello; 0 = 10 s
	CoreDumps    bool          // leave RLIMIT_CORE alone; off sets it to 0
	OpenFiles    uint64        // RLIMIT_NOFILE, 0 = inherited
	Logger       *slog.Logger  // log of the worker; nil = none
}

// Sandbox says what a worker may touch. The zero value is the safe one: it reads files but writes only its scratch directory and device nodes, opens no TCP connection, gains no privileges, and
// cannot signal other processes, as far as the kernel knows these layers (Process.Layers tells).
type Sandbox struct {
	Off     bool     // no confinement at all
	Network bool     // TCP stays open
	Write   []string // further directories that may be written, absolute
}

// Layer is one confinement measure and what became of it: "applied", "unsupported" or "off".
type Layer struct{ Name, State, Detail string }

// ExitError says how a worker process ended and its last words.
type ExitError struct {
	PID   int
	State string // "exit status 3", "signal: aborted"
	Words string // last lines of its log
}

// Error formats the end and the last words.
func (e *ExitError) Error() string {
	s := fmt.Sprintf("worker process %d ended: %s", e.PID, e.State)
	if e.Words != "" {
		s += "; its last words:\n  " + strings.ReplaceAll(e.Words, "\n", "\n  ")
	}
	return s
}

// Process is one worker life.
type Process struct {
	Control controlpb.ControlClient
	Ring    *wire.HostRing
	Link    *wire.FileLink
	Hello   *controlpb.HelloReply
	Layers  []Layer
	PID     int

	client   *plugin.Client
	child    *child
	words    *words
	lifeline *os.File
	scratch  string
	claim    *os.File // locked while this process uses scratch
	stop     sync.Once
	stopErr  error
}

// Start launches a worker, completes the plugin handshake and Hello. On error nothing is left running. It returns early when ctx ends.
func Start(ctx context.Context, spec Spec) (*Process, error) {
	path, err := executable(spec.Worker)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("start worker: %w", err)
	}
	timeout := spec.StartTimeout
	if timeout <= 0 {
		timeout = 10 * time.Second
	}
	p := &Process{words: &words{log: spec.Logger}}
	var inherited []*os.File // the child's, closed here once it has them
	defer func() {
		for _, f := range inherited {
			f.Close()
		}
	}()
	fail := func(what string, err error) (*Process, error) {
		// A process that died is the better explanation of whatever call failed; give its end a moment to be noticed.
		if p.child != nil && p.child.started() {
			select {
			case <-p.child.exited:
			case <-time.After(100 * time.Millisecond):
			}
			switch e := p.Err(); {
			case e == nil:
			case !p.child.ended():
				err = e
			case p.Words() != "": // ended from here: its end explains nothing, its words may
				err = fmt.Errorf("%w; its last words:\n  %s", err, strings.ReplaceAll(p.Words(), "\n", "\n  "))
			}
		}
		p.Kill()
		return nil, errors.Join(fmt.Errorf("%s: %w", what, err), p.Stop(context.Background()))
	}
	sweep(os.TempDir(), time.Now())
	if p.scratch, err = os.MkdirTemp("", scratchPrefix); err != nil {
		return nil, fmt.Errorf("scratch directory of the worker: %w", err)
	}
	if p.claim, err = claim(p.scratch); err != nil {
		return fail("scratch directory of the worker", err)
	}
	life, lifeline, err := os.Pipe()
	if err != nil {
		return fail("lifeline", err)
	}
	p.lifeline = lifeline
	inherited = append(inherited, life)
	ring, err := wire.NewRing(spec.Epoch)
	if err != nil {
		return fail("step ring", err)
	}
	inherited = append(inherited, ring)
	if p.Ring, err = wire.OpenHost(ring, spec.Policy); err != nil {
		return fail("step ring", err)
	}
	link, peer, err := wire.NewFileLink()
	if err != nil {
		return fail("file link", err)
	}
	p.Link = link
	inherited = append(inherited, peer)

	cmd := &exec.Cmd{Path: path, Args: []string{path}, Dir: p.scratch, SysProcAttr: sysProcAttr()}
	cmd.Env = append(cmd.Env, "TMPDIR="+p.scratch, "HOME="+p.scratch, wire.EnvScratch+"="+p.scratch, wire.EnvBackend+"="+spec.Backend)
	cmd.ExtraFiles = []*os.File{life, ring, peer} // order: wire.FDLifeline, FDRing, FDLink, FDLibrary
	if l := spec.Library; l != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, l.file)
		cmd.Env = append(cmd.Env, wire.EnvLibrary+"="+l.Path, wire.EnvPluginDir+"="+l.Dir)
	}
	if s := spec.Sandbox; !s.Off {
		allow := []string{p.scratch}
		if s.Network {
			allow = append(allow, wire.SandboxNetwork)
		}
		for _, d := range s.Write {
			if !filepath.IsAbs(d) || strings.ContainsRune(d, os.PathListSeparator) {
				return fail("sandbox", fmt.Errorf("writable directory %q must be absolute and without %q", d, os.PathListSeparator))
			}
			allow = append(allow, d)
		}
		cmd.Env = append(cmd.Env, wire.EnvSandbox+"="+strings.Join(allow, string(os.PathListSeparator)))
	}
	cmd.Env = append(cmd.Env, spec.Env...)

	var born atomic.Pointer[child]
	p.client = plugin.NewClient(&plugin.ClientConfig{
		HandshakeConfig:  wire.Handshake,
		VersionedPlugins: wire.PluginSets(nil),
		AllowedProtocols: []plugin.Protocol{plugin.ProtocolGRPC},
		AutoMTLS:         true,
		SkipHostEnv:      true,
		StartTimeout:     timeout,
		Logger:           hclog.NewNullLogger(),
		Stderr:           p.words,
		SyncStdout:       io.Discard,
		SyncStderr:       io.Discard,
		UnixSocketConfig: &plugin.UnixSocketConfig{TempDir: p.scratch},
		GRPCDialOptions:  []grpc.DialOption{grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessage), grpc.MaxCallSendMsgSize(wire.MaxMessage))},
		RunnerFunc: func(_ hclog.Logger, add *exec.Cmd, _ string) (runner.Runner, error) {
			cmd.Env = append(cmd.Env, add.Env...)
			c, err := newChild(cmd, func(pid int) error { return limits(pid, spec) })
			if err != nil {
				return nil, err
			}
			p.child = c // read after Client returned
			born.Store(c)
			return c, nil
		},
	})
	type dialed struct {
		c   plugin.ClientProtocol
		err error
	}
	ready := make(chan dialed, 1)
	go func() {
		c, err := p.client.Client()
		ready <- dialed{c, err}
	}()
	var d dialed
	select {
	case d = <-ready:
	case <-ctx.Done():
		// The handshake cannot be cancelled: end the process under it, then collect the outcome.
		for waiting := true; waiting; {
			if c := born.Load(); c != nil {
				c.kill(unix.SIGKILL)
			}
			select {
			case <-ready:
				waiting = false
			case <-time.After(5 * time.Millisecond):
			}
		}
		return fail("start worker "+path, ctx.Err())
	}
	if d.err != nil {
		return fail("start worker "+path, shorten(d.err))
	}
	p.PID = p.child.pid
	raw, err := d.c.Dispense(wire.PluginName)
	if err != nil {
		return fail("start worker "+path, err)
	}
	p.Control = raw.(controlpb.ControlClient)
	hctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	p.Hello, err = p.Control.Hello(hctx, &controlpb.HelloRequest{Build: buildName(), Epoch: spec.Epoch, AbiMajor: abi.ABIMajor,
		RingLayout: &controlpb.Range{Min: wire.LayoutVersion, Max: wire.LayoutVersion}, OpSet: &controlpb.Range{Min: abi.OpSet, Max: abi.OpSet}})
	if err != nil {
		return fail("worker "+path, wire.FromStatus("Hello", err))
	}
	for _, l := range p.Hello.Layers {
		p.Layers = append(p.Layers, Layer{l.Name, l.State, l.Detail})
	}
	return p, nil
}

// shorten keeps the first line of the plugin library's long advice.
func shorten(err error) error {
	first, _, _ := strings.Cut(err.Error(), "\n")
	return errors.New(strings.TrimSpace(first))
}

func executable(path string) (string, error) {
	if path == "" {
		return "", errors.New("worker executable: no path configured")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("worker executable %s: %w", path, err)
	}
	st, err := os.Stat(abs)
	switch {
	case err != nil:
		return "", fmt.Errorf("worker executable %s: %w; `make build` puts deepinfer-worker beside deepinfer", abs, err)
	case !st.Mode().IsRegular() || st.Mode()&0o111 == 0:
		return "", fmt.Errorf("worker executable %s: not an executable file (%s)", abs, st.Mode())
	}
	return abs, nil
}

// limits are set from outside, before the worker was told to load anything.
func limits(pid int, spec Spec) error {
	if !spec.CoreDumps {
		if err := unix.Prlimit(pid, unix.RLIMIT_CORE, &unix.Rlimit{}, nil); err != nil {
			return fmt.Errorf("set RLIMIT_CORE of worker %d: %w", pid, err)
		}
	}
	if spec.OpenFiles > 0 {
		if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: spec.OpenFiles, Max: spec.OpenFiles}, nil); err != nil {
			return fmt.Errorf("set RLIMIT_NOFILE of worker %d to %d: %w", pid, spec.OpenFiles, err)
		}
	}
	return nil
}

func buildName() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		return b.Main.Path + " " + b.Main.Version
	}
	return "unknown"
}

// Exited is closed when the process has ended, within a millisecond or two.
func (p *Process) Exited() <-chan struct{} { return p.child.exited }

// Err is nil while the process runs, then an *ExitError.
func (p *Process) Err() error {
	if p.child == nil {
		return nil
	}
	select {
	case <-p.child.exited:
		// The pipe may still hold the last lines for an instant.
		for i := 0; i < 20 && !p.child.drained(); i++ {
			time.Sleep(time.Millisecond)
		}
		return &ExitError{PID: p.child.pid, State: p.child.state, Words: p.words.last()}
	default:
		return nil
	}
}

// Words returns the last lines of the worker's log.
func (p *Process) Words() string { return p.words.last() }

// Kill ends the process group at once. Safe at any time.
func (p *Process) Kill() {
	if p.child != nil {
		p.child.kill(unix.SIGKILL)
	}
}

// Terminate asks with SIGTERM and kills after grace.
func (p *Process) Terminate(grace time.Duration) {
	p.child.kill(unix.SIGTERM)
	select {
	case <-p.child.exited:
	case <-time.After(grace):
		p.child.kill(unix.SIGKILL)
	}
}

// Stop says goodbye, waits for the process to end, kills it when ctx ends first (or after two seconds of silence), and removes everything it had here. No other use of p may be
// running.
func (p *Process) Stop(ctx context.Context) error {
	p.stop.Do(func() { p.stopErr = p.end(ctx) })
	return p.stopErr
}

func (p *Process) end(ctx context.Context) error {
	var errs []error
	if p.client != nil {
		done := make(chan struct{})
		go func() {
			defer close(done)
			p.client.Kill()
		}()
		select {
		case <-done:
		case <-ctx.Done():
			p.Kill()
			<-done
		}
	}
	if p.child != nil {
		if p.child.started() {
			p.child.kill(unix.SIGKILL)
			<-p.child.exited
		}
		p.child.close()
	}
	if p.lifeline != nil {
		errs = append(errs, p.lifeline.Close())
	}
	if p.Link != nil {
		errs = append(errs, p.Link.Close())
	}
	if p.Ring != nil {
		errs = append(errs, p.Ring.Close())
	}
	errs = append(errs, os.RemoveAll(p.scratch))
	if p.claim != nil {
		errs = append(errs, p.claim.Close())
	}
	return errors.Join(errs...)
}

func sysProcAttr() *unix.SysProcAttr {
	return &unix.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
}

// child runs the process for the plugin library. One goroutine, locked to its thread, starts and reaps it: the kernel sends the parent-death signal when the *thread* that
// forked ends, so that thread must live as long as the child.
type child struct {
	cmd            *exec.Cmd
	after          func(pid int) error
	stdout, stderr *os.File
	outW, errW     *os.File

	exited chan struct{}
	mu     sync.Mutex
	pid    int
	alive  bool
	ours   bool // a signal was sent from here before the end
	state  string
	eof    chan struct{}
	once   sync.Once
}

func newChild(cmd *exec.Cmd, after func(int) error) (*child, error) {
	c := &child{cmd: cmd, after: after, exited: make(chan struct{}), eof: make(chan struct{})}
	var err error
	if c.stdout, c.outW, err = os.Pipe(); err != nil {
		return nil, err
	}
	if c.stderr, c.errW, err = os.Pipe(); err != nil {
		c.stdout.Close()
		c.outW.Close()
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = c.outW, c.errW
	return c, nil
}

// Start implements runner.Runner.
func (c *child) Start(context.Context) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		err := c.cmd.Start()
		c.outW.Close()
		c.errW.Close()
		if err != nil {
			started <- err
			return
		}
		pid := c.cmd.Process.Pid
		c.mu.Lock()
		c.pid, c.alive = pid, true
		c.mu.Unlock()
		started <- c.after(pid)
		for {
			// Wait without reaping: while the zombie holds its number, the group can be cleared without hitting a stranger.
			if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != unix.EINTR {
				break
			}
		}
		unix.Kill(-pid, unix.SIGKILL)
		c.mu.Lock()
		c.alive = false
		_ = c.cmd.Wait() // the state says how it ended
		c.state = c.cmd.ProcessState.String()
		c.mu.Unlock()
		close(c.exited)
	}()
	return <-started
}

func (c *child) started() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pid != 0
}

func (c *child) kill(sig unix.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.alive {
		c.ours = true
		unix.Kill(-c.pid, sig)
	}
}

// ended reports whether the process got its end from here.
func (c *child) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ours && strings.HasPrefix(c.state, "signal: ")
}

// close lets go of the pipes; also when the process never started.
func (c *child) close() {
	for _, f := range []*os.File{c.stdout, c.stderr, c.outW, c.errW} {
		f.Close()
	}
}

// drained reports whether the log pipe has reached its end.
func (c *child) drained() bool {
	select {
	case <-c.eof:
		return true
	default:
		return false
	}
}

// Wait implements runner.Runner.
func (c *child) Wait(context.Context) error {
	<-c.exited
	return nil
}

// Kill implements runner.Runner.
func (c *child) Kill(context.Context) error {
	c.kill(unix.SIGKILL)
	return nil
}

// Diagnose implements runner.Runner.
func (c *child) Diagnose(context.Context) string { return "" }

// Stdout implements runner.Runner.
func (c *child) Stdout() io.ReadCloser { return c.stdout }

// Stderr implements runner.Runner.
func (c *child) Stderr() io.ReadCloser { return &watched{c.stderr, c} }

// Name implements runner.Runner.
func (c *child) Name() string { return c.cmd.Path }

// ID implements runner.Runner.
func (c *child) ID() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid == 0 {
		return ""
	}
	return strconv.Itoa(c.pid)
}

// PluginToHost implements runner.Runner; both sides see the same files.
func (c *child) PluginToHost(network, addr string) (string, string, error) { return network, addr, nil }

// HostToPlugin implements runner.Runner.
func (c *child) HostToPlugin(network, addr string) (string, string, error) { return network, addr, nil }

// watched notes the end of the log pipe.
type watched struct {
	*os.File
	c *child
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.File.Read(b)
	if err != nil {
		w.c.once.Do(func() { close(w.c.eof) })
	}
	return n, err
}

var _ runner.Runner = (*child)(nil)
