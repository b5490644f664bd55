package conformance

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// inFirst asks for code and streams of a command in the first sandbox.
func inFirst(code int, stdout, stderr string, argv ...string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		res, err := s.exec(ctx, argv...)
		if err != nil {
			return "", err
		}
		return wanted(res, code, stdout, stderr), nil
	}
}

// exactly asks for standard output, byte by byte.
func exactly(want string, args func(s *session) []string) func(context.Context, *session) (string, error) {
	return func(ctx context.Context, s *session) (string, error) {
		res, err := s.call(ctx, append([]string{"exec"}, args(s)...)...)
		if err != nil {
			return "", err
		}
		return all(that(res.Code == 0, "exit code %d: %.100q", res.Code, res.Stderr), that(string(res.Stdout) == want, "standard output %.160q", res.Stdout)), nil
	}
}

func execProbes() []probe {
	return []probe{
		{"exec.code", "a command's exit code is passed on", inside, inFirst(42, "", "", "sh", "-c", "exit 42")},
		{"exec.streams", "standard output and error stay apart, byte for byte", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "sh", "-c", `printf 'o\000ut'; printf 'e\377rr' >&2`)
			if err != nil {
				return "", err
			}
			return that(string(res.Stdout) == "o\x00ut" && string(res.Stderr) == "e\xffrr", "%q and %q", res.Stdout, res.Stderr), nil
		}},
		{"exec.echo", "a command's output is standard output, nothing else", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "echo", "hello")
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 0, "exit code %d", res.Code), that(string(res.Stdout) == "hello\n", "%q", res.Stdout)), nil
		}},
		{"exec.missing", "a program that is missing: exit 127, OCI runtime exec failed on standard output, nothing on standard error", box, inFirst(127, "OCI runtime exec failed: ", "", "sbxpair-no-such-program")},
		{"exec.argv", "arguments arrive as they are: spaces, quotes, dollars, line ends, dashes", inside, func(ctx context.Context, s *session) (string, error) {
			args := []string{"a b", `"q"`, "$HOME", "x\ny", "--help", "-i", "--", "*"}
			res, err := s.exec(ctx, append([]string{"printf", `%s\0`}, args...)...)
			if err != nil {
				return "", err
			}
			return that(string(res.Stdout) == strings.Join(args, "\x00")+"\x00", "%q", res.Stdout), nil
		}},
		{"exec.dashes", "-- between name and command is taken", box, exactly("hello\n", func(s *session) []string { return []string{s.First, "--", "echo", "hello"} })},
		{"exec.empty", "an empty argument: exit 1, 400 Bad Request: cmd element N is empty", box, inFirst(1, "", "400 Bad Request: cmd element 1 is empty", "echo", "", "x")},
		{"exec.detach", "--detach is refused: exit 1 (0.45)", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "exec", "-d", s.First, "true")
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", "--detach is not supported for exec"), nil
		}},
		{"exec.stdin", "-i hands standard input on, to its end", inside, func(ctx context.Context, s *session) (string, error) {
			text := strings.Repeat("0123456789abcdef", 8<<10)
			res, err := s.feed(ctx, text, "exec", "-i", s.First, "wc", "-c")
			if err != nil {
				return "", err
			}
			return that(strings.TrimSpace(string(res.Stdout)) == "131072", "%.60q", res.Stdout), nil
		}},
		{"exec.nostdin", "without -i and without input a command sees the end of its input at once", inside, func(ctx context.Context, s *session) (string, error) {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			res, err := s.exec(ctx, "cat")
			if err != nil {
				return "", err
			}
			return wanted(res, 0, "", anything), nil
		}},
		{"exec.env", "-e NAME=value reaches this process", inside, exactly("v 1\n", func(s *session) []string {
			return []string{"-e", "SBXPAIR_X=v 1", s.First, "printenv", "SBXPAIR_X"}
		})},
		{"exec.dir", "the working folder is the workspace; -w is another", inside, func(ctx context.Context, s *session) (string, error) {
			first, err := s.exec(ctx, "pwd")
			if err != nil {
				return "", err
			}
			second, err := s.call(ctx, "exec", "-w", "/tmp", s.First, "pwd")
			if err != nil {
				return "", err
			}
			return all(that(strings.TrimSpace(string(first.Stdout)) == s.Dir, "%.100q", first.Stdout), that(string(second.Stdout) == "/tmp\n", "-w /tmp: %.100q", second.Stdout)), nil
		}},
		{"exec.dir.mountless", "without a workspace it is /home/agent/workspace", inside, exactly("/home/agent/workspace\n", func(s *session) []string { return []string{s.Second, "pwd"} })},
		{"exec.background", "a process that a command leaves behind does not keep exec from ending", inside, func(ctx context.Context, s *session) (string, error) {
			started := time.Now()
			res, err := s.exec(ctx, "sh", "-c", "sleep 30 >/dev/null 2>&1 </dev/null & echo left")
			if err != nil {
				return "", err
			}
			return all(wanted(res, 0, "left", anything), that(time.Since(started) < 15*time.Second, "it took %s", time.Since(started).Round(time.Second))), nil
		}},
		{"exec.large", "8 MiB of output arrive whole", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "head", "-c", "8388608", "/dev/zero")
			if err != nil {
				return "", err
			}
			return that(res.StdoutBytes == 8<<20, "%d bytes", res.StdoutBytes), nil
		}},
	}
}

