package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/backends/cpu/cputest"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

const asProgram = "DITEST_AS_PROGRAM"

// The test binary is the program when the variable is set: processes start without another build.
func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		os.Exit(run(os.Args[1:]))
	}
	os.Exit(m.Run())
}

func program(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, args...)
	cmd.Dir = t.TempDir() // no backend directory in sight
	cmd.Env = append(os.Environ(), asProgram+"=1")
	return cmd
}

// call runs the program to its end.
func call(t testing.TB, stdin string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := program(t, args...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if s := errs.String(); strings.Contains(s, "goroutine ") || strings.Contains(s, "internal error") {
		t.Errorf("%v: a panic reached the user:\n%s", args, s)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

type golden struct {
	IDs    []int32
	Greedy []int32
}

func first(t testing.TB) golden {
	t.Helper()
	var g golden
	if err := json.NewDecoder(bytes.NewReader(fixture.Read(t, "demo/golden.jsonl"))).Decode(&g); err != nil {
		t.Fatal(err)
	}
	return g
}

func list(ids []int32) string {
	var b strings.Builder
	for i, id := range ids {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(id)))
	}
	return b.String()
}

func TestRunAnswersOnce(t *testing.T) {
	for name, c := range map[string]struct {
		stdin string
		args  []string
	}{
		"prompt":         {"", []string{"--prompt", "What is 2 + 3?"}},
		"standard input": {"What is 2 + 3?\n", nil},
	} {
		out, errs, code := call(t, c.stdin, append([]string{"run", "--temperature", "0", "--max-tokens", "20"}, c.args...)...)
		if out != "2 + 3 = 5\n" || code != 0 || !strings.Contains(errs, "using the pure-Go backend ref") || strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: %q, %q, code %d", name, out, errs, code)
		}
	}
	out, errs, code := call(t, "", "run", "--quiet", "--temperature", "0", "--max-tokens", "40", "--thinking", "on", "--prompt", "What is 2 + 3?")
	if out != "2 + 3 = 5.\n" || errs != "" || code != 0 {
		t.Errorf("thinking is not shown outside a terminal: %q, %q, code %d", out, errs, code)
	}
	out, errs, code = call(t, "", "run", "--quiet", "--temperature", "0", "--max-tokens", "3", "--thinking", "on", "--prompt", "What is 2 + 3?")
	if out != "" || !strings.Contains(errs, "used up by thinking") || code != 0 {
		t.Errorf("only thinking: %q, %q, code %d", out, errs, code)
	}
}

type line struct {
	ID         int32
	Text       string
	LogProb    float64
	Top        [][2]float64
	Finish     string `json:"finish_reason"`
	Usage      *struct{ Prompt_tokens, Completion_tokens, Total_tokens int }
	Spec       *struct{ Steps, Drafted, Verified, Accepted int } `json:"speculation"`
	Perplexity float64
}

func lines(t testing.TB, out string) []line {
	t.Helper()
	var all []line
	for d := json.NewDecoder(strings.NewReader(out)); d.More(); {
		var l line
		if err := d.Decode(&l); err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		all = append(all, l)
	}
	if len(all) == 0 || all[len(all)-1].Finish == "" {
		t.Fatalf("no last line: %s", out)
	}
	return all
}

func TestRunJSON(t *testing.T) {
	g := first(t)
	file := filepath.Join(t.TempDir(), "ids.json")
	raw, err := json.Marshal(g.IDs)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, ids := range []string{list(g.IDs), "@" + file} {
		out, errs, code := call(t, "", "run", "--prompt-ids", ids, "--max-tokens", "50", "--temperature", "0", "--ignore-eos", "--json", "--logprobs", "2")
		if code != 0 {
			t.Fatalf("code %d: %s", code, errs)
		}
		all := lines(t, out)
		text := ""
		for i, l := range all[:len(all)-1] {
			text += l.Text
			if l.ID != g.Greedy[i] || len(l.Top) != 2 || int32(l.Top[0][0]) != l.ID || l.Top[0][1] != l.LogProb || l.Top[1][1] > l.LogProb {
				t.Errorf("token %d: %+v, want %d", i, l, g.Greedy[i])
			}
		}
		last := all[len(all)-1]
		if len(all) != 51 || last.Finish != "length" || last.Usage.Prompt_tokens != len(g.IDs) || last.Usage.Completion_tokens != 50 || last.Usage.Total_tokens != len(g.IDs)+50 || last.Spec == nil || last.Spec.Steps != 50 {
			t.Errorf("%d lines, last %+v", len(all), last)
		}
		if !strings.HasPrefix(text, "The user asks about me. I should answer honestly.</think>I read") {
			t.Errorf("text %q", text)
		}
	}
}

