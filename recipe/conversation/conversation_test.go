package conversation

import (
	"reflect"
	"strings"
	"testing"
)

func ptr[T any](v T) *T { return &v }

func TestRoleSpellingsGoBothWays(t *testing.T) {
	for r := RoleSystem; r <= RoleDeveloper; r++ {
		got, ok := ParseRole(r.String())
		if !ok || got != r {
			t.Errorf("ParseRole(%q) = %v, %v; want %v", r.String(), got, ok, r)
		}
	}
	for _, s := range []string{"", "invalid", "User", "function"} {
		if r, ok := ParseRole(s); ok {
			t.Errorf("ParseRole(%q) = %v, want not ok", s, r)
		}
	}
	if s := Role(99).String(); s != "invalid" {
		t.Errorf("Role(99) is %q", s)
	}
}

func TestJoinBlocksPutsABlankLineBetweenBlocks(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []Part
		want []Part
	}{
		{"no blocks", nil, nil},
		{"text merges", []Part{TextPart("a"), TextPart(""), TextPart("b")}, []Part{TextPart("a\n\n\n\nb")}},
		{"an image counts as a block", []Part{TextPart("a"), ImagePart(0), ImagePart(1), TextPart("b")},
			[]Part{TextPart("a\n\n"), ImagePart(0), TextPart("\n\n"), ImagePart(1), TextPart("\n\nb")}},
	} {
		if got := JoinBlocks(c.in); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestValidateReportsEveryFault(t *testing.T) {
	ok := Conversation{Images: []Image{{Kind: ImageURL, URL: "https://example.org/a.png"}}, Messages: []Message{
		{Role: RoleUser, Parts: []Part{TextPart("a"), ImagePart(0)}}, {Role: RoleAssistant, Content: "b", Prefix: true}}}
	if err := ok.Validate(); err != nil {
		t.Fatalf("valid conversation: %v", err)
	}
	bad := Conversation{
		Messages: []Message{{Role: 42}, {Role: RoleAssistant, Prefix: true, Parts: []Part{ImagePart(3)}}, {Role: RoleUser, Task: "dance"},
			{Role: RoleUser, Parts: []Part{{Kind: 9}}}},
		Effort:         Effort{Level: "huge", Numeric: 101},
		ToolChoice:     ToolChoice{Mode: ChoiceNamed, Name: "f"},
		ResponseFormat: ResponseFormat{Kind: 77},
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"role 42", "image 3", "cannot hold an image", "last message only", `"dance"`, "kind 9", "effort 101", `"huge"`, `"f"`, "format 77"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

func TestParsingStartsWhereThePromptEnds(t *testing.T) {
	tools := []ToolDef{{Name: "f"}, {Name: "g"}}
	user := Message{Role: RoleUser, Content: "q"}
	for _, c := range []struct {
		name string
		conv Conversation
		want Parsing
	}{
		{"thinking off", Conversation{Messages: []Message{user}}, Parsing{}},
		{"thinking on", Conversation{Messages: []Message{user}, Thinking: true}, Parsing{Stage: StageReasoning}},
		{"tools", Conversation{Tools: tools}, Parsing{ToolCalls: true}},
		{"no choice, no calls", Conversation{Tools: tools, ToolChoice: ToolChoice{Mode: ChoiceNone}}, Parsing{}},
		{"required opens the block", Conversation{Tools: tools, ToolChoice: ToolChoice{Mode: ChoiceRequired}}, Parsing{ToolCalls: true, StartsInCalls: true}},
		{"required without tools does not", Conversation{ToolChoice: ToolChoice{Mode: ChoiceRequired}}, Parsing{}},
		{"required with thinking reasons first", Conversation{Tools: tools, Thinking: true, ToolChoice: ToolChoice{Mode: ChoiceRequired}}, Parsing{ToolCalls: true, Stage: StageReasoning}},
		{"named", Conversation{Tools: tools, ToolChoice: ToolChoice{Mode: ChoiceNamed, Name: "g"}}, Parsing{ToolCalls: true, StartsInCalls: true}},
		{"json", Conversation{ResponseFormat: ResponseFormat{Kind: FormatJSONObject}}, Parsing{JSONOutput: true}},
		{"prefix with content", Conversation{Thinking: true, Messages: []Message{{Role: RoleAssistant, Content: "C", Reasoning: ptr("R"), Prefix: true}}}, Parsing{Stage: StageContentContinuation}},
		{"prefix with reasoning", Conversation{Thinking: true, Messages: []Message{{Role: RoleAssistant, Reasoning: ptr("R"), Prefix: true}}}, Parsing{Stage: StageReasoningContinuation}},
		{"prefix with neither", Conversation{Thinking: true, Messages: []Message{{Role: RoleAssistant, Reasoning: ptr(""), Prefix: true}}}, Parsing{Stage: StageReasoning}},
		{"prefix, thinking off", Conversation{Messages: []Message{{Role: RoleAssistant, Content: "C", Prefix: true}}}, Parsing{}},
	} {
		if got := c.conv.Parsing(nil); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	named := Conversation{Tools: tools, ToolChoice: ToolChoice{Mode: ChoiceNamed, Name: "g"}}
	if got := named.ActiveTools(); len(got) != 1 || got[0].Name != "g" {
		t.Errorf("named choice lists %+v", got)
	}
}
