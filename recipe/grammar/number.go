package grammar

import (
	"context"
	"fmt"
	"math/big"
	"strconv"
	"strings"
)

func digits(min, max int) *rx { return repeat(byteRange('0', '9'), min, max) }

// wholePart matches the digits before the point: no leading zero.
func wholePart() *rx { return alt(lit("0"), cat(byteRange('1', '9'), digits(0, -1))) }

// jsonInteger matches an integer without a fraction.
func jsonInteger() *rx {
	return alt(lit("0"), cat(opt(lit("-")), byteRange('1', '9'), digits(0, -1)))
}

// jsonNumber matches any number. The exponent stays within float64.
func jsonNumber() *rx {
	exponent := alt(cat(opt(oneOf("12")), digits(1, 2)), cat(lit("30"), byteRange('0', '7')))
	return cat(opt(lit("-")), wholePart(), opt(cat(lit("."), digits(1, -1))), opt(cat(oneOf("eE"), opt(oneOf("+-")), exponent)))
}

// decimal is a number written out: sign, digits before and after the point.
type decimal struct {
	neg         bool
	whole, frac string
}

// parseDecimal writes out a JSON number.
func parseDecimal(text string) (decimal, error) {
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		if e, err := strconv.Atoi(text[i+1:]); err != nil || e > 310 || e < -330 {
			return decimal{}, fmt.Errorf("%s is beyond float64", clip(text))
		}
	}
	if len(text) > 700 {
		return decimal{}, fmt.Errorf("a number of %d characters is too long", len(text))
	}
	v, ok := new(big.Rat).SetString(text)
	if !ok {
		return decimal{}, fmt.Errorf("%s is no number", clip(text))
	}
	d := decimal{neg: v.Sign() < 0}
	d.whole, d.frac, _ = strings.Cut(v.Abs(v).FloatString(1100), ".")
	d.frac = strings.TrimRight(d.frac, "0")
	return d, nil
}

func (d decimal) zero() bool { return d.whole == "0" && d.frac == "" }

func (d decimal) rat() *big.Rat {
	v, _ := new(big.Rat).SetString(d.whole + "." + d.frac + "0")
	if d.neg {
		v.Neg(v)
	}
	return v
}

func fraction() *rx { return opt(cat(lit("."), digits(1, -1))) }

// positive matches a fraction's digits that are not all zero.
func positive() *rx { return cat(star(lit("0")), byteRange('1', '9'), digits(0, -1)) }

// atLeast matches unsigned decimals >= d's magnitude (> when strict).
func (d decimal) atLeast(strict bool) *rx {
	n := len(d.whole)
	r := alt(cat(byteRange('1', '9'), digits(n, -1), fraction()))
	for i := range n {
		if c := d.whole[i]; c < '9' {
			r.sub = append(r.sub, cat(lit(d.whole[:i]), byteRange(c+1, '9'), digits(n-1-i, n-1-i), fraction()))
		}
	}
	tail := alt()
	switch {
	case d.frac == "" && strict:
		tail.sub = append(tail.sub, cat(lit("."), positive()))
	case d.frac == "":
		tail.sub = append(tail.sub, fraction())
	default:
		for i := range len(d.frac) {
			if c := d.frac[i]; c < '9' {
				tail.sub = append(tail.sub, cat(lit("."+d.frac[:i]), byteRange(c+1, '9'), digits(0, -1)))
			}
		}
		rest := digits(0, -1)
		if strict {
			rest = positive()
		}
		tail.sub = append(tail.sub, cat(lit("."+d.frac), rest))
	}
	r.sub = append(r.sub, cat(lit(d.whole), tail))
	return r
}

// atMost matches unsigned decimals <= d's magnitude (< when strict).
func (d decimal) atMost(strict bool) *rx {
	n := len(d.whole)
	r := alt()
	if n > 1 {
		r.sub = append(r.sub, cat(alt(lit("0"), cat(byteRange('1', '9'), digits(0, n-2))), fraction()))
	}
	for i := range n {
		lo := byte('0')
		if i == 0 && n > 1 {
			lo = '1'
		}
		if c := d.whole[i]; c > lo {
			r.sub = append(r.sub, cat(lit(d.whole[:i]), byteRange(lo, c-1), digits(n-1-i, n-1-i), fraction()))
		}
	}
	tail := alt()
	if d.frac == "" {
		if !strict {
			tail.sub = append(tail.sub, opt(cat(lit("."), plus(lit("0")))))
		}
	} else {
		tail.sub = append(tail.sub, lit(""))
		for i := range len(d.frac) {
			if i > 0 {
				tail.sub = append(tail.sub, lit("."+d.frac[:i]))
			}
			if c := d.frac[i]; c > '0' {
				tail.sub = append(tail.sub, cat(lit("."+d.frac[:i]), byteRange('0', c-1), digits(0, -1)))
			}
		}
		if !strict {
			tail.sub = append(tail.sub, cat(lit("."+d.frac), star(lit("0"))))
		}
	}
	r.sub = append(r.sub, cat(lit(d.whole), tail))
	return r
}

