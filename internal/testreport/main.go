// Command testreport runs `go test` and says at the end what was skipped and why, which go test itself hides.
//
//	go run ./internal/testreport [-skipped TEXT]... [go test flags] [packages]
//
// One line a package, the output of failed tests in full, then the list of skips. Exit code: that of go test. Called by `make test`.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

// event is a line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Output     string
	Elapsed    float64
}

// report gathers what the events say.
type report struct {
	out     io.Writer
	module  string
	output  map[string][]string // of a test or package, until it ends
	tests   map[string]int      // of a package, passed
	skips   map[string]int
	skipped []string // "package Test: reason"
	failed  []string
	build   []string
	passed  int
}

func newReport(out io.Writer, module string) *report {
	return &report{out: out, module: module, output: map[string][]string{}, tests: map[string]int{}, skips: map[string]int{}}
}

func (r *report) short(pkg string) string {
	if pkg == r.module {
		return "."
	}
	return strings.TrimPrefix(pkg, r.module+"/")
}

var position = regexp.MustCompile(`^\s+[\w.-]+\.go:\d+: `)

// reason is the text that a test gave to Skip: what follows the last position.
func reason(output []string) string {
	for i := len(output) - 1; i >= 0; i-- {
		if at := position.FindString(output[i]); at != "" {
			text := strings.TrimSpace(output[i][len(at):])
			for _, more := range output[i+1:] {
				if strings.HasPrefix(strings.TrimSpace(more), "---") {
					break
				}
				text += " " + strings.TrimSpace(more)
			}
			return text
		}
	}
	return "no reason given"
}

func (r *report) add(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "build-output":
		r.build = append(r.build, e.Output)
	case "build-fail":
		fmt.Fprintf(r.out, "FAIL %s does not build\n%s", r.short(e.ImportPath), strings.Join(r.build, ""))
		r.build = nil
	case "output":
		r.output[key] = append(r.output[key], e.Output)
	case "pass", "skip", "fail":
		if e.Test != "" {
			r.endOfTest(e, key)
		} else {
			r.endOfPackage(e, key)
		}
		delete(r.output, key)
	}
}

func (r *report) endOfTest(e event, key string) {
	switch e.Action {
	case "pass":
		r.tests[e.Package]++
		r.passed++
	case "skip":
		r.skips[e.Package]++
		r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", r.short(e.Package), e.Test, reason(r.output[key])))
	case "fail":
		r.failed = append(r.failed, r.short(e.Package)+" "+e.Test)
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
	}
}

func (r *report) endOfPackage(e event, key string) {
	name := r.short(e.Package)
	switch {
	case e.Action == "fail":
		if !slices.ContainsFunc(r.failed, func(f string) bool { return strings.HasPrefix(f, name+" ") }) {
			r.failed = append(r.failed, name)
		}
		fmt.Fprint(r.out, strings.Join(r.output[key], ""))
		fmt.Fprintf(r.out, "FAIL %-40s %6.1fs\n", name, e.Elapsed)
	case r.tests[e.Package]+r.skips[e.Package] > 0:
		fmt.Fprintf(r.out, "ok   %-40s %6.1fs  %d passed", name, e.Elapsed, r.tests[e.Package])
		if n := r.skips[e.Package]; n > 0 {
			fmt.Fprintf(r.out, ", %d skipped", n)
		}
		fmt.Fprintln(r.out)
	}
}

func (r *report) summary() {
	if len(r.skipped) > 0 {
		fmt.Fprintf(r.out, "\nSkipped, %d:\n", len(r.skipped))
		for _, s := range r.skipped {
			fmt.Fprintln(r.out, "  "+s)
		}
	}
	if len(r.failed) > 0 {
		fmt.Fprintf(r.out, "\nFailed, %d:\n", len(r.failed))
		for _, f := range r.failed {
			fmt.Fprintln(r.out, "  "+f)
		}
	}
	fmt.Fprintf(r.out, "\n%d passed, %d skipped, %d failed\n", r.passed, len(r.skipped), len(r.failed))
}

// read consumes `go test -json`. Lines that are no event are shown as they are.
func (r *report) read(in io.Reader) error {
	s := bufio.NewReader(in)
	for {
		line, err := s.ReadBytes('\n')
		if len(line) > 0 {
			var e event
			if json.Unmarshal(line, &e) == nil && e.Action != "" {
				r.add(e)
			} else {
				_, _ = r.out.Write(line)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the output of go test: %w", err)
		}
	}
}

func main() {
	code, err := run(os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	os.Exit(code)
}

func run(args []string, out io.Writer) (int, error) {
	module, err := exec.Command("go", "list", "-m").Output()
	if err != nil {
		return 2, fmt.Errorf("go list -m: %w", err)
	}
	r := newReport(out, strings.TrimSpace(string(module)))
	for len(args) >= 2 && args[0] == "-skipped" {
		r.skipped = append(r.skipped, args[1])
		args = args[2:]
	}
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return 2, err
	}
	if err := cmd.Start(); err != nil {
		return 2, fmt.Errorf("start go test: %w", err)
	}
	if err := r.read(pipe); err != nil {
		return 2, err
	}
	err = cmd.Wait()
	r.summary()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(exit.ExitCode(), 1), nil
	}
	if err != nil {
		return 2, fmt.Errorf("go test: %w", err)
	}
	return 0, nil
}
