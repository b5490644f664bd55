package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/loop"
	"github.com/sbxpair/sbxpair/pair"
)

// status is the result of the status and check verbs.
type status struct {
	Commit string           `json:"commit"`
	Name   string           `json:"name"`
	State  string           `json:"state"`
	Form   github.CheckForm `json:"form"`
}

func showStatus(w io.Writer, done status) {
	fmt.Fprintf(w, "%s %s: %s %s\n", plain(done.Commit), done.Form, plain(done.Name), done.State)
}

func newStatusSetCmd(a *app) *cobra.Command {
	var name, description, url string
	state := choose("success", "failure", "error", "pending")
	return verb[status]{
		use: "set COMMIT --context NAME", short: "Set the status of a commit, named by its full id", args: oneCommit, required: []string{"context"},
		flags: func(f *pflag.FlagSet) {
			f.Var(state, "state", "state: "+strings.Join(state.words, ", "))
			f.StringVar(&name, "context", "", "name of the check that speaks")
			f.StringVar(&description, "description", "", "a few words, at most 140 characters")
			f.StringVar(&url, "url", "", "address with more")
		},
		do: func(ctx context.Context, x act) (status, error) {
			done := status{x.args[0], name, state.value, github.FormStatus}
			return done, x.SetStatus(ctx, x.repo, done.Commit, github.StatusState(state.value), name, description, url)
		},
		show: showStatus,
	}.command(a)
}

func newCheckSetCmd(a *app) *cobra.Command {
	k := github.CheckRun{}
	conclusion := choose("success", "failure", "neutral", "running")
	return verb[status]{
		use: "set COMMIT --name NAME", short: "Report a check of a commit, named by its full id", args: oneCommit, text: true, required: []string{"name"},
		long: "GitHub lets only apps make check runs. With any other token the check becomes a commit status, whose description is\nthe title; the text is left out then.",
		flags: func(f *pflag.FlagSet) {
			f.Var(conclusion, "conclusion", "how it ended: "+strings.Join(conclusion.words, ", "))
			f.StringVar(&k.Name, "name", "", "name of the check")
			f.StringVar(&k.Title, "title", "", "a few words")
			f.StringVar(&k.URL, "url", "", "address with more")
		},
		do: func(ctx context.Context, x act) (done status, err error) {
			k.Commit, k.Summary = x.args[0], x.body
			if conclusion.value != "running" {
				k.Conclusion = github.Conclusion(conclusion.value)
			}
			done = status{Commit: k.Commit, Name: k.Name, State: conclusion.value}
			done.Form, err = x.SetCheck(ctx, x.repo, k)
			return done, err
		},
		show: showStatus,
	}.command(a)
}

func newPushCmd(a *app) *cobra.Command {
	var base, branch, work string
	return verb[github.Pushed]{
		use: "push [BUNDLE] --branch NAME", short: "Push a branch, from a git bundle or from the work that a run kept", args: cobra.MaximumNArgs(1), required: []string{"branch"},
		long: "The bundle crosses into the github sandbox; its objects are checked there in a fresh repository, the gate of the configuration\n" +
			"judges what it does to the tree, and git pushes from there. A branch that holds commits of somebody else is left alone.\n" +
			"It has to hold one branch, made with: git bundle create FILE BRANCH ^BASE.",
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&branch, "branch", "", "branch to push; it begins with github.branchPrefix")
			f.StringVar(&base, "base", "", "full id of the commit it starts from, which GitHub has (default: the bundle's own)")
			f.StringVar(&work, "work", "", "a run, in place of a bundle: the work that it kept")
		},
		do: func(ctx context.Context, x act) (github.Pushed, error) {
			loaded, err := x.app.settings(nil)
			if err != nil {
				return github.Pushed{}, err
			}
			bounds, err := loop.Bounds(loaded.Config, x.repo, "")
			if err != nil {
				return github.Pushed{}, err
			}
			path, err := x.bundle(work)
			if err != nil {
				return github.Pushed{}, &usageError{err}
			}
			file, err := os.Open(path)
			if err != nil {
				return github.Pushed{}, &usageError{fmt.Errorf("read the bundle: %w", err)}
			}
			defer file.Close()
			return github.PushBranch(ctx, x.box, x.Client, github.Delivery{Run: x.run, Repo: x.repo, Branch: branch, Base: base, Bundle: file, Bounds: bounds})
		},
		show: func(w io.Writer, done github.Pushed) {
			fmt.Fprintf(w, "%.12s %s %s\n", done.Head, done.Push, plain(done.URL))
		},
	}.command(a)
}

// bundle is the file that push takes: the one that was named, or the work of a run.
func (x act) bundle(work string) (string, error) {
	switch {
	case len(x.args) == 1 && work == "":
		return x.args[0], nil
	case len(x.args) == 1 || work == "":
		return "", errors.New("name a bundle, or with --work a run, and not both")
	}
	id, err := pair.ParseRunID(work)
	if err != nil {
		return "", err
	}
	told, err := loop.Tell(x.app.store(), id)
	if err != nil {
		return "", err
	}
	if told.Work == "" {
		return "", fmt.Errorf("run %s kept no work: it was delivered, or there was none", id)
	}
	return told.Work, nil
}

func newWhoAmICmd(a *app) *cobra.Command {
	return verb[github.Identity]{
		reads: true, use: "whoami", short: "Say whose token the github sandbox has, and when it ends",
		do: func(ctx context.Context, x act) (github.Identity, error) { return x.WhoAmI(ctx) },
		show: func(w io.Writer, who github.Identity) {
			until := "no end that GitHub tells of"
			if !who.Expires.IsZero() {
				until = "until " + who.Expires.Format("2006-01-02 15:04 MST")
			}
			fmt.Fprintf(w, "%s (%s), %s\n", plain(who.Login), plain(who.Type), until)
		},
	}.command(a)
}

func newArtifactsCmd(a *app) *cobra.Command {
	return verb[github.KeptArtifacts]{
		use: "artifacts FILE...", short: "Keep files on a branch of their own, in the place of those that are there", args: cobra.MinimumNArgs(1),
		long: "The branch is the run's, with -artifacts behind it. It holds these files and nothing else, by their base names.",
		do: func(ctx context.Context, x act) (github.KeptArtifacts, error) {
			loaded, err := x.app.settings(nil)
			if err != nil {
				return github.KeptArtifacts{}, err
			}
			bounds := github.DefaultBounds(x.repo, "")
			bounds.BranchPrefix = loaded.Config.GitHub.BranchPrefix
			files, err := artifacts(x.args, bounds.MaxPatch)
			if err != nil {
				return github.KeptArtifacts{}, err
			}
			return x.KeepArtifacts(ctx, github.Artifacts{Run: x.run, Repo: x.repo, Files: files, Bounds: bounds})
		},
		show: func(w io.Writer, kept github.KeptArtifacts) { fmt.Fprintln(w, kept.URL) },
	}.command(a)
}

// artifacts reads files. What is over limit is read no further: the gate refuses it by its size.
func artifacts(paths []string, limit int64) ([]github.TreeFile, error) {
	var files []github.TreeFile
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return nil, &usageError{fmt.Errorf("read artifact: %w", err)}
		}
		content, err := io.ReadAll(io.LimitReader(file, limit+1))
		file.Close()
		if err != nil {
			return nil, &usageError{fmt.Errorf("read artifact: %w", err)}
		}
		files = append(files, github.TreeFile{Path: filepath.Base(path), Mode: "100644", Content: content})
	}
	return files, nil
}
