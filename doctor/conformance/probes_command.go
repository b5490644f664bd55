package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
)

// nobody is a name that no sandbox has.
const nobody = "sbxpair-nobody"

// same makes a question out of a call whose code and streams say it all.
func same(code int, stdout, stderr string, args ...string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		res, err := s.call(ctx, args...)
		if err != nil {
			return "", err
		}
		return wanted(res, code, stdout, stderr), nil
	}
}

// document reads one JSON document from standard output into v; with strict, nothing else may be there.
func document(res sbx.Result, v any) string {
	if err := json.Unmarshal(res.Stdout, v); err != nil {
		return fmt.Sprintf("standard output is not one JSON document: %v: %.120q", err, res.Stdout)
	}
	return ""
}

func commandProbes() []probe {
	return []probe{
		{"version.json", "version --json: exit 0, one document with client.version and server.state", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "version", "--json")
			if err != nil {
				return "", err
			}
			var v struct {
				Client struct{ Version string }
				Server struct{ State string }
			}
			return all(wanted(res, 0, anything, ""), document(res, &v), that(strings.HasPrefix(v.Client.Version, "v"), "client.version is %q", v.Client.Version),
				that(v.Server.State == "running" || v.Server.State == "stopped", "server.state is %q", v.Server.State)), nil
		}},
		{"version.text", "version: one line, sbx version: vX.Y.Z REVISION", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "version")
			if err != nil {
				return "", err
			}
			line := regexp.MustCompile(`^sbx version: v\d+\.\d+\.\d+\S* \S+\n$`)
			return all(wanted(res, 0, anything, ""), that(line.Match(res.Stdout), "%.100q", res.Stdout)), nil
		}},
		{"flag.version", "--version: an unknown flag, exit 1, on standard error", real, same(1, "", "error: unknown flag: --version", "--version")},
		{"flag.unknown", "an unknown flag of a verb: exit 1, error: on standard error, nothing on standard output", real, same(1, "", "error: unknown flag: --nope", "ls", "--nope")},
		{"error.style", "errors: error: and a line   try: COMMAND", 0, same(1, "", "error: sandbox '"+nobody+"' not found\n  try: sbx ls", "exec", nobody, "true")},
		{"notfound.exec", "exec in no sandbox: exit 1, nothing on standard output", 0, same(1, "", "'"+nobody+"' not found", "exec", nobody, "true")},
		{"notfound.stop", "stop of no sandbox: exit 1, the same words", 0, same(1, "", "error: sandbox '"+nobody+"' not found\n  try: sbx ls", "stop", nobody)},
		{"notfound.inspect", "inspect of no sandbox: exit 1, the same words", 0, same(1, "", "error: sandbox '"+nobody+"' not found\n  try: sbx ls", "inspect", nobody)},
		{"notfound.rm", "rm --force of no sandbox: exit 1, the same words", 0, same(1, anything, "error: sandbox '"+nobody+"' not found\n  try: sbx ls", "rm", "--force", nobody)},
		{"notfound.cp", "cp out of no sandbox: exit 1, the same words", 0, same(1, "", "error: sandbox '"+nobody+"' not found", "cp", nobody+":/etc/hostname", "/nonexistent-folder/x")},
		{"diagnose.json", "diagnose -o json: checks with name, status, message, detail, hint, and a summary", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "diagnose", "-o", "json")
			if err != nil {
				return "", err
			}
			var d struct {
				Version string
				Checks  []struct{ Name, Status, Message, Detail, Hint *string }
				Summary map[string]int
			}
			if bad := document(res, &d); bad != "" {
				return bad, nil
			}
			sum := 0
			for _, n := range d.Summary {
				sum += n
			}
			return all(that(d.Version == "1.0", "version is %q", d.Version), that(sum == len(d.Checks), "the summary counts %d of %d checks", sum, len(d.Checks)),
				that(len(d.Checks) >= 7, "%d checks", len(d.Checks))), nil
		}},
		{"daemon.status.json", "daemon status --json: status, socket, logs", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "daemon", "status", "--json")
			if err != nil {
				return "", err
			}
			var d struct{ Status, Socket, Logs *string }
			return all(document(res, &d), that(d.Status != nil && d.Socket != nil && d.Logs != nil, "%.160q", res.Stdout)), nil
		}},
		{"settings.get", "settings get KEY: the bare value", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "settings", "get", "ssh.agentForwardingEnabled")
			if err != nil {
				return "", err
			}
			text := strings.TrimSpace(string(res.Stdout))
			return all(that(res.Code == 0, "exit code %d", res.Code), that(text == "true" || text == "false", "%.60q", text)), nil
		}},
		{"settings.list.json", "settings list --json: key, value, type, source, default, requires_restart", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "settings", "list", "--json")
			if err != nil {
				return "", err
			}
			list, err := sbx.ParseSettings(res.Stdout)
			if err != nil {
				return err.Error(), nil
			}
			for _, setting := range list {
				if setting.Key == "ssh.agentForwardingEnabled" {
					return that(setting.Type == "bool" && setting.Source != "", "%+v", setting), nil
				}
			}
			return "ssh.agentForwardingEnabled is not among them", nil
		}},
		{"template.ls.json", "template ls --json: images, a list", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "template", "ls", "--json")
			if err != nil {
				return "", err
			}
			var d struct{ Images *[]any }
			return all(that(res.Code == 0, "exit code %d: %.100q", res.Code, res.Stderr), document(res, &d), that(d.Images != nil, "no images")), nil
		}},
	}
}

