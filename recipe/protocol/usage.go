package protocol

// Usage counts the tokens of a response.
type Usage struct {
	Prompt     int64 // all tokens of the prompt
	Cached     int64 // of those, tokens read from the prefix cache
	Completion int64 // sampled tokens
	Reasoning  int64 // of those, tokens of thinking
}

// Header are the facts about a response that its first event may carry.
type Header struct {
	ID          string  // the response's id, prefix included
	Created     int64   // seconds since 1970
	Model       string  // the model name to answer with
	Fingerprint *string // nil is null
	Prompt      int64   // tokens of the prompt
	Cached      int64   // of those from the prefix cache
	// CallID makes the id of tool call n; nil: call_ and the response's id with a counter.
	CallID func(n int) string
}

// Call gives the id of tool call n of choice c.
func (h *Header) Call(n int) string {
	if h.CallID != nil {
		return h.CallID(n)
	}
	id := h.ID
	for i := len(id) - 1; i >= 0; i-- {
		if id[i] == '-' || id[i] == '_' {
			id = id[i+1:]
			break
		}
	}
	return "call_" + id + "_" + itoa(n)
}
