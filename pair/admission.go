package pair

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gofrs/flock"
)

// ErrNoRoom matches the error of a pair that was not admitted: it waited for too long, or needs more than there is.
var ErrNoRoom = errors.New("no memory for another pair")

// Admission is what a new pair asks of the host.
type Admission struct {
	Need    int           // MiB that the pair may take; it is in its lease while it lives
	Budget  int           // MiB for all pairs of the host; 0 is no bound
	Wait    time.Duration // how long to wait; 0 is for ever, [NoWait] not at all
	Waiting func(Queue)   // told when the waiting begins and then now and then; nil is fine
	// Yield removes one pair that waits in the pool, and reports whether there was one: a pair that is needed goes before pairs that
	// may be. It is called while that alone makes room; nil: the pool keeps what it has.
	Yield func(context.Context) (bool, error)
}

// NoWait is the wait of a pair that is made only if there is room for it now.
const NoWait time.Duration = -1

// Queue is where a pair stands that waits for memory.
type Queue struct {
	Held, Need, Budget int // MiB
	Pairs              int // that hold the memory
	Pooled             int // MiB of those that wait in the pool
	Ahead              int // that wait since longer
}

func (q Queue) String() string {
	return fmt.Sprintf("%d pairs have %d of %d MiB, this one needs %d, and %d wait before it", q.Pairs, q.Held, q.Budget, q.Need, q.Ahead)
}

// How often a waiting process looks, and how often it says so.
const (
	queuePoll   = 100 * time.Millisecond
	queueNotice = 30 * time.Second
)

// Admit calls take, which writes the new pair's lease, as soon as the memory that the leases of this host hold leaves
// room for it. Who waits longer comes first, in whatever process: a large pair is not passed by small ones. A process
// that dies loses its place. A pair that has the host for itself is admitted whatever it needs.
func (s *Store) Admit(ctx context.Context, a Admission, take func() error) error {
	if a.Budget <= 0 {
		return s.Locked(take)
	}
	place, err := s.queue()
	if err != nil {
		return err
	}
	defer place.leave()
	if a.Wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, a.Wait, ErrNoRoom)
		defer cancel()
	}
	var said time.Time
	var yieldErr error
	for {
		var q Queue
		admitted := false
		err := s.Locked(func() error {
			q = s.look(a, place)
			if q.Ahead > 0 || q.Held > 0 && q.Held+a.Need > a.Budget {
				return nil
			}
			admitted = true
			return take()
		})
		if err != nil || admitted {
			return err
		}
		if a.Wait == NoWait {
			return fmt.Errorf("%w: %s", ErrNoRoom, q)
		}
		if a.Yield != nil && q.Ahead == 0 && q.Pooled > 0 && (q.Held == q.Pooled || q.Held-q.Pooled+a.Need <= a.Budget) {
			yielded, err := a.Yield(ctx)
			if yielded {
				continue
			}
			if err != nil { // asked no more: what stands in the way is waited out
				a.Yield, yieldErr = nil, err
			}
		}
		if a.Waiting != nil && time.Since(said) >= queueNotice {
			said = time.Now()
			a.Waiting(q)
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for memory: %w: %s", context.Cause(ctx), q), yieldErr)
		case <-time.After(queuePoll):
		}
	}
}

// look counts what is held and who is ahead. The caller has the lock.
func (s *Store) look(a Admission, mine *place) Queue {
	q := Queue{Need: a.Need, Budget: a.Budget}
	list, _ := s.List()
	for _, l := range list {
		if l.State == Open && l.Owner.here() && !l.Orphaned() {
			q.Held += l.MemoryMiB
			q.Pairs++
			if l.Pooled() {
				q.Pooled += l.MemoryMiB
			}
		}
	}
	entries, _ := os.ReadDir(filepath.Dir(mine.path))
	for _, e := range entries { // sorted by name, which is by time
		path := filepath.Join(filepath.Dir(mine.path), e.Name())
		if path == mine.path {
			break
		}
		if !strings.HasSuffix(e.Name(), placeSuffix) {
			continue
		}
		other := flock.New(path)
		if free, err := other.TryLock(); err == nil && free { // its process is gone
			os.Remove(path)
			other.Unlock()
			continue
		}
		q.Ahead++
	}
	return q
}

const placeSuffix = ".waits"

// A place in the queue is a file that its process has locked: the system takes the lock back when the process ends.
type place struct {
	path string
	lock *flock.Flock
}

func (s *Store) queue() (*place, error) {
	dir := filepath.Join(filepath.Dir(s.root), "queue")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("queue for memory: %w", err)
	}
	var p *place
	err := s.Locked(func() error { // nobody looks between the file and its lock
		now := time.Now()
		p = &place{path: filepath.Join(dir, fmt.Sprintf("%020d-%s%s", now.UnixNano(), NewRunID(now), placeSuffix))}
		p.lock = flock.New(p.path)
		held, err := p.lock.TryLock()
		if err == nil && !held {
			err = errors.New("somebody has our place")
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("queue for memory: %w", err)
	}
	return p, nil
}

func (p *place) leave() {
	os.Remove(p.path)
	p.lock.Unlock()
}

// HostMemoryMiB is how much memory this host has; 0 where it cannot be told.
func HostMemoryMiB() int {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	lines := strings.Split(string(text), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "MemTotal:") })
	var kib int
	if i < 0 {
		return 0
	}
	if _, err := fmt.Sscanf(lines[i], "MemTotal: %d kB", &kib); err != nil {
		return 0
	}
	return kib / 1024
}
