package sbx

import (
	"net/netip"
	"strings"
	"unicode"
)

// This file says what a value must be to count as read, whatever layout it came from: what is a name or an id is one word
// that no command would take for a flag, and text for people holds nothing that acts on a terminal. A listing with a row
// that is not so is malformed as a whole: half a listing reads as "the rest is gone".

// isWord reports whether s is one word, of characters that show, and no flag.
func isWord(s string) bool { return s != "" && isWordOrNone(s) }

func isWordOrNone(s string) bool {
	if strings.HasPrefix(s, "-") {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c <= ' ' || c >= 0x7f {
			return c >= 0x80 && !strings.ContainsFunc(s, func(r rune) bool {
				return unicode.IsSpace(r) || unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == unicode.ReplacementChar
			})
		}
	}
	return true
}

// tidy takes from text for people what acts on a terminal, and makes it one line.
func tidy(texts ...*string) {
	for _, s := range texts {
		if strings.ContainsFunc(*s, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
			*s = strings.Join(strings.FieldsFunc(clean([]byte(*s)), func(r rune) bool { return r == '\n' || r == '\t' }), " ")
		}
	}
}

// words reports whether each of list is one.
func words(list []string) bool {
	for _, s := range list {
		if !isWord(s) {
			return false
		}
	}
	return true
}

func notRead(what, value string) error { return malformed("%s %q", what, tailText(value, 80)) }

func checkSandboxes(list []Sandbox) error {
	for i := range list {
		s := &list[i]
		tidy(&s.RawStatus, &s.Agent)
		switch {
		case checkOldName(s.Name) != nil:
			return notRead("listing has a sandbox named", s.Name)
		case !isWordOrNone(s.ID):
			return notRead("listing has a sandbox with id", s.ID)
		case strings.HasPrefix(s.Agent, "-"):
			return notRead("listing has a sandbox with agent", s.Agent)
		}
		for _, w := range s.Workspaces {
			if w == "" || w[0] == '-' || strings.ContainsFunc(w, unicode.IsControl) {
				return notRead("listing has a sandbox with workspace", w)
			}
		}
		for _, p := range s.Ports {
			if err := checkPort(p, 0); err != nil { // a stopped one has no host port yet
				return err
			}
		}
	}
	return nil
}

func checkPort(p Port, least int) error {
	_, err := netip.ParseAddr(p.HostIP)
	if p.HostIP != "" && err != nil || p.HostPort < least || p.HostPort > 65535 || !portNumber(p.SandboxPort) || !isWord(p.Protocol) {
		return notRead("published port", p.String())
	}
	return nil
}

func checkPorts(list []Port) error {
	for _, p := range list {
		if err := checkPort(p, 1); err != nil {
			return err
		}
	}
	return nil
}

func checkInspection(in Inspection) error {
	switch {
	case checkOldName(in.Name) != nil:
		return notRead("sandbox named", in.Name)
	case in.State == "":
		return malformed("description of a sandbox without its state")
	case in.Sessions < 0 || strings.HasPrefix(in.Agent, "-") || !isWordOrNone(in.ImageDigest) || !isWordOrNone(in.NetworkScope):
		return malformed("description of a sandbox")
	}
	for _, s := range in.Secrets {
		if !isWord(s.Name) {
			return notRead("sandbox with a secret named", s.Name)
		}
	}
	return nil
}

func checkPrune(r PruneReport) error {
	for _, names := range [][]string{r.Removed, r.Skipped} {
		for _, name := range names {
			if checkOldName(name) != nil {
				return notRead("sandbox named", name)
			}
		}
	}
	return nil
}

func checkRules(list []Rule) error {
	for i := range list {
		if err := checkRule(&list[i]); err != nil {
			return err
		}
	}
	return nil
}

func checkRule(r *Rule) error {
	tidy(&r.Name, &r.Policy)
	switch {
	case strings.HasPrefix(r.Name, "-") || strings.HasPrefix(r.Policy, "-"):
		return notRead("rule named", r.Name+r.Policy)
	case !isWordOrNone(r.ID):
		return notRead("rule with id", r.ID)
	case !isWord(r.ResourceType):
		return notRead("rule of type", r.ResourceType)
	case !isWordOrNone(r.Source):
		return notRead("rule from", r.Source)
	case !words(r.Resources) || !words(r.Methods):
		return notRead("rule about", strings.Join(append(append([]string{}, r.Resources...), r.Methods...), ", "))
	}
	for _, t := range r.HTTPTargets {
		if !isWord(t.Host) || !isWordOrNone(t.Path) {
			return notRead("rule about", t.Host+t.Path)
		}
	}
	return nil
}

func checkVerdict(v PolicyVerdict) error {
	if !isWordOrNone(v.Target) {
		return notRead("verdict about", v.Target)
	}
	return nil
}

func checkPolicyLog(log PolicyLog) error {
	for _, list := range [][]LogEntry{log.Blocked, log.Allowed} {
		for i := range list {
			e := &list[i]
			tidy(&e.Rule, &e.Reason)
			switch {
			case !isWord(e.Host) || !isWordOrNone(e.Proxy) || e.Count < 0:
				return notRead("entry of the policy log about", e.Host)
			case e.Sandbox != "" && checkOldName(e.Sandbox) != nil:
				return notRead("entry of the policy log for sandbox", e.Sandbox)
			}
		}
	}
	return nil
}

func checkSecrets(list []Secret) error {
	for _, s := range list {
		switch {
		case !isWordOrNone(s.Name) || !isWordOrNone(string(s.Type)):
			return notRead("secret named", s.Name)
		case s.Env != "" && !envName.MatchString(s.Env):
			return notRead("secret for variable", s.Env)
		case !isWordOrNone(s.Placeholder) || !words(s.Hosts):
			return malformed("secret for variable %q", tailText(s.Env, 80))
		}
	}
	return nil
}

func checkTemplates(list []Template) error {
	for _, t := range list {
		if !isWord(t.Repository) || !isWordOrNone(t.Tag) || !isWordOrNone(t.ID) || !isWordOrNone(t.Flavor) || t.Size < 0 {
			return notRead("image", t.Repository+":"+t.Tag)
		}
	}
	return nil
}

func checkSettings(list []Setting) error {
	for i := range list {
		s := &list[i]
		tidy(&s.Description, &s.Source)
		if !settingKey.MatchString(s.Key) || !isWordOrNone(s.Type) || !isWordOrNone(s.EnvVar) {
			return notRead("setting", s.Key)
		}
	}
	return nil
}

func checkDiagnosis(d Diagnosis) error {
	for i := range d.Checks {
		c := &d.Checks[i]
		tidy(&c.Name, &c.Message, &c.Detail, &c.Hint)
		if c.Name == "" {
			return malformed("check without a name")
		}
	}
	return nil
}

func checkDaemonState(s DaemonState) error {
	if strings.ContainsFunc(s.Status+s.Socket+s.Logs, unicode.IsControl) || strings.HasPrefix(s.Status, "-") {
		return notRead("daemon status", s.Status)
	}
	return nil
}
