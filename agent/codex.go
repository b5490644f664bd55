package agent

import (
	"encoding/json"
	"strconv"
	"strings"
)

// Codex is OpenAI's Codex CLI. Without a network it waits without end, so the limits of Run are what ends it. Its usage
// adds up over a resumed session (seen with 0.171.0).
func Codex() Adapter {
	return Adapter{
		Name: "codex", Program: "codex", Sessions: true, ReadOnly: true, Effort: true,
		Credential: Credential{Env: "CODEX_API_KEY", Provider: "openai"},
		endpoints:  []string{"openai"},
		invoke:     codexInvocation,
		decoder:    func() decoder { return codexDecoder{} },
		finishes:   true,
		countsOn:   true,
	}
}

func codexInvocation(t Task, _ string) (Invocation, error) {
	inv := Invocation{
		Argv: []string{"exec", "--json", "--skip-git-repo-check",
			// Without these it asks github.com, api.github.com, chatgpt.com and ab.chatgpt.com as well.
			"-c", "check_for_update_on_startup=false", "-c", "analytics.enabled=false", "-c", "feedback.enabled=false",
			"-c", "otel.exporter=none", "-c", "otel.metrics_exporter=none", "--disable", "plugins", "--disable", "apps"},
		Env:   []string{"NO_COLOR=1"},
		Stdin: t.Prompt,
	}
	inv.Argv = append(inv.Argv, t.Endpoint.codexFlags("CODEX_API_KEY")...)
	if t.ReadOnly {
		inv.Argv = append(inv.Argv, "-s", "read-only")
	} else {
		inv.Argv = append(inv.Argv, "--dangerously-bypass-approvals-and-sandbox")
	}
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "-m", t.Model)
	}
	if t.Effort != "" {
		inv.Argv = append(inv.Argv, "-c", "model_reasoning_effort="+strconv.Quote(t.Effort))
	}
	inv.Argv = append(inv.Argv, t.Args...)
	if t.Resume {
		inv.Argv = append(inv.Argv, "resume", t.SessionID)
	}
	inv.Argv = append(inv.Argv, "-") // the prompt is on standard input
	return inv, nil
}

type codexLine struct {
	Type     string
	ThreadID string `json:"thread_id"`
	Message  string
	Error    struct{ Message string }
	Usage    struct {
		InputTokens           int64 `json:"input_tokens"`
		CachedInputTokens     int64 `json:"cached_input_tokens"`
		OutputTokens          int64 `json:"output_tokens"`
		ReasoningOutputTokens int64 `json:"reasoning_output_tokens"`
	}
	Item struct {
		ID       string
		Type     string
		Text     string
		Message  string
		Command  string
		ExitCode *int `json:"exit_code"`
		Status   string
		Server   string
		Tool     string
		Changes  []struct{ Path, Kind string }
	}
}

type codexDecoder struct{}

func (codexDecoder) decode(raw []byte) []Event {
	var l codexLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	switch l.Type {
	case "thread.started":
		return []Event{{Kind: KindSession, Session: l.ThreadID}}
	case "turn.started":
		return []Event{{Kind: KindTurnStart}}
	case "item.started":
		switch l.Item.Type {
		case "command_execution", "mcp_tool_call", "web_search", "file_change":
			return []Event{{Kind: KindToolStart, Tool: l.Item.Type, Call: l.Item.ID, Text: l.Item.Command}}
		}
	case "item.completed":
		return codexCompleted(l)
	case "turn.completed":
		u := Usage{Input: l.Usage.InputTokens, CachedInput: l.Usage.CachedInputTokens, Output: l.Usage.OutputTokens, Reasoning: l.Usage.ReasoningOutputTokens}
		return []Event{{Kind: KindTurnEnd}, {Kind: KindResult, OK: true, Usage: &u, Total: true}}
	case "turn.failed":
		return []Event{{Kind: KindError, Text: l.Error.Message, Status: statusIn(l.Error.Message)}, {Kind: KindTurnEnd}, {Kind: KindResult}}
	case "error":
		// "Reconnecting... 2/5" while it tries again; the last word is turn.failed.
		return []Event{{Kind: KindWarning, Text: l.Message, Status: statusIn(l.Message)}}
	}
	return nil
}

func codexCompleted(l codexLine) []Event {
	i := l.Item
	switch i.Type {
	case "agent_message":
		return []Event{{Kind: KindMessage, Text: i.Text}}
	case "error":
		return []Event{{Kind: KindWarning, Text: i.Message}}
	case "command_execution", "mcp_tool_call", "web_search":
		e := Event{Kind: KindToolEnd, Tool: i.Type, Call: i.ID, Exit: i.ExitCode, OK: i.Status == "completed" || i.ExitCode != nil && *i.ExitCode == 0,
			Denied: i.Status == "declined"}
		return []Event{e}
	case "file_change":
		list := []Event{{Kind: KindToolEnd, Tool: i.Type, Call: i.ID, OK: i.Status == "completed", Denied: i.Status == "declined"}}
		for _, c := range i.Changes {
			list = append(list, Event{Kind: KindEdit, Path: c.Path, Text: c.Kind, OK: true})
		}
		return list
	}
	return nil
}

// statusIn finds an HTTP error status where the CLIs put it: at the start ("401 Unauthorized"), or after the word ("unexpected
// status 401 Unauthorized").
func statusIn(message string) int {
	if _, rest, ok := strings.Cut(message, "status "); ok {
		message = rest
	}
	if len(message) < 3 {
		return 0
	}
	n, err := strconv.Atoi(message[:3])
	if err != nil || n < 400 || n > 599 {
		return 0
	}
	return n
}
