package encoding

import (
	"fmt"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/pyjson"
)

// Profile names the exact prompt format that a checkpoint was trained with. A checkpoint has one; the wrong one lowers quality and
// changes token counts without any error.
type Profile string

// The profiles. The recipe ones are what the hosted service renders, the hf ones what the encoder in the model release renders; V4 has
// two generations of effort texts.
const (
	V41Recipe   Profile = "v4.1/recipe" // the default for V4.1
	V4Recipe    Profile = "v4/recipe"   // the default for V4
	V41HF       Profile = "v4.1/hf"
	V4HFPreview Profile = "v4/hf-preview" // V4 checkpoints of April
	V4HF0731    Profile = "v4/hf-0731"    // V4 checkpoints of July
)

// Profiles lists all profiles.
func Profiles() []Profile { return []Profile{V41Recipe, V4Recipe, V41HF, V4HFPreview, V4HF0731} }

// ParseProfile checks a profile's name.
func ParseProfile(name string) (Profile, error) {
	names := make([]string, 0, 5)
	for _, p := range Profiles() {
		if string(p) == name {
			return p, nil
		}
		names = append(names, string(p))
	}
	return "", fmt.Errorf("prompt profile %q: want one of %s", name, strings.Join(names, ", "))
}

// V41 says whether the profile is of the V4.1 family.
func (p Profile) V41() bool { return strings.HasPrefix(string(p), "v4.1/") }

// hf says whether the profile follows the encoder of the model release.
func (p Profile) hf() bool { return strings.Contains(string(p), "/hf") }

// numbers is how JSON numbers are spelled.
func (p Profile) numbers() pyjson.Style {
	switch {
	case p.hf():
		return pyjson.Exact
	case p == V4Recipe:
		return pyjson.Rust
	}
	return pyjson.Python
}

// markup holds the names of the tool markup. The V4.1 names begin with a space.
type markup struct{ block, invoke, parameter string }

func (p Profile) markup() markup {
	if p.V41() {
		return markup{" calls", " invoke", " parameter"}
	}
	return markup{"tool_calls", "invoke", "parameter"}
}

const effortA = `Reasoning Effort: Absolute maximum with no shortcuts permitted.
You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the root cause, rigorously stress-testing your logic against all potential paths, edge cases, and adversarial scenarios.
Explicitly write out your entire deliberation process, documenting every intermediate step, considered alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.

`

const effortB = `Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.
You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: exhaustively decompose the problem into its most fundamental components, trace every causal chain to its root, and resolve the underlying cause rather than any surface symptom.
Do not stop reasoning until you have independently verified the solution from multiple angles and are certain that no assumption remains unchecked and no error remains undiscovered.

`

// effort gives the text that tells the model how long to reason, "" when the profile writes none for this effort.
func (p Profile) effort(e conversation.Effort) (string, error) {
	if p.V41() {
		n := e.Numeric
		if n == 0 {
			switch e.Level {
			case conversation.EffortLow:
				n = 50
			case conversation.EffortUnset, conversation.EffortHigh:
				n = 75
			case conversation.EffortXHigh:
				if p.hf() {
					return "", fmt.Errorf("reasoning effort xhigh: profile %s knows low, high, max and 1..100", p)
				}
				n = 75
			case conversation.EffortMax:
				n = 100
			default:
				return "", fmt.Errorf("reasoning effort %q: want low, high, xhigh or max", e.Level)
			}
		}
		if n < 1 || n > 100 {
			return "", fmt.Errorf("reasoning effort %d: want 1..100", n)
		}
		return fmt.Sprintf("Reasoning Effort: %d (range 1-100, the higher the value, the more thorough the reasoning)\n\n", n), nil
	}
	if e.Numeric != 0 {
		return "", fmt.Errorf("reasoning effort %d: profile %s takes no number, want low, high, xhigh or max", e.Numeric, p)
	}
	if p == V4HFPreview {
		switch e.Level {
		case conversation.EffortUnset, conversation.EffortHigh:
			return "", nil
		case conversation.EffortMax:
			return effortA, nil
		}
		return "", fmt.Errorf("reasoning effort %q: profile %s knows high and max", e.Level, p)
	}
	switch e.Level {
	case conversation.EffortLow:
		return "", nil
	case conversation.EffortUnset, conversation.EffortHigh, conversation.EffortXHigh:
		return effortA, nil
	case conversation.EffortMax:
		return effortB, nil
	}
	return "", fmt.Errorf("reasoning effort %q: want low, high, xhigh or max", e.Level)
}

// toolPrompt is the text around the tool schemas; {B}, {I}, {P} are the names of the markup, {SCHEMAS} the schema lines. The control
// spellings in it are control tokens.
const toolPrompt = `## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by writing a "<｜DSML｜{B}>" block like the following:

<｜DSML｜{B}>
<｜DSML｜{I} name="$TOOL_NAME">
<｜DSML｜{P} name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</｜DSML｜{P}>
...
</｜DSML｜{I}>
<｜DSML｜{I} name="$TOOL_NAME2">
...
</｜DSML｜{I}>
</｜DSML｜{B}>

String parameters should be specified as is and set ` + "`string=\"true\"`" + `. For all other types (numbers, booleans, arrays, objects), pass the value in JSON format and set ` + "`string=\"false\"`" + `.

If thinking_mode is enabled (triggered by <think>), you MUST output your complete reasoning inside <think>...</think> BEFORE any tool calls or final response.

Otherwise, output directly after </think> with tool calls or final response.

### Available Tool Schemas

{SCHEMAS}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
`

// toolPromptParts gives the text before and after the schemas.
func (p Profile) toolPromptParts() (before, after string) {
	m := p.markup()
	text := strings.NewReplacer("{B}", m.block, "{I}", m.invoke, "{P}", m.parameter).Replace(toolPrompt)
	before, after, _ = strings.Cut(text, "{SCHEMAS}")
	return before, after
}

const (
	formatIntro    = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
	formatJSONV4   = "You are a helpful assistant designed to output JSON.\n## Response Format:\n\nReply with JSON object ONLY."
	updatedSchemas = "\n\n### Updated Tool Schemas\n\n"
)
