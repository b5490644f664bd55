package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// engine chooses as a run would. Where none can be used it returns the first that is at least there, so that more can be
// said about it: path is "" if there is none at all.
func (e *examination) engine(ctx context.Context) (engine sbx.Engine, usable bool) {
	var rejected []sbx.Rejected
	c, err := attempt(ctx, e.limit(), "engine", func(ctx context.Context) (Check, error) {
		found, err := sbx.Locate(ctx, e.Locate)
		if none, ok := errors.AsType[*sbx.NoEngineError](err); ok {
			rejected = none.Rejected
			for _, r := range rejected {
				if unanswered(r.Err) { // it may answer the second time
					return Check{}, fmt.Errorf("%s: %w", r.Kind, r.Err)
				}
			}
			return Check{Verdict: Bad, Detail: "none can be used: " + reasons(rejected), Remedy: remedies(rejected)}, nil
		}
		if err != nil {
			return Check{}, err
		}
		engine, usable, rejected = found, true, found.Rejected
		detail := found.Reason
		if found.Version.Isolation != "" {
			detail += "; isolation: " + found.Version.Isolation
		}
		return Check{Verdict: OK, Detail: detail}, nil
	})
	e.add(c)
	if err != nil && unanswered(err) {
		e.silent = "engine"
	}
	for _, r := range rejected {
		c := Check{ID: "engine." + r.Kind, Verdict: Warn, Detail: "not taken: " + oneLine(r.Err.Error()), Remedy: r.Remedy}
		if errors.Is(r.Err, sbx.ErrNotInstalled) {
			c.Verdict = OK // there is nothing to mend about what nobody installed
		}
		e.add(c)
		if r.Path != "" && unanswered(r.Err) {
			e.mute = r.Path
		}
		there := r.Path != "" && !errors.Is(r.Err, sbx.ErrForeignTool) && !errors.Is(r.Err, sbx.ErrNotInstalled)
		if there && engine.Path == "" {
			engine = sbx.Engine{Kind: r.Kind, Path: r.Path}
		}
	}
	return engine, usable
}

