package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/provision"
)

// progress shows a run on standard error while it goes on: a line a phase, and what the agent does in between. On a
// terminal the line of a running phase is there at once, with what was used up to now; elsewhere only finished phases are
// printed.
type progress struct {
	app *app
	// open is the phase whose line stands unfinished on the terminal.
	open    events.Phase
	started time.Time    // zero before the first event
	told    time.Time    // when it was last said how far the run is
	spent   events.Spent // up to now
}

// every is how often a run that goes on says how far it is, beside the end of each session.
const every = 15 * time.Second

func (p *progress) show(payload events.Payload) {
	if p.app.quiet {
		return
	}
	if p.started.IsZero() {
		p.started, p.told = time.Now(), time.Now()
	}
	switch e := payload.(type) {
	case events.RunStarted:
		isolation := ""
		if e.Isolation != "" {
			isolation = " (" + e.Isolation + ")"
		}
		p.line("%s: %s on %s %s%s", e.Repository, e.Agent, e.Engine, e.EngineVer, isolation)
	case events.PhaseStarted:
		if p.app.terminal() {
			fmt.Fprintf(p.app.stderr, "  %-10s …", named(e.Phase, e.Attempt))
			p.open = e.Phase
		}
	case events.PhaseEnded:
		mark, detail := "ok", e.Detail
		if e.Error != "" {
			mark, detail = "failed", ""
		}
		if p.open == e.Phase {
			fmt.Fprint(p.app.stderr, "\r")
			p.open = ""
		}
		line := fmt.Sprintf("  %-10s %6.1fs  %-6s %s", named(e.Phase, e.Attempt), e.Took.Seconds(), mark, plain(detail))
		fmt.Fprintln(p.app.stderr, strings.TrimRight(line, " "))
	case events.Resumed:
		p.line("goes on with attempt %d", max(1, e.Attempt))
		for _, c := range e.Drift {
			p.line("    configured differently today, and not used: %s is %s, and %s in this run", c.Key, plain(c.Now), plain(c.Own))
		}
		for _, c := range e.Given {
			p.line("    %s is %s from here on, and was %s", c.Key, plain(c.Now), plain(c.Own))
		}
	case events.AgentActed:
		p.acted(e)
		if time.Since(p.told) >= every {
			p.far()
		}
	case events.Spent:
		p.spent = e
		if time.Since(p.told) >= every {
			p.far()
		}
	case events.AgentEnded:
		p.told = time.Time{} // its cost comes next
	case events.Reviewed:
		p.reviewed(e)
	case events.Verified:
		p.line("    $ %s: exit %d", plain(e.Command), e.Exit)
	case events.Blocked:
		p.line("    blocked: %s sandbox → %s (%d×)", e.Role, plain(e.Host), e.Count)
	case events.Gated:
		for _, refusal := range e.Refusals {
			p.line("    refused: %s", plain(refusal))
		}
		for _, warning := range e.Warnings {
			p.line("    warning: %s", plain(warning))
		}
	case events.Tasked:
		p.line("    task: issue #%d, %s", e.Issue, plain(e.URL))
	case events.Requested:
		if e.Done {
			p.line("    request: %s: done", plain(e.What))
		} else {
			p.line("    request: %s: not done: %s", plain(e.What), short(strings.Join(e.Reasons, "; ")))
		}
	case events.Noted:
		p.line("    note: %s", plain(e.Text))
	}
}

// named is a phase with its attempt, from the second on.
func named(phase events.Phase, attempt int) string {
	if attempt > 1 {
		return fmt.Sprintf("%s %d", phase, attempt)
	}
	return string(phase)
}

// far says how far the run is.
func (p *progress) far() {
	s := p.spent
	line := fmt.Sprintf("    so far: %s, %d turns, %d tokens in, %d out, %s", time.Since(p.started).Round(time.Second), s.Turns, s.Input, s.Output, money(s))
	if s.BlockedHosts > 0 {
		line += ", " + count(s.BlockedHosts, "blocked host")
	}
	p.line("%s", line)
	p.told = time.Now()
}

func (p *progress) reviewed(e events.Reviewed) {
	verdict := "rejected"
	if e.Approved {
		verdict = "approved"
	}
	p.line("    review: %s: %s", verdict, short(e.Summary))
	for _, f := range e.Findings {
		if f.Required {
			p.line("    review: %s: %s", short(f.File), short(f.Problem))
		}
	}
}

func (p *progress) acted(e events.AgentActed) {
	switch e.Type {
	case "tool-start":
		p.line("    turn %d: %s %s", e.Turn, plain(e.Tool), short(e.Text))
	case "tool-end":
		if e.Success != nil && !*e.Success {
			p.line("    turn %d: %s failed: %s", e.Turn, plain(e.Tool), short(e.Text))
		}
	case "message":
		if e.Text != "" {
			p.line("    agent: %s", short(e.Text))
		}
	case "error", "warning":
		p.line("    %s: %s", e.Type, short(e.Text))
	}
}