func layoutProbes() []probe {
	shell := func(want, script string) func(context.Context, *session) (string, error) {
		return exactly(want+"\n", func(s *session) []string { return []string{s.First, "sh", "-c", script} })
	}
	return []probe{
		{"user.name", "the user is agent, at home in /home/agent", inside, shell("agent /home/agent", `echo "$(id -un) $HOME"`)},
		{"user.id", "its number is 1000, its group 1000", inside, shell("1000 1000", `echo "$(id -u) $(id -g)"`)},
		{"user.root", "-u root is user 0", inside, exactly("0\n", func(s *session) []string { return []string{"-u", "root", s.First, "id", "-u"} })},
		{"user.sudo", "sudo asks for no password", inside, shell("0", `sudo id -u`)},
		{"env.identity", "SANDBOX_NAME, SANDBOX_ID and WORKSPACE_DIR are set; the host name is the sandbox's", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "sh", "-c", `echo "$SANDBOX_NAME $(hostname) $WORKSPACE_DIR ${#SANDBOX_ID}"`)
			if err != nil {
				return "", err
			}
			return that(strings.TrimSpace(string(res.Stdout)) == s.First+" "+s.First+" "+s.Dir+" 36", "%.200q", res.Stdout), nil
		}},
		{"env.proxy", "HTTP_PROXY, HTTPS_PROXY and NO_PROXY are set, in both cases, to gateway.docker.internal:3128", inside, func(ctx context.Context, s *session) (string, error) {
			res, err := s.exec(ctx, "sh", "-c", `for v in HTTP_PROXY HTTPS_PROXY http_proxy https_proxy NO_PROXY no_proxy; do eval "echo \$$v"; done`)
			if err != nil {
				return "", err
			}
			lines := strings.Fields(string(res.Stdout))
			for i, line := range lines {
				want := "http://gateway.docker.internal:3128"
				if i >= 4 {
					want = "localhost,127.0.0.1,::1,gateway.docker.internal"
				}
				if line != want {
					return "a variable is " + line, nil
				}
			}
			return that(len(lines) == 6, "%d of 6 variables are set", len(lines)), nil
		}},
		{"env.trust", "SSL_CERT_FILE, NODE_EXTRA_CA_CERTS and REQUESTS_CA_BUNDLE name files that can be read", inside, shell("ok", `for f in "$SSL_CERT_FILE" "$NODE_EXTRA_CA_CERTS" "$REQUESTS_CA_BUNDLE"; do [ -r "$f" ] || echo "not readable: '$f'"; done; echo ok`)},
		{"env.placeholders", "GH_TOKEN and eight provider variables are preset with placeholders", inside, shell("gho_sbxproxymanaged000000000000000000000 proxy-managed proxy-managed", `echo "$GH_TOKEN $ANTHROPIC_API_KEY $OPENAI_API_KEY"`)},
		{"env.persistent", "bash reads /etc/sandbox-persistent.sh, sh does not", inside, shell("yes ", `echo 'export SBXPAIR_KEPT=yes' | sudo tee -a /etc/sandbox-persistent.sh >/dev/null; echo "$(bash -c 'echo $SBXPAIR_KEPT') $(sh -c 'echo $SBXPAIR_KEPT')"`)},
		{"system.os", "the system is Ubuntu 26.04", inside, shell("ubuntu 26.04", `. /etc/os-release; echo "$ID $VERSION_ID"`)},
		{"system.docker", "there is a Docker daemon inside", inside, shell("yes", `docker version >/dev/null 2>&1 && echo yes || echo no`)},
		{"system.ssh-agent", "the host's SSH agent is not offered unless the setting is on", inside, func(ctx context.Context, s *session) (string, error) {
			setting, err := s.call(ctx, "settings", "get", "ssh.agentForwardingEnabled")
			if err != nil {
				return "", err
			}
			res, err := s.exec(ctx, "sh", "-c", `[ -S /run/ssh-agent.sock ] && echo true || echo false`)
			if err != nil {
				return "", err
			}
			return that(strings.TrimSpace(string(setting.Stdout)) == "true" || strings.TrimSpace(string(res.Stdout)) == "false", "it is there"), nil
		}},
		{"mount.path", "the workspace is at its path of this machine, in both directions", inside, func(ctx context.Context, s *session) (string, error) {
			if err := os.WriteFile(filepath.Join(s.Dir, "from-host"), []byte("from the host"), 0o644); err != nil {
				return "", err
			}
			res, err := s.exec(ctx, "sh", "-c", `cat "$1/from-host" && printf 'from inside' >"$1/from-inside"`, "sh", s.Dir)
			if err != nil {
				return "", err
			}
			text, readErr := os.ReadFile(filepath.Join(s.Dir, "from-inside"))
			return all(wanted(res, 0, "from the host", ""), that(readErr == nil && string(text) == "from inside", "on this machine: %q, %v", text, readErr)), nil
		}},
		{"mount.alone", "the folder above the workspace shows nothing else of this machine", inside, func(ctx context.Context, s *session) (string, error) {
			secret := filepath.Join(filepath.Dir(s.Dir), filepath.Base(s.Dir)+".beside")
			if err := os.WriteFile(secret, nil, 0o600); err != nil {
				return "", err
			}
			defer os.Remove(secret)
			res, err := s.exec(ctx, "sh", "-c", `[ -e "$1" ] && echo seen || echo hidden`, "sh", secret)
			if err != nil {
				return "", err
			}
			return that(strings.TrimSpace(string(res.Stdout)) == "hidden", "%.60q", res.Stdout), nil
		}},
	}
}

