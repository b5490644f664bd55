package vault

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

// A command that hangs, with a child that holds its output, ends soon after its time is up.
func TestCommandHangs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := runCommand(ctx, []string{"/bin/sh", "-c", "sleep 600 & sleep 600"}, nil)
	if !errors.Is(err, ErrCommand) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("took %v", took)
	}
}

func TestSplitCommand(t *testing.T) {
	for line, want := range map[string][]string{
		`/bin/a b  c`:         {"/bin/a", "b", "c"},
		`/bin/a "b c" 'd "e'`: {"/bin/a", "b c", `d "e`},
		`/bin/a b\ c "\"\x"`:  {"/bin/a", "b c", `"\x`},
		`/bin/a ''`:           {"/bin/a", ""},
		`/bin/a $HOME *`:      {"/bin/a", "$HOME", "*"},
		`/bin/a 'x`:           nil,
		`/bin/a x\`:           nil,
		`a b`:                 nil,
		``:                    nil,
		"/bin/a\x00":          nil,
	} {
		got, err := splitCommand(line)
		if !slices.Equal(got, want) || (want == nil) != errors.Is(err, ErrCommand) {
			t.Errorf("%q = %q, %v; want %q", line, got, err, want)
		}
	}
}
