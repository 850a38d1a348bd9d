package fault_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/deepinfer-go/deepinfer/backends/fault"
	"github.com/deepinfer-go/deepinfer/backends/null"
	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
)

func wrap(t *testing.T, rules string, kill func()) backend.Backend {
	t.Helper()
	b, err := fault.New(null.New(), fault.Options{Rules: rules, Kill: kill})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func open(t *testing.T, b backend.Backend) backend.Device {
	t.Helper()
	d, err := b.Open(context.Background(), 0, backend.OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func weight(name string) *abi.Weight {
	return &abi.Weight{Name: abi.Str{Ptr: unsafe.Pointer(unsafe.StringData(name)), Len: uint64(len(name))}}
}

// step runs what a small model would: two layers of a norm and a product, and a sync.
func step(d backend.Device) error {
	for _, l := range []string{"layers.0.attn.wq_a.weight", "layers.3.attn.wq_a.weight", "mtp.0.main_proj.weight"} {
		if err := d.GEMM().GEMM(&abi.GEMMArgs{W: weight(l)}); err != nil {
			return err
		}
		if err := d.Vector().RMSNorm(&abi.RMSNormArgs{}); err != nil {
			return err
		}
	}
	return d.Sync()
}

// failures runs n steps and lists those that failed, with the op.
func failures(d backend.Device, n int) string {
	var out []string
	for i := range n {
		var be *backend.Error
		if err := step(d); errors.As(err, &be) {
			out = append(out, string(rune('0'+i))+" "+be.Op)
		} else if err != nil {
			out = append(out, err.Error())
		}
	}
	return strings.Join(out, ", ")
}

func TestConditions(t *testing.T) {
	for _, c := range []struct{ rule, want string }{
		{`op=gemm layer=3 step=2 -> error step "x"`, "2 gemm"},
		{`op=rms_norm layer=3 step=2 -> error step "x"`, "2 rms_norm"},
		{`layer=mtp.0 step>=4 -> error step "x"`, "4 gemm, 5 gemm"},
		{`op=gemm weight=main_proj every=2 -> error step "x"`, "1 gemm, 3 gemm, 5 gemm"},
		{`op=gemm,rms_norm call=8 -> error step "x"`, "1 rms_norm"},
		{`op=sync step=1 -> error step "x"`, "1 sync"},
		{`op=gemm layer=0 times=2 -> error program "x"`, "0 gemm, 1 gemm"},
		{`step=3 -> error step "x"`, "3 gemm"},
		{"# nothing\n\n", ""},
		{"op=gemm step=1 -> delay 1us\nop=gemm -> error step \"only after the delay rule let go\" ", "0 gemm, 1 gemm, 2 gemm, 3 gemm, 4 gemm, 5 gemm"},
	} {
		t.Run(c.rule, func(t *testing.T) {
			d := open(t, wrap(t, c.rule, nil))
			defer d.Close()
			got := failures(d, 6)
			// A failed step reaches no Sync, so the step number stays; rules by step then match again. Only the first failure of those is looked at.
			if strings.Contains(c.rule, "step=") || strings.Contains(c.rule, "step>=") {
				got, _, _ = strings.Cut(got, ", ")
				c.want, _, _ = strings.Cut(c.want, ", ")
			}
			if got != c.want {
				t.Errorf("failed steps %q, want %q", got, c.want)
			}
		})
	}
}

func TestErrorCarriesScopeAndCode(t *testing.T) {
	b := wrap(t, `op=gemm times=1 -> error device "boom" code=14`, nil)
	d := open(t, b)
	err := step(d)
	var be *backend.Error
	if !errors.As(err, &be) || be.Scope != backend.ScopeDevice || be.Code != 14 || be.Msg != "boom" {
		t.Fatalf("error %v", err)
	}
	if err := d.Vector().Add(&abi.AddArgs{}); !errors.As(err, &be) || be.Msg != "boom" {
		t.Errorf("a poisoned device answered %v", err)
	}
	if _, err := d.Alloc(1); err == nil {
		t.Error("a poisoned device allocates")
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	d = open(t, b) // times=1 is used up
	defer d.Close()
	if err := step(d); err != nil {
		t.Errorf("the reopened device failed: %v", err)
	}
	if !strings.Contains(d.Info().Name, "faults") {
		t.Errorf("name %q hides the wrapper", d.Info().Name)
	}
}

func TestHangEndsWithClose(t *testing.T) {
	before := runtime.NumGoroutine()
	d := open(t, wrap(t, `op=rms_norm -> hang`, nil))
	done := make(chan error)
	go func() { done <- step(d) }()
	runtime.Gosched()
	select {
	case err := <-done:
		t.Fatalf("the call returned: %v", err)
	default:
	}
	d.Close()
	var be *backend.Error
	if err := <-done; !errors.As(err, &be) || be.Scope != backend.ScopeDevice {
		t.Errorf("after close: %v", err)
	}
	for range 1000 { // the sender may still be on its way out
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Errorf("%d goroutines, before %d", runtime.NumGoroutine(), before)
}

func TestHangInOpenEndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	go cancel()
	if _, err := wrap(t, `op=open -> hang`, nil).Open(ctx, 0, backend.OpenOptions{}); err == nil {
		t.Error("open succeeded")
	}
}

func TestDelayAndKill(t *testing.T) {
	killed := 0
	d := open(t, wrap(t, "op=gemm call=1 -> delay 20ms\nop=sync call=2 -> kill", func() { killed++ }))
	defer d.Close()
	start := time.Now()
	if err := step(d); err != nil {
		t.Fatal(err)
	}
	if e := time.Since(start); e < 20*time.Millisecond {
		t.Errorf("the step took %v", e)
	}
	if killed != 0 {
		t.Error("killed too early")
	}
	step(d)
	if killed != 1 {
		t.Errorf("killed %d times", killed)
	}
}

func TestConfig(t *testing.T) {
	b := wrap(t, "", nil)
	d, err := b.Open(context.Background(), 0, backend.OpenOptions{Config: []byte(`{"rules":["op=gemm -> error step \"from config\""],"config":{}}`)})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := step(d); err == nil || !strings.Contains(err.Error(), "from config") {
		t.Errorf("error %v", err)
	}
	for config, want := range map[string]string{
		`{"rule":1}`:                "rules, config",
		`{"rules":["op=gem -> x"]}`: "op=gem",
		`{} {}`:                     "after the object",
	} {
		if _, err := b.Open(context.Background(), 0, backend.OpenOptions{Config: []byte(config)}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("config %s: error %v does not mention %q", config, err, want)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for rule, want := range map[string]string{
		`op=gemm`:                         `1:8: no "->"`,
		`op=gem -> hang`:                  "1:1: op=gem",
		`op=gemm op=head -> hang`:         "1:9: op is given twice",
		`speed=3 -> hang`:                 "unknown condition",
		`gemm -> hang`:                    `"gemm" is no condition`,
		`step=-1 -> hang`:                 "from 0",
		`call=0 -> hang`:                  "from 1",
		`layer=x -> hang`:                 "mtp.NUMBER",
		`-> explode`:                      `1:4: unknown action "explode"`,
		`->`:                              "no action",
		`-> hang now`:                     `unexpected "now"`,
		`-> delay`:                        "incomplete",
		`-> delay soon`:                   "duration",
		`-> error boom "x"`:               "scope",
		`-> error step x`:                 "double quotes",
		`-> error step "x`:                "does not end",
		`-> error step "x" code=99`:       "code=16",
		"op=gemm -> hang\n\n  -> nothing": "3:6:",
		"-> bad one\n-> hang\n-> bad two": "3:4:",
	} {
		_, err := fault.Parse(rule)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not mention %q", rule, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(`op=gemm layer=3 step=5 -> error device "boom" code=3`)
	f.Add("op=attend,head step>=2 every=3 times=1 -> delay 5ms\n# x\n-> hang")
	f.Fuzz(func(t *testing.T, s string) {
		rules, err := fault.Parse(s)
		if err != nil {
			return
		}
		for _, r := range rules { // what was accepted parses again to the same rule
			again, err := fault.Parse(r.String())
			if err != nil || len(again) != 1 || again[0].Action != r.Action || again[0].Msg != r.Msg || again[0].Delay != r.Delay {
				t.Fatalf("%q: %v, %v", r, again, err)
			}
		}
	})
}
