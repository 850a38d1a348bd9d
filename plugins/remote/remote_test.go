//go:build linux

package remote

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/plugins/internal/tiny"
	"github.com/deepinfer-go/deepinfer/plugins/supervise"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

var (
	workerPath string
	tempDir    string
)

// cpuLibrary builds the cpu library once, where a compiler is present, and returns its directory.
var cpuLibrary = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(tempDir, "backends")
	out, err := exec.Command("make", "-s", "-C", "../../backends/cpu", "OUT="+dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("build cpu.so: %w\n%s", err, out)
	}
	return dir, err
})

// TestMain builds the stock worker.
func TestMain(m *testing.M) { os.Exit(setup(m)) }

func setup(m *testing.M) int {
	dir, err := os.MkdirTemp("", "remote-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	if os.Getenv("REMOTE_TEST_ORPHAN") != "" { // the helper of TestWorkersLeaveWithTheEngine has a worker already
		return m.Run()
	}
	workerPath = filepath.Join(dir, "deepinfer-worker")
	build := exec.Command("go", "build", "-o", workerPath, "github.com/deepinfer-go/deepinfer/cmd/deepinfer-worker")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build worker: %v\n%s", err, out)
		return 1
	}
	tempDir = dir
	return m.Run()
}

var quick = supervise.Limits{BackoffMin: time.Millisecond, BackoffMax: time.Millisecond, Crashes: 50}

func fds(t *testing.T) map[string]string {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range list {
		if l, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && !strings.HasPrefix(l, "anon_inode") && !strings.HasSuffix(l, "/fd") {
			m[e.Name()] = l
		}
	}
	return m
}

func children() []string {
	b, _ := os.ReadFile("/proc/self/task/" + strconv.Itoa(os.Getpid()) + "/children")
	out := strings.Fields(string(b))
	tasks, _ := os.ReadDir("/proc/self/task")
	for _, k := range tasks {
		b, _ := os.ReadFile("/proc/self/task/" + k.Name() + "/children")
		out = append(out, strings.Fields(string(b))...)
	}
	return out
}

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(b), "memfd:deepinfer")
}

