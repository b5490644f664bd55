package main

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// options are those of every engine client.
func (a *app) options(appName string) []sbx.Option {
	opts := []sbx.Option{sbx.WithLogger(a.log)}
	// A configuration that cannot be read is reported by the verb that needs it; one that only removes works without.
	if loaded, err := a.settings(nil); err == nil && loaded.Config.Limits.Call > 0 {
		d := time.Duration(loaded.Config.Limits.Call)
		opts = append(opts, sbx.WithTimeouts(sbx.Timeouts{Version: d, Query: d, Create: d, Stop: d, Remove: d, Change: d, Copy: d, Template: d, Diagnose: d, Daemon: d}))
	}
	if appName != "" {
		opts = append(opts, sbx.WithAppName(appName))
	}
	if dir := os.Getenv("SBXPAIR_RECORD"); dir != "" {
		opts = append(opts, sbx.WithRecorder(dir))
	}
	return opts
}

// locateOptions says where an engine is looked for.
func (a *app) locateOptions(want pair.EngineRef) sbx.LocateOptions {
	o := sbx.LocateOptions{
		Prefer: map[string]sbx.Preference{
			pair.EngineSbx: sbx.PreferSbx, pair.EngineLocal: sbx.PreferLocal, "local": sbx.PreferLocal, "auto": sbx.PreferAuto,
		}[want.Kind],
		LookPath: exec.LookPath, Client: a.options(want.AppName),
	}
	if want.Path != "" {
		o.LookPath = func(string) (string, error) { return exec.LookPath(want.Path) }
	} else if self, err := os.Executable(); err == nil {
		o.Executable = self
	}
	return o
}

// locate chooses an engine: the one that a lease names, or the one that the configuration prefers. It makes sure that
// the engine can be used now.
func (a *app) locate(ctx context.Context, want pair.EngineRef) (*sbx.Client, pair.EngineRef, error) {
	found, err := sbx.Locate(ctx, a.locateOptions(want))
	if err != nil {
		return nil, pair.EngineRef{}, err
	}
	a.log.Debug("engine chosen", "engine", found.Kind, "path", found.Path, "reason", found.Reason)
	ref := pair.EngineRef{
		Kind: found.Kind, Path: found.Path, Version: strings.TrimPrefix(found.Version.Client.String(), "v"),
		Isolation: found.Version.Isolation, AppName: want.AppName, PolicyUnset: found.PolicyUnset,
	}
	return found.Client(), ref, nil
}

// locator returns a function that finds the engine which the configuration asks for.
func (a *app) locator(c config.Engine) func(context.Context) (*sbx.Client, pair.EngineRef, error) {
	return func(ctx context.Context) (*sbx.Client, pair.EngineRef, error) { return a.locate(ctx, wanted(c)) }
}

// wanted is the configured engine in the form of a lease's.
func wanted(c config.Engine) pair.EngineRef {
	return pair.EngineRef{Kind: c.Kind, Path: c.Path, AppName: c.AppName}
}

// known reaches the engine of a lease without asking it first whether it is in order: what has to be removed is there.
func (a *app) known(ref pair.EngineRef) *sbx.Client {
	return sbx.New(ref.Path, a.options(ref.AppName)...)
}

// engines lists the engines that open leases name, and the one that the configuration prefers if it can be used.
func (a *app) engines(ctx context.Context) ([]pair.EngineRef, error) {
	var refs []pair.EngineRef
	add := func(ref pair.EngineRef) {
		for _, known := range refs {
			if known.Same(ref) {
				return
			}
		}
		refs = append(refs, ref)
	}
	leases, err := a.leases()
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if l.State == pair.Open {
			add(l.Engine)
		}
	}
	loaded, err := a.settings(nil)
	if err != nil {
		return nil, err
	}
	_, ref, err := a.locate(ctx, wanted(loaded.Config.Engine))
	switch {
	case err == nil:
		add(ref)
	case len(refs) == 0:
		return nil, err
	}
	return refs, nil
}
