package agent

import (
	"encoding/json"
	"strings"
)

// Claude is Claude Code. It exits 0 after tools were denied and after SIGINT, and its result line can say "success" with
// is_error set: only is_error counts (seen with 2.1.197 and 2.1.332).
func Claude() Adapter {
	return Adapter{
		Name: "claude", Program: "claude", Sessions: true, ReadOnly: true, Effort: true,
		Credential: Credential{Env: "ANTHROPIC_API_KEY", Provider: "anthropic"},
		endpoints:  []string{"anthropic"},
		invoke:     claudeInvocation,
		decoder:    func() decoder { return &claudeDecoder{tools: make(map[string]string)} },
		finishes:   true,
	}
}

func claudeInvocation(t Task, _ string) (Invocation, error) {
	inv := Invocation{
		Argv: []string{"-p", "--output-format", "stream-json", "--verbose", "--strict-mcp-config", "--setting-sources", "user"},
		Env: []string{
			"IS_SANDBOX=1", // as root it refuses --dangerously-skip-permissions without it
			"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1",
			"CLAUDE_CODE_MAX_RETRIES=4", // it tries for minutes otherwise, also after a 401
			"NO_COLOR=1",
		},
		Stdin: t.Prompt,
	}
	if t.ReadOnly {
		inv.Argv = append(inv.Argv, "--permission-mode", "default", "--tools", "Read,Grep,Glob")
	} else {
		inv.Argv = append(inv.Argv, "--dangerously-skip-permissions")
	}
	if t.Resume {
		inv.Argv = append(inv.Argv, "--resume", t.SessionID)
	} else if t.SessionID != "" {
		inv.Argv = append(inv.Argv, "--session-id", t.SessionID)
	}
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "--model", t.Model)
	}
	if t.Effort != "" {
		inv.Argv = append(inv.Argv, "--effort", t.Effort)
	}
	inv.Argv = append(inv.Argv, t.Args...)
	return inv, nil
}

// claudeUsage counts input without cached tokens; we count it with them.
type claudeUsage struct {
	InputTokens              int64 `json:"input_tokens"`
	CacheCreationInputTokens int64 `json:"cache_creation_input_tokens"`
	CacheCreation            struct {
		Hour int64 `json:"ephemeral_1h_input_tokens"`
	} `json:"cache_creation"`
	CacheReadInputTokens int64 `json:"cache_read_input_tokens"`
	OutputTokens         int64 `json:"output_tokens"`
}

func (u claudeUsage) usage(calls int) Usage {
	return Usage{Input: u.InputTokens + u.CacheCreationInputTokens + u.CacheReadInputTokens, CachedInput: u.CacheReadInputTokens,
		Written: u.CacheCreationInputTokens, WrittenHour: u.CacheCreation.Hour, Output: u.OutputTokens, ModelCalls: calls}
}

type claudeLine struct {
	Type      string
	Subtype   string
	SessionID string `json:"session_id"`
	Message   struct {
		ID      string
		Content json.RawMessage
		Usage   claudeUsage
	}
	Error             json.RawMessage
	ErrorStatus       int  `json:"error_status"`
	IsError           bool `json:"is_error"`
	Result            string
	APIErrorStatus    int     `json:"api_error_status"`
	NumTurns          int     `json:"num_turns"`
	TotalCostUSD      float64 `json:"total_cost_usd"`
	Usage             claudeUsage
	ModelUsage        map[string]struct{ InputTokens, OutputTokens, CacheReadInputTokens, CacheCreationInputTokens int64 }
	PermissionDenials []struct {
		ToolName  string `json:"tool_name"`
		ToolUseID string `json:"tool_use_id"`
	} `json:"permission_denials"`
}

type claudeBlock struct {
	Type      string
	Text      string
	ID        string
	Name      string
	Input     json.RawMessage
	ToolUseID string `json:"tool_use_id"`
	IsError   bool   `json:"is_error"`
	Content   json.RawMessage
}

type claudeDecoder struct {
	message string            // id of the last assistant message: it comes in one line per block
	tools   map[string]string // running: id to name
	edits   map[string]string // running: id to path
}

