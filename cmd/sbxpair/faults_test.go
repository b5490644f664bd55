//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
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
	call := "12s"
	config := map[string]any{"engine": map[string]any{"kind": "local", "path": program}}
	if local {
		if s.shim.Real, err = filepath.Abs(filepath.Join("..", "..", "bin", "sbx-local")); err != nil {
			t.Fatal(err)
		}
	} else {
		call = "5s"
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
	config["limits"] = map[string]any{"revisions": 0, "call": call, "release": "60s", "run": "90s", "execute": "60s", "idle": "60s"}
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

// steps are the words by which a message names the step that failed.
func steps() []string {
	return []string{"preflight", "choose an engine", "no engine can be used", "workspace", "provision", "proof", "execute", "collect", "end-state", "verify", "gate", "deliver",
		"release", "clean-up", "undo", "signal received"}
}

// meet makes the verb meet a fault at its n-th call, and checks what the table says of every cell: nothing is left, nothing
// else is touched, the exit code is one that the fault explains, and a message names the step.
func (s *scene) meet(verb, fault string, n int) cell {
	s.t.Helper()
	if verb == "down" {
		s.script("", 0)
		s.drive("up").want(s.t, 0)
	}
	s.script(fault, n)
	got := s.drive(verb)
	seen, err := s.shim.calls()
	if err != nil {
		s.t.Fatal(err)
	}
	at := fmt.Sprintf("%s, %s at call %d", verb, fault, n)
	if n <= len(seen) {
		at += " (" + seen[n-1].Op + ")"
	}
	s.script("", 0)
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
	if !slices.Contains(explained(verb, fault), got.code) {
		s.t.Errorf("%s: exit code %d, want one of %v\n%s", at, got.code, explained(verb, fault), got.stderr)
	}
	named := slices.ContainsFunc(steps(), func(step string) bool { return strings.Contains(got.stderr, step) })
	if got.code > 0 && !named {
		s.t.Errorf("%s: no message names the step:\n%s", at, got.stderr)
	}
	for _, token := range s.Tokens {
		if strings.Contains(got.stdout+got.stderr, token.Reveal()) {
			s.t.Errorf("%s: a token is shown", at)
		}
	}
	return c
}

// explained lists the exit codes that a fault may end with. 0 is among them where the work goes on without that call, or
// where it is made again.
func explained(verb, fault string) []int {
	switch fault {
	case "SIGINT":
		return []int{0, 130}
	case "SIGTERM":
		return []int{0, 143}
	case "SIGHUP":
		return []int{0, 129}
	case "SIGKILL":
		return []int{-1}
	}
	if fault == "hang" {
		return []int{0, exitFailed, exitEngine, exitLeft, exitBudget} // a command in a sandbox is the run's own limits' to end
	}
	return []int{0, exitFailed, exitEngine, exitLeft, exitRefused}
}

// TestFaultTable drives up, a whole run, and down through the fake sbx, and up and down through sbx-local, and makes calls of
// the engine go wrong. With SBXPAIR_FAULTS=each every call meets one fault, and every fault some call; =all makes every call
// meet every fault. By default, since each case starts some thirty processes, every fault meets one call of up on the fake, and
// those that need a real engine meet one on sbx-local. With -update the page about it is written.
func TestFaultTable(t *testing.T) {
	depth := os.Getenv("SBXPAIR_FAULTS")
	all := depth == "all"
	var page bytes.Buffer
	for _, part := range []struct {
		name, verb string
		local      bool
	}{{"fake up", "up", false}, {"fake down", "down", false}, {"fake run", "run", false}, {"sbx-local up", "up", true}, {"sbx-local down", "down", true}, {"sbx-local run", "run", true}} {
		t.Run(part.name, func(t *testing.T) {
			every := all
			if depth == "" && part.verb != "up" {
				t.Skip("takes minutes; set SBXPAIR_FAULTS=each, or all")
			}
			if part.local && part.verb == "run" {
				if !all {
					t.Skip("a run on sbx-local for every call takes minutes; set SBXPAIR_FAULTS=all")
				}
				every = false
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
			first := 1
			if part.verb == "run" && !all { // what comes before is up's
				first = slices.IndexFunc(ops, func(c seenCall) bool { return c.Op == "exec" }) + 1
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
								switch {
								case n%lanes != lane, !every && n < first:
									continue
								case depth == "" && (n != 1+i*len(ops)/len(faults()) || part.local && !slices.Contains([]string{"hang", "SIGTERM", "SIGKILL", "daemon killed"}, fault)):
									continue
								case depth != "" && !every && n%len(faults()) != i:
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
			page.WriteString(text)
		})
	}
	if *update && !t.Failed() {
		path := filepath.Join("..", "..", "docs", "reference", "faults.md")
		if err := os.WriteFile(path, append([]byte(faultsIntro), page.Bytes()...), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

const faultsIntro = `# Faults

What happens to ` + "`up`, `run` and `down`" + ` when one call of the engine goes wrong, for every call and every way. A cell is the exit code
([exit-codes.md](exit-codes.md)); ` + "`p`" + ` says that ` + "`sbxpair prune --force`" + ` was needed afterwards, ` + "`d`" + ` that another ` + "`down`" + ` was, as after SIGKILL it
always is. In every cell, asserted by the test: no sandbox, secret or rule of the pair is left in the engine, somebody else's sandbox with its
secret and rule is untouched, no lease is open, and a message names the step. Calls that go out at the same time can change
places; the names are those of a clean pass. 0 means that the call was made again, or that the work can do without it.

Here each call meets one of the faults, and each fault some calls; a whole run begins where ` + "`up`" + ` ends. It is what
` + "`SBXPAIR_FAULTS=each go test ./cmd/sbxpair -run FaultTable -timeout 1h -update`" + ` saw; ` + "`SBXPAIR_FAULTS=all`" + ` (and 3h) fills the
empty cells. ` + "`make test`" + ` makes every fault meet one call of ` + "`up`" + `, and in ` + "`provision TestFaultAtEveryCall`" + ` every call of making a pair
meet five faults.
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
