package image

import (
	"fmt"
	"math"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// Geometry of the V4.1 vision encoder.
const (
	PatchPixels = 14   // side of one patch
	CellPatches = 3    // patches along the side of one cell; a cell is one token
	MaxTokens   = 1024 // of one image, the marks included
	MinArea     = 544 * 544
	MaxSide     = 8192 // pixels of a client's image; larger ones are refused before any work
	lowSide     = 512  // longer side with DetailLow
	maxSteps    = 10
)

// Plan is the size of one picture as the model sees it.
type Plan struct {
	Width, Height int // pixels to scale to, multiples of PatchPixels
	Columns, Rows int // cells; the last column and row may be partly empty
}

// Tokens is the length of the picture in the prompt: one start, Rows of Columns cells with a line end each, one end.
func (p Plan) Tokens() int { return p.Rows*(p.Columns+1) + 2 }

// Fit plans a client's image of width x height pixels.
func Fit(width, height int, detail conversation.Detail) (Plan, error) {
	if width < 1 || height < 1 {
		return Plan{}, fmt.Errorf("image of %dx%d pixels: both sides must be at least 1", width, height)
	}
	if width > MaxSide || height > MaxSide {
		return Plan{}, fmt.Errorf("image of %dx%d pixels: the longest side allowed is %d", width, height, MaxSide)
	}
	switch detail {
	case "", conversation.DetailHigh, conversation.DetailAuto, conversation.DetailOriginal:
	case conversation.DetailLow:
		if long := max(width, height); long > lowSide {
			scale := func(side int) int {
				return max(1, int(math.Round(float64(side)*lowSide/float64(long))))
			}
			width, height = scale(width), scale(height)
		}
	default:
		return Plan{}, fmt.Errorf("image detail %q: want low, high, auto or original", detail)
	}
	return Grid(width, height)
}

// Grid plans a picture of any size without a detail setting: small ones grow to MinArea, sides become multiples of a patch, and what
// takes more than MaxTokens shrinks, until nothing changes any more.
func Grid(width, height int) (Plan, error) {
	if width < 1 || height < 1 || width > 1<<24 || height > 1<<24 {
		return Plan{}, fmt.Errorf("image of %dx%d pixels: both sides must be between 1 and %d", width, height, 1<<24)
	}
	w, h := width, height
	for range maxSteps {
		p := step(w, h)
		if p.Width == w && p.Height == h {
			return p, nil
		}
		w, h = p.Width, p.Height
	}
	return Plan{}, fmt.Errorf("image of %dx%d pixels does not fit into %d tokens", width, height, MaxTokens)
}

func step(width, height int) Plan {
	w, h := float64(width), float64(height)
	if area := w * h; area < MinArea {
		f := math.Sqrt(MinArea / area)
		w, h = math.Trunc(w*f), math.Trunc(h*f)
	}
	p := cells(align(w), align(h))
	if p.Tokens() <= MaxTokens {
		return p
	}
	ratio := h / w
	columns := math.Sqrt((MaxTokens-2)/ratio+0.25) - 0.5
	rows := columns * ratio
	switch {
	case columns < 1:
		columns, rows = 1, (MaxTokens-2)/2
	case rows < 1:
		columns, rows = MaxTokens-3, 1
	default:
		columns, rows = math.Floor(columns), math.Floor(rows)
	}
	const cell = PatchPixels * CellPatches
	scale := min(cell*columns/w, cell*rows/h)
	down := func(side float64) int { return max(PatchPixels, int(side*scale)/PatchPixels*PatchPixels) }
	return cells(down(w), down(h))
}

func align(side float64) int {
	return (int(side) + PatchPixels - 1) / PatchPixels * PatchPixels
}

func cells(width, height int) Plan {
	count := func(side int) int { return (side/PatchPixels + CellPatches - 1) / CellPatches }
	return Plan{Width: width, Height: height, Columns: count(width), Rows: count(height)}
}
