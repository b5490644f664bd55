package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
	"github.com/sbxpair/sbxpair/workspace"
)

// releaseLimit bounds the removal of the scratch pair where the configuration does not.
const releaseLimit = 2 * time.Minute

// deep makes a pair, asks what only its insides can answer, and removes it. What an earlier deep examination found with
// the same engine and settings stands for a while, unless Fresh asks again.
func (e *examination) deep(ctx context.Context, engine sbx.Engine, usable bool) {
	why, repo := "", e.repo(ctx)
	switch {
	case !usable:
		why = "there is no engine (see engine)"
	case !e.fit:
		why = "the tokens are not fit for a pair (see token.agent, token.github, token.pair)"
	case repo == "":
		why = "no repository is named, and the checkout's origin is not one on GitHub"
	}
	if why != "" {
		remedy := ""
		if usable && e.fit {
			remedy = "sbxpair doctor --deep --repo OWNER/NAME"
		}
		e.add(Check{ID: "pair", Verdict: Unknown, Detail: "nothing was asked from inside: " + why, Remedy: remedy})
		return
	}
	name, program, settings := engineName(engine.Version), programStamp(engine.Path), e.settings(repo)
	earlier := recall(e.State, subjectDeep, engine.Kind, settings)
	now := time.Now()
	for _, r := range earlier {
		if !e.Fresh && r.Engine == name && r.Program == program && r.stands(now) {
			for _, c := range r.Checks {
				c.Cached = true
				e.add(c)
			}
			e.report.Depth = Deep
			e.report.Drift = drift(r.Checks, name, earlier)
			return
		}
	}
	s := &scratch{examination: e, client: e.client(engine, usable), ref: e.ref(engine), version: engine.Version, repo: repo}
	checks := s.examine(ctx)
	for _, c := range checks {
		e.add(c)
	}
	if len(checks) > 1 {
		e.report.Depth = Deep
	}
	e.report.Drift = drift(checks, name, earlier)
	if err := remember(e.State, subjectDeep, remembered{Engine: name, Kind: engine.Kind, Program: program, Settings: settings, At: now.UTC(), Checks: checks}); err != nil {
		e.say("the verdicts could not be kept: %v", err)
	}
}

// repo is the repository that the run would be about, as OWNER/NAME, or "".
func (e *examination) repo(ctx context.Context) string {
	if e.Config.GitHub.Repo != "" || e.Dir == "" {
		return e.Config.GitHub.Repo
	}
	look, err := workspace.Inspect(ctx, e.source(true))
	if err != nil {
		return ""
	}
	return look.Origin.Slug()
}

// scratch is the pair that a deep examination makes.
type scratch struct {
	*examination
	client  *sbx.Client
	ref     pair.EngineRef
	version sbx.Version
	repo    string
	adapter agent.Adapter
	plan    provision.Plan
	pair    *pair.Pair
	dir     string             // the mounted folder
	gateway *provision.Gateway // nil: none is configured
	asked   []events.Probe     // the proof's questions for permissions
}

// examine makes the pair, asks, and removes it whatever happened.
func (s *scratch) examine(ctx context.Context) (checks []Check) {
	run := pair.NewRunID(time.Now())
	s.adapter, _ = agent.Lookup(s.Config.Agent.Name) // token.agent has looked
	started := time.Now()
	calls, err := s.up(ctx, run)
	defer func() {
		if s.gateway != nil {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			s.gateway.Close(ctx)
		}
	}()
	if s.pair != nil {
		defer func() {
			limit := time.Duration(s.Config.Limits.Release)
			if limit <= 0 {
				limit = releaseLimit
			}
			s.say("removing the pair")
			_, releaseErr := s.pair.Release(ctx, "doctor", limit)
			if releaseErr = errors.Join(releaseErr, os.RemoveAll(s.dir), os.RemoveAll(s.dir+"-empty")); releaseErr != nil {
				s.report.left = releaseErr
				checks[0].Verdict, checks[0].Remedy = Bad, "sbxpair prune"
				checks[0].Detail += "; it could not be removed: " + oneLine(releaseErr.Error())
			}
		}()
	}
	if err != nil {
		c := Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: sbx.Hint(err)}
		if unanswered(err) || ctx.Err() != nil {
			c = undecided(err)
		}
		c.ID = "pair"
		return append(checks, c)
	}
	checks = append(checks, Check{ID: "pair", Verdict: OK, Detail: fmt.Sprintf("made in %.1f s with %d engine calls", time.Since(started).Seconds(), calls)})
	checks = append(checks, s.proof(ctx)...)

	// Each sandbox is asked one thing at a time, both at once.
	var agentSide, githubSide []Check
	var wg sync.WaitGroup
	wg.Go(func() { agentSide = s.askAgent(ctx) })
	wg.Go(func() { githubSide = s.askGitHub(ctx) })
	wg.Wait()
	checks = append(append(checks, agentSide...), githubSide...)
	order := map[string]int{}
	for i, a := range Catalogue() {
		order[a.ID] = i
	}
	slices.SortStableFunc(checks[1:], func(a, b Check) int { return order[a.ID] - order[b.ID] })
	return checks
}

