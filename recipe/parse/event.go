package parse

// Kind says what an Event reports.
type Kind uint8

// The kinds of events.
const (
	Reasoning    Kind = iota + 1 // Text is thinking
	ReasoningEnd                 // the model closed its thinking (a mark was seen)
	Text                         // Text is part of the answer
	ToolStart                    // a call begins: Call.Index, Call.Name
	ToolArgs                     // Text continues the arguments of the call Call.Index
	ToolEnd                      // the call is complete: Call.Arguments and the verdict on it
	Finish                       // the last event: Cause, Stop
)

// String names the kind.
func (k Kind) String() string {
	switch k {
	case Reasoning:
		return "reasoning"
	case ReasoningEnd:
		return "reasoning_end"
	case Text:
		return "content"
	case ToolStart:
		return "tool"
	case ToolArgs:
		return "args"
	case ToolEnd:
		return "tool_end"
	case Finish:
		return "finish"
	}
	return "invalid"
}

// Event is one piece of parsed output. Text is valid UTF-8 and never empty for Reasoning, Text and ToolArgs.
type Event struct {
	Kind Kind
	Text string
	// Logprobs belong to the tokens of Text (Reasoning and Text only). Tokens that were markup only are reported nowhere.
	Logprobs []TokenLogprob
	Call     Call
	Cause    Cause  // Finish
	Stop     string // Finish with CauseStopString: the string that matched
}

// Call identifies a tool call. On ToolStart and ToolArgs only Index and Name are set.
type Call struct {
	Index int
	Name  string // as declared; what the model wrote when no declared tool fits
	// Arguments is the concatenation of all ToolArgs texts of the call (ToolEnd). In the hardened grammar it is a JSON object.
	Arguments string
	// Complete says that the markup of the call was closed, not cut by the end of the output.
	Complete bool
	Warnings []Warning
}

// Warning says what was odd about a call or a block and how it was handled.
type Warning string

// The warnings.
const (
	WarnUnknownTool    Warning = "unknown_tool"      // the name is not declared; kept
	WarnEmptyBlock     Warning = "empty_tool_block"  // a block without a call; dropped
	WarnDuplicate      Warning = "duplicate_param"   // a parameter came twice; the first was kept
	WarnUnknownParam   Warning = "unknown_parameter" // additionalProperties is false and the name is not declared; kept
	WarnRepaired       Warning = "repaired"          // a value was not JSON; closed or given as a string
	WarnTruncated      Warning = "truncated"         // the output ended inside the call
	WarnUnwrapped      Warning = "unwrapped"         // an undeclared wrapper object was removed
	WarnStray          Warning = "stray_text"        // text where only markup belongs; given as answer text
	WarnMalformed      Warning = "malformed_markup"  // markup that opens nothing; given as answer text
	WarnMissingClose   Warning = "missing_close"     // a tag was closed by what followed
	WarnIllegalControl Warning = "illegal_control"   // a turn marker in the output; ended the turn
)

// Cause is why the output ended.
type Cause uint8

// The causes. The first group comes from the engine, the second from the parser itself.
const (
	CauseStop          Cause = iota + 1 // end token
	CauseLength                         // token budget used up
	CauseContextFull                    // context window full
	CauseContentFilter                  // withheld by a filter
	CauseEnd                            // the stream ended without a reason
	CauseResources                      // the engine ran out of resources
	CauseCancelled                      // the client went away

	CauseStopString // a stop string matched
	CauseToolCalls  // ended normally after at least one call
)

// String names the cause.
func (c Cause) String() string {
	switch c {
	case CauseStop:
		return "stop"
	case CauseLength:
		return "length"
	case CauseContextFull:
		return "context_full"
	case CauseContentFilter:
		return "content_filter"
	case CauseEnd:
		return "end"
	case CauseResources:
		return "resources"
	case CauseCancelled:
		return "cancelled"
	case CauseStopString:
		return "stop_string"
	case CauseToolCalls:
		return "tool_calls"
	}
	return "invalid"
}

// Usage counts tokens of the output.
type Usage struct {
	Completion int // tokens taken, the one that completed a stop string included
	Reasoning  int // of those, tokens of thinking
}

// Logprob is the log-probability of a sampled token and of its alternatives, as the engine gives it.
type Logprob struct {
	Logprob float64
	Top     []TopLogprob
}

// TopLogprob is one alternative.
type TopLogprob struct {
	ID      int32
	Logprob float64
}

// TokenLogprob is a Logprob with ids resolved to bytes. The bytes may be part of a character.
type TokenLogprob struct {
	Bytes   string
	Logprob float64
	Top     []TokenTop
}

// TokenTop is one alternative of a TokenLogprob.
type TokenTop struct {
	Bytes   string
	Logprob float64
}
