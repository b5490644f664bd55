//go:build linux

package main

import (
	"cmp"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/demo/repo"
	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
)

// cli makes the stage's agent a shell script that is driven and read as the Copilot CLI is: it may say anything.
func cli(t *testing.T, script string, change map[string]any) *stage.Stage {
	t.Helper()
	agent := map[string]any{"name": "copilot", "token": map[string]any{"env": "COPILOT_GITHUB_TOKEN"}, "command": []string{"sh", "-c", script, "sh"}}
	all := map[string]any{"agent": agent}
	for key, value := range change {
		all[key] = value
	}
	return program(t, "", all)
}

// What a CLI that works says at its end.
const (
	said  = `; echo '{"type":"assistant.message","data":{"content":"Done."}}'; `
	ended = `echo '{"type":"result","exitCode":0}'`
)

// An agent, and what it is judged by, can misbehave in any way: each ends with the documented code, in bounded time and memory,
// says what happened, keeps what was done, and leaves nothing (the stage looks).
func TestBadAgents(t *testing.T) {
	t.Parallel()
	t.Run("floods and asks", func(t *testing.T) {
		t.Parallel()
		flood := cmp.Or(os.Getenv("SBXPAIR_FLOOD"), "20000000") // of each stream, in bytes
		s := cli(t, `task=$(cat); case $task in *"Review a change"*) echo '{"type":"assistant.message","data":{"content":"LGTM!"}}'; `+ended+`; exit;; esac
printf '\033[2K\033]0;title\007working \200\377\r\n{"type":"assistant.message","data":{"content":"ha\n'
head -c `+flood+` /dev/zero | tr '\0' x; echo
head -c `+flood+` /dev/zero | tr '\0' y | fold -w 999 >&2
printf '{"type":"assistant.turn_start"}{"type":"assistant.turn_end"}\nAllow access to /etc? (y/n): '; read answer
`+fixWith("slugify.sh")+said+ended, map[string]any{"phases": []string{"execute", "verify", "review"}, "verify": []string{repo.Verify}})
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, exitFailed, "the review gave no verdict", "no JSON object")
		r := resultOf(t, got)
		if len(r.Sessions) != 3 || r.Agent.Outcome != "succeeded" || r.Agent.Turns != 1 || r.EndState == nil || r.EndState.Unfinished || r.Work == "" || r.Resumable {
			t.Errorf("result %+v", r)
		}
		t.Logf("twice %s bytes of output took at most %d MiB of this process's memory", flood, got.peak>>20)
		if got.peak > 512<<20 { // with the race detector; without it, a third
			t.Errorf("twice %s bytes of output took %d MiB of the host's memory", flood, got.peak>>20)
		}
		if strings.ContainsAny(got.stderr, "\x1b\a\x80\xff") {
			t.Errorf("the agent writes to the terminal: %q", got.stderr)
		}
	})
	t.Run("hangs and ignores SIGTERM", func(t *testing.T) {
		t.Parallel()
		s := program(t, `trap '' TERM INT HUP
if test -e half.txt; then rm half.txt; `+fixWith("slugify.sh")+`; exit; fi
echo half >half.txt
env -i setsid sh -c 'trap "" TERM; while :; do echo more >>leftover.txt; sleep 0.1; done' >/dev/null 2>&1 &
(while :; do sleep 1; done) & sleep 600`, map[string]any{"verify": []string{`trap "" TERM; sleep 3`, repo.Verify}, "limits": map[string]any{"execute": "2s", "verify": "1s", "revisions": 0}})
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, exitBudget, "time limit of 2s")
		r := resultOf(t, got)
		if r.Outcome != "budget spent" || !r.Resumable || r.Agent.Outcome != "cut-off" || r.EndState == nil || !r.EndState.Unfinished || !slices.Contains(r.EndState.Files, "half.txt") || r.Work == "" {
			t.Fatalf("result %+v, end state %+v", r, r.EndState)
		}
		sbxpair(t, s, "resume", string(r.Run), "--limit", "execute").want(t, exitUsage, "NAME=VALUE")
		sbxpair(t, s, "resume", string(r.Run), "--limit", "exectue=1h").want(t, exitUsage, "limits.execute")
		// It goes on from what there is; then a verify command takes as long as it likes.
		again := sbxpair(t, s, "resume", "--json", string(r.Run), "--limit", "execute=1m")
		again.want(t, exitBudget, "limits.execute", "from here on", "limits.verify (1s)")
		if r := resultOf(t, again); !r.Resumable || r.EndState == nil || r.EndState.Unfinished || !slices.Equal(r.EndState.Files, []string{"leftover.txt", "slugify.sh"}) {
			t.Fatalf("result %+v, end state %+v", r, r.EndState)
		}
		last := sbxpair(t, s, "resume", "--json", string(r.Run), "--limit", "verify=1m")
		last.want(t, 0)
		if r := resultOf(t, last); r.Delivered.Number == 0 || !slices.Equal(phasesOf(r), []string{"preflight", "workspace", "provision", "proof", "verify", "gate", "deliver", "release"}) {
			t.Errorf("result %+v", r)
		}
		if v := told(t, s, string(r.Run)); v.Outcome != "delivered" || v.Resumable || len(v.Sessions) != 2 {
			t.Errorf("told %+v", v.Result)
		}
	})
	t.Run("exits 0 having failed", func(t *testing.T) {
		t.Parallel()
		s := cli(t, `cat >/dev/null; `+fixWith("slugify.sh")+`; echo '{"type":"session.error","data":{"message":"the model went away","statusCode":500}}'; `+ended, nil)
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, exitFailed, "the model went away")
		if r := resultOf(t, got); r.Outcome != "failed" || r.Agent.Exit != 0 || r.EndState == nil || !r.EndState.Unfinished || !slices.Equal(r.EndState.Files, []string{"slugify.sh"}) || r.Resumable || r.Delivered.Branch != "" {
			t.Errorf("result %+v, end state %+v", r, r.EndState)
		}
	})
	t.Run("leaves what is refused as a whole", func(t *testing.T) { // and is not lost with it
		t.Parallel()
		s := program(t, fixWith("slugify.sh")+`; printf x >"$(printf 'bad\377name')"`, nil)
		got := sbxpair(t, s, runArgs(s)...)
		got.want(t, exitRefused, "not UTF-8")
		r := resultOf(t, got)
		if text, err := os.ReadFile(filepath.Join(r.Files, "slugify.sh")); err != nil || !strings.Contains(string(text), "-e 's/^-//'") || r.Resumable || r.Work != "" {
			t.Errorf("result %+v, %v", r, err)
		}
		sbxpair(t, s, "result", string(r.Run)).want(t, 0, "run nothing there")
		sbxpair(t, s, "prune", "--records", "0s", "--dry-run").want(t, 0, r.Files)
		sbxpair(t, s, "prune", "--records", "0s", "--force").want(t, 0, string(r.Run))
		if _, err := os.Stat(r.Files); err == nil {
			t.Errorf("%s is still there", r.Files)
		}
	})
	t.Run("is not there", func(t *testing.T) {
		t.Parallel()
		s := cli(t, "", map[string]any{"agent": map[string]any{"name": "copilot", "token": map[string]any{"env": "COPILOT_GITHUB_TOKEN"}, "command": []string{"no-such-copilot"}}})
		sbxpair(t, s, runArgs(s)...).want(t, exitUsage, "no-such-copilot", "docs/how-to/agent-cli.md")
	})
	t.Run("is too old", func(t *testing.T) {
		t.Parallel()
		s := cli(t, `echo "error: unknown option '--output-format'" >&2; exit 1`, nil)
		sbxpair(t, s, runArgs(s)...).want(t, exitUsage, "another version than this tool drives", "--output-format", "docs/how-to/agent-cli.md")
	})
	t.Run("leaves a fork bomb", func(t *testing.T) { // which ends with its sandbox, if nothing else ends it
		t.Parallel()
		s := program(t, fixWith("slugify.sh")+`
env -i setsid sh -c 'b() { b | b & }; b' >/dev/null 2>&1 &
sleep 1`, nil)
		limit := exec.CommandContext(t.Context(), filepath.Join("..", "..", "bin", "sbx-local"), "settings", "set", "limits.pids", "300") // for the sake of this machine
		limit.Env = s.Env
		if out, err := limit.CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		got := sbxpair(t, s, runArgs(s)...)
		r := resultOf(t, got)
		if r.EndState == nil || !slices.Equal(r.EndState.Files, []string{"slugify.sh"}) || r.Work == "" && r.Delivered.Number == 0 {
			t.Errorf("result %+v, end state %+v", r, r.EndState)
		}
		if got.code != 0 {
			got.want(t, exitEngine, "the sandbox went away")
			if !r.Resumable || !r.EndState.Unfinished {
				t.Errorf("result %+v, end state %+v", r, r.EndState)
			}
		}
	})
}