// openGateway starts the gateway that a run would use. The run's key for it is the agent's credential from then on.
func (s *scratch) openGateway(ctx context.Context, run pair.RunID) (*provision.Through, error) {
	if !s.Config.Gateway.Enabled {
		return nil, nil
	}
	var err error
	s.gateway, err = provision.OpenGateway(ctx, s.Config, s.creds.Agent, filepath.Join(s.State, "ledger.jsonl"), s.Proxy)
	if err != nil {
		return nil, err
	}
	if err := s.gateway.Admit(run); err != nil {
		return nil, err
	}
	s.creds.Agent = s.gateway.Key
	return &s.gateway.Through, nil
}

// up is the first half of a run: lease, plan, pair. The plan's input is read off the configuration as a run does it.
func (s *scratch) up(ctx context.Context, run pair.RunID) (calls int, err error) {
	cfg := s.Config
	s.dir = filepath.Join(s.Store.Dir(run), "workspace")
	provider, err := cfg.Agent.ModelProvider()
	if err != nil {
		return 0, err
	}
	through, err := s.openGateway(ctx, run)
	if err != nil {
		return 0, err
	}
	in := provision.Input{
		Run: run, Engine: s.ref, Repo: s.repo, AgentEnv: s.adapter.KeyEnv(provider.Name), Gateway: through,
		Workspace: sbx.Workspace{Path: s.dir}, Empty: s.dir + "-empty",
	}.WithConfig(cfg, s.version)
	if s.plan, err = provision.New(in); err != nil {
		return 0, err
	}
	s.say("making a pair on %s", s.ref.Kind)
	s.pair, err = pair.Acquire(s.client, s.Store, pair.Lease{
		Run: run, Created: time.Now().UTC(), Owner: pair.Self(), Engine: s.ref, Repository: in.Repo, Host: cfg.GitHub.Host,
	})
	if err != nil {
		return 0, err
	}
	for _, dir := range []string{s.dir, in.Empty} {
		if dir == "" {
			continue
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return 0, err
		}
	}
	report, err := provision.Apply(ctx, s.client.Unverified(), s.pair, s.plan, s.creds)
	return len(report.Calls), err
}

// proof takes a run's own proof and makes two findings of it: the split, and what the model's host says to the token.
func (s *scratch) proof(ctx context.Context) []Check {
	s.say("asking from inside both sandboxes")
	check := s.plan.Agent.Secret.Check
	proof, err := provision.Prove(ctx, s.pair, s.plan, s.creds, true)
	if len(proof.Probes) == 0 {
		split, login := undecided(err), undecided(err)
		split.ID, login.ID = "split", "agent.login"
		return []Check{split, login}
	}
	split := Check{ID: "split", Verdict: OK}
	login := Check{ID: "agent.login", Verdict: Unknown, Detail: "there is no request for " + s.adapter.Name + " that costs nothing"}
	var failed []string
	passed := 0
	for _, p := range proof.Probes {
		own := strings.HasPrefix(p.Name, "own credential is accepted")
		switch {
		case own && p.Role == string(pair.RoleAgent):
			login = judgeLogin(p, check)
		case own: // github.login and github.repository say more
		case p.Needed != "": // github.push, github.pulls and agent.overreach say more
			s.asked = append(s.asked, p)
		case p.Passed:
			passed++
		default:
			failed = append(failed, fmt.Sprintf("%s sandbox: %s: %s", p.Role, p.Name, p.Got))
		}
	}
	split.Detail = fmt.Sprintf("%d answers as expected", passed)
	if len(failed) > 0 {
		split.Verdict, split.Detail, split.Remedy = Bad, strings.Join(failed, "; "), "sbxpair doctor shows what is open to every sandbox (policy.preset, secrets.global, ssh.agent)"
	}
	return []Check{split, login}
}

