package main

import (
	"bytes"
	"strings"
	"testing"
)

const stream = `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestOne"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"=== RUN   TestOne\n"}
{"Action":"output","Package":"m/a","Test":"TestOne","Output":"--- PASS: TestOne (0.00s)\n"}
{"Action":"pass","Package":"m/a","Test":"TestOne","Elapsed":0}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"=== RUN   TestTwo\n"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"    a_test.go:12: needs g++: not found\n"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"        in PATH\n"}
{"Action":"output","Package":"m/a","Test":"TestTwo","Output":"--- SKIP: TestTwo (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestTwo","Elapsed":0}
{"Action":"pass","Package":"m/a","Elapsed":0.5}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"    b_test.go:3: got 1, want 2\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad","Elapsed":0}
{"Action":"fail","Package":"m/b","Elapsed":0.1}
{"ImportPath":"m/c","Action":"build-output","Output":"c/c.go:1:1: syntax error\n"}
{"ImportPath":"m/c","Action":"build-fail"}
{"Action":"fail","Package":"m/c","Elapsed":0}
{"Action":"skip","Package":"m/d","Elapsed":0}
plain text
`

func TestReport(t *testing.T) {
	var out bytes.Buffer
	r := newReport(&out, "m")
	r.skipped = []string{"C++ tests: no compiler"}
	if err := r.read(strings.NewReader(stream)); err != nil {
		t.Fatal(err)
	}
	r.summary()
	want := `ok   a                                           0.5s  1 passed, 1 skipped
    b_test.go:3: got 1, want 2
FAIL b                                           0.1s
FAIL c does not build
c/c.go:1:1: syntax error
FAIL c                                           0.0s
plain text

Skipped, 2:
  C++ tests: no compiler
  a TestTwo: needs g++: not found in PATH

Failed, 2:
  b TestBad
  c

1 passed, 2 skipped, 2 failed
`
	if got := out.String(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestASkipWithoutAReasonIsSaid(t *testing.T) {
	if got := reason([]string{"=== RUN   TestX\n", "--- SKIP: TestX (0.00s)\n"}); got != "no reason given" {
		t.Errorf("got %q", got)
	}
}
