package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
)

// DecodeE4M3 returns the value of an OCP E4M3 code; exact.
func DecodeE4M3(code byte) float32 {
	exponent, mantissa := int(code>>3&15), float32(code&7)
	var v float32
	switch {
	case code&0x7f == 0x7f:
		return float32(math.NaN())
	case exponent == 0:
		v = mantissa / 512 // subnormal: mantissa * 2^-9
	default:
		v = float32(math.Ldexp(float64(8+mantissa), exponent-10))
	}
	if code&0x80 != 0 {
		return -v
	}
	return v
}

// DecodeE8M0 returns 2^(b-127); byte 0 is the FP32 subnormal 2^-127 and byte 255 is NaN.
func DecodeE8M0(b byte) float32 {
	switch b {
	case 0:
		return math.Float32frombits(0x00400000)
	case 255:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}

var e2m1 = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// DecodeE2M1 returns the value of an FP4 code; only the low four bits count.
func DecodeE2M1(code byte) float32 { return e2m1[code&15] }

// Float32s returns the elements of a tensor as they are stored, without scales: packed FP4 gives two values for each byte,
// integers must be exact in FP32.
func (t Tensor) Float32s() ([]float32, error) {
	n := t.Elements()
	if t.DType == I8 {
		n *= 2
	}
	out := make([]float32, n)
	for i := range out {
		switch t.DType {
		case F8E4M3:
			out[i] = DecodeE4M3(t.Bytes[i])
		case F8E8M0:
			out[i] = DecodeE8M0(t.Bytes[i])
		case I8:
			out[i] = DecodeE2M1(t.Bytes[i/2] >> (4 * (i % 2)))
		case U8:
			out[i] = float32(t.Bytes[i])
		case BF16:
			out[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(t.Bytes[2*i:])) << 16)
		case F32:
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(t.Bytes[4*i:]))
		case I32, I64:
			v := int64(int32(binary.LittleEndian.Uint32(t.Bytes[i*int(t.DType.Size()):])))
			if t.DType == I64 {
				v = int64(binary.LittleEndian.Uint64(t.Bytes[8*i:]))
			}
			if int64(float32(v)) != v {
				return nil, fmt.Errorf("decode %s: element %d is %d, which FP32 cannot hold", t.Name, i, v)
			}
			out[i] = float32(v)
		default:
			return nil, fmt.Errorf("decode %s: dtype %s is not supported", t.Name, t.DType)
		}
	}
	return out, nil
}

// Dequantize multiplies the stored values of a weight by its UE8M0 scales, exactly: element [n,k] by scale
// [n/tileRows, k/tileCols]. FP8 weights have square tiles (Config.WeightBlock), Engram tables and packed FP4 1 x 32.
// weight is [N,K] (I8: [N,K/2]); the result is [N,K], row-major.
func Dequantize(weight, scale Tensor, tileRows, tileCols int) ([]float32, error) {
	if len(weight.Shape) != 2 || len(scale.Shape) != 2 || tileRows < 1 || tileCols < 1 {
		return nil, fmt.Errorf("dequantise %s: want two matrices and positive tiles, have %v, %v, %d x %d",
			weight.Name, weight.Shape, scale.Shape, tileRows, tileCols)
	}
	out, err := weight.Float32s()
	if err != nil {
		return nil, err
	}
	rows, cols := weight.Shape[0], weight.Shape[1]
	if weight.DType == I8 {
		cols *= 2
	}
	want := [2]int{ceil(rows, tileRows), ceil(cols, tileCols)}
	if scale.Shape[0] != want[0] || scale.Shape[1] != want[1] || len(scale.Bytes) != want[0]*want[1] {
		return nil, fmt.Errorf("dequantise %s: scales are %v, want %v", weight.Name, scale.Shape, want)
	}
	for n := range rows {
		for k := range cols {
			out[n*cols+k] *= DecodeE8M0(scale.Bytes[n/tileRows*want[1]+k/tileCols])
		}
	}
	return out, nil
}

func ceil(a, b int) int { return (a + b - 1) / b }
