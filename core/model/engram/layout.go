package engram

import (
	"errors"
	"fmt"
	"math/bits"
)

// MaxColumns bounds the number of hash columns over all layers, so that a hostile configuration cannot make the prime
// search run for minutes. The release has 48.
const MaxColumns = 4096

// Params are the configuration values that determine an Engram. The zero value means "no Engram".
type Params struct {
	LayerIDs        []int // layers that carry a table, in configuration order (the order fixes which primes each gets)
	MaxNgram        int   // highest n-gram order; orders 2..MaxNgram exist. Release: 4
	VocabSize       int64 // the prime search starts here. Release: 16,000,000
	Heads           int   // hash heads per order. Release: 8
	CompressedVocab int   // number of distinct compressed token ids. Release: 99,092
}

// Layout is the bucket geometry of every Engram layer: primes, row offsets and multipliers.
type Layout struct {
	Layers   []Layer
	MaxNgram int
	Heads    int
}

// Layer is the geometry of one table. Column c serves order 2+c/Heads and head c%Heads.
type Layer struct {
	ID          int
	Primes      []int64 // one per column
	Offsets     []int64 // first row of each column: the sum of the primes before it
	Multipliers []int64 // one per position of history 0..MaxNgram-1, odd
	Rows        int64   // rows of the table: the sum of all primes
}

// NewLayout computes primes, offsets and multipliers. It returns all problems of p at once.
func NewLayout(p Params) (*Layout, error) {
	if err := p.check(); err != nil {
		return nil, err
	}
	out := &Layout{MaxNgram: p.MaxNgram, Heads: p.Heads, Layers: make([]Layer, 0, len(p.LayerIDs))}
	// No prime is used twice, so the search of all layers and orders is one ascending walk from VocabSize on.
	next := p.VocabSize
	for _, id := range p.LayerIDs {
		layer := Layer{ID: id, Multipliers: Multipliers(id, p.CompressedVocab, p.MaxNgram)}
		for range (p.MaxNgram - 1) * p.Heads {
			for !isPrime(uint64(next)) {
				next++
			}
			layer.Primes = append(layer.Primes, next)
			layer.Offsets = append(layer.Offsets, layer.Rows)
			layer.Rows += next
			next++
		}
		out.Layers = append(out.Layers, layer)
	}
	return out, nil
}

func (p Params) check() error {
	var problems []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			problems = append(problems, fmt.Errorf(format, args...))
		}
	}
	bad(p.MaxNgram >= 2 && p.MaxNgram <= 16, "engram_max_ngram_size: found %d, want 2 to 16", p.MaxNgram)
	bad(p.VocabSize >= 2 && p.VocabSize <= 1<<32, "engram_vocab_size: found %d, want 2 to 2^32", p.VocabSize)
	bad(p.Heads >= 1 && p.Heads <= 256, "engram_n_heads: found %d, want 1 to 256", p.Heads)
	bad(p.CompressedVocab >= 1, "engram_compressed_vocab_size: found %d, want at least 1", p.CompressedVocab)
	if len(problems) == 0 {
		columns := len(p.LayerIDs) * (p.MaxNgram - 1) * p.Heads
		bad(columns <= MaxColumns, "engram: %d layers x %d orders x %d heads are %d hash columns, want at most %d",
			len(p.LayerIDs), p.MaxNgram-1, p.Heads, columns, MaxColumns)
	}
	for _, id := range p.LayerIDs {
		bad(id >= 0, "engram_layer_ids: found %d, want layer numbers from 0", id)
	}
	return errors.Join(problems...)
}

// Rows appends the table rows that one position looks up in layer number k of the layout (an index into Layers, not a
// layer id), one row per column, and returns the extended slice.
//
// compressed holds the compressed ids of consecutive positions and dead marks those inside an image span; both have the
// same length and at is the index of the position in them. What lies before index 0 counts as before the start of the
// sequence, so a caller in the middle of one passes the MaxNgram-1 preceding positions too. pad is the compressed id of the
// pad token. Once a dead position is met, it and everything before it use pad.
func (l *Layout) Rows(dst []int64, k int, compressed []int32, dead []bool, at int, pad int32) []int64 {
	layer := &l.Layers[k]
	var mixed int64
	blocked := false
	column := 0
	for s := 0; s < l.MaxNgram; s++ {
		blocked = blocked || at-s < 0 || dead[at-s]
		id := pad
		if !blocked {
			id = compressed[at-s]
		}
		// Never overflows: id is below the compressed size and a multiplier is at most (2^63-1)/size.
		mixed ^= int64(id) * layer.Multipliers[s]
		if s == 0 {
			continue
		}
		for range l.Heads {
			dst = append(dst, mixed%layer.Primes[column]+layer.Offsets[column])
			column++
		}
	}
	return dst
}

// isPrime is the Miller-Rabin test with the first twelve primes as bases, which is exact for every 64-bit number.
func isPrime(n uint64) bool {
	if n < 2 {
		return false
	}
	bases := [...]uint64{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37}
	for _, p := range bases {
		if n%p == 0 {
			return n == p
		}
	}
	odd, twos := n-1, 0
	for odd%2 == 0 {
		odd, twos = odd/2, twos+1
	}
bases:
	for _, a := range bases {
		x := powMod(a, odd, n)
		if x == 1 || x == n-1 {
			continue
		}
		for range twos - 1 {
			if x = mulMod(x, x, n); x == n-1 {
				continue bases
			}
		}
		return false
	}
	return true
}

func mulMod(a, b, n uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return bits.Rem64(hi, lo, n)
}

func powMod(a, e, n uint64) uint64 {
	out := uint64(1)
	for a %= n; e > 0; e >>= 1 {
		if e&1 == 1 {
			out = mulMod(out, a, n)
		}
		a = mulMod(a, a, n)
	}
	return out
}
