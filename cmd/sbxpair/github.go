package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sbxpair/sbxpair/github"
	"github.com/sbxpair/sbxpair/pair"
)

func newGitHubCmd(a *app) *cobra.Command {
	return group("github", "Act on GitHub from the github sandbox of a pair",
		"Every request leaves from inside the github sandbox of a pair that is up (sbxpair up); this process opens no connection.",
		group("issue", "Issues", "",
			newIssueCreateCmd(a), newIssueListCmd(a), newIssueSearchCmd(a), newIssueViewCmd(a), newIssueUpdateCmd(a), newIssueCloseCmd(a),
			newNumberedCommentCmd(a, "an issue"), newLabelCmd(a, "an issue"), newIssueAssignCmd(a)),
		group("pr", "Pull requests", "",
			newPullCreateCmd(a), newPullListCmd(a), newPullViewCmd(a), newPullUpdateCmd(a), newPullCloseCmd(a), newPullReviewersCmd(a), newPullReviewCmd(a),
			newLineCommentsCmd(a), newLineCommentCmd(a), newLineReplyCmd(a),
			newNumberedCommentCmd(a, "a pull request"), newLabelCmd(a, "a pull request")),
		group("status", "Commit statuses", "", newStatusSetCmd(a)),
		group("check", "Checks", "", newCheckSetCmd(a)),
		newWhoAmICmd(a),
		newPushCmd(a),
		newArtifactsCmd(a),
		newCommentCmd(a))
}

func group(use, short, long string, verbs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: long, Args: usage(noArgs), RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	cmd.AddCommand(verbs...)
	return cmd
}

// verb is one operation on GitHub as a command: it says what the command takes, what it does, and how it shows the result to a person.
type verb[T any] struct {
	use, short, long string
	numbered         bool                 // the first argument is the number of an issue or a pull request
	noun             string               // what has that number, for errors; "" is what the group is about
	args             cobra.PositionalArgs // check of the other arguments; nil allows none
	text             bool                 // takes --body or --body-file
	reads            bool                 // changes nothing on GitHub
	needed           func() bool          // whether the text may not be empty; nil: it may
	required         []string             // flags
	flags            func(*pflag.FlagSet)
	do               func(context.Context, act) (T, error)
	show             func(io.Writer, T)
}

// act is what a verb works with.
type act struct {
	*github.Client
	app    *app
	box    github.Runner // the github sandbox
	run    string
	repo   github.Repo
	number int
	args   []string // those after the number
	body   string
	flags  *pflag.FlagSet
}

// given is the value of a flag, nil if it was not used: what was not named stays as it is.
func (x act) given(name string) *string {
	if !x.flags.Changed(name) {
		return nil
	}
	value := x.flags.Lookup(name).Value.String()
	return &value
}

// givenBody is the text, nil if none was named.
func (x act) givenBody() *string {
	if !x.flags.Changed("body") && !x.flags.Changed("body-file") {
		return nil
	}
	return &x.body
}

