package provision

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/policy"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// ErrNotProven matches the error of a proof that found the pair not as planned, or could not find out.
var ErrNotProven = errors.New("the pair is not as planned")

// ErrCredential matches the error of a proof in which a host refused the credential that belongs there.
var ErrCredential = errors.New("credential refused")

// proofTimeout bounds the questions asked in one sandbox.
const proofTimeout = 60 * time.Second

// want is what a question must come back with.
type want string

const (
	wantAccepted want = "accepted" // the host answers 2xx: the credential arrived and is good
	wantBlocked  want = "blocked"  // the policy refuses the host
)

type question struct {
	name string
	url  string
	want want
}

// questions lists what is asked from inside each sandbox.
func (p Plan) questions() map[pair.Role][]question {
	at := p.gitHub()
	git := fmt.Sprintf("https://%s/%s.git/info/refs?service=git-receive-pack", at.Host, p.Repo)
	agent := []question{{"push is blocked", git, wantBlocked}, {"another host is blocked", "https://" + otherHost(p.Agent) + "/", wantBlocked}}
	github := []question{{"another host is blocked", "https://" + otherHost(p.GitHub) + "/", wantBlocked}}
	for _, own := range []struct {
		secret Binding
		list   *[]question
	}{{p.Agent.Secret, &agent}, {p.GitHub.Secret, &github}} {
		if own.secret.Check != "" {
			*own.list = append(*own.list, question{"own credential is accepted", own.secret.Check, wantAccepted})
		}
	}
	for _, host := range p.Agent.Secret.Hosts {
		if covering(p.GitHub.Allow, host) == "" {
			seen := strings.Replace(host, policy.Localhost+":", policy.HostAlias+":", 1) // what rules call the host's loopback is the sandbox itself inside
			github = append(github, question{"the model is blocked: " + seen, "https://" + seen + "/", wantBlocked})
		}
	}
	if covering(p.Agent.Allow, at.APIHost()) == "" || byPath(p.Agent, at.APIHost()) {
		agent = append(agent, question{"the repository's API is blocked", at.API + "repos/" + p.Repo, wantBlocked})
	}
	if byPath(p.GitHub, at.APIHost()) {
		github = append(github, question{"another repository's API is blocked", at.API + "repos/github/docs", wantBlocked})
	}
	return map[pair.Role][]question{pair.RoleAgent: agent, pair.RoleGitHub: github}
}

// gitHub is where the plan's GitHub is. A plan is made for a host that parses.
func (p Plan) gitHub() policy.GitHub {
	at, _ := policy.ParseGitHub(p.Host)
	return at
}

// byPath reports whether the role reaches host by path rules alone.
func byPath(s Spec, host string) bool {
	found := false
	for _, r := range s.Allow {
		if hostPart(r.Resource) == host {
			if r.Path == "" {
				return false
			}
			found = true
		}
	}
	return found
}

// otherHost names a host that exists and that the role may not reach. It has to exist: an unknown name fails where
// nothing is blocked, too.
func otherHost(s Spec) string {
	for _, host := range []string{"example.com", "example.org", "example.net"} {
		if covering(s.Allow, host) == "" {
			return host
		}
	}
	return "iana.org"
}

// Probed reports how often the proof itself asked the role's sandbox for a host that it expected to be blocked.
func (p Plan) Probed(role pair.Role, host string) int {
	n := 0
	for _, q := range p.questions()[role] {
		if u, err := url.Parse(q.url); err == nil && q.want == wantBlocked && u.Hostname() == hostPart(host) {
			n++
		}
	}
	return n
}

// probeScript asks every question given as arguments (name, URL, name, URL, …) at once, then prints what processes
// hold in their environment, for the host to search. It is fixed text: nothing is put into it.
const probeScript = `
out=$(mktemp -d) || exit 125
n=0
while [ $# -gt 0 ]; do
  n=$((n+1))
  (
    code=$(curl -sS -o "$out/$n.body" -w '%{http_code}' --max-time 20 --proto =https,http --max-redirs 0 \
      -H "$SBXPAIR_PROBE_HEADER" -H 'anthropic-version: 2023-06-01' -A sbxpair-proof "$2" 2>"$out/$n.err")
    printf '%s\t%s\t%s\t%s\t%s\n' "$1" "$?" "$code" "$(head -c 400 "$out/$n.body" 2>/dev/null | base64 | tr -d '\n')" \
      "$(head -c 300 "$out/$n.err" | base64 | tr -d '\n')" >"$out/$n.line"
  ) &
  shift 2
done
wait
cat "$out"/*.line
rm -rf "$out"
echo '-- ssh'
if command -v ssh-add >/dev/null 2>&1; then
  for s in "$SSH_AUTH_SOCK" /run/ssh-agent.sock; do
    if [ -n "$s" ] && [ -S "$s" ]; then SSH_AUTH_SOCK="$s" ssh-add -l 2>/dev/null; fi
  done
fi
echo '-- environ'
cat /proc/[0-9]*/environ 2>/dev/null | tr '\000' '\n'
exit 0
`

