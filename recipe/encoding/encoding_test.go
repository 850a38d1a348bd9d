package encoding

import (
	"bufio"
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/token"
	"github.com/deepinfer-go/deepinfer/recipe/token/tokentest"
)

// golden is one line of the recorded prompts.
type golden struct {
	ID            string
	API           string
	Profile       string
	Request       json.RawMessage
	Prompt        string
	SpecialRanges [][2]int `json:"special_ranges"`
	Tokens        []int32
	Error         json.RawMessage
}

func readGolden(t *testing.T, path string) []golden {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []golden
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		var g golden
		if err := json.Unmarshal(s.Bytes(), &g); err != nil {
			t.Fatalf("%s:%d: %v", path, len(out)+1, err)
		}
		out = append(out, g)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// tokenizerOf is the tokenizer that the recordings of a profile used.
func tokenizerOf(t testing.TB, profile string) *token.Tokenizer {
	if strings.HasPrefix(profile, "v4.1/") {
		return tokentest.Load(t, "v4.1-recipe")
	}
	return tokentest.Load(t, "v4")
}

// diff cuts two strings to where they first differ.
func diff(got, want string) string {
	i := 0
	for i < len(got) && i < len(want) && got[i] == want[i] {
		i++
	}
	from := max(0, i-40)
	return "\n got …" + short(got[from:]) + "\nwant …" + short(want[from:])
}

func short(s string) string {
	if len(s) > 160 {
		return s[:160] + "…"
	}
	return s
}

func TestRecordedPromptsOfConversations(t *testing.T) {
	cases := readGolden(t, "testdata/prompts.jsonl")
	if len(cases) != 44 {
		t.Errorf("%d cases, want 44", len(cases))
	}
	for _, g := range cases {
		conv, err := conversation.Decode(g.Request)
		if err != nil {
			t.Errorf("%s: %v", g.ID, err)
			continue
		}
		p, err := Encode(&conv, tokenizerOf(t, g.Profile), Options{Profile: Profile(g.Profile), Compat: true})
		if err != nil {
			t.Errorf("%s: %v", g.ID, err)
			continue
		}
		if p.Text != g.Prompt {
			t.Errorf("%s: text%s", g.ID, diff(p.Text, g.Prompt))
		} else if !reflect.DeepEqual(p.SpecialRanges, g.SpecialRanges) {
			t.Errorf("%s: ranges %v, want %v", g.ID, p.SpecialRanges, g.SpecialRanges)
		} else if !reflect.DeepEqual(p.Tokens, g.Tokens) {
			t.Errorf("%s: tokens %v, want %v", g.ID, p.Tokens, g.Tokens)
		}
	}
}

func TestRecordedPromptsOfTheReleaseEncoder(t *testing.T) {
	cases := readGolden(t, "testdata/prompts-hf.jsonl")
	if len(cases) != 85 {
		t.Errorf("%d cases, want 85", len(cases))
	}
	for _, g := range cases {
		tok := tokenizerOf(t, g.Profile)
		if g.API == "fim" {
			var c conversation.Completion
			if err := json.Unmarshal(g.Request, &c); err != nil {
				t.Fatal(err)
			}
			e, err := New(V4Recipe, tok)
			if err != nil {
				t.Fatal(err)
			}
			p, err := e.EncodeCompletion(&c, Options{})
			if err != nil || p.Text != g.Prompt || !reflect.DeepEqual(p.Tokens, g.Tokens) {
				t.Errorf("%s: %v, %+v, want %q %v", g.ID, err, p, g.Prompt, g.Tokens)
			}
			continue
		}
		conv, err := conversation.DecodeRelease(g.Request)
		if err == nil {
			for _, match := range []bool{false, true} {
				var p *Prompt
				if p, err = Encode(&conv, tok, Options{Profile: Profile(g.Profile), Compat: true, MatchAdded: match}); err != nil {
					break
				}
				if p.Text != g.Prompt {
					t.Errorf("%s: text%s", g.ID, diff(p.Text, g.Prompt))
				} else if !reflect.DeepEqual(p.Tokens, g.Tokens) {
					t.Errorf("%s, matching added tokens %v: tokens %v, want %v", g.ID, match, p.Tokens, g.Tokens)
				}
			}
		}
		if (err != nil) != (g.Error != nil) {
			t.Errorf("%s: error %v, want %s", g.ID, err, g.Error)
		}
	}
}

// The default rendering equals the recorded one everywhere but in the listed cases.
func TestHardenedDiffersOnlyWhereListed(t *testing.T) {
	reasons := map[string]string{
		"conversation-conv-008": "a forced call reasons first",
		"conversation-conv-009": "a forced call reasons first",
		"conversation-conv-030": "no images on V4",
		"conversation-conv-032": "no images on V4",
		"conversation-conv-034": "no images on V4",
		"conversation-conv-038": "prefix in the middle",
		"conversation-conv-039": "prefix in the middle",
		"base-020":              "system message in the middle of V4",
		"base-041":              "system message in the middle of V4",
	}
	for _, g := range append(readGolden(t, "testdata/prompts.jsonl"), readGolden(t, "testdata/prompts-hf.jsonl")...) {
		decode := conversation.Decode
		if g.API == "hf" {
			decode = conversation.DecodeRelease
		} else if g.API == "fim" {
			continue
		}
		conv, err := decode(g.Request)
		if err != nil {
			t.Errorf("%s: %v", g.ID, err)
			continue
		}
		p, err := Encode(&conv, tokenizerOf(t, g.Profile), Options{Profile: Profile(g.Profile)})
		same := err == nil && p.Text == g.Prompt && reflect.DeepEqual(p.Tokens, g.Tokens) || err != nil && g.Error != nil
		if listed := reasons[g.ID] != ""; same == listed {
			t.Errorf("%s: same %v (%v), listed as different: %v", g.ID, same, err, listed)
		}
		delete(reasons, g.ID)
	}
	if len(reasons) > 0 {
		t.Errorf("no such cases: %v", reasons)
	}
}
