package provision_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// A pair from another Go program: two sandboxes, one credential each, gone at the end whatever happens.
func Example() {
	dir, engine := exampleEngine() // sbx.New("sbx") or sbx.New("sbx-local")
	defer os.RemoveAll(dir)

	ctx := context.Background()
	// With our own engine: Kind pair.EngineLocal, Paths, and PolicyUnset where it was not used before.
	plan, err := provision.New(provision.Input{
		Run: pair.NewRunID(time.Now()), Engine: pair.EngineRef{Kind: pair.EngineSbx, Path: "sbx"},
		Repo: "octo/slugify", Host: "github.com",
		Agent: "copilot", AgentEnv: "COPILOT_GITHUB_TOKEN", Workspace: sbx.Workspace{Path: dir},
	})
	if err != nil {
		panic(err)
	}
	host := provision.Host{Engine: engine.Unverified(), Store: pair.NewStore(filepath.Join(dir, "state")), Credentials: provision.Credentials{
		Agent: secrets.New("github_pat_for_the_model"), GitHub: secrets.New("github_pat_for_the_repository")}}
	p, err := provision.Up(ctx, host, plan)
	if err != nil {
		panic(err)
	}
	defer p.Release(ctx, "done", time.Minute)
	res, err := p.Agent.Exec(ctx, sbx.ExecSpec{Argv: []string{"echo", "hello"}})
	fmt.Printf("%s%v\n", res.Stdout, err)
	// Output:
	// hello
	// <nil>
}

// exampleEngine is a fake sbx, which the test binary is when it is called by that name.
func exampleEngine() (dir string, engine *sbx.Client) {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		panic(err)
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	program := filepath.Join(dir, "sbx")
	if err := os.Symlink(self, program); err != nil {
		panic(err)
	}
	return dir, sbx.New(program, sbx.WithAddedEnv("FAKESBX_STATE="+filepath.Join(dir, "fake"), "GORACE=atexit_sleep_ms=0"))
}
