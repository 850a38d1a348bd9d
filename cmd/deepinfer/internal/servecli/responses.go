package servecli

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/core/serve/store"
)

// openResponses opens the store of responses, and reads the key of sealed reasoning beside it or makes one.
func openResponses(c conf.Server, log *slog.Logger) (*store.Store, []byte, error) {
	st, err := store.Open(store.Options{Dir: c.ResponsesDir, MaxBytes: int64(c.ResponsesSize), MaxAge: c.ResponsesAge, Logger: log})
	if err != nil {
		return nil, nil, &ExitError{Code: 1, Err: fmt.Errorf("server.responses_dir = %q: %w", c.ResponsesDir, err)}
	}
	if c.ResponsesDir == "" {
		return st, nil, nil
	}
	secret, err := sealKey(filepath.Join(c.ResponsesDir, "seal.key")) // the store's lock keeps others away
	if err != nil {
		return nil, nil, &ExitError{Code: 1, Err: errors.Join(err, st.Close())}
	}
	return st, secret, nil
}

const sealKeyBytes = 32

func sealKey(path string) ([]byte, error) {
	key, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key = make([]byte, sealKeyBytes)
		_, _ = rand.Read(key) // never fails: crypto/rand ends the process instead
		temporary := path + ".new"
		if err := os.WriteFile(temporary, key, 0o600); err != nil {
			return nil, fmt.Errorf("make the key of sealed reasoning: %w", err)
		}
		if err := os.Rename(temporary, path); err != nil {
			return nil, fmt.Errorf("make the key of sealed reasoning: %w", err)
		}
		return key, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the key of sealed reasoning: %w", err)
	}
	if len(key) != sealKeyBytes {
		return nil, fmt.Errorf("%s has %d bytes, a key of sealed reasoning has %d: remove the file, and what was sealed with it is forgotten", path, len(key), sealKeyBytes)
	}
	return key, nil
}
