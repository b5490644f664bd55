package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	// A clock that is set back, and a line that nobody wrote.
	if err := other.Append(rules.Entry{Time: time.Now().Add(-48 * time.Hour), Sandbox: "box", Host: "back.test:1", Type: rules.Forward, Reason: "why"}); err != nil {
		t.Fatal(err)
	}
	next("back.test:1")
	long, err := os.OpenFile(filepath.Join(dir, "policy-log.jsonl"), os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = long.WriteString(strings.Repeat("x", 3<<20) + "\n")
	}
	if err := errors.Join(err, long.Close()); err != nil {
		t.Fatal(err)
	}
	add(other, "e.test:1")
	next("e.test:1")
	if list, unreadable, err := other.Entries(); err != nil || unreadable != 1 || list[len(list)-1].Host != "e.test:1" {
		t.Errorf("with a long line: %d entries, %d unreadable, %v", len(list), unreadable, err)
	}
	stop := errors.New("enough")
	cancel(stop)
	if err := <-done; !errors.Is(err, stop) {
		t.Errorf("Follow = %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
}