func (v verb[T]) command(a *app) *cobra.Command {
	var run, body, bodyFile string
	var dryRun bool
	check := v.args
	if check == nil {
		check = noArgs
	}
	var number int
	cmd := &cobra.Command{
		Use: v.use, Short: v.short, Long: v.long,
		Args: usage(func(cmd *cobra.Command, args []string) (err error) {
			if v.numbered {
				if len(args) == 0 {
					return errors.New("the number is missing")
				}
				if number, err = numberOf(args[0]); err != nil {
					return err
				}
				args = args[1:]
			}
			return check(cmd, args)
		}),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, name := range v.required {
				if !cmd.Flags().Changed(name) {
					return &usageError{fmt.Errorf("--%s is missing (see: %s --help)", name, cmd.CommandPath())}
				}
			}
			text, err := a.textOf("text", body, bodyFile)
			if err != nil {
				return err
			}
			if v.needed != nil && v.needed() && strings.TrimSpace(text) == "" {
				return &usageError{fmt.Errorf("the text is missing or empty: --body or --body-file (see: %s --help)", cmd.CommandPath())}
			}
			if v.numbered {
				args = args[1:]
			}
			if dryRun {
				return a.wouldAct(cmd, run, number, args, text)
			}
			return a.onGitHub(cmd.Context(), run, func(ctx context.Context, x act) error {
				x.number, x.args, x.body, x.flags = number, args, text, cmd.Flags()
				made, err := v.do(ctx, x)
				if err != nil {
					if v.numbered {
						noun := v.noun
						if noun == "" && cmd.Parent().Name() == "pr" {
							noun = "pull request"
						}
						err = numbered(err, noun, x.repo, number)
					}
					return err
				}
				return a.print(made, func(w io.Writer) { v.show(w, made) })
			})
		},
	}
	flags := cmd.Flags()
	if !v.reads {
		dryRunFlag(cmd, &dryRun)
	}
	flags.StringVar(&run, "run", "", "the run (default: the only pair there is)")
	if v.text {
		flags.StringVar(&body, "body", "", "text")
		flags.StringVar(&bodyFile, "body-file", "", "read the text from a file (- for standard input)")
	}
	if v.flags != nil {
		v.flags(flags)
	}
	flags.VisitAll(func(f *pflag.Flag) {
		if c, ok := f.Value.(*choice); ok {
			completeFlag(cmd, f.Name, c.words...)
		}
	})
	return cmd
}

// always is for verbs that make no sense without a text.
func always() bool { return true }

var fullID = regexp.MustCompile(`^[0-9a-f]{40}$`)

// oneCommit takes the full id of a commit.
func oneCommit(cmd *cobra.Command, args []string) error {
	if err := cobra.ExactArgs(1)(cmd, args); err != nil {
		return err
	}
	if !fullID.MatchString(args[0]) {
		return fmt.Errorf("%.60q is no full id of a commit, which has 40 hexadecimal digits (git rev-parse prints it)", args[0])
	}
	return nil
}

// numbered says what was not found: GitHub's own answer names only an address.
func numbered(err error, noun string, repo github.Repo, number int) error {
	if !errors.Is(err, github.ErrNotFound) {
		return err
	}
	if noun == "" {
		noun = "issue or pull request"
	}
	return fmt.Errorf("%s #%d is not in %s: %w", noun, number, repo, err)
}

// numberOf reads the number of an issue or a pull request, as 12 or #12.
func numberOf(s string) (int, error) {
	n, err := strconv.Atoi(strings.TrimPrefix(s, "#"))
	if err != nil || n < 1 {
		return 0, fmt.Errorf("%q is no number of an issue or a pull request", s)
	}
	return n, nil
}

// choice is a flag that takes one of a few words.
type choice struct {
	value string
	words []string
}

// choose has the first word as its default, chooseOrNot has none.
func choose(words ...string) *choice      { return &choice{words[0], words} }
func chooseOrNot(words ...string) *choice { return &choice{"", words} }

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return "word" }

func (c *choice) Set(s string) error {
	for _, word := range c.words {
		if s == word {
			c.value = s
			return nil
		}
	}
	return fmt.Errorf("one of %s", strings.Join(c.words, ", "))
}

func newCommentCmd(a *app) *cobra.Command {
	var number int
	return verb[github.Comment]{
		use: "comment --number N --body TEXT", short: "Comment on an issue or a pull request", text: true, needed: always, required: []string{"number"},
		flags: func(f *pflag.FlagSet) { f.IntVar(&number, "number", 0, "number of the issue or pull request") },
		do: func(ctx context.Context, x act) (github.Comment, error) {
			made, err := x.Comment(ctx, x.repo, number, github.NewComment{Body: x.body})
			return made, numbered(err, "", x.repo, number)
		},
		show: func(w io.Writer, made github.Comment) { fmt.Fprintln(w, plain(made.URL)) },
	}.command(a)
}

