// Command sbxpair runs coding agents in pairs of microVM sandboxes: one that can reach a model and nothing else, and
// one that can act on one repository and never runs a line that the agent wrote.
package main

import (
	"os"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }
