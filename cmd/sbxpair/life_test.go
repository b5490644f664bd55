//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sbxpair/sbxpair/fixtures/demo/stage"
	"github.com/sbxpair/sbxpair/pair"
)

// orphan leaves a pair whose owner is dead, with a file that the agent changed since, and returns its run and folder.
func (s *scene) orphan() (pair.RunID, string) {
	s.t.Helper()
	up := s.drive("up")
	up.want(s.t, 0)
	run := pair.RunID(strings.TrimSpace(up.stdout))
	s.change(run, func(l *pair.Lease) {
		l.Kept, l.Owner.Start = false, "1" // the id was given to another process since
	})
	dir := pair.NewStore(filepath.Join(s.State, "sbxpair")).Dir(run)
	changed := filepath.Join(dir, "workspace", "work", "slugify", "slugify.sh")
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(changed, later, later); err != nil {
		s.t.Fatal(err)
	}
	return run, dir
}

// runDir is the folder of a run.
func (s *scene) runDir(run pair.RunID) string {
	return pair.NewStore(filepath.Join(s.State, "sbxpair")).Dir(run)
}

// change edits the lease of a run.
func (s *scene) change(run pair.RunID, edit func(*pair.Lease)) {
	s.t.Helper()
	store := pair.NewStore(filepath.Join(s.State, "sbxpair"))
	l, err := store.Load(run)
	if err != nil {
		s.t.Fatal(err)
	}
	edit(&l)
	if err := store.Save(l); err != nil {
		s.t.Fatal(err)
	}
}

// onTerminal runs the command on a terminal, types the answer when it asks, and returns what it showed before that and
// its exit code.
func (s *scene) onTerminal(answer string, args ...string) (before string, code int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.Command(ctx, append([]string{"--config", s.Config}, args...)...)
	terminal, err := pty.Start(cmd)
	if err != nil {
		s.t.Fatal(err)
	}
	defer terminal.Close()
	var shown bytes.Buffer
	chunk := make([]byte, 4096)
	for asked := false; ; {
		n, err := terminal.Read(chunk)
		shown.Write(chunk[:n])
		if !asked && bytes.Contains(shown.Bytes(), []byte("(y/N)")) {
			asked, before = true, shown.String()
			if _, err := terminal.WriteString(answer); err != nil {
				s.t.Fatal(err)
			}
		}
		if err != nil { // EIO when the other side closes
			break
		}
	}
	cmd.Wait()
	if before == "" {
		s.t.Errorf("nothing was asked:\n%s", shown.String())
	}
	return before, cmd.ProcessState.ExitCode()
}

// TestFieldReports holds rows of the category cleanup that are about the command.
func TestFieldReports(t *testing.T) {
	t.Run("R100", func(t *testing.T) { // what would be lost is said before the question, and no answer is a no
		s := setScene(t, false)
		run, dir := s.orphan()
		for _, answer := range []string{"\x04", "n\n", "\n"} {
			before, code := s.onTerminal(answer, "prune")
			if code != exitUsage || !strings.Contains(before, "LOST with it: changed files in the agent's folder") || !strings.Contains(before, "slugify.sh") || !strings.Contains(before, "lose work") {
				t.Errorf("answer %q: exit code %d, before the question:\n%s", answer, code, before)
			}
			if _, err := os.Stat(filepath.Join(dir, "workspace")); err != nil {
				t.Fatalf("answer %q: the work is gone: %v", answer, err)
			}
		}
		sbxpair(t, s.Stage, "prune").want(t, exitUsage, "nothing removed", "--force")
		sbxpair(t, s.Stage, "doctor", "--fix", "--dry-run").want(t, 0, "would fix leftovers.pairs", string(run), "LOST with it: "+string(run)+": changed files in the agent's folder")
		before, code := s.onTerminal("n\n", "doctor", "--fix")
		if code != exitUsage || !strings.Contains(before, "LOST with it") || !strings.Contains(before, "lose work") {
			t.Errorf("doctor --fix: exit code %d, before the question:\n%s", code, before)
		}
		dry := sbxpair(t, s.Stage, "prune", "--dry-run", "--json")
		dry.want(t, 0, string(run), `"lost"`)
		if ls := sbxpair(t, s.Stage, "ls"); !strings.Contains(ls.stdout, "orphaned, unfetched work") {
			t.Errorf("ls: %s", ls.stdout)
		}
		if _, code := s.onTerminal("y\n", "prune"); code != 0 {
			t.Errorf("after a yes: exit code %d", code)
		}
		if after := s.held(); after != s.before {
			t.Errorf("after prune the engine holds\n%s\nbefore\n%s", after, s.before)
		}
	})
	t.Run("R098", func(t *testing.T) { // helpers keep the daemon down: the cause is named, and nobody's process is ended
		s := setScene(t, false)
		helper := exec.CommandContext(t.Context(), "sleep", "300")
		if err := helper.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { helper.Process.Kill(); helper.Wait() }()
		s.orphan()
		script := filepath.Join(s.shim.dir, "script.yaml")
		fine, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		down := string(fine) + "calls:\n- match: .\n  stderr: \"ERROR: ensure daemon: daemon failed to start properly after 10 retries, check logs at: /var/log/sandboxd/daemon.log\\n\"\n  code: 1\n"
		if err := os.WriteFile(script, []byte(down), 0o600); err != nil {
			t.Fatal(err)
		}
		s.script("", 0)
		sbxpair(t, s.Stage, "prune", "--force").want(t, exitEngine, "daemon failed to start properly", "/var/log/sandboxd/daemon.log")
		calls, err := s.shim.calls()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range calls {
			if strings.HasPrefix(c.Op, "daemon") || c.Op == "stop" || c.Op == "rm" || c.Op == "reset" {
				t.Errorf("%s was called on an engine that is down", c.Op)
			}
		}
		if o := (pair.Owner{PID: helper.Process.Pid, Boot: pair.Self().Boot, Host: pair.Self().Host}); o.Check() != pair.Alive {
			t.Errorf("a process that is not ours is %s", o.Check())
		}
		if err := os.WriteFile(script, fine, 0o600); err != nil {
			t.Fatal(err)
		}
		sbxpair(t, s.Stage, "prune", "--force").want(t, 0, "removed")
	})
}

