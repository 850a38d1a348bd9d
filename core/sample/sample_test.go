package sample

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

func TestAbsurdParametersAreNamed(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name string
		set  func(*Params)
		want string
	}{
		{"negative temperature", func(p *Params) { p.Temperature = -0.5 }, "temperature -0.5: must be in [0, 100]"},
		{"temperature NaN", func(p *Params) { p.Temperature = nan }, "temperature NaN"},
		{"temperature infinite", func(p *Params) { p.Temperature = inf }, "temperature +Inf"},
		{"temperature just above", func(p *Params) { p.Temperature = 100.01 }, "temperature 100.01"},
		{"top_p zero", func(p *Params) { p.TopP = 0 }, "top_p 0: must be in (0, 1]"},
		{"top_p above one", func(p *Params) { p.TopP = 1.0001 }, "top_p 1.0001"},
		{"top_p NaN", func(p *Params) { p.TopP = nan }, "top_p NaN"},
		{"min_p negative", func(p *Params) { p.MinP = -1 }, "min_p -1: must be in [0, 1]"},
		{"min_p NaN", func(p *Params) { p.MinP = nan }, "min_p NaN"},
		{"top_k negative", func(p *Params) { p.TopK = -1 }, "top_k -1: must be in [0, 2147483647]"},
		{"top_k beyond int32", func(p *Params) { p.TopK = 1 << 31 }, "top_k 2147483648"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := Default()
			c.set(&p)
			err := p.Validate()
			var pe *ParamError
			if !errors.As(err, &pe) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want *ParamError with %q", err, c.want)
			}
		})
	}
	all := Params{Temperature: -1, TopP: 2, MinP: -2, TopK: -3}
	for _, name := range []string{"temperature", "top_p", "min_p", "top_k"} {
		if err := all.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not mention %s", err, name)
		}
	}
	for _, p := range []Params{Default(), Greedy(), {Temperature: 100, TopP: 1e-30, MinP: 1, TopK: 1<<31 - 1}} {
		if err := p.Validate(); err != nil {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

func TestRowIsKeyedByPosition(t *testing.T) {
	p := Params{Temperature: 0.5, TopP: 0.9, MinP: 0.1, TopK: 40, Seed: 77, Salt: 3}
	want := abi.Sampling{Seed: 77, Pos: 12, Salt: 3, Temperature: 0.5, TopP: 0.9, MinP: 0.1, TopK: 40, Forced: -1}
	if got := p.Row(12); got != want {
		t.Errorf("row %+v, want %+v", got, want)
	}
	p.Temperature = 1e-40 // dividing by it would overflow
	if got := p.Row(0).Temperature; got != 0 {
		t.Errorf("temperature %v, want 0", got)
	}
	if got := ForcedRow(5, 9); got.Forced != 9 || got.Pos != 5 || got.Temperature != 0 {
		t.Errorf("forced row %+v", got)
	}
}

func TestStopIDs(t *testing.T) {
	s, err := NewStop([]int32{1}, []int32{7, 3, 7}, false, 10)
	if err != nil {
		t.Fatal(err)
	}
	for id := range int32(10) {
		if got, want := s.Hit(id), id == 1 || id == 3 || id == 7; got != want {
			t.Errorf("Hit(%d) = %v", id, got)
		}
	}
	s, _ = NewStop([]int32{1}, nil, true, 10)
	if s.Hit(1) {
		t.Error("the end id stops although it is ignored")
	}
	var many []int32
	for i := range int32(100) {
		many = append(many, i*2)
	}
	s, _ = NewStop(nil, many, false, 1000)
	if !s.Hit(100) || s.Hit(101) || s.Hit(999) {
		t.Error("a long list is searched wrongly")
	}
	var zero Stop
	if zero.Hit(0) {
		t.Error("the zero value stops")
	}
	for _, ids := range [][]int32{{-1}, {0, 10}, make([]int32, MaxStopIDs+1)} {
		var pe *ParamError
		if _, err := NewStop(nil, ids, false, 10); !errors.As(err, &pe) {
			t.Errorf("%d ids: error %v", len(ids), err)
		}
	}
}

func TestAssemble(t *testing.T) {
	r := &program.Result{
		IDs: []int32{4, 5}, LogProb: []float32{-1, -2},
		TopIDs: []int32{4, 1, 2, 3, 5, -1}, TopLogProb: []float32{-1, -3, -4, -1, -2, 0},
	}
	if err := CheckResult(r, 2, 3); err != nil {
		t.Fatal(err)
	}
	tok, err := Assemble(r, 0, 3, 2, 10)
	if err != nil || tok.ID != 4 || tok.LogProb != -1 || len(tok.Top) != 2 || tok.Top[1] != (Candidate{1, -3}) {
		t.Errorf("%+v, %v", tok, err)
	}
	tok, err = Assemble(r, 1, 3, 3, 10) // the third candidate does not exist
	if err != nil || len(tok.Top) != 2 || tok.Top[0].ID != 3 {
		t.Errorf("%+v, %v", tok, err)
	}
	if tok, _ = Assemble(r, 1, 3, 0, 10); tok.Top != nil {
		t.Errorf("candidates %v, none asked for", tok.Top)
	}
	if _, err = Assemble(r, 1, 3, 0, 5); err == nil || !strings.Contains(err.Error(), "token 5") {
		t.Errorf("id outside the vocabulary: %v", err)
	}
	r.LogProb[0], r.TopLogProb[1] = float32(math.Inf(-1)), float32(math.Inf(-1))
	if tok, err = Assemble(r, 0, 3, 3, 10); err != nil || tok.LogProb != Floor || tok.Top[1].LogProb != Floor {
		t.Errorf("impossible token: %+v, %v", tok, err)
	}
	r.LogProb[0] = float32(math.NaN())
	if _, err = Assemble(r, 0, 3, 0, 10); !errors.Is(err, ErrNotANumber) {
		t.Errorf("NaN: %v", err)
	}
	for _, n := range [][2]int{{3, 0}, {2, 4}} {
		if err := CheckResult(r, n[0], n[1]); err == nil {
			t.Errorf("a short result passes for %v", n)
		}
	}
}