// A repository full of traps goes through a whole run: none runs anything, on the host, where their program lies in the same
// place as in the sandbox, in the github sandbox, or where the end state is taken.
func TestHostileRepositoryEndToEnd(t *testing.T) {
	t.Parallel()
	canary := filepath.Join(os.TempDir(), "sbxpair-canary-"+rand.Text())
	s := program(t, fixWith("slugify.sh")+`
trap=$PWD/.git/trap.sh
printf '#!/bin/sh\ntouch `+canary+`\n' >"$trap"; chmod +x "$trap"
for h in pre-commit commit-msg post-commit prepare-commit-msg post-checkout post-merge pre-push reference-transaction post-index-change pre-auto-gc pre-receive update post-receive; do cp "$trap" .git/hooks/$h; done
c() { git config "$@"; }
c filter.x.clean "$trap"; c filter.x.smudge "$trap"; c filter.x.process "$trap"; c diff.x.command "$trap"; c diff.x.textconv "$trap"; c diff.external "$trap"; c merge.x.driver "$trap"
echo '* filter=x diff=x merge=x' >.git/info/attributes
for v in status commit add bundle rev-parse log fetch push; do c alias.$v "!$trap"; done
c core.hooksPath "$PWD/.git/hooks"; c core.sshCommand "$trap"; c core.pager "$trap"; c core.editor "$trap"; c core.askPass "$trap"; c credential.helper "!$trap"
c gpg.program "$trap"; c commit.gpgSign true; c uploadpack.packObjectsHook "$trap"; c core.alternateRefsCommand "$trap"; c trailer.x.command "$trap"; c trailer.x.ifmissing add
c remote.origin.url "ext::$trap"; c remote.origin.uploadpack "$trap"; c remote.origin.promisor true; c protocol.ext.allow always; c url."ext::$trap ".insteadOf https://
printf '[core]\n\tfsmonitor = %s\n' "$trap" >.git/inc; c include.path inc
printf '[core]\n\tfsmonitor = %s\n[init]\n\ttemplateDir = %s\n' "$trap" "$PWD/.git" >"$HOME/.gitconfig"; echo "touch `+canary+`" >"$HOME/.profile"; cp "$HOME/.profile" "$HOME/.bashrc"
rm -f `+canary, map[string]any{"verify": []string{repo.Verify}})
	args := runArgs(s)
	got := sbxpair(t, s, append([]string{args[0], "--keep"}, args[1:]...)...)
	got.want(t, 0)
	if r := resultOf(t, got); r.Delivered.Number == 0 || !slices.Equal(r.EndState.Files, []string{"slugify.sh"}) {
		t.Errorf("result %+v, end state %+v", r, r.EndState)
	}
	if _, err := os.Lstat(canary); err == nil {
		t.Error("a trap was sprung on the host")
	}
	for _, role := range []string{"github", "agent"} {
		sbxpair(t, s, "exec", "--role", role, "--", "/bin/test", "!", "-e", canary).want(t, 0)
	}
	sbxpair(t, s, "exec", "--role", "agent", "--", "sh", "-c", "git status; true").want(t, 0)
	sbxpair(t, s, "exec", "--role", "agent", "--", "/bin/test", "-e", canary).want(t, 0) // they are traps
	sbxpair(t, s, "down", "--all").want(t, 0)
}
