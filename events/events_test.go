package events_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/secrets"
)

const canary = "gho_CANARYCANARYCANARYCANARYCANARYCANARY"

func write(t *testing.T, payloads ...events.Payload) (path, head string, seen []events.Payload) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "events.jsonl")
	redact := secrets.NewRedactor(secrets.New(canary))
	log, err := events.Create(path, "run1", redact.Bytes, func(p events.Payload) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup // writers at the same time must not break the chain
	for _, p := range payloads {
		wg.Go(func() { log.Emit(p) })
	}
	wg.Wait()
	_, head = log.Head()
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	return path, head, seen
}

func TestLogIsChainedMaskedAndPrivate(t *testing.T) {
	path, head, seen := write(t, events.Noted{Text: "token " + canary}, events.PhaseStarted{Phase: events.PhaseGate}, events.RunEnded{Outcome: "x"})
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(text, []byte(canary)) {
		t.Errorf("the log holds the value:\n%s", text)
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, want 0600", info.Mode().Perm())
	}
	list, got, err := events.Read(bytes.NewReader(text))
	if err != nil || len(list) != 3 || got != head || len(seen) != 3 {
		t.Errorf("Read = %d events, head %q, %v; want 3, %q; the sink saw %d", len(list), got, err, head, len(seen))
	}
}

func TestReadFindsWhatWasAltered(t *testing.T) {
	path, head, _ := write(t, events.Noted{Text: "one"}, events.Noted{Text: "two"}, events.Noted{Text: "three"})
	text, _ := os.ReadFile(path)
	lines := strings.SplitAfter(string(text), "\n")
	for name, altered := range map[string]string{
		"removed line":  lines[0] + lines[2],
		"altered line":  strings.Replace(lines[0], "o", "0", 1) + lines[1] + lines[2],
		"swapped lines": lines[1] + lines[0] + lines[2],
		"not JSON":      lines[0] + "nonsense\n",
	} {
		if _, got, err := events.Read(strings.NewReader(altered)); !errors.Is(err, events.ErrBroken) && got == head {
			t.Errorf("%s: passed as whole: %v", name, err)
		}
	}
	// A killed writer leaves half a line; what stands before it is still good.
	half := lines[0] + lines[1] + lines[2][:10]
	if list, _, err := events.Read(strings.NewReader(half)); err != nil || len(list) != 2 {
		t.Errorf("with half a last line: %d events, %v; want 2", len(list), err)
	}
}

func TestCreateRefusesAnExistingLog(t *testing.T) {
	path, _, _ := write(t)
	if _, err := events.Create(path, "run1", bytes.Clone, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create over an existing log: %v, want ErrExist", err)
	}
}

// A log whose writer was killed goes on in the same chain; one that was altered does not.
func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "events.jsonl")
	same := func(b []byte) []byte { return b }
	first, err := events.Create(path, "run-1", same, nil)
	if err != nil {
		t.Fatal(err)
	}
	first.Emit(events.Noted{Text: "one"})
	first.Emit(events.Noted{Text: "two"})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	file.WriteString(`{"seq":3,"time":"2026-`) // killed in the middle of a line
	file.Close()
	var seen []events.Payload
	second, err := events.Reopen(path, same, func(p events.Payload) { seen = append(seen, p) })
	if err != nil {
		t.Fatal(err)
	}
	second.Emit(events.Noted{Text: "three"})
	n, head := second.Head()
	if err := second.Close(); err != nil || n != 3 || len(seen) != 1 {
		t.Errorf("%d events, %d seen, %v", n, len(seen), err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, last, err := events.Read(bytes.NewReader(text))
	if err != nil || len(list) != 3 || last != head || list[2].Run != "run-1" {
		t.Errorf("%d events, head %s, want %s; %v", len(list), last, head, err)
	}
	for name, bad := range map[string]string{"altered": strings.Replace(string(text), "one", "0ne", 1), "empty": "", "half": `{"seq":1`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := events.Reopen(path, same, nil); !errors.Is(err, events.ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
		if after, _ := os.ReadFile(path); string(after) != bad {
			t.Errorf("%s: a log that cannot be gone on with was changed", name)
		}
	}
	if _, err := events.Reopen(filepath.Join(t.TempDir(), "none"), same, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log that is not there: %v", err)
	}
}
