package parity

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
)

// Golden is a set of vectors recorded from the oracle (docs/golden.md).
type Golden struct {
	Name    string
	Prompts []Prompt `json:"prompts"`
	Trace   struct {
		IDs    []int32      `json:"ids"`
		Layers []TraceLayer `json:"layers"`
		Rows   []int        `json:"rows"`
	} `json:"trace"`
	Image *struct {
		IDs       []int32            `json:"ids"`
		Grid      [2]int             `json:"grid"`
		Span      [2]int             `json:"span"`
		Positions []int              `json:"positions"`
		RouterIDs [][][]int          `json:"router_ids"`
		EngramIDs map[string][][]int `json:"engram_ids"`
	} `json:"image"`
	tensors map[string]tensor
	data    []byte
}

// Prompt is one recorded run.
type Prompt struct {
	Name      string    `json:"name"`
	IDs       []int32   `json:"ids"`
	Positions []int     `json:"positions"`
	Logits    string    `json:"logits"`
	Greedy    []int32   `json:"greedy"`
	Margin    []float64 `json:"margin"`
	Noise     struct {
		RMS float64 `json:"rms"`
	} `json:"fp32_noise"`
	PositionsOff     []int              `json:"positions_off"`
	LogitsOff        string             `json:"logits_off"`
	GreedyOff        []int32            `json:"greedy_off"`
	SelectedOff      map[string][][]int `json:"selected_off"`
	GreedyProduction []int32            `json:"greedy_production"`
	MarginProduction []float64          `json:"margin_production"`
}

// TraceLayer holds the integer decisions of one layer, per row.
type TraceLayer struct {
	RouterIDs  [][]int `json:"router_ids"`
	EngramIDs  [][]int `json:"engram_ids"`
	Selected   [][]int `json:"selected"`
	Candidates [][]int `json:"candidate_blocks"`
}

type tensor struct {
	DType   string   `json:"dtype"`
	Shape   []int    `json:"shape"`
	Offsets [2]int64 `json:"data_offsets"`
}

// LoadGolden reads golden.json and golden.safetensors of a set directory.
func LoadGolden(dir string) (*Golden, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "golden.json"))
	if err != nil {
		return nil, err
	}
	g := &Golden{Name: filepath.Base(dir)}
	if err := json.Unmarshal(raw, g); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	file, err := os.ReadFile(filepath.Join(dir, "golden.safetensors"))
	if err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(file)
	if err := json.Unmarshal(file[8:8+n], &g.tensors); err != nil {
		return nil, err
	}
	g.data = file[8+n:]
	return g, nil
}

// Has reports whether the set holds a tensor.
func (g *Golden) Has(name string) bool { _, ok := g.tensors[name]; return ok }

// Floats returns a BF16 or F32 tensor as float32 values, row-major, with its shape.
func (g *Golden) Floats(name string) ([]float32, []int) {
	t, ok := g.tensors[name]
	if !ok {
		panic("golden set " + g.Name + " has no tensor " + name)
	}
	b := g.data[t.Offsets[0]:t.Offsets[1]]
	var out []float32
	switch t.DType {
	case "BF16":
		for i := 0; i < len(b); i += 2 {
			out = append(out, math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[i:]))<<16))
		}
	case "F32":
		for i := 0; i < len(b); i += 4 {
			out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b[i:])))
		}
	default:
		panic("golden tensor " + name + " is " + t.DType)
	}
	return out, t.Shape
}

// BF16 returns a BF16 tensor as bits.
func (g *Golden) BF16(name string) []uint16 {
	t := g.tensors[name]
	b := g.data[t.Offsets[0]:t.Offsets[1]]
	out := make([]uint16, len(b)/2)
	for i := range out {
		out[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	return out
}

// IsBF16 reports whether a tensor was recorded as BF16, that is, whether it is BF16-valued by construction.
func (g *Golden) IsBF16(name string) bool { return g.tensors[name].DType == "BF16" }
