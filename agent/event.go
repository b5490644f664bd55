package agent

import (
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Kind is what an event is about.
type Kind string

// Kinds of events.
const (
	KindSession   Kind = "session"    // a session began; Session is its id
	KindTurnStart Kind = "turn-start" // the model is asked; Turn counts from 1
	KindTurnEnd   Kind = "turn-end"
	KindMessage   Kind = "message"    // the model said Text
	KindToolStart Kind = "tool-start" // Tool with Text as its input in short
	KindToolEnd   Kind = "tool-end"   // OK, or Denied, or neither
	KindEdit      Kind = "edit"       // the file Path was changed by a tool
	KindUsage     Kind = "usage"      // Usage since the last such event, or in all if Total
	KindWarning   Kind = "warning"    // something failed and is tried again
	KindError     Kind = "error"      // something failed for good
	KindResult    Kind = "result"     // the CLI says that it is done; OK is its own opinion
	KindText      Kind = "text"       // a line that is not the CLI's JSON
)

// Class sorts errors by what can be done about them.
type Class string

// Classes of errors. The zero Class is any other.
const (
	ClassCredential Class = "credential" // the credential is missing, wrong, expired or lacks a right
	ClassQuota      Class = "quota"      // nothing is left to spend
	ClassRateLimit  Class = "rate-limit" // asked too often
	ClassBlocked    Class = "blocked"    // a network rule stopped it
	ClassNetwork    Class = "network"    // the model's host cannot be reached
	ClassProvider   Class = "provider"   // the model's host failed
	ClassOptions    Class = "options"    // the CLI does not know an option that it was given: it is too old, or too new
)

// Event is one thing that an agent did. All text is the agent's, bounded, valid UTF-8, without terminal control sequences.
type Event struct {
	Kind    Kind
	Turn    int    // which turn it belongs to, 0 before the first
	Tool    string // name
	Call    string // id of a tool call
	Text    string
	Path    string
	Session string
	OK      bool
	Denied  bool
	Aborted bool // the CLI says that it was stopped
	Exit    *int // of a shell tool's command, or, in a result, of the CLI
	Status  int  // HTTP
	Class   Class
	Usage   *Usage
	Total   bool // Usage counts the whole run
}

// Usage is what a run cost.
type Usage struct {
	Input           int64 // tokens sent, cached ones included
	CachedInput     int64 // tokens of Input that came from the provider's cache
	Written         int64 // tokens of Input that went into it, where the CLI tells
	WrittenHour     int64 // tokens of Written that are kept there for an hour
	Output          int64 // tokens received, reasoning included
	Reasoning       int64 // tokens of Output
	ModelCalls      int
	PremiumRequests float64 // GitHub Copilot
	CostUSD         float64 // by the CLI's own reckoning
	Models          map[string]ModelUsage
}

// ModelUsage is the part of one model.
type ModelUsage struct {
	Input, CachedInput, Output int64
	Written, WrittenHour       int64
	Calls                      int
}

func (u *Usage) add(o Usage) {
	u.Input += o.Input
	u.CachedInput += o.CachedInput
	u.Written += o.Written
	u.WrittenHour += o.WrittenHour
	u.Output += o.Output
	u.Reasoning += o.Reasoning
	u.ModelCalls += o.ModelCalls
	u.PremiumRequests += o.PremiumRequests
	u.CostUSD += o.CostUSD
	for name, m := range o.Models {
		if u.Models == nil {
			u.Models = make(map[string]ModelUsage)
		}
		sum := u.Models[name]
		sum.Input += m.Input
		sum.CachedInput += m.CachedInput
		sum.Written += m.Written
		sum.WrittenHour += m.WrittenHour
		sum.Output += m.Output
		sum.Calls += m.Calls
		u.Models[name] = sum
	}
}

// Minus returns what u has over o.
func (u Usage) Minus(o Usage) Usage {
	u.Input = max(0, u.Input-o.Input)
	u.CachedInput = max(0, u.CachedInput-o.CachedInput)
	u.Written, u.WrittenHour = max(0, u.Written-o.Written), max(0, u.WrittenHour-o.WrittenHour)
	u.Output = max(0, u.Output-o.Output)
	u.Reasoning = max(0, u.Reasoning-o.Reasoning)
	u.ModelCalls = max(0, u.ModelCalls-o.ModelCalls)
	u.PremiumRequests = max(0, u.PremiumRequests-o.PremiumRequests)
	u.CostUSD = max(0, u.CostUSD-o.CostUSD)
	models := make(map[string]ModelUsage)
	for name, m := range u.Models {
		before := o.Models[name]
		m.Written, m.WrittenHour = max(0, m.Written-before.Written), max(0, m.WrittenHour-before.WrittenHour)
		m.Input, m.CachedInput, m.Output, m.Calls = max(0, m.Input-before.Input), max(0, m.CachedInput-before.CachedInput),
			max(0, m.Output-before.Output), max(0, m.Calls-before.Calls)
		if m != (ModelUsage{}) {
			models[name] = m
		}
	}
	u.Models = models
	return u
}

// Plus returns the sum of u and o.
func (u Usage) Plus(o Usage) Usage {
	u.Models = maps.Clone(u.Models)
	u.add(o)
	return u
}

// IsZero reports whether nothing is known.
func (u Usage) IsZero() bool {
	return u.Input == 0 && u.Output == 0 && u.ModelCalls == 0 && u.PremiumRequests == 0 && u.CostUSD == 0
}

// Bounds of text in events, in bytes.
const (
	maxMessage = 256 << 10
	maxDetail  = 2 << 10
)

// Parser reads the lines of one run. It is not safe for concurrent use.
type Parser struct {
	d    decoder // nil: every line is text
	turn int
}

// NewParser returns a parser for one run of the CLI.
func (a Adapter) NewParser() *Parser {
	if a.decoder == nil {
		return &Parser{}
	}
	return &Parser{d: a.decoder()}
}

// Line returns the events of one line of standard output. A line that is no JSON object becomes a text event; so does JSON
// that the CLI cannot have meant. It never fails: CLIs mix terminal output with their JSON (field report R220).
func (p *Parser) Line(line []byte) []Event {
	text := bytes.TrimSpace(stripTerminal(line))
	if len(text) == 0 {
		return nil
	}
	var events []Event
	switch {
	case p.d == nil:
		events = append(events, Event{Kind: KindText, Text: string(text)})
	case text[0] == '{':
		dec := json.NewDecoder(bytes.NewReader(text)) // two documents on one line have been seen
		for {
			var raw json.RawMessage
			if err := dec.Decode(&raw); err != nil {
				rest := bytes.TrimSpace(text[min(int(dec.InputOffset()), len(text)):])
				if len(rest) > 0 {
					events = append(events, textEvent(rest))
				}
				break
			}
			events = append(events, p.d.decode(raw)...)
		}
	default:
		events = append(events, textEvent(text))
	}
	for i := range events {
		e := &events[i]
		if e.Kind == KindTurnStart {
			p.turn++
		}
		e.Turn = p.turn
		limit := maxDetail
		if e.Kind == KindMessage || e.Kind == KindResult {
			limit = maxMessage
		}
		e.Text = clean(e.Text, limit)
		e.Path, e.Tool, e.Call, e.Session = clean(e.Path, 4096), clean(e.Tool, 200), clean(e.Call, 200), clean(e.Session, 200)
		if e.Class == "" && (e.Kind == KindError || e.Kind == KindWarning) {
			e.Class = classify(e.Status, e.Text)
		}
	}
	return events
}

// textEvent is a line that is not JSON. It may still say what went wrong.
func textEvent(text []byte) Event {
	return Event{Kind: KindText, Text: string(text), Class: classifyProse(string(text))}
}

// terminal are the control sequences of ECMA-48: CSI, OSC and single ESC forms.
var terminal = regexp.MustCompile(`\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]`)

func stripTerminal(b []byte) []byte {
	if bytes.IndexByte(b, 0x1b) < 0 {
		return b
	}
	return terminal.ReplaceAll(b, nil)
}

// clean makes text safe to show: valid UTF-8, no control characters but tab and line feed, at most limit bytes.
func clean(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
		for len(s) > 0 && !utf8.ValidString(s[max(0, len(s)-utf8.UTFMax):]) && !utf8.RuneStart(s[len(s)-1]) {
			s = s[:len(s)-1]
		}
	}
	s = strings.ToValidUTF8(s, "\uFFFD")
	if strings.IndexFunc(s, control) < 0 {
		return s
	}
	s = string(stripTerminal([]byte(s)))
	return strings.Map(func(r rune) rune {
		if control(r) {
			return -1
		}
		return r
	}, s)
}

