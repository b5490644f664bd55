package agent

import (
	"encoding/json"
	"fmt"
)

// Copilot is the GitHub Copilot CLI.
//
// Its token goes out as it is, as "Authorization: Bearer", to api.github.com and api.githubcopilot.com (no exchange), and its
// shape is checked before any request: classic tokens and words like "proxy-managed" are refused, so the placeholder has
// the shape of a fine-grained one. SIGTERM makes it exit 0 (seen with 1.0.102).
func Copilot() Adapter {
	return Adapter{
		Name: "copilot", Program: "copilot", Sessions: true, ReadOnly: true, Effort: true,
		Credential: Credential{Env: "COPILOT_GITHUB_TOKEN", Provider: "github"},
		endpoints:  []string{"openai", "anthropic"},
		invoke:     copilotInvocation,
		decoder:    func() decoder { return new(copilotDecoder) },
		usage:      copilotUsage,
		meter:      &meter{record: copilotRecord, usage: copilotCall},
		finishes:   true,
		countsOn:   true,
	}
}

func copilotInvocation(t Task, state string) (Invocation, error) {
	inv := Invocation{
		Argv: []string{"--output-format", "json", "--no-color", "--no-ask-user", "--stream", "off",
			"--disable-builtin-mcps", "--no-auto-update", "--disable-client-telemetry", "--no-remote", "--no-remote-export",
			"--log-dir", state + "/logs", "--usage-output-file", state + "/usage.json"},
		Env:       []string{"NO_COLOR=1"},
		Stdin:     t.Prompt, // without -p it reads the prompt from a stdin that is no terminal
		UsageFile: state + "/usage.json",
	}
	if t.ReadOnly {
		// A denial wins over every permission; tools that can only be denied are hidden, or the model tries them.
		inv.Argv = append(inv.Argv, "--allow-all-tools", "--allow-all-paths", "--deny-tool", "write", "--deny-tool", "shell",
			"--excluded-tools", "create", "edit", "bash", "apply_patch", "write_bash", "--no-custom-instructions")
	} else {
		inv.Argv = append(inv.Argv, "--allow-all-tools", "--allow-all-paths", "--allow-all-urls")
	}
	if t.SessionID != "" { // sets the id of a new session or resumes it
		inv.Argv = append(inv.Argv, "--session-id", t.SessionID)
	}
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "--model", t.Model)
	}
	if t.Effort != "" {
		inv.Argv = append(inv.Argv, "--reasoning-effort", t.Effort)
	}
	inv.Argv = append(inv.Argv, t.Args...)
	return inv, nil
}

// copilotLine is what we take from a line; result has its fields at the top.
type copilotLine struct {
	Type string
	Data struct {
		TurnID       string
		ToolCallID   string
		ToolName     string
		Arguments    json.RawMessage
		Content      string
		Success      bool
		Message      string
		InfoType     string
		WarningType  string
		ErrorType    string
		ErrorMessage string
		StatusCode   int
		Aborted      bool
		SessionID    string
		Error        *struct{ Message, Code string }
		FileEdits    []struct{ Path, Kind string }
		Shell        *struct{ ExitCode *int } `json:"shellExecution"`
	}
	SessionID string
	ExitCode  *int
	Usage     *struct{ PremiumRequests float64 }
}

type copilotDecoder struct{ tools map[string]string }

