package token_test

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

// eachLine decodes every line of a JSON Lines file into a fresh T. Lines end at "\n" only.
func eachLine[T any](t *testing.T, path string, f func(c T)) int {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<24)
	n := 0
	for s.Scan() {
		var c T
		if err := json.Unmarshal(s.Bytes(), &c); err != nil {
			t.Fatalf("%s:%d: %v", path, n+1, err)
		}
		f(c)
		n++
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return n
}

type vector struct {
	ID       string
	Text     string
	Hex      *string
	Repeat   *int
	IDs      []int32
	Added    []int32
	AddedV41 []int32 `json:"added_v41"`
}

func (v *vector) text(t *testing.T) string {
	text := v.Text
	if v.Hex != nil {
		b, err := hex.DecodeString(*v.Hex)
		if err != nil {
			t.Fatalf("%s: %v", v.ID, err)
		}
		text = string(b)
	}
	if v.Repeat != nil {
		text = strings.Repeat(text, *v.Repeat)
	}
	return text
}

func TestVectorsOfTheReferenceTokenizer(t *testing.T) {
	v4, v41, v41r := tokentest.Load(t, "v4"), tokentest.Load(t, "v4.1"), tokentest.Load(t, "v4.1-recipe")
	n := eachLine(t, "testdata/vectors.jsonl", func(c vector) {
		text := c.text(t)
		want := token.ValidUTF8(text)
		for name, tok := range map[string]*token.Tokenizer{"v4": v4, "v4.1": v41, "v4.1-recipe": v41r} {
			if got := tok.Encode(text); !reflect.DeepEqual(got, c.IDs) && len(got)+len(c.IDs) > 0 {
				t.Errorf("%s, %s: Encode(%.200q) = %v, want %v", c.ID, name, text, got, c.IDs)
			}
			if got := tok.Decode(c.IDs); got != want {
				t.Errorf("%s, %s: Decode(%v) = %q, want %q", c.ID, name, c.IDs, got, want)
			}
		}
		added := c.IDs
		if c.Added != nil {
			added = c.Added
		}
		if got := v4.EncodeSpecial(text); !reflect.DeepEqual(got, added) && len(got)+len(added) > 0 {
			t.Errorf("%s, v4: EncodeSpecial(%.200q) = %v, want %v", c.ID, text, got, added)
		}
		if c.AddedV41 != nil {
			added = c.AddedV41
		}
		if got := v41.EncodeSpecial(text); !reflect.DeepEqual(got, added) && len(got)+len(added) > 0 {
			t.Errorf("%s, v4.1: EncodeSpecial(%.200q) = %v, want %v", c.ID, text, got, added)
		}
	})
	if n != 463 {
		t.Errorf("%d vectors, want 463", n)
	}
}

type detok struct {
	ID      string
	IDs     []int32
	Bytes   []string
	Safe    []string
	SafeEnd string `json:"safe_end"`
}

func TestStreamVectors(t *testing.T) {
	tok := tokentest.Load(t, "v4.1")
	n := eachLine(t, "testdata/detok.jsonl", func(c detok) {
		s := token.NewStream(tok)
		for i, id := range c.IDs {
			if got := fmt.Sprintf("%x", tok.Bytes(id)); got != c.Bytes[i] {
				t.Errorf("%s: Bytes(%d) = %s, want %s", c.ID, id, got, c.Bytes[i])
			}
			if got := s.Push(id); got != c.Safe[i] {
				t.Errorf("%s: step %d, id %d: %q, want %q", c.ID, i, id, got, c.Safe[i])
			}
		}
		if got := s.Flush(); got != c.SafeEnd {
			t.Errorf("%s: at the end %q, want %q", c.ID, got, c.SafeEnd)
		}
	})
	if n != 66 {
		t.Errorf("%d cases, want 66", n)
	}
}
