package doctor

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
)

// neutral takes out of an engine's output what is somebody's: names of sandboxes, users and machines, folders,
// repositories, ids, hosts and addresses, parts of secrets. Equal ones stay equal.
type neutral struct {
	names     []name // the longest first
	ids       map[string]string
	hosts     map[string]string
	addresses map[string]string
}

// A name is replaced where it stands by itself.
type name struct{ from, to string }

var (
	uuids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`)
	masked    = regexp.MustCompile(`[A-Za-z0-9_-]*\*{4,}[.*]*[A-Za-z0-9_-]*`) // as secret ls shows values: with their first and last letters
	emails    = regexp.MustCompile(`[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+`)
	signedIn  = regexp.MustCompile(`(username: |Signed in as )[^\]\s]+`)
	runtimes  = regexp.MustCompile(`/run/user/[0-9]+(/[^\s"':,]*)?`)
	ownPaths  = regexp.MustCompile(`/(srv|mnt|media|data|work|workspaces?|Volumes|nfs|export|net|projects|code|src)/[^\s"':,]+`)
	homes     = regexp.MustCompile(`(/home/|/Users/|(?i:[a-z]:\\+Users\\+))[^/\\\s"':]+`)
	tmps      = regexp.MustCompile(`(/private)?(/var/folders|/tmp)/[^\s"':,]+`)
	boxes     = regexp.MustCompile(`sbxpair-[a-z2-7]{12}-(agent|github)`)
	slugs     = regexp.MustCompile(`(/repos/|(?://|@|\s|["'])github\.com[/:])[A-Za-z0-9._-]+/[A-Za-z0-9._-]+`)
	hostNames = regexp.MustCompile(`([A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?\.)+[a-z]{2,}`)
	v4        = regexp.MustCompile(`[0-9]{1,3}(\.[0-9]{1,3}){3}`)
	v6        = regexp.MustCompile(`[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*`)
)

// engineWords are names of sandboxes that cannot be told from the engine's own words. They give nobody away.
const engineWords = " active agent all allow allowed app arch blocked claude client codex command copilot created custom daemon default deny denied" +
	" docker-agent env error exited false file gemini github global host hosts id inactive kind kiro local method mode name names network none null" +
	" opencode path pi policy port ports preset provider reason resource resources root rule rules running sandbox sandboxes sbx scope secret secrets" +
	" server service services session shell size state status stopped target template text time true type unknown user value version vm workspace workspaces "

// publicDomains are known to everybody who reads a fixture, and say something in it.
const publicDomains = "docker.com docker.io docker.internal github.com githubusercontent.com githubcopilot.com ghcr.io anthropic.com claude.ai openai.com" +
	" chatgpt.com googleapis.com google.com example.com example.org example.net"

// fileEndings make a name with a dot a file.
const fileEndings = " bash conf crt db exe gz json jsonl key lock log md pem sh sock socket sqlite tar toml txt yaml yml zsh "

func newNeutral(mine Mine, recordings []sbx.Recording) *neutral {
	n := &neutral{ids: map[string]string{}, hosts: map[string]string{}, addresses: map[string]string{}}
	add := func(from, to string) bool {
		known := slices.ContainsFunc(n.names, func(k name) bool { return k.from == from })
		if known || len(from) < 2 || from == "/" || strings.Contains(engineWords, " "+from+" ") {
			return false
		}
		n.names = append(n.names, name{from, to})
		if escaped, err := json.Marshal(from); err == nil && string(escaped[1:len(escaped)-1]) != from { // as JSON has it
			n.names = append(n.names, name{string(escaped[1 : len(escaped)-1]), to})
		}
		return true
	}
	add(mine.Home, "/home/dev")
	add(mine.Host, "devbox")
	if user := filepath.Base(mine.Home); mine.Home != "" && user != "dev" {
		add(user, "dev")
	}
	sandboxes, folders := 0, 0
	box := func(called string) {
		if called = strings.TrimSpace(called); boxes.MatchString(called) || strings.ContainsAny(called, " /\\=") || strings.HasPrefix(called, "-") {
			return
		}
		if add(called, fmt.Sprintf("demo-%d", sandboxes+1)) {
			sandboxes++
		}
	}
	folder := func(path string) {
		to := "/home/dev/project"
		if folders > 0 {
			to = fmt.Sprintf("%s-%d", to, folders+1)
		}
		path = strings.TrimSuffix(path, ":ro")
		if len(path) > 3 && (strings.HasPrefix(path, "/") || filepath.IsAbs(path)) && add(path, to) {
			folders++
		}
	}
	variables, rules, images := 0, 0, 0
	for _, r := range recordings {
		for _, called := range sandboxesOf(r) {
			box(called)
		}
		out := []byte(r.Stdout)
		switch r.Verb() {
		case "create", "run":
			for _, arg := range r.Args {
				folder(arg)
			}
		case "ls":
			list, _ := sbx.ParseSandboxes(out) // what cannot be read names nobody that we know of
			for _, b := range list {
				box(b.Name)
				for _, w := range b.Workspaces {
					folder(w)
				}
			}
		case "secret-ls":
			list, _ := sbx.ParseSecrets(out)
			for _, s := range list {
				box(s.Sandbox)
				if s.Env != "" && add(s.Env, fmt.Sprintf("SECRET_%d", variables+1)) {
					variables++
				}
			}
		case "policy-ls", "policy-inspect":
			list, _ := sbx.ParseRules(out)
			for _, rule := range list {
				box(rule.Sandbox)
				for _, called := range []string{rule.Name, rule.Policy} {
					if called != "" && !strings.HasPrefix(called, "default") && !uuids.MatchString(called) && !hostNames.MatchString(called) && add(called, fmt.Sprintf("rule-%d", rules+1)) {
						rules++
					}
				}
			}
		case "policy-log":
			log, _ := sbx.ParsePolicyLog(out)
			for _, e := range append(log.Blocked, log.Allowed...) {
				box(e.Sandbox)
			}
		case "template-ls":
			list, _ := sbx.ParseTemplates(out)
			for _, image := range list {
				if !strings.HasPrefix(image.Repository, "docker/") && add(image.Repository, fmt.Sprintf("team/image-%d", images+1)) {
					images++
				}
			}
		case "prune":
			var removed struct {
				Would   []struct{ Name string } `json:"would_remove"`
				Removed []struct{ Name string } `json:"removed"`
			}
			if json.Unmarshal(out, &removed) == nil {
				for _, b := range append(removed.Would, removed.Removed...) {
					box(b.Name)
				}
			}
		}
	}
	slices.SortStableFunc(n.names, func(a, b name) int { return len(b.from) - len(a.from) })
	return n
}

// sandboxesOf finds the names of sandboxes in the arguments of a call: those that a listing shows are not all there were.
func sandboxesOf(r sbx.Recording) (found []string) {
	verb := r.Verb()
	at := slices.Index(r.Args, strings.Split(verb, "-")[0])
	if at < 0 {
		return nil
	}
	positional := 0
	args := r.Args[at+1:]
	valued := []string{"-u", "--user", "-w", "--workdir", "-e", "--env"} // of exec
	for i, arg := range args {
		flag, value, joined := strings.Cut(arg, "=")
		switch {
		case i > 0 && slices.Contains(valued, args[i-1]):
		case (flag == "--name" || flag == "--sandbox") && joined:
			found = append(found, value)
		case (flag == "--name" || flag == "--sandbox") && i+1 < len(args):
			found = append(found, args[i+1])
		case strings.HasPrefix(arg, "-"):
		case verb == "rm", verb == "stop":
			found = append(found, arg)
		case verb == "inspect", verb == "exec", verb == "ports":
			if positional++; positional == 1 {
				found = append(found, arg)
			}
		case verb == "cp":
			if called, _, inside := strings.Cut(arg, ":"); inside && len(called) > 1 { // C:\x is no sandbox
				found = append(found, called)
			}
		}
	}
	return found
}

// text returns s, which the verb printed, without what is somebody's.
func (n *neutral) text(verb, s string) string {
	table := !json.Valid([]byte(s))
	swap := func(re *regexp.Regexp, to func(match string) string) {
		s = replaceAlone(s, table, first(re), func(_ string, match string, _ string) string { return to(match) })
	}
	group := func(re *regexp.Regexp, template string) {
		swap(re, func(match string) string { return re.ReplaceAllString(match, template) })
	}
	group(boxes, "demo-$1")
	group(masked, "****")
	group(emails, "dev@example.com")
	group(signedIn, "${1}dev")
	for _, k := range n.names {
		s = replaceAlone(s, table, func(rest string) (int, int) { return strings.Index(rest, k.from), len(k.from) }, func(before, match, after string) string {
			if !ends(before) || !begins(after) {
				return match
			}
			return k.to
		})
	}
	group(tmps, "/tmp/work")
	group(homes, "${1}dev")
	group(runtimes, "/run/user/1000")
	group(ownPaths, "/home/dev/files")
	group(slugs, "${1}octo/slugify")
	swap(uuids, func(id string) string { return numbered(n.ids, id, "c0ffee00-1111-4222-8333-%012d") })
	settings := strings.HasPrefix(verb, "settings") // their keys have dots
	s = replaceAlone(s, table, first(hostNames), func(before, match, after string) string {
		url := strings.HasSuffix(before, "//")
		inPath := strings.HasSuffix(before, "/") && !url
		if inPath || settings && !url || !begins(after) || !n.somebodys(match) {
			return match
		}
		return numbered(n.hosts, strings.ToLower(match), "host-%d.example.com")
	})
	swap(v4, func(text string) string {
		if a, err := netip.ParseAddr(text); err != nil || !private(a) {
			return text
		}
		return numbered(n.addresses, text, "192.0.2.%d")
	})
	swap(v6, func(text string) string {
		if a, err := netip.ParseAddr(text); err != nil || !private(a) {
			return text
		}
		return numbered(n.addresses, text, "2001:db8::%d")
	})
	return s
}

// private reports an address that tells something about somebody's network.
func private(a netip.Addr) bool {
	documentation := []string{"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"}
	for _, d := range documentation {
		if netip.MustParsePrefix(d).Contains(a) {
			return false
		}
	}
	return !a.IsLoopback() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

func numbered(seen map[string]string, what, format string) string {
	if seen[what] == "" {
		seen[what] = fmt.Sprintf(format, len(seen)+1)
	}
	return seen[what]
}

// somebodys tells the name of a host that is not public knowledge from that of a file and from a public host.
func (n *neutral) somebodys(host string) bool {
	if strings.HasPrefix(host, "com.docker.") || strings.HasPrefix(host, "default.") {
		return false
	}
	if dot := strings.LastIndexByte(host, '.'); strings.Contains(fileEndings, " "+host[dot+1:]+" ") && strings.Count(host, ".") == 1 {
		return false
	}
	for domain := range strings.FieldsSeq(publicDomains) {
		if strings.EqualFold(host, domain) || strings.HasSuffix(strings.ToLower(host), "."+domain) {
			return false
		}
	}
	return true
}

// ends and begins say that a name beside this text stands by itself.
func ends(before string) bool { return before == "" || !inName(before[len(before)-1]) }

func begins(after string) bool {
	if after == "" || !inName(after[0]) {
		return true
	}
	return after[0] == '.' && (len(after) == 1 || !inName(after[1])) // the end of a sentence
}

func inName(c byte) bool {
	return c == '-' || c == '_' || c == '.' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

// first finds the first match of re.
func first(re *regexp.Regexp) func(rest string) (at, length int) {
	return func(rest string) (int, int) {
		at := re.FindStringIndex(rest)
		if at == nil {
			return -1, 0
		}
		return at[0], at[1] - at[0]
	}
}

// replaceAlone replaces what find finds, from left to right, by what to makes of it and its surroundings. In a table the
// blanks behind it grow or shrink, to two at least, so that what stands on the right stays under its title.
func replaceAlone(s string, table bool, find func(rest string) (at, length int), to func(before, match, after string) string) string {
	var out strings.Builder
	for done := 0; ; {
		at, length := find(s[done:])
		if at < 0 || length == 0 {
			out.WriteString(s[done:])
			return out.String()
		}
		at += done
		match, after := s[at:at+length], s[at+length:]
		out.WriteString(s[done:at])
		now := to(s[:at], match, after)
		out.WriteString(now)
		done = at + length
		blanks := len(after) - len(strings.TrimLeft(after, " "))
		if !table || blanks < 2 || blanks == len(after) || after[blanks] == '\n' || now == match {
			continue
		}
		out.WriteString(strings.Repeat(" ", max(2, blanks+len(match)-len(now))))
		done += blanks
	}
}
