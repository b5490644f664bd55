package sbx

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// verifyTimeout bounds one look into a sandbox.
const verifyTimeout = 60 * time.Second

// guestReport prints what is at $1 (or, if that is a directory that received $2, at $1/$2; "." is none): kind, size in bytes or
// number of regular files, readable or not. POSIX tools only.
const guestReport = `p=$1
if [ -d "$p" ] && [ "$2" != . ] && { [ -e "$p/$2" ] || [ -L "$p/$2" ]; }; then p=$p/$2; fi
if [ -L "$p" ] && ! [ -e "$p" ]; then echo "link 0 ok $p"; exit 0; fi
r=ok; [ -r "$p" ] || r=unreadable
if [ -d "$p" ]; then n=$(find "$p" -type f -exec printf x \; 2>/dev/null | wc -c); echo "dir $((n)) $r $p"
elif [ -f "$p" ]; then n=$(ls -ldn "$p" | { read -r _ _ _ _ s _; echo "$s"; }); echo "file $((n)) $r $p"
else echo "none 0 $r $p"; fi`

type guestFile struct {
	kind     string // "file", "dir", "link", "none"
	count    int64  // bytes of a file, regular files under a directory
	readable bool
	path     string
}

func (c *Client) guestStat(ctx context.Context, op, sandbox, guest, base string) (guestFile, error) {
	res, err := c.Exec(ctx, sandbox, ExecSpec{
		Argv: []string{"sh", "-c", guestReport, "sh", guest, base}, Dir: "/", Timeout: verifyTimeout,
	})
	if err != nil {
		return guestFile{}, fmt.Errorf("sbx %s: look at %s: %w", op, guest, err)
	}
	if res.Code != 0 {
		return guestFile{}, execProblem(op, "look at "+guest, res)
	}
	parts := strings.SplitN(strings.TrimSuffix(string(res.Stdout), "\n"), " ", 4)
	if len(parts) != 4 {
		return guestFile{}, fmt.Errorf("sbx %s: look at %s: %w", op, guest, malformed("%d bytes", len(res.Stdout)))
	}
	n, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return guestFile{}, fmt.Errorf("sbx %s: look at %s: %w", op, guest, malformed("size %q", tailText(parts[1], 40)))
	}
	return guestFile{parts[0], n, parts[2] == "ok", parts[3]}, nil
}

// checkGuestPath refuses what could lead elsewhere than it says.
func checkGuestPath(op, p string) error {
	if !strings.HasPrefix(p, "/") || strings.ContainsRune(p, 0) {
		return invalid(op, "path %q in the sandbox: want an absolute path", p)
	}
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return invalid(op, "path %q in the sandbox: want none with ..", p)
		}
	}
	return nil
}

// CopyIn copies a file or directory of the host into a sandbox, starting it if it is stopped. As with docker cp, an
// existing directory at guestPath receives it under its own name, and "dir/." copies a directory's contents. Links stay
// links.
//
// It then looks whether the file arrived with its size, or the directory with at least as many regular files, and that the
// sandbox's user can read it (0.38 keeps the host's mode and owner, so a 0600 file would not be): if not, it is given to
// that user, mode unchanged. The error matches [ErrNotApplied] if it did not arrive.
func (c *Client) CopyIn(ctx context.Context, sandbox, hostPath, guestPath string) error {
	const op = "cp"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if err := checkGuestPath(op, guestPath); err != nil {
		return err
	}
	abs, err := filepath.Abs(hostPath)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	info, err := os.Lstat(abs)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	if strings.HasSuffix(hostPath, string(filepath.Separator)+".") {
		abs += string(filepath.Separator) + "."
	}
	if _, err := c.call(ctx, op, c.timeouts.Copy, Cmd{Args: []string{"cp", abs, sandbox + ":" + guestPath}}); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	base := filepath.Base(abs)
	if strings.HasSuffix(abs, string(filepath.Separator)+".") {
		base = "." // its contents went in
	}
	got, err := c.guestStat(ctx, op, sandbox, guestPath, base)
	if err != nil {
		return err
	}
	if err := compareCopy(op, abs, info, got); err != nil {
		return err
	}
	if got.readable {
		return nil
	}
	res, err := c.Exec(ctx, sandbox, ExecSpec{
		Argv: []string{"chown", "-h", "-R", "agent", got.path}, User: "root", Dir: "/", Timeout: verifyTimeout,
	})
	if err != nil {
		return err
	}
	if res.Code != 0 {
		return execProblem(op, "give "+got.path+" to the sandbox's user", res)
	}
	return nil
}

