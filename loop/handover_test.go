//go:build linux

package loop

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/workspace"
)

// stored is a run that is over, with a delivery that is not, as its folder keeps it; and what asks to go on with it, on Docker's sbx.
func stored(t *testing.T, cfg config.Config, h Handover) (Request, pair.RunID) {
	t.Helper()
	store, id := pair.NewStore(t.TempDir()), pair.NewRunID(time.Now())
	if err := store.Create(pair.Lease{Run: id, State: pair.Closed, Outcome: "refused"}); err != nil {
		t.Fatal(err)
	}
	h.Run, h.Head, h.Branch, h.BaseBranch, h.Title = id, strings.Repeat("1", 40), "sbxpair/"+string(id), "main", "A change"
	for name, v := range map[string]any{
		askedFile:    Asked{Run: id, Task: "A change", Repository: "octo/app", Config: cfg},
		stateFile:    State{Workspace: workspace.Workspace{Dir: t.TempDir()}},
		handoverFile: h,
		workFile:     "bundle",
	} {
		text, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(store.Dir(id), name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return Request{
		Config: cfg, Store: store,
		Lookup: func(name string) (string, bool) { return "github_pat_11AAAAAAA0" + strings.Repeat(name[:1], 60), true },
		Locate: func(context.Context) (*sbx.Client, pair.EngineRef, error) {
			return nil, pair.EngineRef{Kind: pair.EngineSbx, Version: "0.47.0"}, nil
		},
	}, id
}

// The way that cannot work is refused before anything is made, also for a run that is gone on with or finished on another engine.
func TestWayIsCheckedAgain(t *testing.T) {
	cfg := config.Default()
	cfg.GitHub.Host = "ghe.example.test"
	req, id := stored(t, cfg, Handover{Verdict: github.Verdict{Decision: github.Allow}})
	for name, again := range map[string]struct {
		do   func(context.Context, Request, pair.RunID) (Result, error)
		hint string
	}{"resume": {Resume, "start it anew with api"}, "deliver": {Deliver, "--engine local"}} {
		_, err := again.do(t.Context(), req, id)
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), "github.way") || !strings.Contains(err.Error(), again.hint) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the gate refused is judged again by the settings of whoever is here today, and by nothing else of theirs.
func TestRefusalIsJudgedAgain(t *testing.T) {
	own := config.Default()
	changed := []github.FileChange{{Path: ".github/workflows/x.yml", Status: "A", Mode: "100644", OldMode: "000000"}}
	refused := Handover{Changed: changed, Verdict: github.Verdict{Decision: github.Refuse, Reasons: []github.Reason{{Code: github.ReasonProtected, Decision: github.Refuse, Path: changed[0].Path}}}}
	secret := refused
	secret.Final = "it holds a credential"
	for name, tt := range map[string]struct {
		h     Handover
		today func(*config.Config)
		want  string // of the error; "" if the gate has no more to say
	}{
		"as it was":              {refused, func(*config.Config) {}, "once your own gate settings allow it, sbxpair deliver "},
		"allowed today":          {refused, func(c *config.Config) { c.Gate.ProtectMode = "allow" }, ""},
		"to be decided today":    {refused, func(c *config.Config) { c.Gate.ProtectMode = "ask" }, ""},
		"another prefix today":   {refused, func(c *config.Config) { c.Gate.ProtectMode, c.GitHub.BranchPrefix = "allow", "other/" }, ""},
		"for good":               {secret, func(c *config.Config) { c.Gate.ProtectMode = "allow" }, "it holds a credential"},
		"narrower in other ways": {refused, func(c *config.Config) { c.Gate.ProtectMode, c.Gate.Only = "allow", []string{"src/**"} }, "not-allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			req, id := stored(t, own, tt.h)
			tt.today(&req.Config)
			made := errors.New("the engine was asked for")
			req.Locate = func(context.Context) (*sbx.Client, pair.EngineRef, error) { return nil, pair.EngineRef{}, made }
			_, err := Deliver(t.Context(), req, id)
			if tt.want == "" && !errors.Is(err, made) || tt.want != "" && (!errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("%v", err)
			}
			if tt.h.Final != "" && strings.Contains(err.Error(), "sbxpair deliver") {
				t.Errorf("names a command that cannot help: %v", err)
			}
		})
	}
}

// Two deliveries of one run at a time would do things twice: the second one is told of the first.
func TestOneDeliveryAtATime(t *testing.T) {
	req, id := stored(t, config.Default(), Handover{Verdict: github.Verdict{Decision: github.Allow}})
	made, inside, release := errors.New("the engine was asked for"), make(chan struct{}), make(chan struct{})
	first := req
	first.Locate = func(context.Context) (*sbx.Client, pair.EngineRef, error) {
		close(inside)
		<-release
		return nil, pair.EngineRef{}, made
	}
	ended := make(chan error)
	go func() { _, err := Deliver(t.Context(), first, id); ended <- err }()
	<-inside
	if _, err := Deliver(t.Context(), req, id); !errors.Is(err, pair.ErrOwned) || !strings.Contains(err.Error(), "by another process") {
		t.Errorf("the second one at the same time: %v", err)
	}
	close(release)
	if err := <-ended; !errors.Is(err, made) {
		t.Errorf("the first one: %v", err)
	}
	req.Locate = func(context.Context) (*sbx.Client, pair.EngineRef, error) { return nil, pair.EngineRef{}, made }
	if _, err := Deliver(t.Context(), req, id); !errors.Is(err, made) {
		t.Errorf("the one after it: %v", err)
	}
}
