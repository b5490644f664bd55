package sbx

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/secrets"
)

// CheckStatus is what a check of "sbx diagnose" came to.
type CheckStatus string

// What a check can come to.
const (
	CheckPass CheckStatus = "pass"
	CheckWarn CheckStatus = "warn"
	CheckFail CheckStatus = "fail"
	CheckSkip CheckStatus = "skip"
)

// Diagnosis is the engine's report on itself. It is shallow: all green does not mean that a sandbox can reach a model
// (sbx-releases#595).
type Diagnosis struct {
	Checks []Check `json:"checks"`
}

// Check is one line of a Diagnosis.
type Check struct {
	Name    string      `json:"name"` // such as "Authentication"; 7 to 13 of them, by version
	Status  CheckStatus `json:"status"`
	Message string      `json:"message,omitempty"`
	Detail  string      `json:"detail,omitempty"`
	Hint    string      `json:"hint,omitempty"`
}

// Failed returns the checks that failed.
func (d Diagnosis) Failed() []Check {
	var out []Check
	for _, check := range d.Checks {
		if check.Status == CheckFail {
			out = append(out, check)
		}
	}
	return out
}

// Check returns the check of that name.
func (d Diagnosis) Check(name string) (Check, bool) {
	for _, check := range d.Checks {
		if check.Name == name {
			return check, true
		}
	}
	return Check{}, false
}

