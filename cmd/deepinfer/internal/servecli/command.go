package servecli

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/netutil"

	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/app"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/configcli"
	"github.com/deepinfer-go/deepinfer/cmd/deepinfer/internal/progress"
	"github.com/deepinfer-go/deepinfer/conf"
	"github.com/deepinfer-go/deepinfer/core/serve"
)

// ExitError is an error with the exit code that the process should end with.
type ExitError = app.Error

// Command builds `deepinfer serve`. version is what /version answers.
func Command(version string) *cobra.Command {
	var file, listen, model, backend string
	var quiet bool
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the model over HTTP: OpenAI API, chat page, metrics",
		Long: `Listens at once and loads the model in the background; /readyz says how far it is. Without -c the embedded demo model is served on 127.0.0.1:8080.

SIGTERM or Ctrl-C: no new requests, the running ones may finish (server.drain_timeout), exit code 0. A second signal cuts them.`,
		Example: `  deepinfer serve
  deepinfer serve -c conf/examples/laptop.hcl --listen 127.0.0.1:9000
  curl http://127.0.0.1:8080/v1/chat/completions -d '{"model":"spark-mini","messages":[{"role":"user","content":"Hello"}]}'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			flags := map[string]any{}
			if cmd.Flags().Changed("listen") {
				flags["server.listen"] = listen
			}
			cfg, err := configcli.Load(file, flags)
			if err != nil {
				return err
			}
			if m := cfg.Speculation.Mode; m != "off" {
				return &ExitError{Code: 2, Err: fmt.Errorf("speculation.mode = %q: this build has no speculative decoding; leave it off", m)}
			}
			if cfg.Cluster.Role != "single" {
				return &ExitError{Code: 2, Err: fmt.Errorf("cluster.role = %q: this build serves alone; set it to \"single\"", cfg.Cluster.Role)}
			}
			return run(cmd.Context(), cfg, options{model: model, backend: backend, quiet: quiet, version: version})
		},
	}
	fs := cmd.Flags()
	fs.StringVarP(&file, "config", "c", "", "configuration file")
	fs.StringVar(&listen, "listen", "", "host:port instead of server.listen; port 0 takes any free one")
	fs.StringVar(&model, "model", "", "checkpoint directory instead of the configured model")
	fs.StringVar(&backend, "backend", "", "backend instead of the configured one")
	fs.BoolVar(&quiet, "quiet", false, "no progress bar and no notices")
	return cmd
}

type options struct {
	model, backend, version string
	quiet                   bool
}

func run(ctx context.Context, cfg *conf.Config, opt options) error {
	bar := progress.New(os.Stderr, opt.quiet)
	defer bar.Close()
	notice := func(line string) {
		if !opt.quiet {
			bar.Println(os.Stderr, "deepinfer: "+line)
		}
	}
	for _, w := range cfg.Warnings() {
		if !strings.Contains(w.Text, "TLS on the listener") { // this build has it
			notice(w.Error())
		}
	}
	log, err := logger(cfg.Log, bar)
	if err != nil {
		return err
	}
	keys, err := apiKeys(cfg.Auth)
	if err != nil {
		return err
	}
	responses, secret, err := openResponses(cfg.Server, log)
	if err != nil {
		return err
	}
	defer responses.Close() // after everything that writes into it
	srv, err := serve.New(serve.Options{
		Store: responses, Secret: secret,
		Logger: log, Version: opt.version, MaxBody: int64(cfg.Server.MaxBody), Keys: keys, CORSOrigins: cfg.Server.CORSOrigins,
		StreamStall: cfg.Server.StreamStall, NoMetrics: !cfg.Telemetry.Metrics,
	})
	if err != nil {
		return &ExitError{Code: 2, Err: err}
	}
	listener, scheme, err := listen(cfg.Server)
	if err != nil {
		return err
	}
	hs := &http.Server{
		Handler: srv.Handler(), ReadHeaderTimeout: cfg.Server.ReadHeaderTimeout, ReadTimeout: cfg.Server.ReadTimeout, WriteTimeout: cfg.Server.WriteTimeout,
		IdleTimeout: cfg.Server.IdleTimeout, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
	defer hs.Close()
	served := make(chan error, 2)
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { served <- hs.Serve(listener) })
	defer hs.Close() // before group.Wait

	if cfg.Server.AdminListen != "" {
		admin, err := adminServer(cfg.Server.AdminListen)
		if err != nil {
			return err
		}
		group.Go(func() { admin.serve() })
		defer admin.Close()
	}

	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)

	loading, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		app *app.App
		err error
	}
	loaded := make(chan outcome, 1)
	begin := time.Now()
	group.Go(func() {
		a, err := app.Open(loading, app.Options{
			Config: cfg, Dir: opt.model, Backend: opt.backend, Notice: notice, Logger: log,
			Progress: func(stage string, done, total uint64) {
				srv.SetProgress(stage, done, total)
				bar.Update(stage, done, total)
			},
		})
		if err == nil && a.Encoder == nil {
			err = errors.Join(errors.New("the checkpoint has no tokenizer.json, which the APIs need; `deepinfer run --prompt-ids` works without"), a.Close(context.Background()))
		}
		loaded <- outcome{a, err}
	})

	var a *app.App
	url := scheme + "://" + listener.Addr().String()
	fatal := func(err error) error {
		var coded interface{ ExitCode() int }
		if errors.As(err, &coded) {
			return err
		}
		return &ExitError{Code: 1, Err: err}
	}
	abandon := func() *app.App { // what loading came to, if it was quicker than the end
		cancel()
		if o := <-loaded; o.err == nil {
			return o.app
		}
		return nil
	}
wait:
	for {
		select {
		case o := <-loaded:
			bar.Close()
			if o.err != nil {
				return fatal(o.err)
			}
			a = o.app
			m := serve.Model{
				Name: a.Name, Aliases: a.Aliases, Engine: a.Engine, Model: a.Model, Tokenizer: a.Tokenizer, Encoder: a.Encoder, Context: a.Context,
				MaxTokens: cfg.Limits.MaxTokens, MaxPrompt: cfg.Limits.Prompt, Thinking: a.Thinking, CacheSize: a.CacheSize, Numerics: a.Numerics,
			}
			if err := srv.SetModel(m); err != nil {
				return errors.Join(fatal(err), a.Close(context.Background()))
			}
			fmt.Fprintf(os.Stderr, "deepinfer: serving %s on %s at %s (ready after %.1f s)\n", a.Name, a.Backend, url, time.Since(begin).Seconds())
		case err := <-served:
			if a == nil {
				a = abandon()
			}
			if a != nil {
				err = errors.Join(err, a.Close(context.Background()))
			}
			return fatal(fmt.Errorf("serve %s: %w", url, err))
		case sig := <-signals:
			if a == nil { // nothing runs yet
				a = abandon()
			} else {
				drain(srv, log, sig, signals, cfg.Server.DrainTimeout)
			}
			break wait
		case <-ctx.Done():
			if a == nil {
				a = abandon()
			}
			break wait
		}
	}
	stop, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	if err := hs.Shutdown(stop); err != nil { // what is left after the drain is cut
		_ = hs.Close()
	}
	if a != nil {
		if err := a.Close(context.Background()); err != nil {
			return &ExitError{Code: 1, Err: fmt.Errorf("shut down: %w", err)}
		}
	}
	return nil
}

// drain lets running requests finish until the deadline or a second signal.
func drain(srv *serve.Server, log *slog.Logger, sig os.Signal, signals <-chan os.Signal, limit time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	log.Info("shutting down", "signal", sig.String(), "drain_timeout", limit.String())
	if err := srv.Drain(ctx); err != nil {
		log.Warn("requests are cut", "error", err)
	}
	cancel()
	<-over
}

// listen opens the public listener.
func listen(c conf.Server) (net.Listener, string, error) {
	l, err := net.Listen("tcp", c.Listen)
	if err != nil {
		return nil, "", &ExitError{Code: 1, Err: listenError(c.Listen, "--listen or server.listen", err)}
	}
	l = netutil.LimitListener(l, c.MaxConnections)
	if c.TLS.Certificate == "" {
		return l, "http", nil
	}
	pair, err := tls.LoadX509KeyPair(c.TLS.Certificate, c.TLS.Key)
	if err != nil {
		l.Close()
		return nil, "", &ExitError{Code: 2, Err: fmt.Errorf("server.tls: certificate %s with key %s: %w", c.TLS.Certificate, c.TLS.Key, err)}
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), "https", nil
}

func listenError(address, where string, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("listen on %s: the port is in use; stop what uses it, or choose another with %s", address, where)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("listen on %s: not allowed; ports below 1024 need privileges, choose another with %s", address, where)
	}
	return fmt.Errorf("listen on %s (%s): %w", address, where, err)
}

// admin serves the profiles of the process.
type admin struct {
	http.Server
	l net.Listener
}

func adminServer(address string) (*admin, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &ExitError{Code: 1, Err: listenError(address, "server.admin_listen", err)}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return &admin{Server: http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, l: l}, nil
}

func (a *admin) serve() { _ = a.Serve(a.l) }

// logger writes the process log to standard error, above the progress bar.
func logger(c conf.Log, bar *progress.Bar) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(c.Level)); err != nil {
		return nil, &ExitError{Code: 2, Err: fmt.Errorf("log.level: %w", err)}
	}
	w := lines{bar}
	o := &slog.HandlerOptions{Level: level}
	if c.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, o)), nil
	}
	return slog.New(slog.NewTextHandler(w, o)), nil
}

type lines struct{ bar *progress.Bar }

func (l lines) Write(p []byte) (int, error) {
	l.bar.Println(os.Stderr, strings.TrimSuffix(string(p), "\n"))
	return len(p), nil
}

// apiKeys are the configured keys and those of the file.
func apiKeys(c conf.Auth) ([]string, error) {
	keys := append([]string(nil), c.APIKeys...)
	if c.File == "" {
		return keys, nil
	}
	f, err := os.Open(c.File)
	if err != nil {
		return nil, &ExitError{Code: 2, Err: fmt.Errorf("auth.file: %w", err)}
	}
	defer f.Close()
	in, n := bufio.NewScanner(f), 0
	for in.Scan() {
		n++
		line := strings.TrimSpace(in.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if _, key, ok := strings.Cut(line, ":"); ok {
			line = strings.TrimSpace(key)
		}
		if len(line) < 8 {
			return nil, &ExitError{Code: 2, Err: fmt.Errorf("auth.file %s:%d: a key has at least 8 characters", c.File, n)}
		}
		keys = append(keys, line)
	}
	if err := in.Err(); err != nil {
		return nil, &ExitError{Code: 2, Err: fmt.Errorf("auth.file %s: %w", c.File, err)}
	}
	if len(keys) == 0 {
		return nil, &ExitError{Code: 2, Err: fmt.Errorf("auth.file %s holds no keys", c.File)}
	}
	return keys, nil
}
