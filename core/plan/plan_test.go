package plan_test

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/model"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/core/plan"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

var rewrite = flag.Bool("rewrite", false, "rewrite golden program texts")

func lower(t *testing.T, set string, opt model.Options, rows int) *program.Program {
	t.Helper()
	cfg, err := config.Load(fixture.Dir(t, "model/"+set+"/checkpoint"))
	if err != nil {
		t.Fatal(err)
	}
	g, err := model.NewGraph(cfg, opt)
	if err != nil {
		t.Fatal(err)
	}
	p, err := plan.Lower(g, program.Bucket{Rows: rows, Seqs: rows, Logits: rows})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProgramText holds the lowered programs of both architectures to reviewed text files.
func TestProgramText(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4"} {
		t.Run(set, func(t *testing.T) {
			got := lower(t, set, model.Options{}, 16).Text()
			file := filepath.Join("testdata", set+".program.txt")
			if *rewrite {
				if err := os.MkdirAll("testdata", 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
			for i := range min(len(g), len(w)) {
				if g[i] != w[i] {
					t.Fatalf("line %d\n got %s\nwant %s\n(go test ./core/plan -rewrite after a deliberate change)", i+1, g[i], w[i])
				}
			}
			if len(g) != len(w) {
				t.Fatalf("%d lines, want %d", len(g), len(w))
			}
		})
	}
}

// TestNoOverlap checks the memory plan: buffers whose lives overlap never share bytes.
func TestNoOverlap(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4"} {
		for _, rows := range []int{1, 7, 64} {
			p := lower(t, set, model.Options{}, rows)
			type span struct{ first, last int }
			lives := map[int]*span{}
			for i := range p.Ops {
				for _, o := range p.Ops[i].Operands {
					switch p.Buffers[o.Buf].Kind {
					case program.Temp, program.Input, program.Output:
						s := lives[o.Buf]
						if s == nil {
							s = &span{first: i}
							lives[o.Buf] = s
						}
						s.last = i
					}
				}
			}
			for b, s := range lives {
				switch p.Buffers[b].Kind {
				case program.Input:
					s.first = -1
				case program.Output:
					s.last = len(p.Ops)
				}
			}
			var sum int64
			for a, sa := range lives {
				ba := &p.Buffers[a]
				endA := ba.Offset + ba.Bytes(p.Bucket.Count(ba.Domain))
				sum += endA - ba.Offset
				for b, sb := range lives {
					bb := &p.Buffers[b]
					endB := bb.Offset + bb.Bytes(p.Bucket.Count(bb.Domain))
					if a < b && sa.first <= sb.last && sb.first <= sa.last && ba.Offset < endB && bb.Offset < endA {
						t.Fatalf("%s rows %d: %s [%d,%d) and %s [%d,%d) overlap while both live", set, rows, ba.Name, ba.Offset, endA, bb.Name, bb.Offset, endB)
					}
				}
			}
			if p.Workspace*2 > sum {
				t.Errorf("%s rows %d: workspace %d of %d bytes without sharing: the plan reuses too little", set, rows, p.Workspace, sum)
			}
		}
	}
}

func TestEncodeDecode(t *testing.T) {
	p := lower(t, "tiny", model.Options{}, 16)
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	q, err := program.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if p.Text() != q.Text() || q.Workspace != p.Workspace {
		t.Fatal("a decoded program differs")
	}
}

// TestReleasesLower lowers the full-size models: every bucket of a serving machine validates, and the workspace stays near what one layer needs.
func TestReleasesLower(t *testing.T) {
	for _, name := range []string{"v4.1-flash", "v4-flash"} {
		raw, err := os.ReadFile(filepath.Join("..", "model", "config", "testdata", name+".json"))
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := config.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		for _, numerics := range []string{"reference", "production"} {
			if numerics == "production" && cfg.V4() {
				continue
			}
			g, err := model.NewGraph(cfg, model.Options{Numerics: numerics})
			if err != nil {
				t.Fatal(err)
			}
			for _, rows := range plan.Buckets(2048) {
				p, err := plan.Lower(g, program.Bucket{Rows: rows, Seqs: min(rows, 256), Logits: min(rows, 256)})
				if err != nil {
					t.Fatal(err)
				}
				if rows == 2048 && p.Workspace > 2<<30 {
					t.Errorf("%s: workspace of %d bytes for 2048 rows", name, p.Workspace)
				}
			}
		}
		if cfg.Vision != nil {
			g, err := model.NewVisionGraph(cfg, model.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := plan.Lower(g, program.Bucket{Rows: 9216, Seqs: 1, Logits: 1024}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
