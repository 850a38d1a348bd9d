//go:build linux

package launch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/wire"
	"github.com/deepinfer-go/deepinfer/sdk/wire/controlpb"
	"github.com/deepinfer-go/deepinfer/sdk/worker"
)

// TestMain makes this binary its own worker: started with the cookie, it serves the null backend and reports its surroundings as notes.
func TestMain(m *testing.M) {
	if os.Getenv(wire.Handshake.MagicCookieKey) != "" {
		worker.Main(func(name string) (backend.Backend, error) {
			fmt.Println("printed by the backend") // fd 1 must be the log by now
			return reporter{null.New()}, nil
		})
	}
	os.Exit(m.Run())
}

type reporter struct{ backend.Backend }

// Notes implements worker.Noter.
func (reporter) Notes() []string {
	var out []string
	for _, e := range os.Environ() {
		k, _, _ := strings.Cut(e, "=")
		out = append(out, "env "+k)
	}
	for fd := range 12 {
		if l, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err == nil {
			out = append(out, fmt.Sprintf("fd %d %s", fd, l))
		}
	}
	var core unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_CORE, &core) == nil {
		out = append(out, fmt.Sprintf("core %d", core.Cur))
	}
	outside := os.Getenv("OUTSIDE")
	try := func(what string, err error) { out = append(out, fmt.Sprintf("%s: %v", what, err)) }
	try("write outside", os.WriteFile(filepath.Join(outside, "f"), nil, 0o644))
	try("write scratch", os.WriteFile(filepath.Join(os.TempDir(), "f"), nil, 0o644))
	_, err := os.ReadDir(outside)
	try("read outside", err)
	c, err := net.DialTimeout("tcp", os.Getenv("ADDRESS"), time.Second)
	if err == nil {
		c.Close()
	}
	try("tcp", err)
	pid, _ := strconv.Atoi(os.Getenv("PARENT"))
	try("signal", unix.Kill(pid, 0))
	return append(out, fmt.Sprintf("group leader %v", unix.Getpgrp() == os.Getpid()))
}

func self(t *testing.T) string {
	t.Helper()
	p, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSurroundingsOfAWorker(t *testing.T) {
	t.Setenv("SECRET_OF_THE_HOST", "x")
	lib := filepath.Join(t.TempDir(), "x.so")
	if err := os.WriteFile(lib, []byte("bytes"), 0o644); err != nil {
		t.Fatal(err)
	}
	sealed, err := SealLibrary(lib, filepath.Dir(lib), "")
	if err != nil {
		t.Fatal(err)
	}
	defer sealed.Close()
	p, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Library: sealed, Epoch: 3, Env: []string{"GIVEN=1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(context.Background())
	r, err := p.Control.Fingerprint(context.Background(), &controlpb.FingerprintRequest{})
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(r.Notes, "\n")
	for _, want := range []string{"fd 0 /dev/null", "fd 3 pipe:", "fd 6 /memfd:deepinfer-library", "core 0", "group leader true",
		"env GIVEN", "env " + wire.EnvBackend, "env " + wire.EnvLibrary, "env " + wire.EnvPluginDir, "env " + wire.EnvScratch} {
		if !strings.Contains(notes, want) { // descriptors 4 and 5 are closed once the ring is mapped and the link taken over
			t.Errorf("missing %q in\n%s", want, notes)
		}
	}
	for _, bad := range []string{"SECRET_OF_THE_HOST", "env PATH", "env USER"} {
		if strings.Contains(notes, bad) {
			t.Errorf("worker sees %q", bad)
		}
	}
	var out, errs string
	for _, n := range r.Notes {
		if v, ok := strings.CutPrefix(n, "fd 1 "); ok {
			out = v
		}
		if v, ok := strings.CutPrefix(n, "fd 2 "); ok {
			errs = v
		}
	}
	if out == "" || out != errs {
		t.Errorf("fd 1 is %q, fd 2 is %q: they should be one", out, errs)
	}
	if p.Ring.Epoch() != 3 {
		t.Error("epoch")
	}
}

func TestSandbox(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for name, c := range map[string]struct {
		box  Sandbox
		want []string
		free bool
	}{
		"default": {Sandbox{}, []string{"write outside: open", "write scratch: <nil>", "read outside: <nil>", "tcp: dial", "signal: operation not permitted"}, false},
		"opened":  {Sandbox{Network: true, Write: []string{"OUTSIDE"}}, []string{"write outside: <nil>", "tcp: <nil>", "signal: operation not permitted"}, false},
		"off":     {Sandbox{Off: true}, []string{"write outside: <nil>", "tcp: <nil>", "signal: <nil>"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			outside := t.TempDir()
			for i := range c.box.Write {
				c.box.Write[i] = outside
			}
			p, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Epoch: 1, Sandbox: c.box,
				Env: []string{"OUTSIDE=" + outside, "ADDRESS=" + l.Addr().String(), fmt.Sprintf("PARENT=%d", os.Getpid())}})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Stop(context.Background())
			for _, y := range p.Layers {
				if y.Name == "no_new_privs" && (y.State == "applied") == c.free {
					t.Errorf("%+v", y)
				}
				if y.Name == "landlock" && y.State == "unsupported" {
					t.Skip("this kernel has no Landlock: " + y.Detail)
				}
				if y.Name == "landlock" && (!c.free && (y.State != "applied" || !strings.Contains(y.Detail, "signals")) || c.free && y.State != "off") {
					if strings.HasPrefix(y.Detail, "ABI ") && !strings.Contains(y.Detail, "signals") {
						t.Skip("this kernel's Landlock is too old for every layer: " + y.Detail)
					}
					t.Errorf("%+v", y)
				}
			}
			r, err := p.Control.Fingerprint(context.Background(), &controlpb.FingerprintRequest{})
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(r.Notes, "\n")
			for _, w := range c.want {
				if !strings.Contains(notes, w) {
					t.Errorf("missing %q in\n%s", w, notes)
				}
			}
		})
	}
	if _, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Sandbox: Sandbox{Write: []string{"a/b"}}}); err == nil || !strings.Contains(err.Error(), "must be absolute") {
		t.Error(err)
	}
}

