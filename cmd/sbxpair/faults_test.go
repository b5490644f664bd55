//go:build linux

package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/fixtures/github/hub"
	"github.com/sbxpair/sbxpair/fixtures/standin"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// faults are the ways in which one call of the engine goes wrong, in the order of the table.
func faults() []string {
	return []string{"error", "done, then error", "hang", "partial output", "SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "daemon killed"}
}

// scene is a stage whose engine is behind a shim, with something of somebody else's in the engine.
type scene struct {
	*stage.Stage
	t      *testing.T
	shim   *shim
	engine *sbx.Client
	before string
	pulls  int // on GitHub
}

// setScene sets a stage on the fake sbx, or on sbx-local.
func setScene(t *testing.T, local bool) *scene {
	t.Helper()
	dir := t.TempDir()
	s := &scene{t: t, shim: &shim{dir: dir}}
	program := filepath.Join(dir, "sbx")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, program); err != nil {
		t.Fatal(err)
	}
	config := map[string]any{"engine": map[string]any{"kind": "local", "path": program}}
	if local {
		if s.shim.Real, err = filepath.Abs(filepath.Join("..", "..", "bin", "sbx-local")); err != nil {
			t.Fatal(err)
		}
	} else {
		config["engine"] = map[string]any{"kind": "sbx", "path": program}
		config["agent"] = map[string]any{"name": "copilot", "command": []string{filepath.Join(dir, "agent")}}
		config["phases"] = []string{"execute", "verify"} // a recording can review nothing
		config["local"], config["verify"], config["verifyIn"] = map[string]any{}, []string{repo.Verify}, "workspace"
		policy := "policy: deny-all\n"
		if err := os.WriteFile(filepath.Join(dir, "script.yaml"), []byte(policy), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	config["phases"] = []string{"execute", "verify"}
	config["limits"] = map[string]any{"revisions": 0, "release": "60s", "run": "90s", "execute": "60s", "idle": "60s"}
	s.Stage = open(t, stage.Options{Config: config})
	if !local {
		s.host(dir)
	}
	s.script("", 0)
	s.engine = sbx.New(program, sbx.WithEnv(s.Env))
	s.strangers()
	s.script("", 0)
	return s
}

// host makes the host what the fake's sandboxes are: an agent that does the task, and the way to GitHub's stand-in.
func (s *scene) host(dir string) {
	s.t.Helper()
	recording, err := os.ReadFile(filepath.Join("..", "..", "agent", "testdata", "copilot-success.jsonl"))
	if err != nil {
		s.t.Fatal(err)
	}
	script := "#!/bin/sh\ncat >/dev/null\n" + fixWith("slugify.sh") + "\ncat '" + dir + "/recording.jsonl'\n"
	git, err := exec.LookPath("git")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, folder := range []string{"home", "tmp", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, folder), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	// An engine's proxy puts the credential into git's requests too.
	basic := base64.StdEncoding.EncodeToString([]byte("x-access-token:" + secrets.GitHubServicePlaceholder))
	wrapper := "#!/bin/sh\nexec " + git + " -c http.extraHeader='Authorization: Basic " + basic + "' \"$@\"\n"
	for name, text := range map[string]string{"recording.jsonl": string(recording), "agent": script, "bin/git": wrapper} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
			s.t.Fatal(err)
		}
	}
	tunnel, err := standin.NewTunnel(s.Standin.Addr())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { tunnel.Close() })
	s.Hub.AddToken(secrets.New(secrets.GitHubServicePlaceholder), hub.Token{Login: repo.Owner, Repos: []string{stage.FullName},
		Permissions: map[string]string{"contents": "write", "issues": "write", "pull_requests": "write"}})
	s.shim.Guest = []string{"PATH=" + dir + "/bin:" + os.Getenv("PATH"), "HOME=" + dir + "/home", "TMPDIR=" + dir + "/tmp", "HTTPS_PROXY=" + tunnel.URL(), "https_proxy=" + tunnel.URL(),
		"CURL_CA_BUNDLE=" + s.Standin.CAFile(), "GIT_SSL_CAINFO=" + s.Standin.CAFile(), "GORACE=atexit_sleep_ms=0"}
}

// script says which call goes wrong from now on, and how.
func (s *scene) script(fault string, call int) {
	s.t.Helper()
	s.shim.Fault, s.shim.Call = fault, call
	if err := s.shim.write(); err != nil {
		s.t.Fatal(err)
	}
}

const stranger = "somebody-elses"

