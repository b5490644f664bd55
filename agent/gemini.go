package agent

import (
	"encoding/json"
	"strings"
)

// Gemini is Google's Gemini CLI. On API errors it exits with the HTTP status modulo 256 (400 gave 144), which reads like a
// signal; with 41 on authentication trouble and 53 at its own turn limit (seen with 0.61.0).
func Gemini() Adapter {
	return Adapter{
		Name: "gemini", Program: "gemini", Sessions: true, ReadOnly: true,
		Credential: Credential{Env: "GEMINI_API_KEY", Provider: "google"},
		endpoints:  []string{"google"},
		invoke:     geminiInvocation,
		decoder:    func() decoder { return &geminiDecoder{tools: make(map[string]string)} },
		finishes:   true,
	}
}

// geminiSettings choose the API key: with a base URL in the environment and no choice, the CLI exits 41.
const geminiSettings = `{"security":{"auth":{"selectedType":"gemini-api-key"}},"privacy":{"usageStatisticsEnabled":false},"general":{"enableAutoUpdate":false,"disableAutoUpdate":true},"telemetry":{"enabled":false}}
`

func geminiInvocation(t Task, _ string) (Invocation, error) {
	inv := Invocation{
		Argv:  []string{"--output-format", "stream-json", "--skip-trust"},
		Env:   []string{"NO_COLOR=1"},
		Files: []File{{Path: ".gemini/settings.json", Data: geminiSettings}},
		Stdin: t.Prompt,
	}
	if t.ReadOnly {
		inv.Argv = append(inv.Argv, "--approval-mode", "plan")
	} else {
		inv.Argv = append(inv.Argv, "--approval-mode", "yolo")
	}
	if t.Resume {
		inv.Argv = append(inv.Argv, "--resume", t.SessionID)
	} else if t.SessionID != "" {
		inv.Argv = append(inv.Argv, "--session-id", t.SessionID)
	}
	if t.Model != "" {
		inv.Argv = append(inv.Argv, "-m", t.Model)
	}
	inv.Argv = append(inv.Argv, t.Args...)
	return inv, nil
}

type geminiLine struct {
	Type       string
	SessionID  string `json:"session_id"`
	Role       string
	Content    string
	Delta      bool
	ToolName   string `json:"tool_name"`
	ToolID     string `json:"tool_id"`
	Parameters json.RawMessage
	Status     string
	Output     string
	Severity   string
	Message    string
	Error      struct {
		Type    string
		Message string
	}
	Stats struct {
		InputTokens  int64 `json:"input_tokens"`
		OutputTokens int64 `json:"output_tokens"`
		Cached       int64
		Models       map[string]struct {
			InputTokens  int64 `json:"input_tokens"`
			OutputTokens int64 `json:"output_tokens"`
			Cached       int64
		}
	}
}

type geminiDecoder struct {
	tools map[string]string // running: id to name
	edits map[string]string // running: id to path
	text  string            // of a message that comes in pieces
	busy  bool              // in a turn
}

func (d *geminiDecoder) decode(raw []byte) []Event {
	var l geminiLine
	if json.Unmarshal(raw, &l) != nil || l.Type == "" {
		return []Event{textEvent(raw)}
	}
	if l.Type == "message" && l.Role == "assistant" {
		var list []Event
		if !d.busy {
			d.busy = true
			list = append(list, Event{Kind: KindTurnStart})
		}
		if len(d.text) < maxMessage {
			d.text += l.Content
		}
		return list
	}
	var list []Event
	if d.text != "" { // anything else ends the message
		list = append(list, Event{Kind: KindMessage, Text: d.text})
		d.text = ""
	}
	switch l.Type {
	case "init":
		list = append(list, Event{Kind: KindSession, Session: l.SessionID})
	case "tool_use":
		if !d.busy {
			d.busy = true
			list = append(list, Event{Kind: KindTurnStart})
		}
		d.tools[l.ToolID] = l.ToolName
		var in struct {
			FilePath string `json:"file_path"`
		}
		if (l.ToolName == "write_file" || l.ToolName == "replace") && json.Unmarshal(l.Parameters, &in) == nil && in.FilePath != "" {
			if d.edits == nil {
				d.edits = make(map[string]string)
			}
			d.edits[l.ToolID] = in.FilePath
		}
		list = append(list, Event{Kind: KindToolStart, Tool: l.ToolName, Call: l.ToolID, Text: short(l.Parameters)})
	case "tool_result":
		d.busy = false
		e := Event{Kind: KindToolEnd, Tool: d.tools[l.ToolID], Call: l.ToolID, OK: l.Status == "success", Text: l.Error.Message}
		e.Denied = l.Error.Type == "policy_violation" || l.Error.Type == "permission_denied"
		list = append(list, e)
		if path := d.edits[l.ToolID]; path != "" && e.OK {
			list = append(list, Event{Kind: KindEdit, Path: path, OK: true})
		}
		delete(d.tools, l.ToolID)
		delete(d.edits, l.ToolID)
	case "error":
		list = append(list, Event{Kind: KindWarning, Text: l.Message})
	case "result":
		s := l.Stats
		u := Usage{Input: s.InputTokens, CachedInput: s.Cached, Output: s.OutputTokens}
		for name, m := range s.Models {
			if u.Models == nil {
				u.Models = make(map[string]ModelUsage)
			}
			u.Models[name] = ModelUsage{Input: m.InputTokens, CachedInput: m.Cached, Output: m.OutputTokens}
		}
		if l.Status != "success" {
			list = append(list, Event{Kind: KindError, Text: l.Error.Message, Status: geminiStatus(l.Error.Message)})
		}
		list = append(list, Event{Kind: KindResult, OK: l.Status == "success", Usage: &u, Total: true})
	}
	return list
}

// geminiStatus finds the status in an error of the API, which the CLI hands on as JSON text.
func geminiStatus(message string) int {
	var e struct {
		Error struct{ Code int }
	}
	if i := strings.IndexByte(message, '{'); i >= 0 && json.Unmarshal([]byte(message[i:]), &e) == nil && e.Error.Code > 0 {
		return e.Error.Code
	}
	return statusIn(message)
}
