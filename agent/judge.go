package agent

import (
	"fmt"
	"strings"
	"time"
)

// Outcome is what came of a run.
type Outcome string

// Outcomes.
const (
	Succeeded     Outcome = "succeeded"
	NothingDone   Outcome = "nothing-done" // it ended well and left no change
	Denied        Outcome = "denied"       // a tool it needed was refused
	BadCredential Outcome = "credential"   // the model's credential is the problem
	CutOff        Outcome = "cut-off"      // it did not get to its end: a limit, a signal from elsewhere, a stream that broke
	Cancelled     Outcome = "cancelled"    // we were told to stop
	Failed        Outcome = "failed"
)

// Verdict is an Outcome with its reason, one line.
type Verdict struct {
	Outcome Outcome
	Reason  string
	Class   Class // of the error behind it, if there is one
}

// Stop says why Run ended an agent before it ended itself.
type Stop string

// Reasons to stop. The zero Stop means that the agent ended by itself.
const (
	StopCancelled  Stop = "cancelled"
	StopWall       Stop = "wall"       // Options.Wall passed
	StopIdle       Stop = "idle"       // nothing was heard and nothing was computed for Options.Idle
	StopTurns      Stop = "turns"      // Options.MaxTurns was reached
	StopSpent      Stop = "spent"      // Options.Spent said so
	StopCredential Stop = "credential" // the credential is no good: the CLIs would go on trying, for minutes
)

// Summary is what the events of a run come to.
type Summary struct {
	Events      int
	Turns       int
	Messages    int
	Tools       int // calls that ended
	ToolsFailed int // denied ones included
	Denied      int
	Edits       int
	Errors      int
	LastError   string // of a warning or error
	LastClass   Class
	Credential  int    // warnings and errors of that class
	Answer      string // the last message
	Finished    bool   // the CLI said that it is done
	FinishedOK  bool
	Aborted     bool // the CLI said that it was stopped

	deniedOpen bool // a denial that no successful tool followed
	errorOpen  bool // an error that no message or tool followed
	fatalCred  bool

	lastToolFailed bool
}

func (s *Summary) add(e Event) {
	s.Events++
	s.Aborted = s.Aborted || e.Aborted
	switch e.Kind {
	case KindTurnStart:
		s.Turns++
	case KindMessage:
		s.Messages++
		s.Answer = e.Text
		s.errorOpen = false
	case KindToolEnd:
		s.Tools++
		s.errorOpen = false
		s.lastToolFailed = !e.OK
		switch {
		case e.Denied:
			s.Denied++
			s.ToolsFailed++
			s.deniedOpen = true
		case e.OK:
			s.deniedOpen = false
		default:
			s.ToolsFailed++
		}
	case KindEdit:
		s.Edits++
	case KindWarning, KindError, KindText:
		if e.Kind == KindText && e.Class == "" || e.Kind == KindWarning && e.Text == "" && e.Status == 0 {
			return
		}
		if e.Kind == KindWarning && e.Denied {
			s.Denied++
			s.deniedOpen = s.deniedOpen || s.lastToolFailed
			return
		}
		if e.Class == ClassCredential && e.Kind != KindText {
			s.Credential++
			s.fatalCred = s.fatalCred || e.Kind == KindError
		}
		if (e.Kind == KindError || e.Class != "" || e.Status > 0) && !e.Aborted { // other warnings explain nothing
			s.LastError, s.LastClass = oneLine(e.Text), e.Class
			if e.Status > 0 && !strings.Contains(s.LastError, fmt.Sprint(e.Status)) {
				s.LastError = strings.TrimSpace(fmt.Sprintf("HTTP %d %s", e.Status, s.LastError))
			}
		}
		if e.Kind == KindError {
			s.Errors++
			s.errorOpen = true
		}
	case KindResult:
		s.Finished = true
		s.FinishedOK = e.OK
		if e.Text != "" && s.Answer == "" {
			s.Answer = e.Text
		}
	}
}

