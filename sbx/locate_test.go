package sbx_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/sbx"
)

const localVersion = `{"client":{"version":"v0.47.0","revision":"0123","engine":"sbx-local","engine_version":"v1.2.3","isolation":"gvisor/systrap (rootless)"},"server":{"state":"stopped"}}`

// TestLocate has the situations that a machine can be in.
func TestLocate(t *testing.T) {
	green := says(`{"version":"1.0","checks":[{"name":"Sandbox","status":"pass"}]}`, "", 0)
	red := says(`{"version":"1.0","checks":[{"name":"User namespaces","status":"fail","message":"not permitted","hint":"sysctl -w kernel.unprivileged_userns_clone=1"}]}`, "", 1)
	local := canned{"version": says(localVersion, "", 0), "diagnose": green}
	ready := canned{"version": says(string(fixture(t, "version-0.47.json")), "", 0), "ls": says(`{"sandboxes":[]}`, "", 0), "policy": says(string(fixture(t, "policy-ls-0.47.json")), "", 0)}
	with := func(base canned, verb, file string) canned {
		c := canned{}
		for k, v := range base {
			c[k] = v
		}
		c[verb] = says("", string(fixture(t, file)), 1)
		return c
	}
	for name, tt := range map[string]struct {
		prefer     sbx.Preference
		sbx, local canned // nil: not installed
		want       string // engine kind; "" is an error
		kinds      []error
		hint       string // of the first one rejected
	}{
		"both, auto":             {"", ready, local, sbx.EngineSbx, nil, ""},
		"both, local asked for":  {sbx.PreferLocal, ready, local, sbx.EngineLocal, nil, ""},
		"no sbx":                 {sbx.PreferAuto, nil, local, sbx.EngineLocal, []error{sbx.ErrNotInstalled}, "install Docker Sandboxes"},
		"no sbx, asked for":      {sbx.PreferSbx, nil, local, "", []error{sbx.ErrNotInstalled}, "install Docker Sandboxes"},
		"signed out":             {sbx.PreferAuto, with(ready, "ls", "error-not-authenticated-0.47.txt"), local, sbx.EngineLocal, []error{sbx.ErrNotSignedIn}, "sbx login"},
		"no policy":              {sbx.PreferAuto, with(ready, "policy", "error-policy-uninitialised-0.47.txt"), local, sbx.EngineLocal, []error{sbx.ErrPolicyUninitialised}, "sbx policy init balanced"},
		"another tool":           {sbx.PreferAuto, canned{"version": says("sandbox-exec 3.1\n", "", 0)}, local, sbx.EngineLocal, []error{sbx.ErrForeignTool}, "install Docker Sandboxes"},
		"another tool, fails":    {sbx.PreferAuto, canned{"version": says("", "usage: sbx FILE\n", 2)}, local, sbx.EngineLocal, []error{sbx.ErrForeignTool}, "install Docker Sandboxes"},
		"too old":                {sbx.PreferAuto, canned{"version": says("sbx version: v0.34.0 0123\n", "", 0)}, local, sbx.EngineLocal, []error{sbx.ErrUnsupported}, "update Docker Sandboxes"},
		"local called sbx":       {sbx.PreferAuto, local, local, sbx.EngineLocal, []error{sbx.ErrForeignTool}, "install Docker Sandboxes"},
		"local cannot":           {sbx.PreferLocal, nil, canned{"version": says(localVersion, "", 0), "diagnose": red}, "", []error{sbx.ErrEngine}, "sysctl -w"},
		"nothing at all":         {sbx.PreferAuto, nil, nil, "", []error{sbx.ErrNotInstalled}, "install Docker Sandboxes"},
		"a word that is none":    {"docker", nil, nil, "", []error{sbx.ErrInvalid}, ""},
		"development build":      {sbx.PreferAuto, canned{"version": says("sbx version: dev\n", "", 0), "ls": ready["ls"], "policy": ready["policy"]}, nil, sbx.EngineSbx, nil, ""},
		"sbx-local is something": {sbx.PreferLocal, nil, canned{"version": says("sbx version: v0.47.0 0123\n", "", 0)}, "", []error{sbx.ErrForeignTool}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			// One runner for both: which engine is asked is told by the call that Locate makes first.
			paths := map[string]canned{sbx.EngineSbx: tt.sbx, sbx.EngineLocal: tt.local}
			current := ""
			look := func(name string) (string, error) {
				current = name
				if paths[name] == nil {
					return "", exec.ErrNotFound
				}
				return "/bin/" + name, nil
			}
			runner := sbx.RunnerFunc(func(ctx context.Context, c sbx.Cmd) (sbx.Result, error) {
				return runCanned(t, paths[current], c)
			})
			e, err := sbx.Locate(t.Context(), sbx.LocateOptions{Prefer: tt.prefer, LookPath: look, Client: []sbx.Option{sbx.WithRunner(runner)}})
			if tt.want == "" {
				if err == nil {
					t.Fatalf("chose %+v", e)
				}
				for _, k := range tt.kinds {
					if !errors.Is(err, k) {
						t.Errorf("%v does not match %v", err, k)
					}
				}
				if !strings.Contains(err.Error(), tt.hint) {
					t.Errorf("%v does not say %q", err, tt.hint)
				}
				return
			}
			ok(t, err)
			if e.Kind != tt.want || e.Path != "/bin/"+tt.want || e.Reason == "" || len(e.Rejected) != len(tt.kinds) {
				t.Fatalf("%+v", e)
			}
			for i, k := range tt.kinds {
				if !errors.Is(e.Rejected[i].Err, k) || !strings.Contains(e.Rejected[i].Remedy, tt.hint) {
					t.Errorf("rejected %+v, want %v with %q", e.Rejected[i], k, tt.hint)
				}
			}
		})
	}
}

func runCanned(t *testing.T, answers canned, c sbx.Cmd) (sbx.Result, error) {
	res, found := answers[c.Args[0]]
	if !found {
		t.Errorf("unexpected call %q", c.Args)
	}
	return result(c, res.Stdout, res.Stderr, res.Code)
}

// TestLocateBeside: our own sbx-local comes before one on the path.
func TestLocateBeside(t *testing.T) {
	dir := t.TempDir()
	ok(t, os.WriteFile(filepath.Join(dir, "sbx-local"), nil, 0o755))
	runner := sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		return runCanned(t, canned{"version": says(localVersion, "", 0), "diagnose": says(`{"checks":[{"name":"a","status":"pass"}]}`, "", 0)}, c)
	})
	e, err := sbx.Locate(t.Context(), sbx.LocateOptions{
		Prefer: sbx.PreferLocal, Executable: filepath.Join(dir, "sbxpair"), Client: []sbx.Option{sbx.WithRunner(runner)},
		LookPath: func(string) (string, error) { return "/usr/bin/sbx-local", nil },
	})
	ok(t, err)
	if e.Path != filepath.Join(dir, "sbx-local") || e.Version.Isolation != "gvisor/systrap (rootless)" || e.Version.String() != "sbx-local v1.2.3 (speaks sbx 0.47.0)" {
		t.Errorf("%+v", e)
	}
	if v, err := e.Client().Version(t.Context()); err != nil || !v.Has(sbx.FeatureResolve) || !v.Has(sbx.FeatureHTTPRules) {
		t.Errorf("%+v, %v", v, err)
	}
}
