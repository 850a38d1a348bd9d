package serve

import (
	"context"
	"errors"
	"fmt"

	"github.com/deepinfer-go/deepinfer/recipe/conversation"
	"github.com/deepinfer-go/deepinfer/recipe/grammar"
	"github.com/deepinfer-go/deepinfer/recipe/protocol"
)

// prepareGrammars makes the vocabulary's tables for masks.
func (m *Model) prepareGrammars() error {
	opt := grammar.VocabularyOptions{Width: m.Model.Config.VocabSize}
	for _, id := range m.Model.Generation.EOSTokenIDs {
		opt.EOS = append(opt.EOS, int32(id))
	}
	v, err := grammar.NewVocabulary(m.Tokenizer, opt)
	if err != nil {
		return fmt.Errorf("serve a model: %w", err)
	}
	m.grammars = grammar.NewCompiler(v, grammar.CompilerOptions{})
	return nil
}

// constrain gives the grammar of the answer, nil when it is free. parsing is where the prompt leaves off.
func (j *job) constrain(ctx context.Context, parsing conversation.Parsing) (*grammar.Grammar, error) {
	if j.render != nil || j.ext.IgnoreEOS || j.req.Params.IgnoreEOS { // an answer that must not end has no form
		if j.render == nil && j.req.Conversation.ResponseFormat.Kind != conversation.FormatText {
			return nil, protocol.Invalid("ignore_eos", "ignore_eos together with a response format is not supported: the format says where the answer ends").WithCode("unsupported_value")
		}
		return nil, nil
	}
	turn := grammar.TurnOf(&j.req.Conversation, &j.req.Params, j.m.Model.Config.V4())
	turn.InBlock = parsing.StartsInCalls
	turn.Thinking = parsing.Stage == conversation.StageReasoning || parsing.Stage == conversation.StageReasoningContinuation
	if !turn.Constrains() {
		return nil, nil
	}
	g, err := j.m.grammars.Compile(ctx, grammar.Spec{Kind: grammar.KindTurn, Turn: &turn})
	var bad *grammar.Error
	if !errors.As(err, &bad) {
		return g, err
	}
	param := map[string]string{"resp_": "text.format", "msg_": "output_config.format"}[j.prefix]
	if param == "" {
		param = "response_format"
	}
	if bad.Tool != "" || turn.Format.Kind == conversation.FormatText {
		param = "tools"
	}
	e := protocol.Invalid(param, "The output cannot be constrained: %s", bad.Error())
	if bad.Kind == grammar.Unsupported || bad.Kind == grammar.TooLarge || bad.Kind == grammar.Timeout {
		e.Code = "unsupported_value"
	}
	return nil, e
}