// line prints a whole line, after an unfinished one if there is one.
func (p *progress) line(format string, args ...any) {
	if p.open != "" {
		fmt.Fprintln(p.app.stderr)
		p.open = ""
	}
	fmt.Fprintf(p.app.stderr, format+"\n", args...)
}

// plain makes text of a stranger fit for a terminal line: no control characters, no escapes.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) || r == '\u202e' || r == '\u2066' || r == '\u2067' {
			return ' '
		}
		return r
	}, s)
}

// short cuts text to what fits beside a phase.
func short(s string) string {
	s = strings.Join(strings.Fields(plain(s)), " ")
	if r := []rune(s); len(r) > 100 {
		return string(r[:99]) + "…"
	}
	return s
}

// money is what was spent, as far as there are prices.
func money(s events.Spent) string {
	text := fmt.Sprintf("$%.2f", s.CostUSD)
	if len(s.Unpriced) > 0 {
		text += " and what " + plain(strings.Join(s.Unpriced, ", ")) + " costs"
	}
	if s.PremiumRequests > 0 {
		text += fmt.Sprintf(" (%g premium requests)", s.PremiumRequests)
	}
	return text
}

// printResult writes what a person wants to know at the end of a run.
func printResult(w io.Writer, r loop.Result) {
	if r.Staged != nil {
		printProposal(w, *r.Staged)
	}
	tw := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	defer tw.Flush()
	row := func(name, format string, args ...any) { fmt.Fprintf(tw, name+"\t"+format+"\n", args...) }
	row("run", "%s", r.Run)
	row("outcome", "%s", r.Outcome)
	if r.Reason != "" {
		row("reason", "%s", short(r.Reason))
	}
	if d := r.Delivered; d.PullRequest != "" {
		draft := ""
		if d.Draft {
			draft = " (draft)"
		}
		row("pull request", "%s%s", d.PullRequest, draft)
	} else if d.Branch != "" {
		row("branch", "%s is pushed; no pull request yet", d.Branch)
	}
	for _, q := range r.Requests {
		switch {
		case q.Done:
			row("request", "%s: done %s", q.What, plain(q.URL))
		default:
			row("request", "%s: refused: %s", plain(q.What), short(strings.Join(q.Reasons, "; ")))
		}
	}
	if r.Agent.Outcome != "" {
		row("agent", "%s", r.Agent.Outcome)
	}
	if s := r.Spent; len(r.Sessions) > 0 {
		row("used", "%s: %d turns, %d tokens in (%d cached), %d out, %s", count(len(r.Sessions), "session"), s.Turns, s.Input, s.Cached, s.Output, money(s))
	}
	if v := r.Reviewed; v != nil && v.Approved {
		row("review", "approved: %s", short(v.Summary))
	}
	for role, strategy := range r.Strategies {
		if strategy == provision.PlainEnv {
			row("credential", "the %s's own was inside its sandbox, readable by everything there (%s)", role, strategy)
		}
	}
	var blocked []string
	for _, b := range r.Blocked {
		blocked = append(blocked, fmt.Sprintf("%s → %s (%d×)", b.Role, plain(b.Host), b.Count))
	}
	if len(blocked) == 0 {
		blocked = []string{"none"}
	}
	row("blocked hosts", "%s", strings.Join(blocked, ", "))
	var times []string
	for _, p := range r.Phases {
		times = append(times, fmt.Sprintf("%s %.1f", p.Phase, p.Took.Seconds()))
	}
	row("seconds", "%s; %.1f in all", strings.Join(times, ", "), r.Took.Round(100*time.Millisecond).Seconds())
	row("event log", "%s", r.Log)
	if e := r.EndState; e != nil && e.Unfinished {
		row("left", "%s, by an agent that did not get to its end; not delivered", count(len(e.Files), "changed file"))
	}
	if r.Work != "" {
		row("work", "kept; take it into the checkout with: git fetch %s '+refs/heads/*:refs/heads/*'", r.Work)
	}
	if r.Files != "" {
		row("files", "kept in %s; copy what is of use, but run nothing there, nor git", r.Files)
	}
	if r.Patch != "" {
		row("patch", "take it into the checkout with: git apply %s", r.Patch)
	}
	if len(r.Tampered) > 0 {
		row("look at", "these, which git runs or obeys, are not as they were: %s", plain(strings.Join(r.Tampered, ", ")))
	}
	if r.Resumable {
		raise := ""
		if r.Outcome == loop.Outcome(loop.ErrBudget) {
			raise = " --limit NAME=VALUE, with the limit that ended it"
		}
		row("go on", "sbxpair resume %s%s", r.Run, raise)
	}
	if r.Finish != "" {
		row("finish", "%s", r.Finish)
	}
	if r.Kept {
		row("kept", "the pair is still there; take it down with: sbxpair down %s", r.Run)
	}
}
