package vision

import (
	"fmt"
	"math"
)

// Patches is the input of the vision tower for one image.
type Patches struct {
	Plan  Plan
	Len   int      // values of a patch: 3 x patch size squared
	Data  []uint16 // BF16 bits, [PatchH*PatchW, Len]: patches in reading order, each (channel, y, x)
	Count int      // PatchH*PatchW
}

// padding is the colour of the canvas beside the image.
const padding = 127

// Canvas resizes an image and pads it to the planned size.
func Canvas(v *Config, img *RGB) (*RGB, Plan, error) {
	if len(img.Pix) != 3*img.W*img.H {
		return nil, Plan{}, fmt.Errorf("image of %d x %d pixels has %d bytes, want %d", img.W, img.H, len(img.Pix), 3*img.W*img.H)
	}
	p, err := NewPlan(v, img.W, img.H)
	if err != nil {
		return nil, Plan{}, err
	}
	fitted := resize(img, p.FitW, p.FitH)
	if p.FitW == p.Width && p.FitH == p.Height {
		return fitted, p, nil
	}
	canvas := newRGB(p.Width, p.Height)
	for i := range canvas.Pix {
		canvas.Pix[i] = padding
	}
	for y := range p.FitH {
		copy(canvas.Pix[3*((p.Top+y)*p.Width+p.Left):], fitted.Pix[3*y*p.FitW:3*(y+1)*p.FitW])
	}
	return canvas, p, nil
}

// Preprocess turns an image into patches: resize, pad, normalise to [-1, 1], round to BF16, cut.
func Preprocess(v *Config, img *RGB) (*Patches, error) {
	canvas, p, err := Canvas(v, img)
	if err != nil {
		return nil, err
	}
	size := v.PatchSize
	out := &Patches{Plan: p, Len: 3 * size * size, Count: p.PatchH * p.PatchW}
	out.Data = make([]uint16, out.Count*out.Len)
	table := pixelTable()
	at := 0
	for py := range p.PatchH {
		for px := range p.PatchW {
			for channel := range 3 {
				for y := range size {
					row := 3 * ((py*size+y)*p.Width + px*size)
					for x := range size {
						out.Data[at] = table[canvas.Pix[row+3*x+channel]]
						at++
					}
				}
			}
		}
	}
	return out, nil
}

// pixelTable returns the BF16 value of each channel byte: (x/255 - 0.5) / 0.5 in three separate FP32 operations.
func pixelTable() [256]uint16 {
	var table [256]uint16
	for i := range table {
		x := float32(i) / 255
		x = float32(x - 0.5)
		table[i] = bf16(float32(x / 0.5))
	}
	return table
}

// bf16 rounds a finite number to nearest even.
func bf16(f float32) uint16 {
	b := math.Float32bits(f)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
