package image

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

func TestPlansOfTheReference(t *testing.T) {
	data, err := os.ReadFile("testdata/images.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, line := range bytes.Split(bytes.TrimSpace(data), []byte("\n")) {
		var c struct {
			ID            string
			Width, Height int
			Detail        conversation.Detail
			Sent          []int
			Tokens        int
		}
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatal(err)
		}
		n++
		if c.Width == 0 { // the reference counts 2 and 3 tokens for images without area; there is no such image
			if p, err := Grid(c.Width, c.Height); err == nil {
				t.Errorf("%s: %+v, want an error", c.ID, p)
			}
			continue
		}
		var p Plan
		var err error
		if c.Detail == "" {
			p, err = Grid(c.Width, c.Height)
		} else {
			p, err = Fit(c.Width, c.Height, c.Detail)
		}
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			continue
		}
		if p.Tokens() != c.Tokens || c.Sent != nil && (p.Width != c.Sent[0] || p.Height != c.Sent[1]) {
			t.Errorf("%s, %dx%d %s: %+v with %d tokens, want %v with %d", c.ID, c.Width, c.Height, c.Detail, p, p.Tokens(), c.Sent, c.Tokens)
		}
	}
	if n != 76 {
		t.Errorf("%d cases, want 76", n)
	}
}

func TestEveryPlanFitsAndIsAFixedPoint(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, seed))
	for range 20000 {
		w, h := 1+rng.IntN(1+rng.IntN(MaxSide)), 1+rng.IntN(1+rng.IntN(MaxSide))
		p, err := Fit(w, h, conversation.DetailHigh)
		if err != nil {
			t.Fatalf("seed %d, %dx%d: %v", seed, w, h, err)
		}
		if p.Tokens() > MaxTokens || p.Width%PatchPixels != 0 || p.Height%PatchPixels != 0 || p.Rows < 1 || p.Columns < 1 {
			t.Fatalf("seed %d, %dx%d: %+v with %d tokens", seed, w, h, p, p.Tokens())
		}
		if again, err := Grid(p.Width, p.Height); err != nil || again != p {
			t.Fatalf("seed %d, %dx%d: planned %+v, and that again %+v, %v", seed, w, h, p, again, err)
		}
	}
}

func TestBadSizesAreRefused(t *testing.T) {
	for _, c := range []struct {
		w, h   int
		detail conversation.Detail
	}{{0, 5, ""}, {5, -1, ""}, {9000, 10, ""}, {10, 9000, "low"}, {10, 10, "tiny"}} {
		if p, err := Fit(c.w, c.h, c.detail); err == nil {
			t.Errorf("Fit(%d, %d, %q) = %+v, want an error", c.w, c.h, c.detail, p)
		}
	}
	if _, err := Fit(8000, 8000, conversation.DetailOriginal); err != nil {
		t.Error(err)
	}
}