func TestRunScoresForcedTokens(t *testing.T) {
	g := first(t)
	args := []string{"run", "--quiet", "--prompt-ids", list(g.IDs), "--force-ids", list(g.Greedy[:5]), "--logprobs", "1"}
	out, errs, code := call(t, "", append(args, "--json")...)
	if code != 0 {
		t.Fatal(errs)
	}
	all, sum := lines(t, out), 0.0
	for i, l := range all[:len(all)-1] {
		sum += l.LogProb
		if l.ID != g.Greedy[i] || int32(l.Top[0][0]) != g.Greedy[i] {
			t.Errorf("token %d: %+v", i, l)
		}
	}
	if last := all[len(all)-1]; len(all) != 6 || math.Abs(last.Perplexity-math.Exp(-sum/5)) > 1e-9 {
		t.Errorf("%d lines, last %+v", len(all), last)
	}
	out, _, code = call(t, "", args...)
	rows := strings.Split(strings.TrimSpace(out), "\n")
	if code != 0 || len(rows) != 6 || !strings.HasPrefix(rows[0], "542\t-0.000") || !strings.HasPrefix(rows[5], "total\t-") || !strings.Contains(rows[5], "perplexity 1.") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

func TestRunRefusesBadCalls(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		text string
	}{
		{"run --prompt x --temperature nan", 2, "--temperature NaN"},
		{"run --prompt x --temperature -1", 2, "--temperature -1"},
		{"run --prompt x --temperature 1e9", 2, "must be in [0, 100]"},
		{"run --prompt x --top-p 0", 2, "--top-p 0"},
		{"run --prompt x --max-tokens 0", 2, "--max-tokens 0"},
		{"run --prompt x --max-tokens 1000000", 2, "context holds 16384"},
		{"run --prompt x --logprobs 21", 2, "0 to 20"},
		{"run --prompt x --thinking maybe", 2, "on or off"},
		{"run --prompt x --numerics exact", 2, "reference or production"},
		{"run --prompt x --speculation dynamic", 2, "no speculative decoding"},
		{"run --prompt x --speculation fixed:0", 2, "fixed:K"},
		{"run --prompt x --prompt-ids 1", 2, "give one of them"},
		{"run --prompt-ids 1,b", 2, `"b"`},
		{"run --prompt-ids @/nonexistent", 2, "/nonexistent"},
		{"run --prompt-ids 12288", 2, "[0, 12288)"},
		{"run --prompt-ids -4", 2, "prompt[0] is token -4"},
		{"run --prompt-ids 1 --system x", 2, "--system has no effect"},
		{"run --prompt x --force-ids 1 --seed 4", 2, "nothing is drawn"},
		{"run", 2, "the prompt is empty"},
		{"run --prompt x --backend cuda", 2, `no backend "cuda"`},
		{"run --prompt x --model /nonexistent", 2, "/nonexistent"},
		{"run --prompt x -c /nonexistent.hcl", 2, "/nonexistent.hcl"},
		{"run --frobnicate", 2, "unknown flag"},
		{"run extra", 2, "extra"},
		{"rum", 2, "did you mean run?"},
		{"model inspct", 2, "did you mean inspect?"},
		{"serve --listen nowhere", 2, "nowhere"},
		{"config check", 2, "accepts 1 arg"},
	} {
		out, errs, code := call(t, "", strings.Fields(c.args)...)
		if code != c.code || !strings.Contains(errs, c.text) || out != "" {
			t.Errorf("%s: code %d, %q, %q", c.args, code, out, errs)
		}
	}
	if out, _, code := call(t, ""); code != 0 || !strings.Contains(out, "serve") {
		t.Errorf("no arguments: code %d, %s", code, out)
	}
	if out, _, code := call(t, "", "version"); code != 0 || !strings.HasPrefix(out, "deepinfer ") {
		t.Errorf("version: code %d, %s", code, out)
	}
}

