package servecli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/core/serve/store"
)

func TestResponsesAndTheirKeyOutliveAProcess(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	c := conf.Server{ResponsesDir: filepath.Join(t.TempDir(), "responses"), ResponsesSize: 1 << 20, ResponsesAge: time.Hour}
	st, first, err := openResponses(c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.Put(&store.Record{ID: "resp_1", Status: store.Completed, Response: []byte("{}"), Input: []byte("[]"), Output: []byte("[]")}); err != nil {
		t.Fatal(err)
	}
	var coded *ExitError
	if _, _, err := openResponses(c, quiet); !errors.As(err, &coded) || coded.Code != 1 || !strings.Contains(err.Error(), "another process") || !strings.Contains(err.Error(), "server.responses_dir") {
		t.Errorf("opened twice: %v", err)
	}
	st.Close()
	st, second, err := openResponses(c, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Get("", "resp_1"); err != nil || !bytes.Equal(first, second) || len(first) != sealKeyBytes {
		t.Errorf("%v; keys of %d and %d bytes", err, len(first), len(second))
	}
	st.Close()
	key := filepath.Join(c.ResponsesDir, "seal.key")
	if info, err := os.Stat(key); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if err := os.WriteFile(key, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openResponses(c, quiet); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("a damaged key: %v", err)
	}
	st, secret, err := openResponses(conf.Server{}, quiet)
	if err != nil || secret != nil {
		t.Fatalf("in memory: %v, a secret of %d bytes", err, len(secret))
	}
	st.Close()
}
