package progress

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestLineShowsShareAndFitsTheTerminal(t *testing.T) {
	got := line("loading weights", 50e6, 200e6, 3*time.Second, 100)
	for _, want := range []string{"loading weights", " 25 %", "50 MB of 200 MB", "3 s", strings.Repeat("█", 6) + strings.Repeat("░", 18)} {
		if !strings.Contains(got, want) {
			t.Errorf("line %q lacks %q", got, want)
		}
	}
	for width := range 90 {
		if s := line("loading weights", 7, 9, time.Second, width); utf8.RuneCountInString(s) > max(width, 1) {
			t.Errorf("width %d: %q", width, s)
		}
	}
	if s := line("x", 5, 2, 0, 80); !strings.Contains(s, "100 %") {
		t.Errorf("more than all: %q", s)
	}
	if s := line("compiling", 0, 0, 2*time.Second, 80); s != "compiling  2 s" {
		t.Errorf("unknown total: %q", s)
	}
}

func TestNothingIsDrawnOutsideATerminal(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b := New(w, false)
	b.Update("loading", 1, 2)
	b.Println(w, "a line")
	b.Close()
	b.Close()
	w.Close()
	var buf bytes.Buffer
	if _, err := buf.ReadFrom(r); err != nil || buf.String() != "a line\n" {
		t.Errorf("%q, %v", buf.String(), err)
	}
}

func TestBarIsRemoved(t *testing.T) {
	var buf bytes.Buffer
	b := start(&buf, func() int { return 60 })
	b.Update("loading", 1, 2)
	b.mu.Lock()
	b.draw(time.Now())
	b.mu.Unlock()
	b.Close()
	if s := buf.String(); !strings.Contains(s, "loading") || !strings.HasSuffix(s, "\r\x1b[K") {
		t.Errorf("%q", s)
	}
}
