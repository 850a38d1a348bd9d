package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/core/engine"
	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/core/sched"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/plugins/local"
	"github.com/deepinfer-go/deepinfer/recipe/encoding"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// bench is the demo model on ref behind a real listener, shared by the package's tests.
type bench struct {
	server *Server
	http   *httptest.Server
	engine *engine.Engine
	model  Model
	log    *lockedBuffer
	close  func()
}

var shared struct {
	sync.Once
	*bench
	err error
}

func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	if shared.bench != nil {
		shared.bench.close()
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	if n := settle(before); n > before && code == 0 {
		buf := make([]byte, 1<<20)
		fmt.Fprintf(os.Stderr, "%d goroutines before the tests, %d after:\n%s\n", before, n, buf[:runtime.Stack(buf, true)])
		code = 1
	}
	os.Exit(code)
}

// settle waits until no more than n goroutines run, for a while.
func settle(n int) int {
	for range 500 {
		if runtime.NumGoroutine() <= n {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return runtime.NumGoroutine()
}

type lockedBuffer struct {
	mu sync.Mutex
	bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.Buffer.String()
}

func demo(t testing.TB) *bench {
	t.Helper()
	shared.Do(func() {
		dir := fixture.Demo(t)
		shared.bench, shared.err = newBench(dir, 8, Options{StreamStall: 20 * time.Second})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.bench
}

// newBench loads the checkpoint of dir on ref with float64 sums, which equal the golden files exactly.
func newBench(dir string, seqs int, opt Options) (*bench, error) {
	e, m, closeEngine, err := newEngine(dir, seqs)
	if err != nil {
		return nil, err
	}
	raw, err := os.ReadFile(filepath.Join(dir, "tokenizer.json"))
	if err != nil {
		return nil, err
	}
	tok, err := token.Parse(raw)
	if err != nil {
		return nil, err
	}
	enc, err := encoding.New(encoding.V41Recipe, tok)
	if err != nil {
		return nil, err
	}
	b := &bench{engine: e, log: &lockedBuffer{}}
	opt.Logger = slog.New(slog.NewTextHandler(b.log, nil))
	if b.server, err = New(opt); err != nil {
		return nil, err
	}
	b.model = Model{Name: "spark-mini", Aliases: []string{"default"}, Engine: e, Model: m, Tokenizer: tok, Encoder: enc, Context: m.Config.MaxPositionEmbeddings}
	if err := b.server.SetModel(b.model); err != nil {
		return nil, err
	}
	b.http = httptest.NewServer(b.server.Handler())
	b.close = func() {
		b.http.Close()
		closeEngine()
	}
	return b, nil
}

func newEngine(dir string, seqs int) (*engine.Engine, *model.Model, func(), error) {
	m, err := model.Load(dir)
	if err != nil {
		return nil, nil, nil, err
	}
	opt := model.Options{Acc: abi.F64}
	g, err := model.NewGraph(m.Config, opt)
	if err != nil {
		return nil, nil, nil, err
	}
	exec, err := local.New(local.Options{Backend: ref.New(), Open: backend.OpenOptions{Config: []byte(`{"accumulate":"float64"}`)}})
	if err != nil {
		return nil, nil, nil, err
	}
	const rows, granules = 256, 512
	ctx := context.Background()
	if err := exec.Load(ctx, engine.ModelSpec{Weights: m.Weights, SlotBytes: g.Geometry.SlotBytes, Slots: seqs, Granule: g.Geometry.GranuleStride, Granules: granules}); err != nil {
		return nil, nil, nil, err
	}
	var programs []*program.Program
	for _, n := range plan.Buckets(rows) {
		p, err := plan.Lower(g, program.Bucket{Rows: n, Seqs: min(n, seqs), Logits: n})
		if err != nil {
			return nil, nil, nil, err
		}
		programs = append(programs, p)
	}
	geo := engine.Geometry{Window: g.Geometry.Window, NHist: g.Geometry.NHist, Vocab: m.Config.VocabSize, MaxContext: m.Config.MaxPositionEmbeddings, ImageToken: -1}
	for _, id := range m.Generation.EOSTokenIDs {
		geo.EOS = append(geo.EOS, int32(id))
	}
	var tower *program.Program
	if v := m.Config.Vision; v != nil {
		vg, err := model.NewVisionGraph(m.Config, opt)
		if err != nil {
			return nil, nil, nil, err
		}
		r := v.DownsampleRatio
		if tower, err = plan.Lower(vg, program.Bucket{Rows: v.MaxImageTokens * r * r, Seqs: 1, Logits: v.MaxImageTokens}); err != nil {
			return nil, nil, nil, err
		}
		geo.ImageToken, geo.Downsample = int32(m.Config.ImageTokenID), r
	}
	e, err := engine.New(engine.Options{Executor: exec, Geometry: geo, Programs: programs, Vision: tower, Limits: sched.Limits{Slots: seqs, Granules: granules, MaxRows: rows, MaxSeqs: seqs, MaxLogits: rows}})
	if err != nil {
		return nil, nil, nil, err
	}
	return e, m, func() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, err := range []error{e.Close(ctx), exec.Close(ctx), m.Close()} {
			if err != nil {
				panic(err)
			}
		}
	}, nil
}

// do sends a request and reads the whole answer.
func (b *bench) do(t testing.TB, method, path, body string, header ...string) (int, http.Header, []byte) {
	t.Helper()
	req, err := http.NewRequest(method, b.http.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, raw
}

type completion struct {
	ID      string
	Model   string
	Choices []struct {
		Index   int
		Message struct {
			Content   *string
			Reasoning string `json:"reasoning_content"`
			ToolCalls []struct {
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Logprobs *struct {
			Content []struct {
				Token   string
				Logprob float64
				Top     []struct{ Token string } `json:"top_logprobs"`
			}
		}
		Finish string `json:"finish_reason"`
	}
	Usage struct {
		Prompt     int `json:"prompt_tokens"`
		Completion int `json:"completion_tokens"`
		Total      int `json:"total_tokens"`
	}
	PromptIDs []int32   `json:"prompt_token_ids"`
	IDs       [][]int32 `json:"token_ids"`
}

func (b *bench) chat(t testing.TB, body string) completion {
	t.Helper()
	status, _, raw := b.do(t, "POST", "/v1/chat/completions", body)
	if status != 200 {
		t.Fatalf("status %d: %s", status, raw)
	}
	var c completion
	if err := json.Unmarshal(raw, &c); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	return c
}

// free waits until the engine holds nothing any more.
func (b *bench) free(t testing.TB) {
	t.Helper()
	for range 1000 {
		st := b.engine.Stats()
		if st.Running == 0 && st.Queued == 0 && st.Pool.FreeGranules == st.Pool.Granules && st.Pool.FreeSlots == st.Pool.Slots {
			return
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatalf("the engine still holds something: %+v", b.engine.Stats())
}

func logTo(w io.Writer) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
