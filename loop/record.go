package loop

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sbxpair/sbxpair/agent"
	"github.com/sbxpair/sbxpair/config"
	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/workspace"
)

// Asked is what a run was asked to do, as its folder keeps it. It does not change any more: a run that is gone on with
// later uses this, not the configuration of that day (field report R153). It holds no credential, only where they come from.
type Asked struct {
	Run        pair.RunID    `json:"run"`
	Task       string        `json:"task"`
	Dir        string        `json:"dir"` // top of the user's checkout
	Repository string        `json:"repository"`
	Config     config.Config `json:"config"`
	Version    string        `json:"sbxpair_version"`
	Started    time.Time     `json:"started"`
	AllowDirty bool          `json:"allow_dirty,omitempty"`
	Issue      int           `json:"issue,omitempty"` // whose text the task is; Task is empty until it was read
	Staged     bool          `json:"staged,omitempty"`
	Given      []string      `json:"given,omitempty"` // keys of Config that came from the command line
}

// State is where a run stands. It is plain data, written after each phase.
type State struct {
	Workspace workspace.Workspace `json:"workspace"`
	Attempt   int                 `json:"attempt"` // from 1; 0 before the first
	Done      []events.Phase      `json:"done"`    // phases of the attempt that ended well
	Plan      string              `json:"plan,omitempty"`
	Report    string              `json:"report,omitempty"`   // why the attempt before was rejected
	Rejected  string              `json:"rejected,omitempty"` // the head of its end state
	Sessions  []Session           `json:"sessions,omitempty"`
	End       workspace.EndState  `json:"end"`
	Commits   []workspace.Commit  `json:"commits,omitempty"` // as the agent made them; End has them as one
	Verified  []events.Verified   `json:"verified,omitempty"`
	Reviewed  *events.Reviewed    `json:"reviewed,omitempty"`
	// Limits are those that were given when the run was gone on with; Asked has what it was started with.
	Limits map[string]string `json:"limits,omitempty"`
	Ended  bool              `json:"ended"` // the run came to a verdict: there is nothing to go on with
	// Requests are what the agent asked for on GitHub, judged by the gate.
	Requests []github.RequestVerdict `json:"requests,omitempty"`
}

// Session is one session of the agent: how it was judged, what it cost, and where its words are.
type Session struct {
	events.AgentEnded
	ID         string      `json:"session,omitempty"` // the CLI's own
	Transcript string      `json:"transcript"`        // file with its standard output, masked
	Stderr     string      `json:"stderr,omitempty"`  // the last 8 KiB
	Usage      agent.Usage `json:"usage"`
	CostUSD    float64     `json:"cost_usd"`
	Unpriced   []string    `json:"unpriced,omitempty"` // models whose price is not known
}

// The files of a run's folder, beside the lease, the events and the receipt.
const (
	askedFile     = "asked.json"
	stateFile     = "state.json"
	workFile      = "work.bundle" // what the agent left
	patchFile     = "work.patch"  // the same as a patch, of a run that delivers nothing
	receiptFile   = "receipt.json"
	transcriptDir = "transcripts"
)

// Record is a run as its folder tells it.
type Record struct {
	Lease pair.Lease
	Asked Asked
	State State
}

// Load reads a run from its folder alone. The error matches [pair.ErrNoLease] if there is no such run, and
// [os.ErrNotExist] if the run ended before it was recorded what it was asked.
func Load(store *pair.Store, run pair.RunID) (Record, error) {
	var rec Record
	var err error
	if rec.Lease, err = store.Load(run); err != nil {
		return rec, err
	}
	if err := readJSON(filepath.Join(store.Dir(run), askedFile), &rec.Asked); err != nil {
		return rec, fmt.Errorf("run %s: %w", run, err)
	}
	if rec.Asked.Run != run {
		return rec, fmt.Errorf("run %s: its %s is of run %.20q", run, askedFile, rec.Asked.Run)
	}
	if err := readJSON(filepath.Join(store.Dir(run), stateFile), &rec.State); err != nil && !errors.Is(err, os.ErrNotExist) {
		return rec, fmt.Errorf("run %s: %w", run, err)
	}
	return rec, nil
}

// ask records what the run was asked.
func (r *run) ask() error {
	return r.write(askedFile, Asked{
		Run: r.id, Task: r.req.Task, Dir: r.look.Top, Repository: r.repo, Config: r.req.Config, Version: r.req.Version,
		Started: r.started.UTC(), AllowDirty: r.req.AllowDirty, Issue: r.req.Issue, Staged: r.req.Staged, Given: r.req.Given,
	})
}

// save records where the run stands.
func (r *run) save() error { return r.write(stateFile, r.state) }

// write puts v, masked, into a file of the run's folder: whole or not at all.
func (r *run) write(name string, v any) error { return r.writeTo(r.result.Dir, name, v) }

// writeTo is write for the folder of another run.
func (r *run) writeTo(dir, name string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	path := filepath.Join(dir, name)
	file, err := openPrivate(path + ".new")
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = file.Write(append(r.redact.Bytes(text), '\n'))
	if err := errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return os.Rename(path+".new", path)
}

func readJSON(path string, v any) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("read %s: %w", filepath.Base(path), err)
	}
	return nil
}