// unanswered reports a failure that says nothing about the engine: a probe that was cut off, not one that said no.
func unanswered(err error) bool {
	for _, kind := range []error{sbx.ErrTimeout, sbx.ErrConnectionLost, sbx.ErrDaemon, context.DeadlineExceeded} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// reasons is one short line for all: what each said in full stands in its own check.
func reasons(rejected []sbx.Rejected) string {
	var list []string
	for _, r := range rejected {
		first, _, _ := strings.Cut(strings.TrimSpace(r.Err.Error()), "\n")
		list = append(list, fmt.Sprintf("%s (%s)", r.Kind, first))
	}
	return strings.Join(list, ", ")
}

func remedies(rejected []sbx.Rejected) string {
	var list []string
	for _, r := range rejected {
		if r.Remedy != "" {
			list = append(list, r.Kind+": "+r.Remedy)
		}
	}
	return strings.Join(list, "; ")
}

// client reaches the engine that is looked at. Where it was rejected, its version may not be known.
func (e *examination) client(engine sbx.Engine, usable bool) *sbx.Client {
	if usable {
		return engine.Client()
	}
	return sbx.New(engine.Path, e.Locate.Client...)
}

func (e *examination) ref(engine sbx.Engine) pair.EngineRef {
	return pair.EngineRef{Kind: engine.Kind, Path: engine.Path, Version: engine.Version.Client.String(),
		Isolation: engine.Version.Isolation, AppName: e.Config.Engine.AppName, PolicyUnset: engine.PolicyUnset}
}

// about asks everything about one engine that can be asked without making a sandbox.
func (e *examination) about(ctx context.Context, engine sbx.Engine, usable bool) {
	if engine.Path == "" {
		e.skip("engine", "engine.version", "engine.daemon", "engine.login", "engine.keyring", "policy.preset", "policy.github", "secrets.global", "ssh.agent")
		return
	}
	client := e.client(engine, usable)
	e.version(ctx, client)
	state := e.daemon(ctx, client)
	e.proxy(ctx, engine, state)
	store := e.login(ctx, client, engine)
	e.keyring(ctx, client, engine, store)
	e.policy(ctx, client, engine)
	e.globals(ctx, client)
	e.sshAgent(ctx, client, engine, state)
}

// version does not repeat the state in which the daemon was when the engine was chosen: engine.daemon asks for it now.
func (e *examination) version(ctx context.Context, client *sbx.Client) {
	e.askEngine(ctx, "engine.version", func(ctx context.Context) (Check, error) {
		v, err := client.Version(ctx)
		if err != nil {
			return Check{}, err
		}
		c := Check{Verdict: OK, Detail: v.String()}
		if v.Server.Known() {
			c.Detail += "; daemon " + v.Server.String()
		}
		if v.Mismatch() {
			c.Verdict, c.Remedy = Warn, "when nothing runs in it: sbx daemon restart"
			c.Detail += ": they differ, and the engine will ask to restart, which stops every sandbox"
		}
		if v.Untested() {
			c.Verdict = Warn
			c.Detail += "; newer than the newest that sbxpair was tested with, sbx " + sbx.Newest().String()
			if c.Remedy == "" {
				c.Remedy = "sbxpair doctor --conformance shows what is different"
			}
		}
		return c, nil
	})
}

func (e *examination) daemon(ctx context.Context, client *sbx.Client) sbx.DaemonState {
	var state sbx.DaemonState
	e.askEngine(ctx, "engine.daemon", func(ctx context.Context) (Check, error) {
		var err error
		state, err = client.DaemonStatus(ctx)
		switch {
		case errors.Is(err, sbx.ErrNotSignedIn): // it answered: what is missing is the login
			return Check{Verdict: OK, Detail: "up; it wants a login"}, nil
		case err != nil:
			return Check{}, err
		case !state.Running:
			return Check{Verdict: OK, Detail: "not running; it starts when it is needed"}, nil
		}
		return Check{Verdict: OK, Detail: "running at " + state.Socket}, nil
	})
	return state
}

// proxyVariable names the way out for the daemon and all sandboxes, and is read by whoever starts the daemon.
const proxyVariable = "DOCKER_SANDBOXES_PROXY"

// proxy compares the upstream proxy of this shell with the daemon's: set for the client alone, traffic goes around it
// (gh-aw-firewall#6101).
func (e *examination) proxy(ctx context.Context, engine sbx.Engine, state sbx.DaemonState) {
	asked, set := e.Lookup(proxyVariable)
	if engine.Kind == sbx.EngineLocal || !set || asked == "" {
		return
	}
	e.ask(ctx, "engine.proxy", func(context.Context) (Check, error) {
		const remedy = "when nothing runs in it, in this shell: sbx daemon restart"
		if !state.Running {
			return Check{Verdict: OK, Detail: "the daemon will be started with this shell's " + proxyVariable}, nil
		}
		pid, held, known := holder(state.Socket, proxyVariable)
		switch {
		case !known:
			return Check{}, fmt.Errorf("%s is set here; the environment of the daemon cannot be read: %w", proxyVariable, errUnsure)
		case held != asked:
			return Check{Verdict: Bad, Remedy: remedy, Detail: fmt.Sprintf("%s is set here and the daemon (process %d) was started without it, or with another: sandboxes go around the proxy", proxyVariable, pid)}, nil
		}
		return Check{Verdict: OK, Detail: fmt.Sprintf("the daemon (process %d) was started with this shell's %s", pid, proxyVariable)}, nil
	})
}

// login asks for something that needs the login, and returns the key store's failure, if that is what stands in the way.
func (e *examination) login(ctx context.Context, client *sbx.Client, engine sbx.Engine) (store error) {
	if engine.Kind == sbx.EngineLocal {
		e.add(Check{ID: "engine.login", Verdict: OK, Detail: "not needed"})
		return nil
	}
	e.askEngine(ctx, "engine.login", func(ctx context.Context) (Check, error) {
		err := client.CheckSignedIn(ctx)
		switch {
		case err == nil:
			return Check{Verdict: OK, Detail: "signed in to Docker"}, nil
		case errors.Is(err, sbx.ErrNotSignedIn):
			return Check{Verdict: Bad, Detail: oneLine(err.Error()), Remedy: "sbx login"}, nil
		case errors.Is(err, sbx.ErrKeyring):
			store = err
		}
		return Check{}, err
	})
	return store
}

// keyring makes one finding of what an engine says in three ways: login, secrets and start all fail without a key store,
// each in other words (sbx-releases#186).
func (e *examination) keyring(ctx context.Context, client *sbx.Client, engine sbx.Engine, store error) {
	if engine.Kind == sbx.EngineLocal {
		e.add(Check{ID: "engine.keyring", Verdict: OK, Detail: "sbx-local keeps secrets in files of its state folder that only you can read, while a pair lives"})
		return
	}
	e.askEngine(ctx, "engine.keyring", func(ctx context.Context) (Check, error) {
		if store == nil {
			// The listing is asked directly: it is the cheapest verb that opens the store.
			if _, err := client.SecretList(ctx); errors.Is(err, sbx.ErrKeyring) {
				store = err
			} else if err != nil {
				return Check{}, err
			}
		}
		plain := filepath.Join(e.Home, ".config", "com.docker.sandboxes") // sbx's fallback on Linux
		switch {
		case store != nil:
			return Check{Verdict: Bad, Detail: "no key store: " + oneLine(store.Error()), Remedy: sbx.Hint(store)}, nil
		case runtime.GOOS == "linux" && e.Home != "" && holdsFiles(plain):
			return Check{Verdict: Warn, Detail: "no key store is used: secrets are plain files below " + plain, Remedy: "unlock or install a Secret Service (gnome-keyring, KWallet), then set the secrets again"}, nil
		}
		return Check{Verdict: OK, Detail: "the engine can open its store of secrets"}, nil
	})
}

func holdsFiles(dir string) bool {
	found := false
	filepath.WalkDir(dir, func(_ string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			found = true
			return fs.SkipAll
		}
		return nil
	})
	return found
}

