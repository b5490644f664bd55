package sbx

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
)

// Preference says which engine to take.
type Preference string

// The preferences.
const (
	PreferAuto  Preference = "auto"  // sbx if it is ready, else sbx-local
	PreferSbx   Preference = "sbx"   // Docker Sandboxes or nothing
	PreferLocal Preference = "local" // sbx-local or nothing
)

// LocateOptions says where to look.
type LocateOptions struct {
	Prefer     Preference                   // "" is PreferAuto
	LookPath   func(string) (string, error) // exec.LookPath
	Executable string                       // our own program's file: sbx-local is looked for beside it first; "" is not
	Client     []Option                     // for the clients that probe, and those of [Engine.Client]; a recorder, say
}

// Engine is the engine chosen.
type Engine struct {
	Kind     string // EngineSbx or EngineLocal
	Path     string
	Version  Version
	Reason   string     // why this one, one line
	Rejected []Rejected // what was looked at before, in order
	// PolicyUnset says that no network policy preset was chosen yet: the first create would be refused. Only sbx-local
	// is taken in that state.
	PolicyUnset bool
	options     []Option
}

// Rejected is an engine that was not taken.
type Rejected struct {
	Kind   string
	Path   string // "" if it was not found
	Err    error
	Remedy string // what would make it usable
}

// Client returns a client for the engine, which knows its version already.
func (e Engine) Client(opts ...Option) *Client {
	all := append(append([]Option{}, e.options...), WithVersion(e.Version))
	return New(e.Path, append(all, opts...)...)
}

// NoEngineError says that no engine can be used, and for each why and what to do.
type NoEngineError struct{ Rejected []Rejected }

// Error lists the engines, one line each.
func (e *NoEngineError) Error() string {
	var b strings.Builder
	b.WriteString("no engine can be used")
	for _, r := range e.Rejected {
		fmt.Fprintf(&b, "\n  %s: %v", r.Kind, r.Err)
		if r.Remedy != "" {
			fmt.Fprintf(&b, "; to use it: %s", r.Remedy)
		}
	}
	return b.String()
}

// Unwrap gives the reason for each.
func (e *NoEngineError) Unwrap() []error {
	errs := make([]error, len(e.Rejected))
	for i, r := range e.Rejected {
		errs[i] = r.Err
	}
	return errs
}

// Locate chooses an engine. Docker's sbx has to be on the path, be Docker's (another tool shares the name), not be older
// than 0.35, be signed in and have its network policy set up; this costs three calls in two steps. sbx-local has to be
// beside our own program or on the path, and pass its own checks. If none can be used the error is a [*NoEngineError], or
// ctx's.
func Locate(ctx context.Context, o LocateOptions) (Engine, error) {
	if o.Prefer == "" {
		o.Prefer = PreferAuto
	}
	tries := map[Preference][]func(context.Context, LocateOptions) (Engine, Rejected){
		PreferAuto:  {locateSbx, locateLocal},
		PreferSbx:   {locateSbx},
		PreferLocal: {locateLocal},
	}[o.Prefer]
	if tries == nil {
		return Engine{}, fmt.Errorf("engine %q: %w: want auto, sbx or local", o.Prefer, ErrInvalid)
	}
	var rejected []Rejected
	for _, try := range tries {
		engine, r := try(ctx, o)
		if err := ctx.Err(); err != nil {
			return Engine{}, fmt.Errorf("choose an engine: %w", ctxError(ctx))
		}
		if r.Err == nil {
			engine.Rejected = rejected
			engine.options = o.Client
			if o.Prefer != PreferAuto {
				engine.Reason = "asked for; " + engine.Reason
			}
			return engine, nil
		}
		rejected = append(rejected, r)
	}
	return Engine{}, &NoEngineError{rejected}
}

func locateSbx(ctx context.Context, o LocateOptions) (Engine, Rejected) {
	r := Rejected{Kind: EngineSbx}
	reject := func(err error, remedy string) (Engine, Rejected) {
		r.Err, r.Remedy = err, remedy
		return Engine{}, r
	}
	path, err := o.LookPath(EngineSbx)
	if err != nil {
		return reject(fmt.Errorf("%w: sbx is not on the path", ErrNotInstalled), "install Docker Sandboxes, then sbx login")
	}
	r.Path = path
	client := New(path, o.Client...)
	v, err := client.Version(ctx)
	if err != nil {
		return reject(err, Hint(err))
	}
	e := Engine{Kind: v.Engine, Path: path, Version: v}
	if v.IsLocal() {
		return reject(fmt.Errorf("%w: %s is sbx-local under the name of sbx", ErrForeignTool, path), "install Docker Sandboxes, or ask for the local engine")
	}
	if err := client.ready(ctx, opVersion); err != nil {
		return reject(err, "update Docker Sandboxes")
	}
	// Signed in, and policy set up: asked at the same time.
	var listErr, policyErr error
	var wg sync.WaitGroup
	wg.Go(func() { _, listErr = client.List(ctx) })
	wg.Go(func() { _, policyErr = client.PolicyList(ctx, "") })
	wg.Wait()
	for _, err := range []error{listErr, policyErr} {
		if err != nil {
			return reject(err, Hint(err))
		}
	}
	e.Reason = fmt.Sprintf("%s at %s is signed in and has its network policy set up", v, path)
	return e, Rejected{}
}

func locateLocal(ctx context.Context, o LocateOptions) (Engine, Rejected) {
	r := Rejected{Kind: EngineLocal}
	reject := func(err error, remedy string) (Engine, Rejected) {
		r.Err, r.Remedy = err, remedy
		return Engine{}, r
	}
	path, err := findLocal(o)
	if err != nil {
		return reject(err, localHint)
	}
	r.Path = path
	client := New(path, o.Client...)
	v, err := client.Version(ctx)
	if err != nil {
		return reject(err, Hint(err))
	}
	if !v.IsLocal() {
		return reject(fmt.Errorf("%w: %s does not call itself sbx-local", ErrForeignTool, path), localHint)
	}
	d, err := client.Diagnose(ctx)
	if err != nil {
		return reject(err, Hint(err))
	}
	if failed := d.Failed(); len(failed) > 0 {
		first := failed[0]
		text := first.Name + ": " + first.Message
		if first.Detail != "" {
			text += " (" + first.Detail + ")"
		}
		return reject(fmt.Errorf("%w: %s", ErrEngine, text), first.Hint)
	}
	e := Engine{Kind: EngineLocal, Path: path, Version: v, Reason: fmt.Sprintf("%s at %s passes its checks", v, path)}
	for _, c := range d.Checks {
		e.PolicyUnset = e.PolicyUnset || c.Name == "Network policy" && c.Status == CheckWarn
	}
	return e, Rejected{}
}

const localHint = "put sbx-local on the path, or beside this program (Linux only)"

func findLocal(o LocateOptions) (string, error) {
	name := EngineLocal
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	if o.Executable != "" {
		beside := filepath.Join(filepath.Dir(o.Executable), name)
		info, err := os.Stat(beside)
		switch {
		case err == nil && info.Mode().IsRegular():
			return beside, nil
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return "", err
		}
	}
	path, err := o.LookPath(EngineLocal)
	if err != nil {
		return "", fmt.Errorf("%w: sbx-local is neither beside this program nor on the path", ErrNotInstalled)
	}
	return path, nil
}
