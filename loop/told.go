package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/guest"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// Words for runs that did not come to an outcome.
const (
	OutcomeRunning     = "running"
	OutcomeInterrupted = "interrupted" // its process died
)

// maxTold bounds each stream that [Tell] returns, in bytes.
const maxTold = 64 << 10

// Told is what a run's folder tells of it: also of one that is under way, that died before its receipt, or whose engine is gone.
type Told struct {
	Receipt
	Task        string   `json:"task"`
	Exit        int      `json:"exit"`        // of the last session that worked on the task, as the CLI gave it; -1 if it is not known
	Stdout      string   `json:"stdout"`      // the end of what that session wrote, masked, at most 64 KiB
	Stderr      string   `json:"stderr"`      // the last 8 KiB, masked
	Transcripts []string `json:"transcripts"` // of the agent's sessions (.jsonl) and the verify commands (.log), in order
	// End is the end state of the last attempt, with the commits as the agent made them; its patch is text in Diff.
	End  *workspace.EndState `json:"end,omitempty"`
	Diff string              `json:"diff,omitempty"`
}

// Tell reads what there is to say about a run. It asks no engine. The error matches [pair.ErrNoLease] if there is no such run.
func Tell(store *pair.Store, run pair.RunID) (Told, error) {
	lease, err := store.Load(run)
	if err != nil {
		return Told{}, err
	}
	rec, err := Load(store, run)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Told{}, err
	}
	dir := store.Dir(run)
	told := Told{Task: rec.Asked.Task, Exit: -1}
	told.Receipt, err = ReadReceipt(dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return Told{}, fmt.Errorf("run %s: %w", run, err)
	case err != nil || lease.State == pair.Open && !lease.Kept:
		if told.Receipt, err = unfinished(lease, rec, dir); err != nil {
			return Told{}, err
		}
	}
	if end := rec.State.End; end.Base != "" {
		end.Commits, told.Diff, end.Patch = rec.State.Commits, string(end.Patch), nil
		told.End = &end
	}
	if told.Transcripts, err = filepath.Glob(filepath.Join(dir, transcriptDir, "*")); err != nil {
		return Told{}, err
	}
	slices.Sort(told.Transcripts)
	return told, told.streams()
}

// streams fills in what the last session that worked on the task wrote. One that nobody could close has its transcript.
func (t *Told) streams() error {
	var last string
	for _, path := range t.Transcripts {
		if strings.HasSuffix(path, "-"+string(events.PhaseExecute)+".jsonl") {
			last = path
		}
	}
	for _, s := range t.Sessions {
		if s.Transcript == last {
			t.Exit, t.Stderr = s.AgentEnded.Exit, s.Stderr
		}
	}
	if last == "" {
		return nil
	}
	info, err := os.Stat(last)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular(): // a pipe would be waited for without end
		return fmt.Errorf("the transcript %s is not a file that this program wrote; remove it to see the rest", last)
	}
	file, err := os.Open(last)
	if err != nil {
		return err
	}
	defer file.Close()
	if info.Size() > maxTold {
		if _, err := file.Seek(-maxTold, io.SeekEnd); err != nil {
			return err
		}
	}
	end := &guest.Tail{Limit: maxTold}
	if _, err := io.Copy(end, file); err != nil {
		return err
	}
	t.Stdout = end.String()
	return nil
}

// unfinished puts together what is known of a run without a receipt, or with one of an earlier process.
func unfinished(lease pair.Lease, rec Record, dir string) (Receipt, error) {
	out := Receipt{
		Result: Result{
			Run: lease.Run, Dir: dir, Log: filepath.Join(dir, eventLog), Phases: []PhaseTime{}, Outcome: OutcomeRunning,
			Attempts: rec.State.Attempt, Sessions: rec.State.Sessions, Verified: rec.State.Verified, Reviewed: rec.State.Reviewed,
		},
		Repository: lease.Repository, Base: rec.State.End.Base, Head: rec.State.End.Head,
		Engine: lease.Engine.Kind + " " + lease.Engine.Version, Isolation: lease.Engine.Isolation, Version: rec.Asked.Version,
	}
	if lease.State == pair.Closed || lease.OwnerAlive() == pair.Dead {
		out.Outcome, out.Reason = OutcomeInterrupted, "its process ended without a last word"
		out.Resumable = rec.Asked.Run != "" && rec.final() == ""
	}
	if _, err := os.Stat(filepath.Join(dir, workFile)); err == nil {
		out.Work = filepath.Join(dir, workFile)
	}
	list, err := events.ReadFile(out.Log)
	switch {
	case errors.Is(err, events.ErrBroken): // what stands before the break is told
		out.Reason = strings.TrimPrefix(out.Reason+"; "+err.Error(), "; ")
	case err != nil:
		return out, err
	}
	for _, e := range list {
		var err error
		switch e.Type {
		case (events.PhaseEnded{}).Kind():
			err = take(e, func(p events.PhaseEnded) { out.Phases = append(out.Phases, PhaseTime{p.Phase, p.Attempt, p.Took}) })
		case (events.AgentEnded{}).Kind():
			err = take(e, func(p events.AgentEnded) {
				if p.Phase == events.PhaseExecute {
					out.Agent = p
				}
			})
		case (events.Spent{}).Kind():
			err = take(e, func(p events.Spent) { out.Spent = p })
		case (events.Blocked{}).Kind():
			err = take(e, func(p events.Blocked) { out.Blocked = append(out.Blocked, p) })
		case (events.EndState{}).Kind():
			err = take(e, func(p events.EndState) { out.EndState = &p })
		case (events.Delivered{}).Kind():
			err = take(e, func(p events.Delivered) { out.Delivered = p })
		}
		if err != nil {
			return out, err
		}
	}
	if len(list) > 0 {
		out.Took = list[len(list)-1].Time.Sub(list[0].Time)
		out.LogEvents = int64(len(list))
	}
	if out.Outcome == OutcomeRunning {
		out.Took = time.Since(lease.Created)
	}
	return out, nil
}

func take[T any](e events.Event, use func(T)) error {
	var data T
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return fmt.Errorf("read event %d: %w", e.Seq, err)
	}
	use(data)
	return nil
}