// judgeLogin tells a host that is down from one that is up and refuses the token: 401 is an answer.
func judgeLogin(p events.Probe, url string) Check {
	c := Check{ID: "agent.login", Verdict: OK, Detail: "accepted by " + url}
	switch {
	case p.Passed:
	case strings.HasPrefix(p.Got, "401"), strings.HasPrefix(p.Got, "403"), strings.HasPrefix(p.Got, "404"):
		c.Verdict, c.Remedy = Bad, "make a new token: docs/how-to/tokens.md"
		c.Detail = fmt.Sprintf("the host is up and refuses the token: %s answers %s", url, p.Got)
	case p.Got == "blocked":
		c.Verdict, c.Remedy = Bad, "take the host out of network.deny"
		c.Detail = "the agent's own host is blocked: " + url
	case strings.HasPrefix(p.Got, "no answer"):
		c.Verdict, c.Detail = Unknown, "could not check: "+url+": "+p.Got
	default:
		c.Verdict, c.Detail = Warn, url+" answers "+p.Got
	}
	return c
}

// question makes one check inside a sandbox.
func (s *scratch) question(ctx context.Context, id string, do func(context.Context) (Check, error)) Check {
	c, _ := attempt(ctx, 2*s.limit(), id, do)
	return c
}

func (s *scratch) run(ctx context.Context, box *pair.Sandbox, c command) (sbx.ExecResult, error) {
	return box.Exec(ctx, sbx.ExecSpec{Argv: c.Argv, Env: c.Env, Redact: []secrets.Value{s.creds.Agent, s.creds.GitHub}, MaxCapture: 256 << 10})
}

// A command is what a question runs inside.
type command struct {
	Argv []string
	Env  []sbx.EnvVar
}

func (s *scratch) askAgent(ctx context.Context) []Check {
	box, check := s.pair.Agent, s.plan.Agent.Secret.Check
	checks := []Check{
		s.question(ctx, "agent.cli", s.agentCLI),
		s.question(ctx, "agent.overreach", s.overreach),
		s.question(ctx, "workspace", s.workspace),
		s.question(ctx, "clock.agent", func(ctx context.Context) (Check, error) { return s.clock(ctx, box) }),
		s.question(ctx, "egress", func(ctx context.Context) (Check, error) { return s.egress(ctx, box) }),
	}
	if check == "" {
		check = "https://" + s.plan.Agent.Secret.Hosts[0] + "/"
	}
	for _, tool := range []trustProbe{curlTrust(check), nodeTrust(check), pythonTrust(check), goTrust()} {
		if s.gateway != nil {
			checks = append(checks, Check{ID: "trust." + tool.name, Verdict: OK, Detail: "not needed: the agent reaches its model by way of the gateway on this host"})
			continue
		}
		checks = append(checks, s.question(ctx, "trust."+tool.name, func(ctx context.Context) (Check, error) { return s.trust(ctx, box, tool) }))
	}
	return checks
}

// agentCLI asks the program for its version, in the way in which a run starts it.
func (s *scratch) agentCLI(ctx context.Context) (Check, error) {
	program := s.Config.Agent.Command
	if len(program) == 0 {
		program = []string{s.adapter.Program}
	}
	remedy := "docs/how-to/agent-cli.md: mount it (agent.mounts, agent.command) or use a template that has it"
	res, err := s.run(ctx, s.pair.Agent, command{Argv: append(slices.Clone(program), "--version"),
		Env: []sbx.EnvVar{{Name: s.plan.Agent.Secret.Env, Value: s.plan.Agent.Secret.Placeholder}, {Name: "NO_COLOR", Value: "1"}}})
	switch {
	case errors.Is(err, sbx.ErrLaunch):
		return Check{Verdict: Bad, Detail: fmt.Sprintf("%s cannot be started in the agent sandbox: %s", program[0], oneLine(err.Error())), Remedy: remedy}, nil
	case err != nil:
		return Check{}, err
	case res.Code != 0:
		return Check{Verdict: Bad, Detail: fmt.Sprintf("%s --version ends with %d: %.200s", program[0], res.Code, oneLine(string(res.Stderr))), Remedy: remedy}, nil
	}
	version := versionNumber.FindString(string(res.Stdout))
	if version == "" {
		return Check{Verdict: Warn, Detail: fmt.Sprintf("%s does not say its version: %.100q", program[0], res.Stdout)}, nil
	}
	return Check{Verdict: OK, Detail: fmt.Sprintf("%s %s (%s)", s.adapter.Name, version, program[0])}, nil
}

