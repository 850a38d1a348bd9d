package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/core/model/engram"
)

// VerifyOptions tune VerifyWith. The zero value checks everything.
type VerifyOptions struct {
	// SkipValues leaves out the scan for NaN and infinity, which reads every byte (510 GB for the release).
	SkipValues bool
	// Progress, if set, is called from any goroutine with the bytes scanned so far and in total.
	Progress func(done, total int64)
}

// Verify reports everything that differs between a checkpoint and what its configuration calls for: missing, extra, misshapen
// and mistyped tensors, values that are NaN or infinite, expert numbers out of range, and a tokenizer or token map that does not fit. The
// order is that of the inventory.
func Verify(ck *Checkpoint, cfg *config.Config) []Problem {
	problems, _ := VerifyWith(context.Background(), ck, cfg, VerifyOptions{})
	return problems
}

var unfolded = regexp.MustCompile(`(^|\.)hc_\w*norm\.weight$`)

// VerifyWith is Verify with options. It stops early, with the error of the context, when ctx ends.
func VerifyWith(ctx context.Context, ck *Checkpoint, cfg *config.Config, opt VerifyOptions) ([]Problem, error) {
	var problems []Problem
	want := Inventory(cfg)
	known := make(map[string]bool, len(want))
	var scan []scanned
	for _, e := range want {
		known[e.Name] = true
		t, ok := ck.Tensor(e.Name)
		if !ok {
			problems = append(problems, Problem{KindMissing, e.Name, fmt.Sprintf("want %s %v", e.DType, e.Shape)})
			continue
		}
		fits := true
		if t.DType != e.DType {
			problems = append(problems, Problem{KindDType, e.Name, fmt.Sprintf("found %s, want %s", t.DType, e.DType)})
			fits = false
		}
		if !slices.Equal(t.Shape, e.Shape) {
			problems = append(problems, Problem{KindShape, e.Name, fmt.Sprintf("found %v, want %v", t.Shape, e.Shape)})
			fits = false
		}
		if fits && !opt.SkipValues {
			scan = append(scan, scanned{tensor: t, experts: cfg.NRoutedExperts})
		}
	}
	for _, name := range ck.names {
		if known[name] {
			continue
		}
		t := ck.tensors[name]
		switch {
		case unfolded.MatchString(name):
			problems = append(problems, Problem{KindName, name, "the checkpoint is unfolded: the norm of the streams must be folded into hc_*_fn"})
		case cfg.V4() && cfg.DraftStages() == 0 && strings.HasPrefix(name, "mtp."):
			// The classic one-layer predictor of base V4 checkpoints, which this engine does not run.
		default:
			problems = append(problems, Problem{KindExtra, name, fmt.Sprintf("%s %v has no place in this configuration", t.DType, t.Shape)})
		}
	}
	problems = append(problems, verifyTokens(ck, cfg)...)
	found, err := scanValues(ctx, scan, opt.Progress)
	return append(problems, found...), err
}

// verifyTokens checks the files beside the weights that fix token ids.
func verifyTokens(ck *Checkpoint, cfg *config.Config) []Problem {
	var problems []Problem
	raw, err := fs.ReadFile(ck.files, "tokenizer.json")
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		problems = append(problems, Problem{KindTokenizer, "tokenizer.json", fmt.Sprintf("cannot be read: %v", err)})
	default:
		vocabulary, err := engram.ReadVocabulary(raw)
		if err != nil {
			problems = append(problems, Problem{KindTokenizer, "tokenizer.json", err.Error()})
		} else if vocabulary.Size() > cfg.VocabSize {
			problems = append(problems, Problem{KindTokenizer, "tokenizer.json",
				fmt.Sprintf("has ids up to %d, but vocab_size is %d", vocabulary.Size()-1, cfg.VocabSize)})
		}
	}
	if len(cfg.EngramLayerIDs) > 0 {
		if _, err := ck.TokenMap(cfg); err != nil {
			problems = append(problems, Problem{KindTokenizer, "engram token map", err.Error()})
		}
	}
	return problems
}

// TokenMap returns the Engram token map of the checkpoint, one compressed id for each id of the configuration: from the file engram_token_map.i32
// if there is one, else built from tokenizer.json, else the synthetic map of models without tokenizer. The release's map is compared with its
// published hash.
func (c *Checkpoint) TokenMap(cfg *config.Config) ([]int32, error) {
	tokenMap, err := c.tokenMap(cfg)
	if err != nil {
		return nil, err
	}
	const releaseVocab, releaseCompressed = 129280, 99092
	if cfg.VocabSize == releaseVocab && cfg.EngramCompressedVocabSize == releaseCompressed {
		if sum := engram.HashTokenMap(tokenMap); sum != engram.ReleaseTokenMapSHA256 {
			return nil, fmt.Errorf("the token map has SHA-256 %s, the release's has %s: another tokenizer, or no tokenizer.json beside the weights",
				sum, engram.ReleaseTokenMapSHA256)
		}
	}
	return tokenMap, nil
}

