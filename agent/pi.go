package agent

import (
	"encoding/json"
	"strings"
)

// Pi is the pi coding agent. The provider and its credential are the user's choice. In JSON mode it exits 0 after every
// model call failed: the stop reason of the last message decides (seen with 0.73.1). It has no permission system.
func Pi() Adapter {
	return Adapter{
		Name: "pi", Program: "pi", Sessions: true, ReadOnly: true, Effort: true,
		endpoints: []string{"anthropic", "openai", "google"},
		invoke:    piInvocation,
		decoder:   func() decoder { return &piDecoder{tools: make(map[string]string)} },
		finishes:  true,
	}
}

func piInvocation(t Task, _ string) (Invocation, error) {
	inv := Invocation{
		Argv:  []string{"-p", "--mode", "json"},
		Env:   []string{"PI_OFFLINE=1", "PI_TELEMETRY=0", "NO_COLOR=1"},
		Stdin: t.Prompt,
	}
	if t.Endpoint != nil {
		models, err := piModels(t.Endpoint)
		if err != nil {
			return Invocation{}, err
		}
		inv.Files = []File{{Path: ".pi/agent/models.json", Data: models}}
	}
	if t.ReadOnly {
		inv.Argv = append(inv.Argv, "--tools", "read,grep,find,ls")
	}
	if t.Resume {
		inv.Argv = append(inv.Argv, "--session", t.SessionID)
	}
	if provider, model, ok := strings.Cut(t.Model, "/"); ok {
		inv.Argv = append(inv.Argv, "--provider", provider, "--model", model)
	} else if t.Model != "" {
		inv.Argv = append(inv.Argv, "--model", t.Model)
	}
	if t.Effort != "" {
		inv.Argv = append(inv.Argv, "--thinking", t.Effort)
	}
	inv.Argv = append(inv.Argv, t.Args...)
	return inv, nil
}

type piLine struct {
	Type       string
	ID         string
	ToolCallID string
	ToolName   string
	Args       json.RawMessage
	IsError    bool
	Success    *bool
	FinalError string
	Message    struct {
		Role         string
		Model        string
		StopReason   string
		ErrorMessage string
		Content      json.RawMessage
		Usage        struct {
			Input, Output, CacheRead, CacheWrite int64
			Cost                                 struct{ Total float64 }
		}
	}
	ErrorMessage string
}

type piDecoder struct {
	tools  map[string]string // running: id to path, "" if it edits none
	failed bool              // the last answer of the model was an error
}

func (d *piDecoder) decode(raw []byte) []Event {
	var l piLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	switch l.Type {
	case "session":
		return []Event{{Kind: KindSession, Session: l.ID}}
	case "turn_start":
		return []Event{{Kind: KindTurnStart}}
	case "turn_end":
		return []Event{{Kind: KindTurnEnd}}
	case "message_end": // message_update repeats all that came so far
		return d.message(l)
	case "tool_execution_start":
		path := ""
		if l.ToolName == "write" || l.ToolName == "edit" {
			path = short(l.Args)
		}
		d.tools[l.ToolCallID] = path
		return []Event{{Kind: KindToolStart, Tool: l.ToolName, Call: l.ToolCallID, Text: short(l.Args)}}
	case "tool_execution_end":
		list := []Event{{Kind: KindToolEnd, Tool: l.ToolName, Call: l.ToolCallID, OK: !l.IsError}}
		if path := d.tools[l.ToolCallID]; path != "" && !l.IsError {
			list = append(list, Event{Kind: KindEdit, Path: path, OK: true})
		}
		delete(d.tools, l.ToolCallID)
		return list
	case "auto_retry_start":
		return []Event{{Kind: KindWarning, Text: l.ErrorMessage, Status: statusIn(l.ErrorMessage)}}
	case "auto_retry_end":
		if l.Success != nil && !*l.Success {
			d.failed = true
			return []Event{{Kind: KindError, Text: l.FinalError, Status: statusIn(l.FinalError)}}
		}
	case "agent_end":
		return []Event{{Kind: KindResult, OK: !d.failed}}
	}
	return nil
}

func (d *piDecoder) message(l piLine) []Event {
	m := l.Message
	if m.Role != "assistant" {
		return nil
	}
	var list []Event
	if text := plain(m.Content); text != "" {
		list = append(list, Event{Kind: KindMessage, Text: text})
	}
	u := m.Usage
	list = append(list, Event{Kind: KindUsage, Usage: &Usage{Input: u.Input + u.CacheRead + u.CacheWrite, CachedInput: u.CacheRead, Written: u.CacheWrite, Output: u.Output,
		ModelCalls: 1, CostUSD: u.Cost.Total}})
	d.failed = m.StopReason == "error" || m.StopReason == "aborted"
	if d.failed {
		list = append(list, Event{Kind: KindError, Text: m.ErrorMessage, Status: statusIn(m.ErrorMessage), Aborted: m.StopReason == "aborted"})
	}
	return list
}
