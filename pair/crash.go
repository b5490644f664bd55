package pair

import (
	"fmt"
	"runtime/debug"
)

// A Crash is the error that a panic has become: a mistake in this program, or in what calls it. What the work belonged to is
// undone as after any other error.
type Crash struct {
	Value any
	Stack []byte // of the goroutine that panicked
}

func (c *Crash) Error() string { return fmt.Sprintf("internal error: %v", c.Value) }

// Unwrap returns the value, if it is an error.
func (c *Crash) Unwrap() error {
	err, _ := c.Value.(error)
	return err
}

// Caught calls do, and returns what it panics with as a [*Crash]. A goroutine that works for a pair runs in it: one that panics
// by itself would end the program with the pair in place.
func Caught(do func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = &Crash{value, debug.Stack()}
		}
	}()
	return do()
}
