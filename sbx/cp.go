package sbx

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// verifyTimeout bounds one look into a sandbox.
const verifyTimeout = 60 * time.Second

// guestReport prints what is in the directory $1 under the names on standard input, each ended by a zero byte: a line for each
// file with its size, each link and each directory, and one if the user cannot read some of it. The tools are those of GNU
// and of BusyBox.
const guestReport = `cd "$1" 2>/dev/null || { echo absent; exit 0; }
xargs -0 sh -c '[ $# -gt 0 ] || exit 0
find "$@" -type f -exec stat -c "f %s %n" {} + 2>/dev/null
find "$@" -type l -exec stat -c "l 0 %n" {} + 2>/dev/null
find "$@" -type d -exec stat -c "d 0 %n" {} + 2>/dev/null
blind=$(find "$@" ! -type l -exec sh -c "for f do [ -r \"\$f\" ] || echo x; done" sh {} + 2>&1)
[ -z "$blind" ] || echo unreadable' sh`

// guestOwn gives what guestReport was asked about to the sandbox's user.
const guestOwn = `cd "$1" && xargs -0 chown -h -R agent`

// report is what guestReport printed.
type report struct {
	lines      map[string]int
	absent     bool
	unreadable bool
}

// look asks what is in a sandbox's directory dir under names, as a user ("" is the sandbox's own).
func (c *Client) look(ctx context.Context, op, sandbox, user, dir string, names []string) (report, error) {
	res, err := c.Exec(ctx, sandbox, ExecSpec{
		Argv: []string{"sh", "-c", guestReport, "sbxpair-look", dir}, Stdin: zeroEnded(names), User: user, Dir: "/",
		Timeout: verifyTimeout, MaxCapture: maxListing,
	})
	switch {
	case err != nil:
		return report{}, fmt.Errorf("sbx %s: look at %s: %w", op, dir, err)
	case res.Code != 0:
		return report{}, execProblem(op, "look at "+dir, res)
	case res.Truncated:
		return report{}, fmt.Errorf("sbx %s: look at %s: %w", op, dir, malformed("more than %d bytes of names", maxListing))
	}
	r := report{lines: map[string]int{}}
	for line := range strings.SplitSeq(strings.TrimSuffix(string(res.Stdout), "\n"), "\n") {
		switch line {
		case "absent":
			r.absent = true
		case "unreadable":
			r.unreadable = true
		case "":
		default:
			r.lines[line]++
		}
	}
	return r, nil
}

func zeroEnded(names []string) *bytes.Reader {
	var b bytes.Buffer
	for _, name := range names {
		b.WriteString("./" + name + "\x00")
	}
	return bytes.NewReader(b.Bytes())
}

// hostReport writes what is at root on the host as guestReport would, under another name. "" is the contents of root alone.
func hostReport(root, name string) (lines []string, err error) {
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil || name == "" && rel == "." {
			return err
		}
		entry := path.Join(name, filepath.ToSlash(rel))
		switch {
		case d.IsDir():
			lines = append(lines, "d 0 ./"+entry)
		case d.Type()&fs.ModeSymlink != 0:
			lines = append(lines, "l 0 ./"+entry)
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("f %d ./%s", info.Size(), entry))
		}
		return nil
	})
	return lines, err
}

// maxNamed bounds how many missing files an error names.
const maxNamed = 10

// compareTrees says what of sent is not in got. A name with a line end takes several lines on either side.
func compareTrees(sent []string, got map[string]int, verb string) (missing []string) {
	got = maps.Clone(got)
	count := 0
	for _, entry := range sent {
		for line := range strings.SplitSeq(entry, "\n") {
			if got[line]--; got[line] >= 0 {
				continue
			}
			if count++; count <= maxNamed {
				missing = append(missing, describe(entry)+" did not "+verb)
			}
			break
		}
	}
	if count > maxNamed {
		missing = append(missing, fmt.Sprintf("%d more", count-maxNamed))
	}
	return missing
}

// describe says in words what a line of a report says.
func describe(entry string) string {
	kind, rest, _ := strings.Cut(entry, " ")
	size, name, _ := strings.Cut(rest, " ")
	name = fmt.Sprintf("%q", tailText(strings.TrimPrefix(name, "./"), 200))
	switch kind {
	case "d":
		return "directory " + name
	case "l":
		return "link " + name
	case "f":
		return fmt.Sprintf("file %s of %s bytes", name, size)
	}
	return fmt.Sprintf("%q", tailText(entry, 200)) // the rest of a name with a line end
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
// It then looks whether every file arrived with its size, every link and every directory, and that the sandbox's user can read
// all of it (0.38 keeps the host's mode and owner, so a 0600 file would not be): if not, it is given to that user, mode
// unchanged. The error matches [ErrNotApplied] if something did not arrive, and names it. Contents are not compared.
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
	contents := strings.HasSuffix(hostPath, string(filepath.Separator)+".")
	source := abs
	if contents {
		source += string(filepath.Separator) + "."
		if abs, err = filepath.EvalSymlinks(abs); err != nil { // "." leads through a link
			return fmt.Errorf("sbx %s: %w", op, err)
		}
	}
	into := false // guestPath is a directory that takes the copy in
	if c.readBack && !contents && info.IsDir() {
		// Afterwards nobody could tell: then there is one in any case.
		if into, err = c.guestDir(ctx, op, sandbox, guestPath); err != nil {
			return err
		}
	}
	if _, err := c.call(ctx, op, c.timeouts.Copy, Cmd{Args: []string{"cp", source, sandbox + ":" + guestPath}}); err != nil {
		return err
	}
	if !c.readBack {
		return nil
	}
	if !contents && !info.IsDir() {
		if into, err = c.guestDir(ctx, op, sandbox, guestPath); err != nil {
			return err
		}
	}
	dir, name := path.Split(path.Clean(guestPath))
	switch {
	case contents:
		dir, name = guestPath, ""
	case into:
		dir, name = guestPath, filepath.Base(abs)
	}
	return c.verifyCopyIn(ctx, op, sandbox, abs, dir, name)
}

