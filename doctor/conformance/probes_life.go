package conformance

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/sbx"
)

// Values of the secret questions. They are made up, and shaped like nothing that a scanner looks for.
const (
	valueCustom = "conformance-value-custom-0123456789"
	valueScoped = "conformance-value-scoped-0123456789"
	valueGlobal = "conformance-value-global-0123456789"
	placeholder = "sbx-cs-sbxpairconformance"
)

// setService stores a secret of the built-in github service; an empty sandbox is every one.
func (s *session) setService(ctx context.Context, sandbox, value string) (sbx.Result, error) {
	args := []string{"secret", "set", "github", "--force", "--no-verify"}
	if sandbox != "" {
		args = append(args, "--sandbox", sandbox)
	}
	return s.feed(ctx, value, args...)
}

// arrives asks for a host from a sandbox and returns the Authorization header that came to it.
func (s *session) arrives(ctx context.Context, name, host string, more ...string) (header, status string, err error) {
	s.names.take()
	status, _, err = s.fetch(ctx, name, "https://"+host+"/", more...)
	if req := s.names.take(); req != nil {
		header = req.Header.Get("Authorization")
	}
	return header, status, err
}

func secretProbes() []probe {
	return []probe{
		{"secret.ls.json", "secret ls --json: secrets and custom_secrets", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "secret", "ls", "--json")
			if err != nil {
				return "", err
			}
			var d map[string]any
			return all(that(res.Code == 0, "exit code %d", res.Code), document(res, &d)), nil
		}},
		{"secret.custom.set", "set-custom prints the placeholder, target, variable and scope", box, func(ctx context.Context, s *session) (string, error) {
			file := filepath.Join(s.private, "value")
			if err := os.WriteFile(file, []byte(valueCustom), 0o600); err != nil {
				return "", err
			}
			res, err := s.call(ctx, "secret", "set-custom", "--sandbox", s.First, "--host", nameCustom, "--env", "SBXPAIR_CUSTOM", "--placeholder", placeholder, "--command", "/bin/cat '"+file+"'")
			if err != nil {
				return "", err
			}
			return wanted(res, 0, `Saved custom secret placeholder "`+placeholder+`" for target "`+nameCustom+`" env "SBXPAIR_CUSTOM" in scope "`+s.First+`"`, anything), nil
		}},
		{"secret.ls.masked", "secret ls shows no value", box, func(ctx context.Context, s *session) (string, error) {
			for _, args := range [][]string{{"secret", "ls"}, {"secret", "ls", "--json"}} {
				res, err := s.call(ctx, args...)
				if err != nil {
					return "", err
				}
				if strings.Contains(string(res.Stdout)+string(res.Stderr), valueCustom) {
					return "the value is in it", nil
				}
			}
			return "", nil
		}},
		{"secret.custom.again", "set-custom for the same variable with another placeholder: exit 1, already exists in scope", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "secret", "set-custom", "--sandbox", s.First, "--host", nameCustom, "--env", "SBXPAIR_CUSTOM", "--placeholder", "sbx-cs-another", "--command", "/bin/echo x")
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", `custom secret env "SBXPAIR_CUSTOM" already exists in scope`), nil
		}},
		{"secret.custom.binding", "a bound host is not open by that: 403 without a rule", upstream, func(ctx context.Context, s *session) (string, error) {
			status, _, err := s.fetch(ctx, s.First, "https://"+nameCustom+"/")
			if err != nil {
				return "", err
			}
			return that(status == "403", "status %s", status), nil
		}},
		{"secret.custom.value", "the value takes the placeholder's place in any header to the bound host, and to no other", upstream, func(ctx context.Context, s *session) (string, error) {
			if bad, err := s.allow(ctx, "allow", nameCustom+":443"); bad != "" || err != nil {
				return bad, err
			}
			if bad, err := s.allow(ctx, "allow", nameOpen+":443"); err != nil {
				return bad, err // it may be there
			}
			s.names.take()
			if _, _, err := s.fetch(ctx, s.First, "https://"+nameCustom+"/", "-H", "X-Any: key="+placeholder); err != nil {
				return "", err
			}
			there := carries(s.names.take(), "key="+valueCustom)
			if _, _, err := s.fetch(ctx, s.First, "https://"+nameOpen+"/", "-k", "-H", "X-Any: key="+placeholder); err != nil {
				return "", err
			}
			req := s.names.take()
			return all(that(there, "the value did not arrive"), that(!carries(req, valueCustom), "it arrived at another host")), nil
		}},
		{"secret.custom.inside", "the value is in no process's environment inside", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "sh", "-c", "cat /proc/[0-9]*/environ 2>/dev/null")
			if err != nil {
				return "", err
			}
			return all(that(len(res.Stdout) > 0, "the environment could not be read"), that(!strings.Contains(string(res.Stdout), valueCustom), "it is")), nil
		}},
		{"secret.custom.http", "over plain http too", inside, func(ctx context.Context, s *session) (string, error) {
			file := filepath.Join(s.private, "value")
			hosts := []string{"--host", "localhost", "--host", "host.docker.internal"} // which of them sbx means by it was not seen
			if s.version.IsLocal() {
				hosts = []string{"--host", "localhost:" + s.host.port()}
			}
			args := append([]string{"secret", "set-custom", "--sandbox", s.First, "--env", "SBXPAIR_PLAIN", "--placeholder", placeholder + "plain", "--command", "/bin/cat '" + file + "'"}, hosts...)
			res, err := s.call(ctx, args...)
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "set-custom: " + string(res.Stderr), nil
			}
			s.host.take()
			status, _, err := s.fetch(ctx, s.First, "http://host.docker.internal:"+s.host.port()+"/", "-H", "X-Any: "+placeholder+"plain")
			if err != nil {
				return "", err
			}
			req := s.host.take()
			return all(that(req != nil, "the request did not arrive; status %s", status), that(req == nil || carries(req, valueCustom), "the placeholder arrived as it is")), nil
		}},
		{"secret.custom.rm", "secret rm --placeholder P --force: it acts at once on a running sandbox", upstream, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "secret", "rm", "--sandbox", s.First, "--placeholder", placeholder, "--force")
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "exit code not 0: " + string(res.Stderr), nil
			}
			s.names.take()
			if _, _, err := s.fetch(ctx, s.First, "https://"+nameCustom+"/", "-k", "-H", "X-Any: "+placeholder); err != nil {
				return "", err
			}
			return that(!carries(s.names.take(), valueCustom), "the value still arrives"), nil
		}},
		{"secret.service", "a service secret by standard input: Bearer to its API host, over the placeholder, in a running sandbox at once", upstream, func(ctx context.Context, s *session) (string, error) {
			if bad, err := s.allow(ctx, "allow", nameGitHub+":443"); bad != "" || err != nil {
				return bad, err
			}
			res, err := s.setService(ctx, s.First, valueScoped)
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "secret set: " + string(res.Stderr), nil
			}
			header, status, err := s.arrives(ctx, s.First, nameGitHub, "-H", "Authorization: Bearer gho_sbxproxymanaged000000000000000000000")
			if err != nil {
				return "", err
			}
			return that(header == "Bearer "+valueScoped, "the header is %.60q, status %s", header, status), nil
		}},
		{"secret.service.none", "and to a request without a credential", upstream, func(ctx context.Context, s *session) (string, error) {
			header, status, err := s.arrives(ctx, s.First, nameGitHub)
			if err != nil {
				return "", err
			}
			return that(header == "Bearer "+valueScoped, "the header is %.60q, status %s", header, status), nil
		}},
		{"secret.service.foreign", "a credential of somebody else's does not get through to a bound host (0.43)", upstream, func(ctx context.Context, s *session) (string, error) {
			header, _, err := s.arrives(ctx, s.First, nameGitHub, "-H", "Authorization: Bearer somebody-elses-credential")
			if err != nil {
				return "", err
			}
			return that(!strings.Contains(header, "somebody-elses"), "it does"), nil
		}},
		{"secret.service.scope", "a secret of one sandbox is none of another", upstream, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "policy", "allow", "network", "--sandbox", s.Second, nameGitHub+":443")
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "policy allow: " + string(res.Stderr), nil
			}
			header, _, err := s.arrives(ctx, s.Second, nameGitHub, "-k")
			if err != nil {
				return "", err
			}
			return that(!strings.Contains(header, "conformance-value"), "the header is %.60q", header), nil
		}},
		{"secret.global", "a global secret reaches every sandbox, and a scoped one wins over it", upstream | alone, func(ctx context.Context, s *session) (string, error) {
			res, err := s.setService(ctx, "", valueGlobal)
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "secret set: " + string(res.Stderr), nil
			}
			first, _, err := s.arrives(ctx, s.First, nameGitHub)
			if err != nil {
				return "", err
			}
			second, _, err := s.arrives(ctx, s.Second, nameGitHub)
			if err != nil {
				return "", err
			}
			return all(that(first == "Bearer "+valueScoped, "the scoped one: %.60q", first), that(second == "Bearer "+valueGlobal, "the global one: %.60q", second)), nil
		}},
		{"secret.scoped.rm", "removing the scoped one brings the global one back, at once", upstream | alone, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "secret", "rm", "github", "--sandbox", s.First, "--force")
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "secret rm: " + string(res.Stderr), nil
			}
			header, _, err := s.arrives(ctx, s.First, nameGitHub)
			if err != nil {
				return "", err
			}
			if res, err = s.call(ctx, "secret", "rm", "github", "--force"); err != nil {
				return "", err
			}
			return all(that(header == "Bearer "+valueGlobal, "the header is %.60q", header), that(res.Code == 0, "removing the global one: %.100q", res.Stderr)), nil
		}},
		{"secret.set.exists", "secret set over one that is there, without --force and without a terminal: exit 0, and the old value stays", upstream, func(ctx context.Context, s *session) (string, error) {
			if res, err := s.setService(ctx, s.First, valueScoped); err != nil || res.Code != 0 {
				return "secret set: " + string(res.Stderr), err
			}
			res, err := s.feed(ctx, valueGlobal, "secret", "set", "github", "--sandbox", s.First, "--no-verify")
			if err != nil {
				return "", err
			}
			header, _, err := s.arrives(ctx, s.First, nameGitHub)
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 0, "exit code %d", res.Code), that(header == "Bearer "+valueScoped, "the header is %.60q", header)), nil
		}},
		{"secret.rm.unknown", "secret rm of one that is not there: No secret found, exit 0", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "secret", "rm", "openai", "--sandbox", s.First, "--force")
			if err != nil {
				return "", err
			}
			return wanted(res, 0, "No secret found", anything), nil
		}},
	}
}

