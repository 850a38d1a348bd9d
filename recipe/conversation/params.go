package conversation

// Params are sampling and run parameters as the client gave them; a nil pointer is "not given". The compatible serialisers go through
// float32 for Temperature and TopP, the engine gets the float64.
type Params struct {
	MaxTokens   *int64
	Temperature *float64 // 0..2
	TopP        *float64 // (0,1]
	TopK        *int     // Messages only
	Seed        *int64   // >= 0

	FrequencyPenalty *float64          // -2..2
	PresencePenalty  *float64          // -2..2
	LogitBias        map[int32]float32 // token id to bias, -100..100

	Logprobs    bool // log-probability of every sampled token
	TopLogprobs *int // 0..20 alternatives

	N              int    // choices; 0 is 1
	ThinkingBudget *int64 // tokens of reasoning
	// NoParallelTools ends the turn after one call.
	NoParallelTools bool
	Stop            []string // at most 16, none empty
	// Echo repeats the prompt in a legacy completion.
	Echo bool
	// IgnoreEOS is for tests.
	IgnoreEOS bool
}

// Stage is where the output parser starts.
type Stage uint8

// The stages. The zero value is thinking off.
const (
	StageOff                   Stage = iota // the prompt closed thinking: content
	StageReasoning                          // the prompt opened thinking
	StageReasoningContinuation              // the prompt ends inside the reasoning of a prefix
	StageContentContinuation                // the prompt ends inside the content of a prefix, thinking on
)

// String gives the spelling of the golden files.
func (s Stage) String() string {
	switch s {
	case StageOff:
		return "off"
	case StageReasoning:
		return "reasoning_start"
	case StageReasoningContinuation:
		return "reasoning_continuation"
	case StageContentContinuation:
		return "content_continuation"
	}
	return "invalid"
}

// Parsing tells the output parser what the prompt and the request allow.
type Parsing struct {
	ToolCalls       bool // tools are listed, so markup is markup
	StartsInCalls   bool // the prompt already opened the block
	JSONOutput      bool // response format json_object
	Stage           Stage
	StopStrings     []string
	NoParallelTools bool
}

// Parsing derives the parser's options from the conversation: the start state follows from what the prompt ends with, never from a
// separate default. stop is copied by reference.
func (c *Conversation) Parsing(stop []string) Parsing {
	p := Parsing{
		ToolCalls:     len(c.ActiveTools()) > 0,
		StartsInCalls: c.ForcesCall() && !c.Thinking,
		JSONOutput:    c.ResponseFormat.Kind == FormatJSONObject,
		StopStrings:   stop,
	}
	if !c.Thinking {
		return p
	}
	p.Stage = StageReasoning
	if m := c.Continues(); m != nil {
		switch {
		case m.Text() != "":
			p.Stage = StageContentContinuation
		case m.Reasoning != nil && *m.Reasoning != "":
			p.Stage = StageReasoningContinuation
		}
	}
	return p
}

// Completion is a legacy completion or fill-in-the-middle request: text without turns.
type Completion struct {
	Prompt string
	// PromptIDs are used instead of Prompt when not nil.
	PromptIDs []int32
	Suffix    *string // not nil: fill in the middle
	// AllowSpecial lets control spellings in the text become control tokens.
	AllowSpecial bool
}