// guestDir reports whether there is a directory at p in the sandbox.
func (c *Client) guestDir(ctx context.Context, op, sandbox, p string) (bool, error) {
	res, err := c.Exec(ctx, sandbox, ExecSpec{Argv: []string{"test", "-d", p}, User: "root", Dir: "/", Timeout: verifyTimeout})
	switch {
	case err != nil:
		return false, fmt.Errorf("sbx %s: look at %s: %w", op, p, err)
	case res.Code > 1:
		return false, execProblem(op, "look at "+p, res)
	}
	return res.Code == 0, nil
}

func (c *Client) verifyCopyIn(ctx context.Context, op, sandbox, host, dir, name string) error {
	sent, err := hostReport(host, name)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	names := []string{name}
	if name == "" {
		entries, err := os.ReadDir(host)
		if err != nil {
			return fmt.Errorf("sbx %s: %w", op, err)
		}
		names = names[:0]
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	got, err := c.look(ctx, op, sandbox, "", dir, names)
	if err != nil {
		return err
	}
	if !got.unreadable && !got.absent {
		return notApplied(op, compareTrees(sent, got.lines, "arrive")...)
	}
	res, err := c.Exec(ctx, sandbox, ExecSpec{
		Argv: []string{"sh", "-c", guestOwn, "sbxpair-own", dir}, Stdin: zeroEnded(names), User: "root", Dir: "/", Timeout: verifyTimeout,
	})
	if err != nil {
		return err
	}
	if got, err = c.look(ctx, op, sandbox, "", dir, names); err != nil {
		return err
	}
	if missing := compareTrees(sent, got.lines, "arrive"); len(missing) > 0 {
		return notApplied(op, missing...)
	}
	if got.unreadable {
		return execProblem(op, "give "+path.Join(dir, name)+" to the sandbox's user", res)
	}
	return nil
}

// CopyOut copies a file or directory out of a sandbox. What arrives is the sandbox's: links in it are kept as links, also
// those that lead out of the tree, and must not be followed. It is put together beside hostPath and moved there whole; an
// existing directory at hostPath receives it under its own name, an existing file is replaced. It needs sbx 0.38, which
// closed a path escape (CVE-2026-17106).
//
// Before it is moved, it is compared with what is in the sandbox: every file with its size, every link and every directory. The
// error matches [ErrNotApplied] if something did not arrive, or was changed in between, and names it.
func (c *Client) CopyOut(ctx context.Context, sandbox, guestPath, hostPath string) (err error) {
	const op = "cp"
	if err := checkNames(op, []string{sandbox}); err != nil {
		return err
	}
	if err := checkGuestPath(op, guestPath); err != nil {
		return err
	}
	dir, base := path.Split(path.Clean(guestPath))
	if base == "" {
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
	if _, err := os.Lstat(arrived); errors.Is(err, fs.ErrNotExist) {
		return notApplied(op, guestPath+" did not arrive")
	} else if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	if c.readBack {
		if err := c.verifyCopyOut(ctx, op, sandbox, dir, base, arrived); err != nil {
			return err
		}
	}
	if err := os.Rename(arrived, target); err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	return nil
}

func (c *Client) verifyCopyOut(ctx context.Context, op, sandbox, dir, base, arrived string) error {
	lines, err := hostReport(arrived, base)
	if err != nil {
		return fmt.Errorf("sbx %s: %w", op, err)
	}
	have := map[string]int{}
	for _, entry := range lines {
		for line := range strings.SplitSeq(entry, "\n") {
			have[line]++
		}
	}
	there, err := c.look(ctx, op, sandbox, "root", dir, []string{base})
	if err != nil {
		return err
	}
	if len(there.lines) == 0 {
		return notApplied(op, path.Join(dir, base)+" is not in the sandbox any more, so nobody can tell whether it arrived whole")
	}
	var sent []string
	for line, n := range there.lines {
		sent = append(sent, slices.Repeat([]string{line}, n)...)
	}
	slices.Sort(sent)
	return notApplied(op, compareTrees(sent, have, "arrive")...)
}