func (c *Checkpoint) tokenMap(cfg *config.Config) ([]int32, error) {
	raw, err := fs.ReadFile(c.files, engram.TokenMapFile)
	if err == nil {
		return engram.ReadTokenMap(raw, cfg.VocabSize, cfg.EngramCompressedVocabSize)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", engram.TokenMapFile, err)
	}
	raw, err = fs.ReadFile(c.files, "tokenizer.json")
	if errors.Is(err, fs.ErrNotExist) {
		return engram.SyntheticTokenMap(cfg.VocabSize, cfg.EngramCompressedVocabSize), nil
	}
	if err != nil {
		return nil, fmt.Errorf("read tokenizer.json: %w", err)
	}
	vocabulary, err := engram.ReadVocabulary(raw)
	if err != nil {
		return nil, err
	}
	tokenMap, distinct, err := engram.BuildTokenMap(vocabulary, cfg.VocabSize, cfg.EngramPadTokenID)
	if err != nil {
		return nil, err
	}
	if distinct != cfg.EngramCompressedVocabSize {
		return nil, fmt.Errorf("tokenizer.json compresses to %d ids, engram_compressed_vocab_size is %d: the tokenizer is not that of the model",
			distinct, cfg.EngramCompressedVocabSize)
	}
	return tokenMap, nil
}

type scanned struct {
	tensor  Tensor
	experts int
}

// scanValues looks at every value of the tensors on all processors. Problems come in the order of the tensors.
func scanValues(ctx context.Context, work []scanned, progress func(done, total int64)) ([]Problem, error) {
	var total int64
	for _, w := range work {
		total += int64(len(w.tensor.Bytes))
	}
	found := make([]*Problem, len(work))
	var next, done atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), max(len(work), 1)) {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(work) {
					return
				}
				found[i] = scanTensor(ctx, work[i])
				if n := done.Add(int64(len(work[i].tensor.Bytes))); progress != nil {
					progress(n, total)
				}
			}
		})
	}
	wait.Wait()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("verify values: stopped after %d of %d bytes: %w", done.Load(), total, err)
	}
	var problems []Problem
	for _, p := range found {
		if p != nil {
			problems = append(problems, *p)
		}
	}
	return problems, nil
}

// scanTensor counts the values of a tensor that must not occur.
func scanTensor(ctx context.Context, w scanned) *Problem {
	t := w.tensor
	if t.DType == I64 {
		return scanExperts(t, w.experts)
	}
	lane, ok := lanes[t.DType]
	if !ok {
		return nil
	}
	// Chunks keep a tensor of hundreds of gigabytes interruptible. Their size is a multiple of 8, so lanes never straddle them.
	const chunk = 64 << 20
	count, first := int64(0), int64(-1)
	for begin := 0; begin < len(t.Bytes) && ctx.Err() == nil; begin += chunk {
		part := t.Bytes[begin:min(begin+chunk, len(t.Bytes))]
		n, at := lane.count(part)
		if n > 0 && first < 0 {
			first = (int64(begin) + int64(at)) / t.DType.Size()
		}
		count += n
	}
	if count == 0 {
		return nil
	}
	return &Problem{KindNonFinite, t.Name, fmt.Sprintf("%d of %d values are %s, the first at element %d", count, t.Elements(), lane.what, first)}
}

func scanExperts(t Tensor, experts int) *Problem {
	for i := 0; i+8 <= len(t.Bytes); i += 8 {
		if id := int64(binary.LittleEndian.Uint64(t.Bytes[i:])); id < 0 || id >= int64(experts) {
			return &Problem{KindRange, t.Name, fmt.Sprintf("element %d is %d, want an expert from 0 to %d", i/8, id, experts-1)}
		}
	}
	return nil
}

// lane describes how to find forbidden codes in eight bytes at once: a code is forbidden when all bits of mask are set in its lane,
// which shows as a carry into the lane's top bit after masking and adding one. With whole, the top bit itself must be set too.
type lane struct {
	mask, one, top uint64
	whole          bool
	what           string
}

var lanes = map[DType]lane{
	F8E4M3: {0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080, false, "NaN"},
	F8E8M0: {0x7f7f7f7f7f7f7f7f, 0x0101010101010101, 0x8080808080808080, true, "NaN (scale byte 255)"},
	BF16:   {0x7f807f807f807f80, 0x0080008000800080, 0x8000800080008000, false, "NaN or infinite"},
	F32:    {0x7f8000007f800000, 0x0080000000800000, 0x8000000080000000, false, "NaN or infinite"},
}

// count returns the number of forbidden codes in raw and the byte offset of the lane of the first.
func (l lane) count(raw []byte) (n int64, first int) {
	hit := func(x uint64) uint64 {
		h := (x&l.mask + l.one) & l.top
		if l.whole {
			h &= x
		}
		return h
	}
	note := func(h uint64, at int) {
		if n == 0 {
			first = at + bits.TrailingZeros64(h)/8
		}
		n += int64(bits.OnesCount64(h))
	}
	i := 0
	for ; i+8 <= len(raw); i += 8 {
		if h := hit(binary.LittleEndian.Uint64(raw[i:])); h != 0 {
			note(h, i)
		}
	}
	if i < len(raw) {
		var tail [8]byte // zero bytes are a finite code of every type
		copy(tail[:], raw[i:])
		if h := hit(binary.LittleEndian.Uint64(tail[:])); h != 0 {
			note(h, i)
		}
	}
	return n, first
}

// Summary counts problems by kind, most frequent first, for a headline above a long list.
func Summary(problems []Problem) string {
	counts := map[Kind]int{}
	for _, p := range problems {
		counts[p.Kind]++
	}
	kinds := make([]Kind, 0, len(counts))
	for k := range counts {
		kinds = append(kinds, k)
	}
	sort.Slice(kinds, func(i, j int) bool {
		return counts[kinds[i]] > counts[kinds[j]] || counts[kinds[i]] == counts[kinds[j]] && kinds[i] < kinds[j]
	})
	parts := make([]string, len(kinds))
	for i, k := range kinds {
		parts[i] = fmt.Sprintf("%d %s", counts[k], k)
	}
	return strings.Join(parts, ", ")
}
