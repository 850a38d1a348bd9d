package fault

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/deepinfer-go/deepinfer/sdk/abi"
	"github.com/deepinfer-go/deepinfer/sdk/backend"
	"github.com/deepinfer-go/deepinfer/sdk/program"
)

// Rule is one parsed line.
type Rule struct {
	Ops    []string // nil = every op of the op set, but no device call
	Layer  string   // "3", "mtp.0", "" = any
	Weight string   // part of the weight's name, "" = any
	Step   int64    // -1 = any
	From   int64    // lowest step, 0 = any
	Call   int64    // n-th matching call, 0 = any
	Every  int64    // each n-th matching call, 0 = each
	Times  int64    // firings at most, 0 = no limit

	Action Action
	Scope  backend.Scope // of Error
	Code   uint32        // of Error
	Msg    string        // of Error
	Delay  time.Duration // of Delay

	text string
}

// Action is what a rule does.
type Action uint8

// Actions.
const (
	Error Action = iota
	Delay
	Hang
	Kill
)

// String is the line the rule was parsed from.
func (r Rule) String() string { return r.text }

var deviceCalls = []string{"open", "alloc", "free", "upload", "download", "prepare", "release", "sync"}

func knownOp(name string) bool {
	if slices.Contains(deviceCalls, name) {
		return true
	}
	return slices.ContainsFunc(program.Signatures[:], func(s program.Signature) bool { return s.Name == name && name != "" })
}

// Parse reads rules, one a line. All problems are reported at once, with line and column.
func Parse(text string) ([]Rule, error) {
	var rules []Rule
	var errs []error
	for n, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || trimmed[0] == '#' {
			continue
		}
		r, err := parseLine(line)
		if err != nil {
			errs = append(errs, fmt.Errorf("fault rule %d:%w", n+1, err))
			continue
		}
		rules = append(rules, r)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return rules, nil
}

type token struct {
	text   string
	quoted bool
	col    int // from 1
}

// tokens splits at blanks; a double-quoted part is one token.
func tokens(line string) ([]token, error) {
	var out []token
	for i := 0; i < len(line); {
		switch c := line[i]; {
		case c == ' ' || c == '\t' || c == '\r':
			i++
		case c == '"':
			q, err := strconv.QuotedPrefix(line[i:])
			if err != nil {
				return nil, fmt.Errorf("%d: the quoted text does not end", i+1)
			}
			s, err := strconv.Unquote(q)
			if err != nil {
				return nil, fmt.Errorf("%d: bad quoted text %s", i+1, q)
			}
			out = append(out, token{s, true, i + 1})
			i += len(q)
		default:
			j := i
			for j < len(line) && !strings.ContainsRune(" \t\r\"", rune(line[j])) {
				j++
			}
			out = append(out, token{line[i:j], false, i + 1})
			i = j
		}
	}
	return out, nil
}

func parseLine(line string) (Rule, error) {
	r := Rule{Step: -1, Code: abi.Internal, text: strings.TrimSpace(line)}
	bad := func(col int, format string, a ...any) (Rule, error) {
		return r, fmt.Errorf("%d: "+format, append([]any{col}, a...)...)
	}
	toks, err := tokens(line)
	if err != nil {
		return r, err
	}
	arrow := slices.IndexFunc(toks, func(t token) bool { return t.text == "->" && !t.quoted })
	if arrow < 0 {
		return bad(len(line)+1, "no \"->\" between condition and action")
	}
	seen := map[string]bool{}
	for _, t := range toks[:arrow] {
		key, val, ok := strings.Cut(t.text, "=")
		if !ok || val == "" || t.quoted {
			return bad(t.col, "%q is no condition; want op=, layer=, weight=, step=, step>=, call=, every= or times=", t.text)
		}
		if seen[key] {
			return bad(t.col, "%s is given twice", key)
		}
		seen[key] = true
		number := func(low int64) (int64, error) {
			n, err := strconv.ParseInt(val, 10, 64)
			if err != nil || n < low {
				return 0, fmt.Errorf("%d: %s=%s: want a whole number from %d", t.col, key, val, low)
			}
			return n, nil
		}
		var err error
		switch key {
		case "op":
			r.Ops = strings.Split(val, ",")
			for _, o := range r.Ops {
				if !knownOp(o) {
					return bad(t.col, "op=%s: no op of op set %d, and none of %s", o, abi.OpSet, strings.Join(deviceCalls, ", "))
				}
			}
		case "layer":
			if _, err := strconv.Atoi(strings.TrimPrefix(val, "mtp.")); err != nil {
				return bad(t.col, "layer=%s: want a number, or mtp.NUMBER", val)
			}
			r.Layer = val
		case "weight":
			r.Weight = val
		case "step":
			r.Step, err = number(0)
		case "step>":
			r.From, err = number(0)
		case "call":
			r.Call, err = number(1)
		case "every":
			r.Every, err = number(1)
		case "times":
			r.Times, err = number(1)
		default:
			return bad(t.col, "unknown condition %q; want op=, layer=, weight=, step=, step>=, call=, every= or times=", key)
		}
		if err != nil {
			return r, err
		}
	}
	act := toks[arrow+1:]
	if len(act) == 0 {
		return bad(len(line)+1, "no action; want error, delay, hang or kill")
	}
	want := func(n int) error {
		if len(act) > n {
			return fmt.Errorf("%d: unexpected %q after %s", act[n].col, act[n].text, act[0].text)
		}
		if len(act) < n {
			return fmt.Errorf("%d: %s is incomplete", len(line)+1, act[0].text)
		}
		return nil
	}
	switch act[0].text {
	case "error":
		if len(act) > 3 {
			code, err := strconv.ParseUint(strings.TrimPrefix(act[3].text, "code="), 10, 32)
			if !strings.HasPrefix(act[3].text, "code=") || err != nil || code < 1 || code > 16 {
				return bad(act[3].col, "%q: want code=1 to code=16", act[3].text)
			}
			r.Code = uint32(code)
			act = slices.Delete(slices.Clone(act), 3, 4)
		}
		if err := want(3); err != nil {
			return r, fmt.Errorf("%w; want error SCOPE \"text\" [code=N]", err)
		}
		for s := backend.ScopeStep; s <= backend.ScopeHost; s++ {
			if s.String() == act[1].text {
				r.Scope = s
			}
		}
		if r.Scope == 0 {
			return bad(act[1].col, "scope %q: want step, program, device or host", act[1].text)
		}
		if !act[2].quoted {
			return bad(act[2].col, "the text of an error is written in double quotes")
		}
		r.Action, r.Msg = Error, act[2].text
	case "delay":
		if err := want(2); err != nil {
			return r, err
		}
		d, err := time.ParseDuration(act[1].text)
		if err != nil || d < 0 {
			return bad(act[1].col, "%q: want a duration such as 5ms", act[1].text)
		}
		r.Action, r.Delay = Delay, d
	case "hang", "kill":
		if err := want(1); err != nil {
			return r, err
		}
		r.Action = Hang
		if act[0].text == "kill" {
			r.Action = Kill
		}
	default:
		return bad(act[0].col, "unknown action %q; want error, delay, hang or kill", act[0].text)
	}
	return r, nil
}
