package modelcli

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/deepinfer-go/deepinfer/core/model/checkpoint"
	"github.com/deepinfer-go/deepinfer/core/model/config"
)

// structure is the part of verification that reads no values.
func structure(ck *checkpoint.Checkpoint, cfg *config.Config) []checkpoint.Problem {
	problems, _ := checkpoint.VerifyWith(context.Background(), ck, cfg, checkpoint.VerifyOptions{SkipValues: true})
	return problems
}

// Print writes the report as tables.
func (r *Report) Print(w io.Writer) error {
	var b strings.Builder
	section := func(title string, rows func(add func(cells ...any))) {
		fmt.Fprintf(&b, "\n%s\n", title)
		t := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
		rows(func(cells ...any) {
			for i, c := range cells {
				if i > 0 {
					fmt.Fprint(t, "\t")
				}
				fmt.Fprintf(t, "  %v", c)
			}
			fmt.Fprintln(t)
		})
		t.Flush()
	}
	s := r.Shape
	fmt.Fprintf(&b, "%s: %s\n", r.Dir, r.Architecture)
	section("Shape", func(add func(...any)) {
		half := ""
		if s.DecoderStart < s.Layers {
			half = fmt.Sprintf(", decoder half from layer %d", s.DecoderStart)
		}
		add("layers", fmt.Sprintf("%d%s", s.Layers, half))
		add("width", fmt.Sprintf("%d, %d heads of %d", s.HiddenSize, s.Heads, s.HeadDim))
		add("experts", fmt.Sprintf("%d of %d, and a shared one", s.ExpertsPerToken, s.Experts))
		add("window", fmt.Sprintf("%d tokens", s.Window))
		add("max context", fmt.Sprintf("%d tokens", s.MaxContext))
		add("vocabulary", s.VocabSize)
		if s.EngramLayers > 0 {
			add("Engram", fmt.Sprintf("%d tables", s.EngramLayers))
		}
		if s.DraftStages > 0 {
			add("drafter", fmt.Sprintf("%d stages, %d drafts", s.DraftStages, s.DraftBlock))
		}
		if s.Vision {
			add("vision", fmt.Sprintf("up to %d tokens an image", s.MaxImageTokens))
		}
	})
	section("Weights", func(add func(...any)) {
		add("tensors", r.Weights.Tensors)
		add("bytes", exactBytes(r.Weights.Bytes))
		switch n := len(r.Weights.Problems); {
		case !r.Weights.Found:
			add("files", "no weights in this directory; the numbers come from config.json")
		case n == 0:
			add("files", fmt.Sprintf("%d shards, names, types and shapes as the configuration calls for", r.Weights.Shards))
		default:
			add("files", fmt.Sprintf("%d shards, %d problems; `deepinfer model verify %s` lists them", r.Weights.Shards, n, r.Dir))
		}
	})
	p := r.Parameters
	section("Parameters", func(add func(...any)) {
		add("total", formatCount(p.Total))
		add("backbone", formatCount(p.Backbone))
		for _, x := range []struct {
			name string
			n    int64
		}{{"Engram tables", p.EngramTables}, {"drafter", p.Draft}, {"vision", p.Vision}} {
			if x.n > 0 {
				add(x.name, formatCount(x.n))
			}
		}
		add("active per decoded token", formatCount(p.ActiveDecode))
		add("active per prompt token", formatCount(p.ActivePrefill))
	})
	section("Parts", func(add func(...any)) {
		add("part", "tensors", "bytes", "parameters")
		for _, x := range r.Parts {
			add(x.Part, x.Tensors, formatBytes(x.Bytes), formatCount(x.Params))
		}
	})
	section("Formats", func(add func(...any)) {
		for _, x := range r.Formats {
			add(x.Format, x.Tensors, formatBytes(x.Bytes))
		}
	})
	r.printCache(section)
	if r.Fit != nil {
		r.printFit(section)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) printCache(section func(string, func(func(...any)))) {
	section("Cache and state", func(add func(...any)) {
		add("KV cache per token", fmt.Sprintf("%s B", trim(r.Cache.BytesPerToken)))
		add("granule", fmt.Sprintf("%d tokens, %d B", r.Cache.GranuleTokens, r.Cache.GranuleBytes))
		for _, group := range groupLayers(r.Cache.Layers) {
			index := "no index"
			if group.l.IndexBytes > 0 {
				index = fmt.Sprintf("index key %d B", group.l.IndexBytes)
			}
			add(group.name, fmt.Sprintf("%s entries a token, record %d B, %s", trim(group.l.EntriesPerToken), group.l.MainBytes, index))
		}
		for _, o := range r.Cache.Others {
			add(fmt.Sprintf("in %s with %s index", o.Main, o.Index), fmt.Sprintf("%s B per token (not used here)", trim(o.BytesPerToken)))
		}
		add("state per sequence", fmt.Sprintf("%d B: %d rings of %d rows, %s; compressor tails %s",
			r.State.BytesPerSequence, r.State.Rings, r.State.RingRows, formatBytes(r.State.RingBytes), formatBytes(r.State.TailBytes)))
		add(fmt.Sprintf("activations, %d rows", r.Activation.ChunkRows), fmt.Sprintf("%s with balanced experts, at most %s with %sx skewed ones",
			formatBytes(r.Activation.Balanced), formatBytes(r.Activation.Skewed), trim(r.Activation.Skew)))
	})
}

func (r *Report) printFit(section func(string, func(func(...any)))) {
	f := r.Fit
	section(fmt.Sprintf("Fit on %d x %s (before the overhead of driver and runtime)", f.Devices, formatBytes(f.Memory)), func(add func(...any)) {
		add("", "balanced experts", trim(r.Activation.Skew)+"x skewed")
		add("weights on devices", formatBytes(f.Weights), formatBytes(f.Weights))
		if f.HostTables > 0 {
			add("Engram tables in host memory", formatBytes(f.HostTables), formatBytes(f.HostTables))
		}
		add("activations per device", formatBytes(r.Activation.Balanced), formatBytes(r.Activation.Skewed))
		add("left for state and cache", formatBytes(f.Balanced.Left), formatBytes(f.Skewed.Left))
		tokens := func(b Budget) string {
			if !b.Fits {
				return "does not fit"
			}
			return strconv.FormatInt(b.KVTokens, 10)
		}
		add(fmt.Sprintf("KV tokens beside %d sequences", f.Balanced.Sequences), tokens(f.Balanced), tokens(f.Skewed))
		for i, c := range f.Balanced.AtContext {
			add(fmt.Sprintf("sequences of %d tokens", c.Context), c.Sequences, f.Skewed.AtContext[i].Sequences)
		}
		switch {
		case f.DevicesAtLeast == 0:
			add("devices needed", "the activations alone do not fit on one; use a smaller --chunk")
		default:
			add("devices needed for the weights", f.DevicesAtLeast, f.DevicesAtLeast)
		}
	})
}

type layerGroup struct {
	name string
	l    CacheLayer
}

// groupLayers joins layers with equal records, so that 41 V4 layers take two lines.
func groupLayers(layers []CacheLayer) []layerGroup {
	var out []layerGroup
	numbers := map[CacheLayer][]string{}
	var order []CacheLayer
	for _, l := range layers {
		key := l
		key.Layer = 0
		if numbers[key] == nil {
			order = append(order, key)
		}
		numbers[key] = append(numbers[key], strconv.Itoa(l.Layer))
	}
	for _, key := range order {
		name := "layers " + strings.Join(numbers[key], ", ")
		switch n := len(numbers[key]); {
		case n == 1:
			name = "layer " + numbers[key][0]
		case n > 6:
			name = fmt.Sprintf("%d layers from %s", n, numbers[key][0])
		}
		out = append(out, layerGroup{name, key})
	}
	return out
}

func trim(f float64) string { return strconv.FormatFloat(math.Round(f*1000)/1000, 'f', -1, 64) }

func formatBytes(n int64) string { return scaled(n, "B") }

func exactBytes(n int64) string {
	if n < 1000 {
		return formatBytes(n)
	}
	return fmt.Sprintf("%s (%d)", formatBytes(n), n)
}

func formatCount(n int64) string {
	f, suffix := scale(n)
	return fmt.Sprintf("%s%s", f, map[string]string{"": "", "k": " k", "M": " M", "G": " B", "T": " T"}[suffix])
}

func scaled(n int64, unit string) string {
	f, suffix := scale(n)
	return f + " " + suffix + unit
}

func scale(n int64) (string, string) {
	f, suffix := float64(n), ""
	for _, next := range []string{"k", "M", "G", "T"} {
		if math.Abs(f) < 1000 {
			break
		}
		f, suffix = f/1000, next
	}
	if suffix == "" {
		return strconv.FormatInt(n, 10), suffix
	}
	return strconv.FormatFloat(f, 'f', 2, 64), suffix
}

// ParseBytes reads a size such as 141GB, 80GiB, 1.5TB or 141000000000. Units with i count in powers of 1024, others in powers of 1000.
func ParseBytes(text string) (int64, error) {
	bad := func() (int64, error) {
		return 0, fmt.Errorf("%q is not a size; write a number and a unit, for example 141GB or 80GiB", text)
	}
	s := strings.TrimSpace(text)
	end := strings.LastIndexAny(s, "0123456789.") + 1
	number, err := strconv.ParseFloat(s[:end], 64)
	if err != nil || !(number > 0) {
		return bad()
	}
	factor, ok := map[string]float64{
		"": 1, "b": 1, "k": 1e3, "kb": 1e3, "m": 1e6, "mb": 1e6, "g": 1e9, "gb": 1e9, "t": 1e12, "tb": 1e12,
		"kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40,
	}[strings.ToLower(strings.TrimSpace(s[end:]))]
	if n := number * factor; ok && n >= 1 && n < 1<<60 {
		return int64(n), nil
	}
	return bad()
}