func control(r rune) bool {
	return r < 0x20 && r != '\n' && r != '\t' || r == 0x7f || r >= 0x80 && r < 0xa0
}

// classify sorts an error by HTTP status, else by its text.
func classify(status int, text string) Class {
	switch {
	case status == 401:
		return ClassCredential
	case status == 402:
		return ClassQuota
	case status == 407:
		return ClassBlocked
	case status == 429:
		if quota.MatchString(text) {
			return ClassQuota
		}
		return ClassRateLimit
	case status >= 500:
		return ClassProvider
	}
	if c := classifyProse(text); c != "" {
		return c
	}
	if status == 403 {
		return ClassCredential
	}
	return ""
}

// What the CLIs and their providers say. This is the only place that reads their prose, and it only sorts.
var (
	blocked = regexp.MustCompile(`(?i)blocked by (?:network )?policy|proxy (?:connect|response).{0,40}403|CONNECT tunnel failed|tunneling socket could not be established`)
	// "401" alone is a number like any other: it counts beside a word that says what it is.
	credential = regexp.MustCompile(`(?i)no authentication information|not (?:logged|signed) in|please run /login|authentication[_ ](?:failed|error|required)|bad credentials|` +
		`invalid (?:x-)?api[ -]?key|incorrect api key|api key not valid|invalid auth method|copilot requests(?: permission)?|` +
		`\b401\b.{0,80}(?:unauthori[sz]ed|permission|token|credential)|unauthori[sz]ed.{0,20}\b401\b|token (?:has |is )?(?:expired|invalid|revoked)|missing bearer|` +
		`classic personal access tokens?.{0,40}not supported`)
	quota = regexp.MustCompile(`(?i)insufficient[_ ]quota|quota exceeded|exceeded your (?:current )?quota|credit balance is too low|premium request.{0,40}(?:limit|exhausted|used up)|out of credits`)
	rate  = regexp.MustCompile(`(?i)rate[ _-]?limit|too many requests`)
	down  = regexp.MustCompile(`(?i)ECONNREFUSED|ECONNRESET|ENOTFOUND|EAI_AGAIN|ETIMEDOUT|connection (?:error|refused|reset)|could not resolve|getaddrinfo|fetch failed|network error|stream disconnected|error sending request`)
	prov  = regexp.MustCompile(`(?i)overloaded|internal server error|service unavailable|bad gateway|gateway time-?out`)
)

