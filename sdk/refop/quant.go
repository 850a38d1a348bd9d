package refop

import (
	"math"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
)

var (
	recip448 = float32(1.0 / 448.0)
	recip6   = float32(1.0 / 6.0)
)

// amax is max(floor, max |x|), NaN when x holds one: without their sign bit, floats order as integers, with NaN on top.
func amax[F Float](x []F, floor float32) float32 {
	a := math.Float32bits(floor)
	for _, v := range x {
		a = max(a, math.Float32bits(float32(v))&0x7fffffff)
	}
	return math.Float32frombits(a)
}

func clamp(v, lim float32) float32 {
	if v > lim {
		return lim
	}
	if v < -lim {
		return -lim
	}
	return v
}

// a8 quantises one group: codes, and the UE8M0 byte as result (spec 2.6 A8).
func a8[F Float](code []uint8, x []F) uint8 {
	b := pow2ceilByte(amax(x, 1e-4) * recip448)
	r := 1 / E8M0(b) // a power of two: multiplying equals dividing
	for i, v := range x {
		code[i] = e4m3Code(clamp(float32(v)*r, 448))
	}
	return b
}

// a8Value replaces the values of one group by their quantised values, which are exact in F.
func a8Value[F Float](y, x []F) {
	s := E8M0(pow2ceilByte(amax(x, 1e-4) * recip448))
	r := 1 / s
	y = y[:len(x)]
	for i, v := range x {
		y[i] = F(e4m3Table[e4m3Code(clamp(float32(v)*r, 448))] * s)
	}
}

// a8Groups applies a8Value to groups of g; the last group may be shorter.
func a8Groups[F Float](y, x []F, g int) {
	for i := 0; i < len(x); i += g {
		j := min(i+g, len(x))
		a8Value(y[i:j], x[i:j])
	}
}

func f4e8[F Float](code []uint8, x []F) uint8 {
	b := pow2ceilByte(amax(x, float32(math.Ldexp(6, -126))) * recip6)
	s := E8M0(b)
	for i, v := range x {
		code[i] = e2m1Code(clamp(float32(v)/s, 6))
	}
	return b
}

// f4e4 multiplies by the FP32 reciprocal of the E4M3 scale, as production does.
func f4e4[F Float](code []uint8, x []F) uint8 {
	b := e4m3Code(min(amax(x, float32(math.Ldexp(6, -9)))*recip6, 448))
	r := 1 / E4M3(b)
	for i, v := range x {
		code[i] = e2m1Code(clamp(float32(v)*r, 6))
	}
	return b
}

// recordSplit returns the value bytes of a record; the rest of it holds scales and padding.
func recordSplit(format uint32, dim, rope int) int {
	switch format {
	case abi.RecA8x32:
		return dim
	case abi.RecA8x64Rope:
		return dim - rope + 2*rope
	}
	return dim / 2 // F4E4, F4E8
}

// recordProblem says why dim and rope do not fit a record format, "" when they do.
func recordProblem(format uint32, dim, rope int) string {
	switch format {
	case abi.RecA8x32, abi.RecF4E8x32:
		if dim%32 != 0 {
			return "dimension must be a multiple of 32"
		}
	case abi.RecF4E4x16:
		if dim%16 != 0 {
			return "dimension must be a multiple of 16"
		}
	case abi.RecA8x64Rope:
		if rope < 0 || rope > dim {
			return "rotary dimensions must lie within the vector"
		}
	default:
		return "unknown record format"
	}
	if dim < 1 {
		return "dimension must be positive"
	}
	return ""
}

// encodeRecord packs x into value and scale bytes. x holds BF16-exact values where the format keeps any.
func encodeRecord[F Float](format uint32, rope int, val, scale []byte, x []F) {
	switch format {
	case abi.RecA8x32:
		for g := 0; g*32 < len(x); g++ {
			scale[g] = a8(val[g*32:g*32+32], x[g*32:g*32+32])
		}
	case abi.RecA8x64Rope:
		n := len(x) - rope
		g := 0
		for ; g*64 < n; g++ {
			e := min(g*64+64, n)
			scale[g] = a8(val[g*64:e], x[g*64:e])
		}
		for i, v := range x[n:] {
			b := BF16(v)
			val[n+2*i], val[n+2*i+1] = byte(b), byte(b>>8)
		}
		clear(scale[g:])
	case abi.RecF4E4x16:
		var c [16]uint8
		for g := 0; g*16 < len(x); g++ {
			scale[g] = f4e4(c[:], x[g*16:g*16+16])
			packNibbles(val[g*8:g*8+8], c[:])
		}
	case abi.RecF4E8x32:
		var c [32]uint8
		for g := 0; g*32 < len(x); g++ {
			scale[g] = f4e8(c[:], x[g*32:g*32+32])
			packNibbles(val[g*16:g*16+16], c[:])
		}
	}
}

func packNibbles(dst, code []byte) {
	for i := range dst {
		dst[i] = code[2*i]&15 | code[2*i+1]<<4
	}
}

// decodeRecord unpacks one record into y.
func decodeRecord[F Float](y []F, format uint32, rope int, val, scale []byte) {
	switch format {
	case abi.RecA8x32:
		for g := 0; g*32 < len(y); g++ {
			s := E8M0(scale[g])
			v, o := val[g*32:g*32+32], y[g*32:g*32+32]
			for i, c := range v {
				o[i] = F(e4m3Table[c] * s)
			}
		}
	case abi.RecA8x64Rope:
		n := len(y) - rope
		for i := range n {
			y[i] = F(e4m3Table[val[i]] * E8M0(scale[i/64]))
		}
		for i := range rope {
			y[n+i] = F(Wide(uint16(val[n+2*i]) | uint16(val[n+2*i+1])<<8))
		}
	case abi.RecF4E4x16:
		for g := 0; g*16 < len(y); g++ {
			decodeNibbles(y[g*16:g*16+16], val[g*8:g*8+8], E4M3(scale[g]))
		}
	case abi.RecF4E8x32:
		for g := 0; g*32 < len(y); g++ {
			decodeNibbles(y[g*32:g*32+32], val[g*16:g*16+16], E8M0(scale[g]))
		}
	}
}

func decodeNibbles[F Float](y []F, val []byte, s float32) {
	for i, c := range val {
		y[2*i] = F(e2m1Table[c&15] * s)
		y[2*i+1] = F(e2m1Table[c>>4] * s)
	}
}
