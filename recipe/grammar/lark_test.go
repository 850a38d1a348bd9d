package grammar_test

import (
	"testing"

	"github.com/deepinfer-go/deepinfer/recipe/grammar"
)

// patches has the shape of the grammar that a coding agent sends with its patch tool.
const patches = `start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
`

func TestImportsOfLark(t *testing.T) {
	v, _ := vocabulary(t, "v4.1")
	for _, c := range []struct {
		text     string
		yes, not []string
	}{
		{patches, []string{"*** Begin Patch\n*** Add File: a.txt\n+hello\n+\n*** End Patch", "*** Begin Patch\n*** Update File: x\n@@ func f\n-a\n+b\n*** End Patch\n"},
			[]string{"*** Begin Patch\n*** End Patch", "*** Begin Patch\n*** Add File: a.txt\nhello\n*** End Patch"}},
		{"%import common (INT, WS_INLINE)\nstart: INT (WS_INLINE INT)*\n", []string{"1", "12 \t3"}, []string{"", "1,2", "1 "}},
		{"%import common.SIGNED_NUMBER -> N\nstart: N\n", []string{"-1", "2.5", "1e-9", ".5"}, []string{"-", "1e", "N"}},
		{"%import common.ESCAPED_STRING\n%import common.CNAME\nstart: CNAME \"=\" ESCAPED_STRING\n", []string{`a_1="x\"y"`, `b=""`}, []string{`1="x"`, `a="x`, `a="\"`}},
		{"%import common.FLOAT\nstart: FLOAT\n", []string{"1.5", "1e3", ".5e-2"}, []string{"1", "e3"}},
	} {
		g := compile(t, v, grammar.Spec{Kind: grammar.KindGrammar, Pattern: c.text})
		for _, s := range c.yes {
			if !accepts(t, g, s) {
				t.Errorf("%q is refused", s)
			}
		}
		for _, s := range c.not {
			if accepts(t, g, s) {
				t.Errorf("%q is accepted", s)
			}
		}
	}
}