func (e *examination) policy(ctx context.Context, client *sbx.Client, engine sbx.Engine) {
	initialised := true
	e.askEngine(ctx, "policy.preset", func(ctx context.Context) (Check, error) {
		rules, err := client.PolicyList(ctx, "")
		switch {
		case errors.Is(err, sbx.ErrPolicyUninitialised) && engine.Kind == sbx.EngineLocal:
			initialised = false
			fix := e.fix(Fix{ID: "policy.preset", What: "set sbx-local's global network policy to deny-all", do: func(ctx context.Context, _ Options) error {
				return client.PolicyInit(ctx, sbx.PresetDenyAll)
			}})
			return Check{Verdict: OK, Detail: "not set up yet; the first run sets it to deny-all", Fix: fix}, nil
		case errors.Is(err, sbx.ErrPolicyUninitialised):
			initialised = false
			return Check{Verdict: Bad, Detail: "the engine's network policy is not set up", Remedy: "sbx policy init deny-all"}, nil
		case err != nil:
			return Check{}, err
		}
		return preset(rules), nil
	})
	switch {
	case !initialised && engine.Kind == sbx.EngineLocal:
		e.add(Check{ID: "policy.github", Verdict: OK, Detail: "denied, as soon as the first run has set deny-all"})
		return
	case !initialised:
		e.skip("policy.preset", "policy.github")
		return
	}
	e.askEngine(ctx, "policy.github", func(ctx context.Context) (Check, error) {
		host := e.Config.GitHub.Host
		verdict, err := client.PolicyCheck(ctx, "", host+":443")
		switch {
		case err != nil:
			return Check{}, err
		case verdict.Allowed:
			return Check{Verdict: Warn, Detail: "the engine lets every sandbox reach " + host + "; a run's proof refuses that", Remedy: "sbx policy ls --wide shows by which rule; take it away, or deny it in network.deny"}, nil
		}
		return Check{Verdict: OK, Detail: "the engine denies " + host + " to a sandbox without rules of its own"}, nil
	})
}