// strangers puts a sandbox, a rule and a secret of somebody else into the engine, and takes them out at the end.
func (s *scene) strangers() {
	s.t.Helper()
	ctx := s.t.Context()
	if err := s.engine.PolicyInit(ctx, sbx.PresetDenyAll); err != nil && s.shim.Real != "" {
		s.t.Fatal(err)
	}
	work := s.t.TempDir()
	if _, err := s.engine.Create(ctx, sbx.CreateSpec{Name: stranger, Workspaces: []sbx.Workspace{{Path: work}}}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), time.Minute)
		defer cancel()
		s.script("", 0)
		if err := s.engine.Remove(ctx, stranger); err != nil {
			s.t.Error(err)
		}
	})
	if _, err := s.engine.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: stranger, Resources: []string{"example.com:443"}}); err != nil {
		s.t.Fatal(err)
	}
	if err := s.engine.SecretSet(ctx, sbx.ServiceSecret{Service: "anthropic", Sandbox: stranger, Value: secrets.New("sk-ant-somebody-elses")}); err != nil {
		s.t.Fatal(err)
	}
	s.before = s.held()
}

// held is all that the engine has: sandboxes, secrets, rules.
func (s *scene) held() string {
	s.t.Helper()
	ctx := s.t.Context()
	var lines []string
	boxes, err := s.engine.List(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, b := range boxes {
		lines = append(lines, "sandbox "+b.Name)
	}
	list, err := s.engine.SecretList(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range list {
		lines = append(lines, fmt.Sprint("secret ", e.Type, e.Sandbox, e.Name, e.Env))
	}
	rules, err := s.engine.PolicyList(ctx, "")
	if err != nil {
		s.t.Fatal(err)
	}
	for _, r := range rules {
		lines = append(lines, fmt.Sprint("rule ", r.Sandbox, r.Decision, r.Resources, r.HTTPTargets))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// drive runs one verb of the scene: up and down take the pair there and away again.
func (s *scene) drive(verb string) outcome {
	s.t.Helper()
	switch verb {
	case "run":
		return sbxpair(s.t, s.Stage, runArgs(s.Stage)...)
	case "up":
		return sbxpair(s.t, s.Stage, "up", "--repo", stage.FullName, "--dir", s.Work)
	}
	return sbxpair(s.t, s.Stage, "down", "--all")
}

// cell is what came of one fault at one call.
type cell struct {
	code  int
	after string // what was needed afterwards: " p" prune, " d" down once more
}

func (c cell) String() string {
	text := fmt.Sprint(c.code)
	if c.code < 0 {
		text = "killed"
	}
	return text + c.after
}

// stepLine is the line by which a message says at which step the work ended.
var stepLine = regexp.MustCompile(`(?m)^sbxpair: (no engine can be used|choose an engine|preflight|workspace|provision|proof|execute|end-state|verify|gate|deliver|keep the pair|release|remove|down |clean-up)`)

// strike drives the verb with the fault at its n-th call. For one that hangs, each call has a short limit; where a call before
// it needs longer, as on a machine that is busy with other things, what came of that is cleared away and the limits are longer.
func (s *scene) strike(verb, fault string, n int) (outcome, []seenCall) {
	s.t.Helper()
	limits := []string{"60s"}
	if fault == "hang" {
		limits = []string{"4s", "12s", "36s"}
	}
	env := s.Env
	defer func() { s.Env = env }()
	for i := 0; ; i++ {
		s.Env = append(slices.Clone(env), "SBXPAIR_LIMITS_CALL="+limits[i])
		if verb == "down" {
			s.drive("up").want(s.t, 0)
		}
		s.script(fault, n)
		got := s.drive(verb)
		seen, err := s.shim.calls()
		if err != nil {
			s.t.Fatal(err)
		}
		s.script("", 0)
		if i == len(limits)-1 || n <= len(seen) && (got.code != exitEngine || strings.Contains(got.stderr, "sbx "+seen[n-1].Op)) {
			return got, seen
		}
		sbxpair(s.t, s.Stage, "prune", "--force").want(s.t, 0)
		s.drive("down").want(s.t, 0)
	}
}

// meet makes the verb meet a fault at its n-th call, and checks what the table says of every cell: nothing is left, nothing
// else is touched, the exit code is one that the fault explains, and a message names the step.
func (s *scene) meet(verb, fault string, n int) cell {
	s.t.Helper()
	got, seen := s.strike(verb, fault, n)
	at := fmt.Sprintf("%s, %s at call %d", verb, fault, n)
	if n <= len(seen) {
		at += " (" + seen[n-1].Op + ")"
	}
	c := cell{code: got.code}
	switch {
	case verb == "down" && got.code != 0: // a pair that was left in place on purpose is not prune's to take
		c.after = " d"
		s.drive("down").want(s.t, 0)
	case got.code == exitLeft || got.code < 0:
		c.after = " p"
		sbxpair(s.t, s.Stage, "prune", "--force").want(s.t, 0)
	case verb == "up" && got.code == 0:
		s.drive("down").want(s.t, 0)
	}
	if after := s.held(); after != s.before {
		s.t.Errorf("%s: the engine holds\n%s\nbefore:\n%s\n%s", at, after, s.before, got.stderr)
	}
	if ls := sbxpair(s.t, s.Stage, "ls", "--quiet"); ls.stdout != "" || ls.code != 0 {
		s.t.Errorf("%s: a lease is open: %s%s", at, ls.stdout, ls.stderr)
	}
	if n > len(seen) {
		s.t.Errorf("%s: there were only %d calls", at, len(seen))
	} else {
		releasing := slices.ContainsFunc(seen[:n], func(c seenCall) bool { return c.Op == "rm" })
		want := explained(verb, fault, seen[n-1].Op, s.shim.Real != "", releasing)
		if !slices.Contains(want, got.code) {
			s.t.Errorf("%s: exit code %d, want one of %v\n%s", at, got.code, want, got.stderr)
		}
		if got.code == exitEngine && !strings.Contains(got.stderr, "sbx "+seen[n-1].Op) {
			s.t.Errorf("%s: no message names the call:\n%s", at, got.stderr)
		}
	}
	if got.code > 0 && !stepLine.MatchString(got.stderr) {
		s.t.Errorf("%s: no message names the step:\n%s", at, got.stderr)
	}
	if verb == "run" {
		s.delivered(at, got)
	}
	for _, token := range s.Tokens {
		if strings.Contains(got.stdout+got.stderr, token.Reveal()) {
			s.t.Errorf("%s: a token is shown", at)
		}
	}
	s.t.Logf("%s: %s\n%s", at, c, got.stderr)
	return c
}

// delivered checks that a run whose exit code says done has opened its pull request, and no run more than one.
func (s *scene) delivered(at string, got outcome) {
	s.t.Helper()
	list, err := s.Hub.Pulls(s.t.Context(), stage.FullName)
	if err != nil {
		s.t.Fatal(err)
	}
	fresh := len(list) - s.pulls
	s.pulls = len(list)
	if fresh > 1 || got.code == 0 && fresh != 1 {
		s.t.Errorf("%s: exit code %d and %d new pull requests", at, got.code, fresh)
	}
}

// explained lists the exit codes that a fault of the call op may end with. 0 is among them where the work can do without the
// call's answer, or where it is made again: while the pair is being removed, and where the daemon comes back.
func explained(verb, fault, op string, local, releasing bool) []int {
	switch fault {
	case "SIGINT", "SIGTERM", "SIGHUP":
		codes := map[string]int{"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}
		if releasing || verb == "down" || verb == "run" && (op == "exec" || op == "policy log") { // what is done is done, and the clean-up goes on
			return []int{0, codes[fault]}
		}
		return []int{codes[fault]}
	case "SIGKILL":
		return []int{-1}
	}
	unread := slices.Contains([]string{"create", "policy allow", "policy deny", "secret set"}, op) // a later read tells what they did
	switch {
	case releasing || verb == "down" || op == "policy log":
		return []int{0}
	case fault == "daemon killed" && local && op == "exec":
		return []int{0, exitFailed, exitEngine, exitRefused}
	case fault == "daemon killed" && local, fault == "partial output" && unread:
		return []int{0, exitEngine}
	case op == "exec" && verb == "run": // some of them a run can do without, and some are the agent's
		return []int{0, exitFailed, exitEngine, exitRefused, exitBudget}
	}
	return []int{exitEngine} // also for half a proof, which is none
}

// TestFaultTable drives up, a whole run, and down through the fake sbx and through sbx-local, and makes calls of the engine go
// wrong. With SBXPAIR_FAULTS=each every call meets one fault, and every fault some call; =all makes every call meet every fault.
// By default, since each case starts some thirty processes, every fault meets one call of up on the fake, those that need a real
// engine meet one on sbx-local, and a run there loses the daemon while it delivers. With -update the page about it is written, as far as it was run.
func TestFaultTable(t *testing.T) {
	depth := os.Getenv("SBXPAIR_FAULTS")
	for _, part := range []struct {
		name, verb string
		local      bool
	}{{"fake up", "up", false}, {"fake down", "down", false}, {"fake run", "run", false}, {"sbx-local up", "up", true}, {"sbx-local down", "down", true}, {"sbx-local run", "run", true}} {
		t.Run(part.name, func(t *testing.T) {
			switch {
			case depth == "" && part.name == "sbx-local run":
				const delivers = 27 // of 37 calls
				setScene(t, true).meet("run", "daemon killed", delivers)
				return
			case depth == "" && part.verb != "up":
				t.Skip("takes minutes; set SBXPAIR_FAULTS=each, or all")
			}
			clean := setScene(t, part.local)
			if part.verb == "down" {
				clean.drive("up").want(t, 0)
				clean.script("", 0)
			}
			clean.drive(part.verb).want(t, 0)
			ops, err := clean.shim.calls()
			if err != nil {
				t.Fatal(err)
			}
			if part.verb == "up" {
				clean.drive("down").want(t, 0)
			}
			chosen := func(i int, fault string, n int) bool {
				if depth == "all" {
					return true
				}
				if depth == "each" { // what comes before the first exec of a run is up's
					return n%len(faults()) == i && (part.verb != "run" || slices.ContainsFunc(ops[:n], func(c seenCall) bool { return c.Op == "exec" }))
				}
				return n == 1+i*len(ops)/len(faults()) && (!part.local || slices.Contains([]string{"hang", "SIGTERM", "SIGKILL", "daemon killed"}, fault))
			}
			table := map[string]map[int]cell{}
			var mu sync.Mutex
			t.Run("with", func(t *testing.T) {
				const lanes = 2
				for lane := range lanes {
					t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
						t.Parallel()
						s := setScene(t, part.local)
						for i, fault := range faults() {
							for n := 1; n <= len(ops); n++ {
								if n%lanes != lane || !chosen(i, fault, n) {
									continue
								}
								got := s.meet(part.verb, fault, n)
								mu.Lock()
								if table[fault] == nil {
									table[fault] = map[int]cell{}
								}
								table[fault][n] = got
								mu.Unlock()
							}
						}
					})
				}
			})
			text := faultTable(part.name, ops, table)
			t.Log("\n" + text)
			if *update && !t.Failed() {
				writePart(t, part.name, text)
			}
		})
	}
}

// writePart puts one part of the page in the place of its former one, and the page's beginning as it is now.
func writePart(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("..", "..", "docs", "reference", "faults.md")
	old, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page, found := faultsIntro, false
	for _, part := range strings.Split(string(old), "\n## ")[1:] {
		part = "\n## " + part
		if strings.HasPrefix(part, "\n## "+name+"\n") {
			part, found = text, true
		}
		page += part
	}
	if !found {
		page += text
	}
	if err := os.WriteFile(path, []byte(page), 0o644); err != nil {
		t.Fatal(err)
	}
}

const faultsIntro = `# Faults

What happens to ` + "`up`, `run` and `down`" + ` when one call of the engine goes wrong, for every call and every way. A cell is the exit code
([exit-codes.md](exit-codes.md)); ` + "`p`" + ` says that ` + "`sbxpair prune --force`" + ` was needed afterwards, ` + "`d`" + ` that another ` + "`down`" + ` was, as after SIGKILL it
always is. In every cell, asserted by the test: no sandbox, secret or rule of the pair is left in the engine, somebody else's sandbox with its
secret and rule is untouched, no lease is open, the exit code is one that the fault explains, a message names the step and the call, no token is
shown, and a run that says it is done has opened one pull request. At the end of each part: no process is left, and no token is in any file. Calls
that go out at the same time can change places; the names are those of a clean pass. 0 means that the call was made again, or that the work can do without it.

A part with every cell filled is what ` + "`SBXPAIR_FAULTS=all go test ./cmd/sbxpair -run FaultTable -timeout 3h -update`" + ` saw; one with a cell for each
call is what ` + "`SBXPAIR_FAULTS=each`" + ` saw. ` + "`make test`" + ` makes every fault meet one call of ` + "`up`" + ` and one a whole run on sbx-local, and in
` + "`provision TestFaultAtEveryCall`" + ` every call of making a pair meet five faults.
`

// faultTable renders what came of the faults.
func faultTable(name string, ops []seenCall, table map[string]map[int]cell) string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n| call | | %s |\n| --- | --- |%s\n", name, strings.Join(faults(), " | "), strings.Repeat(" --- |", len(faults())))
	cells, more := 0, 0
	for _, op := range ops {
		fmt.Fprintf(&b, "| %d | %s |", op.N, op.Op)
		for _, fault := range faults() {
			text := ""
			if c, met := table[fault][op.N]; met {
				text = c.String()
				cells++
				if c.after != "" {
					more++
				}
			}
			fmt.Fprintf(&b, " %s |", text)
		}
		b.WriteString("\n")
	}
	codes := map[string]int{}
	for _, row := range table {
		for _, c := range row {
			codes[cell{code: c.code}.String()]++
		}
	}
	fmt.Fprintf(&b, "\n%d calls, %d cases, 0 left; exit codes:", len(ops), cells)
	for _, code := range slices.Sorted(maps.Keys(codes)) {
		fmt.Fprintf(&b, " %s ×%d", code, codes[code])
	}
	fmt.Fprintf(&b, "; prune or another down needed after %d.\n", more)
	return b.String()
}
