package doctorcli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestReportNamesWhatIsMissing(t *testing.T) {
	lost := Finding{Area: "backend", What: "cpu", Level: Missing, Found: "no cpu.so in /nowhere", Fix: "make build"}
	cmd := Command(func(dirs []string) []Finding {
		if len(dirs) != 1 || dirs[0] != "/nowhere" {
			t.Errorf("dirs %q", dirs)
		}
		return []Finding{lost}
	}, []string{"default"})
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--dir", "/nowhere"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"cores", "RAM", "sealed memfd", "no cpu.so in /nowhere", "-> make build", "missing; the pure-Go backend"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, out.String())
		}
	}
}

func TestJSON(t *testing.T) {
	cmd := Command(func([]string) []Finding { return nil }, nil)
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"--json"})
	if err := cmd.Execute(); err != nil {
		t.Fatal(err)
	}
	var report []Finding
	if err := json.Unmarshal(out.Bytes(), &report); err != nil || len(report) < 5 {
		t.Fatalf("%v: %s", err, out.String())
	}
}
