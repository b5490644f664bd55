package command

import (
	"context"
	"fmt"
	"io"
	"os"
)

// await reads what may never come, from a person or a pipe, until ctx is done. The read itself cannot be taken back; it ends
// with the process.
func await[T any](ctx context.Context, read func() (T, error)) (T, error) {
	type result struct {
		value T
		err   error
	}
	done := make(chan result, 1)
	go func() {
		v, err := read()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.value, r.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}

// maxFile bounds a file of variables or certificates that a flag names.
const maxFile = 4 << 20

// readFile reads such a file, which may be a pipe.
func (a *app) readFile(ctx context.Context, path string) ([]byte, error) {
	if data, ok := a.files[path]; ok {
		return data, nil
	}
	data, err := await(ctx, func() ([]byte, error) {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
		if err == nil && len(data) > maxFile {
			err = fmt.Errorf("%s is larger than %d MiB", path, maxFile>>20)
		}
		return data, err
	})
	if err == nil {
		a.files[path] = data
	}
	return data, err
}
