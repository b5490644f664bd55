package main

import (
	"fmt"
	"testing"

	"github.com/sbxpair/sbxpair/workspace"
)

// A refusal of what the agent left is none of how the command was called, whichever of workspace's types says it.
func TestExitCodesOfTheWorkspace(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{&workspace.Error{Kind: workspace.ErrDirty}, exitUsage},
		{&workspace.Error{Kind: workspace.ErrTooLarge}, exitRefused},
		{&workspace.TooLargeError{}, exitRefused},
		{&workspace.HostileError{}, exitRefused},
		{&workspace.GitError{}, exitUsage},
		{&workspace.Error{Kind: workspace.ErrNoSpace}, exitEngine},
	} {
		if got := exitCode(fmt.Errorf("end-state: %w", tt.err)); got != tt.want {
			t.Errorf("%v: exit code %d, want %d", tt.err, got, tt.want)
		}
	}
}
