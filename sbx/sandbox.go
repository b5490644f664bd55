package sbx

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Status is what an engine says about a sandbox.
type Status string

// The known states. An engine's other words become StatusUnknown, with the word kept in [Sandbox.RawStatus].
const (
	StatusRunning Status = "running"
	StatusStopped Status = "stopped"
	StatusUnknown Status = "unknown"
)

func parseStatus(raw string) Status {
	switch s := Status(strings.ToLower(strings.TrimSpace(raw))); s {
	case StatusRunning, StatusStopped:
		return s
	}
	return StatusUnknown
}

// Sandbox is one row of the engine's listing.
type Sandbox struct {
	Name       string    `json:"name"`
	ID         string    `json:"id,omitempty"` // UUID; empty from a text listing
	Agent      string    `json:"agent"`
	Status     Status    `json:"status"`
	RawStatus  string    `json:"raw_status,omitempty"` // the engine's word, where Status is StatusUnknown
	Workspaces []string  `json:"workspaces,omitempty"`
	Ports      []Port    `json:"ports,omitempty"`
	Created    time.Time `json:"created,omitzero"`   // UTC; zero if not told
	LastUsed   time.Time `json:"last_used,omitzero"` // UTC; zero if not told (sbx 0.43)
}

// Workspace is a host path that a sandbox sees at the same path.
type Workspace struct {
	Path     string `json:"path"` // absolute
	ReadOnly bool   `json:"read_only"`
}

var validName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,61}[A-Za-z0-9]$`)

// CheckName reports whether name is one that every supported engine takes for a sandbox: 2 to 63 letters, digits, dots
// and dashes, starting and ending with a letter or digit, and not "default" (sbx 0.43). The error matches [ErrInvalid].
func CheckName(name string) error {
	if !validName.MatchString(name) || name == "default" {
		return fmt.Errorf("%w: sandbox name %q: want 2 to 63 letters, digits, dots or dashes, letter or digit at both ends, not \"default\"", ErrInvalid, name)
	}
	return nil
}

func checkNames(op string, names []string) error {
	if len(names) == 0 {
		return invalid(op, "no sandbox named")
	}
	for _, name := range names {
		if err := checkOldName(name); err != nil {
			return fmt.Errorf("sbx %s: %w", op, err)
		}
	}
	return nil
}

// checkOldName accepts what a listing may show, also from versions with other rules, as long as it cannot be read as a
// flag or a path.
func checkOldName(name string) error {
	// Wider than CheckName: older versions allowed "_" and "+" and no length limit.
	ok := name != "" && len(name) <= 255
	for i := 0; ok && i < len(name); i++ {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		ok = letter || i > 0 && (c == '.' || c == '_' || c == '+' || c == '-')
	}
	if !ok {
		return fmt.Errorf("%w: sandbox name %q", ErrInvalid, tailText(name, 300))
	}
	return nil
}

// state is the engine's word for the sandbox's state.
func (s Sandbox) state() string {
	if s.Status == StatusUnknown {
		return fmt.Sprintf("in state %q", s.RawStatus)
	}
	return string(s.Status)
}

// Stop stops sandboxes; their disks stay. It reads back that all are stopped. The error matches [ErrNotFound] if one does not
// exist.
func (c *Client) Stop(ctx context.Context, names ...string) error {
	const op = "stop"
	if err := checkNames(op, names); err != nil {
		return err
	}
	if _, err := c.call(ctx, op, c.timeouts.Stop, Cmd{Args: append([]string{"stop"}, names...)}); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, name := range names {
		switch i := slices.IndexFunc(all, func(s Sandbox) bool { return s.Name == name }); {
		case i < 0:
			missing = append(missing, fmt.Sprintf("sandbox %s is not in the listing", name))
		case all[i].Status != StatusStopped:
			missing = append(missing, fmt.Sprintf("sandbox %s is still %s", name, all[i].state()))
		}
	}
	return notApplied(op, missing...)
}
