package encoding

import (
	"slices"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
)

// release writes the prompt of the hf profiles. They differ from the recipe ones in who writes the header of an assistant turn (the
// message before it), in dropping the reasoning of earlier turns, and in what may stand on a message: tools, a format, a task.
func (w *writer) release() error {
	e, conv := w.e, w.conv
	v41 := e.profile.V41()
	msgs := w.releaseMessages()

	// Tools anywhere keep all reasoning: the model was trained to see why it called.
	keep := conv.KeepReasoning
	for i := range msgs {
		keep = keep || len(msgs[i].Tools) > 0
	}
	lastUser := lastUserIndex(msgs, v41)
	if conv.Thinking && !keep && !v41 {
		kept := msgs[:0:0]
		for i, m := range msgs {
			if m.Role != conversation.RoleDeveloper || i >= lastUser {
				kept = append(kept, m)
			}
		}
		msgs = kept
		lastUser = lastUserIndex(msgs, v41)
	}

	effort := ""
	if conv.Thinking && len(msgs) > 0 {
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

	for i := range msgs {
		m := &msgs[i]
		previous := conversation.Message{}
		if i > 0 {
			previous = msgs[i-1]
		}
		opens := false // whether this message can open an assistant turn after it
		switch m.Role {
		case conversation.RoleSystem:
			if i > 0 && v41 {
				w.special(e.system)
				opens = true
			}
			w.declared(m)
		case conversation.RoleDeveloper:
			w.special(e.user)
			w.declared(m)
			opens = true
		case conversation.RoleUser, conversation.RoleTool:
			joined := previous.Task == "" && (previous.Role == conversation.RoleUser || previous.Role == conversation.RoleTool)
			if joined {
				w.plain("\n\n")
			} else {
				w.special(e.user)
			}
			if m.Role == conversation.RoleTool {
				w.result(m)
			} else {
				w.parts(m.AllParts())
			}
			// A run of user and tool messages is one turn: only its end opens the next.
			opens = m.Task != "" || i+1 == len(msgs) || msgs[i+1].Role != conversation.RoleUser && msgs[i+1].Role != conversation.RoleTool
		case conversation.RoleReminder:
			w.special(e.reminder)
			w.parts(m.AllParts())
		case conversation.RoleAssistant:
			thinking := conv.Thinking && previous.Task == "" && (keep || i > lastUser)
			start := len(w.text)
			if thinking {
				if m.Reasoning != nil {
					w.answer(*m.Reasoning)
				}
				w.special(e.endThink)
			}
			w.answer(m.Text())
			if len(m.ToolCalls) > 0 {
				w.calls(m.ToolCalls)
			}
			if !m.Prefix {
				w.special(e.eos)
				w.replay(m, start, thinking)
			}
		}
		header := func() {
			w.special(e.assistant)
			if conv.Thinking && (keep || i >= lastUser) {
				w.special(e.think)
			} else {
				w.special(e.endThink)
			}
		}
		switch {
		case m.Task == conversation.TaskAction && opens:
			header()
			w.special(e.tasks[m.Task])
		case m.Task != "":
			w.special(e.tasks[m.Task])
		case opens && (i+1 == len(msgs) || msgs[i+1].Role == conversation.RoleAssistant || msgs[i+1].Role == conversation.RoleReminder):
			header()
		}
	}
	return nil
}

// declared writes the content of a system or developer message, its tools and its format.
func (w *writer) declared(m *conversation.Message) {
	w.parts(m.AllParts())
	if len(m.Tools) > 0 {
		w.plain("\n\n")
		w.tools(m.Tools)
	}
	if formatText(&m.ResponseFormat) {
		w.plain("\n\n")
		w.format(&m.ResponseFormat)
	}
}

// releaseMessages copies the messages, puts the conversation's tools and format on the first one, and orders results.
func (w *writer) releaseMessages() []conversation.Message {
	conv, v41 := w.conv, w.e.profile.V41()
	msgs := slices.Clone(conv.Messages)
	for i := range msgs {
		m := &msgs[i]
		// V4 has no header for a system message in the middle: bare text there would run on from the turn before.
		if i > 0 && m.Role == conversation.RoleSystem && !v41 && !w.opts.Compat {
			m.Role = conversation.RoleUser
			if len(m.Tools) > 0 || formatText(&m.ResponseFormat) {
				m.Role = conversation.RoleDeveloper
			}
		}
		if m.Role == conversation.RoleDeveloper && v41 {
			m.Role = conversation.RoleSystem
		}
	}
	tools := conv.ActiveTools()
	if len(tools) > 0 || formatText(&conv.ResponseFormat) {
		if len(msgs) == 0 || msgs[0].Role != conversation.RoleSystem && msgs[0].Role != conversation.RoleDeveloper {
			msgs = slices.Insert(msgs, 0, conversation.Message{Role: conversation.RoleSystem})
		}
		if len(tools) > 0 {
			msgs[0].Tools = slices.Concat(msgs[0].Tools, tools)
		}
		if formatText(&conv.ResponseFormat) {
			msgs[0].ResponseFormat = conv.ResponseFormat
		}
	}
	orderResults(msgs)
	return msgs
}

// lastUserIndex is the last message that counts as the user's, -1 when there is none. The results of tools are part of the turn that
// called them only through the messages around them: a tool message counts too.
func lastUserIndex(msgs []conversation.Message, v41 bool) int {
	for i := len(msgs) - 1; i >= 0; i-- {
		switch msgs[i].Role {
		case conversation.RoleUser, conversation.RoleTool, conversation.RoleDeveloper:
			return i
		case conversation.RoleSystem:
			if v41 && i > 0 {
				return i
			}
		}
	}
	return -1
}
