package launch

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// words collects what a worker writes on fd 2: the last lines for error messages, everything for the log, at most linesPerSecond of it. Safe for concurrent use.
type words struct {
	log *slog.Logger

	mu      sync.Mutex
	line    []byte
	tail    []string
	crash   int // lines of a crash report kept; the register and stack dump after them says less than what came before
	second  time.Time
	inRound int
	dropped int
}

const (
	tailLines      = 12
	crashLines     = 3
	maxLine        = 4096
	linesPerSecond = 100
)

// Write takes pieces of lines as they come.
func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range b {
		if c != '\n' {
			if len(w.line) < maxLine {
				w.line = append(w.line, c)
			}
			continue
		}
		w.flush()
	}
	return len(b), nil
}

func (w *words) flush() {
	text := strings.ToValidUTF8(strings.TrimRight(string(w.line), "\r "), "?")
	w.line = w.line[:0]
	if text == "" {
		return
	}
	level, msg := read(text)
	if w.crash > 0 || crashReport(msg) {
		w.crash++
	}
	if w.crash <= crashLines && !(w.crash > 0 && strings.HasPrefix(msg, "PC=")) { // registers tell a reader nothing
		w.tail = append(w.tail, msg)
		if len(w.tail) > tailLines {
			w.tail = w.tail[1:]
		}
	}
	if w.log == nil {
		return
	}
	if now := time.Now(); now.Sub(w.second) >= time.Second {
		if w.dropped > 0 {
			w.log.Warn("worker log lines dropped", "count", w.dropped)
		}
		w.second, w.inRound, w.dropped = now, 0, 0
	}
	if w.inRound++; w.inRound > linesPerSecond {
		w.dropped++
		return
	}
	w.log.Log(context.Background(), level, msg)
}

// crashReport recognises the first line of the Go runtime's last words.
func crashReport(line string) bool {
	for _, p := range [...]string{"SIG", "fatal error:", "panic:", "unexpected fault address", "runtime: "} {
		if strings.HasPrefix(line, p) {
			return true
		}
	}
	return false
}

// read turns a line of the worker's JSON log into level and text; other lines are plain text of vendor code.
func read(line string) (slog.Level, string) {
	if !strings.HasPrefix(line, "{") {
		return slog.LevelInfo, line
	}
	var m map[string]any
	if json.Unmarshal([]byte(line), &m) != nil {
		return slog.LevelInfo, line
	}
	level := slog.LevelInfo
	switch m["@level"] {
	case "debug", "trace":
		level = slog.LevelDebug
	case "warn":
		level = slog.LevelWarn
	case "error":
		level = slog.LevelError
	}
	msg, _ := m["@message"].(string)
	if msg == "" {
		return level, line
	}
	if e, ok := m["error"]; ok {
		msg += ": " + fmt.Sprint(e)
	}
	for k, v := range m {
		if !strings.HasPrefix(k, "@") && k != "error" && k != "stack" {
			msg += fmt.Sprintf(" %s=%v", k, v)
		}
	}
	return level, msg
}

// last returns the last lines, joined.
func (w *words) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.line) > 0 {
		w.flush()
	}
	return strings.Join(w.tail, "\n")
}