func lifeProbes() []probe {
	return []probe{
		{"ports", "ports NAME --publish PORT, --json, --unpublish: a loopback port of this machine, a list of host_ip, host_port, sandbox_port, protocol", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "ports", s.First, "--publish", "8080")
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "exit code not 0: " + string(res.Stderr), nil
			}
			if res, err = s.call(ctx, "ports", s.First, "--json"); err != nil {
				return "", err
			}
			ports, err := sbx.ParsePorts(res.Stdout)
			if err != nil || len(ports) == 0 {
				return fmt.Sprintf("listed as %.160q (%v)", res.Stdout, err), nil
			}
			p := ports[0]
			undo, err := s.call(ctx, "ports", s.First, "--unpublish", fmt.Sprintf("%d:%d", p.HostPort, p.SandboxPort))
			if err != nil {
				return "", err
			}
			return all(that(p.HostIP == "127.0.0.1" && p.SandboxPort == 8080 && p.HostPort > 0, "%+v", p), that(undo.Code == 0, "--unpublish: %.100q", undo.Stderr)), nil
		}},
		{"run.detached", "run -d --name N of one that is there: exit 0, its id on standard output, and it stays", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "run", "-d", "--name", s.Second)
			if err != nil {
				return "", err
			}
			b, err := s.client.Get(ctx, s.Second)
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 0, "exit code %d: %.120q", res.Code, res.Stderr), holds("standard output", res.Stdout, b.ID), that(b.Status == sbx.StatusRunning, "it is %s", b.Status)), nil
		}},
		{"stop", "stop: exit 0, Sandbox 'N' stopped; state preserved. Restart with: sbx run --name N", box, func(ctx context.Context, s *session) (string, error) {
			if !s.ShapeOnly {
				if _, err := s.exec(ctx, "sh", "-c", "echo kept >/home/agent/sbxpair-note; nohup sleep 3000 >/dev/null 2>&1 &"); err != nil {
					return "", err
				}
			}
			res, err := s.call(ctx, "stop", s.First)
			if err != nil {
				return "", err
			}
			return wanted(res, 0, "Sandbox '"+s.First+"' stopped; state preserved. Restart with: sbx run --name "+s.First, anything), nil
		}},
		{"stop.ls", "a stopped sandbox is listed as stopped", box, func(ctx context.Context, s *session) (string, error) {
			b, err := s.client.Get(ctx, s.First)
			if err != nil {
				return "", err
			}
			return that(b.Status == sbx.StatusStopped, "it is %s", b.Status), nil
		}},
		{"prune.dry", "prune --dry-run --json: would_remove has it, and nothing is removed", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "prune", "--dry-run", "--json")
			if err != nil {
				return "", err
			}
			var d struct {
				Would   []struct{ Name string } `json:"would_remove"`
				Skipped *[]any                  `json:"skipped_unknown_stop"`
			}
			if bad := all(that(res.Code == 0, "exit code %d", res.Code), document(res, &d)); bad != "" {
				return bad, nil
			}
			listed := false
			for _, w := range d.Would {
				listed = listed || w.Name == s.First
			}
			_, getErr := s.client.Get(ctx, s.First)
			return all(that(listed, "%.160q", res.Stdout), that(getErr == nil, "it is gone")), nil
		}},
		{"stop.twice", "stop of a stopped one: exit 0", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "stop", s.First)
			if err != nil {
				return "", err
			}
			return that(res.Code == 0, "exit code %d: %.100q", res.Code, res.Stderr), nil
		}},
		{"start.exec", "exec wakes a stopped sandbox, says Sandbox N started successfully, and its disk is as it was", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "cat", "/home/agent/sbxpair-note")
			if err != nil {
				return "", err
			}
			both := string(res.Stdout) + string(res.Stderr)
			return all(that(res.Code == 0, "exit code %d", res.Code), holds("the output", []byte(both), "kept\n"), holds("the output", []byte(both), "Sandbox "+s.First+" started successfully")), nil
		}},
		{"start.processes", "processes do not survive a stop", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "sh", "-c", `for f in /proc/[0-9]*/cmdline; do tr '\0' ' ' <"$f" 2>/dev/null; echo; done | grep -c '^sleep 3000'`)
			if err != nil {
				return "", err
			}
			return that(strings.TrimSpace(string(res.Stdout)) == "0", "%.60q are there", res.Stdout), nil
		}},
		{"start.rules", "rules survive a stop", box, func(ctx context.Context, s *session) (string, error) {
			return s.decided(ctx, "+a."+hostWild)
		}},
		{"rm.question", "rm without --force and without a terminal: the question, exit not 0, and the sandbox stays", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "rm", s.First)
			if err != nil {
				return "", err
			}
			_, getErr := s.client.Get(ctx, s.First)
			return all(that(res.Code != 0, "exit code 0"), holds("the output", append(res.Stdout, res.Stderr...), "Remove sandbox '"+s.First+"'? This cannot be undone. (y/N):"), that(getErr == nil, "it is gone")), nil
		}},
		{"rm", "rm --force: exit 0, Sandbox 'N' removed, and it is no longer listed", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "rm", "--force", s.First)
			if err != nil {
				return "", err
			}
			list, listErr := s.client.List(ctx)
			for _, b := range list {
				if b.Name == s.First {
					return "it is still listed", nil
				}
			}
			return wanted(res, 0, "Sandbox '"+s.First+"' removed", anything), listErr
		}},
		{"rm.rules", "its rules go with it", box, func(ctx context.Context, s *session) (string, error) {
			rules, err := s.client.PolicyList(ctx, "")
			if err != nil {
				return "", err
			}
			for _, r := range rules {
				if r.Sandbox == s.First {
					return "a rule is left", nil
				}
			}
			return "", nil
		}},
		{"rm.secrets", "and so do its secrets (0.42)", box, func(ctx context.Context, s *session) (string, error) {
			list, err := s.client.SecretList(ctx)
			if err != nil {
				return "", err
			}
			for _, secret := range list {
				if secret.Sandbox == s.First {
					return "a secret is left", nil
				}
			}
			return "", nil
		}},
		{"rm.again", "the name is free again", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "create", "shell", "--name", s.First, s.Dir)
			if err != nil {
				return "", err
			}
			if res.Code != 0 {
				return "create: " + string(res.Stderr), nil
			}
			res, err = s.call(ctx, "rm", "--force", s.First, s.Second)
			if err != nil {
				return "", err
			}
			s.made = false
			return that(res.Code == 0, "rm: %.100q", res.Stderr), nil
		}},
	}
}
