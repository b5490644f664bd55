package agent

import (
	"fmt"
	"slices"
)

// Program is any program by configuration: it reads the prompt on standard input, works in the working folder, and its
// exit status says whether it succeeded. Its lines are kept as text and never judged: a test log may well say "401". Neither
// sessions nor usage are known of it.
//
// A read-only task is refused: nothing could hold the program to it.
func Program(name string, argv ...string) Adapter {
	a := Adapter{Name: name}
	if len(argv) > 0 {
		a.Program, argv = argv[0], argv[1:]
	}
	a.invoke = func(t Task, _ string) (Invocation, error) {
		if a.Program == "" && len(t.Command) == 0 {
			return Invocation{}, fmt.Errorf("%w: no program is configured", ErrTask)
		}
		args := slices.Clone(argv)
		if len(t.Command) > 0 {
			args = nil
		}
		return Invocation{Argv: append(args, t.Args...), Stdin: t.Prompt, Env: []string{"NO_COLOR=1"}}, nil
	}
	return a
}
