package loop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/provision"
)

func (r *run) prove(ctx context.Context) (string, error) {
	proof, err := r.takeProof(ctx)
	r.proven = err == nil
	if err == nil && !r.upOnly && r.deliverable() && r.finishes == "" {
		err = r.checkBase(ctx)
	}
	if err == nil && r.plan.HasSetup() {
		report, setupErr := provision.SetUp(ctx, r.engine, r.plan)
		for _, call := range report.Calls {
			r.log.Emit(call)
		}
		err = setupErr
	}
	if err == nil && !r.upOnly && r.finishes == "" {
		err = r.takeInventory(ctx)
	}
	detail := fmt.Sprintf("%d answers as expected", len(proof.Probes))
	for _, role := range slices.Sorted(maps.Keys(proof.Owners)) {
		detail += fmt.Sprintf(", %s's token is %s's", role, proof.Owners[role])
	}
	return detail, err
}

// takeProof asks from inside both sandboxes whether the pair is as planned, and records the answers.
func (r *run) takeProof(ctx context.Context) (events.Proof, error) {
	plan, err := r.grants().Plan(r.plan)
	if err != nil {
		return events.Proof{}, err
	}
	proof, err := r.proofOf(ctx, plan)
	if errors.Is(err, provision.ErrCredential) && r.proven {
		// It was good before. An engine may have lost it (docker/sbx-releases#268): it is given once more, not for ever.
		if r.giveAgain(ctx) {
			proof, err = r.proofOf(ctx, plan)
		}
		if errors.Is(err, provision.ErrCredential) {
			err = fmt.Errorf("%w: %w", provision.ErrExpired, err)
		}
	}
	return proof, err
}

// giveAgain gives both credentials to the pair once more, if that was not tried yet.
func (r *run) giveAgain(ctx context.Context) bool {
	if r.givenAgain {
		return false
	}
	r.givenAgain = true
	note := "a credential that was good is refused; both were given to the pair once more"
	err := r.grants().Rebind(ctx, r.engine, r.pair, r.plan, provision.Credentials{Agent: r.agentToken, GitHub: r.githubToken})
	if err != nil {
		note = "a credential that was good is refused, and could not be given again: " + err.Error()
	}
	r.log.Emit(events.Noted{Text: note})
	return err == nil
}

// proofOf takes the proof once and records it.
func (r *run) proofOf(ctx context.Context, plan provision.Plan) (events.Proof, error) {
	proof, err := provision.Prove(ctx, r.pair, plan, provision.Credentials{Agent: r.agentToken, GitHub: r.githubToken}, r.proofs == 0)
	r.log.Emit(proof)
	for _, note := range proof.Notes {
		r.log.Emit(events.Noted{Text: note})
	}
	r.proofs++
	return proof, err
}

// checkBase makes sure, from the github sandbox and before any work is paid for, that the result could be delivered.
func (r *run) checkBase(ctx context.Context) error {
	client, repo, err := r.github()
	if err != nil {
		return err
	}
	defer client.Close()
	_, found, err := client.Branch(ctx, repo, r.baseBranch())
	if errors.Is(err, github.ErrEmptyRepository) && r.req.Config.GitHub.InitEmpty {
		return nil // the delivery brings the base along
	}
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%w: %s has no branch %q to merge into; name one with --base", config.ErrInvalid, repo, r.baseBranch())
	}
	pushed, err := client.HasCommit(ctx, repo, r.state.Workspace.Base)
	if err != nil {
		return err
	}
	if !pushed {
		return fmt.Errorf("%w: the checkout's commit %.12s is not on %s yet; push it first", config.ErrInvalid, r.state.Workspace.Base, repo)
	}
	return nil
}