func (d *copilotDecoder) decode(raw []byte) []Event {
	var l copilotLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	v := &l.Data
	switch l.Type {
	case "assistant.turn_start":
		return []Event{{Kind: KindTurnStart}}
	case "assistant.turn_end":
		return []Event{{Kind: KindTurnEnd}}
	case "assistant.message":
		if v.Content != "" {
			return []Event{{Kind: KindMessage, Text: v.Content}}
		}
	case "tool.execution_start":
		if d.tools == nil {
			d.tools = make(map[string]string)
		}
		d.tools[v.ToolCallID] = v.ToolName
		return []Event{{Kind: KindToolStart, Tool: v.ToolName, Call: v.ToolCallID, Text: short(v.Arguments)}}
	case "tool.execution_complete":
		e := Event{Kind: KindToolEnd, Tool: d.tools[v.ToolCallID], Call: v.ToolCallID, OK: v.Success}
		delete(d.tools, v.ToolCallID)
		if v.Shell != nil {
			e.Exit = v.Shell.ExitCode
		}
		if v.Error != nil {
			e.Text, e.Denied = v.Error.Message, v.Error.Code == "denied"
		}
		list := []Event{e}
		for _, f := range v.FileEdits {
			list = append(list, Event{Kind: KindEdit, Path: f.Path, Text: f.Kind, OK: true})
		}
		return list
	case "model.call_finished":
		return []Event{{Kind: KindUsage, Usage: &Usage{ModelCalls: 1}}}
	case "model.call_failure":
		text := v.ErrorMessage
		if json.Valid([]byte(text)) { // the provider's error object, as text
			text = plain(json.RawMessage(text))
		}
		return []Event{{Kind: KindWarning, Status: v.StatusCode, Text: text}}
	case "session.warning":
		return []Event{{Kind: KindWarning, Text: v.Message}}
	case "session.error":
		e := Event{Kind: KindError, Status: v.StatusCode, Text: v.Message}
		if v.ErrorType == "authentication" || v.ErrorType == "authorization" {
			e.Class = ClassCredential
		}
		return []Event{e}
	case "assistant.idle":
		if v.Aborted {
			return []Event{{Kind: KindWarning, Aborted: true, Text: "the CLI was stopped"}}
		}
	case "result":
		e := Event{Kind: KindResult, Session: l.SessionID, Exit: l.ExitCode, OK: l.ExitCode != nil && *l.ExitCode == 0}
		if l.Usage != nil && l.Usage.PremiumRequests > 0 {
			e.Usage = &Usage{PremiumRequests: l.Usage.PremiumRequests}
		}
		return []Event{e}
	}
	return nil
}

// copilotUsage reads the file of --usage-output-file: the result line has no token counts.
func copilotUsage(data []byte) (Usage, error) {
	var f struct {
		TotalPremiumRequestCost float64
		ModelMetrics            map[string]struct {
			Requests struct{ Count int }
			Usage    struct{ InputTokens, OutputTokens, CacheReadTokens, CacheWriteTokens, ReasoningTokens int64 }
		}
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return Usage{}, fmt.Errorf("usage file: %w", err)
	}
	u := Usage{PremiumRequests: f.TotalPremiumRequestCost}
	for name, m := range f.ModelMetrics {
		u.add(Usage{Input: m.Usage.InputTokens, CachedInput: m.Usage.CacheReadTokens, Written: m.Usage.CacheWriteTokens, Output: m.Usage.OutputTokens,
			Reasoning: m.Usage.ReasoningTokens, ModelCalls: m.Requests.Count, Models: map[string]ModelUsage{name: {Input: m.Usage.InputTokens,
				CachedInput: m.Usage.CacheReadTokens, Written: m.Usage.CacheWriteTokens, Output: m.Usage.OutputTokens, Calls: m.Requests.Count}}})
	}
	return u, nil
}

// copilotRecord is the CLI's own log of a session: its output has no token counts while it works.
func copilotRecord(session string) (path, start string) {
	return ".copilot/session-state/" + session + "/events.jsonl", `{"type":"session.usage_record"`
}

func copilotCall(line []byte) (Usage, error) {
	var l struct {
		Data struct {
			Usage struct {
				Model                                                        string
				InputTokens, OutputTokens, CacheReadTokens, CacheWriteTokens int64
			}
		}
	}
	if err := json.Unmarshal(line, &l); err != nil {
		return Usage{}, fmt.Errorf("record of a call: %w", err)
	}
	u := l.Data.Usage
	m := ModelUsage{Input: max(0, u.InputTokens), CachedInput: max(0, u.CacheReadTokens), Written: max(0, u.CacheWriteTokens), Output: max(0, u.OutputTokens), Calls: 1}
	return Usage{Input: m.Input, CachedInput: m.CachedInput, Written: m.Written, Output: m.Output, ModelCalls: 1, Models: map[string]ModelUsage{clean(u.Model, 200): m}}, nil
}
