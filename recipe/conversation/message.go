package conversation

// Role says who a message is from.
type Role uint8

// The roles. RoleDeveloper is rendered as such by the hf prompt profiles only; protocol packages map a client's developer role to
// RoleSystem.
const (
	RoleSystem Role = iota + 1
	RoleUser
	RoleAssistant
	RoleTool
	RoleReminder  // a latest_reminder message
	RoleDeveloper // hf profiles only
)

var roleNames = [...]string{"", "system", "user", "assistant", "tool", "latest_reminder", "developer"}

// String gives the spelling that the wire formats use, and "invalid" for a value that is none of the constants.
func (r Role) String() string {
	if r == 0 || int(r) >= len(roleNames) {
		return "invalid"
	}
	return roleNames[r]
}

// ParseRole is the inverse of [Role.String]; ok is false for any other spelling.
func ParseRole(s string) (r Role, ok bool) {
	for i, name := range roleNames {
		if i > 0 && name == s {
			return Role(i), true
		}
	}
	return 0, false
}

// Task is a quick-instruction task, one control token after the message (hf profiles). The zero value is no task.
type Task string

// The tasks that the model family knows.
const (
	TaskNone      Task = ""
	TaskAction    Task = "action"
	TaskQuery     Task = "query"
	TaskAuthority Task = "authority"
	TaskDomain    Task = "domain"
	TaskTitle     Task = "title"
	TaskReadURL   Task = "read_url"
)

// Valid says whether t is one of the constants.
func (t Task) Valid() bool {
	switch t {
	case TaskNone, TaskAction, TaskQuery, TaskAuthority, TaskDomain, TaskTitle, TaskReadURL:
		return true
	}
	return false
}

// Message is one entry of the history.
type Message struct {
	Role Role

	// Content is plain text. It is always plain: a control spelling in it never becomes a control token. Ignored when Parts is set.
	Content string

	// Parts are text and image parts, concatenated in order exactly as they stand. Nil: Content is the only text part. Content blocks
	// of a protocol are separated by a blank line; [JoinBlocks] puts it in.
	Parts []Part

	// Reasoning is the thinking text of an assistant turn. Nil is absent, "" is present and empty.
	Reasoning *string

	// ToolCalls are the calls of an assistant turn, in model order. An empty slice that is not nil differs from nil only in the
	// compatible V4 profile, which then writes an empty block.
	ToolCalls []ToolCall

	// ToolCallID names the call that a tool message answers; "" when the client gave none.
	ToolCallID string

	// IsError marks a tool result that reports a failure (Messages is_error).
	IsError bool

	// Tools are definitions carried by this message. On a system message of the recipe profiles they are tools loaded late (they are
	// listed after its content, V4.1 only); in the hf profiles a system or developer message declares its tools here.
	Tools []ToolDef

	// ResponseFormat is a format carried by this message (hf profiles; the others use Conversation.ResponseFormat).
	ResponseFormat ResponseFormat

	// Task is a quick-instruction task (hf profiles).
	Task Task

	// Prefix marks an assistant message that the model is to continue: no end token, no new header. Only on the last message.
	Prefix bool

	// ReplayIDs are the exact token ids this assistant turn was sampled as, from the first id after the assistant header (the
	// thinking token excluded) to the end token included. Nil: render and encode anew. The renderer uses them only when the turn's
	// reasoning is rendered, and only for the token ids; the prompt text is always rendered.
	ReplayIDs []int32
}

// AllParts gives Parts, or Content as the only text part. The result may alias m.
func (m *Message) AllParts() []Part {
	if m.Parts != nil {
		return m.Parts
	}
	if m.Content == "" {
		return nil
	}
	return []Part{{Text: m.Content}}
}

// Text gives the text of the message without its images.
func (m *Message) Text() string {
	if m.Parts == nil {
		return m.Content
	}
	text := ""
	for _, p := range m.Parts {
		if p.Kind == PartText {
			text += p.Text
		}
	}
	return text
}

// HasImage says whether the message holds an image part.
func (m *Message) HasImage() bool {
	for _, p := range m.Parts {
		if p.Kind == PartImage {
			return true
		}
	}
	return false
}

// PartKind tells text from image.
type PartKind uint8

// The kinds of parts. The zero value is text.
const (
	PartText PartKind = iota
	PartImage
)

// Part is a piece of a message.
type Part struct {
	Kind  PartKind
	Text  string // PartText
	Image int    // PartImage: index into Conversation.Images
}

// TextPart is a part of plain text.
func TextPart(text string) Part { return Part{Text: text} }

// ImagePart refers to Conversation.Images[index].
func ImagePart(index int) Part { return Part{Kind: PartImage, Image: index} }

// JoinBlocks separates content blocks by a blank line, as all three protocols do: text, image and text become
// text "\n\n" image "\n\n" text. Adjacent text is merged. The result is nil for no blocks.
func JoinBlocks(blocks []Part) []Part {
	var out []Part
	for i, b := range blocks {
		if i > 0 {
			out = appendPart(out, TextPart("\n\n"))
		}
		out = appendPart(out, b)
	}
	return out
}

func appendPart(parts []Part, p Part) []Part {
	if p.Kind == PartText && len(parts) > 0 && parts[len(parts)-1].Kind == PartText {
		parts[len(parts)-1].Text += p.Text
		return parts
	}
	return append(parts, p)
}

// ToolCall is a call that an assistant turn made.
type ToolCall struct {
	ID        string
	Name      string // flattened: "ns::name" for a tool in a namespace
	Arguments string // JSON text exactly as received or generated; it need not be valid JSON
	Custom    bool   // a custom tool, whose input is free text
}

// ImageKind says where an image comes from.
type ImageKind uint8

// The kinds of image sources.
const (
	ImageURL     ImageKind = iota + 1 // URL is an http or https address
	ImageDataURL                      // URL is a data: URL
	ImageBytes                        // Data is the file itself
)

// Detail is the client's wish for image resolution. DetailLow shrinks the longer side to 512 pixels first; the others are the same.
type Detail string

// The spellings of Detail. Protocol packages set DetailHigh when the client says nothing.
const (
	DetailHigh     Detail = "high"
	DetailLow      Detail = "low"
	DetailAuto     Detail = "auto"
	DetailOriginal Detail = "original"
)

// Image is one picture of a conversation. Nothing is fetched or decoded here.
type Image struct {
	Kind   ImageKind
	URL    string // ImageURL, ImageDataURL
	Data   []byte // ImageBytes; owned by the conversation
	MIME   string // "" when unknown
	Detail Detail // "" is high
	Path   string // where in the request it stood, for error messages; "" when unknown
	// Width and Height are pixels after decoding, or 0 while unknown. With both set the encoder expands the placeholder.
	Width, Height int
}