func compareCopy(op, host string, info fs.FileInfo, got guestFile) error {
	missing := func(format string, args ...any) error {
		return &NotAppliedError{Op: op, Missing: []string{fmt.Sprintf(format, args...)}}
	}
	switch {
	case got.kind == "none":
		return missing("%s is not in the sandbox", got.path)
	case info.Mode().IsRegular() && (got.kind != "file" || got.count != info.Size()):
		return missing("%s is a %s of %d, sent was a file of %d bytes", got.path, got.kind, got.count, info.Size())
	case info.IsDir():
		sent, err := countFiles(host)
		if err != nil {
			return fmt.Errorf("sbx %s: %w", op, err)
		}
		if got.kind != "dir" || got.count < sent {
			return missing("%s has %d files, sent were %d", got.path, got.count, sent)
		}
	}
	return nil
}

func countFiles(dir string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			n++
		}
		return err
	})
	return n, err
}

// CopyOut copies a file or directory out of a sandbox. What arrives is the sandbox's: links in it are kept as links, also
// those that lead out of the tree, and must not be followed. It is put together beside hostPath and moved there whole; an
// existing directory at hostPath receives it under its own name, an existing file is replaced. It needs sbx 0.38, which
// closed a path escape (CVE-2026-17106). The error matches [ErrNotApplied] if nothing arrived.
func (c *Client) CopyOut(ctx context.Context, sandbox, guestPath, hostPath string) (err error) {
	const op = "cp"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if err := checkGuestPath(op, guestPath); err != nil {
		return err
	}
	base := path.Base(guestPath)
	if base == "/" || base == "." {
		return invalid(op, "path %q in the sandbox: name a file or directory", guestPath)
	}
	if err := c.require(ctx, op, FeatureSafeCopy); err != nil {
		return err
	}
	target, err := filepath.Abs(hostPath)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	if info, statErr := os.Stat(target); statErr == nil && info.IsDir() {
		target = filepath.Join(target, base)
	}
	// Beside the target, because a rename does not cross file systems.
	stage, err := os.MkdirTemp(filepath.Dir(target), ".sbx-cp-*")
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	defer func() {
		if rmErr := os.RemoveAll(stage); rmErr != nil && err == nil {
			err = fmt.Errorf("sbx %s: %w", op, rmErr)
		}
	}()
	arrived := filepath.Join(stage, base)
	if _, err := c.call(ctx, op, c.timeouts.Copy, Cmd{Args: []string{"cp", sandbox + ":" + guestPath, arrived}}); err != nil {
		return err
	}
	info, err := os.Lstat(arrived)
	if errors.Is(err, fs.ErrNotExist) {
		return &NotAppliedError{Op: op, Missing: []string{guestPath + " did not arrive"}}
	}
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	if c.readBack && info.Mode().IsRegular() {
		there, err := c.guestStat(ctx, op, sandbox, guestPath, ".")
		if err != nil {
			return err
		}
		if there.kind == "file" && there.count != info.Size() {
			return &NotAppliedError{Op: op, Missing: []string{fmt.Sprintf("%s has %d bytes, %d arrived", guestPath, there.count, info.Size())}}
		}
	}
	if err := os.Rename(arrived, target); err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	return nil
}
