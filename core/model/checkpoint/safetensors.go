package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"sort"
	"strings"
)

// MaxHeader bounds the JSON header of one shard, as the safetensors format does. The release's headers stay below 256 KiB.
const MaxHeader = 100_000_000

// entry is one tensor of a header: where its bytes lie relative to the start of the payload.
type entry struct {
	name       string
	dtype      DType
	shape      []int
	begin, end int64
}

// parseHeader reads the start of a safetensors file of size bytes: 8 bytes of header length, the JSON header, the payload.
// prefix holds at least the length and the header where size allows it. It returns the entries in payload order, the offset of
// the payload and every problem found; entries with problems of their own are left out.
func parseHeader(file string, prefix []byte, size int64) (entries []entry, payload int64, problems []Problem) {
	bad := func(format string, args ...any) {
		problems = append(problems, Problem{KindFile, file, fmt.Sprintf(format, args...)})
	}
	if size < 8 {
		bad("has %d bytes; a safetensors file starts with 8 bytes of header length", size)
		return nil, 0, problems
	}
	n := binary.LittleEndian.Uint64(prefix)
	switch {
	case n > MaxHeader:
		bad("header length %d is above the limit of %d: not a safetensors file, or damaged", n, MaxHeader)
		return nil, 0, problems
	case int64(n) > size-8:
		bad("header length %d, but only %d bytes follow: the file is truncated", n, size-8)
		return nil, 0, problems
	}
	payload = 8 + int64(n)
	entries, problems = decodeHeader(file, prefix[8:payload], size-payload)
	return entries, payload, problems
}

func decodeHeader(file string, raw []byte, room int64) (entries []entry, problems []Problem) {
	bad := func(name, format string, args ...any) {
		problems = append(problems, Problem{KindFile, name, fmt.Sprintf(format, args...)})
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if first, err := decoder.Token(); err != nil || first != json.Delim('{') {
		bad(file, "the header is not a JSON object")
		return nil, problems
	}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			bad(file, "header: %s", jsonProblem(err))
			return entries, problems
		}
		name := token.(string) // the decoder allows only strings as keys
		var item json.RawMessage
		if err := decoder.Decode(&item); err != nil {
			bad(file, "header entry %q: %s", name, jsonProblem(err))
			return entries, problems
		}
		if seen[name] {
			bad(name, "appears twice in the header of %s", file)
			continue
		}
		seen[name] = true
		if name == "__metadata__" {
			var meta map[string]string
			if json.Unmarshal(item, &meta) != nil {
				bad(file, "__metadata__ is not an object of strings")
			}
			continue
		}
		e, err := decodeEntry(name, item, room)
		if err != nil {
			bad(name, "in %s: %v", file, err)
			continue
		}
		entries = append(entries, e)
	}
	if _, err := decoder.Token(); err != nil {
		bad(file, "header: %s", jsonProblem(err))
		return entries, problems
	}
	if rest := strings.Trim(string(raw[decoder.InputOffset():]), " \t\r\n\x00"); rest != "" {
		bad(file, "%d bytes follow the JSON object in the header", len(rest))
	}
	sort.Slice(entries, func(i, j int) bool {
		a, b := &entries[i], &entries[j]
		return a.begin < b.begin || a.begin == b.begin && a.end < b.end
	})
	// Tensors cover the payload without overlap and without holes.
	at := int64(0)
	for i, e := range entries {
		if e.begin < at {
			bad(e.name, "bytes %d to %d overlap those of %s in %s", e.begin, e.end, entries[i-1].name, file)
		} else if e.begin > at && len(problems) == 0 {
			bad(e.name, "starts at byte %d, but the tensors before it end at %d in %s", e.begin, at, file)
		}
		at = max(at, e.end)
	}
	if at < room && len(problems) == 0 {
		bad(file, "%d bytes follow the last tensor", room-at)
	}
	return entries, problems
}

func decodeEntry(name string, raw json.RawMessage, room int64) (entry, error) {
	var item struct {
		DType   *DType  `json:"dtype"`
		Shape   []int64 `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&item); err != nil {
		return entry{}, fmt.Errorf("header entry: %w", err)
	}
	if item.DType == nil || item.Shape == nil || len(item.Offsets) != 2 {
		return entry{}, fmt.Errorf("header entry needs dtype, shape and two data_offsets")
	}
	e := entry{name: name, dtype: *item.DType, begin: item.Offsets[0], end: item.Offsets[1], shape: make([]int, len(item.Shape))}
	if e.dtype.Size() == 0 {
		return entry{}, fmt.Errorf("unknown dtype %q", string(e.dtype))
	}
	bytes := e.dtype.Size()
	for i, d := range item.Shape {
		if d < 0 || d > math.MaxInt32*1024 || d > 0 && bytes > math.MaxInt64/d {
			return entry{}, fmt.Errorf("shape %v is not a shape", item.Shape)
		}
		e.shape[i] = int(d)
		bytes *= d
	}
	switch {
	case e.begin < 0 || e.end < e.begin:
		return entry{}, fmt.Errorf("data_offsets %v are not a range", item.Offsets)
	case e.end > room:
		return entry{}, fmt.Errorf("data_offsets %v reach beyond the %d payload bytes: the file is truncated or the header is wrong", item.Offsets, room)
	case e.end-e.begin != bytes:
		return entry{}, fmt.Errorf("%s %v takes %d bytes, data_offsets %v span %d", e.dtype, e.shape, bytes, item.Offsets, e.end-e.begin)
	}
	return e, nil
}

// ParseFile reads the tensors of one safetensors file held in memory, for example a file of test vectors. Tensor.Bytes alias raw.
// All problems are joined in the error.
func ParseFile(name string, raw []byte) ([]Tensor, error) {
	entries, payload, problems := parseHeader(name, raw, int64(len(raw)))
	if err := Join(problems); err != nil {
		return nil, err
	}
	out := make([]Tensor, len(entries))
	for i, e := range entries {
		out[i] = e.tensor(name, payload, raw)
	}
	return out, nil
}

func (e entry) tensor(file string, payload int64, raw []byte) Tensor {
	begin, end := payload+e.begin, payload+e.end
	return Tensor{Name: e.name, DType: e.dtype, Shape: slices.Clip(e.shape), Bytes: raw[begin:end:end], File: file, Offset: begin}
}

// jsonProblem says in words what the decoder calls EOF: the length before the header cuts its JSON, or the file is damaged.
func jsonProblem(err error) string {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return "its JSON does not end within the header length: the length or the file is damaged"
	}
	return err.Error()
}
