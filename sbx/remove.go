package sbx

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
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

// VerifyRemoved reads the listing once and checks that none of the names is in it. An empty listing is no proof, since an
// engine whose runtime is broken prints one too (measured on 0.38 and 0.45): then the engine is asked about one of them, and
// has to say that there is no such sandbox. The error matches [ErrNotApplied] if one is still there.
func (c *Client) VerifyRemoved(ctx context.Context, names ...string) error {
	const op = "rm"
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
	if len(all) == 0 && len(names) > 0 && !c.cloud { // the hosted service has no runtime here
		switch _, err := c.Inspect(ctx, names[0]); {
		case err == nil:
			missing = append(missing, fmt.Sprintf("sandbox %s is still there, though the listing is empty", names[0]))
		case !errors.Is(err, ErrNotFound):
			return fmt.Errorf("sbx %s: the listing is empty, which does not tell whether %s is gone: %w", op, strings.Join(names, ", "), err)
		}
	}
	return notApplied(op, missing...)
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
	out, err := c.query(ctx, op, append([]string{"prune", "--dry-run", "--json"}, filter...)...)
	if err != nil {
		return PruneReport{}, err
	}
	report, err := parsePrune(out)
	if err != nil {
		return PruneReport{}, fmt.Errorf("sbx %s: %w", op, err)
	}
	if spec.DryRun || len(report.Removed) == 0 {
		return report, nil
	}
	res, err := c.call(ctx, op, c.timeouts.Remove, Cmd{Args: append([]string{"prune", "--force"}, filter...)})
	if err != nil {
		return PruneReport{}, err
	}
	for _, m := range removedLine.FindAllStringSubmatch(clean(res.Stdout), -1) { // one may have stopped in between
		if !slices.Contains(report.Removed, m[1]) && checkOldName(m[1]) == nil {
			report.Removed = append(report.Removed, m[1])
		}
	}
	if c.readBack {
		return report, c.VerifyRemoved(ctx, report.Removed...)
	}
	return report, nil
}

// removedLine is how prune and rm report what they did (measured on 0.47).
var removedLine = regexp.MustCompile(`(?m)^Sandbox '([^']+)' removed$`)

func parsePrune(out []byte) (PruneReport, error) { return showing(out, readPrune, checkPrune) }

func readPrune(out []byte) (PruneReport, error) {
	type item struct {
		Name string `json:"name"`
	}
	var doc struct {
		WouldRemove []item `json:"would_remove"`
		Skipped     []item `json:"skipped_unknown_stop"`
	}
	if err := decodeJSON(out, "would_remove", &doc); err != nil {
		return PruneReport{}, err
	}
	var report PruneReport
	for _, i := range doc.WouldRemove {
		report.Removed = append(report.Removed, i.Name)
	}
	for _, i := range doc.Skipped {
		report.Skipped = append(report.Skipped, i.Name)
	}
	return report, nil
}