// preset says what the global rules are, as far as their names and resources tell.
func preset(rules []sbx.Rule) Check {
	name := "deny-all"
	var wide []string
	for _, r := range rules {
		if r.Sandbox != "" || r.Decision != sbx.Allow || r.Inactive || !(r.ResourceType == "network" || r.ResourceType == "http") {
			continue
		}
		wide = append(wide, r.Resources...)
		if r.ResourceType == "http" {
			for _, t := range r.HTTPTargets {
				wide = append(wide, t.Host+t.Path)
			}
		}
		switch {
		case slices.Contains(r.Resources, "**"):
			name = "allow-all"
		case strings.HasPrefix(r.Name, "default-") && name == "deny-all":
			name = "balanced"
		}
	}
	if len(wide) == 0 {
		return Check{Verdict: OK, Detail: "preset " + name + ": nothing is open to every sandbox"}
	}
	shown := strings.Join(wide[:min(len(wide), 3)], ", ")
	if len(wide) > 3 {
		shown += ", …"
	}
	if name == "deny-all" {
		name = "deny-all with further rules"
	}
	c := Check{Verdict: Warn, Remedy: "the preset for pairs is deny-all; changing it (sbx policy reset, then sbx policy init deny-all) stops every sandbox"}
	c.Detail = fmt.Sprintf("preset %s: global rules open %d resources to every sandbox (%s); a run that can reach a host it must not is refused", name, len(wide), shown)
	if name == "allow-all" {
		c.Verdict = Bad
	}
	return c
}

func (e *examination) globals(ctx context.Context, client *sbx.Client) {
	e.askEngine(ctx, "secrets.global", func(ctx context.Context) (Check, error) {
		list, err := client.SecretList(ctx)
		if err != nil {
			return Check{}, err
		}
		list = slices.DeleteFunc(list, func(s sbx.Secret) bool { return !s.Global() || s.Type == sbx.SecretRegistry })
		var names []string
		bad := false
		for _, s := range list {
			names = append(names, strings.TrimSpace(string(s.Type)+" "+s.Name+s.Env))
			// A service is kept out of a pair by scoped secrets in its place; any other would reach both sandboxes.
			bad = bad || s.Type != sbx.SecretService
		}
		switch {
		case bad:
			return Check{Verdict: Bad, Detail: "every sandbox is given: " + strings.Join(names, ", ") + "; that breaks the split",
				Remedy: "scope them to the sandboxes that need them: sbx secret set --sandbox NAME …"}, nil
		case len(names) > 0:
			return Check{Verdict: Warn, Detail: strings.Join(names, ", ") + " is global; scoped secrets of a pair stand in its place",
				Remedy: "take it away if nothing else needs it: sbx secret rm SERVICE"}, nil
		}
		return Check{Verdict: OK, Detail: "none"}, nil
	})
}