// copyDemo links the demo checkpoint into a directory of its own, so that a test may break it.
func copyDemo(t *testing.T) string {
	t.Helper()
	from, to := fixture.Demo(t), t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if err := os.Symlink(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return to
}

// edit replaces a file of a copied checkpoint.
func edit(t *testing.T, dir, name string, change func([]byte) []byte) {
	t.Helper()
	path := filepath.Join(dir, name)
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if raw = change(raw); raw != nil {
		if err := os.WriteFile(path, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestBrokenCheckpoints(t *testing.T) {
	const shard = "model-00002-of-00002.safetensors"
	replace := func(old, with string) func([]byte) []byte {
		return func(raw []byte) []byte {
			if !bytes.Contains(raw, []byte(old)) {
				t.Errorf("the file has no %s", old)
			}
			return bytes.Replace(raw, []byte(old), []byte(with), 1)
		}
	}
	for name, c := range map[string]struct {
		file   string
		change func([]byte) []byte
		text   string
	}{
		"truncated shard":      {shard, func(b []byte) []byte { return b[:len(b)/2] }, shard},
		"shard of three bytes": {shard, func(b []byte) []byte { return b[:3] }, shard},
		"shard with a huge header": {shard, func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b, 1<<60)
			return b
		}, shard},
		"missing shard":          {shard, func([]byte) []byte { return nil }, shard},
		"index names no file":    {"model.safetensors.index.json", replace(shard, "model-7.safetensors"), "model-7.safetensors"},
		"index is no JSON":       {"model.safetensors.index.json", func([]byte) []byte { return []byte("{") }, "index.json"},
		"missing key":            {"config.json", replace(`"hidden_size"`, `"hidden_sise"`), "hidden_size"},
		"other architecture":     {"config.json", replace("DeepseekV41ForCausalLM", "LlamaForCausalLM"), "LlamaForCausalLM"},
		"other shape":            {"config.json", replace(`"head_dim": 64`, `"head_dim": 128`), "tensor"},
		"config is no JSON":      {"config.json", func([]byte) []byte { return []byte("hidden_size = 3") }, "config.json"},
		"no config":              {"config.json", func([]byte) []byte { return nil }, "config.json"},
		"tokenizer is no JSON":   {"tokenizer.json", func([]byte) []byte { return []byte("[]") }, "tokenizer.json"},
		"tokenizer too large":    {"tokenizer.json", replace(`"id":12287`, `"id":12288`), "tokenizer.json"},
		"foreign tokenizer":      {"tokenizer.json", replace("<｜Assistant｜>", "<｜Robot｜>"), "tokenizer.json"},
		"generation of nonsense": {"generation_config.json", replace(`0.7`, `-3`), "temperature"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := copyDemo(t)
			edit(t, dir, c.file, c.change)
			out, errs, code := call(t, "", "run", "--quiet", "--model", dir, "--prompt", "x", "--max-tokens", "2")
			if code != 1 || !strings.Contains(errs, c.text) || out != "" || strings.Count(errs, "\n") > 14 {
				t.Errorf("code %d, %q, %s", code, out, errs)
			}
		})
	}
	t.Run("unreadable", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Skip("root reads every file")
		}
		dir := copyDemo(t)
		edit(t, dir, "config.json", func(b []byte) []byte { return b })
		if err := os.Chmod(filepath.Join(dir, "config.json"), 0); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := call(t, "", "run", "--model", dir, "--prompt", "x"); code != 1 || !strings.Contains(errs, "permission denied") {
			t.Errorf("code %d, %s", code, errs)
		}
	})
	t.Run("a directory in place of a file", func(t *testing.T) {
		dir := copyDemo(t)
		edit(t, dir, "config.json", func([]byte) []byte { return nil })
		if err := os.Mkdir(filepath.Join(dir, "config.json"), 0o700); err != nil {
			t.Fatal(err)
		}
		if _, errs, code := call(t, "", "run", "--quiet", "--model", dir, "--prompt", "x"); code != 1 || !strings.Contains(errs, "config.json") {
			t.Errorf("code %d, %s", code, errs)
		}
	})
	t.Run("no tokenizer", func(t *testing.T) {
		dir := copyDemo(t)
		edit(t, dir, "tokenizer.json", func([]byte) []byte { return nil })
		g := first(t)
		out, errs, code := call(t, "", "run", "--quiet", "--model", dir, "--prompt-ids", list(g.IDs), "--max-tokens", "3", "--temperature", "0")
		if code != 0 || strings.TrimSpace(out) != list(g.Greedy[:3]) {
			t.Errorf("ids: code %d, %q, %s", code, out, errs)
		}
		if _, errs, code = call(t, "", "run", "--quiet", "--model", dir, "--prompt", "x"); code != 2 || !strings.Contains(errs, "tokenizer.json") {
			t.Errorf("text: code %d, %s", code, errs)
		}
		if _, errs, code = call(t, "", "serve", "--quiet", "--model", dir, "--listen", "127.0.0.1:0"); code != 1 || !strings.Contains(errs, "tokenizer.json") {
			t.Errorf("serve: code %d, %s", code, errs)
		}
	})
}

