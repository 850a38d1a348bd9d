package engram

import "math/bits"

// Multipliers returns the n hash multipliers of an Engram layer: odd numbers 2v+1 where v is drawn as
// numpy.random.default_rng(10007*layer).integers(0, bound, size=n) draws it, with bound = max(1, ((2^63-1)/compressed)/2).
func Multipliers(layer, compressed, n int) []int64 {
	bound := max(1, ((uint64(1)<<63-1)/uint64(max(compressed, 1)))/2)
	rng := newPCG(uint64(10007 * layer))
	out := make([]int64, n)
	for i := range out {
		out[i] = int64(2*rng.below(bound) + 1)
	}
	return out
}

// pcg is numpy's PCG64: a 128-bit linear congruential state with an XSL-RR output, seeded through SeedSequence.
type pcg struct {
	hi, lo       uint64
	incHi, incLo uint64
	half         uint32 // the unused high half of the last 64-bit draw, which numpy keeps for 32-bit draws
	hasHalf      bool
}

func newPCG(seed uint64) *pcg {
	q := seedSequence(seed)
	p := &pcg{}
	// inc = 2*initseq + 1
	p.incHi = q[2]<<1 | q[3]>>63
	p.incLo = q[3]<<1 | 1
	p.step()
	var carry uint64
	p.lo, carry = bits.Add64(p.lo, q[1], 0)
	p.hi, _ = bits.Add64(p.hi, q[0], carry)
	p.step()
	return p
}

func (p *pcg) step() {
	const mulHi, mulLo = 0x2360ED051FC65DA4, 0x4385DF649FCCF645
	hi, lo := bits.Mul64(p.lo, mulLo)
	hi += p.hi*mulLo + p.lo*mulHi
	var carry uint64
	p.lo, carry = bits.Add64(lo, p.incLo, 0)
	p.hi, _ = bits.Add64(hi, p.incHi, carry)
}

func (p *pcg) next64() uint64 {
	p.step()
	return bits.RotateLeft64(p.hi^p.lo, -int(p.hi>>58))
}

func (p *pcg) next32() uint32 {
	if p.hasHalf {
		p.hasHalf = false
		return p.half
	}
	v := p.next64()
	p.half, p.hasHalf = uint32(v>>32), true
	return uint32(v)
}

// below draws uniformly from [0, bound) by multiplication with rejection. numpy uses 32-bit draws for bounds up to 2^32 and
// 64-bit draws above; a bound of 1 draws nothing.
func (p *pcg) below(bound uint64) uint64 {
	switch {
	case bound <= 1:
		return 0
	case bound == 1<<32:
		return uint64(p.next32())
	case bound < 1<<32:
		m := uint64(p.next32()) * bound
		if uint32(m) < uint32(bound) {
			for threshold := uint32(-bound) % uint32(bound); uint32(m) < threshold; {
				m = uint64(p.next32()) * bound
			}
		}
		return m >> 32
	}
	hi, lo := bits.Mul64(p.next64(), bound)
	if lo < bound {
		for threshold := -bound % bound; lo < threshold; {
			hi, lo = bits.Mul64(p.next64(), bound)
		}
	}
	return hi
}

// seedSequence is numpy's SeedSequence(n).generate_state(4, uint64): initstate high, low, initseq high, low.
func seedSequence(n uint64) [4]uint64 {
	words := []uint32{uint32(n)}
	if n>>32 != 0 {
		words = append(words, uint32(n>>32))
	}
	a := uint32(0x43b0d7e5)
	hash := func(v uint32) uint32 {
		v ^= a
		a *= 0x931e8875
		v *= a
		return v ^ v>>16
	}
	mix := func(x, y uint32) uint32 {
		r := 0xca01f9dd*x - 0x4973f715*y
		return r ^ r>>16
	}
	var pool [4]uint32
	for i := range pool {
		if i < len(words) {
			pool[i] = hash(words[i])
		} else {
			pool[i] = hash(0)
		}
	}
	for s := range pool {
		for d := range pool {
			if d != s {
				pool[d] = mix(pool[d], hash(pool[s]))
			}
		}
	}
	b := uint32(0x8b51f9dd)
	var out [4]uint64
	for i := range 8 {
		v := pool[i%4] ^ b
		b *= 0x58f38ded
		v *= b
		v ^= v >> 16
		out[i/2] |= uint64(v) << (32 * (i % 2))
	}
	return out
}
