package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/doctor/conformance"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// ConformanceState is the name of the engine state (--app-name) that the conformance suite has for itself. With sbx-local it
// is always used; with sbx it needs a login of its own and so is used only if the configuration names it.
const ConformanceState = "sbxpair-conformance"

// Conformance is the table of one engine, and what changed since another version of it.
type Conformance struct {
	conformance.Report
	Drift []Drift `json:"drift,omitempty"`
}

// Conform asks the conformance suite's questions of the engine that a run would take. Its sandboxes have a lease and names
// of ours, so that prune finds them if this process dies, and are removed in the end. runner makes raw calls of the
// engine's program. The error matches [conformance.ErrDiffers] if something differs that nobody has explained.
func Conform(ctx context.Context, o Options, runner func(path string) sbx.Runner) (c Conformance, err error) {
	engine, err := sbx.Locate(ctx, o.Locate)
	if err != nil {
		return c, err
	}
	app := o.Config.Engine.AppName
	if engine.Kind == sbx.EngineLocal {
		app = ConformanceState
	}
	var global []string
	if app != "" {
		global = []string{"--app-name=" + app}
	}
	run := runner(engine.Path)
	client := sbx.New(engine.Path, sbx.WithRunner(run), sbx.WithAppName(app))
	id := pair.NewRunID(time.Now())
	p, err := pair.Acquire(client, o.Store, pair.Lease{
		Run: id, Created: time.Now().UTC(), Owner: pair.Self(),
		Engine: pair.EngineRef{Kind: engine.Kind, Path: engine.Path, Version: engine.Version.Client.String(), Isolation: engine.Version.Isolation, AppName: app},
	})
	if err != nil {
		return c, err
	}
	dir := filepath.Join(o.Store.Dir(id), "workspace")
	defer func() {
		_, releaseErr := p.Release(ctx, "conformance", releaseLimit)
		err = errors.Join(err, releaseErr, os.RemoveAll(dir))
	}()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return c, err
	}
	c.Report, err = conformance.Run(ctx, conformance.Options{
		Runner: run, Global: global, First: id.Name(pair.RoleAgent), Second: id.Name(pair.RoleGitHub), Dir: dir,
		Alone: app == ConformanceState, Progress: o.Progress,
	})
	if err != nil {
		return c, fmt.Errorf("conformance: %w", err)
	}
	found := remembered{Engine: engineName(engine.Version), Kind: engine.Kind, Program: programStamp(engine.Path), Settings: "suite", At: time.Now().UTC()}
	for _, r := range c.Results {
		if r.Verdict != conformance.Skipped && r.Verdict != conformance.Unknown {
			found.Checks = append(found.Checks, Check{ID: r.ID, Verdict: Verdict(r.Verdict), Detail: r.Got})
		}
	}
	c.Drift = drift(found.Checks, found.Engine, recall(o.State, subjectConformance, engine.Kind, found.Settings))
	return c, errors.Join(c.Err(), remember(o.State, subjectConformance, found))
}