// sshAgent asks the setting, and then the daemon's own environment: the daemon forwards what it was started with, so that
// taking the variable away from the client changes nothing (sbx-releases#305).
func (e *examination) sshAgent(ctx context.Context, client *sbx.Client, engine sbx.Engine, state sbx.DaemonState) {
	const id = "ssh.agent"
	if engine.Kind == sbx.EngineLocal {
		e.add(Check{ID: id, Verdict: OK, Detail: "the local engine forwards none"})
		return
	}
	const remedy = "sbx settings set ssh.agentForwardingEnabled false && env -u SSH_AUTH_SOCK sbx daemon restart (it stops every sandbox)"
	e.askEngine(ctx, id, func(ctx context.Context) (Check, error) {
		s, err := client.Setting(ctx, "ssh.agentForwardingEnabled")
		if err != nil {
			return Check{}, err
		}
		if on, isBool := s.Value.(bool); isBool && !on || s.Value == "false" {
			return Check{Verdict: OK, Detail: "forwarding is off"}, nil
		}
		pid, held, known := holder(state.Socket, "SSH_AUTH_SOCK")
		switch {
		case known && held != "":
			return Check{Verdict: Warn, Remedy: remedy, Detail: fmt.Sprintf("forwarding is on, and the daemon (process %d) holds the agent socket, not this shell: taking SSH_AUTH_SOCK away here has no effect; a run is refused if keys show up inside", pid)}, nil
		case known:
			return Check{Verdict: OK, Detail: fmt.Sprintf("forwarding is on, but the daemon (process %d) was started without an agent, and sbxpair hands on none", pid)}, nil
		}
		return Check{Verdict: Warn, Remedy: remedy, Detail: "forwarding is on; whether the daemon was started with an agent socket cannot be seen; a run is refused if keys show up inside"}, nil
	})
}

// reach is an engine in which something may be left.
type reach struct {
	ref    pair.EngineRef
	client *sbx.Client
}

