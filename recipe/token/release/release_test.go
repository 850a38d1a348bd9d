package release

import (
	"crypto/sha256"
	"fmt"
	"testing"
)

func TestTheFileIsTheReleaseFile(t *testing.T) {
	data, err := JSON()
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(data)); sum != "8f9f37ca37fdc4f5fd36d5cf4d3b0e8392edb4e894fd10cc0d70b4957c8633cf" || len(data) != 6367146 {
		t.Errorf("%d bytes, sha256 %s", len(data), sum)
	}
}

func TestNamesAndIDsOfTheThree(t *testing.T) {
	for _, c := range []struct {
		name, spelling string
		id             int32
		special        bool
	}{
		{V4, "<｜place▁holder▁no▁799｜>", 128799, true},
		{V4, "<｜image2｜>", 129264, false},
		{V4, "<｜image｜>", 129279, true},
		{V41, "<｜System｜>", 128799, false},
		{V41, "<｜deepseek_image｜>", 129264, false},
		{V41Recipe, "<｜System｜>", 128799, false},
		{V41Recipe, "<｜image｜>", 129264, true},
		{V41Recipe, "<｜latest_reminder｜>", 128828, false},
		{V41, "<｜begin▁of▁sentence｜>", 0, true},
		{V41, "<｜end▁of▁sentence｜>", 1, true},
		{V41, "<think>", 128821, false},
		{V41, "｜DSML｜", 128825, false},
		{V41, "<｜read_url｜>", 128845, false},
	} {
		tok, err := Load(c.name)
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := tok.ID(c.spelling); !ok || id != c.id || tok.Bytes(c.id) != c.spelling {
			t.Errorf("%s: %s is %d, %v and %d is %q", c.name, c.spelling, id, ok, c.id, tok.Bytes(c.id))
		}
		if c.special != tok.Special(c.id) && c.spelling != "<｜image2｜>" {
			t.Errorf("%s: special flag of %s is %v", c.name, c.spelling, tok.Special(c.id))
		}
		if n := tok.VocabSize(); n != 129280 {
			t.Errorf("%s: %d ids", c.name, n)
		}
	}
	if _, err := Load("v3"); err == nil {
		t.Error("v3 is there")
	}
}

func TestFitChangesTheFamilyOnlyWhenNeeded(t *testing.T) {
	v4, _ := Load(V4)
	v41, _ := Load(V41)
	for _, c := range []struct {
		name     string
		v41      bool
		same     bool
		spelling string
		id       int32
	}{{V4, false, true, "<｜image｜>", 129279}, {V4, true, false, "<｜System｜>", 128799}, {V41, true, true, "<｜System｜>", 128799}, {V41, false, false, "<｜image｜>", 129279}} {
		in := v4
		if c.name == V41 {
			in = v41
		}
		got, err := Fit(in, c.v41)
		if err != nil {
			t.Fatal(err)
		}
		if id, ok := got.ID(c.spelling); !ok || id != c.id || (got == in) != c.same {
			t.Errorf("%s for V4.1 %v: %s is %d, %v, same %v", c.name, c.v41, c.spelling, id, ok, got == in)
		}
	}
}
