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

// ErrNotProven matches the error of a proof that found the pair not as planned, or got an answer that does not say.
var ErrNotProven = errors.New("the pair is not as planned")

// ErrNoProof matches the error of a proof that could not be taken: the engine brought back no answers, or not all of them. Nothing
// is known of the pair then, for it or against it, and it is not to be used.
var ErrNoProof = errors.New("the proof could not be taken")

// ErrCredential matches the error of a proof in which a host refused the credential that belongs there.
var ErrCredential = errors.New("credential refused")

// ErrPermission matches the error of a proof in which a credential is good and may not do what a run does. Such errors
// match [ErrCredential] too.
var ErrPermission = fmt.Errorf("%w: permission missing", ErrCredential)

// proofTimeout bounds the questions asked in one sandbox.
const proofTimeout = 60 * time.Second

// want is what a question must come back with.
type want string

const (
	wantAccepted want = "accepted"  // the host answers 2xx: the credential arrived and is good
	wantBlocked  want = "blocked"   // the policy refuses the host
	wantRefused  want = "refused"   // the host answers 401, 403 or 404: the credential does not do there
	wantMay      want = "permitted" // the host answers 422: it would have done it, had the request made sense
	wantTold     want = "told"      // whatever the host tells
)

// Permissions of a fine-grained token that a run needs, as GitHub's settings name them: [events.Probe] has them as Needed.
const (
	MayPush  = "Contents: read and write"
	MayPull  = "Pull requests: read and write"
	MayIssue = "Issues: read and write"
)

type question struct {
	name   string
	url    string
	want   want
	body   string // of a POST; empty: a GET
	needed string // permission without which the answer is another
	spared bool   // without it the run goes on, and says so
}

// ownCredential is the name of the question that a role's own credential answers.
const ownCredential = "own credential is accepted"

// whose is the question whose token the github sandbox's is; the agent's host tells it beside its answer to the own credential.
const whose = "whose token it is"