func scratch(t *testing.T) int {
	t.Helper()
	l, err := filepath.Glob(filepath.Join(os.TempDir(), "deepinfer-worker-*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(l)
}

// noLeaks checks at the end of a test that processes, descriptors, mappings, goroutines and files are as before.
func noLeaks(t *testing.T) {
	t.Helper()
	goroutines, files, maps := runtime.NumGoroutine(), fds(t), mappings(t)
	t.Cleanup(func() {
		var why string
		for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
			why = ""
			if n := runtime.NumGoroutine(); n > goroutines {
				why += fmt.Sprintf("%d goroutines before, %d after; ", goroutines, n)
			}
			for fd, l := range fds(t) {
				if _, ok := files[fd]; !ok {
					why += "descriptor " + fd + " " + l + "; "
				}
			}
			if n := mappings(t); n > maps {
				why += fmt.Sprintf("%d mappings before, %d after; ", maps, n)
			}
			if c := children(); len(c) > 0 {
				why += fmt.Sprintf("children %v; ", c)
			}
			if why == "" {
				return
			}
			if time.Now().After(end) {
				break
			}
		}
		buf := make([]byte, 1<<16)
		t.Errorf("left behind: %s\n%s", why, buf[:runtime.Stack(buf, true)])
	})
}

func options(name string, rules ...string) Options {
	o := Options{Worker: workerPath, Backend: name, Limits: quick}
	if len(rules) > 0 {
		for i := range rules {
			rules[i] = strconv.Quote(rules[i])
		}
		o.Open.Config = []byte(`{"rules":[` + strings.Join(rules, ",") + `]}`)
	}
	return o
}

func load(t *testing.T, o Options) (*Executor, uint32) {
	t.Helper()
	noLeaks(t)
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	ctx := context.Background()
	var last, total int64
	spec := tiny.Spec(tiny.Embedded())
	spec.Progress = func(d, n int64) { last, total = d, n }
	if err := e.Load(ctx, spec); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Compile(ctx, tiny.Program(2)); err != nil {
		t.Fatal(err)
	}
	id, err := e.Compile(ctx, tiny.Program(8))
	if err != nil || id != 1 {
		t.Fatal(id, err)
	}
	if last != total || total == 0 {
		t.Errorf("progress ended at %d of %d bytes", last, total)
	}
	return e, id
}

func run(t *testing.T, e *Executor, s *program.Step) {
	t.Helper()
	if err := e.Submit(s); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := e.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := tiny.Check(s, r); err != nil {
		t.Fatal(err)
	}
}

// steps runs many steps at full depth.
func steps(t *testing.T, e *Executor, id uint32, n int) {
	t.Helper()
	var held []*program.Step
	sent := 0
	for range n {
		for sent < n {
			s := tiny.Step(uint64(sent), id, int32(sent), int32(sent%tiny.Vocab), 7, int32(sent*3%tiny.Vocab))
			err := e.Submit(s)
			if errors.Is(err, engine.ErrFull) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			held, sent = append(held, s), sent+1
		}
		if len(held) > 2 {
			t.Fatalf("%d steps in flight at depth 2", len(held))
		}
		r, err := e.Wait(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := tiny.Check(held[0], r); err != nil {
			t.Fatal(err)
		}
		held = held[1:]
	}
}

func TestStepsOnRef(t *testing.T) {
	e, id := load(t, options("ref"))
	f := e.Facts()
	if f.Backend != "ref" || f.Depth != 2 || f.PID == 0 || f.Device.Name == "" {
		t.Errorf("%+v", f)
	}
	if s := e.Status(); s.State != supervise.Ready || s.Device != supervise.Healthy || s.Epoch != 1 || len(s.Layers) == 0 || !strings.Contains(strings.Join(s.Layers, " "), "process_group: applied") {
		t.Errorf("%+v", s)
	}
	steps(t, e, id, 100)
}

func TestStepsOnTheCPULibrary(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("no g++: cpu.so cannot be built")
	}
	cpuDir, err := cpuLibrary()
	if err != nil {
		t.Fatal(err)
	}
	o := options("cpu")
	o.Library, o.PluginDir = filepath.Join(cpuDir, "cpu.so"), cpuDir
	e, id := load(t, o)
	if s := e.Status(); len(s.SHA256) != 64 {
		t.Errorf("%+v", s)
	}
	steps(t, e, id, 100)
	kill(t, e)
	if _, err := e.Wait(context.Background()); !errors.Is(err, engine.ErrLost) {
		t.Fatal(err)
	}
	if err := e.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	steps(t, e, id, 20)
}

func TestWeightsFromAFile(t *testing.T) {
	noLeaks(t)
	w, err := tiny.OnDisk(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	e, err := New(options("ref"))
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close(context.Background())
	if err := e.Load(context.Background(), tiny.Spec(w)); err != nil {
		t.Fatal(err)
	}
	id, err := e.Compile(context.Background(), tiny.Program(4))
	if err != nil {
		t.Fatal(err)
	}
	// The name may go; the restarted worker maps the bytes that were checked.
	if err := os.Remove(w.File.Path); err != nil {
		t.Fatal(err)
	}
	run(t, e, tiny.Step(1, id, 0, 9))
	if err := e.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	run(t, e, tiny.Step(2, id, 0, 9))
}

func kill(t *testing.T, e *Executor) {
	t.Helper()
	if err := syscall.Kill(e.Facts().PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// lostWithin waits for ErrLost and says how long it took.
func lost(t *testing.T, e *Executor, step uint64) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	began := time.Now()
	_, err := e.Wait(ctx)
	took := time.Since(began)
	if !errors.Is(err, engine.ErrLost) {
		t.Fatalf("wait on a dead worker: %v", err)
	}
	var se *engine.StepError
	if step > 0 && (!errors.As(err, &se) || se.Seq != step || se.Scope < backend.ScopeDevice) {
		t.Fatalf("error does not name step %d: %v", step, err)
	}
	if _, err := e.Wait(ctx); !errors.Is(err, engine.ErrLost) {
		t.Fatalf("second wait: %v", err)
	}
	if err := e.Submit(tiny.Step(99, 0, 0, 1)); !errors.Is(err, engine.ErrLost) {
		t.Fatalf("submit to a dead worker: %v", err)
	}
	return took
}

func TestKillInEachState(t *testing.T) {
	t.Run("idle", func(t *testing.T) {
		e, id := load(t, options("ref"))
		run(t, e, tiny.Step(1, id, 0, 1))
		first := e.Facts().PID
		kill(t, e)
		lost(t, e, 0)
		if err := e.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		if p := e.Facts().PID; p == first || p == 0 {
			t.Errorf("pid %d, was %d", p, first)
		}
		steps(t, e, id, 10)
		run(t, e, tiny.Step(11, 0, 0, 3)) // the first program's id as well
	})
	t.Run("before any program", func(t *testing.T) {
		noLeaks(t)
		e, err := New(options("ref"))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(context.Background())
		ctx := context.Background()
		if err := e.Load(ctx, tiny.Spec(tiny.Embedded())); err != nil {
			t.Fatal(err)
		}
		kill(t, e)
		if _, err := e.Compile(ctx, tiny.Program(2)); !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatal(err)
		}
		if err := e.Recover(ctx); err != nil {
			t.Fatal(err)
		}
		id, err := e.Compile(ctx, tiny.Program(2))
		if err != nil || id != 0 {
			t.Fatal(id, err)
		}
		run(t, e, tiny.Step(1, id, 0, 3))
	})
	t.Run("in mid-step, ring full", func(t *testing.T) {
		e, id := load(t, options("fault", "op=head step>=1 -> hang"))
		run(t, e, tiny.Step(1, id, 0, 1))
		for i := range 2 {
			if err := e.Submit(tiny.Step(uint64(2+i), id, 0, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := e.Submit(tiny.Step(4, id, 0, 1)); !errors.Is(err, engine.ErrFull) {
			t.Fatal(err)
		}
		time.AfterFunc(50*time.Millisecond, func() { syscall.Kill(e.Facts().PID, syscall.SIGKILL) })
		took := lost(t, e, 2)
		t.Logf("lost was reported %s after Wait began, the kill came at 50ms", took)
		if err := e.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		run(t, e, tiny.Step(5, id, 0, 1))
	})
	t.Run("by itself, in a step", func(t *testing.T) {
		e, id := load(t, options("fault", "op=head step=2 -> kill"))
		for life := range 3 {
			for i := range 2 {
				run(t, e, tiny.Step(uint64(10*life+i), id, 0, 1))
			}
			if err := e.Submit(tiny.Step(uint64(10*life+2), id, 0, 1)); err != nil {
				t.Fatal(err)
			}
			lost(t, e, uint64(10*life+2))
			if err := e.Recover(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		if s := e.Status(); s.Epoch != 4 {
			t.Errorf("epoch %d after three deaths", s.Epoch)
		}
	})
	t.Run("while opening", func(t *testing.T) {
		noLeaks(t)
		e, err := New(options("fault", "op=open -> kill"))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(context.Background())
		if err := e.Load(context.Background(), tiny.Spec(tiny.Embedded())); err == nil || !strings.Contains(err.Error(), "signal: killed") {
			t.Fatal(err)
		}
	})
	t.Run("while compiling", func(t *testing.T) {
		noLeaks(t)
		e, err := New(options("fault", "op=prepare call=2 -> kill"))
		if err != nil {
			t.Fatal(err)
		}
		defer e.Close(context.Background())
		if err := e.Load(context.Background(), tiny.Spec(tiny.Embedded())); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Compile(context.Background(), tiny.Program(2)); !errors.Is(err, engine.ErrLost) {
			t.Fatal(err)
		}
	})
	t.Run("while closing", func(t *testing.T) {
		e, id := load(t, options("ref"))
		run(t, e, tiny.Step(1, id, 0, 1))
		kill(t, e)
	})
}

func TestDeviceErrorIsLostAndStepErrorIsNot(t *testing.T) {
	e, id := load(t, options("fault", `op=head call=2 -> error step "bad input"`, `op=head call=2 -> error device "sticky" code=13`))
	run(t, e, tiny.Step(1, id, 0, 1))
	fail := func(seq uint64) error {
		if err := e.Submit(tiny.Step(seq, id, 0, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := e.Wait(context.Background())
		return err
	}
	var se *engine.StepError
	if err := fail(2); !errors.As(err, &se) || se.Scope != backend.ScopeStep || errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "bad input") {
		t.Fatal(err)
	}
	bad := tiny.Step(3, id, 0, tiny.Vocab+1)
	if err := e.Submit(bad); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Wait(context.Background()); !errors.As(err, &se) || se.Scope != backend.ScopeStep || !strings.Contains(err.Error(), "vocabulary 64") {
		t.Fatal(err)
	}
	// The second rule did not see the call that the first one took: its second call is this one.
	err := fail(4)
	if !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "sticky") {
		t.Fatal(err)
	}
	if err := e.Recover(context.Background()); err != nil {
		t.Fatal(err)
	}
	run(t, e, tiny.Step(9, id, 0, 1))
}

func TestLateSteps(t *testing.T) {
	t.Run("deadline", func(t *testing.T) {
		o := options("fault", "op=head step>=1 -> hang")
		o.Deadline = 300 * time.Millisecond
		e, id := load(t, o)
		run(t, e, tiny.Step(1, id, 0, 1))
		if err := e.Submit(tiny.Step(2, id, 0, 1)); err != nil {
			t.Fatal(err)
		}
		_, err := e.Wait(context.Background())
		if !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "its deadline is 300ms") {
			t.Fatal(err)
		}
		if err := e.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		run(t, e, tiny.Step(3, id, 0, 1))
	})
	t.Run("slow but alive", func(t *testing.T) {
		o := options("fault", "op=head step=1 -> delay 600ms")
		o.Limits.Grace = 10 * time.Millisecond
		o.Limits.Silent = 10 * time.Second
		e, id := load(t, o)
		run(t, e, tiny.Step(1, id, 0, 1))
		run(t, e, tiny.Step(2, id, 0, 1))
		if s := e.Status(); s.State != supervise.Ready {
			t.Errorf("state %s after the late step came back", s.State)
		}
	})
	t.Run("stopped process", func(t *testing.T) {
		o := options("ref")
		o.Limits.Grace, o.Limits.Silent = 10*time.Millisecond, 300*time.Millisecond
		e, id := load(t, o)
		run(t, e, tiny.Step(1, id, 0, 1))
		stop(t, e.Facts().PID)
		if err := e.Submit(tiny.Step(2, id, 0, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Wait(context.Background()); !errors.Is(err, engine.ErrLost) || !strings.Contains(err.Error(), "heartbeat has stood still") {
			t.Fatal(err)
		}
		if err := e.Recover(context.Background()); err != nil {
			t.Fatal(err)
		}
		run(t, e, tiny.Step(3, id, 0, 1))
	})
}

// stop sends SIGSTOP and waits until every thread has stopped: the signal is only under way when kill returns, and a thread that still runs could serve one more step.
func stop(t *testing.T, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		running := len(files) == 0
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				continue // the thread has ended
			}
			// "pid (name) STATE ...": the name may hold anything, the last parenthesis ends it.
			rest := strings.TrimSpace(string(raw[strings.LastIndexByte(string(raw), ')')+1:]))
			running = running || !strings.HasPrefix(rest, "T")
		}
		if !running {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	e, id := load(t, options("fault", "op=head step=0 -> delay 200ms"))
	if err := e.Submit(tiny.Step(1, id, 0, 1)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := e.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if r, err := e.Wait(context.Background()); err != nil || r.Seq != 1 {
		t.Fatal(err)
	}
}

func TestSteadyStateDoesNotAllocate(t *testing.T) {
	e, id := load(t, options("null"))
	s := tiny.Step(0, id, 0, 1, 2, 3)
	ctx := context.Background()
	round := func() {
		if err := e.Submit(s); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	for range 20 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n >= 1 {
		t.Errorf("%v allocations a step", n)
	}
}

func TestLargerProgramsBringLargerArenas(t *testing.T) {
	e, _ := load(t, options("ref"))
	if err := e.Submit(tiny.Step(1, 0, 0, 1)); err != nil {
		t.Fatal(err)
	}
	big := tiny.Program(4096)
	id, err := e.Compile(context.Background(), big)
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Wait(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := tiny.Check(tiny.Step(1, 0, 0, 1), r); err != nil {
		t.Fatal(err)
	}
	s := tiny.Step(2, id, 0, 1)
	n := 4000
	b := &s.Rows
	*b = program.Batch{SeqFirst: []int32{0}, SeqRows: []int32{int32(n)}, SeqSlot: []int32{0}, SeqLow: []int32{0}, SeqWrite: []int32{0}, TableWidth: 32, Table: make([]int32, 32)}
	for i := range n {
		b.Token, b.Pos, b.Seq, b.Flag, b.ImageRow = append(b.Token, int32(i%tiny.Vocab)), append(b.Pos, int32(i)), append(b.Seq, 0), append(b.Flag, 0), append(b.ImageRow, -1)
	}
	s.Logits = []int32{int32(n - 1)}
	run(t, e, s)
}

func TestStartErrors(t *testing.T) {
	script := func(t *testing.T, text string) string {
		p := filepath.Join(t.TempDir(), "worker")
		if err := os.WriteFile(p, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	object := func(t *testing.T, source string) string {
		gcc, err := exec.LookPath("gcc")
		if err != nil {
			t.Skip("no gcc: bad libraries cannot be built")
		}
		dir := t.TempDir()
		src := filepath.Join(dir, "x.c")
		if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(gcc, "-shared", "-fPIC", "-o", src+".so", src).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return src + ".so"
	}
	text := func(t *testing.T) string {
		p := filepath.Join(t.TempDir(), "x.so")
		if err := os.WriteFile(p, []byte("no library"), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	cases := map[string]struct {
		opt  func(t *testing.T, o *Options)
		want []string
	}{
		"no worker binary": {func(t *testing.T, o *Options) { o.Worker = "/nonexistent/deepinfer-worker" }, []string{"/nonexistent/deepinfer-worker", "make build"}},
		"not executable":   {func(t *testing.T, o *Options) { o.Worker = text(t) }, []string{"not an executable file"}},
		"worker dies at once": {func(t *testing.T, o *Options) {
			o.Worker = script(t, "#!/bin/sh\necho cannot find my shoes >&2\nexit 7\n")
		}, []string{"exit status 7", "cannot find my shoes"}},
		"worker talks rubbish": {func(t *testing.T, o *Options) { o.Worker = script(t, "#!/bin/sh\necho hello\nexec sleep 60\n") }, []string{"Unrecognized remote plugin message: hello"}},
		"worker says nothing": {func(t *testing.T, o *Options) {
			o.Worker, o.StartTimeout = script(t, "#!/bin/sh\nexec sleep 60\n"), 200*time.Millisecond
		}, []string{"timeout while waiting"}},
		"unknown backend": {func(t *testing.T, o *Options) { o.Backend = "gpu9" }, []string{`"gpu9"`, "ref, null and fault"}},
		"bad config":      {func(t *testing.T, o *Options) { o.Open.Config = []byte(`{"colour":1}`) }, []string{"colour"}},
		"missing library": {func(t *testing.T, o *Options) { o.Library = "/nonexistent/x.so" }, []string{"/nonexistent/x.so"}},
		"wrong pin":       {func(t *testing.T, o *Options) { o.Library, o.Pinned = text(t), strings.Repeat("0", 64) }, []string{"pinned is 0000"}},
		"library is text": {func(t *testing.T, o *Options) { o.Library = text(t) }, []string{"x.so"}},
		"wrong ABI":       {func(t *testing.T, o *Options) { o.Library = object(t, "int di_backend_v9(void) { return 0; }") }, []string{"di_backend_v9", "di_backend_v1"}},
		"abort in constructor": {func(t *testing.T, o *Options) {
			o.Library = object(t, "#include <stdio.h>\n#include <stdlib.h>\n__attribute__((constructor)) static void f(void) { fputs(\"licence dongle not found\\n\", stderr); abort(); }\nunsigned di_backend_v1(void *a, void *b, void *c) { return 0; }")
		}, []string{"worker process", "licence dongle not found"}},
		"crash in entry": {func(t *testing.T, o *Options) {
			o.Library = object(t, "unsigned di_backend_v1(void *a, void *b, void *c) { *(volatile int *)8 = 1; return 0; }")
		}, []string{"worker process"}},
		"hang in entry": {func(t *testing.T, o *Options) {
			o.Library, o.OpenTimeout = object(t, "#include <unistd.h>\nunsigned di_backend_v1(void *a, void *b, void *c) { for (;;) sleep(1); }"), 500*time.Millisecond
		}, []string{"did not load and open device 0 within 500ms", "plugin probe"}},
		"exit in entry": {func(t *testing.T, o *Options) {
			o.Library = object(t, "#include <stdlib.h>\nunsigned di_backend_v1(void *a, void *b, void *c) { _Exit(42); }")
		}, []string{"exit status 42"}},
		"chatter on stdout": {func(t *testing.T, o *Options) {
			o.Library = object(t, "#include <stdio.h>\n#include <stdlib.h>\nunsigned di_backend_v1(void *a, void *b, void *c) { puts(\"hello from the driver\"); fflush(stdout); _Exit(3); }")
		}, []string{"hello from the driver"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			before := scratch(t)
			noLeaks(t)
			o := options("ref")
			c.opt(t, &o)
			e, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close(context.Background())
			err = e.Load(context.Background(), tiny.Spec(tiny.Embedded()))
			if err == nil {
				t.Fatal("loaded")
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%v\nshould say %q", err, w)
				}
			}
			if n := scratch(t); n > before {
				t.Errorf("%d scratch directories left", n-before)
			}
		})
	}
}

func TestLoadEndsWithItsContext(t *testing.T) {
	for name, o := range map[string]Options{"in the handshake": {}, "in open": options("fault", "op=open -> hang")} {
		t.Run(name, func(t *testing.T) {
			noLeaks(t)
			if o.Worker == "" {
				p := filepath.Join(t.TempDir(), "worker")
				if err := os.WriteFile(p, []byte("#!/bin/sh\nexec sleep 60\n"), 0o755); err != nil {
					t.Fatal(err)
				}
				o = options("ref")
				o.Worker = p
			}
			e, err := New(o)
			if err != nil {
				t.Fatal(err)
			}
			defer e.Close(context.Background())
			ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
			defer cancel()
			if err := e.Load(ctx, tiny.Spec(tiny.Embedded())); err == nil {
				t.Fatal("loaded")
			}
		})
	}
}

func TestQuarantineIsFinal(t *testing.T) {
	o := options("fault", "op=head -> kill")
	o.Limits.Crashes = 3
	e, id := load(t, o)
	var err error
	for range 3 {
		if err = e.Submit(tiny.Step(1, id, 0, 1)); err != nil {
			t.Fatal(err)
		}
		if _, err = e.Wait(context.Background()); !errors.Is(err, engine.ErrLost) {
			t.Fatal(err)
		}
		if err = e.Recover(context.Background()); err != nil {
			break
		}
	}
	var q *supervise.QuarantineError
	if !errors.As(err, &q) || q.Crashes != 3 {
		t.Fatal(err)
	}
	if s := e.Status(); s.State != supervise.Quarantined {
		t.Error(s.State)
	}
}

func TestBadOptions(t *testing.T) {
	_, err := New(Options{Depth: 12, Env: []string{"X"}, Index: -1})
	for _, w := range []string{"worker executable", "backend name", "depth 12", `"X"`, "device -1"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v\nshould say %q", err, w)
		}
	}
	noLeaks(t)
	e, err := New(options("ref"))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if _, err := e.Compile(ctx, tiny.Program(1)); err == nil {
		t.Error("compile before load")
	}
	if err := e.Submit(tiny.Step(1, 0, 0, 1)); err == nil {
		t.Error("submit before load")
	}
	if _, err := e.Wait(ctx); err == nil {
		t.Error("wait before load")
	}
	if err := e.Recover(ctx); err == nil {
		t.Error("recover before load")
	}
	if err := errors.Join(e.Close(ctx), e.Close(ctx)); err != nil {
		t.Error(err)
	}
	if err := e.Submit(tiny.Step(1, 0, 0, 1)); err == nil {
		t.Error("submit after close")
	}
}

func TestCompileNamesWhatIsMissing(t *testing.T) {
	e, id := load(t, options("ref"))
	p := tiny.Program(3)
	p.Buffers[0].Weight.Names[0] = "layers.9.nowhere.weight"
	if _, err := e.Compile(context.Background(), p); err == nil || !strings.Contains(err.Error(), "layers.9.nowhere.weight") || errors.Is(err, engine.ErrLost) {
		t.Fatal(err)
	}
	run(t, e, tiny.Step(1, id, 0, 1))
}

// TestWorkersLeaveWithTheEngine kills a helper process that has a worker, as the kernel would, and watches the worker go.
func TestWorkersLeaveWithTheEngine(t *testing.T) {
	if os.Getenv("REMOTE_TEST_ORPHAN") != "" {
		workerPath = os.Getenv("REMOTE_TEST_ORPHAN")
		e, err := New(options("ref"))
		if err == nil {
			err = e.Load(context.Background(), tiny.Spec(tiny.Embedded()))
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Println("pid", e.Facts().PID)
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^TestWorkersLeaveWithTheEngine$")
	cmd.Env = append(os.Environ(), "REMOTE_TEST_ORPHAN="+workerPath)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var word string
	var pid int
	if _, err := fmt.Fscan(out, &word, &pid); err != nil || word != "pid" {
		t.Fatalf("helper said %q, %v", word, err)
	}
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatalf("worker %d is not there: %v", pid, err)
	}
	cmd.Process.Kill()
	cmd.Wait()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(b), ") Z ") {
			return
		}
	}
	t.Errorf("worker %d outlived its engine", pid)
}

func BenchmarkStep(b *testing.B) {
	e, err := New(Options{Worker: workerPath, Backend: "null"})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close(context.Background())
	ctx := context.Background()
	if err := e.Load(ctx, tiny.Spec(tiny.Embedded())); err != nil {
		b.Fatal(err)
	}
	id, err := e.Compile(ctx, tiny.Program(8))
	if err != nil {
		b.Fatal(err)
	}
	s := tiny.Step(0, id, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Submit(s); err != nil {
			b.Fatal(err)
		}
		if _, err := e.Wait(ctx); err != nil {
			b.Fatal(err)
		}
	}
}
