package progress

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	patience = time.Second            // before the first drawing
	interval = 150 * time.Millisecond // between drawings
	cells    = 24                     // of the bar
)

// Bar is one line of progress.
type Bar struct {
	w     io.Writer
	width func() int
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once

	mu       sync.Mutex
	stage    string
	n, total uint64
	drawn    bool
	first    time.Time
}

// New starts a bar on f. It draws nothing when quiet is set or f is no terminal.
func New(f *os.File, quiet bool) *Bar {
	if quiet || !term.IsTerminal(int(f.Fd())) || os.Getenv("TERM") == "dumb" {
		return &Bar{}
	}
	return start(f, func() int {
		w, _, err := term.GetSize(int(f.Fd()))
		if err != nil || w < 20 {
			return 80
		}
		return w
	})
}

func start(w io.Writer, width func() int) *Bar {
	b := &Bar{w: w, width: width, stop: make(chan struct{}), done: make(chan struct{}), first: time.Now()}
	go b.run()
	return b
}

func (b *Bar) run() {
	defer close(b.done)
	wait := time.NewTimer(patience)
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
			b.mu.Lock()
			b.draw(time.Now())
			b.mu.Unlock()
			wait.Reset(interval)
		case <-b.stop:
			return
		}
	}
}

// Update sets the stage and how much of it is done. total 0 = unknown.
func (b *Bar) Update(stage string, done, total uint64) {
	if b.w == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stage, b.n, b.total = stage, done, total
}

// Println prints a line above the bar.
func (b *Bar) Println(w io.Writer, line string) {
	if b.w == nil {
		fmt.Fprintln(w, line)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	fmt.Fprintln(w, line)
}

// Close removes the bar. It may be called twice.
func (b *Bar) Close() {
	if b.w == nil {
		return
	}
	b.once.Do(func() {
		close(b.stop)
		<-b.done
		b.mu.Lock()
		defer b.mu.Unlock()
		b.clear()
	})
}

func (b *Bar) clear() {
	if b.drawn {
		io.WriteString(b.w, "\r\x1b[K")
		b.drawn = false
	}
}

func (b *Bar) draw(now time.Time) {
	if b.stage == "" {
		return
	}
	io.WriteString(b.w, "\r\x1b[K"+line(b.stage, b.n, b.total, now.Sub(b.first), b.width()-1))
	b.drawn = true
}

// line renders one state in at most width characters.
func line(stage string, n, total uint64, since time.Duration, width int) string {
	s := fmt.Sprintf("%s  %.0f s", stage, since.Seconds())
	if total > 0 {
		n = min(n, total)
		share := float64(n) / float64(total)
		full := int(share * cells)
		s = fmt.Sprintf("%-16s %s%s %3.0f %%  %s of %s  %.0f s", stage, strings.Repeat("█", full), strings.Repeat("░", cells-full), share*100, size(n), size(total), since.Seconds())
	}
	for utf8.RuneCountInString(s) > max(width, 1) {
		_, w := utf8.DecodeLastRuneInString(s)
		s = s[:len(s)-w]
	}
	return s
}

func size(n uint64) string {
	const unit = 1000
	switch {
	case n >= unit*unit*unit:
		return fmt.Sprintf("%.1f GB", float64(n)/unit/unit/unit)
	case n >= unit*unit:
		return fmt.Sprintf("%.0f MB", float64(n)/unit/unit)
	}
	return fmt.Sprintf("%.0f kB", float64(n)/unit)
}
