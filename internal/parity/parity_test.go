package parity

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/backends/ref"
	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

// device opens a device for a test and closes it afterwards.
type device struct {
	name string
	open func(t testing.TB) backend.Device
	acc  uint32
}

func refDevice(accumulate string, acc uint32) device {
	return device{"ref-" + accumulate, func(t testing.TB) backend.Device {
		t.Helper()
		d, err := ref.New().Open(context.Background(), 0, backend.OpenOptions{Config: []byte(fmt.Sprintf(`{"accumulate":%q}`, accumulate))})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}, acc}
}

var exact = refDevice("float64", abi.F64)

// exactDevices sum in float64: they must equal the oracle.
func exactDevices() []device {
	out := []device{exact}
	for _, d := range cpuDevices {
		if d.acc == abi.F64 {
			out = append(out, d)
		}
	}
	return out
}

// serving are the devices that serve: float32 accumulation.
func serving() []device { return append([]device{refDevice("float32", abi.F32)}, cpuDevices...) }

func open(t testing.TB, d device, set, numerics string, buckets ...int) *Session {
	t.Helper()
	dir := fixture.Demo(t)
	if set != "demo" {
		dir = filepath.Join(fixture.Dir(t, "model/"+set), "checkpoint")
	}
	s, err := Open(d.open(t), dir, model.Options{Numerics: numerics, Acc: d.acc}, buckets...)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func golden(t testing.TB, set string) *Golden {
	t.Helper()
	g, err := LoadGolden(fixture.Dir(t, "model/"+set))
	if err != nil {
		t.Fatal(err)
	}
	return g
}

var sets = []string{"tiny", "tiny-v4", "tiny-trained"}

// TestExactTrace is the first rung: `ref` with float64 sums reproduces every recorded integer and BF16 tensor of every layer.
func TestExactTrace(t *testing.T) {
	for _, d := range exactDevices() {
		for _, set := range sets {
			t.Run(d.name+"/"+set, func(t *testing.T) {
				s, g := open(t, d, set, "reference"), golden(t, set)
				diff, n, err := s.Trace(g, Tolerance{Exact: true}, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				if diff != nil {
					t.Fatal(diff)
				}
				if n < 130 {
					t.Fatalf("only %d tensors compared", n)
				}
				t.Logf("%d tensors equal", n)
			})
		}
	}
}

// logits runs a prompt and returns the raw logits at some positions.
func logits(t testing.TB, s *Session, q *Seq, positions []int) [][]float64 {
	t.Helper()
	var out [][]float64
	_, err := s.Run([]Part{{Seq: q, Rows: len(q.IDs), Logits: positions}}, func(_ int, name string, x abi.Tensor) {
		if name != "logits" {
			return
		}
		v := floats64(x)
		for i := range positions {
			out = append(out, v[i*s.Cfg.VocabSize:(i+1)*s.Cfg.VocabSize])
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func floats64(x abi.Tensor) []float64 {
	if x.DType == abi.F64 {
		return slices.Clone(abi.Slice[float64](&x))
	}
	var out []float64
	for _, v := range floats(x) {
		out = append(out, float64(v))
	}
	return out
}

// compareLogits demands equality to 1e-6 of the spread (golden files store float32).
func compareLogits(t *testing.T, what string, got [][]float64, want []float32, positions []int) {
	t.Helper()
	n := len(want) / len(positions)
	for i, pos := range positions {
		row := want[i*n : (i+1)*n]
		lo, hi := slices.Min(row), slices.Max(row)
		for v := range row {
			if d := math.Abs(got[i][v] - float64(row[v])); !(d <= 1e-6*float64(hi-lo)) {
				t.Fatalf("%s position %d id %d: logit %v, recorded %v, spread %v", what, pos, v, got[i][v], row[v], hi-lo)
			}
		}
	}
}

// TestExactTokens: every greedy token and logit of every prompt, both profiles, in float64.
func TestExactTokens(t *testing.T) {
	for _, set := range sets {
		g := golden(t, set)
		t.Run(set, func(t *testing.T) {
			s := open(t, exact, set, "reference")
			for _, p := range g.Prompts {
				want, _ := g.Floats(p.Logits)
				compareLogits(t, p.Name, logits(t, s, s.NewSeq(p.IDs, len(p.IDs)), p.Positions), want, p.Positions)
				got, _, err := s.Greedy(p.IDs, len(p.Greedy))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, p.Greedy) {
					t.Fatalf("%s: tokens %v, recorded %v", p.Name, got, p.Greedy)
				}
			}
		})
		if set == "tiny-v4" {
			continue // production rounding is defined for V4.1
		}
		t.Run(set+"/production", func(t *testing.T) {
			s := open(t, exact, set, "production")
			for _, p := range g.Prompts {
				if p.LogitsOff != "" {
					want, _ := g.Floats(p.LogitsOff)
					compareLogits(t, p.Name, logits(t, s, s.NewSeq(p.IDs, len(p.IDs)), p.PositionsOff), want, p.PositionsOff)
				}
				tokens := p.GreedyOff
				if p.GreedyProduction != nil {
					tokens = p.GreedyProduction
				}
				if tokens == nil {
					continue
				}
				got, _, err := s.Greedy(p.IDs, len(tokens))
				if err != nil {
					t.Fatal(err)
				}
				if !slices.Equal(got, tokens) {
					t.Fatalf("%s: tokens %v, recorded %v", p.Name, got, tokens)
				}
			}
		})
	}
}

// TestExactSelectionInProduction: the BF16 index scores choose the recorded entries.
func TestExactSelectionInProduction(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-trained"} {
		s, g := open(t, exact, set, "production"), golden(t, set)
		for _, p := range g.Prompts {
			if p.SelectedOff == nil {
				continue
			}
			n := 0
			_, err := s.Run([]Part{{Seq: s.NewSeq(p.IDs, len(p.IDs)), Rows: len(p.IDs)}}, func(_ int, name string, x abi.Tensor) {
				var layer int
				if _, err := fmt.Sscanf(name, "layers.%d.attn.selected", &layer); err != nil {
					return
				}
				for row, want := range p.SelectedOff[fmt.Sprint(layer)] {
					if got := lists(x)[row]; !slices.Equal(got, want) {
						t.Fatalf("%s %s layer %d row %d: selected %v, recorded %v", set, p.Name, layer, row, got, want)
					}
				}
				n++
			})
			if err != nil {
				t.Fatal(err)
			}
			if n != len(p.SelectedOff) {
				t.Fatalf("%d index layers seen, %d recorded", n, len(p.SelectedOff))
			}
		}
	}
}

// TestImagePrompt: tower, span rows, router and Engram decisions and logits of a prompt with an image span, in float64.
func TestImagePrompt(t *testing.T) {
	s, g := open(t, exact, "tiny", "reference"), golden(t, "tiny")
	im := g.Image
	cells, err := s.EncodeImage(g.BF16("image.patches"), im.Grid[0], im.Grid[1])
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.Load(filepath.Join(fixture.Dir(t, "model/tiny"), "checkpoint"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	r := s.Cfg.Vision.DownsampleRatio
	rows, err := m.SpanRows(cells, (im.Grid[0]+r-1)/r, (im.Grid[1]+r-1)/r)
	if err != nil {
		t.Fatal(err)
	}
	if want := g.BF16("image.rows"); !slices.Equal(rows, want) {
		t.Fatalf("span rows differ from the oracle's (%d and %d values)", len(rows), len(want))
	}
	q := s.NewSeq(im.IDs, len(im.IDs))
	q.image, q.imageFrom = rows, im.Span[0]
	var got [][]float64
	_, err = s.Run([]Part{{Seq: q, Rows: len(q.IDs), Logits: im.Positions}}, func(_ int, name string, x abi.Tensor) {
		var layer int
		if _, err := fmt.Sscanf(name, "layers.%d.", &layer); err == nil {
			switch {
			case strings.HasSuffix(name, "ffn.ids"):
				for row, want := range im.RouterIDs[layer] {
					if have := lists(x)[row]; !slices.Equal(have, want) {
						t.Fatalf("layer %d row %d: experts %v, recorded %v", layer, row, have, want)
					}
				}
			case strings.HasSuffix(name, "engram.ids"):
				for row, want := range im.EngramIDs[fmt.Sprint(layer)] {
					if have := lists(x)[row]; !slices.Equal(have, want) {
						t.Fatalf("layer %d row %d: Engram rows %v, recorded %v", layer, row, have, want)
					}
				}
			}
		}
		if name == "logits" {
			v := floats64(x)
			for i := range im.Positions {
				got = append(got, v[i*s.Cfg.VocabSize:(i+1)*s.Cfg.VocabSize])
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	want, _ := g.Floats("image.logits")
	compareLogits(t, "image", got, want, im.Positions)

	// The span may be cut by chunks: same final logits bit for bit.
	for _, chunk := range []int{1, 3, 10} {
		q := s.NewSeq(im.IDs, len(im.IDs))
		q.image, q.imageFrom = rows, im.Span[0]
		var last []float64
		for q.pos < len(q.IDs) {
			n := min(chunk, len(q.IDs)-q.pos)
			p := Part{Seq: q, Rows: n, Logits: []int{q.pos + n - 1}}
			if _, err := s.Run([]Part{p}, func(_ int, name string, x abi.Tensor) {
				if name == "logits" {
					last = floats64(x)
				}
			}); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(last, got[len(got)-1]) {
			t.Fatalf("chunks of %d: logits differ from one piece", chunk)
		}
	}
}

// TestLayers is the second rung: float32 devices, every recorded tensor computed from recorded inputs, tolerance 1e-2 (oracle README, "Tolerances" 2).
func TestLayers(t *testing.T) {
	for _, d := range serving() {
		for _, set := range sets {
			t.Run(d.name+"/"+set, func(t *testing.T) {
				s, g := open(t, d, set, "reference"), golden(t, set)
				diff, n, err := s.Trace(g, Tolerance{Relative: 1e-2}, true, nil)
				if err != nil {
					t.Fatal(err)
				}
				if diff != nil {
					t.Fatal(diff)
				}
				t.Logf("%d tensors within 1e-2", n)
			})
		}
	}
}

// TestBisect: a damaged op is named by layer and buffer, whatever comes after it.
func TestBisect(t *testing.T) {
	s, g := open(t, exact, "tiny", "reference"), golden(t, "tiny")
	for _, name := range []string{"layers.3.attn.qr", "layers.6.attn.out", "layers.8.ffn.out"} {
		diff, _, err := s.Trace(g, Tolerance{Exact: true}, false, func(buffer string, x abi.Tensor) {
			if buffer == name {
				abi.Slice[uint16](&x)[x.Width()*5] ^= 1
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if diff == nil || diff.Buffer != name || diff.Row != 5 {
			t.Fatalf("damage in row 5 of %s was reported as %v", name, diff)
		}
		t.Log(diff)
	}
}

// TestTrainedTokens is the third rung: float32 devices give the recorded greedy tokens of trained weights, in both profiles, however the prompt is cut.
func TestTrainedTokens(t *testing.T) {
	for _, d := range serving() {
		for _, numerics := range []string{"reference", "production"} {
			t.Run(d.name+"/"+numerics, func(t *testing.T) {
				s, g := open(t, d, "tiny-trained", numerics), golden(t, "tiny-trained")
				for _, p := range g.Prompts {
					want := p.Greedy
					if numerics == "production" {
						want = p.GreedyProduction
					}
					for _, chunks := range [][]int{{0}, {1}, {16, 1, 33}} {
						got, _, err := s.Greedy(p.IDs, len(want), chunks...)
						if err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(got, want) {
							t.Fatalf("%s in chunks %v: tokens %v, recorded %v", p.Name, chunks, got, want)
						}
					}
				}
			})
		}
	}
}

// TestRandomWeights: on random weights a float32 device may leave the oracle only where the margin is below 6 times the recorded noise.
func TestRandomWeights(t *testing.T) {
	for _, d := range serving() {
		for _, set := range []string{"tiny", "tiny-v4"} {
			t.Run(d.name+"/"+set, func(t *testing.T) {
				s, g := open(t, d, set, "reference"), golden(t, set)
				near, steps := 0, 0
				for _, p := range g.Prompts {
					all := append(slices.Clone(p.IDs), p.Greedy...)
					var at []int
					for i := range p.Greedy {
						at = append(at, len(p.IDs)-1+i)
					}
					res, err := s.Run([]Part{{Seq: s.NewSeq(all, len(all)), Rows: len(all), Logits: at}}, nil)
					if err != nil {
						t.Fatal(err)
					}
					for i, id := range p.Greedy {
						steps++
						if res.IDs[i] != id {
							near++
							if p.Margin[i] >= 6*p.Noise.RMS {
								t.Errorf("%s step %d: token %d, recorded %d with margin %.4g = %.1f x the noise", p.Name, i, res.IDs[i], id, p.Margin[i], p.Margin[i]/p.Noise.RMS)
							}
						}
					}
				}
				t.Logf("%d of %d teacher-forced steps left the oracle, all within the noise", near, steps)
			})
		}
	}
}

// demoPrompt is one line of testdata/demo/golden.jsonl.
type demoPrompt struct {
	ID     string    `json:"id"`
	IDs    []int32   `json:"ids"`
	Greedy []int32   `json:"greedy"`
	Margin []float64 `json:"margin"`
}

func demoPrompts(t testing.TB) []demoPrompt {
	t.Helper()
	raw, err := os.ReadFile(fixture.Dir(t, "demo/golden.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var out []demoPrompt
	for line := range strings.Lines(string(raw)) {
		var p demoPrompt
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			t.Fatal(err)
		}
		if end := slices.Index(p.Greedy, 1); end >= 0 { // what follows the end token is noise
			p.Greedy, p.Margin = p.Greedy[:end+1], p.Margin[:end+1]
		}
		out = append(out, p)
	}
	return out
}

// nearTie is the margin below which the demo model's two best tokens count as a tie.
const nearTie = 0.1

// TestDemoTokens: the trained demo model, 40 prompts up to the end token. Teacher-forced, so that one near-tie does not hide what follows. Devices with float64
// sums must give every token. With float32 sums about one BF16 rounding in 10^5 falls the other way and sometimes moves a whole expert or entry choice, so a few
// steps leave the recorded token; the float32 oracle itself leaves it in 17 of 1,426. Measured for our float32 path with three summation orders: 15 to 18 steps,
// 3 or 4 of them with margins of 0.1 to 0.7 (docs/decisions/0003). The bound holds it there.
func TestDemoTokens(t *testing.T) {
	for _, d := range append([]device{exact}, serving()...) {
		t.Run(d.name, func(t *testing.T) {
			s := open(t, d, "demo", "reference")
			steps, near, far := 0, 0, 0
			for _, p := range demoPrompts(t) {
				all := append(slices.Clone(p.IDs), p.Greedy...)
				var at []int
				for i := range p.Greedy {
					at = append(at, len(p.IDs)-1+i)
				}
				res, err := s.Run([]Part{{Seq: s.NewSeq(all, len(all)), Rows: len(all), Logits: at}}, nil)
				if err != nil {
					t.Fatal(err)
				}
				for i, id := range p.Greedy {
					steps++
					switch {
					case res.IDs[i] == id:
						continue
					case p.Margin[i] < nearTie:
						near++
					default:
						far++
					}
					t.Logf("%s step %d: token %d, recorded %d with margin %.3f", p.ID, i, res.IDs[i], id, p.Margin[i])
				}
			}
			t.Logf("%d steps; %d near-ties (margin below %.1f) and %d others chosen otherwise", steps, near, nearTie, far)
			if d.acc == abi.F64 && near+far > 0 {
				t.Error("a device with float64 sums left the oracle")
			}
			if near+far > steps*2/100 || far > steps/200 {
				t.Error("more than float32 sums explain")
			}
		})
	}
}

// TestInvariance holds level d1: the tokens and the bits of the log-probabilities of a row do not depend on chunking, on decoding one token at a time, or on the
// other rows of the step.
func TestInvariance(t *testing.T) {
	for _, d := range append([]device{exact}, serving()...) {
		t.Run(d.name, func(t *testing.T) {
			s := open(t, d, "demo", "reference")
			var prompts []demoPrompt
			for i, p := range demoPrompts(t) {
				if i%5 == 2 { // one of each kind
					prompts = append(prompts, p)
				}
			}
			type scored struct {
				ids  []int32
				bits []uint32
			}
			run := func(parts []Part) []scored {
				res, err := s.Run(parts, nil)
				if err != nil {
					t.Fatal(err)
				}
				var out []scored
				at := 0
				for _, p := range parts {
					var sc scored
					for range p.Logits {
						sc.ids = append(sc.ids, res.IDs[at])
						sc.bits = append(sc.bits, math.Float32bits(res.LogProb[at]))
						at++
					}
					out = append(out, sc)
				}
				return out
			}
			span := func(from, n int) []int {
				var v []int
				for i := range n {
					v = append(v, from+i)
				}
				return v
			}
			chunked := func(ids []int32, chunk func(i int) int) scored {
				q := s.NewSeq(ids, len(ids))
				var all scored
				for i := 0; q.pos < len(ids); i++ {
					n := min(chunk(i), len(ids)-q.pos)
					sc := run([]Part{{Seq: q, Rows: n, Logits: span(q.pos, n)}})[0]
					all.ids, all.bits = append(all.ids, sc.ids...), append(all.bits, sc.bits...)
				}
				return all
			}
			whole := map[string]scored{}
			var seqs []*Seq
			for _, p := range prompts {
				ids := append(slices.Clone(p.IDs), p.Greedy...)
				ids = ids[:min(len(ids), 60)]
				whole[p.ID] = chunked(ids, func(int) int { return len(ids) })
				for name, chunk := range map[string]func(int) int{"1": func(int) int { return 1 }, "7": func(int) int { return 7 }, "ragged": func(i int) int { return 1 + i*i%19 }} {
					if got := chunked(ids, chunk); !slices.Equal(got.bits, whole[p.ID].bits) || !slices.Equal(got.ids, whole[p.ID].ids) {
						t.Fatalf("%s: chunks %s differ from one piece", p.ID, name)
					}
				}
				seqs = append(seqs, s.NewSeq(ids, len(ids)))
			}
			// Ragged batch: every sequence advances by another amount each step.
			got := make([]scored, len(seqs))
			for round := 0; ; round++ {
				var parts []Part
				var who []int
				rows := 0
				for i, q := range seqs {
					n := min(1+(round*7+i*3)%11, len(q.IDs)-q.pos)
					if n > 0 && rows+n <= 512 {
						parts = append(parts, Part{Seq: q, Rows: n, Logits: span(q.pos, n)})
						who = append(who, i)
						rows += n
					}
				}
				if parts == nil {
					break
				}
				for k, sc := range run(parts) {
					got[who[k]].ids = append(got[who[k]].ids, sc.ids...)
					got[who[k]].bits = append(got[who[k]].bits, sc.bits...)
				}
			}
			for i, p := range prompts {
				if !slices.Equal(got[i].bits, whole[p.ID].bits) || !slices.Equal(got[i].ids, whole[p.ID].ids) {
					t.Fatalf("%s: in a ragged batch of %d it differs from a run alone", p.ID, len(prompts))
				}
			}
		})
	}
}
