package provision

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/sbxpair/sbxpair/pair"
)

// Host is where pairs are made: an engine, the records of what is on it, and the credentials that pairs get.
type Host struct {
	Engine      PoolEngine // an [sbx.Client]'s Unverified: what is changed is read back once for all of it
	Store       *pair.Store
	Credentials Credentials
}

// upLimit bounds the removal of a pair that did not come about.
const upLimit = 2 * time.Minute

// Up makes the pair of the plan, reads it back, and sets up both sandboxes as the plan says. End it with
// [pair.Pair.Release], or leave it in place with [pair.Pair.Keep]. If anything fails, nothing is left; the error then
// matches [pair.ErrLeft] if that could not be made sure of; a panic comes back as a [*pair.Crash]. Up takes no proof: see [Prove]. It touches neither signals
// nor the environment of the program that calls it.
func Up(ctx context.Context, host Host, plan Plan) (*pair.Pair, error) {
	p, err := pair.Acquire(host.Engine, host.Store, pair.Lease{
		Run: plan.Run, Created: time.Now().UTC(), Owner: pair.Self(), Engine: plan.Engine, Repository: plan.Repo, Host: plan.Host,
	})
	if err != nil {
		return nil, err
	}
	err = pair.Caught(func() error {
		for _, s := range plan.Specs() {
			if s.Role == pair.RoleGitHub && len(s.Workspaces) > 0 { // the empty folder of engines that cannot do without
				if err := os.MkdirAll(s.Workspaces[0].Path, 0o700); err != nil {
					return err
				}
			}
		}
		if _, err := Apply(ctx, host.Engine, p, plan, host.Credentials); err != nil {
			return err
		}
		_, err := SetUp(ctx, host.Engine, plan)
		return err
	})
	if err != nil {
		_, releaseErr := p.Release(ctx, "failed", upLimit)
		return nil, errors.Join(fmt.Errorf("make the pair %s: %w", plan.Run, err), releaseErr)
	}
	return p, nil
}
