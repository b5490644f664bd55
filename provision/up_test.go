//go:build linux

package provision_test

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/provision"
	"github.com/sbxpair/sbxpair/sbx"
)

// stopping is an engine that calls do when the first rule is set.
type stopping struct {
	*sbx.Client
	do func(context.Context) error
}

func (s stopping) PolicyAllow(ctx context.Context, _ sbx.PolicyRule) ([]string, error) {
	return nil, s.do(ctx)
}

// signals is which signals this process catches and which it ignores, as the system says.
func signals(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	return string(regexp.MustCompile(`(?m)^Sig(Ign|Cgt):.*$`).Find(text)) + string(regexp.MustCompile(`(?m)^SigCgt:.*$`).Find(text))
}

// A program that embeds the package and is told to end, loses its patience, or meets a panic, while a pair is made: the pair is
// undone, and the program's own handling of signals is as it was.
func TestUpIsEndedFromOutside(t *testing.T) {
	b := newBench(t, "0.47", nil)
	waits := func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }
	sends := func(sig syscall.Signal) func(context.Context) error {
		return func(ctx context.Context) error { syscall.Kill(os.Getpid(), sig); return waits(ctx) }
	}
	for name, tt := range map[string]struct {
		do    func(context.Context) error
		limit time.Duration
		want  error
	}{
		"SIGINT":   {do: sends(syscall.SIGINT), want: context.Canceled},
		"SIGTERM":  {do: sends(syscall.SIGTERM), want: context.Canceled},
		"SIGHUP":   {do: sends(syscall.SIGHUP), want: context.Canceled},
		"deadline": {do: waits, limit: 2 * time.Second, want: context.DeadlineExceeded},
		"panic":    {do: func(context.Context) error { panic(errMine) }, want: errMine},
	} {
		t.Run(name, func(t *testing.T) {
			own := make(chan os.Signal, 4)
			signal.Notify(own, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer signal.Stop(own)
			ctx, stop := signal.NotifyContext(t.Context(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
			defer stop()
			if tt.limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, tt.limit)
				defer cancel()
			}
			plan := b.plan
			in := input()
			in.Run, in.Engine, in.Paths, in.Workspace = pair.NewRunID(time.Now()), plan.Engine, true, plan.Agent.Workspaces[0]
			plan, err := provision.New(in)
			if err != nil {
				t.Fatal(err)
			}
			before := signals(t)
			_, err = provision.Up(ctx, provision.Host{Engine: stopping{b.engine.Unverified(), tt.do}, Store: b.store, Credentials: creds}, plan)
			if !errors.Is(err, tt.want) || errors.Is(err, pair.ErrLeft) {
				t.Errorf("Up: %v, want %v", err, tt.want)
			}
			if crash, crashed := errors.AsType[*pair.Crash](err); crashed != (name == "panic") || crashed && len(crash.Stack) == 0 {
				t.Errorf("a crash: %v", crashed)
			}
			if boxes, others := b.holds(plan.Run); boxes+others != 0 {
				t.Errorf("left: %d sandboxes, %d rules and secrets", boxes, others)
			}
			if l, err := b.store.Load(plan.Run); err != nil || l.State != pair.Closed {
				t.Errorf("the lease is %s, %v", l.State, err)
			}
			if after := signals(t); after != before {
				t.Errorf("signals are handled like this: %s\nbefore: %s", after, before)
			}
			for len(own) > 0 {
				<-own
			}
			syscall.Kill(os.Getpid(), syscall.SIGHUP)
			select {
			case <-own:
			case <-time.After(10 * time.Second):
				t.Error("the program's own handler does not hear of a signal any more")
			}
		})
	}
}

var errMine = errors.New("a mine")
