package agent

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Task is one piece of work for an agent.
type Task struct {
	Prompt    string
	Model     string // as the CLI names it; "" leaves the choice to the CLI
	Effort    string // reasoning effort, where the CLI has such a thing
	SessionID string // UUID of a new session, or, with Resume, the session to go on with
	Resume    bool
	Used      Usage     // with Resume: what the session had used before; some CLIs count on from there
	ReadOnly  bool      // a session that only looks: tools that write or run programs are withheld
	Fresh     bool      // a home folder of its own, so that nothing an earlier session left there is read; its caches are shared
	Dir       string    // working folder inside the sandbox
	Command   []string  // replaces the adapter's program, such as {"/opt/copilot/copilot"}
	Args      []string  // added to the command line
	Env       []string  // "K=V", added to the environment; wins over the adapter's
	Endpoint  *Endpoint // a server in place of the provider's own; nil is that one
}

// Invocation is a task as a command line.
type Invocation struct {
	Argv      []string
	Env       []string // "K=V"
	Unset     []string // variables that the process must not see, whatever the sandbox presets
	Files     []File   // to be written before the start
	Stdin     string
	Dir       string
	UsageFile string // path inside that holds the token counts afterwards, or ""
	Home      string // a fresh home folder inside, or "" for the user's own
}

// File is a file in the home folder of the sandbox's user, written with mode 0600.
type File struct {
	Path string // relative to the home folder
	Data string
}

// Credential says how a CLI gets at its model.
type Credential struct {
	Env string // variable that the CLI reads; "" is the provider's own
	// Provider is whose credential it is, as package secrets names it; "" where the configuration says so.
	Provider string
}

// Adapter is what there is to know about one agent CLI.
type Adapter struct {
	Name       string
	Program    string // looked up in the sandbox's PATH
	Credential Credential
	Sessions   bool // a session can be gone on with
	ReadOnly   bool // a session can be held to reading
	Effort     bool // it takes an effort

	endpoints []string // providers, see [Endpoint]
	invoke    func(t Task, state string) (Invocation, error)
	decoder   func() decoder
	usage     func([]byte) (Usage, error) // reads Invocation.UsageFile
	meter     *meter                      // nil: what it uses shows in its events, or at the end alone
	// finishes says that a whole run ends with a line that says so: without it, the run was cut off.
	finishes bool
	// countsOn says that the usage of a session that is gone on with holds what came before.
	countsOn bool
}

// meter is how a CLI that does not say meanwhile what it uses writes it down.
type meter struct {
	record func(session string) (path, start string) // file below the home folder, and how a line about a model call begins there
	usage  func(line []byte) (Usage, error)
}

// decoder turns one JSON line into events. It keeps state between lines.
type decoder interface{ decode(line []byte) []Event }

// ErrTask matches errors about a task that a CLI cannot be given.
var ErrTask = errors.New("task cannot be run")

// stateMark stands for the run's folder inside the sandbox until Run knows it.
const stateMark = "/tmp/sbxpair-agent"

// Invocation returns the command line for t. It does not touch the sandbox.
func (a Adapter) Invocation(t Task) (Invocation, error) { return a.invocation(t, stateMark) }

func (a Adapter) invocation(t Task, state string) (Invocation, error) {
	switch {
	case strings.TrimSpace(t.Prompt) == "":
		return Invocation{}, fmt.Errorf("%w: the prompt is empty", ErrTask)
	case t.Resume && !a.Sessions:
		return Invocation{}, fmt.Errorf("%w: %s has no sessions", ErrTask, a.Name)
	case t.ReadOnly && !a.ReadOnly:
		return Invocation{}, fmt.Errorf("%w: %s cannot be held to reading", ErrTask, a.Name)
	case t.Resume && t.SessionID == "":
		return Invocation{}, fmt.Errorf("%w: no session to resume", ErrTask)
	case t.Resume && t.Fresh:
		return Invocation{}, fmt.Errorf("%w: a fresh home has no session to resume", ErrTask)
	case t.SessionID != "" && !sessionID(t.SessionID):
		return Invocation{}, fmt.Errorf("%w: session id %q", ErrTask, t.SessionID)
	case strings.HasPrefix(t.Model, "-") || strings.HasPrefix(t.Effort, "-"):
		return Invocation{}, fmt.Errorf("%w: model or effort reads as a flag", ErrTask)
	case t.Effort != "" && !a.Effort:
		return Invocation{}, fmt.Errorf("%w: %s takes no effort", ErrTask, a.Name)
	case len(t.Command) > 0 && t.Command[0] == "":
		return Invocation{}, fmt.Errorf("%w: the command is empty", ErrTask)
	}
	for _, s := range slices.Concat(t.Command, t.Args, t.Env, []string{t.Model, t.Effort, t.Dir}) {
		if strings.ContainsRune(s, 0) {
			return Invocation{}, fmt.Errorf("%w: zero byte in an argument", ErrTask)
		}
	}
	if slices.Contains(t.Args, "") { // sbx refuses empty arguments (400 from its daemon)
		return Invocation{}, fmt.Errorf("%w: empty argument", ErrTask)
	}
	if err := a.checkEndpoint(t); err != nil {
		return Invocation{}, err
	}
	inv, err := a.invoke(t, state)
	if err != nil {
		return Invocation{}, err
	}
	program := t.Command
	if len(program) == 0 {
		program = []string{a.Program}
	}
	inv.Argv = slices.Concat(program, inv.Argv)
	inv.Env = slices.Concat(inv.Env, t.Endpoint.environment(a.Name), t.Env)
	inv.Unset = append(inv.Unset, foreignVariables(a.Credential.Env, inv.Env)...)
	if inv.Dir == "" {
		inv.Dir = t.Dir
	}
	if t.Fresh {
		inv.Home = state + "/home"
	}
	return inv, nil
}

// foreignVariables are credentials of other tools that a sandbox may preset, or that a CLI would take for its own: the
// Copilot CLI uses GH_TOKEN where it finds one. What the run itself sets stays.
func foreignVariables(own string, env []string) []string {
	var list []string
	for _, name := range []string{"GH_TOKEN", "GITHUB_TOKEN", "GH_ENTERPRISE_TOKEN", "GITHUB_ENTERPRISE_TOKEN", "GH_HOST",
		"COPILOT_GITHUB_TOKEN", "GITHUB_COPILOT_API_TOKEN", "COPILOT_ALLOW_ALL", "SSH_AUTH_SOCK", "CI"} {
		set := slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
		if name != own && !set {
			list = append(list, name)
		}
	}
	return list
}

// sessionID accepts what the CLIs use for one: UUIDs, and opencode's ses_… names.
func sessionID(s string) bool {
	return len(s) <= 80 && s[0] != '-' && strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_')
	}) < 0
}

func adapters() map[string]Adapter {
	m := make(map[string]Adapter)
	for _, a := range []Adapter{Copilot(), Claude(), Codex(), Gemini(), OpenCode(), Pi(), Program("command")} {
		m[a.Name] = a
	}
	return m
}

// Lookup returns the adapter of that name. "command" is any program: [Program], which the task has to name.
func Lookup(name string) (Adapter, bool) {
	a, ok := adapters()[name]
	return a, ok
}

// Names lists the adapters.
func Names() []string { return slices.Sorted(maps.Keys(adapters())) }