// Prove asks from inside the plan's sandboxes whether the pair is as planned: the own credential is accepted, the other
// role's host and any other host are blocked, no value is in any process's environment, no SSH identity is at hand.
// The evidence is returned also beside an error, which matches [ErrCredential] if a host refused the credential that belongs there, else [ErrNotProven].
func Prove(ctx context.Context, p *pair.Pair, plan Plan, values ...secrets.Value) (events.Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	asked := plan.questions()
	known := secrets.NewRedactor(values...)
	var proof [2][]events.Probe
	var errs [2]error
	var wg sync.WaitGroup
	for i, spec := range plan.Specs() {
		box := p.Agent
		if spec.Role == pair.RoleGitHub {
			box = p.GitHub
		}
		wg.Go(func() { proof[i], errs[i] = ask(ctx, box, spec, asked[box.Role], known) })
	}
	wg.Wait()
	return events.Proof{Probes: append(proof[0], proof[1]...)}, errors.Join(errs[:]...)
}

func ask(ctx context.Context, box *pair.Sandbox, spec Spec, list []question, known *secrets.Redactor) ([]events.Probe, error) {
	argv := []string{"sh", "-c", probeScript, "sh"}
	for _, q := range list {
		argv = append(argv, q.name, q.url)
	}
	res, err := box.Exec(ctx, sbx.ExecSpec{Argv: argv, Env: []sbx.EnvVar{{Name: "SBXPAIR_PROBE_HEADER", Value: spec.Secret.RequestHeader()}}})
	if err != nil {
		return nil, fmt.Errorf("prove %s: %w", box.Name, err)
	}
	if res.Code != 0 {
		return nil, fmt.Errorf("%w: the questions could not be asked in %s (exit %d): %s", ErrNotProven, box.Name, res.Code, bytes.TrimSpace(res.Stderr))
	}
	answers, rest, _ := strings.Cut(string(res.Stdout), "-- ssh\n")
	identities, _, environ := strings.Cut(rest, "-- environ\n")
	var probes []events.Probe
	var errs []error
	for _, q := range list {
		probe := events.Probe{Role: string(box.Role), Name: q.name + " (" + q.url + ")", Want: string(q.want)}
		probe.Got = answer(answers, q.name)
		probe.Passed = probe.Got == probe.Want
		if !probe.Passed {
			kind, why := ErrNotProven, ""
			if q.want == wantAccepted && strings.HasPrefix(probe.Got, "404") {
				why = " (to GitHub, a repository that a token may not see does not exist)"
			}
			if q.want == wantAccepted && (strings.HasPrefix(probe.Got, "401") || strings.HasPrefix(probe.Got, "403") || strings.HasPrefix(probe.Got, "404")) {
				kind = ErrCredential
			}
			errs = append(errs, fmt.Errorf("%w: from the %s sandbox, %s: expected %s, got %s%s", kind, box.Role, q.url, q.want, probe.Got, why))
		}
		probes = append(probes, probe)
	}
	hold := func(name string, passed bool, failure string) {
		probe := events.Probe{Role: string(box.Role), Name: name, Want: "none", Got: "none", Passed: passed}
		if !passed {
			probe.Got = failure
			errs = append(errs, fmt.Errorf("%w: %s sandbox: %s: %s", ErrNotProven, box.Role, name, failure))
		}
		probes = append(probes, probe)
	}
	hold("SSH identities", strings.TrimSpace(identities) == "", "a forwarded agent offers keys; turn it off (sbx settings set ssh.agentForwardingEnabled false)")
	hold("credential values in any process's environment", environ && !known.Contains(res.Stdout), "a real value is visible, or the environment could not be read")
	return probes, errors.Join(errs...)
}

// message is what a body says in one line: GitHub's own message, else its start.
func message(body []byte) string {
	var said struct{ Message string }
	if json.Unmarshal(body, &said) == nil && said.Message != "" {
		body = []byte(said.Message)
	} else if m := messageField.FindSubmatch(body); m != nil { // cut off in the middle
		body = m[1]
	}
	return fmt.Sprintf("%.120s", strings.Join(strings.Fields(strings.ToValidUTF8(string(body), "")), " "))
}

var messageField = regexp.MustCompile(`"message":\s*"([^"\\]*)"`)

// answer reads the line of one question: a word for the two expected outcomes, else what was seen.
func answer(lines, name string) string {
	in := bufio.NewScanner(strings.NewReader(lines))
	for in.Scan() {
		f := strings.Split(in.Text(), "\t")
		if len(f) != 5 || f[0] != name {
			continue
		}
		body, _ := base64.StdEncoding.DecodeString(f[3])
		stderr, _ := base64.StdEncoding.DecodeString(f[4])
		exit, _ := strconv.Atoi(f[1])
		status, _ := strconv.Atoi(f[2])
		switch {
		case exit == 0 && status >= 200 && status < 300:
			return string(wantAccepted)
		case sbx.IsBlockPage(status, body) || sbx.IsBlockedConnection(exit, string(stderr)):
			return string(wantBlocked)
		case exit != 0:
			return fmt.Sprintf("no answer (curl exit %d: %s)", exit, bytes.TrimSpace(stderr))
		}
		return strings.TrimSpace(fmt.Sprintf("%d %s", status, message(body)))
	}
	return "no answer"
}