// newNumberedCommentCmd and newLabelCmd are the same for both kinds of thing: to GitHub, a pull request is an issue with a branch.
func newNumberedCommentCmd(a *app, kind string) *cobra.Command {
	var keep string
	return verb[github.Comment]{
		use: "comment N --body TEXT", short: "Comment on " + kind, numbered: true, text: true, needed: always,
		flags: func(f *pflag.FlagSet) {
			f.StringVar(&keep, "keep", "", "a name: the run's comment of that name gets this text, in the place of the one it had")
		},
		do: func(ctx context.Context, x act) (github.Comment, error) {
			n := github.NewComment{Body: x.body}
			if keep == "" {
				return x.Comment(ctx, x.repo, x.number, n)
			}
			n.Op = github.Op{Run: x.run, Name: "kept-" + keep}
			return x.KeepComment(ctx, x.repo, x.number, n)
		},
		show: func(w io.Writer, made github.Comment) { fmt.Fprintln(w, plain(made.URL)) },
	}.command(a)
}

// labelled is the result of the label verbs.
type labelled struct {
	Number int      `json:"number"`
	Labels []string `json:"labels"` // all that are on it now
}

func newLabelCmd(a *app, kind string) *cobra.Command {
	var add, remove []string
	return verb[labelled]{
		use: "label N [--add LABEL] [--remove LABEL]", short: "Put labels on " + kind + ", or take them off", numbered: true,
		flags: func(f *pflag.FlagSet) {
			f.StringSliceVar(&add, "add", nil, "labels to put on")
			f.StringSliceVar(&remove, "remove", nil, "labels to take off")
		},
		do: func(ctx context.Context, x act) (labelled, error) {
			done := labelled{Number: x.number}
			for _, label := range remove {
				if err := x.RemoveLabel(ctx, x.repo, x.number, label); err != nil {
					return done, err
				}
			}
			if len(add) > 0 {
				var err error
				done.Labels, err = x.AddLabels(ctx, x.repo, x.number, add)
				return done, err
			}
			issue, err := x.GetIssue(ctx, x.repo, x.number)
			done.Labels = issue.Labels
			return done, err
		},
		show: func(w io.Writer, done labelled) { fmt.Fprintln(w, plain(strings.Join(done.Labels, ", "))) },
	}.command(a)
}

// block prints a text that a stranger may have written.
func block(w io.Writer, text string) {
	for line := range strings.SplitSeq(strings.ReplaceAll(text, "\r\n", "\n"), "\n") {
		fmt.Fprintln(w, plain(line))
	}
}

// wouldAct tells what a verb would ask GitHub for, and asks for nothing.
func (a *app) wouldAct(cmd *cobra.Command, run string, number int, args []string, text string) error {
	l, err := a.theLease(run)
	if err != nil {
		return err
	}
	what := []string{"GitHub for", strings.TrimPrefix(cmd.CommandPath(), "sbxpair github ")}
	if number > 0 {
		what = append(what, fmt.Sprintf("#%d", number))
	}
	what = append(append(what, args...), "in", l.Repository)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f.Name != "dry-run" && f.Name != "run" && f.Name != "body" && f.Name != "body-file" && cmd.LocalNonPersistentFlags().Lookup(f.Name) != nil {
			what = append(what, fmt.Sprintf("--%s %q", f.Name, f.Value))
		}
	})
	if text != "" {
		what = append(what, fmt.Sprintf("with a text of %d bytes", len(text)))
	}
	todo := changes{DryRun: true, Steps: []change{{Do: "ask", What: strings.Join(what, " ")}}}
	return a.print(todo, todo.print)
}

// onGitHub opens the github sandbox of a pair and lets do work with it.
func (a *app) onGitHub(ctx context.Context, run string, do func(context.Context, act) error) error {
	l, err := a.theLease(run)
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
	return do(ctx, act{Client: client, app: a, box: box, run: string(l.Run), repo: repo})
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