func (d *claudeDecoder) decode(raw []byte) []Event {
	var l claudeLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	switch l.Type {
	case "system":
		switch {
		case l.Subtype == "init":
			return []Event{{Kind: KindSession, Session: l.SessionID}}
		case l.ErrorStatus != 0 || len(l.Error) > 2:
			return []Event{{Kind: KindWarning, Status: l.ErrorStatus, Text: plain(l.Error)}}
		}
	case "assistant":
		return d.assistant(l)
	case "user":
		return d.results(l)
	case "result":
		return claudeResult(l)
	}
	return nil
}

func (d *claudeDecoder) assistant(l claudeLine) []Event {
	var blocks []claudeBlock
	if json.Unmarshal(l.Message.Content, &blocks) != nil {
		return nil
	}
	var list []Event
	if l.Message.ID != d.message {
		d.message = l.Message.ID
		u := l.Message.Usage.usage(1)
		list = append(list, Event{Kind: KindTurnStart}, Event{Kind: KindUsage, Usage: &u})
	}
	for _, b := range blocks {
		switch b.Type {
		case "text":
			if len(l.Error) > 2 { // an API error is shown as a message of the assistant
				list = append(list, Event{Kind: KindWarning, Text: b.Text})
			} else {
				list = append(list, Event{Kind: KindMessage, Text: b.Text})
			}
		case "tool_use":
			d.tools[b.ID] = b.Name
			if path := editPath(b); path != "" {
				if d.edits == nil {
					d.edits = make(map[string]string)
				}
				d.edits[b.ID] = path
			}
			list = append(list, Event{Kind: KindToolStart, Tool: b.Name, Call: b.ID, Text: short(b.Input)})
		}
	}
	return list
}

func editPath(b claudeBlock) string {
	switch b.Name {
	case "Write", "Edit", "MultiEdit", "NotebookEdit":
		var in struct {
			FilePath     string `json:"file_path"`
			NotebookPath string `json:"notebook_path"`
		}
		if json.Unmarshal(b.Input, &in) == nil {
			return in.FilePath + in.NotebookPath
		}
	}
	return ""
}

func (d *claudeDecoder) results(l claudeLine) []Event {
	var blocks []claudeBlock
	if json.Unmarshal(l.Message.Content, &blocks) != nil {
		return nil
	}
	var list []Event
	for _, b := range blocks {
		if b.Type != "tool_result" {
			continue
		}
		e := Event{Kind: KindToolEnd, Tool: d.tools[b.ToolUseID], Call: b.ToolUseID, OK: !b.IsError}
		if b.IsError {
			e.Text = plain(b.Content)
		}
		list = append(list, e)
		if path := d.edits[b.ToolUseID]; path != "" && e.OK {
			list = append(list, Event{Kind: KindEdit, Path: path, OK: true})
		}
		delete(d.tools, b.ToolUseID)
		delete(d.edits, b.ToolUseID)
	}
	return list
}

func claudeResult(l claudeLine) []Event {
	var list []Event
	for _, p := range l.PermissionDenials {
		list = append(list, Event{Kind: KindWarning, Denied: true, Tool: p.ToolName, Call: p.ToolUseID, Text: "permission denied"})
	}
	if l.IsError {
		text := l.Result
		if text == "" {
			text = strings.ReplaceAll(strings.TrimPrefix(l.Subtype, "error_"), "_", " ")
		}
		list = append(list, Event{Kind: KindError, Status: l.APIErrorStatus, Text: text})
	}
	u := l.Usage.usage(l.NumTurns)
	u.CostUSD = l.TotalCostUSD
	for name, m := range l.ModelUsage {
		if u.Models == nil {
			u.Models = make(map[string]ModelUsage)
		}
		u.Models[name] = ModelUsage{Input: m.InputTokens + m.CacheCreationInputTokens + m.CacheReadInputTokens, CachedInput: m.CacheReadInputTokens,
			Written: m.CacheCreationInputTokens, Output: m.OutputTokens}
	}
	return append(list, Event{Kind: KindResult, Session: l.SessionID, OK: !l.IsError, Text: l.Result, Usage: &u, Total: true})
}

// plain gives the text of a value that is a string, a list of text blocks, or something else.
func plain(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	var blocks []struct{ Text string }
	if json.Unmarshal(raw, &blocks) == nil {
		var parts []string
		for _, b := range blocks {
			if b.Text != "" {
				parts = append(parts, b.Text)
			}
		}
		return strings.Join(parts, "\n")
	}
	var object struct{ Message string }
	if json.Unmarshal(raw, &object) == nil && object.Message != "" {
		return object.Message
	}
	return string(raw)
}