// optionWords is how a CLI's parser of arguments says that it does not know one.
var optionWords = regexp.MustCompile(`(?i)(?:unknown|unrecogni[sz]ed|unexpected|invalid) (?:option|argument|flag|subcommand|command)s?\b|flag provided but not defined|no such option`)

func classifyProse(text string) Class {
	switch {
	case blocked.MatchString(text):
		return ClassBlocked
	case quota.MatchString(text):
		return ClassQuota
	case credential.MatchString(text):
		return ClassCredential
	case rate.MatchString(text):
		return ClassRateLimit
	case down.MatchString(text):
		return ClassNetwork
	case prov.MatchString(text):
		return ClassProvider
	}
	return ""
}

// short renders a tool's input for a progress line: the command or path if there is one, else the JSON.
func short(input json.RawMessage) string {
	var m map[string]any
	if json.Unmarshal(input, &m) == nil {
		for _, key := range []string{"command", "cmd", "path", "file_path", "filePath", "pattern", "query", "url"} {
			switch v := m[key].(type) {
			case string:
				return v
			case []any:
				var words []string
				for _, w := range v {
					if s, ok := w.(string); ok {
						words = append(words, s)
					}
				}
				return strings.Join(words, " ")
			}
		}
	}
	if len(m) == 0 {
		return ""
	}
	return string(input)
}