// The life of a record: an owner that cannot be looked at, an engine that is gone, a run that is long over.
func TestRecords(t *testing.T) {
	s := setScene(t, false)
	run, dir := s.orphan()
	s.change(run, func(l *pair.Lease) { l.Owner.Host, l.Owner.Boot = "elsewhere", "another" })
	sbxpair(t, s.Stage, "down", string(run)).want(t, exitUsage, "which is at work") // heard of just now
	long := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(dir, "lease.json"), long, long); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s.Stage, "ls").want(t, 0, "unknown", "@elsewhere")
	sbxpair(t, s.Stage, "github", "issue", "close", "3", "--dry-run").want(t, 0, "would ask GitHub for issue close #3 in "+stage.FullName)
	sbxpair(t, s.Stage, "resume", "--dry-run", string(run)).want(t, exitUsage, "cannot be gone on with")
	sbxpair(t, s.Stage, "deliver", "--dry-run", string(run)).want(t, exitUsage, "no work that is not delivered")
	sbxpair(t, s.Stage, "prune", "--force").want(t, 0, "nothing to prune")
	sbxpair(t, s.Stage, "down", string(run)).want(t, exitUsage, "--force")
	sbxpair(t, s.Stage, "down", "--dry-run", "--force", string(run)).want(t, 0, "would remove pair "+string(run), "LOST")
	if got := s.held(); got == s.before {
		t.Error("the dry run removed the pair")
	}
	sbxpair(t, s.Stage, "down", "--force", string(run)).want(t, 0, "removed "+string(run))

	gone, _ := s.orphan()
	s.change(gone, func(l *pair.Lease) { l.Engine.Path, l.Kept = "/nowhere/sbx", true })
	sbxpair(t, s.Stage, "down", string(gone)).want(t, exitLeft, "not there any more", "--force")
	sbxpair(t, s.Stage, "down", "--force", string(gone)).want(t, 0)
	sbxpair(t, s.Stage, "prune", "--force").want(t, 0, "something of it is still there") // found by its names
	if got := s.held(); got != s.before {
		t.Errorf("the engine holds\n%s\nbefore\n%s", got, s.before)
	}

	stray := s.runDir(pair.NewRunID(time.Now())) // whoever made it was killed before it wrote a lease
	if err := os.Mkdir(stray, 0o700); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s.Stage, "prune", "--force").want(t, 0, "nothing to prune") // records are young, and so is what has none yet
	if err := os.Chtimes(stray, long, long); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s.Stage, "prune", "--dry-run").want(t, 0, "would remove the folder "+stray)
	sbxpair(t, s.Stage, "prune", "--force").want(t, 0, "removed the record of "+filepath.Base(stray))
	torn := s.runDir(pair.NewRunID(time.Now()))
	if err := errors.Join(os.Mkdir(torn, 0o700), os.WriteFile(filepath.Join(torn, "lease.json"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	sbxpair(t, s.Stage, "ls").want(t, exitUsage, torn, "move its folder away")
	sbxpair(t, s.Stage, "down", filepath.Base(torn)).want(t, exitUsage, "cannot be read", "move its folder away")
	sbxpair(t, s.Stage, "prune", "--force").want(t, exitUsage, torn, "move its folder away")
	if err := os.RemoveAll(torn); err != nil {
		t.Fatal(err)
	}
	runs := filepath.Dir(torn)
	if err := errors.Join(os.Rename(runs, runs+".away"), os.WriteFile(runs, nil, 0o600)); err != nil { // as with somebody else's folder
		t.Fatal(err)
	}
	for _, verb := range [][]string{{"ls"}, {"down", "--all"}, {"prune", "--force"}, {"prune", "--dry-run"}, {"pool", "ls"}, {"exec", "--", "true"}} {
		got := sbxpair(t, s.Stage, verb...)
		if got.code == 0 || !strings.Contains(got.stderr, "list runs") || strings.Contains(got.stdout+got.stderr, "nothing to") || strings.Contains(got.stderr, "no pair") {
			t.Errorf("%v, where no record can be looked for: %d\n%s%s", verb, got.code, got.stdout, got.stderr)
		}
	}
	if err := errors.Join(os.Remove(runs), os.Rename(runs+".away", runs)); err != nil {
		t.Fatal(err)
	}
	s.change(run, func(l *pair.Lease) { l.Closed = time.Now().Add(-31 * 24 * time.Hour) })
	if err := os.WriteFile(filepath.Join(dir, "work.bundle"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	dry := sbxpair(t, s.Stage, "prune", "--dry-run")
	dry.want(t, 0, "would forget the record of run "+string(run), "LOST with it: work that was not delivered")
	if strings.Contains(dry.stdout, string(gone)) {
		t.Error("a young record would go")
	}
	var result struct {
		DryRun  bool `json:"dry_run"`
		Steps   []change
		Records []pair.RunID `json:"records_removed"`
	}
	if err := json.Unmarshal([]byte(sbxpair(t, s.Stage, "prune", "--force", "--records", "0s", "--json").stdout), &result); err != nil || len(result.Records) != 2 || result.DryRun {
		t.Errorf("prune --records 0s: %+v, %v", result, err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the record is still there: %v", err)
	}
}

// A mistake in sbxpair itself, wherever in a run: it is told as what it is, and nothing is left.
func TestPanic(t *testing.T) {
	s := setScene(t, false)
	for _, at := range []string{"workspace ", "proof ", "agent: "} { // in the run, and while a stranger's output is read
		plain := s.Env
		s.Env = append(slices.Clone(plain), mineAt+"="+at)
		got := s.drive("run")
		got.want(t, exitFailed, "internal error: a mine at "+at, "this is a mistake in it")
		s.Env = plain
		if after := s.held(); after != s.before {
			t.Errorf("panic at %q: the engine holds\n%s\nbefore\n%s", at, after, s.before)
		}
		sbxpair(t, s.Stage, "ls", "--json").want(t, 0, `"runs": []`)
		s.delivered("panic at "+at, got)
	}
}

// A closed terminal, and timeout(1), while a call of the engine hangs: the command cleans up and says by its code what ended it.
func TestTerminalIsClosed(t *testing.T) {
	s := setScene(t, false)
	const at = 11
	for name, end := range map[string]struct {
		code  int
		start func(*exec.Cmd) (*exec.Cmd, func())
	}{
		"a closed terminal": {129, func(cmd *exec.Cmd) (*exec.Cmd, func()) {
			terminal, err := pty.Start(cmd)
			if err != nil {
				t.Fatal(err)
			}
			return cmd, func() { terminal.Close() } // what was shown fits into its buffer: a read under way would keep it open
		}},
		"timeout": {143, func(cmd *exec.Cmd) (*exec.Cmd, func()) {
			program, err := exec.LookPath("timeout")
			if err != nil {
				t.Skip("timeout(1) is not installed")
			}
			cmd.Path, cmd.Args = program, append([]string{"timeout", "--preserve-status", "600"}, cmd.Args...)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			return cmd, func() { cmd.Process.Signal(syscall.SIGTERM) } // as when its time is over: it hands the signal on to its whole group
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s.script("hang", at)
			cmd, stop := end.start(s.Command(t.Context(), "--config", s.Config, "up", "--repo", stage.FullName, "--dir", s.Work))
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				if seen, err := s.shim.calls(); err == nil && len(seen) >= at {
					break
				}
				if time.Now().After(deadline) {
					t.Fatal("the call that hangs does not come")
				}
			}
			stop()
			cmd.Wait()
			if code := cmd.ProcessState.ExitCode(); code != end.code {
				t.Errorf("exit code %d, want %d", code, end.code)
			}
			s.script("", 0)
			if after := s.held(); after != s.before {
				t.Errorf("the engine holds\n%s\nbefore\n%s", after, s.before)
			}
			sbxpair(t, s.Stage, "ls", "--json").want(t, 0, `"runs": []`)
		})
	}
}
