package sbx

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// Remove deletes sandboxes with their disks, scoped rules and (from sbx 0.42) scoped secrets, running or not, and reads
// back that they are gone. That one was gone before is success.
func (c *Client) Remove(ctx context.Context, names ...string) error {
	const op = "rm"
	if err := checkNames(op, names); err != nil {
		return err
	}
	err := c.remove(ctx, names)
	if errors.Is(err, ErrNotFound) && len(names) > 1 {
		// What a batch does behind a name that it does not find is not established: one by one then.
		err = nil
		for _, name := range names {
			if oneErr := c.remove(ctx, []string{name}); oneErr != nil && !errors.Is(oneErr, ErrNotFound) {
				err = errors.Join(err, oneErr)
			}
		}
	}
	if err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	if !c.readBack {
		return nil
	}
	return c.VerifyRemoved(ctx, names...)
}

func (c *Client) remove(ctx context.Context, names []string) error {
	_, err := c.call(ctx, "rm", c.timeouts.Remove, Cmd{Args: append([]string{"rm", "--force"}, names...)})
	return err
}

// VerifyRemoved reads the listing once and checks that none of the names is in it. The error matches [ErrNotApplied] if
// one is.
func (c *Client) VerifyRemoved(ctx context.Context, names ...string) error {
	all, err := c.List(ctx)
	if err != nil {
		return err
	}
	var missing []string
	for _, s := range all {
		if slices.Contains(names, s.Name) {
			missing = append(missing, fmt.Sprintf("sandbox %s is still there (%s)", s.Name, s.Status))
		}
	}
	if missing != nil {
		return &NotAppliedError{Op: "rm", Missing: missing}
	}
	return nil
}

// PruneSpec selects what Prune removes: stopped sandboxes only, whoever made them.
type PruneSpec struct {
	Until  string // only those stopped before: RFC 3339, unix seconds or a Go duration (sbx 0.43); "" is all stopped ones
	DryRun bool
}

// PruneReport says what was or would be removed.
type PruneReport struct {
	Removed []string // names; with DryRun: what would be
	Skipped []string // names whose stop time is unknown
}

// Prune removes stopped sandboxes of the whole engine, those of other tools included.
func (c *Client) Prune(ctx context.Context, spec PruneSpec) (PruneReport, error) {
	const op = "prune"
	var filter []string
	if spec.Until != "" {
		if err := c.require(ctx, op, FeaturePruneUntil); err != nil {
			return PruneReport{}, err
		}
		filter = []string{"--filter", "until=" + spec.Until}
	}
	res, err := c.call(ctx, op, c.timeouts.Query, Cmd{Args: append([]string{"prune", "--dry-run", "--json"}, filter...)})
	if err != nil {
		return PruneReport{}, err
	}
	report, err := parsePrune(res.Stdout)
	if err != nil || spec.DryRun || len(report.Removed) == 0 {
		return report, err
	}
	if _, err := c.call(ctx, op, c.timeouts.Remove, Cmd{Args: append([]string{"prune", "--force"}, filter...)}); err != nil {
		return PruneReport{}, err
	}
	if c.readBack {
		return report, c.VerifyRemoved(ctx, report.Removed...)
	}
	return report, nil
}

func parsePrune(out []byte) (PruneReport, error) {
	type item struct {
		Name string `json:"name"`
	}
	var doc struct {
		WouldRemove []item `json:"would_remove"`
		Skipped     []item `json:"skipped_unknown_stop"`
	}
	if err := decodeJSON(out, "would_remove", &doc); err != nil {
		return PruneReport{}, fmt.Errorf("sbx prune: %w", err)
	}
	if doc.WouldRemove == nil {
		return PruneReport{}, fmt.Errorf("sbx prune: %w", malformed("null for a list of sandboxes"))
	}
	var report PruneReport
	for _, i := range doc.WouldRemove {
		if checkOldName(i.Name) != nil {
			return PruneReport{}, fmt.Errorf("sbx prune: %w", malformed("sandbox named %q", i.Name))
		}
		report.Removed = append(report.Removed, i.Name)
	}
	for _, i := range doc.Skipped {
		report.Skipped = append(report.Skipped, i.Name)
	}
	return report, nil
}