// questions lists what is asked from inside each sandbox. None of them changes anything.
func (p Plan) questions() map[pair.Role][]question {
	at := p.gitHub()
	git := fmt.Sprintf("https://%s/%s.git/info/refs?service=git-receive-pack", at.Host, p.Repo)
	push := git
	if p.Fork != "" {
		push = fmt.Sprintf("https://%s/%s.git/info/refs?service=git-receive-pack", at.Host, p.Fork)
	}
	pulls := at.API + "repos/" + p.Repo + "/pulls"
	agent := []question{{name: "push is blocked", url: git, want: wantBlocked}, {name: "another host is blocked", url: "https://" + otherHost(p.Agent) + "/", want: wantBlocked}}
	github := []question{
		{name: "another host is blocked", url: "https://" + otherHost(p.GitHub) + "/", want: wantBlocked},
		{name: "may push", url: push, want: wantAccepted, needed: MayPush}, // what git asks before a push; nothing is sent
		// A branch that is not there cannot be merged: whoever may open a pull request is told that, others that they may not.
		{name: "may open pull requests", url: pulls, want: wantMay, needed: MayPull,
			body: `{"title":"sbxpair asks whether it may","head":"sbxpair-no-such-branch","base":"sbxpair-no-such-branch"}`},
	}
	github = append(github, question{name: whose, url: at.API + "user", want: wantTold})
	if p.Issues != "" { // one without a title is never made
		github = append(github, question{name: "may open issues", url: at.API + "repos/" + p.Repo + "/issues", want: wantMay, needed: MayIssue, spared: p.Issues == Wanted, body: `{"title":""}`})
	}
	for _, own := range []struct {
		secret Binding
		list   *[]question
	}{{p.Agent.Secret, &agent}, {p.GitHub.Secret, &github}} {
		if own.secret.Check != "" {
			*own.list = append(*own.list, question{name: ownCredential, url: own.secret.Check, want: wantAccepted})
		}
	}
	for _, host := range p.Agent.Secret.Hosts {
		if covering(p.GitHub.Allow, host) == "" {
			seen := strings.Replace(host, policy.Localhost+":", policy.HostAlias+":", 1) // what rules call the host's loopback is the sandbox itself inside
			github = append(github, question{name: "the model is blocked: " + seen, url: "https://" + seen + "/", want: wantBlocked})
		}
	}
	if covering(p.Agent.Allow, at.APIHost()) == "" || byPath(p.Agent, at.APIHost()) {
		agent = append(agent, question{name: "the repository's API is blocked", url: at.API + "repos/" + p.Repo, want: wantBlocked})
	} else {
		// The host is open and one rule cannot tell paths apart: then the credential itself must not do.
		agent = append(agent, question{name: "the repository's API refuses a pull request", url: pulls, want: wantRefused, needed: MayPull, body: `{"title":"sbxpair asks whether it may","head":"sbxpair-no-such-branch","base":"sbxpair-no-such-branch"}`})
	}
	if byPath(p.GitHub, at.APIHost()) {
		github = append(github, question{name: "another repository's API is blocked", url: at.API + "repos/github/docs", want: wantBlocked})
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

// probeScript asks every question given as arguments (name, URL, body, name, …) at once, looks through the disk meanwhile
// if that is wanted, then prints what processes hold in their environment, for the host to search. It is fixed text:
// nothing is put into it. The credential's header goes to curl in a file: arguments can be read by every process.
const probeScript = `
umask 077
out=$(mktemp -d) || exit 125
value=$SBXPAIR_PROBE_PLACEHOLDER
if [ -n "$SBXPAIR_PROBE_VARIABLE" ]; then value=$(printenv "$SBXPAIR_PROBE_VARIABLE"); fi
printf '%s%s\n' "$SBXPAIR_PROBE_HEADER" "$value" >"$out/header"
cp "$out/header" "$out/git"
if [ -n "$SBXPAIR_PROBE_BASIC" ]; then printf 'Authorization: Basic %s\n' "$(printf 'x-access-token:%s' "$value" | base64 | tr -d '\n')" >"$out/git"; fi
if [ -n "$SBXPAIR_PROBE_DISK" ]; then
  timeout 15 find "$HOME" /etc /run /tmp /var/tmp -xdev -path "$out" -prune -o -type f -size -512 -print0 2>/dev/null |
    xargs -0 grep -HoaE '(github_pat_|gh[pousr]_|sk-|AIza)[A-Za-z0-9_.-]{16,}' 2>/dev/null | head -c 200000 >"$out/disk" &
fi
n=0
while [ $# -gt 0 ]; do
  n=$((n+1))
  (
    name=$1 url=$2 body=$3 header=header
    case "$url" in *.git/*) header=git;; esac
    set -- -sS -o "$out/$n.body" -D "$out/$n.head" -w '%{http_code}' --max-time 20 --proto =https,http --max-redirs 0 \
      -H @"$out/$header" -H 'anthropic-version: 2023-06-01' -A sbxpair-proof
    if [ -n "$body" ] && [ "$body" != - ]; then set -- "$@" -H 'Content-Type: application/json' -d "$body"; fi
    code=$(curl "$@" "$url" 2>"$out/$n.err")
    printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$name" "$?" "$code" "$(head -c 8000 "$out/$n.body" 2>/dev/null | base64 | tr -d '\n')" \
      "$(head -c 300 "$out/$n.err" | base64 | tr -d '\n')" \
      "$(grep -iE '^(github-authentication-token-expiration|x-oauth-scopes|x-accepted-github-permissions):' "$out/$n.head" 2>/dev/null | head -c 2000 | base64 | tr -d '\n')" >"$out/$n.line"
  ) &
  shift 3
done
wait
cat "$out"/*.line
echo '-- ssh'
if command -v ssh-add >/dev/null 2>&1; then
  for s in "$SSH_AUTH_SOCK" /run/ssh-agent.sock; do
    if [ -n "$s" ] && [ -S "$s" ]; then SSH_AUTH_SOCK="$s" ssh-add -l 2>/dev/null; fi
  done
fi
echo '-- disk'
cat "$out/disk" 2>/dev/null
rm -rf "$out"
echo '-- environ'
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\000' '\n'
printf '\n-- end\n'
exit 0
`

// Prove asks from inside both sandboxes whether the pair is as planned: the own credential is accepted and may do what a
// run does, the other role's host and any other host are blocked, no value is in any process's environment or command
// line, no SSH identity is at hand. fresh says that nothing has run in the pair yet: then the disks are looked through as
// well, and nothing else that has a credential's shape may be there either. The evidence is returned also beside an
// error, which matches [ErrCredential] if a host refused the credential that belongs there, [ErrNoProof] if a sandbox's answers did not come back
// whole, else [ErrNotProven].
func Prove(ctx context.Context, p *pair.Pair, plan Plan, creds Credentials, fresh bool) (events.Proof, error) {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	asked := plan.questions()
	specs := plan.Specs()
	asking := make([]inquiry, len(specs))
	errs := make([]error, len(specs))
	var wg sync.WaitGroup
	for i, spec := range specs { // of a plan for one role, the other is not there
		_, box := plan.side(p, spec.Role)
		values := []secrets.Value{creds.Agent, creds.GitHub}
		if spec.Secret.Strategy == PlainEnv { // which puts its own value there, as it was told to
			values = []secrets.Value{creds.GitHub}
		}
		asking[i] = inquiry{box: box, spec: spec, known: secrets.NewRedactor(values...), fresh: fresh}
		wg.Go(func() {
			errs[i] = pair.Caught(func() error { return asking[i].ask(ctx, asked[spec.Role]) })
		})
	}
	wg.Wait()
	var proof events.Proof
	for _, q := range asking {
		proof.Probes, proof.Notes = append(proof.Probes, q.probes...), append(proof.Notes, q.notes...)
		if q.owner != "" {
			if proof.Owners == nil {
				proof.Owners = map[string]string{}
			}
			proof.Owners[string(q.spec.Role)] = q.owner
		}
	}
	return proof, errors.Join(errs...)
}

// of is the role's own credential.
func (c Credentials) of(role pair.Role) secrets.Value {
	if role == pair.RoleGitHub {
		return c.GitHub
	}
	return c.Agent
}

// An inquiry is the questions to one sandbox and what came of them.
type inquiry struct {
	box    *pair.Sandbox
	spec   Spec
	known  *secrets.Redactor // of what must not be inside
	fresh  bool
	probes []events.Probe
	notes  []string
	owner  string // of the token
	errs   []error
}

// told is what an inquiry brings back.
type told struct {
	answers    string // a line for each question
	identities string // of SSH agents
	disk       string // what has a credential's shape there, as PATH:TEXT
	environ    string // and command lines, of all processes
}

// run asks in the sandbox.
func (q *inquiry) run(ctx context.Context, list []question) (told, error) {
	argv := append(q.spec.Launch(), "sh", "-c", probeScript, "sh")
	for _, ask := range list {
		body := ask.body
		if body == "" {
			body = "-" // an empty argument is refused by sbx's daemon
		}
		argv = append(argv, ask.name, ask.url, body)
	}
	prefix, _ := strings.CutSuffix(q.spec.Secret.RequestHeader(), q.spec.Secret.Placeholder)
	env := []sbx.EnvVar{{Name: "SBXPAIR_PROBE_HEADER", Value: prefix}, {Name: "SBXPAIR_PROBE_PLACEHOLDER", Value: q.spec.Secret.Placeholder}}
	if q.spec.Secret.Strategy == PlainEnv {
		env = append(env, sbx.EnvVar{Name: "SBXPAIR_PROBE_VARIABLE", Value: q.spec.Secret.Env})
	}
	if q.spec.Secret.Strategy != Service { // which gives git's hosts what they want by itself
		env = append(env, sbx.EnvVar{Name: "SBXPAIR_PROBE_BASIC", Value: "1"})
	}
	if q.fresh {
		env = append(env, sbx.EnvVar{Name: "SBXPAIR_PROBE_DISK", Value: "1"})
	}
	res, err := q.box.Exec(ctx, sbx.ExecSpec{Argv: argv, Env: env, MaxCapture: maxProof})
	if err != nil {
		return told{}, fmt.Errorf("prove %s: %w", q.box.Name, err)
	}
	if res.Code != 0 {
		return told{}, fmt.Errorf("%w: sbx exec in %s: exit %d: %s", ErrNoProof, q.box.Name, res.Code, bytes.TrimSpace(res.Stderr))
	}
	t, whole := parseTold(string(res.Stdout))
	if !whole {
		return told{}, fmt.Errorf("%w: sbx exec in %s: what came back was cut off, so it may have held anything", ErrNoProof, q.box.Name)
	}
	return t, nil
}

// parseTold reads what [probeScript] prints. whole says that every section is there to its end: half an answer must not pass
// for one that shows no value.
func parseTold(text string) (t told, whole bool) {
	text, whole = strings.CutSuffix(text, "\n-- end\n")
	for _, section := range []struct {
		text *string
		next string
	}{{&t.answers, "-- ssh\n"}, {&t.identities, "-- disk\n"}, {&t.disk, "-- environ\n"}} {
		var found bool
		*section.text, text, found = strings.Cut(text, section.next)
		whole = whole && found
	}
	t.environ = text
	return t, whole
}

// maxProof bounds what comes back of one inquiry, in bytes.
const maxProof = 4 << 20

func (q *inquiry) ask(ctx context.Context, list []question) error {
	t, err := q.run(ctx, list)
	if err != nil {
		return err
	}
	for _, ask := range list {
		q.judge(ask, answerOf(t.answers, ask))
	}
	q.hold("SSH identities", strings.TrimSpace(t.identities) == "", "a forwarded agent offers keys; turn it off (sbx settings set ssh.agentForwardingEnabled false)")
	q.hold("credential values in any process's environment or command line", !q.known.Contains([]byte(t.environ)), "a real value is visible")
	if q.fresh {
		q.hold("credential values on the disk", !q.known.Contains([]byte(t.disk)), "a real value is in a file")
		q.strangers(t.environ, t.disk)
	}
	if q.box.Role == pair.RoleAgent {
		q.planHost(ctx, answerOf(t.answers, question{name: ownCredential}).body)
	}
	return errors.Join(q.errs...)
}

// judge notes the answer to one question.
func (q *inquiry) judge(ask question, a reply) {
	if ask.want == wantTold || ask.name == ownCredential {
		if login := a.login(); login != "" {
			q.owner = login
		}
		if ask.want == wantTold {
			return
		}
	}
	probe := events.Probe{Role: string(q.box.Role), Name: ask.name + " (" + ask.url + ")", Want: string(ask.want), Got: a.word(ask.want), Needed: ask.needed, Detail: a.about()}
	probe.Passed = probe.Got == probe.Want
	if !probe.Passed && ask.spared {
		q.notes = append(q.notes, fmt.Sprintf("the %s sandbox's token may not do what the configuration asks for: it lacks %q (%s); sbxpair credential link", q.box.Role, ask.needed, probe.Got))
		return
	}
	q.probes = append(q.probes, probe)
	if probe.Passed {
		q.tokenNotes(ask, a)
		return
	}
	kind, why := ErrNotProven, ""
	if moved := a.status == 301 || a.status == 307; moved && q.box.Role == pair.RoleGitHub {
		why = " (it has another name now: say that with --repo OWNER/NAME)"
	}
	if (ask.want == wantAccepted || ask.want == wantMay) && a.refused() {
		kind = ErrCredential
		switch {
		case ask.needed != "":
			kind, why = ErrPermission, fmt.Sprintf(" (the token lacks %q for this repository)", ask.needed)
		case a.status == 404:
			why = " (to GitHub, a repository that a token may not see does not exist)"
		}
	}
	q.errs = append(q.errs, fmt.Errorf("%w: from the %s sandbox, %s: expected %s, got %s%s", kind, q.box.Role, ask.url, ask.want, probe.Got, why))
}

// tokenNotes says what GitHub tells of a token beside its answer: scopes that no run needs, and an end that is near.
func (q *inquiry) tokenNotes(ask question, a reply) {
	if ask.name != ownCredential {
		return
	}
	if scopes := a.scopes(); len(scopes) > 0 {
		q.notes = append(q.notes, fmt.Sprintf("the %s sandbox's token is wide: it has the scopes %s, for every repository of its owner; a fine-grained one for the one repository is enough (sbxpair credential link)", q.box.Role, strings.Join(scopes, ", ")))
	}
	if ends, ok := a.expires(); ok && time.Until(ends) < expirySoon {
		q.notes = append(q.notes, fmt.Sprintf("the %s sandbox's token ends on %s", q.box.Role, ends.UTC().Format("2006-01-02 15:04 MST")))
	}
}

// expirySoon is when an end of a token is worth a word.
const expirySoon = 7 * 24 * time.Hour

func (q *inquiry) hold(name string, passed bool, failure string) {
	probe := events.Probe{Role: string(q.box.Role), Name: name, Want: "none", Got: "none", Passed: passed}
	if !passed {
		probe.Got = failure
		q.errs = append(q.errs, fmt.Errorf("%w: %s sandbox: %s: %s", ErrNotProven, q.box.Role, name, failure))
	}
	q.probes = append(q.probes, probe)
}

// strangers refuses what else has the shape of a credential for GitHub or a model and is there before anything ran: a
// template may bring a login, a variable of the image may hold a token.
func (q *inquiry) strangers(environ, disk string) {
	scanner := secrets.NewScanner()
	look := func(text, sep string) string {
		for line := range strings.Lines(text) {
			where, rest, found := strings.Cut(strings.TrimSuffix(line, "\n"), sep)
			if q.spec.Secret.Strategy == PlainEnv && (where == q.spec.Secret.Env || where == plainFile) {
				continue
			}
			if !found {
				where, rest = "a command line", line
			}
			for _, f := range scanner.Scan([]byte(rest)) {
				switch f.Kind {
				case secrets.KindFineGrained, secrets.KindClassic, secrets.KindOAuth, secrets.KindAppUser, secrets.KindInstallation, secrets.KindAnthropic:
					return fmt.Sprintf("%s holds a %s credential", where, f.Kind)
				}
			}
		}
		return ""
	}
	inEnv, onDisk := look(environ, "="), look(disk, ":")
	q.hold("other credentials in the environment", inEnv == "", inEnv+"; take it out of the template, or name another (sandbox.template)")
	q.hold("other credentials on the disk", onDisk == "", onDisk+"; take it out of the template, or name another (sandbox.template)")
}

// planHost asks the model's host that belongs to the account's plan, which Copilot learns from the account (Copilot CLI
// 1.0.102): that one has to take the credential too, and not every engine's github service covers it.
func (q *inquiry) planHost(ctx context.Context, account []byte) {
	var said struct{ Endpoints struct{ API string } }
	if json.Unmarshal(account, &said) != nil || said.Endpoints.API == "" {
		return
	}
	u, err := url.Parse(said.Endpoints.API)
	if err != nil || u.Host == "api.githubcopilot.com" || u.Scheme != "https" {
		return
	}
	ask := question{name: "the plan's model host accepts it", url: strings.TrimSuffix(said.Endpoints.API, "/") + "/models", want: wantAccepted}
	t, err := (&inquiry{box: q.box, spec: q.spec}).run(ctx, []question{ask})
	if err != nil {
		q.errs = append(q.errs, err)
		return
	}
	before := len(q.errs)
	q.judge(ask, answerOf(t.answers, ask))
	if len(q.errs) > before && q.spec.Secret.Strategy == Service {
		q.errs = append(q.errs, fmt.Errorf("%w: the engine's github service may not cover %s; try agent.strategy: custom", ErrNotProven, u.Host))
	}
}

// reply is what came back to one question.
type reply struct {
	there  bool
	exit   int // of curl
	status int
	body   []byte
	stderr []byte
	header string
}

// answerOf reads the line of one question.
func answerOf(lines string, ask question) reply {
	in := bufio.NewScanner(strings.NewReader(lines))
	in.Buffer(nil, maxProof)
	for in.Scan() {
		f := strings.Split(in.Text(), "\t")
		if len(f) != 6 || f[0] != ask.name {
			continue
		}
		r := reply{there: true}
		r.body, _ = base64.StdEncoding.DecodeString(f[3])
		r.stderr, _ = base64.StdEncoding.DecodeString(f[4])
		header, _ := base64.StdEncoding.DecodeString(f[5])
		r.header = string(header)
		r.exit, _ = strconv.Atoi(f[1])
		r.status, _ = strconv.Atoi(f[2])
		return r
	}
	return reply{}
}

// refused reports whether the host said that the credential does not do.
func (r reply) refused() bool {
	return r.there && r.exit == 0 && (r.status == 401 || r.status == 403 || r.status == 404)
}

// word is a word for an expected outcome, else what was seen.
func (r reply) word(w want) string {
	blocked := sbx.IsBlockPage(r.status, r.body) || sbx.IsBlockedConnection(r.exit, string(r.stderr))
	switch {
	case !r.there:
		return "no answer"
	case blocked:
		return string(wantBlocked)
	case r.exit != 0:
		return fmt.Sprintf("no answer (curl exit %d: %s)", r.exit, bytes.TrimSpace(r.stderr))
	case w == wantMay && r.status == 422:
		return string(wantMay)
	case w == wantRefused && r.refused():
		return string(wantRefused)
	case r.status >= 200 && r.status < 300:
		return string(wantAccepted)
	}
	return strings.TrimSpace(fmt.Sprintf("%d %s", r.status, message(r.body)))
}

// field returns the value of one of GitHub's headers that tell of a token.
func (r reply) field(name string) string {
	for line := range strings.Lines(r.header) {
		key, value, _ := strings.Cut(line, ":")
		if strings.EqualFold(key, name) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// login is whose token it is, if the answer names an account.
func (r reply) login() string {
	var said struct{ Login string }
	if r.status != 200 || json.Unmarshal(r.body, &said) != nil || !account.MatchString(said.Login) {
		return ""
	}
	return said.Login
}

// account is the shape of a name on GitHub; that of an app ends in [bot].
var account = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,80}(\[bot\])?$`)

// scopes are those of a classic or OAuth token. Other tokens have permissions instead.
func (r reply) scopes() []string {
	return strings.FieldsFunc(r.field("x-oauth-scopes"), func(c rune) bool { return c == ',' || c == ' ' })
}

// expires is when the token ends, if GitHub says so.
func (r reply) expires() (time.Time, bool) {
	text := r.field("github-authentication-token-expiration")
	for _, layout := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700", time.RFC3339} { // GitHub has sent the first two
		if ends, err := time.Parse(layout, text); err == nil {
			return ends, true
		}
	}
	return time.Time{}, false
}

// about is what the answer tells of the token, in one line.
func (r reply) about() string {
	var parts []string
	if ends, ok := r.expires(); ok {
		parts = append(parts, "token ends "+ends.UTC().Format(time.DateOnly))
	}
	if scopes := r.scopes(); len(scopes) > 0 {
		parts = append(parts, "scopes "+strings.Join(scopes, ", "))
	}
	if needs := r.field("x-accepted-github-permissions"); needs != "" && r.refused() {
		parts = append(parts, "GitHub asks for "+needs)
	}
	return strings.Join(parts, "; ")
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
