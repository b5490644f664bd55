package sbx

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// List returns all sandboxes of the engine, other tools' included. An empty list with a nil error does not prove that
// there are none: an engine whose runtime is broken also prints one (measured on 0.38 and 0.45).
func (c *Client) List(ctx context.Context) ([]Sandbox, error) {
	const op = "ls"
	out, err := c.query(ctx, op, "ls", "--json")
	if err != nil {
		return nil, err
	}
	list, err := ParseSandboxes(out)
	if err != nil {
		return nil, fmt.Errorf("sbx %s: %w", op, err)
	}
	return list, nil
}

// Get returns the listing's row of one sandbox. The error matches [ErrNotFound] if there is none.
func (c *Client) Get(ctx context.Context, name string) (Sandbox, error) {
	all, err := c.List(ctx)
	if err != nil {
		return Sandbox{}, err
	}
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
	}
	return Sandbox{}, fmt.Errorf("sbx ls: sandbox %q %w", name, ErrNotFound)
}

// ParseSandboxes reads the output of "sbx ls", JSON or text, of every version from 0.23 on.
func ParseSandboxes(out []byte) ([]Sandbox, error) {
	return showing(out, readSandboxes, checkSandboxes)
}

func readSandboxes(out []byte) ([]Sandbox, error) {
	if !looksJSON(out) {
		return parseSandboxesText(out)
	}
	list, plain := plainListing(out)
	if !plain {
		var err error
		if list, err = decodeListing(out); err != nil {
			return nil, err
		}
	}
	for _, s := range list {
		for i, w := range s.Workspaces {
			s.Workspaces[i] = strings.TrimSuffix(w, ":ro")
		}
	}
	return list, nil
}

type portJSON struct {
	HostIP      string `json:"host_ip"`
	HostPort    int    `json:"host_port"`
	SandboxPort int    `json:"sandbox_port"`
	Protocol    string `json:"protocol"`
}

func (p portJSON) port() Port { return Port{p.HostIP, p.HostPort, p.SandboxPort, p.Protocol} }

// decodeListing reads the JSON of "sbx ls" in whatever form.
func decodeListing(out []byte) ([]Sandbox, error) {
	var doc struct {
		Sandboxes []struct {
			Name       string     `json:"name"`
			ID         string     `json:"id"`
			Agent      string     `json:"agent"`
			Status     string     `json:"status"`
			Workspaces []string   `json:"workspaces"`
			Ports      []portJSON `json:"ports"`
			CreatedAt  looseTime  `json:"created_at"`
			LastUsedAt looseTime  `json:"last_used_at"`
		} `json:"sandboxes"`
	}
	if err := decodeJSON(out, "sandboxes", &doc); err != nil {
		return nil, err
	}
	list := make([]Sandbox, 0, len(doc.Sandboxes))
	for _, row := range doc.Sandboxes {
		s := Sandbox{
			Name: row.Name, ID: row.ID, Agent: row.Agent, Status: parseStatus(row.Status), Workspaces: row.Workspaces,
			Created: row.CreatedAt.Time, LastUsed: row.LastUsedAt.Time,
		}
		if s.Status == StatusUnknown {
			s.RawStatus = row.Status
		}
		for _, p := range row.Ports {
			s.Ports = append(s.Ports, p.port())
		}
		list = append(list, s)
	}
	return list, nil
}

// looseTime is a time that may be absent, empty or in a form we do not know; it is then zero.
type looseTime struct{ time.Time }

// UnmarshalJSON never fails: a time is never worth a listing.
func (t *looseTime) UnmarshalJSON(b []byte) error {
	if parsed, err := time.Parse(time.RFC3339Nano, string(bytes.Trim(b, `"`))); err == nil {
		t.Time = parsed.UTC()
	}
	return nil
}

func sandboxTable() tableSpec {
	return tableSpec{
		columns: []column{
			{id: "name", names: []string{"SANDBOX", "NAME"}, word: true},
			{id: "agent", names: []string{"AGENT"}, word: true},
			{id: "status", names: []string{"STATUS", "STATE"}, word: true},
			{id: "ports", names: []string{"PORTS"}},
			{id: "workspace", names: []string{"WORKSPACE", "WORKSPACES"}},
		},
		must: []string{"name", "status"},
		row:  []string{"name", "status"},
	}
}

func parseSandboxesText(out []byte) ([]Sandbox, error) {
	text := clean(out)
	tables, notes, err := parseTables(text, sandboxTable())
	if err != nil {
		return nil, err
	}
	if len(tables) == 0 {
		if anyLine(notes, func(line string) bool { return strings.HasPrefix(line, "No sandboxes found") }) {
			return []Sandbox{}, nil
		}
		return nil, malformed("no sandbox listing")
	}
	list := []Sandbox{}
	for _, t := range tables {
		list = slices.Grow(list, len(t.rows))
		for _, row := range t.rows {
			name := row.text("name")
			s := Sandbox{Name: name, Agent: row.text("agent"), Status: parseStatus(row.text("status"))}
			if s.Status == StatusUnknown {
				s.RawStatus = row.text("status")
			}
			if s.Ports, err = parsePortsCell(row.text("ports")); err != nil {
				return nil, err
			}
			for _, w := range row.list("workspace") {
				s.Workspaces = append(s.Workspaces, strings.TrimSuffix(w, ":ro"))
			}
			list = append(list, s)
		}
	}
	return list, nil
}

func anyLine(lines []string, match func(string) bool) bool { return slices.ContainsFunc(lines, match) }