var versionNumber = regexp.MustCompile(`[0-9]+(\.[0-9]+)+`)

// overreach asks, with the agent's token and from the agent's sandbox, for the repository that only the other side may
// write to. Nothing is written.
func (s *scratch) overreach(ctx context.Context) (Check, error) {
	url := s.plan.GitHub.Secret.Check
	res, err := s.run(ctx, s.pair.Agent, command{
		Argv: []string{"sh", "-c", `curl -sS --max-time 20 --proto =https --max-redirs 0 -A sbxpair-doctor -H "$SBXPAIR_PROBE_HEADER" -w '\n%{http_code}' "$1"`, "sh", url},
		Env:  []sbx.EnvVar{{Name: "SBXPAIR_PROBE_HEADER", Value: s.plan.Agent.Secret.RequestHeader()}},
	})
	if err != nil {
		return Check{}, err
	}
	at := strings.LastIndexByte(string(res.Stdout), '\n')
	body := res.Stdout[:max(at, 0)]
	status, _ := strconv.Atoi(strings.TrimSpace(string(res.Stdout[max(at, 0):])))
	var repository struct {
		Permissions struct{ Push, Admin, Maintain bool }
	}
	switch {
	case sbx.IsBlockPage(status, body) || sbx.IsBlockedConnection(res.Code, string(res.Stderr)):
		return Check{Verdict: OK, Detail: "the agent sandbox cannot ask GitHub's API for the repository"}, nil
	case res.Code != 0:
		return Check{}, fmt.Errorf("curl ends with %d: %s", res.Code, oneLine(string(res.Stderr)))
	case status == http.StatusUnauthorized, status == http.StatusForbidden, status == http.StatusNotFound:
		return Check{Verdict: OK, Detail: "the agent's token does not see " + s.plan.Repo}, nil
	case status != http.StatusOK:
		return Check{}, fmt.Errorf("%s answers %d", url, status)
	}
	if err := json.Unmarshal(body, &repository); err != nil {
		return Check{}, fmt.Errorf("%s: %w", url, err)
	}
	if p := repository.Permissions; p.Push || p.Admin || p.Maintain {
		return Check{Verdict: Bad, Detail: "the agent's token may write to " + s.plan.Repo + ", and the agent sandbox reaches the API that does it",
			Remedy: "make a token with \"Copilot Requests\" only: docs/how-to/tokens.md"}, nil
	}
	return Check{Verdict: OK, Detail: "the agent's token cannot write to " + s.plan.Repo}, nil
}