// Judge says what came of a run. changed says whether the work tree differs from before; it does not matter for a
// read-only task, which has to leave an answer instead.
func Judge(r Result, changed bool) Verdict {
	s := r.Summary
	last := func(prefix string) string {
		if s.LastError == "" {
			if r.Stderr != "" {
				return prefix + ": " + lastLine(r.Stderr)
			}
			return prefix
		}
		return prefix + ": " + s.LastError
	}
	switch r.Stop {
	case StopCancelled:
		return Verdict{Cancelled, "stopped on request", ""}
	case StopCredential:
		return Verdict{BadCredential, last("the model refused the credential"), ClassCredential}
	case StopWall:
		return Verdict{CutOff, fmt.Sprintf("the time limit of %v passed", r.Limits.Wall), s.LastClass}
	case StopIdle:
		reason := fmt.Sprintf("nothing was heard for %v", r.Limits.Idle)
		if last := tailOf(r.LastOutput, 200); last != "" {
			reason += fmt.Sprintf("; the last was %q", last)
		}
		return Verdict{CutOff, reason, s.LastClass}
	case StopSpent:
		return Verdict{CutOff, "what it may spend is spent", ""}
	case StopTurns:
		return Verdict{CutOff, fmt.Sprintf("the limit of %d turns was reached", r.Limits.MaxTurns), ""}
	}
	class := s.LastClass
	if class == "" {
		class = classifyProse(r.Stderr)
	}
	if r.Code != 0 {
		switch {
		case class == ClassCredential:
			return Verdict{BadCredential, last("the model refused the credential"), class}
		case r.structured && s.Turns == 0 && !s.Finished && optionWords.MatchString(r.Stderr+"\n"+r.LastOutput):
			return Verdict{Failed, fmt.Sprintf("the CLI does not know an option that it was given: it is of another version than this tool drives, or agent.args is wrong (exit %d): %s",
				r.Code, optionLine(r.Stderr+"\n"+r.LastOutput)), ClassOptions}
		case r.Code == 126 || r.Code == 127:
			return Verdict{Failed, fmt.Sprintf("the program cannot be run in the sandbox (exit %d): %s", r.Code, lastLine(r.Stderr)), ""}
		case r.Code > 128 && r.Code < 160 && !s.Finished: // Gemini exits with an HTTP status modulo 256, after its result line
			return Verdict{CutOff, fmt.Sprintf("ended by signal %d from elsewhere", r.Code-128), class}
		case s.Events == 0 && r.Stderr == "":
			return Verdict{Failed, fmt.Sprintf("exit %d after %v without a word", r.Code, r.Took.Round(time.Millisecond)), ""}
		}
		return Verdict{Failed, last(fmt.Sprintf("exit %d after %v", r.Code, r.Took.Round(time.Millisecond))), class}
	}
	switch {
	case s.Events == 0 && !changed:
		return Verdict{NothingDone, "it ended without a word and without a change", ""}
	case s.Aborted:
		return Verdict{CutOff, "the CLI says that it was stopped", ""}
	case s.Finished && !s.FinishedOK || s.errorOpen:
		if class == ClassCredential {
			return Verdict{BadCredential, last("the model refused the credential"), class}
		}
		return Verdict{Failed, last("the CLI exits 0 and reports an error"), class}
	case class == ClassCredential && !changed && s.Messages == 0:
		return Verdict{BadCredential, last("the model refused the credential"), class}
	case r.expectsEnd && !s.Finished:
		return Verdict{CutOff, "its output ends in the middle of the run", class}
	case s.Denied > 0 && (!changed || s.deniedOpen):
		return Verdict{Denied, fmt.Sprintf("%d tool calls were denied", s.Denied), ""}
	case r.ReadOnly && strings.TrimSpace(s.Answer) == "":
		return Verdict{NothingDone, "it gave no answer", ""}
	case !r.ReadOnly && !changed:
		return Verdict{NothingDone, "it ended well and changed nothing", ""}
	}
	return Verdict{Succeeded, "", ""}
}

// optionLine is the line that says so; usage follows it.
func optionLine(text string) string {
	for line := range strings.Lines(text) {
		if optionWords.MatchString(line) {
			return tailOf(line, 200)
		}
	}
	return ""
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
}

func tailOf(s string, n int) string {
	s = strings.TrimSpace(s)
	return strings.ToValidUTF8(s[max(0, len(s)-n):], "")
}
