package pair

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/gofrs/flock"
)

// lockTimeout bounds the wait for another process that changes which pairs are whose. It holds the lock for the time of
// a few small files.
const lockTimeout = 10 * time.Second

// Locked calls do while no other process that asks for the same is in it: what it finds in the leases stays true.
func (s *Store) Locked(do func() error) error {
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return fmt.Errorf("lock the leases: %w", err)
	}
	lock := flock.New(filepath.Join(filepath.Dir(s.root), "leases.lock"))
	ctx, cancel := context.WithTimeout(context.Background(), lockTimeout)
	defer cancel()
	if _, err := lock.TryLockContext(ctx, time.Millisecond); err != nil {
		return fmt.Errorf("lock the leases: another process holds %s: %w", lock.Path(), err)
	}
	defer lock.Unlock()
	return do()
}

// Take gives the oldest pooled lease that matches to a new owner, so that nobody else can take it. Without one the lease
// is zero.
func (s *Store) Take(match func(Lease) bool, owner Owner) (Lease, error) {
	var taken Lease
	err := s.Locked(func() error {
		list, _ := s.List() // a lease that cannot be read cannot be taken
		for _, l := range list {
			if !l.Pooled() || !match(l) {
				continue
			}
			l.Pool, l.Owner = Pool{}, owner
			if err := s.Save(l); err != nil {
				return err
			}
			taken = l
			return nil
		}
		return nil
	})
	return taken, err
}