// workspace writes a file from inside and looks at it from here.
func (s *scratch) workspace(ctx context.Context) (Check, error) {
	res, err := s.run(ctx, s.pair.Agent, command{Argv: []string{"sh", "-c", `umask 077 && mkdir "$1/made-inside" && echo written >"$1/made-inside/file"`, "sh", sbx.GuestPath(s.dir)}})
	if err != nil {
		return Check{}, err
	}
	const remedy = "run sbxpair as the user whose number the sandbox's user has (1000), or use an engine that maps users"
	if res.Code != 0 {
		return Check{Verdict: Bad, Detail: "the sandbox's user cannot write to the mounted folder: " + oneLine(string(res.Stderr)), Remedy: remedy}, nil
	}
	path := filepath.Join(s.dir, "made-inside", "file")
	info, err := os.Lstat(path)
	if err != nil {
		return Check{Verdict: Bad, Detail: "a file written inside does not show here: " + oneLine(err.Error()), Remedy: remedy}, nil
	}
	if owner, known := ownerOf(info); known && owner != os.Getuid() {
		return Check{Verdict: Bad, Detail: fmt.Sprintf("files made inside belong to user %d here, not to you (%d): they could not be removed", owner, os.Getuid()), Remedy: remedy}, nil
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "written\n" {
		return Check{Verdict: Bad, Detail: fmt.Sprintf("a file made inside reads as %.40q here (%v)", text, err), Remedy: remedy}, nil
	}
	return Check{Verdict: OK, Detail: "writable, and what is made inside is yours"}, nil
}

// The clock's limits: GitHub refuses an app's token at 60 s, and a certificate that is an hour old fails at less than two.
const (
	clockWarn = 5 * time.Second
	clockBad  = time.Minute
)

func (s *scratch) clock(ctx context.Context, box *pair.Sandbox) (Check, error) {
	before := time.Now()
	res, err := s.run(ctx, box, command{Argv: []string{"date", "+%s.%N"}})
	if err != nil {
		return Check{}, err
	}
	after := time.Now()
	seconds, err := strconv.ParseFloat(strings.TrimSuffix(strings.TrimSpace(string(res.Stdout)), ".%N"), 64) // busybox has no %N
	if err != nil || res.Code != 0 {
		return Check{}, fmt.Errorf("date says %.60q (exit %d)", res.Stdout, res.Code)
	}
	inside := time.UnixMicro(int64(seconds * 1e6))
	// The answer was given at some time between before and after; only what lies outside is skew.
	var skew time.Duration
	switch {
	case inside.Before(before):
		skew = inside.Sub(before)
	case inside.After(after):
		skew = inside.Sub(after)
	}
	return judgeClock(skew), nil
}

func judgeClock(skew time.Duration) Check {
	c := Check{Verdict: OK, Detail: "right to the second"}
	if skew.Abs() < time.Second {
		return c
	}
	word := "ahead of"
	if skew < 0 {
		word = "behind"
	}
	c.Detail = fmt.Sprintf("%s %s this machine", skew.Abs().Round(time.Second), word)
	switch {
	case skew.Abs() >= clockBad:
		c.Verdict, c.Remedy = Bad, "sbx daemon restart (a sandbox's clock stands still while the machine sleeps); then check this machine's own clock"
	case skew.Abs() >= clockWarn:
		c.Verdict, c.Remedy = Warn, "sbx daemon restart, if it grows"
	}
	return c
}

// egressScript asks for the outside past the proxy: by name, by address over TCP, and over UDP. Each line says what came back.
const egressScript = `
reply() { [ -n "$2" ] && [ "$2" != 000 ] && echo "$1 answered: $2"; return 0; }
reply name "$(curl -sS --noproxy '*' -o /dev/null -w '%{http_code}' --connect-timeout 4 --max-time 6 https://example.com/ 2>/dev/null)"
reply tcp "$(curl -sS --noproxy '*' -o /dev/null -w '%{http_code}' --connect-timeout 4 --max-time 6 http://192.0.43.8/ 2>/dev/null)"
if command -v bash >/dev/null && command -v timeout >/dev/null; then
  reply udp "$(timeout 5 bash -c 'exec 3<>/dev/udp/9.9.9.9/53 && printf "\0\1\1\0\0\1\0\0\0\0\0\0\7example\3com\0\0\1\0\1" >&3 && timeout 3 dd bs=512 count=1 <&3 2>/dev/null | wc -c' 2>/dev/null | grep -v '^0$')"
fi
echo asked
`

func (s *scratch) egress(ctx context.Context, box *pair.Sandbox) (Check, error) {
	res, err := s.run(ctx, box, command{Argv: []string{"sh", "-c", egressScript}})
	if err != nil {
		return Check{}, err
	}
	answers, asked := strings.CutSuffix(strings.TrimSpace(string(res.Stdout)), "asked")
	if !asked {
		return Check{}, fmt.Errorf("the questions could not be asked (exit %d): %s", res.Code, oneLine(string(res.Stderr)))
	}
	// A transparent proxy answers with its block page, whose status is 403.
	var open []string
	for line := range strings.Lines(answers) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasSuffix(line, " 403") {
			open = append(open, line)
		}
	}
	if len(open) > 0 {
		return Check{Verdict: Bad, Detail: "the sandbox reaches the outside past the proxy: " + strings.Join(open, "; "), Remedy: "sbx policy ls --wide; sbx settings get feature.udp-egress"}, nil
	}
	return Check{Verdict: OK, Detail: "closed: no name, no address, no UDP answers past the proxy"}, nil
}
