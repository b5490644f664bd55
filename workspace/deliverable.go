package workspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/sbxpair/sbxpair/guest"
)

// Squash puts the end state that was imported last on the base as one commit of ours, and returns it with that commit as
// its head. What the agent committed in between, with whatever files, messages and identities, is not part of it: what
// was looked at is what is delivered. Equal inputs give an equal commit.
func (w Workspace) Squash(ctx context.Context, e EndState, message string, when time.Time) (EndState, error) {
	if e.Empty {
		return EndState{}, ErrEmpty
	}
	g, err := w.git()
	if err != nil {
		return EndState{}, err
	}
	date := fmt.Sprintf("%d +0000", when.Unix())
	repo := gitRun{repo: w.importRepo()}
	commit := repo
	commit.stdin = strings.NewReader(message + "\n")
	commit.env = []string{"GIT_AUTHOR_DATE=" + date, "GIT_COMMITTER_DATE=" + date}
	head, err := g.line(ctx, commit, "commit-tree", e.Head+"^{tree}", "-p", e.Base)
	if err != nil {
		return EndState{}, err
	}
	if _, err := g.do(ctx, repo, "update-ref", headRef, head, e.Head); err != nil {
		return EndState{}, err
	}
	var paths []string
	for _, f := range e.Files {
		paths = append(paths, f.Path)
		if f.OldPath != "" {
			paths = append(paths, f.OldPath)
		}
	}
	subject, body, _ := strings.Cut(message, "\n")
	e.Head = head
	e.Commits = []Commit{{SHA: head, Parents: []string{e.Base}, AuthorName: AuthorName, AuthorEmail: AuthorEmail,
		AuthorDate: when.UTC(), Subject: subject, Body: strings.TrimSpace(body), Paths: paths}}
	return e, nil
}

// snapshotRef names the end state's tree without any history.
const snapshotRef = "refs/sbxpair/snapshot"

// checkoutScript makes a repository in the folder $1 from the bundle on standard input. Nothing of the agent's own
// configuration applies.
const checkoutScript = `set -eu
rm -rf "$1"; mkdir -p "$1"; cat >"$1.bundle"
trap 'rm -f "$1.bundle"' EXIT
export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_ATTR_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0
git init --quiet --template= --initial-branch=main "$1"
cd "$1"
git fetch --quiet --no-tags "$1.bundle" +refs/sbxpair/snapshot:refs/heads/sbxpair-snapshot
git -c core.hooksPath=/dev/null checkout --quiet --detach refs/heads/sbxpair-snapshot
`

// CheckOut puts the end state's files, as they would be delivered, into a fresh repository in the folder dir of the
// sandbox behind r: without what is ignored, without history. It costs one command there.
func (w Workspace) CheckOut(ctx context.Context, r guest.Runner, e EndState, dir string) (err error) {
	g, err := w.git()
	if err != nil {
		return err
	}
	run := gitRun{repo: w.importRepo()}
	root, err := g.line(ctx, run, "commit-tree", e.Head+"^{tree}", "-m", "Delivered state")
	if err != nil {
		return err
	}
	if _, err := g.do(ctx, run, "update-ref", snapshotRef, root); err != nil {
		return err
	}
	spool, err := os.CreateTemp(w.Root, "snapshot-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, spool.Close(), os.Remove(spool.Name())) }()
	run.out = spool
	if _, err := g.do(ctx, run, "bundle", "create", "--quiet", "-", snapshotRef); err != nil {
		return err
	}
	if _, err := spool.Seek(0, io.SeekStart); err != nil {
		return err
	}
	stderr := &guest.Tail{Limit: 4 << 10}
	code, err := r.Run(ctx, guest.Command{Argv: []string{"sh", "-c", checkoutScript, "sh", dir}, Dir: "/", Stdin: spool, Stderr: stderr})
	switch {
	case err != nil:
		return fmt.Errorf("check out the end state: %w", err)
	case code != 0:
		return &GuestError{code, stderr.String()}
	}
	return nil
}