// Diagnose runs the engine's own checks. A failed check is part of the result, not an error. Each call contacts Docker's
// servers (sbx-releases#402): do not poll it.
func (c *Client) Diagnose(ctx context.Context) (Diagnosis, error) {
	const op = "diagnose"
	args := []string{"diagnose"}
	asJSON, err := c.has(ctx, FeatureDiagnoseJSON)
	if err != nil {
		return Diagnosis{}, err
	}
	if asJSON {
		args = append(args, "-o", "json")
	}
	res, err := c.start(ctx, op, c.timeouts.Diagnose, Cmd{Args: args})
	if err != nil {
		return Diagnosis{}, err
	}
	d, err := ParseDiagnosis(res.Stdout)
	switch {
	case err != nil && res.Code != 0:
		return Diagnosis{}, c.failure(op, res, args)
	case err != nil:
		return Diagnosis{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return d, nil
}

var textCheck = regexp.MustCompile(`^\s*([✓!✗⚠–-])\s+(.+?)\s+—\s+(.*)$`)

// ParseDiagnosis reads the output of "sbx diagnose", JSON or text.
func ParseDiagnosis(out []byte) (Diagnosis, error) {
	return showing(out, readDiagnosis, checkDiagnosis)
}

func readDiagnosis(out []byte) (Diagnosis, error) {
	var d Diagnosis
	if looksJSON(out) {
		if err := decodeJSON(out, "checks", &d); err != nil {
			return Diagnosis{}, err
		}
		if len(d.Checks) == 0 {
			return Diagnosis{}, malformed("a diagnosis without checks")
		}
		for i, check := range d.Checks {
			switch status := CheckStatus(strings.ToLower(string(check.Status))); status {
			case CheckPass, CheckWarn, CheckFail, CheckSkip:
				d.Checks[i].Status = status
			default: // neither a pass nor a failure may be made of a word that nobody knows
				return Diagnosis{}, malformed("check %q came to %q", tailText(check.Name, 80), tailText(string(check.Status), 40))
			}
		}
		return d, nil
	}
	for line := range strings.Lines(clean(out)) {
		line = strings.TrimRight(line, "\n ")
		if m := textCheck.FindStringSubmatch(line); m != nil {
			status := map[string]CheckStatus{"✓": CheckPass, "!": CheckWarn, "⚠": CheckWarn, "✗": CheckFail}[m[1]]
			if status == "" {
				status = CheckSkip
			}
			d.Checks = append(d.Checks, Check{Name: m[2], Status: status, Message: m[3]})
			continue
		}
		if len(d.Checks) == 0 || !strings.HasPrefix(line, "      ") {
			continue
		}
		last := &d.Checks[len(d.Checks)-1]
		if hint, ok := strings.CutPrefix(strings.TrimSpace(line), "→"); ok {
			last.Hint = strings.TrimSpace(hint)
		} else if last.Detail == "" {
			last.Detail = strings.TrimSpace(line)
		}
	}
	if len(d.Checks) == 0 {
		return Diagnosis{}, malformed("no checks")
	}
	return d, nil
}

// DaemonState is what the engine says of its daemon.
type DaemonState struct {
	Running bool   `json:"running"`
	Status  string `json:"status"` // the engine's word
	Socket  string `json:"socket,omitempty"`
	Logs    string `json:"logs,omitempty"`
}

// DaemonStatus asks after the daemon without starting it.
func (c *Client) DaemonStatus(ctx context.Context) (DaemonState, error) {
	const op = "daemon status"
	args := []string{"daemon", "status"}
	res, err := c.start(ctx, op, c.timeouts.Version, Cmd{Args: append(slices.Clone(args), "--json")})
	if err == nil && res.Code != 0 && !looksJSON(res.Stdout) {
		if failure := c.failure(op, res, args); !errors.Is(failure, ErrRefusedFlag) {
			return DaemonState{}, failure
		}
		res, err = c.start(ctx, op, c.timeouts.Version, Cmd{Args: args})
	}
	if err != nil {
		return DaemonState{}, err
	}
	state, err := ParseDaemonState(res.Stdout)
	switch {
	case err != nil && res.Code != 0:
		return DaemonState{}, c.failure(op, res, args)
	case err != nil:
		return DaemonState{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	return state, nil
}

// ParseDaemonState reads the output of "sbx daemon status", JSON or text.
func ParseDaemonState(out []byte) (DaemonState, error) {
	return showing(out, readDaemonState, checkDaemonState)
}

func readDaemonState(out []byte) (DaemonState, error) {
	var s DaemonState
	if looksJSON(out) {
		if err := decodeJSON(out, "status", &s); err != nil {
			return DaemonState{}, err
		}
	} else {
		for line := range strings.Lines(clean(out)) {
			key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			value = strings.TrimSpace(value)
			switch key {
			case "Status":
				s.Status = value
			case "Socket":
				s.Socket = value
			case "Logs":
				s.Logs = value
			}
		}
	}
	if s.Status == "" {
		return DaemonState{}, malformed("no daemon status")
	}
	s.Running = strings.EqualFold(s.Status, "running")
	return s, nil
}

// DaemonStart starts the daemon in the background and asks it whether it runs: it has said so and exited
// (sbx-releases#258). The daemon keeps the environment of this call, proxy settings included. That it runs is success.
func (c *Client) DaemonStart(ctx context.Context) error {
	const op = "daemon start"
	if _, err := c.call(ctx, op, c.timeouts.Daemon, Cmd{Args: []string{"daemon", "start", "-d"}}); err != nil {
		state, statusErr := c.DaemonStatus(ctx)
		if statusErr == nil && state.Running {
			return nil
		}
		return err
	}
	return c.wantDaemon(ctx, op, true)
}

// DaemonStop stops the daemon and with it every sandbox of this state tree, other tools' included.
func (c *Client) DaemonStop(ctx context.Context) error {
	const op = "daemon stop"
	if _, err := c.call(ctx, op, c.timeouts.Daemon, Cmd{Args: []string{"daemon", "stop"}}); err != nil {
		state, statusErr := c.DaemonStatus(ctx)
		if statusErr == nil && !state.Running {
			return nil
		}
		return err
	}
	return c.wantDaemon(ctx, op, false)
}

// DaemonRestart restarts the daemon (sbx 0.38), which stops every sandbox of this state tree, other tools' included. Its
// message is not believed either way (sbx-releases#414). It reads back that the daemon runs, and that no sandbox runs on that ran
// before, which only the old one could do. The error matches [ErrNotApplied] if the state does not show a restart.
func (c *Client) DaemonRestart(ctx context.Context) error {
	const op = "daemon restart"
	if err := c.require(ctx, op, FeatureDaemonRestart); err != nil {
		return err
	}
	var before DaemonState
	var ran []string
	if c.readBack {
		before, _ = c.DaemonStatus(ctx) // a daemon that does not answer is a reason to restart it
		if before.Running {
			all, _ := c.List(ctx)
			ran = running(all)
		}
	}
	_, err := c.call(ctx, op, c.timeouts.Daemon, Cmd{Args: []string{"daemon", "restart"}})
	if !c.readBack || errors.Is(err, ErrPrompt) {
		return err
	}
	state, statusErr := c.DaemonStatus(ctx)
	switch {
	case statusErr == nil && state.Running && err != nil && before.Running && len(ran) == 0:
		return err // it may be the old one
	case statusErr == nil && !state.Running && err == nil:
		return notApplied(op, "daemon is "+state.Status)
	case statusErr != nil || !state.Running:
		return errors.Join(err, statusErr)
	case len(ran) == 0:
		return nil
	}
	all, listErr := c.List(ctx)
	if listErr != nil {
		return errors.Join(err, listErr)
	}
	var missing []string
	for _, name := range running(all) {
		if slices.Contains(ran, name) {
			missing = append(missing, fmt.Sprintf("sandbox %s runs on, and with it the daemon of before", name))
		}
	}
	if len(missing) > 0 && err != nil {
		return err
	}
	return notApplied(op, missing...)
}

// running gives the names of those that run.
func running(all []Sandbox) (names []string) {
	for _, s := range all {
		if s.Status == StatusRunning {
			names = append(names, s.Name)
		}
	}
	return names
}

func (c *Client) wantDaemon(ctx context.Context, op string, running bool) error {
	if !c.readBack {
		return nil
	}
	state, err := c.DaemonStatus(ctx)
	if err != nil {
		return err
	}
	if state.Running != running {
		return notApplied(op, "daemon is "+state.Status)
	}
	return nil
}

// CheckSignedIn asks whether the engine is signed in to Docker: nil if so, an error that matches [ErrNotSignedIn] if not,
// another if it could not be told. sbx-local needs no login. There is no status verb, so a listing is asked for, which
// needs the login; it may start the daemon.
func (c *Client) CheckSignedIn(ctx context.Context) error {
	if err := c.ready(ctx, "login state"); err != nil {
		return err
	}
	if v, err := c.Version(ctx); err != nil || v.IsLocal() {
		return err
	}
	_, err := c.List(ctx)
	return err
}

// Login signs in with a user name and a personal access token (sbx 0.30), which travels on standard input.
func (c *Client) Login(ctx context.Context, username string, token secrets.Value) error {
	const op = "login"
	if username == "" || strings.HasPrefix(username, "-") || token.IsZero() {
		return invalid(op, "want a user name and a token")
	}
	_, err := c.call(ctx, op, c.timeouts.Diagnose, Cmd{
		Args:  []string{"login", "--username", username, "--password-stdin"},
		Stdin: stdinOf(token), Redact: []secrets.Value{token},
	})
	if err != nil || !c.readBack {
		return err
	}
	return c.CheckSignedIn(ctx)
}

// Logout signs out, and reads back that a verb that needs the login is refused. It stops every sandbox, and the daemon, which
// the reading may start again.
func (c *Client) Logout(ctx context.Context) error {
	const op = "logout"
	if _, err := c.changeForced(ctx, op, "--yes", "logout"); err != nil || !c.readBack {
		return err
	}
	switch err := c.CheckSignedIn(ctx); {
	case errors.Is(err, ErrNotSignedIn):
		return nil
	case err != nil:
		return err
	default:
		return notApplied(op, "the engine still answers as one that is signed in")
	}
}

// Reset deletes every sandbox and image of this state tree, signs out and stops the daemon. It reads back that the engine is
// signed out, or lists no sandbox where it needs no login; the reading may start the daemon again.
func (c *Client) Reset(ctx context.Context, preserveSecrets bool) error {
	const op = "reset"
	args := []string{"reset", "--force"}
	if preserveSecrets {
		args = append(args, "--preserve-secrets")
	}
	if _, err := c.call(ctx, op, c.timeouts.Remove, Cmd{Args: args}); err != nil || !c.readBack {
		return err
	}
	v, err := c.Version(ctx)
	if err != nil {
		return err
	}
	all, err := c.List(ctx)
	switch {
	case errors.Is(err, ErrNotSignedIn):
		return nil
	case err != nil:
		return err
	}
	var missing []string
	if !v.IsLocal() {
		missing = append(missing, "the engine still answers as one that is signed in")
	}
	for _, s := range all {
		missing = append(missing, fmt.Sprintf("sandbox %s is still there", s.Name))
	}
	return notApplied(op, missing...)
}
