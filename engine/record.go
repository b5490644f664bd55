package engine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/sbxpair/sbxpair/engine/ports"
	"github.com/sbxpair/sbxpair/engine/statefile"
)

// Status is the state of a sandbox.
type Status string

// Statuses. A sandbox is "creating" from before its first file until it runs, "starting" while it comes back from "stopped",
// and "stopping" from when its disk is saved until nothing of it runs: whoever finds it so, holding its lock, knows that the
// command that did it died.
const (
	Creating Status = "creating"
	Starting Status = "starting"
	Running  Status = "running"
	Stopping Status = "stopping"
	Stopped  Status = "stopped"
	// Damaged is a sandbox in a list of whose record, damaged or of another version, no more is known than the name.
	Damaged Status = "damaged"
)

// recordVersion is the shape of [Record] on disk; another one is refused, not guessed at.
const recordVersion = 1

// Workspace is a folder of the host that a sandbox sees at its own path. Source is Path with links resolved.
type Workspace struct {
	Path     string `json:"path"`
	Source   string `json:"source"`
	ReadOnly bool   `json:"read_only,omitempty"`
	File     bool   `json:"file,omitempty"`
}

// Record is what the engine knows of one sandbox, kept in its folder with mode 0600.
type Record struct {
	Version    int               `json:"version"`
	Name       string            `json:"name"`
	ID         string            `json:"id"`
	Agent      string            `json:"agent"`
	Status     Status            `json:"status"`
	Workspaces []Workspace       `json:"workspaces,omitempty"`
	CreatedAt  time.Time         `json:"created_at"`
	LastUsedAt time.Time         `json:"last_used_at"`
	StartedAt  time.Time         `json:"started_at,omitzero"`
	StoppedAt  time.Time         `json:"stopped_at,omitzero"`
	CPUs       int               `json:"cpus"`                 // 0: all
	MemoryMiB  int               `json:"memory_mib,omitempty"` // 0: no limit
	Limits     string            `json:"limits"`               // what is enforced: "cgroup", or why nothing is
	Isolation  string            `json:"isolation"`
	Env        []string          `json:"env"`
	Resolve    map[string]string `json:"resolve,omitempty"`     // HOST[:PORT] to loopback address
	UpstreamCA string            `json:"upstream_ca,omitempty"` // PEM that the proxy trusts for those hosts
	Template   string            `json:"template,omitempty"`    // name of the template that it was made from
	Image      string            `json:"image,omitempty"`       // id of the image below its disk; "": the host's system folders
	ImageEnv   []string          `json:"image_env,omitempty"`
	Ports      []ports.Port      `json:"ports,omitempty"`
	Clone      *Workspace        `json:"clone,omitempty"`      // the repository that it works in a clone of
	KeepAlive  bool              `json:"keep_alive,omitempty"` // not to be stopped for want of a session
	DiskGiB    int               `json:"disk_gib,omitempty"`   // most outside of the workspaces, as of its last start
	Pids       int               `json:"pids,omitempty"`       // most host threads, where limits are enforced
	// Process is gVisor's process for this sandbox on the host; ProcessStart tells it from a later one with its number.
	Process      int    `json:"process,omitempty"`
	ProcessStart uint64 `json:"process_start,omitempty"`
	// Probe marks the sandbox of [Engine.BootTest]: recorded so that a crash leaves nothing, but nobody's.
	Probe bool `json:"probe,omitempty"`

	cut bool // the runtime folder is gone from under the sandbox, and nobody can reach it any more
}

// Primary returns the path of the clone or else of the first workspace, or "".
func (r Record) Primary() string {
	if r.Clone != nil {
		return r.Clone.Path
	}
	if len(r.Workspaces) == 0 {
		return ""
	}
	return r.Workspaces[0].Path
}

// Lost reports whether the record says running but the sandbox is gone: its process was killed, the machine rebooted, or its
// runtime folder removed, as the one of a login session is at its end.
func (r Record) Lost() bool {
	return r.Status == Running && (r.cut || !sameProcess(r.Process, r.ProcessStart))
}

func (e *Engine) recordPath(name string) string {
	return filepath.Join(e.State.SandboxDir(name), "record.json")
}

// load reads a record; the error matches ErrNotFound if there is none.
func (e *Engine) load(name string) (Record, error) {
	if err := CheckName(name); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrNotFound, err)
	}
	data, err := os.ReadFile(e.recordPath(name))
	if errors.Is(err, fs.ErrNotExist) {
		return Record{}, ErrNotFound
	}
	if err != nil {
		return Record{}, err
	}
	var r Record
	if err := json.Unmarshal(data, &r); err != nil {
		return Record{}, fmt.Errorf("the record of sandbox %s %w: it is damaged", name, ErrRecord) // no JSON
	}
	if r.Version != recordVersion && r.Version != 0 {
		return Record{}, fmt.Errorf("the record of sandbox %s %w: another version wrote it (format %d), and can use it", name, ErrRecord, r.Version)
	}
	if r.Version == 0 || r.Name != name || !validID(r.ID) {
		return Record{}, fmt.Errorf("the record of sandbox %s %w: it is damaged", name, ErrRecord)
	}
	if _, err := os.Stat(e.runscRoot(r.ID)); r.Status == Running && errors.Is(err, fs.ErrNotExist) {
		r.cut = true
	}
	if fi, err := os.Stat(e.usedPath(name)); err == nil && fi.ModTime().After(r.LastUsedAt) {
		r.LastUsedAt = fi.ModTime().UTC()
	}
	return r, nil
}

func (e *Engine) save(r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return statefile.Replace(e.recordPath(r.Name), append(data, '\n'), 0o600)
}

// List returns every sandbox, by name, but for probes. One whose record cannot be read is [Damaged]: it must not keep anybody
// from the others.
func (e *Engine) List() ([]Record, error) {
	list, err := e.all()
	return slices.DeleteFunc(list, func(r Record) bool { return r.Probe }), err
}

func (e *Engine) all() ([]Record, error) {
	entries, err := os.ReadDir(e.State.sandboxes())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []Record
	var errs []error
	for _, entry := range entries {
		r, err := e.load(entry.Name())
		switch {
		case errors.Is(err, ErrNotFound): // being made or removed just now
		case errors.Is(err, ErrRecord):
			list = append(list, Record{Name: entry.Name(), ID: e.mountedID(entry.Name()), Status: Damaged})
		case err != nil:
			errs = append(errs, err)
		default:
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b Record) int { return strings.Compare(a.Name, b.Name) })
	return list, errors.Join(errs...)
}

// Get returns one sandbox; the error matches ErrNotFound.
func (e *Engine) Get(name string) (Record, error) { return e.load(name) }

// lockShards bounds the number of lock files: they are never removed, since removing one races with its next user.
const lockShards = 256

// lockTimeout bounds the wait for another command on the same sandbox.
const lockTimeout = 2 * time.Minute

// lock serialises mutations of the named sandbox across processes and goroutines.
func (e *Engine) lock(ctx context.Context, name string) (unlock func(), err error) {
	dir := filepath.Join(e.State.Dir, "locks")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	l := flock.New(filepath.Join(dir, strconv.Itoa(int(h.Sum32()%lockShards))))
	ctx, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if _, err := l.TryLockContext(ctx, 5*time.Millisecond); err != nil {
		return nil, fmt.Errorf("another command holds sandbox %s: %w", name, err)
	}
	return func() { l.Unlock() }, nil
}
