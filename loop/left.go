package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/events"
)

// Unfetched says what the agent left in the workspace of a run that nobody collected, and that goes with the workspace:
// in words for a person, or nothing. dir is the run's folder. Nothing of the agent's is run or parsed for it: what
// changed after the workspace was made counts, by the times of files.
func Unfetched(dir string) string {
	work := filepath.Join(workspaceDir(dir), "work")
	made, collected := milestones(dir)
	if _, err := os.Stat(work); err != nil || made.IsZero() || collected {
		return ""
	}
	files, commits, first := 0, false, ""
	filepath.WalkDir(work, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil // what the agent made unreadable is no reason to miss the rest
		}
		rel, _ := filepath.Rel(work, path)
		_, inside, _ := strings.Cut(filepath.ToSlash(rel), "/") // below the repository's folder
		if inside == ".git" {
			if log, err := os.Stat(filepath.Join(path, "logs", "HEAD")); err == nil && log.ModTime().After(made) {
				commits = true
			}
			return fs.SkipDir
		}
		if info, err := entry.Info(); err == nil && info.ModTime().After(made) && !entry.IsDir() {
			if files++; first == "" {
				first = inside
			}
		}
		return nil
	})
	switch {
	case files > 0:
		return fmt.Sprintf("changed files in the agent's folder %s: %d, such as %.80q", work, files, first)
	case commits:
		return "commits in the agent's folder " + work
	}
	return ""
}

// milestones tells from a run's event log when its workspace was ready, and whether what the agent left was collected.
func milestones(dir string) (made time.Time, collected bool) {
	list, _ := events.ReadFile(filepath.Join(dir, eventLog)) // what can be read of a log that was cut off is enough
	for _, e := range list {
		switch e.Type {
		case (events.PhaseEnded{}).Kind():
			_ = take(e, func(end events.PhaseEnded) { // one that cannot be read tells nothing
				if end.Phase == events.PhaseWorkspace && end.Error == "" {
					made = e.Time
				}
			})
		case (events.PhaseStarted{}).Kind():
			_ = take(e, func(start events.PhaseStarted) {
				collected = collected && start.Phase != events.PhaseExecute // what it adds is not collected
			})
		case (events.EndState{}).Kind():
			collected = true
		}
	}
	return made, collected
}

// UndeliveredWork returns the bundle in a run's folder that holds work which was collected and not delivered, or nothing.
func UndeliveredWork(dir string) string {
	path := filepath.Join(dir, workFile)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// Resumable reports whether the workspace of a run is kept for [Resume]. dir is the run's folder.
func Resumable(dir string) bool {
	_, err := os.Stat(workspaceDir(dir))
	return err == nil
}

// ReadReceipt reads the receipt in a run's folder; the error matches [fs.ErrNotExist] if the run has none yet.
func ReadReceipt(dir string) (Receipt, error) {
	var receipt Receipt
	text, err := os.ReadFile(filepath.Join(dir, receiptFile))
	if err == nil {
		err = json.Unmarshal(text, &receipt)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("read receipt: %w", err)
	}
	return receipt, err
}
