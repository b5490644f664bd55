//go:build linux

package loop

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// What a step leaves running is ended on an engine that runs something of its own in the sandbox, as Docker's does, too: also
// what has left its parent, its session and its environment behind, and what was started as root. The engine's own stays. The
// machine is a real one of sbx-local, which the client and the run take for Docker's.
func TestQuiesceBesideTheEngine(t *testing.T) {
	program, err := filepath.Abs("../bin/sbx-local")
	if err != nil {
		t.Fatal(err)
	}
	missing := t.Skip
	if os.Getenv("CI") == "true" {
		missing = t.Fatal
	}
	if _, err := os.Stat(program); err != nil {
		missing("sbx-local is not built (make build): ", err)
	}
	added := sbx.WithAddedEnv("SBX_LOCAL_STATE=" + t.TempDir())
	found, err := sbx.Locate(t.Context(), sbx.LocateOptions{Prefer: sbx.PreferLocal, Client: []sbx.Option{added}, LookPath: func(string) (string, error) { return program, nil }})
	if err != nil {
		missing("sbx-local cannot isolate here: ", err)
	}
	own, id := found.Client(), pair.NewRunID(time.Now())
	box := id.Name(pair.RoleAgent)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		own.Remove(ctx, box)
		if err := own.DaemonStop(ctx); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := own.PolicyInit(ctx, sbx.PresetDenyAll); err != nil {
		t.Fatal(err)
	}
	if _, err := own.Create(ctx, sbx.CreateSpec{Name: box, MemoryMiB: 512}); err != nil {
		t.Fatal(err)
	}
	engine := sbx.New(program, added, sbx.WithVersion(sbx.Version{Engine: sbx.EngineSbx, Client: sbx.Newest()}))
	r := &run{
		id: id, engineRef: pair.EngineRef{Kind: pair.EngineSbx}, redact: secrets.NewRedactor(),
		pair: pair.Attach(engine, pair.NewStore(t.TempDir()), pair.Lease{Run: id}),
	}
	var notes []string
	if r.log, err = events.Create(filepath.Join(t.TempDir(), "events.jsonl"), string(id), r.redact.Bytes, func(p events.Payload) {
		if n, is := p.(events.Noted); is {
			notes = append(notes, n.Text)
		}
	}); err != nil {
		t.Fatal(err)
	}
	defer r.log.Close()
	sh := func(user, script string) string {
		t.Helper()
		res, err := own.Exec(ctx, box, sbx.ExecSpec{Argv: []string{"sh", "-c", script}, User: user, Dir: "/", Timeout: 20 * time.Second})
		if err != nil || res.Code != 0 {
			t.Fatalf("%s: exit %d, %v\n%s", script, res.Code, err, res.Stderr)
		}
		return string(res.Stdout)
	}
	const hidden = `env -i sh -c 'setsid sleep %s >/dev/null 2>&1 </dev/null &'; `
	sh("root", strings.ReplaceAll(hidden, "%s", "4001")) // the engine's
	if err := r.takeInventory(ctx); err != nil {
		t.Fatal(err)
	}
	sh("", strings.ReplaceAll(hidden, "%s", "4002"))
	sh("root", strings.ReplaceAll(hidden, "%s", "4003"))
	sh("", `nohup sh -c 'while :; do (sleep 4004 & wait) & sleep 0.05; done' >/dev/null 2>&1 &`) // forks on while it is looked at
	const running = `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <"$f" 2>/dev/null; echo; done | grep -o '^sleep 400.' | sort -u`
	if got := strings.Fields(sh("root", running)); len(got) < 6 {
		t.Fatalf("running before: %q", got)
	}
	r.quiesce(ctx)
	if got := sh("root", running); got != "sleep 4001\n" || len(notes) > 0 {
		t.Errorf("left running:\n%s%q", got, notes)
	}
	// The engine stopped the sandbox and started it again: what runs now is its own, and is learnt anew.
	r.inventory = strings.Replace(r.inventory, "/", "0/", 1)
	sh("root", strings.ReplaceAll(hidden, "%s", "4005"))
	r.quiesce(ctx)
	sh("", strings.ReplaceAll(hidden, "%s", "4006"))
	r.quiesce(ctx)
	if got := sh("root", running); got != "sleep 4001\nsleep 4005\n" || len(notes) > 0 {
		t.Errorf("left running after a restart:\n%s%q", got, notes)
	}
}
