package sbx_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// Make a sandbox, run a command in it, remove it. The removal is registered before the create: a create that is cut off may
// still have created. The engine here is a fake, so that the example runs anywhere; see Locate and New for a real one.
func Example() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	c := sbx.New("sbx", sbx.WithRunner(engine))

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	defer func() {
		if err := c.Remove(context.WithoutCancel(ctx), "demo"); err != nil {
			fmt.Println(err)
		}
	}()
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err, sbx.Hint(err))
		return
	}
	res, err := c.Exec(ctx, "demo", sbx.ExecSpec{Argv: []string{"echo", "hello"}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("exit %d: %s", res.Code, res.Stdout)
	// Output: exit 0: hello
}

// Which engine this machine has, and why not another: Docker's sbx if it is there, signed in and set up, else sbx-local.
func ExampleLocate() {
	machine, remove, err := fake.New("0.47") // what follows runs as if this were installed
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	engine, err := sbx.Locate(context.Background(), sbx.LocateOptions{
		LookPath: func(name string) (string, error) { return "/usr/bin/" + name, nil }, // outside of examples: exec.LookPath
		Client:   []sbx.Option{sbx.WithRunner(machine)},                                // and no such option
	})
	if missing, none := errors.AsType[*sbx.NoEngineError](err); none {
		for _, r := range missing.Rejected {
			fmt.Printf("%s: %v; %s\n", r.Kind, r.Err, r.Remedy)
		}
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(engine.Kind, engine.Path, engine.Version.Client)
	list, err := engine.Client().List(context.Background())
	fmt.Println(len(list), err)
	// Output:
	// sbx /usr/bin/sbx 0.47.0
	// 0 <nil>
}

// A client for a program whose path is known, with a state tree of its own, deadlines of its own, and every call recorded. No
// program is started by New.
func ExampleNew() {
	c := sbx.New("/usr/local/bin/sbx",
		sbx.WithAppName("nightly"),                               // daemon, policy, secrets and sandboxes apart from the user's
		sbx.WithTimeouts(sbx.Timeouts{Create: 20 * time.Minute}), // the others keep their defaults
		sbx.WithGrace(5*time.Second),                             // between interrupt and kill
		sbx.WithRecorder(filepath.Join(os.TempDir(), "nightly-calls")),
	)
	_, err := c.List(context.Background())
	if errors.Is(err, sbx.ErrNotInstalled) {
		fmt.Println("the first call says so:", sbx.Hint(err))
	}
}

// A sandbox with everything. What the installed version cannot do is an error before anything runs.
func ExampleClient_Create() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	c := sbx.New("sbx", sbx.WithRunner(engine))

	work, docs := os.TempDir(), filepath.Dir(engine.State)
	box, err := c.Create(context.Background(), sbx.CreateSpec{
		Name:       "demo",
		Workspaces: []sbx.Workspace{{Path: work}, {Path: docs, ReadOnly: true}}, // the first is the primary one
		CPUs:       2, MemoryMiB: 4096,
		DenyNetwork: []string{"**.example.net"}, // from the first moment on
		Publish:     []string{"18080:8080"},
		Env:         []sbx.EnvVar{{Name: "LANG", Value: "C.UTF-8"}},
		SkillsOff:   true,
	})
	if needs, unsupported := errors.AsType[*sbx.UnsupportedError](err); unsupported {
		fmt.Println("needs", needs.Need)
		return
	}
	fmt.Println(box.Name, box.Status, box.Ports, err)
	// Output: demo running [127.0.0.1:18080->8080/tcp4] <nil>
}

// A command's exit code is data. That it could not be run is an error.
func ExampleClient_Exec() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}

	res, err := c.Exec(ctx, "demo", sbx.ExecSpec{Argv: []string{"false"}})
	fmt.Println(res.Code, err)
	_, err = c.Exec(ctx, "demo", sbx.ExecSpec{Argv: []string{"no-such-program"}})
	fmt.Println(errors.Is(err, sbx.ErrLaunch))
	_, err = c.Exec(ctx, "nobody", sbx.ExecSpec{Argv: []string{"true"}})
	fmt.Println(errors.Is(err, sbx.ErrNotFound))
	// Output:
	// 1 <nil>
	// true
	// true
}

// Input from a reader, output line by line as it comes, a time limit, and everything ended if it is cut short.
func ExampleClient_Exec_streaming() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}

	lines := sbx.Lines(func(line []byte) { fmt.Printf("> %s\n", line) })
	res, err := c.Exec(ctx, "demo", sbx.ExecSpec{
		Argv:     []string{"cat"},
		Stdin:    strings.NewReader("one\ntwo\nthree"),
		Stdout:   lines,
		Timeout:  time.Minute,
		KillTree: true,
	})
	lines.Close() // delivers a last line without an end
	fmt.Println(res.Code, err)
	// Output:
	// > one
	// > two
	// > three
	// 0 <nil>
}

// A folder into a sandbox, and one file out again. Every file is looked for afterwards, with its size.
func ExampleClient_CopyIn() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}

	dir := filepath.Join(engine.State, "job")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "task.txt"), []byte("do it\n"), 0o600)); err != nil {
		fmt.Println(err)
		return
	}
	if err := c.CopyIn(ctx, "demo", dir, "/home/agent/job"); err != nil {
		fmt.Println(err) // names what did not arrive
		return
	}
	back := filepath.Join(engine.State, "back.txt")
	if err := c.CopyOut(ctx, "demo", "/home/agent/job/task.txt", back); err != nil {
		fmt.Println(err)
		return
	}
	text, err := os.ReadFile(back)
	fmt.Printf("%q %v\n", text, err)
	// Output: "do it\n" <nil>
}

