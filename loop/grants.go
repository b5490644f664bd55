package loop

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
)

// eventLog is the event log's name in the run's folder.
const eventLog = "events.jsonl"

func (r *run) grants() provision.Changes { return provision.ChangesIn(r.req.Store.Dir(r.id), r.id) }

// noteGrants takes over into the record what other processes granted and revoked since it was last looked at.
func (r *run) noteGrants() error {
	list, err := r.grants().Events()
	if err != nil {
		return err
	}
	for _, e := range list[min(r.granted, len(list)):] {
		r.log.Emit(e)
	}
	r.granted = len(list)
	return nil
}

// Repository settles which repository a run for the checkout would be about, and changes nothing. A configuration that names one
// needs no checkout.
func Repository(ctx context.Context, req Request) (string, error) {
	r := &run{req: req, id: pair.NewRunID(time.Now()), upOnly: true}
	err := r.settle(ctx)
	return r.repo, err
}

// settle finds out which repository the run is about, from the checkout only if nothing else says so.
func (r *run) settle(ctx context.Context) error {
	if r.req.Config.GitHub.Repo == "" {
		_, err := r.checkout(ctx)
		return err
	}
	return r.choose("")
}

// RecordedPlan returns the last plan in the record of a run whose folder is dir. The error matches [ErrNoPlan] if it did
// not get as far as one.
func RecordedPlan(dir string) (provision.Plan, error) {
	list, err := recorded[struct{ Plan provision.Plan }](dir, events.Planned{})
	if err == nil && len(list) == 0 {
		err = fmt.Errorf("%w in %s", ErrNoPlan, dir)
	}
	if err != nil {
		return provision.Plan{}, err
	}
	return list[len(list)-1].Plan, nil
}

// RecordedBlocked returns what the record of a run says was blocked.
func RecordedBlocked(dir string) ([]events.Blocked, error) {
	return recorded[events.Blocked](dir, events.Blocked{})
}

// recorded returns the data of the events of one kind in the record of a run.
func recorded[T any](dir string, kind events.Payload) ([]T, error) {
	list, err := events.ReadFile(filepath.Join(dir, eventLog))
	if err != nil {
		return nil, err
	}
	var out []T
	for _, e := range list {
		if e.Type != kind.Kind() {
			continue
		}
		if err := take(e, func(data T) { out = append(out, data) }); err != nil {
			return nil, err
		}
	}
	return out, nil
}