// leftovers looks for what outlived its run: on the engine that would be taken, on those that open leases name, and in our
// own state.
func (e *examination) leftovers(ctx context.Context, engine sbx.Engine, usable bool) {
	var engines []reach
	var silent error
	switch {
	case e.silent != "":
		silent = fmt.Errorf("the engine does not answer (see %s)", e.silent)
	case engine.Path != "":
		engines = append(engines, reach{e.ref(engine), e.client(engine, usable)})
	}
	leases, leaseErr := e.Store.List()
	for _, l := range leases {
		known := slices.ContainsFunc(engines, func(r reach) bool { return r.ref.Same(l.Engine) }) || silent != nil && e.ref(engine).Same(l.Engine)
		if l.State == pair.Open && !known && e.Reach != nil {
			engines = append(engines, reach{l.Engine, e.Reach(l.Engine)})
		}
	}
	if silent != nil && len(engines) == 0 && leaseErr == nil {
		e.skip(e.silent, "leftovers.pairs", "leftovers.secrets")
	} else {
		e.leftBehind(ctx, engines, errors.Join(silent, leaseErr))
	}
	e.ask(ctx, "leftovers.files", func(context.Context) (Check, error) {
		if leaseErr != nil {
			return Check{}, leaseErr
		}
		var files []string
		for _, l := range leases {
			for _, file := range e.Store.CredentialFiles(l.Run) {
				if _, err := os.Lstat(file); err == nil && (l.State == pair.Closed || l.Orphaned()) {
					files = append(files, file)
				}
			}
		}
		if len(files) == 0 {
			return Check{Verdict: OK, Detail: "none"}, nil
		}
		fix := e.fix(Fix{ID: "leftovers.files", What: "remove " + strings.Join(files, ", "), do: func(context.Context, Options) error {
			var errs []error
			for _, file := range files {
				if err := os.Remove(file); !errors.Is(err, fs.ErrNotExist) { // prune may have taken it with the rest
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		}})
		return Check{Verdict: Warn, Detail: "credential files of runs that are over: " + strings.Join(files, ", "), Remedy: "sbxpair doctor --fix", Fix: fix}, nil
	})
}

// leftBehind asks the engines what runs that are over left in them. known is a reason why the answer is not the whole one.
func (e *examination) leftBehind(ctx context.Context, engines []reach, known error) {
	e.ask(ctx, "leftovers.pairs", func(ctx context.Context) (Check, error) {
		var runs, strange, lost []string
		errs := []error{known}
		for _, r := range engines {
			found, err := pair.FindLeftovers(ctx, r.client, e.Store, r.ref)
			errs = append(errs, err)
			for _, left := range found {
				if !left.Recorded() {
					strange = append(strange, string(left.Run))
					continue
				}
				runs = append(runs, fmt.Sprintf("%s (%s)", left.Run, left.Reason))
				if e.Lost != nil {
					if what := e.Lost(left.Run); what != "" {
						lost = append(lost, fmt.Sprintf("%s: %s", left.Run, what))
					}
				}
			}
		}
		elsewhere := ""
		if len(strange) > 0 { // a run of another state folder may be alive: not to be fixed unasked
			elsewhere = "no record here of: " + strings.Join(strange, ", ") + "; if no sbxpair of another state folder has them, sbxpair prune removes them"
		}
		if len(runs) == 0 && elsewhere != "" {
			return Check{Verdict: Warn, Detail: elsewhere, Remedy: "sbxpair prune"}, nil
		}
		if len(runs) > 0 {
			if elsewhere != "" {
				elsewhere = "; " + elsewhere
			}
			detail := fmt.Sprintf("%d runs left something behind: %s", len(runs), strings.Join(runs, ", "))
			if len(lost) > 0 {
				detail += "; work that nobody fetched: " + strings.Join(lost, "; ")
			}
			c := Check{Verdict: Warn, Detail: detail + elsewhere, Remedy: "sbxpair prune"}
			if e.Prune != nil {
				c.Fix = e.fix(Fix{ID: "leftovers.pairs", What: "remove the sandboxes, secrets and rules of: " + strings.Join(runs, ", ") + " (sbxpair prune)", Lost: strings.Join(lost, "; "),
					do: func(ctx context.Context, o Options) error { return prune(ctx, engines, o) }})
			}
			return c, nil
		}
		if err := errors.Join(errs...); err != nil {
			return Check{}, err
		}
		return Check{Verdict: OK, Detail: "none"}, nil
	})
	e.ask(ctx, "leftovers.secrets", func(ctx context.Context) (Check, error) {
		var names []string
		var fixes []func(context.Context) error
		for _, r := range engines {
			list, err := r.client.SecretList(ctx)
			if err != nil {
				return Check{}, err
			}
			for _, s := range list {
				run, _, ours := pair.ParseName(s.Sandbox)
				if l, err := e.Store.Load(run); !ours || err != nil || l.State == pair.Open {
					continue // an open lease's own secrets, which prune takes where its owner is dead; or those of a run without a record, see leftovers.pairs
				}
				names = append(names, s.Sandbox)
				fixes = append(fixes, func(ctx context.Context) error { return r.client.SecretRemove(ctx, s) })
			}
		}
		switch {
		case len(names) == 0 && known != nil:
			return Check{}, known
		case len(names) == 0:
			return Check{Verdict: OK, Detail: "none"}, nil
		}
		names = slices.Compact(slices.Sorted(slices.Values(names)))
		fix := e.fix(Fix{ID: "leftovers.secrets", What: "remove the secrets that are scoped to: " + strings.Join(names, ", "), do: func(ctx context.Context, _ Options) error {
			var errs []error
			for _, do := range fixes {
				errs = append(errs, do(ctx))
			}
			return errors.Join(errs...)
		}})
		return Check{Verdict: Warn, Detail: "the engine still has secrets for sandboxes of runs that are over: " + strings.Join(names, ", "), Remedy: "sbxpair doctor --fix", Fix: fix}, nil
	})
}

// prune removes what runs on record here left in the engines.
func prune(ctx context.Context, engines []reach, o Options) error {
	for _, r := range engines {
		found, err := pair.FindLeftovers(ctx, r.client, o.Store, r.ref)
		if err != nil {
			return err
		}
		found = slices.DeleteFunc(found, func(l pair.Leftover) bool { return !l.Recorded() })
		if err := o.Prune(ctx, r.ref, found); err != nil {
			return err
		}
	}
	return nil
}

// fixLimit bounds each fix.
const fixLimit = 3 * time.Minute
