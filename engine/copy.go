package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/sbxpair/sbxpair/engine/tarball"
)

// CopyIn copies a file or folder of the host into the sandbox, as docker cp decides where to. follow copies what a link at
// src leads to; links below stay links. left says what was not copied for what it is, if anything.
func (e *Engine) CopyIn(ctx context.Context, r Record, src, dst string, follow bool) (left string, err error) {
	contents := strings.HasSuffix(src, "/.") || src == "."
	clean := filepath.Clean(src)
	base := filepath.Base(clean)
	if follow {
		real, err := filepath.EvalSymlinks(clean)
		if err != nil {
			return "", err
		}
		clean = real
	}
	fi, err := os.Lstat(clean)
	if err != nil {
		return "", err
	}
	if strings.HasSuffix(src, "/") && !fi.IsDir() {
		return "", fmt.Errorf("%s is not a directory", src)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	read, write := io.Pipe()
	var skipped tarball.LeftOut
	packed := make(chan error, 1)
	go func() {
		var err error
		skipped, err = tarball.Write(write, clean)
		write.CloseWithError(err)
		if err != nil {
			cancel(err) // the helper must not take a cut archive for a whole one
		}
		packed <- err
	}()
	mode := "into"
	if contents {
		mode = "contents"
	}
	_, err = e.copyHelper(ctx, r, read, nil, "put", dst, base, mode)
	read.Close()
	if own := <-packed; own != nil && !errors.Is(own, io.ErrClosedPipe) {
		return "", own // what the helper says follows from it
	}
	return skipped.String(), err
}

// CopyOut copies a file or folder of the sandbox to the host, as docker cp decides where to. The archive is hostile: what
// it holds lands below dst and nowhere else. left is as with CopyIn, in words of the sandbox's.
func (e *Engine) CopyOut(ctx context.Context, r Record, src, dst string, follow bool) (left string, err error) {
	contents := strings.HasSuffix(src, "/.")
	mode := "keep"
	if follow {
		mode = "follow"
	}
	read, write := io.Pipe()
	defer read.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	helped := make(chan error, 1)
	go func() {
		words, err := e.copyHelper(ctx, r, nil, write, "get", src, mode)
		write.CloseWithError(err)
		left = words
		helped <- err
	}()
	err = func() error {
		tr, err := tarball.NewReader(read)
		if err != nil {
			return err
		}
		if err := tarball.Place(tr, dst, filepath.Base(filepath.Clean(src)), contents); err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, read)
		return err
	}()
	if err != nil {
		read.CloseWithError(err)
		cancel()
	}
	if helpErr := <-helped; helpErr != nil && !errors.Is(helpErr, context.Canceled) {
		return "", helpErr
	}
	return left, err
}

// copyHelper returns what the helper says on its standard error.
func (e *Engine) copyHelper(ctx context.Context, r Record, stdin io.Reader, stdout io.Writer, args ...string) (words string, err error) {
	session, err := e.session(ctx, r.ID, "")
	if err != nil {
		return "", err
	}
	defer session.Close()
	e.touch(r.Name)
	res, err := e.helper(ctx, r, stdin, stdout, args...)
	if err != nil {
		return "", err
	}
	if res.code != 0 {
		return "", errors.New(strings.TrimSpace(res.stderr))
	}
	return strings.TrimSpace(res.stderr), nil
}
