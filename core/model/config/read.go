package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// Problem is one thing wrong with a configuration document.
type Problem struct {
	Key   string // path of the key, for example text_config.hidden_size
	Found string // what is there: the JSON value, shortened, or "nothing"
	Want  string // what is accepted
}

// Error formats the problem on one line: key, what was found, what is accepted.
func (p *Problem) Error() string { return fmt.Sprintf("%s: found %s, want %s", p.Key, p.Found, p.Want) }

// value is one key of the document as found: its path, and the raw JSON.
type value struct {
	path string
	raw  json.RawMessage
}

func (v value) null() bool { return v.raw == nil || string(v.raw) == "null" }

// document gives typed access to the keys of one configuration and collects problems. Keys of text_config and of the top
// level form one name space (the nested file puts token ids at the top, some writers repeat keys); every key may come in the
// spelling of config.json or of inference/config.json.
type document struct {
	values   map[string]value // canonical name -> value
	problems []error
}

// flatNames maps the spelling of inference/config.json to that of config.json.
var flatNames = map[string]string{
	"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads",
	"rope_head_dim": "qk_rope_head_dim", "window_size": "sliding_window", "norm_eps": "rms_norm_eps",
	"kv_source_layers": "kv_source_layer_ids", "index_source_layers": "index_source_layer_ids",
	"candidate_source_layer": "candidate_source_layer_id", "n_activated_experts": "num_experts_per_tok",
	"moe_inter_dim": "moe_intermediate_size", "score_func": "scoring_func", "route_scale": "routed_scaling_factor",
	"n_hash_layers": "num_hash_layers", "engram_pad_id": "engram_pad_token_id", "n_mtp_layers": "num_nextn_predict_layers",
	"dspark_n_activated_experts": "dspark_num_experts_per_tok", "torch_dtype": "dtype",
}

func (d *document) add(key, found, want string) {
	d.problems = append(d.problems, &Problem{Key: key, Found: found, Want: want})
}

// addf reports a problem of a value that was read before, by its canonical name.
func (d *document) addf(key string, found any, format string, args ...any) {
	d.add(d.path(key), fmt.Sprint(found), fmt.Sprintf(format, args...))
}

// path returns the path of a canonical name as the document spells it.
func (d *document) path(key string) string {
	if v, ok := d.values[key]; ok {
		return v.path
	}
	return key
}

// merge adds the members of one JSON object under canonical names. Two spellings or places of one key must agree.
func (d *document) merge(prefix string, members map[string]json.RawMessage) {
	for _, name := range sortedKeys(members) {
		key := name
		if to, ok := flatNames[name]; ok {
			key = to
		}
		v := value{path: prefix + name, raw: members[name]}
		old, ok := d.values[key]
		switch {
		case !ok || old.null():
			d.values[key] = v
		case v.null() || key == "model_type" || sameJSON(old.raw, v.raw):
		default:
			d.add(v.path, short(v.raw), fmt.Sprintf("the same value as %s, which is %s", old.path, short(old.raw)))
		}
	}
}

func sameJSON(a, b json.RawMessage) bool {
	var x, y any
	if json.Unmarshal(a, &x) != nil || json.Unmarshal(b, &y) != nil {
		return false
	}
	p, _ := json.Marshal(x)
	q, _ := json.Marshal(y)
	return bytes.Equal(p, q)
}

func short(raw json.RawMessage) string {
	var b bytes.Buffer
	if raw == nil || json.Compact(&b, raw) != nil {
		return "nothing"
	}
	const limit = 80
	s := strings.ToValidUTF8(b.String(), "?")
	if r := []rune(s); len(r) > limit {
		return string(r[:limit]) + "..."
	}
	return s
}

// number reads a JSON number. def is used when the key is absent or null; a NaN def makes the key required.
func (d *document) number(key string, def, low, high float64, want string) float64 {
	v, ok := d.values[key]
	if !ok || v.null() {
		if math.IsNaN(def) {
			d.add(d.path(key), "nothing", want)
			return 0
		}
		return def
	}
	var f float64
	if json.Unmarshal(v.raw, &f) != nil || !(f >= low && f <= high) {
		d.add(v.path, short(v.raw), want)
		return fallback(def, low)
	}
	return f
}

