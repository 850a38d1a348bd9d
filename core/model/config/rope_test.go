package config_test

import (
	"math"
	"path/filepath"
	"testing"

	"github.com/deepinfer-go/deepinfer/core/model/checkpoint"
	"github.com/deepinfer-go/deepinfer/core/model/config"
	"github.com/deepinfer-go/deepinfer/internal/fixture"
)

// The golden tables were computed with FP32 pow, then the reciprocal; the speeds must agree bit for bit, because an angle at a
// late position turns one unit in the last place into a visible error.
func TestRopeSpeedsEqualTheGoldenTables(t *testing.T) {
	for _, set := range []string{"tiny", "tiny-v4", "tiny-trained"} {
		cfg, err := config.Load(filepath.Join(fixture.Dir(t, "model/"+set), "checkpoint"))
		if err != nil {
			t.Fatal(err)
		}
		tensors, err := checkpoint.ParseFile(set, fixture.Read(t, "model/"+set+"/golden.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for _, x := range tensors {
			ratio := map[string]int{"rope.a.freq": 0, "rope.b.freq": 1}
			r, ok := ratio[x.Name]
			if !ok {
				continue
			}
			checked++
			want, err := x.Float32s()
			if err != nil {
				t.Fatal(err)
			}
			got := cfg.RopeSpeeds(r)
			if len(got) != len(want) {
				t.Fatalf("%s %s: %d speeds, want %d", set, x.Name, len(got), len(want))
			}
			for i := range want {
				if math.Float32bits(got[i]) != math.Float32bits(want[i]) {
					t.Errorf("%s %s[%d]: %v, want %v", set, x.Name, i, got[i], want[i])
				}
			}
		}
		if set != "tiny-v4" && checked != 2 {
			t.Errorf("%s: %d golden tables", set, checked)
		}
	}
}
