package rules_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/engine/rules"
)

// Each decision is seen once, also when the log is made smaller, removed, or written by another daemon meanwhile.
func TestFollow(t *testing.T) {
	dir := t.TempDir()
	old := rules.OpenLog(dir)
	add := func(l *rules.Log, host string) {
		t.Helper()
		if err := l.Append(rules.Entry{Sandbox: "box", Host: host, Type: rules.Forward, Allowed: true, Reason: "why", Method: "GET", Path: "/x"}); err != nil {
			t.Fatal(err)
		}
	}
	add(old, "before.test:1")
	ctx, cancel := context.WithCancelCause(t.Context())
	seen, done := make(chan rules.Entry, 100), make(chan error, 1)
	go func() { // ends with ctx
		done <- rules.OpenLog(dir).Follow(ctx, func(e rules.Entry) error { seen <- e; return nil })
	}()
	next := func(want string) rules.Entry {
		t.Helper()
		select {
		case e := <-seen:
			if e.Host != want {
				t.Fatalf("%s is seen, want %s", e.Host, want)
			}
			return e
		case <-time.After(10 * time.Second):
			t.Fatalf("%s is not seen", want)
		}
		panic("unreachable")
	}
	// The follower begins at some moment; until it has, what is written is not for it.
	deadline := time.Now().Add(10 * time.Second)
	for i := 0; len(seen) == 0; i++ {
		if time.Now().After(deadline) {
			t.Fatal("nothing is seen")
		}
		add(old, fmt.Sprintf("start%d.test:1", i))
		time.Sleep(20 * time.Millisecond)
	}
	add(old, "mark.test:1")
	for e := range seen {
		if e.Host == "before.test:1" {
			t.Error("what was there before is seen")
		}
		if e.Host == "mark.test:1" {
			break
		}
	}
	add(old, "a.test:1")
	e := next("a.test:1")
	if line := e.Line(time.UTC); !strings.HasSuffix(line, "   box   allowed   a.test:1   forward   GET /x   why") || strings.Contains(line, "\n") {
		t.Errorf("line %q", line)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	other := rules.OpenLog(dir)
	add(other, "b.test:1")
	next("b.test:1")
	for range 13_000 { // past its limit
		if err := other.Append(rules.Entry{Sandbox: "box", Host: "many.test:1", Type: rules.Forward, Reason: strings.Repeat("x", 500)}); err != nil {
			t.Fatal(err)
		}
		for len(seen) > 50 {
			<-seen
		}
	}
	add(other, "c.test:1")
	for e := range seen {
		if e.Host == "c.test:1" {
			break
		}
		if e.Host != "many.test:1" {
			t.Fatalf("%s is seen again", e.Host)
		}
	}
	if err := other.Reset(); err != nil {
		t.Fatal(err)
	}
	add(other, "d.test:1")
	next("d.test:1")
	stop := errors.New("enough")
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) {
		t.Errorf("Follow = %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}
