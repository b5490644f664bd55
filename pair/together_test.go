package pair_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sbxpair/sbxpair/pair"
	"github.com/sbxpair/sbxpair/sbx"
)

// slow is an engine whose listing takes a second and says which one it is.
type slow struct {
	*engine
	lists int
	fails func(list int) error
}

func (s *slow) List(context.Context) ([]sbx.Sandbox, error) {
	s.lists++
	n := s.lists
	time.Sleep(time.Second)
	return []sbx.Sandbox{{Name: fmt.Sprint("list ", n)}}, s.fails(n)
}

// Pairs that are taken down together share their reads, and no read is older than the question.
func TestTogether(t *testing.T) {
	down := errors.New("daemon away")
	for name, tt := range map[string]struct {
		fails func(int) error
		want  error
	}{
		"answered": {func(int) error { return nil }, nil},
		"failed":   {func(n int) error { return map[int]error{2: down}[n] }, down},
		"panicked": {func(n int) error {
			if n == 2 {
				panic("no")
			}
			return nil
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &slow{engine: &engine{}, fails: tt.fails}
				shared := pair.Together(e)
				type said struct {
					box string
					err error
				}
				answers := make(chan said, 10)
				ask := func() {
					go func() {
						var s said
						s.err = pair.Caught(func() error {
							list, err := shared.List(t.Context())
							for _, box := range list {
								s.box = box.Name
							}
							return err
						})
						answers <- s
					}()
				}
				ask()
				synctest.Wait() // the first read is under way
				for range 5 {
					ask()
				}
				if first := <-answers; first.box != "list 1" || first.err != nil {
					t.Errorf("the first is told %+v", first)
				}
				for range 5 {
					got := <-answers
					switch {
					case name == "panicked" && got.err == nil:
						t.Errorf("a read that panicked is told as %+v", got)
					case name != "panicked" && (got.box != "list 2" || !errors.Is(got.err, tt.want)):
						t.Errorf("one that asked during the first read is told %+v", got)
					}
				}
				if ask(); (<-answers).box != "list 3" || e.lists != 3 {
					t.Errorf("%d reads, want 3", e.lists)
				}
			})
		})
	}
	t.Run("one gives up", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := &slow{engine: &engine{}, fails: func(int) error { return nil }}
			shared := pair.Together(e)
			go shared.List(t.Context())
			synctest.Wait()
			go shared.List(t.Context()) // makes the second read
			synctest.Wait()
			hurried, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			defer cancel()
			if list, err := shared.List(hurried); list != nil || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v, %v", list, err)
			}
			time.Sleep(3 * time.Second)
		})
	})
}
