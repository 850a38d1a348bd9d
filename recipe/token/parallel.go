package token

import (
	"runtime"
	"sync"
	"unicode/utf8"
)

// A long text is cut into shards that are encoded side by side. A shard is large enough that starting a goroutine does not matter.
const (
	parallelBytes = 1 << 18 // texts from this length on
	shardBytes    = 1 << 16
	cutSearch     = 1 << 12 // how far past its length a shard looks for a cut
)

// cut gives the first place at or after from, and before limit, where text can be cut without changing any piece: between a letter and
// the white space after it. There every piece ends whatever stands around it: letters never take white space in after them, and nothing
// that begins with white space looks back. limit when there is no such place.
func cut(text string, from, limit int) int {
	class := classes()
	for from < limit && !utf8.RuneStart(text[from]) {
		from++
	}
	previous := uint8(0)
	for i := from; i < limit; {
		r, n := utf8.DecodeRuneInString(text[i:])
		c := class[r]
		if c&classW != 0 && previous&classL != 0 {
			return i
		}
		previous = c
		i += n
	}
	return limit
}

// shards cuts a valid text into parts that encode independently.
func shards(text string) []string {
	var out []string
	for len(text) > shardBytes+cutSearch {
		end := cut(text, shardBytes, shardBytes+cutSearch)
		if end == shardBytes+cutSearch { // no place nearby, as in a long run of Chinese: look on to the end
			if end = cut(text, end, len(text)); end == len(text) {
				break
			}
		}
		out = append(out, text[:end])
		text = text[end:]
	}
	return append(out, text)
}

// parallel appends the ids of a long valid text.
func (t *Tokenizer) parallel(dst []int32, text string) []int32 {
	parts := shards(text)
	results := make([][]int32, len(parts))
	next := make(chan int, len(parts))
	for i := range parts {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(parts)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			w := t.worker()
			for i := range next {
				results[i] = w.plain(make([]int32, 0, len(parts[i])/3), parts[i])
			}
			t.work.Put(w)
		}()
	}
	wg.Wait()
	for _, ids := range results {
		dst = append(dst, ids...)
	}
	return dst
}
