package provision

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// SetupEngine is what setting up a sandbox needs of an engine's client.
type SetupEngine interface {
	pair.Execer
	CopyIn(ctx context.Context, sandbox, hostPath, guestPath string) error
}

const (
	setupLimit = 15 * time.Minute // of one command
	maxScanned = 4 << 20          // bytes of a file that are looked through for credentials
)

// linkTools makes the programs of a folder callable by name, whatever PATH a process has.
const linkTools = `cd "$1" && if [ -d bin ]; then cd bin; fi && for f in "$PWD"/*; do if [ -f "$f" ] && [ -x "$f" ]; then ln -sf "$f" /usr/local/bin/ || exit 1; fi; done`

// SetUp does what the plan says about both sandboxes beside the split: toolchains, files, commands, in this order, both
// sandboxes at the same time. It comes after the proof, so that nothing has run in a sandbox that is proven. The error
// matches [ErrRefused] for a file that holds what has the shape of a credential, and names the role and the step.
func SetUp(ctx context.Context, engine SetupEngine, plan Plan) (Report, error) {
	a := &apply{plan: plan}
	var steps []func(context.Context) error
	for _, s := range plan.Specs() {
		steps = append(steps, func(ctx context.Context) error {
			if err := a.setUp(ctx, engine, s); err != nil {
				return fmt.Errorf("set up the %s sandbox: %w", s.Role, err)
			}
			return nil
		})
	}
	err := both(ctx, steps...)
	return Report{a.calls, a.notes}, err
}

func (a *apply) setUp(ctx context.Context, engine SetupEngine, s Spec) error {
	for _, dir := range s.Setup.Toolchains {
		if s.Role == pair.RoleGitHub { // which mounts nothing
			at := path.Join("/opt", path.Base(filepath.ToSlash(dir)))
			if err := a.copyIn(ctx, engine, s, config.SetupFile{From: dir, To: at}); err != nil {
				return err
			}
			dir = at
		}
		if err := a.inside(ctx, engine, s, "toolchain "+dir, sbx.ExecSpec{User: "root", Dir: "/", Argv: []string{"sh", "-c", linkTools, "sh", sbx.GuestPath(dir)}}); err != nil {
			return err
		}
	}
	for _, file := range s.Setup.Files {
		if err := a.copyIn(ctx, engine, s, file); err != nil {
			return err
		}
	}
	for _, command := range s.Setup.Commands {
		if err := a.inside(ctx, engine, s, fmt.Sprintf("command %q", command), sbx.ExecSpec{Argv: []string{"sh", "-c", command}}); err != nil {
			return err
		}
	}
	return nil
}

// inside runs one command of the setup; one that fails ends it.
func (a *apply) inside(ctx context.Context, engine SetupEngine, s Spec, what string, spec sbx.ExecSpec) error {
	spec.Timeout, spec.KillTree = setupLimit, true
	var res sbx.ExecResult
	err := a.call("exec "+string(s.Role), func() (err error) { res, err = engine.Exec(ctx, s.Name, spec); return err })
	if err == nil && res.Code != 0 {
		err = fmt.Errorf("exit %d: %.400s", res.Code, strings.TrimSpace(string(res.Stderr)+"\n"+string(res.Stdout)))
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

func (a *apply) copyIn(ctx context.Context, engine SetupEngine, s Spec, file config.SetupFile) error {
	if err := clean(file.From); err != nil {
		return err
	}
	parent := sbx.ExecSpec{User: "root", Dir: "/", Argv: []string{"sh", "-c", `[ -d "$1" ] || { mkdir -p "$1" && chown agent "$1"; }`, "sh", path.Dir(file.To)}}
	if err := a.inside(ctx, engine, s, "folder of "+file.To, parent); err != nil {
		return err
	}
	err := a.call("cp "+string(s.Role), func() error { return engine.CopyIn(ctx, s.Name, file.From, file.To) })
	if err != nil {
		return fmt.Errorf("file %s: %w", file.From, err)
	}
	return nil
}

// clean refuses files in which a credential would come into a sandbox.
func clean(from string) error {
	scanner := secrets.NewScanner()
	err := filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		info, err := entry.Info()
		if err != nil || info.Size() > maxScanned {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if found := scanner.Scan(text); len(found) > 0 {
			return fmt.Errorf("%w: %s holds what has the shape of a credential (%s), which must not come into a sandbox", ErrRefused, name, found[0].Kind)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("file %s: %w", from, err)
	}
	return nil
}

// HasSetup reports whether [SetUp] has anything to do.
func (p Plan) HasSetup() bool {
	for _, s := range p.Specs() {
		if len(s.Setup.Files)+len(s.Setup.Commands)+len(s.Setup.Toolchains) > 0 {
			return true
		}
	}
	return false
}
