package refop

import "math"

// Float is the accumulation type.
type Float interface{ float32 | float64 }

// BF16 rounds to bfloat16, nearest even, through float32 as the oracle does. A NaN stays a NaN.
func BF16[F Float](x F) uint16 {
	b := math.Float32bits(float32(x))
	if b&0x7fffffff > 0x7f800000 {
		return uint16(b>>16) | 0x40
	}
	return uint16((b + 0x7fff + (b>>16)&1) >> 16)
}

// Wide returns the value of bfloat16 bits.
func Wide(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// roundBF16 is the value of x after one rounding to bfloat16.
func roundBF16[F Float](x F) F { return F(Wide(BF16(x))) }

// E8M0 decodes a UE8M0 scale byte: 2^(b-127); 0 is the FP32 subnormal 2^-127, 255 is NaN.
func E8M0(b uint8) float32 {
	switch b {
	case 0:
		return math.Float32frombits(0x00400000)
	case 255:
		return float32(math.NaN())
	}
	return math.Float32frombits(uint32(b) << 23)
}

// pow2ceilByte is the UE8M0 byte of 2^ceil(log2 t), decided on the FP32 bits; NaN and what lies above the range give 255.
func pow2ceilByte(t float32) uint8 {
	b := math.Float32bits(t)
	e := b >> 23 & 0xff
	if b&0x7fffff != 0 {
		e++
	}
	return uint8(min(e, 255))
}

var e4m3Table = func() (t [256]float32) {
	for i := range t {
		e, m := i>>3&15, i&7
		v := math.Ldexp(float64(m), -9)
		if e > 0 {
			v = math.Ldexp(1+float64(m)/8, e-7)
		}
		if i&0x7f == 0x7f {
			v = math.NaN()
		}
		if i >= 128 {
			v = -v
		}
		t[i] = float32(v)
	}
	return t
}()

// E4M3 decodes an E4M3 ("fn") code.
func E4M3(c uint8) float32 { return e4m3Table[c] }

// e4m3Code rounds v, already limited to +-448, to the nearest E4M3 code, ties to even. NaN gives 0x7f with its sign.
func e4m3Code(v float32) uint8 {
	b := math.Float32bits(v)
	sign := uint8(b >> 24 & 0x80)
	b &= 0x7fffffff
	switch {
	case b > 0x7f800000:
		return sign | 0x7f
	case b >= 0x43e00000: // 448
		return sign | 0x7e
	case b < 0x3c800000: // below 2^-6: multiples of 2^-9. Adding 2^14 lets the FPU round to that grid.
		f := math.Float32frombits(b) + 16384
		return sign | uint8(math.Float32bits(f)-0x46800000)
	}
	b += 0x7ffff + b>>20&1
	return sign | uint8(b>>20-(127-7)<<3)
}

var e2m1Table = [16]float32{0, 0.5, 1, 1.5, 2, 3, 4, 6, float32(math.Copysign(0, -1)), -0.5, -1, -1.5, -2, -3, -4, -6}

// E2M1 decodes a 4-bit E2M1 code (sign<<3 | magnitude index).
func E2M1(c uint8) float32 { return e2m1Table[c&15] }

// e2m1Code rounds to the nearest E2M1 code, ties to the even code; the sign bit follows the sign of v, zeros included.
func e2m1Code(v float32) uint8 {
	b := math.Float32bits(v)
	sign := uint8(b >> 28 & 8)
	switch m := math.Float32frombits(b & 0x7fffffff); {
	case m > 5:
		return sign | 7
	case m >= 3.5:
		return sign | 6
	case m > 2.5:
		return sign | 5
	case m >= 1.75:
		return sign | 4
	case m > 1.25:
		return sign | 3
	case m >= 0.75:
		return sign | 2
	case m > 0.25:
		return sign | 1
	}
	return sign
}

// tf32 rounds to 10 mantissa bits, nearest even.
func tf32(x float32) float32 {
	b := math.Float32bits(x)
	if b&0x7f800000 == 0x7f800000 {
		return x
	}
	return math.Float32frombits((b + 0xfff + b>>13&1) &^ 0x1fff)
}

func exp[F Float](x F) F  { return F(math.Exp(float64(x))) }
func sqrt[F Float](x F) F { return F(math.Sqrt(float64(x))) }

// rsqrt is 1/sqrt(x), both steps rounded to F.
func rsqrt[F Float](x F) F { return 1 / sqrt(x) }

func sigmoid[F Float](x F) F { return 1 / (1 + exp(-x)) }

// softplus is log(1+e^x), x itself above 20.
func softplus[F Float](x F) F {
	if x > 20 {
		return x
	}
	return F(math.Log1p(math.Exp(float64(x))))
}
