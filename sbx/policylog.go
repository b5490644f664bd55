package sbx

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// PolicyLog is what the engine's proxy saw, summed up for each host and rule since the daemon started.
type PolicyLog struct {
	Blocked []LogEntry `json:"blocked"`
	Allowed []LogEntry `json:"allowed"`
}

// LogEntry is one host that a sandbox talked to or tried to.
type LogEntry struct {
	Sandbox  string    `json:"sandbox"`
	Host     string    `json:"host"`  // with port where the version tells it
	Proxy    string    `json:"proxy"` // "forward" (opened), "forward-bypass" (tunnelled), "transparent", "network" (DNS), "browser-open"
	Rule     string    `json:"rule,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	LastSeen time.Time `json:"last_seen,omitzero"` // UTC; zero from text, which has no year
	Since    time.Time `json:"since,omitzero"`
	Count    int       `json:"count"`
}

// PolicyLog reads the policy log of one sandbox, or of all with "". It is kept by name: a sandbox that reuses a name
// inherits the rows of the one before.
func (c *Client) PolicyLog(ctx context.Context, sandbox string, limit int) (PolicyLog, error) {
	const op = "policy log"
	args := []string{"policy", "log"}
	if sandbox != "" {
		if err := checkNames(op, []string{sandbox}); err != nil {
			return PolicyLog{}, err
		}
		args = append(args, sandbox)
	}
	if limit > 0 {
		args = append(args, "--limit", strconv.Itoa(limit))
	}
	out, err := c.read(ctx, op, args...)
	if err != nil {
		return PolicyLog{}, err
	}
	log, err := ParsePolicyLog(out)
	if err != nil {
		return PolicyLog{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return log, nil
}

// ParsePolicyLog reads the output of "sbx policy log", JSON or text.
func ParsePolicyLog(out []byte) (PolicyLog, error) {
	return showing(out, readPolicyLog, checkPolicyLog)
}

func readPolicyLog(out []byte) (PolicyLog, error) {
	log := PolicyLog{Blocked: []LogEntry{}, Allowed: []LogEntry{}}
	if looksJSON(out) {
		type item struct {
			Host     string    `json:"host"`
			VMName   string    `json:"vm_name"`
			Proxy    string    `json:"proxy_type"`
			Rule     string    `json:"rule"`
			Reason   string    `json:"reason"`
			LastSeen looseTime `json:"last_seen"`
			Since    looseTime `json:"since"`
			Count    int       `json:"count_since"`
		}
		var doc struct {
			Blocked []item `json:"blocked_hosts"`
			Allowed []item `json:"allowed_hosts"`
		}
		if err := decodeJSON(out, "blocked_hosts", &doc); err != nil {
			return PolicyLog{}, err
		}
		if doc.Blocked == nil || doc.Allowed == nil {
			return PolicyLog{}, malformed("JSON document is no policy log, or half of one")
		}
		for _, part := range []struct {
			items []item
			into  *[]LogEntry
		}{{doc.Blocked, &log.Blocked}, {doc.Allowed, &log.Allowed}} {
			for _, i := range part.items {
				*part.into = append(*part.into, LogEntry{i.VMName, i.Host, i.Proxy, i.Rule, i.Reason, i.LastSeen.Time, i.Since.Time, i.Count})
			}
		}
		return log, nil
	}
	return parsePolicyLogText(out, log)
}

func parsePolicyLogText(out []byte, log PolicyLog) (PolicyLog, error) {
	spec := tableSpec{
		columns: []column{
			{id: "sandbox", names: []string{"SANDBOX"}, word: true}, {id: "type", names: []string{"TYPE"}, word: true},
			{id: "host", names: []string{"HOST"}, word: true}, {id: "proxy", names: []string{"PROXY"}, word: true},
			{id: "rule", names: []string{"RULE"}}, {id: "reason", names: []string{"REASON"}},
			{id: "seen", names: []string{"LAST SEEN"}}, {id: "count", names: []string{"COUNT"}, word: true},
		},
		must: []string{"sandbox", "host", "count"},
		row:  []string{"host", "count"},
	}
	// Two tables, each under a line that says which: cut there, so that each is read with its own header.
	text := clean(out)
	if said := firstSpoiling(text); said != "" {
		return PolicyLog{}, spoilt(said)
	}
	section := ""
	parts := map[string]*strings.Builder{"Blocked requests:": {}, "Allowed requests:": {}, "": {}}
	for line := range strings.Lines(text) {
		if name := strings.TrimSpace(line); parts[name] != nil && name != "" {
			section = name
			continue
		}
		parts[section].WriteString(line)
	}
	seen := false
	for name, into := range map[string]*[]LogEntry{"Blocked requests:": &log.Blocked, "Allowed requests:": &log.Allowed} {
		tables, _, err := parseTables(parts[name].String(), spec)
		if err != nil {
			return PolicyLog{}, err
		}
		for _, t := range tables {
			seen = true
			for _, row := range t.rows {
				count, err := strconv.Atoi(row.text("count"))
				if err != nil || count < 0 {
					return PolicyLog{}, malformed("a row of the policy log")
				}
				*into = append(*into, LogEntry{
					Sandbox: row.text("sandbox"), Host: row.text("host"), Proxy: row.text("proxy"),
					Rule: row.text("rule"), Reason: row.text("reason"), Count: count,
				})
			}
		}
	}
	if !seen && !strings.Contains(parts[""].String(), "No policy log entries found") {
		return PolicyLog{}, malformed("no policy log")
	}
	return log, nil
}
