package doctor

import (
	"context"
	"fmt"
)

// Fix is something that is safe to do about a check: it takes nothing from anybody but what is ours and over.
type Fix struct {
	ID   string `json:"id"`             // of the check
	What string `json:"what"`           // what will be done, in one line
	Lost string `json:"lost,omitempty"` // work that nobody fetched and that goes with it
	do   func(context.Context, Options) error
}

// Fixes returns what can be done about r, in the order of its checks. Nothing is done by asking.
func (r Report) Fixes() []Fix { return r.fixes }

// Do carries the fix out. Examine again afterwards: that it ran without an error is not the proof that it helped.
func (f Fix) Do(ctx context.Context, o Options) error {
	ctx, cancel := context.WithTimeout(ctx, fixLimit)
	defer cancel()
	if err := f.do(ctx, o); err != nil {
		return fmt.Errorf("fix %s: %w", f.ID, err)
	}
	return nil
}