func createProbes() []probe {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	return []probe{
		{"policy.uninitialised", "create before policy init: exit 1, global network policy has not been initialized, try: sbx policy init balanced", alone, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "ls", "--json")
			if err != nil {
				return "", err
			}
			if res.Code == 0 {
				return "", errSkip("the policy is set up already")
			}
			if res, err = s.call(ctx, "create", "shell", "--name", s.First, s.Dir); err != nil {
				return "", err
			}
			return wanted(res, 1, anything, "error: global network policy has not been initialized\n  try: sbx policy init balanced"), nil
		}},
		{"policy.init", "policy init deny-all: exit 0, says which preset", alone, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "ls", "--json")
			if err != nil {
				return "", err
			}
			if res.Code == 0 {
				return "", errSkip("the policy is set up already")
			}
			if res, err = s.call(ctx, "policy", "init", "deny-all"); err != nil {
				return "", err
			}
			return wanted(res, 0, `Global network policy initialized to "deny-all".`, ""), nil
		}},
		{"policy.init.twice", "a second policy init: exit 1, already initialized", alone, same(1, "", "already initialized", "policy", "init", "deny-all")},
		{"create.name", "names that are refused before anything is made: one letter, a dash or dot at the end, an underscore, default, 64 letters", 0, func(ctx context.Context, s *session) (string, error) {
			var taken []string
			for _, name := range []string{"a", "ab-", "ab.", "a_b", "-ab", "default", strings.Repeat("a", 64)} {
				res, err := s.call(ctx, "create", "shell", "--name="+name, s.Dir)
				if err != nil {
					return "", err
				}
				if res.Code == 0 {
					taken = append(taken, name)
					if _, err := s.call(ctx, "rm", "--force", name); err != nil {
						return "", err
					}
				}
			}
			return that(taken == nil, "taken: %q", taken), nil
		}},
		{"create.agent", "an unknown agent: exit 1, on standard error", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "create", "no-such-agent", "--name", s.First, s.Dir)
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 1, "exit code %d", res.Code), that(len(res.Stderr) > 0, "nothing on standard error")), nil
		}},
		{"create.readonly", "a primary workspace that is read-only: exit 1, primary workspace must be read/write", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "create", "shell", "--name", s.First, s.Dir+":ro")
			if err != nil {
				return "", err
			}
			return wanted(res, 1, anything, "primary workspace must be read/write"), nil
		}},
		{"create.missing", "a workspace that is not there, without a terminal: exit 1, nothing is made", 0, func(ctx context.Context, s *session) (string, error) {
			missing := s.Dir + "-missing"
			res, err := s.call(ctx, "create", "shell", "--name", s.First, missing)
			if err != nil {
				return "", err
			}
			_, statErr := os.Stat(missing)
			_, getErr := s.client.Get(ctx, s.First)
			return all(that(res.Code == 1, "exit code %d", res.Code), that(statErr != nil, "the folder was made"), that(getErr != nil, "the sandbox was made")), nil
		}},
		{"create.clone", "--clone outside a repository: exit 1, --clone requires a Git repository", 0, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "create", "shell", "--clone", "--name", s.First, s.Dir)
			if err != nil {
				return "", err
			}
			return wanted(res, 1, anything, "--clone requires a Git repository, but"), nil
		}},
		{"create", "create shell --name N PATH: exit 0, ✓ Created sandbox N on standard output", 0, func(ctx context.Context, s *session) (string, error) {
			args := append([]string{"create", "shell", "--name", s.First}, s.names.flags()...)
			res, err := s.call(ctx, append(args, s.Dir)...)
			if err != nil {
				return "", err
			}
			s.made = res.Code == 0
			return wanted(res, 0, "✓ Created sandbox "+s.First, anything), nil
		}},
		{"create.mountless", "create without a path: a sandbox without workspace", box, func(ctx context.Context, s *session) (string, error) {
			args := append([]string{"create", "shell", "--name", s.Second, "-e", "SBXPAIR_MADE=with it", "--deny-network", "**." + hostDeny, "--cpus", "1", "-m", "1g"}, s.names.flags()...)
			res, err := s.call(ctx, args...)
			if err != nil {
				return "", err
			}
			return wanted(res, 0, "✓ Created sandbox "+s.Second, anything), nil
		}},
		{"create.env", "create -e NAME=value: every process has it (0.39)", inside, exactly("with it\n", func(s *session) []string { return []string{s.Second, "printenv", "SBXPAIR_MADE"} })},
		{"create.deny", "create --deny-network HOST: denied from the first moment on, by a rule (0.38)", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "check", "network", "--sandbox", s.Second, "--json", "a."+hostDeny)
			if err != nil {
				return "", err
			}
			var v struct {
				DenyKind string `json:"deny_kind"`
			}
			return all(that(res.Code == 1, "exit code %d", res.Code), document(res, &v), that(v.DenyKind == "explicit", "deny_kind %q", v.DenyKind)), nil
		}},
		{"create.conflict", "create with a name that is taken: exit 1, 409 Conflict, sandbox already exists with this name", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "create", "shell", "--name", s.First, s.Dir)
			if err != nil {
				return "", err
			}
			return all(wanted(res, 1, anything, "409 Conflict"), holds("standard error", res.Stderr, "sandbox already exists with this name")), nil
		}},
		{"ls.json", "ls --json: exit 0, nothing on standard error; name, id (UUID), agent, status, workspaces, created_at", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "ls", "--json")
			if err != nil {
				return "", err
			}
			var list struct {
				Sandboxes []struct {
					Name, ID, Agent, Status string
					Workspaces              []string
					CreatedAt               string `json:"created_at"`
				}
			}
			if bad := all(wanted(res, 0, anything, ""), document(res, &list)); bad != "" {
				return bad, nil
			}
			for _, b := range list.Sandboxes {
				if b.Name == s.First {
					return all(that(uuid.MatchString(b.ID), "id %q", b.ID), that(b.Agent == "shell", "agent %q", b.Agent), that(b.Status == "running", "status %q", b.Status),
						that(len(b.Workspaces) == 1 && b.Workspaces[0] == s.Dir, "workspaces %q", b.Workspaces), that(b.CreatedAt != "", "no created_at")), nil
				}
			}
			return "it is not listed", nil
		}},
		{"ls.text", "ls: header SANDBOX AGENT STATUS PORTS WORKSPACE, one row each", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "ls")
			if err != nil {
				return "", err
			}
			head, rows, _ := strings.Cut(string(res.Stdout), "\n")
			return all(that(strings.Join(strings.Fields(head), " ") == "SANDBOX AGENT STATUS PORTS WORKSPACE", "header %q", head), holds("the rows", []byte(rows), s.First)), nil
		}},
		{"ls.quiet", "ls -q: names, one a line", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "ls", "-q")
			if err != nil {
				return "", err
			}
			return holds("standard output", []byte("\n"+string(res.Stdout)), "\n"+s.First+"\n"), nil
		}},
		{"inspect.json", "inspect NAME --json: name, agent, state, workspace, network_policy", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "inspect", s.First, "--json")
			if err != nil {
				return "", err
			}
			var d struct {
				Name, Agent, State, Workspace string
				NetworkPolicy                 *struct{ Scope string } `json:"network_policy"`
			}
			return all(wanted(res, 0, anything, ""), document(res, &d), that(d.Name == s.First && d.Agent == "shell" && d.State == "running" && d.Workspace == s.Dir && d.NetworkPolicy != nil, "%.200q", res.Stdout)), nil
		}},
	}
}