func TestHelloComesFirstAndDisagreementsAreNamed(t *testing.T) {
	p, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(context.Background())
	for name, c := range map[string]struct {
		req  *controlpb.HelloRequest
		want string
	}{
		"ring layout": {&controlpb.HelloRequest{RingLayout: &controlpb.Range{Min: 5, Max: 7}, OpSet: &controlpb.Range{Min: 1, Max: 1}, AbiMajor: 1, Epoch: 1}, "ring layout: the engine accepts 5 to 7, this worker 1 to 1"},
		"op set":      {&controlpb.HelloRequest{RingLayout: &controlpb.Range{Min: 1, Max: 1}, OpSet: &controlpb.Range{Min: 2, Max: 9}, AbiMajor: 1, Epoch: 1}, "op set: the engine accepts 2 to 9"},
		"abi":         {&controlpb.HelloRequest{RingLayout: &controlpb.Range{Min: 1, Max: 1}, OpSet: &controlpb.Range{Min: 1, Max: 1}, AbiMajor: 4, Epoch: 1}, "ABI major: the engine speaks 4, this worker 1"},
		"epoch":       {&controlpb.HelloRequest{RingLayout: &controlpb.Range{Min: 1, Max: 1}, OpSet: &controlpb.Range{Min: 1, Max: 1}, AbiMajor: 1, Epoch: 8}, "epoch: the engine says 8, the ring 1"},
	} {
		if _, err := p.Control.Hello(context.Background(), c.req); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Control calls out of order are refused, not crashes.
	if _, err := p.Control.Open(context.Background(), &controlpb.OpenRequest{}); err == nil {
		t.Error("open with empty pools")
	}
	if _, err := p.Control.LoadWeights(context.Background(), &controlpb.LoadWeightsRequest{Tensors: []*controlpb.Tensor{{Name: "a", File: 3}}}); err == nil || !strings.Contains(err.Error(), "file 3 of 0") {
		t.Error(err)
	}
	if _, err := p.Control.Release(context.Background(), &controlpb.ReleaseRequest{Id: 1 << 31}); err == nil {
		t.Error("release of an unknown program")
	}
	c, err := p.Control.Compile(context.Background(), &controlpb.CompileRequest{Program: []byte("{}")})
	if err == nil {
		_, err = c.Recv()
	}
	if err == nil || !strings.Contains(err.Error(), "decode program") {
		t.Error(err)
	}
	if _, err := p.Control.Ping(context.Background(), &controlpb.PingRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := p.Control.Drain(context.Background(), &controlpb.DrainRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := p.Control.Stats(context.Background(), &controlpb.StatsRequest{}); err != nil {
		t.Error(err)
	}
}

func TestWeightFilesAreChecked(t *testing.T) {
	p, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(context.Background())
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Write(make([]byte, 100))
	send := func(index int32, size int64) error {
		ticket, err := p.Link.Send(f)
		if err != nil {
			t.Fatal(err)
		}
		_, err = p.Control.MapFile(context.Background(), &controlpb.MapFileRequest{Ticket: ticket, File: index, Size: size, Name: "shard"})
		return err
	}
	if err := send(0, 101); err == nil || !strings.Contains(err.Error(), "has 100 bytes, the engine announced 101") {
		t.Error(err)
	}
	if err := send(1, 100); err == nil || !strings.Contains(err.Error(), "index 1, the next one is 0") {
		t.Error(err)
	}
	if err := send(0, 100); err != nil {
		t.Fatal(err)
	}
	for name, tensor := range map[string]*controlpb.Tensor{"past the end": {Name: "a", Offset: 90, Size: 11}, "negative": {Name: "a", Offset: -1, Size: 1}, "overflow": {Name: "a", Offset: 1, Size: 1<<63 - 1}} {
		if _, err := p.Control.LoadWeights(context.Background(), &controlpb.LoadWeightsRequest{Tensors: []*controlpb.Tensor{tensor}}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestBrokenProtocolEndsTheWorker writes a corrupt submission into the ring of a real worker: it must leave with its reason, not fault.
func TestBrokenProtocolEndsTheWorker(t *testing.T) {
	p, err := Start(context.Background(), Spec{Worker: self(t), Backend: "x", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop(context.Background())
	p.Ring.Corrupt()
	select {
	case <-p.Exited():
	case <-time.After(20 * time.Second):
		t.Fatal("the worker lives on")
	}
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "step ring, worker side") {
		t.Error(err)
	}
}

func TestSealedLibrary(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.so")
	if err := os.WriteFile(path, []byte("first"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := SealLibrary(path, "", "")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := os.WriteFile(path, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(io.NewSectionReader(l.ReaderAt(), 0, 100))
	if err != nil || string(b) != "first" || l.Bytes != 5 || l.SHA256 != "a7937b64b8caa58f03721bb6bacf5c78cb235febe0e70b1b84cd99541461a08e" {
		t.Errorf("%q %v %+v", b, err, l)
	}
	if _, err := l.file.WriteAt([]byte("x"), 0); err == nil {
		t.Error("the sealed copy can be written")
	}
	if _, err := SealLibrary(path, "", l.SHA256); err == nil || !strings.Contains(err.Error(), "plugin lock") {
		t.Errorf("changed bytes against a pin: %v", err)
	}
	if _, err := SealLibrary(t.TempDir(), "", ""); err == nil {
		t.Error("a directory was sealed")
	}
}

// lines is a log sink.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func TestWords(t *testing.T) {
	sink := &lines{}
	w := &words{log: slog.New(slog.NewTextHandler(sink, nil))}
	fmt.Fprintf(w, `{"@level":"error","@message":"cannot start","error":"no ring"}`+"\nplain te")
	fmt.Fprint(w, "xt\n\n")
	if got := w.last(); got != "cannot start: no ring\nplain text" {
		t.Errorf("%q", got)
	}
	for i := range 500 {
		fmt.Fprintf(w, "line %d\n", i)
	}
	if n := strings.Count(w.last(), "\n"); n != tailLines-1 {
		t.Errorf("%d lines kept", n+1)
	}
	if len(sink.all) > 3*linesPerSecond {
		t.Errorf("%d lines logged in an instant", len(sink.all))
	}
	fmt.Fprint(w, "fatal error: boom\n", strings.Repeat("rax 0x0\n", 50))
	if got := w.last(); !strings.Contains(got, "line 499\nfatal error: boom") {
		t.Errorf("the dump pushed the cause out: %q", got)
	}
	fmt.Fprint(&words{}, strings.Repeat("x", 1<<20)+"\xff\n")
}

func TestScratchOfKilledEnginesIsSwept(t *testing.T) {
	tmp := t.TempDir()
	now := time.Now()
	make := func(name string, age time.Duration) string {
		p := filepath.Join(tmp, name)
		if err := os.MkdirAll(filepath.Join(p, "plugin-dir1"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(p, now.Add(-age), now.Add(-age)); err != nil {
			t.Fatal(err)
		}
		return p
	}
	stale, young, other, live := make(scratchPrefix+"1", time.Hour), make(scratchPrefix+"2", time.Second), make("something-else", time.Hour), make(scratchPrefix+"3", time.Hour)
	f, err := claim(live)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sweep(tmp, now)
	for p, want := range map[string]bool{stale: false, young: true, other: true, live: true} {
		if _, err := os.Stat(p); (err == nil) != want {
			t.Errorf("%s: %v", p, err)
		}
	}
}
