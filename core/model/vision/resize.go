package vision

import "math"

// RGB is an image of 8-bit pixels, row-major, three bytes each.
type RGB struct {
	W, H int
	Pix  []byte // 3*W*H
}

// newRGB returns a black image.
func newRGB(w, h int) *RGB { return &RGB{W: w, H: h, Pix: make([]byte, 3*w*h)} }

// taps are the filter weights of one output position along one axis.
type taps struct {
	first   int     // first input position
	weights []int32 // in units of 2^-precision
}

const precision = 22

// cubic is the convolution kernel with a = -0.5. The conversions forbid fused multiply-add, which would round differently.
func cubic(x float64) float64 {
	x = math.Abs(x)
	switch {
	case x < 1:
		return float64(float64(float64(1.5*x)-2.5)*x*x) + 1
	case x < 2:
		return float64(float64(float64(float64(float64(x-5)*x)+8)*x)-4) * -0.5
	}
	return 0
}

// axisTaps computes the weights for resizing an axis from size to n: FP64, normalised, then rounded to fixed point.
// When shrinking, the kernel widens with the ratio.
func axisTaps(size, n int) []taps {
	scale := float64(size) / float64(n)
	wide := max(scale, 1)
	support := 2 * wide
	out := make([]taps, n)
	row := make([]float64, 0, int(2*support)+2)
	for i := range out {
		mid := float64((float64(i) + 0.5) * scale)
		lo := max(int(mid-support+0.5), 0)
		hi := min(int(mid+support+0.5), size)
		row = row[:0]
		sum := 0.0
		for x := lo; x < hi; x++ {
			w := cubic((float64(x) - mid + 0.5) * (1 / wide))
			row = append(row, w)
			sum += w
		}
		weights := make([]int32, len(row))
		for j, w := range row {
			v := float64(w/sum) * (1 << precision)
			if v < 0 {
				weights[j] = int32(v - 0.5)
			} else {
				weights[j] = int32(v + 0.5)
			}
		}
		out[i] = taps{lo, weights}
	}
	return out
}

func clip(acc int64) byte {
	return byte(min(max(acc>>precision, 0), 255))
}

// resize is the bicubic filter of the reference: horizontal pass, rounding to 8 bits, vertical pass. A pass that changes
// nothing is left out.
func resize(src *RGB, w, h int) *RGB {
	return resizeRows(resizeColumns(src, w), h)
}

func resizeColumns(src *RGB, w int) *RGB {
	if w == src.W {
		return src
	}
	dst := newRGB(w, src.H)
	filter := axisTaps(src.W, w)
	for y := range src.H {
		in, out := src.Pix[3*y*src.W:3*(y+1)*src.W], dst.Pix[3*y*w:3*(y+1)*w]
		for x, f := range filter {
			r, g, b := int64(1)<<(precision-1), int64(1)<<(precision-1), int64(1)<<(precision-1)
			at := in[3*f.first : 3*(f.first+len(f.weights))]
			for j, k := range f.weights {
				r += int64(k) * int64(at[3*j])
				g += int64(k) * int64(at[3*j+1])
				b += int64(k) * int64(at[3*j+2])
			}
			out[3*x], out[3*x+1], out[3*x+2] = clip(r), clip(g), clip(b)
		}
	}
	return dst
}

func resizeRows(src *RGB, h int) *RGB {
	if h == src.H {
		return src
	}
	dst := newRGB(src.W, h)
	stride := 3 * src.W
	acc := make([]int64, stride)
	for y, f := range axisTaps(src.H, h) {
		for i := range acc {
			acc[i] = 1 << (precision - 1)
		}
		for j, k := range f.weights {
			in := src.Pix[(f.first+j)*stride : (f.first+j+1)*stride]
			for i, v := range in {
				acc[i] += int64(k) * int64(v)
			}
		}
		out := dst.Pix[y*stride : (y+1)*stride]
		for i, v := range acc {
			out[i] = clip(v)
		}
	}
	return dst
}
