package github

import (
	"context"

	"github.com/sbxpair/sbxpair/sbx"
)

// Runner runs one command in the github sandbox; it is bound to that sandbox. A guest exit code other than 0 is a
// result, not an error. Exec returns soon after ctx is done and must be safe for concurrent use.
//
// Standard output has to be handed on as it arrives: the request channel talks both ways over one exec.
type Runner interface {
	Exec(ctx context.Context, spec sbx.ExecSpec) (sbx.ExecResult, error)
}