func copyProbes() []probe {
	return []probe{
		{"cp.in", "cp FILE NAME:/abs/file: the file is there, with its bytes", inside, func(ctx context.Context, s *session) (string, error) {
			file := filepath.Join(s.private, "file.txt")
			if err := os.WriteFile(file, []byte("carried\n"), 0o644); err != nil {
				return "", err
			}
			res, err := s.call(ctx, "cp", file, s.First+":/tmp/sbxpair-cp.txt")
			if err != nil {
				return "", err
			}
			if bad := that(res.Code == 0, "exit code %d: %.120q", res.Code, res.Stderr); bad != "" {
				return bad, nil
			}
			back, err := s.exec(ctx, "cat", "/tmp/sbxpair-cp.txt")
			if err != nil {
				return "", err
			}
			return that(string(back.Stdout) == "carried\n", "%.60q", back.Stdout), nil
		}},
		{"cp.dir", "a folder copied to one that exists goes inside it; dir/. copies what is in it", inside, func(ctx context.Context, s *session) (string, error) {
			dir := filepath.Join(s.private, "tree")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return "", err
			}
			if err := os.WriteFile(filepath.Join(dir, "leaf"), []byte("x"), 0o644); err != nil {
				return "", err
			}
			if _, err := s.exec(ctx, "mkdir", "-p", "/tmp/sbxpair-into", "/tmp/sbxpair-flat"); err != nil {
				return "", err
			}
			for _, args := range [][]string{{"cp", dir, s.First + ":/tmp/sbxpair-into"}, {"cp", dir + "/.", s.First + ":/tmp/sbxpair-flat"}} {
				res, err := s.call(ctx, args...)
				if err != nil {
					return "", err
				}
				if res.Code != 0 {
					return "exit code not 0: " + string(res.Stderr), nil
				}
			}
			res, err := s.exec(ctx, "sh", "-c", "ls /tmp/sbxpair-into/tree/leaf /tmp/sbxpair-flat/leaf")
			if err != nil {
				return "", err
			}
			return that(res.Code == 0, "%.160q", res.Stderr), nil
		}},
		{"cp.out", "cp NAME:/abs/file FILE", inside, func(ctx context.Context, s *session) (string, error) {
			file := filepath.Join(s.private, "back.txt")
			res, err := s.call(ctx, "cp", s.First+":/tmp/sbxpair-cp.txt", file)
			if err != nil {
				return "", err
			}
			text, readErr := os.ReadFile(file)
			return all(that(res.Code == 0, "exit code %d: %.120q", res.Code, res.Stderr), that(readErr == nil && string(text) == "carried\n", "%.60q, %v", text, readErr)), nil
		}},
		{"cp.relative", "a relative path inside: exit 1, container path must be absolute", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "cp", s.Dir, s.First+":relative")
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", "container path must be absolute"), nil
		}},
		{"cp.between", "from sandbox to sandbox: exit 1, copying between sandboxes is not supported", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "cp", s.First+":/tmp/x", s.Second+":/tmp/x")
			if err != nil {
				return "", err
			}
			return wanted(res, 1, "", "error: copying between sandboxes is not supported\n  try: sbx cp --help"), nil
		}},
		{"cp.missing", "a file that is not there: exit 1, on standard error", box, func(ctx context.Context, s *session) (string, error) {
			res, err := s.call(ctx, "cp", filepath.Join(s.private, "no-such-file"), s.First+":/tmp/x")
			if err != nil {
				return "", err
			}
			return all(that(res.Code == 1, "exit code %d", res.Code), that(len(res.Stderr) > 0, "nothing on standard error")), nil
		}},
	}
}