// signed puts the minus sign before a magnitude.
func signed(mag *rx) *rx { return cat(lit("-"), mag) }

// lower matches decimals >= d (> when strict).
func (d decimal) lower(strict bool) *rx {
	if d.neg {
		return alt(cat(wholePart(), fraction()), signed(d.atMost(strict)))
	}
	return d.atLeast(strict)
}

// upper matches decimals <= d (< when strict).
func (d decimal) upper(strict bool) *rx {
	switch {
	case d.neg:
		return signed(d.atLeast(strict))
	case d.zero() && strict:
		return signed(d.atLeast(true))
	}
	return alt(d.atMost(strict), signed(cat(wholePart(), fraction())))
}

// bound is a limit of a number.
type bound struct {
	set    bool
	strict bool
	at     decimal
}

// numberRule is what a schema says about a number.
type numberRule struct {
	integer bool
	lo, hi  bound
	// step is multipleOf when an automaton can count it: a whole number, or places digits after the point.
	step   int
	places int // -1: no limit
}

// maxStep is the largest multipleOf that is enforced by counting remainders.
const maxStep = 4096

// compile gives the automaton of the rule, nil when no number satisfies it.
func (r *numberRule) compile(ctx context.Context) (*dfa, error) {
	if !r.lo.set && !r.hi.set && r.step == 0 && r.places < 0 {
		if r.integer {
			return compileRx(ctx, jsonInteger())
		}
		return compileRx(ctx, jsonNumber())
	}
	var base *rx
	switch {
	case r.integer || r.step > 0:
		base = jsonInteger()
	case r.places >= 0:
		base = cat(opt(lit("-")), wholePart(), opt(cat(lit("."), digits(1, max(1, r.places)))))
	default:
		base = cat(opt(lit("-")), wholePart(), fraction())
	}
	d, err := compileRx(ctx, base)
	if err != nil {
		return nil, err
	}
	both := func(x *rx) error {
		y, err := compileRx(ctx, x)
		if err == nil && y != nil && d != nil {
			d, err = intersect(ctx, d, y)
		} else if y == nil {
			d = nil
		}
		return err
	}
	if r.lo.set {
		if err := both(r.lo.at.lower(r.lo.strict)); err != nil {
			return nil, err
		}
	}
	if r.hi.set && d != nil {
		if err := both(r.hi.at.upper(r.hi.strict)); err != nil {
			return nil, err
		}
	}
	if r.step > 1 && d != nil {
		m, err := multiples(ctx, r.step)
		if err != nil || m == nil {
			return nil, err
		}
		return intersect(ctx, d, m)
	}
	return d, nil
}

// multiples gives the automaton of the integers that step divides.
func multiples(ctx context.Context, step int) (*dfa, error) {
	// Classes: 0 other, 1 the sign, 2.. the digits. States: start, after the sign, zero, then one for each remainder.
	d := &dfa{classes: 12}
	d.class['-'] = 1
	for c := range 10 {
		d.class['0'+c] = uint8(2 + c)
	}
	state := func(accept bool, to func(digit int) int, sign int) {
		d.accept = append(d.accept, accept)
		d.next = append(d.next, dead, uint16(sign))
		for c := range 10 {
			d.next = append(d.next, uint16(to(c)))
		}
	}
	leading := func(zero int) func(int) int {
		return func(c int) int {
			if c == 0 {
				return zero
			}
			return 3 + c%step
		}
	}
	state(false, leading(2), 1)
	state(false, leading(dead), dead)
	state(true, func(int) int { return dead }, dead)
	for rest := range step {
		state(rest == 0, func(c int) int { return 3 + (10*rest+c)%step }, dead)
	}
	return d.finish(ctx)
}
