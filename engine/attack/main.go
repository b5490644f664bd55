// Command attack tries, from inside a sandbox, to get out of it. The test beside it puts it into real sandboxes and runs
// each attempt of [attempts] there; nothing else uses it.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"time"
)

// An attempt is one way out of a sandbox.
type attempt struct {
	group, name string
	what        string // for the documentation: what is tried, and what has to happen
	// from is the sandbox that tries: "", the one with the credentials; "tunnel", whose TLS is not ended in the proxy; or
	// one of its own that may end.
	from string
	// try returns how the attempt was refused, or an error that says how far it came.
	try func(context.Context, *attacker) (refusal string, err error)
	// host and reason are in a line of the policy log afterwards, where the attempt is traffic.
	host, reason string
}

// What is refused, for the reader's sake in the order of how far it is from the sandbox.
const (
	groupDirect  = "Around the proxy"
	groupNames   = "Names"
	groupAddress = "Addresses through the proxy"
	groupConnect = "CONNECT"
	groupHosts   = "Whose host it is"
	groupFraming = "Request smuggling"
	groupPaths   = "Method and path rules"
	groupSecrets = "Credentials"
	groupFiles   = "Files of the host"
	groupKernel  = "Kernel and processes"
	groupLimits  = "Exhaustion"
)

// attempts is the table.
func attempts() []attempt {
	return slices.Concat(directAttempts(), nameAttempts(), addressAttempts(), connectAttempts(), hostAttempts(), framingAttempts(),
		pathAttempts(), secretAttempts(), fileAttempts(), kernelAttempts(), limitAttempts())
}

// control is what has to work, so that the refusals mean something.
func control() attempt {
	return attempt{name: "control", try: func(ctx context.Context, a *attacker) (string, error) {
		var got string
		for _, target := range []string{"https://api.github.com/", "http://open.test/", "https://open.test/", "https://paths.test/repos/a/x", "https://echo.test/"} {
			resp, body, err := a.get(ctx, "GET", target, "Accept: */*")
			if err != nil {
				return "", err
			}
			got += fmt.Sprintln(resp.StatusCode, resp.Proto, body)
		}
		return got, nil
	}}
}

// Facts are what an attacker could know of the machine, in the variable FACTS.
type facts struct {
	Workspace   string
	HostFile    string   // a file of the host outside the workspace
	StateFiles  []string // of the engine
	Sockets     []string // of the engine, among them the other sandbox's way out
	HostPort    int      // of a server on the host's loopback that no rule names
	HostAddrs   []string // of the host
	HostPID     int
	Abstract    string // an abstract unix socket of the host
	Placeholder string // of the custom secret that is bound to echo.test
}

type attacker struct{ facts }

// limit bounds one attempt.
const limit = 20 * time.Second

// outcome is what the program prints.
type outcome struct {
	Refused string `json:"refused,omitempty"`
	Through string `json:"through,omitempty"`
}

func main() {
	var a attacker
	if err := json.Unmarshal([]byte(os.Getenv("FACTS")), &a.facts); err != nil || len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: FACTS={...} attack NAME")
		os.Exit(2)
	}
	all := append(attempts(), control())
	i := slices.IndexFunc(all, func(at attempt) bool { return at.name == os.Args[1] })
	if i < 0 {
		fmt.Fprintln(os.Stderr, "no such attempt")
		os.Exit(2)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out outcome
	refused, err := all[i].try(ctx, &a)
	if err != nil {
		out.Through = err.Error()
	} else {
		out.Refused = refused
	}
	json.NewEncoder(os.Stdout).Encode(out)
}
