package encoding

import (
	"slices"
	"strings"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// recipe writes the prompt of the recipe profiles.
func (w *writer) recipe() error {
	e, conv := w.e, w.conv
	v41 := e.profile.V41()

	active := conv.ActiveTools()
	listed := make([]conversation.ToolDef, 0, len(active))
	for i := range active {
		if !active[i].Deferred {
			listed = append(listed, active[i])
		}
	}
	// A named tool that is deferred is not listed, but the prompt about tools is there.
	tooled := len(active) > 0
	hasFormat := formatText(&conv.ResponseFormat)

	msgs := w.normalise(conv.Messages)
	if (tooled || hasFormat) && (len(msgs) == 0 || msgs[0].Role != conversation.RoleSystem) {
		msgs = slices.Insert(msgs, 0, conversation.Message{Role: conversation.RoleSystem})
	}

	effort := ""
	if conv.Thinking && (len(msgs) > 0 || !v41) {
		var err error
		if effort, err = e.profile.effort(conv.Effort); err != nil {
			return err
		}
	}
	w.special(e.bos)
	if v41 && (effort != "" || len(msgs) > 0 && msgs[0].Role == conversation.RoleSystem) {
		w.special(e.system)
	}
	w.plain(effort)

	continued := false
	for i := range msgs {
		m := &msgs[i]
		previous := conversation.Role(0)
		if i > 0 {
			previous = msgs[i-1].Role
		}
		switch m.Role {
		case conversation.RoleSystem:
			if i > 0 && v41 {
				w.special(e.system)
			}
			w.parts(m.AllParts())
			if i == 0 {
				if tooled {
					w.plain("\n\n")
					w.tools(listed)
				}
				if hasFormat {
					w.plain("\n\n")
					w.format(&conv.ResponseFormat)
				}
			}
			if v41 && len(m.Tools) > 0 && (w.opts.Compat || conv.ToolChoice.Mode != conversation.ChoiceNone) {
				w.plain(updatedSchemas)
				w.schemas(m.Tools)
			}
		case conversation.RoleUser:
			w.userHeader(previous, false)
			w.parts(m.AllParts())
		case conversation.RoleTool:
			w.userHeader(previous, !v41)
			w.result(m)
		case conversation.RoleReminder:
			w.special(e.reminder)
			w.parts(m.AllParts())
		case conversation.RoleAssistant:
			last := i == len(msgs)-1
			if m.Prefix && (last || v41) {
				w.prefix(m)
				continued = last
				continue
			}
			w.special(e.assistant)
			thinking := conv.Thinking && (tooled || conv.KeepReasoning && i > 0)
			start := 0
			if thinking {
				w.special(e.think)
				start = len(w.text)
				if m.Reasoning != nil {
					w.answer(*m.Reasoning)
				}
				w.special(e.endThink)
			} else {
				w.special(e.endThink)
				start = len(w.text)
			}
			w.answer(m.Text())
			if len(m.ToolCalls) > 0 || m.ToolCalls != nil && !v41 {
				w.calls(m.ToolCalls)
			}
			w.special(e.eos)
			w.replay(m, start, thinking)
		}
	}
	if continued {
		return nil
	}
	w.special(e.assistant)
	if conv.Thinking {
		w.special(e.think)
	} else {
		w.special(e.endThink)
	}
	// With thinking the model must reason first, so the hardened prompt leaves the opener to constrained decoding.
	if conv.ForcesCall() && (!conv.Thinking || w.opts.Compat) {
		w.plain("\n\n<")
		w.special(e.dsml)
		w.plain(e.markup.block + ">\n")
		w.forced = true
	}
	return nil
}

// userHeader opens a user turn, or goes on in the one that is open. In V4 a tool result opens a new one after user text.
func (w *writer) userHeader(previous conversation.Role, resultOpens bool) {
	if previous == conversation.RoleTool || previous == conversation.RoleUser && !resultOpens {
		w.plain("\n\n")
		return
	}
	w.special(w.e.user)
}

// prefix writes the assistant message that the model goes on with: no end token.
func (w *writer) prefix(m *conversation.Message) {
	reasoning := ""
	if m.Reasoning != nil {
		reasoning = *m.Reasoning
	}
	content := m.Text()
	w.special(w.e.assistant)
	if !w.conv.Thinking {
		w.special(w.e.endThink)
		w.answer(content)
		return
	}
	w.special(w.e.think)
	w.answer(reasoning)
	if content != "" {
		w.special(w.e.endThink)
		w.answer(content)
	}
}

// normalise gives the messages as they are rendered: system messages in place, users merged, results in the order of their calls. The
// result shares no slice with the conversation that it changes.
func (w *writer) normalise(in []conversation.Message) []conversation.Message {
	v41 := w.e.profile.V41()
	msgs := make([]conversation.Message, 0, len(in)+1)
	if !v41 {
		if system := mergeSystem(in); system != nil {
			msgs = append(msgs, *system)
		}
	}
	for _, m := range in {
		if m.Role == conversation.RoleDeveloper {
			m.Role = conversation.RoleSystem
		}
		if m.Role == conversation.RoleSystem && !v41 {
			continue
		}
		if n := len(msgs); n > 0 && msgs[n-1].Role == m.Role {
			last := &msgs[n-1]
			switch {
			case m.Role == conversation.RoleUser:
				if v41 || len(last.AllParts()) > 0 && len(m.AllParts()) > 0 {
					last.Parts = concat(last.AllParts(), "\n\n", m.AllParts())
				} else {
					last.Parts = concat(last.AllParts(), "", m.AllParts())
				}
				continue
			case m.Role == conversation.RoleReminder && v41:
				if !w.opts.Compat {
					last.Parts = concat(last.AllParts(), "\n\n", m.AllParts())
				}
				continue
			}
		}
		if !v41 && len(m.ToolCalls) > 1 {
			m.ToolCalls = slices.Clone(m.ToolCalls)
			slices.SortStableFunc(m.ToolCalls, func(a, b conversation.ToolCall) int { return strings.Compare(a.ID, b.ID) })
		}
		msgs = append(msgs, m)
	}
	orderResults(msgs)
	return msgs
}

// mergeSystem joins all system messages with a blank line where both sides have text; nil when there is none.
func mergeSystem(in []conversation.Message) *conversation.Message {
	var out *conversation.Message
	for i := range in {
		m := &in[i]
		if m.Role != conversation.RoleSystem && m.Role != conversation.RoleDeveloper {
			continue
		}
		parts := m.AllParts()
		if out == nil {
			out = &conversation.Message{Role: conversation.RoleSystem, Parts: concat(parts, "", nil)}
			continue
		}
		between := "\n\n"
		if len(out.Parts) == 0 || len(parts) == 0 {
			between = ""
		}
		out.Parts = concat(out.Parts, between, parts)
	}
	return out
}

// concat gives a, the text between if it is not empty, and b in a new slice, without empty text.
func concat(a []conversation.Part, between string, b []conversation.Part) []conversation.Part {
	out := make([]conversation.Part, 0, len(a)+1+len(b))
	add := func(p conversation.Part) {
		if p.Kind != conversation.PartText || p.Text != "" {
			out = append(out, p)
		}
	}
	for _, p := range a {
		add(p)
	}
	add(conversation.TextPart(between))
	for _, p := range b {
		add(p)
	}
	return out
}

// orderResults sorts the tool messages of each run of user and tool messages by the place of their call in the latest assistant turn
// with calls; an id that is not there counts as the first. User messages keep their places.
func orderResults(msgs []conversation.Message) {
	var rank map[string]int
	for i := 0; i < len(msgs); {
		m := &msgs[i]
		if m.Role == conversation.RoleAssistant && len(m.ToolCalls) > 0 {
			rank = make(map[string]int, len(m.ToolCalls))
			for k, c := range m.ToolCalls {
				if _, ok := rank[c.ID]; !ok {
					rank[c.ID] = k
				}
			}
		}
		if m.Role != conversation.RoleUser && m.Role != conversation.RoleTool {
			i++
			continue
		}
		var slots []int
		for ; i < len(msgs) && (msgs[i].Role == conversation.RoleUser || msgs[i].Role == conversation.RoleTool); i++ {
			if msgs[i].Role == conversation.RoleTool {
				slots = append(slots, i)
			}
		}
		if len(slots) < 2 {
			continue
		}
		results := make([]conversation.Message, len(slots))
		for k, at := range slots {
			results[k] = msgs[at]
		}
		slices.SortStableFunc(results, func(a, b conversation.Message) int { return rank[a.ToolCallID] - rank[b.ToolCallID] })
		for k, at := range slots {
			msgs[at] = results[k]
		}
	}
}