func fallback(def, low float64) float64 {
	if math.IsNaN(def) {
		return low
	}
	return def
}

// required marks a key without default.
var required = math.NaN()

// integer reads a whole number between low and high. Writers that print 16.0 for 16 are accepted.
func (d *document) integer(key string, def float64, low, high int64) int64 {
	want := fmt.Sprintf("a whole number from %d to %d", low, high)
	v, ok := d.values[key]
	if !ok || v.null() {
		return int64(d.number(key, def, float64(low), float64(high), want))
	}
	n, ok := whole(v.raw)
	if !ok || n < low || n > high {
		d.add(v.path, short(v.raw), want)
		return int64(fallback(def, float64(low)))
	}
	return n
}

func (d *document) count(key string, def float64, low, high int) int {
	return int(d.integer(key, def, int64(low), int64(high)))
}

func whole(raw json.RawMessage) (int64, bool) {
	var n int64
	if json.Unmarshal(raw, &n) == nil && string(raw) != "null" {
		return n, true
	}
	var f float64
	if json.Unmarshal(raw, &f) != nil || f != math.Trunc(f) || math.Abs(f) >= 1<<53 {
		return 0, false
	}
	return int64(f), true
}

// wholes reads an array of whole numbers, each at least low. An absent key gives nil; with need it is a problem.
func (d *document) wholes(key string, need bool, low int64) []int64 {
	v, ok := d.values[key]
	want := fmt.Sprintf("an array of whole numbers, each at least %d", low)
	if !ok || v.null() {
		if need {
			d.add(d.path(key), "nothing", want)
		}
		return nil
	}
	var items []json.RawMessage
	if json.Unmarshal(v.raw, &items) != nil {
		d.add(v.path, short(v.raw), want)
		return nil
	}
	const most = 1 << 16
	if len(items) > most {
		d.add(v.path, fmt.Sprintf("%d entries", len(items)), fmt.Sprintf("at most %d entries", most))
		return nil
	}
	out := make([]int64, 0, len(items))
	for i, item := range items {
		n, ok := whole(item)
		if !ok || n < low || n > 1<<48 {
			d.add(fmt.Sprintf("%s[%d]", v.path, i), short(item), fmt.Sprintf("a whole number, at least %d", low))
			n = low
		}
		out = append(out, n)
	}
	return out
}

func (d *document) ints(key string, need bool, low int64) []int {
	wide := d.wholes(key, need, low)
	if wide == nil {
		return nil
	}
	out := make([]int, len(wide))
	for i, n := range wide {
		out[i] = int(n)
	}
	return out
}

// must checks a key whose value this engine does not choose: absent or null is fine, anything else must equal one of want.
func (d *document) must(key string, want ...any) {
	v, ok := d.values[key]
	if !ok || v.null() {
		return
	}
	names := make([]string, len(want))
	for i, w := range want {
		raw, _ := json.Marshal(w)
		if sameJSON(v.raw, raw) {
			return
		}
		names[i] = string(raw)
	}
	d.add(v.path, short(v.raw), "only "+strings.Join(names, " or "))
}

// text reads a string; absent gives def.
func (d *document) text(key, def string) string {
	v, ok := d.values[key]
	if !ok || v.null() {
		return def
	}
	var s string
	if json.Unmarshal(v.raw, &s) != nil {
		d.add(v.path, short(v.raw), "a string")
		return def
	}
	return s
}

// object reads a nested object as a document of its own, whose problems go to d through done. It returns nil when the key
// is absent or null.
func (d *document) object(key string) *document {
	v, ok := d.values[key]
	if !ok || v.null() {
		return nil
	}
	var members map[string]json.RawMessage
	if json.Unmarshal(v.raw, &members) != nil {
		d.add(v.path, short(v.raw), "an object")
		return nil
	}
	out := &document{values: map[string]value{}}
	for name, raw := range members {
		out.values[name] = value{path: v.path + "." + name, raw: raw}
	}
	return out
}

func (d *document) done(sub *document) { d.problems = append(d.problems, sub.problems...) }
