package vision

import (
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/core/model/config"
)

// Config is the part of the model configuration that this package uses.
type Config = config.Vision

// Plan says how an image of one size is shown to the model. Sizes are in pixels unless said otherwise.
type Plan struct {
	Width, Height int // of the padded canvas; multiples of the patch size
	FitW, FitH    int // of the resized image on the canvas
	Left, Top     int // where it lies
	GridW, GridH  int // token grid: columns and rows of cells
	PatchW        int // patch grid: columns, Width / patch size
	PatchH        int // patch grid: rows
}

// Tokens returns the number of positions the image takes in the prompt: start, cells and a newline for each row, end.
func (p Plan) Tokens() int { return p.GridH*(p.GridW+1) + 2 }

// NewPlan plans an image of w x h pixels. Small images are scaled up to Config.MinPixels, large ones down until they cost at
// most Config.MaxImageTokens.
func NewPlan(v *Config, w, h int) (Plan, error) {
	const most = 1 << 24
	if w < 1 || h < 1 || w > most || h > most {
		return Plan{}, fmt.Errorf("plan image: size %d x %d, want sides of 1 to %d pixels", w, h, most)
	}
	original := [2]int{w, h}
	stretched := v.MaxWHRatio > 0 && float64(w) >= float64(h)*v.MaxWHRatio
	if v.MaxWHRatio > 0 {
		w = min(w, max(int(float64(h)*v.MaxWHRatio), 1))
	}
	if w*h < v.MinPixels {
		scale := math.Sqrt(float64(v.MinPixels) / float64(w*h))
		w, h = int(float64(w)*scale), int(float64(h)*scale)
	}
	patch, down := v.PatchSize, v.DownsampleRatio
	cell, limit := patch*down, v.MaxImageTokens
	p := Plan{Width: up(w, patch) * patch, Height: up(h, patch) * patch}
	p.grid(patch, down)
	if p.Tokens() > limit {
		// X columns and Y rows of cells with the proportions of the image would just use up the limit.
		r := float64(h) / float64(w)
		x := math.Sqrt(float64(limit-2)/r+0.25) - 0.5
		y := x * r
		switch {
		case x < 1:
			p.Width, p.Height = cell, (limit-2)/2*cell
		case y < 1:
			p.Width, p.Height = (limit-3)*cell, cell
		default:
			beta := min(math.Floor(x)*float64(cell)/float64(w), math.Floor(y)*float64(cell)/float64(h))
			p.Width = int(math.Floor(float64(w)*beta/float64(patch))) * patch
			p.Height = int(math.Floor(float64(h)*beta/float64(patch))) * patch
		}
		p.grid(patch, down)
	}
	if p.Width < patch || p.Height < patch || p.Tokens() > limit {
		return Plan{}, fmt.Errorf("plan image: %d x %d pixels do not fit into %d tokens of %d x %d pixels", original[0], original[1], limit, cell, cell)
	}
	p.FitW, p.FitH = p.Width, p.Height
	if !stretched {
		p.fit(original[0], original[1])
	}
	return p, nil
}

func (p *Plan) grid(patch, down int) {
	p.PatchW, p.PatchH = p.Width/patch, p.Height/patch
	p.GridW, p.GridH = up(p.PatchW, down), up(p.PatchH, down)
}

// fit keeps the proportions of a w x h image on the canvas and centres it; only one side is padded. The rounding is that of
// the reference's image library: half to even, on the same sequence of FP64 operations. A side that would vanish makes the image fill the canvas.
func (p *Plan) fit(w, h int) {
	image, target := float64(w)/float64(h), float64(p.Width)/float64(p.Height)
	fitW, fitH := p.Width, p.Height
	switch {
	case image > target:
		fitH = int(math.RoundToEven(float64(h) / float64(w) * float64(p.Width)))
	case image < target:
		fitW = int(math.RoundToEven(float64(w) / float64(h) * float64(p.Height)))
	}
	if fitW < 1 || fitH < 1 {
		return
	}
	p.FitW, p.FitH = fitW, fitH
	p.Left = int(math.RoundToEven(float64(p.Width-fitW) * 0.5))
	if fitW == p.Width {
		p.Top = int(math.RoundToEven(float64(p.Height-fitH) * 0.5))
	}
}

// Role says what a position of an image span is.
type Role uint8

// Roles of positions. Embedding rows of Start, End and Newline are the image_start, image_end and image_newline tensors, those
// of Cell the rows of the aligner in reading order.
const (
	Start Role = iota
	Cell
	Newline
	End
)

// Layout returns the role of each of the Tokens positions of the span: start, then for each row its cells and a newline, then end.
func (p Plan) Layout() []Role {
	out := make([]Role, 0, p.Tokens())
	out = append(out, Start)
	for range p.GridH {
		for range p.GridW {
			out = append(out, Cell)
		}
		out = append(out, Newline)
	}
	return append(out, End)
}

func up(a, b int) int { return (a + b - 1) / b }
