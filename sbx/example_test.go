package sbx_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/fixtures/fakesbx/fake"
	"github.com/sbxpair/sbxpair/sbx"
	"github.com/sbxpair/sbxpair/secrets"
)

// exampleClient drives a fake engine, so that the examples run anywhere. Outside of examples: sbx.Locate, or
// sbx.New("/usr/bin/sbx").
func exampleClient(dir string) *sbx.Client {
	return sbx.New("sbx", sbx.WithRunner(sbx.RunnerFunc(func(_ context.Context, c sbx.Cmd) (sbx.Result, error) {
		var out, errOut bytes.Buffer
		stdin := c.Stdin
		if stdin == nil {
			stdin = strings.NewReader("")
		}
		code := fake.Run(c.Args, stdin, &out, &errOut, []string{"FAKESBX_STATE=" + dir})
		return sbx.Result{Stdout: out.Bytes(), Stderr: errOut.Bytes(), StdoutHead: out.Bytes(), StdoutBytes: int64(out.Len()), Code: code}, nil
	})))
}

func tempDir() (dir string, remove func()) {
	dir, err := os.MkdirTemp("", "sbx-example-")
	if err != nil {
		panic(err)
	}
	return dir, func() { os.RemoveAll(dir) }
}

// Make a sandbox, run a command in it, remove it. The removal is registered before the create: a create that is cut off may
// still have created.
func Example() {
	dir, remove := tempDir()
	defer remove()
	ctx, c := context.Background(), exampleClient(dir)

	defer func() {
		if err := c.Remove(ctx, "demo"); err != nil {
			fmt.Println(err)
		}
	}()
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
		return
	}
	res, err := c.Exec(ctx, "demo", sbx.ExecSpec{Argv: []string{"echo", "hello"}, Timeout: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("exit %d: %s", res.Code, res.Stdout)
	// Output: exit 0: hello
}

// Several changes, and one read for each kind of them.
func ExampleClient_Unverified() {
	dir, remove := tempDir()
	defer remove()
	ctx, c := context.Background(), exampleClient(dir)
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

// A command's exit code is data. That it could not be run is an error.
func ExampleClient_Exec() {
	dir, remove := tempDir()
	defer remove()
	ctx, c := context.Background(), exampleClient(dir)
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

// A credential travels on standard input, and no error shows it.
func ExampleClient_SecretSet() {
	dir, remove := tempDir()
	defer remove()
	ctx, c := context.Background(), exampleClient(dir)
	if _, err := c.Create(ctx, sbx.CreateSpec{Name: "demo"}); err != nil {
		fmt.Println(err)
	}
	secret := sbx.ServiceSecret{Service: "github", Sandbox: "demo", Value: secrets.New("github_pat_example")}
	fmt.Println(c.SecretSet(ctx, secret), secret.Value)
	// Output: <nil> ***
}

// What to tell a user.
func ExampleHint() {
	dir, remove := tempDir()
	defer remove()
	ctx, c := context.Background(), exampleClient(dir)
	fmt.Println(c.Logout(ctx))
	_, err := c.List(ctx)
	fmt.Println(sbx.Hint(err))
	// Output:
	// <nil>
	// sbx login
}
