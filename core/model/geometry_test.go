package model

import (
	"math"
	"os"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

func release(t *testing.T, name string) *config.Config {
	t.Helper()
	raw, err := os.ReadFile("config/testdata/" + name + ".json")
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Parse(raw)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestReleaseGeometry holds the layout to the published sizes of spec model 9.1 and 9.2.
func TestReleaseGeometry(t *testing.T) {
	g, err := NewGeometry(release(t, "v4.1-flash"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if g.GranulePayload != 890*128 || g.GranuleStride != 114048 || g.KVBytesPerToken() != 890 {
		t.Errorf("granule: payload %d stride %d, want 113920 and 114048", g.GranulePayload, g.GranuleStride)
	}
	if g.RingRows != 134 || g.Backtrack != 6 || g.KeptRows != 140 || g.NHist != 3 {
		t.Errorf("ring %d backtrack %d kept %d history %d, want 134 6 140 3", g.RingRows, g.Backtrack, g.KeptRows, g.NHist)
	}
	if len(g.Rings) != 43 || g.SlotBytes != 3128928 {
		t.Errorf("slot: %d rings, %d bytes; want 43 and 3128928", len(g.Rings), g.SlotBytes)
	}
	for i, r := range g.Rings {
		if r.Offset != int64(i)*70752 || r.RowBytes != 528 {
			t.Fatalf("ring %d: offset %d, %d bytes a row; want rings of 70752 bytes with rows of 528", i, r.Offset, r.RowBytes)
		}
	}
	var tails int64
	for _, r := range g.Tails {
		tails += int64(r.Rows) * int64(r.RowBytes)
	}
	if len(g.Tails) != 3 || tails != 86016 || g.Tails[2].Rows != 7 {
		t.Errorf("tails: %d layers, %d bytes, %d rows; want 3, 86016, 7", len(g.Tails), tails, g.Tails[2].Rows)
	}
	if g.Main[20].Rows != 128 || g.Main[2].Rows != 64 || g.Main[2].RowBytes != 288 || g.Index[2].RowBytes != 68 || g.Index[2].Offset >= g.Main[2].Offset {
		t.Errorf("records: %+v %+v", g.Main[2], g.Index[2])
	}
}

// TestV4Geometry: 21 ratio-4 layers with index keys and 20 ratio-128 layers of 584-byte records.
func TestV4Geometry(t *testing.T) {
	g, err := NewGeometry(release(t, "v4-flash"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, r := range g.Main {
		want += r.Rows * 584
	}
	for _, r := range g.Index {
		want += r.Rows * 68
	}
	if len(g.Main) != 41 || len(g.Index) != 21 || want != 449824 || g.GranulePayload < int64(want) || g.GranulePayload > int64(want)+41*62 {
		t.Errorf("%d main and %d index regions, %d bytes, payload %d", len(g.Main), len(g.Index), want, g.GranulePayload)
	}
}

func TestOptionsRefuseNonsense(t *testing.T) {
	for _, o := range []Options{{Numerics: "fast"}, {Acc: abi.BF16}, {Drafts: -1}, {Drafts: 1000}} {
		if _, err := NewGeometry(release(t, "v4.1-flash"), o); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	v4 := release(t, "v4-flash")
	if _, err := NewGeometry(v4, Options{Numerics: "production"}); err == nil {
		t.Error("production numerics were accepted for V4")
	}
}

// TestVisionSpeeds checks the two-axis rotary speeds of a head of 64: theta^(-2i/32).
func TestVisionSpeeds(t *testing.T) {
	w := visionSpeeds(&config.Vision{HiddenSize: 1024, NumAttentionHeads: 16, RopeTheta: 10000})
	if len(w) != 16 || w[0] != 1 || math.Abs(float64(w[15])-math.Pow(10000, -30.0/32)) > 1e-9 {
		t.Errorf("speeds %v", w)
	}
}
