package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
)

// githubOptions are what every github verb takes.
type githubOptions struct {
	run      string
	title    string
	body     string
	bodyFile string
	labels   []string
	head     string
	base     string
	ready    bool
	number   int
}

func newGitHubCmd(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use: "github", Short: "Act on GitHub from the github sandbox of a pair", Args: usage(cobra.NoArgs),
		Long: "Every request leaves from inside the github sandbox of a pair that is up (sbxpair up); this process opens no connection.",
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	issue := &cobra.Command{Use: "issue", Short: "Issues", Args: usage(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	issue.AddCommand(newIssueCreateCmd(a))
	pr := &cobra.Command{Use: "pr", Short: "Pull requests", Args: usage(cobra.NoArgs), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	pr.AddCommand(newPullRequestCreateCmd(a))
	cmd.AddCommand(issue, pr, newCommentCmd(a))
	return cmd
}

func (o *githubOptions) text(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.run, "run", "", "the run (default: the only pair there is)")
	cmd.Flags().StringVar(&o.body, "body", "", "text")
	cmd.Flags().StringVar(&o.bodyFile, "body-file", "", "read the text from a file (- for standard input)")
}

func newIssueCreateCmd(a *app) *cobra.Command {
	var o githubOptions
	cmd := &cobra.Command{
		Use: "create --title TITLE", Short: "Create an issue", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onGitHub(cmd, o, []string{"title"}, func(ctx context.Context, c *github.Client, repo github.Repo, body string) error {
				made, err := c.CreateIssue(ctx, repo, github.NewIssue{Title: o.title, Body: body, Labels: o.labels})
				if err != nil {
					return err
				}
				return a.print(made, func(w io.Writer) { fmt.Fprintln(w, made.URL) })
			})
		},
	}
	o.text(cmd)
	cmd.Flags().StringVar(&o.title, "title", "", "title")
	cmd.Flags().StringSliceVar(&o.labels, "label", nil, "labels")
	return cmd
}

func newPullRequestCreateCmd(a *app) *cobra.Command {
	var o githubOptions
	cmd := &cobra.Command{
		Use: "create --title TITLE --head BRANCH --base BRANCH", Short: "Open a draft pull request for a branch that is there", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onGitHub(cmd, o, []string{"title", "head", "base"}, func(ctx context.Context, c *github.Client, repo github.Repo, body string) error {
				made, err := c.CreatePullRequest(ctx, repo, github.NewPullRequest{Title: o.title, Body: body, Head: o.head, Base: o.base, Ready: o.ready})
				if err != nil {
					return err
				}
				return a.print(made, func(w io.Writer) { fmt.Fprintln(w, made.URL) })
			})
		},
	}
	o.text(cmd)
	cmd.Flags().StringVar(&o.title, "title", "", "title")
	cmd.Flags().StringVar(&o.head, "head", "", "branch with the change; OWNER:BRANCH from a fork")
	cmd.Flags().StringVar(&o.base, "base", "", "branch that it goes to")
	cmd.Flags().BoolVar(&o.ready, "ready", false, "not a draft")
	return cmd
}

func newCommentCmd(a *app) *cobra.Command {
	var o githubOptions
	cmd := &cobra.Command{
		Use: "comment --number N --body TEXT", Short: "Comment on an issue or a pull request", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.onGitHub(cmd, o, []string{"number"}, func(ctx context.Context, c *github.Client, repo github.Repo, body string) error {
				made, err := c.Comment(ctx, repo, o.number, github.NewComment{Body: body})
				if err != nil {
					return err
				}
				return a.print(made, func(w io.Writer) { fmt.Fprintln(w, made.URL) })
			})
		},
	}
	o.text(cmd)
	cmd.Flags().IntVar(&o.number, "number", 0, "number of the issue or pull request")
	return cmd
}

// onGitHub opens the github sandbox of a pair and lets do work with it, if the flags in required were given.
func (a *app) onGitHub(cmd *cobra.Command, o githubOptions, required []string, do func(context.Context, *github.Client, github.Repo, string) error) error {
	for _, name := range required {
		if !cmd.Flags().Changed(name) {
			return &usageError{fmt.Errorf("--%s is missing (see: %s --help)", name, cmd.CommandPath())}
		}
	}
	body, err := a.textOf("text", o.body, o.bodyFile)
	if err != nil {
		return err
	}
	l, err := a.theLease(o.run)
	if err != nil {
		return err
	}
	repo, err := github.ParseRepo(l.Repository)
	if err != nil {
		return err
	}
	endpoint, err := github.ParseEndpoint(l.Host)
	if err != nil {
		return err
	}
	box := pair.NewSandbox(a.known(l.Engine), l.Run, pair.RoleGitHub)
	client := github.NewClient(box, endpoint, github.WithVersion(a.version), github.WithLogger(a.log))
	defer client.Close()
	return do(cmd.Context(), client, repo, body)
}

// maxText bounds a text that is read from a file.
const maxText = 1 << 20

// textOf returns a text given as an argument or in a file, not both. what names it in errors.
func (a *app) textOf(what, arg, path string) (string, error) {
	if path == "" {
		return arg, nil
	}
	if arg != "" {
		return "", &usageError{fmt.Errorf("the %s was given twice: directly and as a file", what)}
	}
	in := io.Reader(a.stdin)
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return "", &usageError{fmt.Errorf("read %s: %w", what, err)}
		}
		defer file.Close()
		in = file
	}
	text, err := io.ReadAll(io.LimitReader(in, maxText+1))
	if err != nil {
		return "", &usageError{fmt.Errorf("read %s: %w", what, err)}
	}
	if len(text) > maxText {
		return "", &usageError{fmt.Errorf("the %s is larger than %d bytes", what, maxText)}
	}
	return string(text), nil
}