// server starts `serve` on a free port and waits until it is ready.
type server struct {
	*exec.Cmd
	url string
	log chan string
}

func serve(t *testing.T, config string) *server {
	t.Helper()
	args := []string{"serve", "--listen", "127.0.0.1:0"}
	if config != "" {
		file := filepath.Join(t.TempDir(), "test.hcl")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-c", file)
	}
	s := &server{Cmd: program(t, args...), log: make(chan string, 1000)}
	errs, err := s.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s.ProcessState == nil {
			s.Process.Kill()
			s.Wait()
		}
	})
	url := make(chan string, 1)
	go func() {
		defer close(s.log)
		at := regexp.MustCompile(`serving \S+ on \S+ at (http://\S+)`)
		for in := bufio.NewScanner(errs); in.Scan(); {
			if m := at.FindStringSubmatch(in.Text()); m != nil {
				url <- m[1]
			}
			select {
			case s.log <- in.Text():
			default:
			}
		}
		close(url)
	}()
	select {
	case s.url = <-url:
	case <-time.After(time.Minute):
	}
	if s.url == "" {
		for l := range s.log {
			t.Log(l)
		}
		t.Fatal("the server did not become ready")
	}
	return s
}

// end sends a signal and returns the exit code.
func (s *server) end(t *testing.T, sig os.Signal) int {
	t.Helper()
	if err := s.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
	for range s.log { // the pipe must be read to its end before Wait
	}
	_ = s.Wait()
	return s.ProcessState.ExitCode()
}

func post(t testing.TB, url, body string) (*http.Response, []byte) {
	t.Helper()
	resp, err := http.Post(url+"/v1/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, raw
}

func TestServeDrainsOnSIGTERM(t *testing.T) {
	s := serve(t, "")
	type answer struct {
		status int
		body   []byte
	}
	done := make(chan answer)
	go func() {
		resp, raw := post(t, s.url, `{"model":"spark-mini","messages":[{"role":"user","content":"Write a story."}],"temperature":1.5,"seed":3,"max_tokens":60}`)
		done <- answer{resp.StatusCode, raw}
	}()
	for !running(t, s.url) {
		time.Sleep(5 * time.Millisecond)
	}
	if err := s.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	a := <-done
	if a.status != 200 || !bytes.Contains(a.body, []byte("finish_reason")) {
		t.Errorf("the running request: %d %s", a.status, a.body)
	}
	for range s.log {
	}
	if _ = s.Wait(); s.ProcessState.ExitCode() != 0 {
		t.Errorf("exit code %d", s.ProcessState.ExitCode())
	}
}

// running says whether the engine works on a request.
func running(t testing.TB, url string) bool {
	resp, err := http.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`(?m)^vllm:num_requests_running\{.*\} 1$`).Match(raw)
}

func TestServePortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, errs, code := call(t, "", "serve", "--listen", l.Addr().String())
	if code != 1 || !strings.Contains(errs, "the port is in use") || strings.Count(errs, "\n") != 1 {
		t.Errorf("code %d: %s", code, errs)
	}
}

func TestServeBrokenModelEndsWithOneError(t *testing.T) {
	dir := copyDemo(t)
	edit(t, dir, "config.json", func([]byte) []byte { return []byte("{}") })
	_, errs, code := call(t, "", "serve", "--quiet", "--listen", "127.0.0.1:0", "--model", dir)
	if code != 1 || !strings.Contains(errs, "config.json") {
		t.Errorf("code %d: %s", code, errs)
	}
}

// library builds the cpu backend and the worker.
func library(t *testing.T) (backends, worker string) {
	t.Helper()
	if testing.Short() {
		t.Skip("builds a C++ library and a worker")
	}
	lib := cputest.Build(t)
	worker = filepath.Join(t.TempDir(), "deepinfer-worker")
	build := exec.Command("go", "build", "-o", worker, "./cmd/deepinfer-worker")
	build.Dir, build.Env = fixture.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the worker: %v\n%s", err, out)
	}
	return filepath.Dir(lib), worker
}

// A worker that is killed in the middle of an answer costs time and nothing else.
func TestWorkerKilledInMidAnswer(t *testing.T) {
	backends, worker := library(t)
	s := serve(t, fmt.Sprintf("backend \"cpu\" {\n  directories = [%q]\n  worker = %q\n  restart {\n    max = 20\n  }\n}\n", backends, worker))
	const body = `{"model":"spark-mini","messages":[{"role":"user","content":"Write a story."}],"temperature":1.2,"seed":3,"max_tokens":150,"ignore_eos":true,"return_token_ids":true}`
	ids := func(raw []byte) string {
		var c struct {
			IDs json.RawMessage `json:"token_ids"`
		}
		if err := json.Unmarshal(raw, &c); err != nil || len(c.IDs) < 100 {
			t.Fatalf("%v: %s", err, raw)
		}
		return string(c.IDs)
	}
	resp, raw := post(t, s.url, body)
	if resp.StatusCode != 200 {
		t.Fatalf("%d %s", resp.StatusCode, raw)
	}
	want := ids(raw)
	for round := range 2 {
		done := make(chan []byte)
		go func() {
			_, raw := post(t, s.url, body)
			done <- raw
		}()
		for !running(t, s.url) {
			time.Sleep(2 * time.Millisecond)
		}
		time.Sleep(30 * time.Millisecond) // somewhere in the answer; where makes no difference to the result
		killed := 0
		for _, pid := range children(t, s.Process.Pid) {
			if err := syscall.Kill(pid, syscall.SIGKILL); err == nil {
				killed++
			}
		}
		if killed != 1 {
			t.Fatalf("%d workers", killed)
		}
		if got := ids(<-done); got != want {
			t.Errorf("round %d: tokens %s, want %s", round, got, want)
		}
	}
	workers := children(t, s.Process.Pid)
	if code := s.end(t, syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, pid := range workers {
		if err := syscall.Kill(pid, 0); err == nil {
			t.Errorf("worker %d is left behind", pid)
		}
	}
}

// children lists the child processes of a process.
func children(t testing.TB, pid int) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		t.Fatal(err)
	}
	var out []int
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		for _, w := range strings.Fields(string(raw)) {
			n, err := strconv.Atoi(w)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, n)
		}
	}
	return out
}