// One host for one sandbox, one method of another, and the question whether it took.
func ExampleClient_PolicyAllow() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}

	ids, err := c.PolicyAllow(ctx, sbx.PolicyRule{Sandbox: "demo", Resources: []string{"registry.example.com:443"}})
	fmt.Println(len(ids), err)
	_, err = c.PolicyDeny(ctx, sbx.PolicyRule{
		Sandbox: "demo", Resources: []string{"github.com"}, Methods: []string{"POST"}, Path: "/**/git-receive-pack",
	})
	fmt.Println(err)
	verdict, err := c.PolicyCheck(ctx, "demo", "registry.example.com")
	fmt.Println(verdict.Allowed, err)
	fmt.Println(c.PolicyRemove(ctx, sbx.RuleRef{Sandbox: "demo", ID: ids[0]}))
	// Output:
	// 1 <nil>
	// <nil>
	// true <nil>
	// <nil>
}

// A credential travels on standard input, or the engine fetches it itself. No error, log or recording shows it.
func ExampleClient_SecretSet() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}

	token := secrets.New("github_pat_example")
	fmt.Println(c.SecretSet(ctx, sbx.ServiceSecret{Service: "github", Sandbox: "demo", Value: token}), token)
	fmt.Println(c.SecretSet(ctx, sbx.ServiceSecret{Service: "anthropic", Sandbox: "demo", Command: "/usr/bin/pass show anthropic"}))
	list, err := c.SecretList(ctx)
	for _, s := range list {
		fmt.Println(s.Type, s.Name, s.Sandbox, s.Global())
	}
	fmt.Println(err)
	// Output:
	// <nil> ***
	// <nil>
	// service github demo false
	// service anthropic demo false
	// <nil>
}

// Several changes, and one read for each kind of them.
func ExampleClient_Unverified() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	u := c.Unverified()

	var specs []sbx.CreateSpec
	var rules []sbx.PolicyRule
	for _, name := range []string{"one", "two"} {
		spec := sbx.CreateSpec{Name: name}
		rule := sbx.PolicyRule{Sandbox: name, Resources: []string{"api.example.com:443", "example.org:443"}}
		if _, err := u.Create(ctx, spec); err != nil {
			fmt.Println(err)
		}
		if _, err := u.PolicyAllow(ctx, rule); err != nil {
			fmt.Println(err)
		}
		specs, rules = append(specs, spec), append(rules, rule)
	}
	made, err := c.VerifyCreated(ctx, specs...)
	fmt.Println(len(made), err, c.VerifyRules(ctx, rules...))
	// Output: 2 <nil> <nil>
}

// An engine that says done and does nothing.
func ExampleNotAppliedError() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	script := []byte(`calls: [{match: "^policy allow", stdout: "Rule added\n"}]`)
	if err := os.WriteFile(filepath.Join(engine.State, "script.yaml"), script, 0o600); err != nil {
		fmt.Println(err)
		return
	}
	c := sbx.New("sbx", sbx.WithRunner(engine))

	_, err = c.PolicyAllow(context.Background(), sbx.PolicyRule{Resources: []string{"a.example:443", "b.example:443"}})
	if lie, ok := errors.AsType[*sbx.NotAppliedError](err); ok {
		fmt.Println(strings.Join(lie.Missing, "\n"))
	}
	// Output:
	// allow a.example:443 (global) is not in the listing
	// allow b.example:443 (global) is not in the listing
}

// Every call written down, to be looked at, or played to the same program later: what a machine with a real sbx said becomes
// a test anywhere.
func ExampleRecorder() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, cassette := context.Background(), filepath.Join(engine.State, "cassette")

	c := sbx.New("sbx", sbx.WithRunner(engine), sbx.WithRecorder(cassette))
	_, err = c.Create(ctx, sbx.CreateSpec{Name: "demo"})
	fmt.Println(err)

	replay, err := sbx.NewReplay(cassette)
	if err != nil {
		fmt.Println(err)
		return
	}
	again, err := sbx.New("sbx", sbx.WithRunner(replay)).Create(ctx, sbx.CreateSpec{Name: "demo"})
	fmt.Println(again.Name, again.Status, err)
	// Output:
	// <nil>
	// demo running <nil>
}

// Output as it comes, line by line.
func ExampleLines() {
	w := sbx.Lines(func(line []byte) { fmt.Printf("> %s\n", line) })
	fmt.Fprint(w, "one\ntw")
	fmt.Fprint(w, "o\nthree")
	w.Close()
	// Output:
	// > one
	// > two
	// > three
}

// What to tell a user.
func ExampleHint() {
	engine, remove, err := fake.New("0.47")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer remove()
	ctx, c := context.Background(), sbx.New("sbx", sbx.WithRunner(engine))
	fmt.Println(c.Logout(ctx))
	_, err = c.List(ctx)
	fmt.Println(errors.Is(err, sbx.ErrNotSignedIn), sbx.Hint(err))
	// Output:
	// <nil>
	// true sbx login
}
