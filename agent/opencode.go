package agent

import (
	"encoding/json"
	"regexp"
)

// OpenCode is opencode. The provider and its credential are the user's choice: both come from the configuration, by
// OPENCODE_CONFIG_CONTENT in Task.Env. It makes one more model call for a title (seen with 1.18.33).
func OpenCode() Adapter {
	return Adapter{
		Name: "opencode", Program: "opencode", Sessions: true, ReadOnly: true, Effort: true,
		endpoints: []string{"anthropic", "openai", "google"},
		invoke:    openCodeInvocation,
		decoder:   func() decoder { return new(openCodeDecoder) },
	}
}

func openCodeInvocation(t Task, _ string) (Invocation, error) {
	permission := `"allow"`
	if t.ReadOnly {
		permission = `{"edit":"deny","bash":"deny","webfetch":"deny"}`
	}
	config, err := openCodeConfig(t.Endpoint)
	if err != nil {
		return Invocation{}, err
	}
	inv := Invocation{
		Argv: []string{"run", "--format", "json"},
		Env: []string{"OPENCODE_DISABLE_MODELS_FETCH=1", "OPENCODE_DISABLE_AUTOUPDATE=1", "NO_COLOR=1",
			"OPENCODE_PERMISSION=" + permission, "OPENCODE_CONFIG_CONTENT=" + config},
		Stdin: t.Prompt,
	}
	if t.Resume { // it chooses the id of a new session itself
		inv.Argv = append(inv.Argv, "--session", t.SessionID)
	}
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "-m", t.Model)
	}
	if t.Effort != "" {
		inv.Argv = append(inv.Argv, "--variant", t.Effort)
	}
	inv.Argv = append(inv.Argv, t.Args...)
	return inv, nil
}

type openCodeLine struct {
	Type      string
	SessionID string
	Error     struct {
		Name string
		Data struct {
			Message    string
			StatusCode int
		}
	}
	Part struct {
		Text   string
		Tool   string
		CallID string
		State  struct {
			Status string
			Error  string
			Input  json.RawMessage
		}
		Reason string
		Cost   float64
		Tokens struct {
			Input, Output, Reasoning int64
			Cache                    struct{ Read, Write int64 }
		}
	}
}

type openCodeDecoder struct{ session bool }

func (d *openCodeDecoder) decode(raw []byte) []Event {
	var l openCodeLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	var list []Event
	if !d.session && l.SessionID != "" {
		d.session = true
		list = append(list, Event{Kind: KindSession, Session: l.SessionID})
	}
	p := l.Part
	switch l.Type {
	case "step_start":
		list = append(list, Event{Kind: KindTurnStart})
	case "text":
		list = append(list, Event{Kind: KindMessage, Text: p.Text})
	case "tool_use": // comes once, when it has ended
		denied := p.State.Status == "error" && openCodeDenial.MatchString(p.State.Error)
		ok := p.State.Status == "completed" && p.Tool != "invalid" // the name it gives to a call that it could not make
		list = append(list, Event{Kind: KindToolStart, Tool: p.Tool, Call: p.CallID, Text: short(p.State.Input)},
			Event{Kind: KindToolEnd, Tool: p.Tool, Call: p.CallID, OK: ok, Denied: denied, Text: p.State.Error})
		if ok && (p.Tool == "write" || p.Tool == "edit" || p.Tool == "patch") {
			if path := short(p.State.Input); path != "" {
				list = append(list, Event{Kind: KindEdit, Path: path, OK: true})
			}
		}
	case "step_finish":
		t := p.Tokens
		list = append(list, Event{Kind: KindUsage, Usage: &Usage{Input: t.Input + t.Cache.Read + t.Cache.Write, CachedInput: t.Cache.Read, Written: t.Cache.Write,
			Output: t.Output + t.Reasoning, Reasoning: t.Reasoning, ModelCalls: 1, CostUSD: p.Cost}}, Event{Kind: KindTurnEnd})
		if p.Reason == "stop" {
			list = append(list, Event{Kind: KindResult, OK: true})
		}
	case "error":
		text := l.Error.Data.Message
		if text == "" {
			text = l.Error.Name
		}
		list = append(list, Event{Kind: KindError, Text: text, Status: l.Error.Data.StatusCode})
	}
	return list
}

// openCodeDenial is how a refused tool call reads: there is no code for it.
var openCodeDenial = regexp.MustCompile(`(?i)rejected permission|rule which prevents you|permission denied by`)
