package modelcli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

// run executes the command and returns standard output and the exit code.
func run(t testing.TB, args ...string) (string, int, error) {
	t.Helper()
	cmd := Command()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	var exit *ExitError
	switch {
	case err == nil:
		return out.String(), 0, nil
	case errors.As(err, &exit):
		return out.String(), exit.ExitCode(), err
	}
	return out.String(), -1, err
}

func releaseDir(t testing.TB) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(fixture.Root(t), "core", "model", "config", "testdata", "v4.1-flash.json"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func inspectJSON(t testing.TB, args ...string) Report {
	t.Helper()
	out, code, err := run(t, append([]string{"inspect", "--json"}, args...)...)
	if code != 0 {
		t.Fatalf("exit code %d: %v", code, err)
	}
	var r Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	return r
}

func TestInspectTheReleaseFromItsConfigurationAlone(t *testing.T) {
	r := inspectJSON(t, releaseDir(t), "--memory", "141GB", "--devices", "4")
	if r.Weights.Found || r.Weights.Tensors != 96085 || r.Weights.Bytes != 510286023000 {
		t.Errorf("weights %+v", r.Weights)
	}
	for _, c := range []struct {
		what string
		got  int64
		want float64 // billions
	}{
		{"total", r.Parameters.Total, 763.2}, {"backbone", r.Parameters.Backbone, 551.88}, {"tables", r.Parameters.EngramTables, 196.61},
		{"draft", r.Parameters.Draft, 14.23}, {"vision", r.Parameters.Vision, 0.485}, {"decode", r.Parameters.ActiveDecode, 16.13},
		{"prefill", r.Parameters.ActivePrefill, 7.90},
	} {
		if got := float64(c.got) / 1e9; math.Abs(got-c.want) > 0.00501*math.Max(1, c.want/100) {
			t.Errorf("%s parameters: %.3f B, want %v B", c.what, got, c.want)
		}
	}
	if r.Cache.BytesPerToken != 890 || r.Cache.GranuleBytes != 114048 || len(r.Cache.Layers) != 4 {
		t.Errorf("cache %+v", r.Cache)
	}
	others := map[string]float64{}
	for _, o := range r.Cache.Others {
		others[o.Main+o.Index] = o.BytesPerToken
	}
	if others["MXFP8FP4"] != 1490 || others["MXFP8FP8"] != 1650 || others["BF16BF16"] != 3200 {
		t.Errorf("other formats %v", others)
	}
	if r.State.BytesPerSequence != 3128928 || r.State.RingRows != 134 || r.State.TailBytes != 86016 {
		t.Errorf("state %+v", r.State)
	}
	if r.Shape.MaxContext != 1048576 || r.Shape.DecoderStart != 20 || !r.Shape.Vision {
		t.Errorf("shape %+v", r.Shape)
	}
	a := r.Activation
	// A routed pair has its gathered input, gate, up, product and output; at least input and one product are alive together.
	pairs := int64(2048 * 6)
	if a.Balanced <= 0 || a.Skewed-a.Balanced < pairs*2304*2*8/10 || a.Skewed-a.Balanced > pairs*(2*5120+3*2304)*2 {
		t.Errorf("activation %+v", a)
	}
	f := r.Fit
	if f == nil || f.Weights+f.HostTables != r.Weights.Bytes || f.HostTables < 202_700_000_000 || f.DevicesAtLeast != 3 || !f.Balanced.Fits {
		t.Fatalf("fit %+v", f)
	}
	if want := 4*(141_000_000_000-a.Balanced) - f.Weights; f.Balanced.Left != want || f.Balanced.KVTokens != (want-64*3128928)/114048*128 {
		t.Errorf("balanced budget %+v, want %d left", f.Balanced, want)
	}
	if f.Skewed.KVTokens >= f.Balanced.KVTokens {
		t.Error("skewed experts leave as much room as balanced ones")
	}
	one := inspectJSON(t, releaseDir(t), "--memory", "141GB")
	if one.Fit.Balanced.Fits || one.Fit.Balanced.KVTokens != 0 || one.Fit.Balanced.Left >= 0 {
		t.Errorf("307 GB fit into 141 GB: %+v", one.Fit.Balanced)
	}
	all := inspectJSON(t, releaseDir(t), "--memory", "141GB", "--devices", "4", "--engram-on-device")
	if all.Fit.HostTables != 0 || all.Fit.Weights != all.Weights.Bytes || all.Fit.DevicesAtLeast != 4 {
		t.Errorf("tables on the devices: %+v", all.Fit)
	}
}

func TestInspectTable(t *testing.T) {
	out, code, err := run(t, "inspect", releaseDir(t), "--memory", "80GiB", "--devices", "8")
	if code != 0 {
		t.Fatal(err)
	}
	for _, want := range []string{"DeepseekV41ForCausalLM", "no weights in this directory", "16.13 B", "7.90 B", "890 B", "3128928 B", "1048576 tokens",
		"routed experts", "288.78 GB", "1.8x skewed", "Fit on 8 x 85.90 GB"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
}

func TestInspectAndVerifyRealCheckpoints(t *testing.T) {
	dirs := map[string]string{"demo": fixture.Demo(t)}
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained"} {
		dirs[set] = filepath.Join(fixture.Dir(t, "model/"+set), "checkpoint")
	}
	for name, dir := range dirs {
		r := inspectJSON(t, dir)
		if !r.Weights.Found || len(r.Weights.Problems) != 0 || r.Parameters.ActivePrefill >= r.Parameters.ActiveDecode || r.Cache.BytesPerToken <= 0 {
			t.Errorf("%s: %+v %+v", name, r.Weights, r.Parameters)
		}
		out, code, err := run(t, "verify", dir)
		if code != 0 || !strings.Contains(out, "0 problems") {
			t.Errorf("%s: exit code %d, %v\n%s", name, code, err, out)
		}
	}
}

func TestVerifyListsProblems(t *testing.T) {
	from := filepath.Join(fixture.Dir(t, "model/tiny"), "checkpoint")
	dir := t.TempDir()
	entries, err := os.ReadDir(from)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		switch e.Name() {
		case "model-00001-of-00001.safetensors":
			raw = raw[:len(raw)-3] // the last tensor is cut
		case "config.json":
			raw = bytes.Replace(raw, []byte(`"q_lora_rank": 64`), []byte(`"q_lora_rank": 32`), 1)
		}
		if err := os.WriteFile(filepath.Join(dir, e.Name()), raw, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	out, code, err := run(t, "verify", dir)
	if code != 1 || !strings.Contains(err.Error(), "problems (") {
		t.Errorf("exit code %d, %v", code, err)
	}
	for _, want := range []string{"the file is truncated", "shape: layers.0.attn.wq_a.weight: found [64 96], want [32 96]"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing in\n%s", want, out)
		}
	}
	out, code, _ = run(t, "verify", "--quick", "--json", dir)
	var v Verification
	if err := json.Unmarshal([]byte(out), &v); err != nil || code != 1 || v.ValuesChecked || len(v.Problems) < 20 {
		t.Errorf("exit code %d, %v, %d problems", code, err, len(v.Problems))
	}
	if r := inspectJSON(t, dir); !r.Weights.Found || len(r.Weights.Problems) != len(v.Problems) {
		t.Errorf("inspect counts %d problems, verify %d", len(r.Weights.Problems), len(v.Problems))
	}
}

func TestExitCodes(t *testing.T) {
	empty, broken := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "config.json"), []byte(`{"architectures":["LlamaForCausalLM"]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"verify", empty}, 2, "is not a model directory"},
		{[]string{"verify", filepath.Join(empty, "none")}, 2, "none"},
		{[]string{"verify", broken}, 1, "this is LlamaForCausalLM; deepinfer serves"},
		{[]string{"verify", releaseDir(t)}, 2, "no safetensors file"},
		{[]string{"verify"}, 2, "want one directory"},
		{[]string{"inspect", empty}, 2, "config.json"},
		{[]string{"inspect", broken}, 2, "LlamaForCausalLM"},
		{[]string{"inspect"}, 2, "want one directory"},
		{[]string{"inspect", releaseDir(t), "--memory", "much"}, 2, `"much" is not a size`},
		{[]string{"inspect", releaseDir(t), "--chunk", "0", "--devices", "-1"}, 2, "--chunk: found 0"},
	} {
		if _, code, err := run(t, c.args...); code != c.code || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: exit code %d, %v, want %d, %q", c.args, code, err, c.code, c.want)
		}
	}
}

func TestParseBytes(t *testing.T) {
	for in, want := range map[string]int64{"141GB": 141e9, "80GiB": 80 << 30, "1.5 TB": 1.5e12, "100": 100, "64g": 64e9, "5 kib": 5120} {
		if got, err := ParseBytes(in); err != nil || got != want {
			t.Errorf("%q: %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "GB", "-1GB", "1XB", "0", "1e400", "nan", "inf", "9999999TB", "1 2GB"} {
		if n, err := ParseBytes(in); err == nil {
			t.Errorf("%q gave %d", in, n)
		}
	}
}
