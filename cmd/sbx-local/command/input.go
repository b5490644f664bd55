package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
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

// A list is a flag that may be given more than once, and holds several items with commas between. pflag's own ends at the first
// line end in a value, and drops what comes behind it without a word.
type list struct{ items *[]string }

func (l *list) Set(text string) error {
	*l.items = append(*l.items, strings.Split(text, ",")...)
	return nil
}
func (l *list) Type() string   { return "strings" }
func (l *list) String() string { return strings.Join(l.GetSlice(), ",") }

// GetSlice, and the two that follow, are pflag.SliceValue's.
func (l *list) GetSlice() []string {
	if l.items == nil {
		return nil
	}
	return *l.items
}
func (l *list) Append(item string) error     { *l.items = append(*l.items, item); return nil }
func (l *list) Replace(items []string) error { *l.items = items; return nil }
