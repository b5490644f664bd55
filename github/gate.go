package github

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sbxpair/sbxpair/secrets"
)

// ErrRefused is the kind of everything the gate refuses.
var ErrRefused = errors.New("refused by the gate")

// Policy says what happens with a change that touches something protected. Any other text, "" included, means Block.
type Policy string

// The policies.
const (
	PolicyBlock Policy = "block"
	PolicyAsk   Policy = "ask" // a person decides, or it is refused where nobody can be asked
	PolicyAllow Policy = "allow"
)

// Decision is what the gate says, from mild to hard.
type Decision string

// The decisions.
const (
	Allow  Decision = "allow"
	Ask    Decision = "ask"
	Refuse Decision = "refuse"
)

// Code names a reason of the gate's.
type Code string

// The reasons.
const (
	ReasonRepository Code = "repository"     // another repository than the run's
	ReasonBranch     Code = "branch"         // branch outside the run's prefix, or not a valid name
	ReasonBase       Code = "base-branch"    // base not in the list
	ReasonTitle      Code = "title"          // empty, too long, or without its prefix
	ReasonBody       Code = "body"           // too long
	ReasonPatchSize  Code = "patch-size"     // patch over its limit
	ReasonFileCount  Code = "file-count"     // too many files
	ReasonPath       Code = "path"           // a path that no repository should have
	ReasonProtected  Code = "protected-path" // workflows, owners, agent instructions, lock files, dot folders
	ReasonAllowlist  Code = "not-allowed"    // outside the exclusive list of paths
	ReasonExecutable Code = "executable"
	ReasonLink       Code = "symbolic-link"
	ReasonSubmodule  Code = "submodule"
	ReasonMode       Code = "mode" // a file mode git does not have
	ReasonSecret     Code = "secret"
	ReasonIncomplete Code = "incomplete" // the patch was cut, so that it cannot be judged
	ReasonKind       Code = "kind"       // a request of a kind that is not allowed
	ReasonCount      Code = "count"      // more requests of a kind than allowed
	ReasonTarget     Code = "target"     // an issue or pull request that is not the run's
	ReasonLabel      Code = "label"
	ReasonPerson     Code = "person" // who may not be assigned or asked
	ReasonField      Code = "field"  // missing, unknown or malformed field of a request
)

// Reason is one thing the gate found.
type Reason struct {
	Code     Code     `json:"code"`
	Decision Decision `json:"decision"` // Ask or Refuse
	Path     string   `json:"path,omitempty"`
	Detail   string   `json:"detail"`
}

func (r Reason) String() string {
	if r.Path == "" {
		return fmt.Sprintf("%s: %s", r.Code, r.Detail)
	}
	return fmt.Sprintf("%s: %s: %s", r.Code, r.Path, r.Detail)
}

// Verdict is what the gate says about one change or request. The zero Verdict refuses.
type Verdict struct {
	Decision Decision `json:"decision"`
	Reasons  []Reason `json:"reasons"`
}

// Err is nil if the verdict is Allow, else a [*RefusedError].
func (v Verdict) Err() error {
	if v.Decision == Allow {
		return nil
	}
	return &RefusedError{v}
}

// RefusedError carries a verdict that is not Allow. It matches ErrRefused.
type RefusedError struct{ Verdict Verdict }

func (e *RefusedError) Error() string {
	var b strings.Builder
	if e.Verdict.Decision == Ask {
		b.WriteString("the gate wants a person's decision")
	} else {
		b.WriteString("refused by the gate")
	}
	for i, r := range e.Verdict.Reasons {
		if i == 5 {
			fmt.Fprintf(&b, "; and %d more", len(e.Verdict.Reasons)-i)
			break
		}
		sep := "; "
		if i == 0 {
			sep = ": "
		}
		b.WriteString(sep + oneLine(r.String(), 300))
	}
	return b.String()
}

func (e *RefusedError) Unwrap() error { return ErrRefused }

// Protection is one group of protected paths.
type Protection struct {
	Name string
	// Patterns match the slash-separated path without case: "dir/" the directory and all below it, a pattern with a slash
	// the whole path, and one without a base name in any directory. * does not cross a slash.
	Patterns []string
	Policy   Policy
}

// Bounds are what a run may write. The zero Bounds allow nothing.
type Bounds struct {
	Repo         Repo     // the one repository
	Fork         Repo     // where branches are pushed instead; zero for Repo itself
	BranchPrefix string   // branches have to begin with it, such as "sbxpair/"
	BaseBranches []string // path.Match patterns
	MaxPatch     int64    // bytes
	MaxFiles     int
	MaxTitle     int // runes
	MaxBody      int // runes
	TitlePrefix  string
	Protected    []Protection
	// AllowedPaths, if not nil, is an exclusive list, checked beside Protected.
	AllowedPaths []string
	Executables  Policy // files that become executable
	Links        Policy // symbolic links
	Submodules   Policy
	// Secrets are known values that no text and no patch may hold, in any of their usual encodings.
	Secrets []secrets.Value
	// Requests bounds what an agent may ask for.
	Requests RequestBounds
	// Approved are reasons that a person was asked about and let pass, as a verdict gave them. Only those whose decision is Ask can be.
	Approved []Reason
}

// Limits of GitHub's, counted in characters (community-measured; gh-aw cuts at the same body length).
const (
	MaxTitleRunes = 256
	MaxBodyRunes  = 65_000
)

// DefaultBounds allow pushing branches below sbxpair/ to repo and asking for them to be merged into base.
func DefaultBounds(repo Repo, base string) Bounds {
	return Bounds{
		Repo: repo, BranchPrefix: "sbxpair/", BaseBranches: []string{base},
		MaxPatch: 4 << 20, MaxFiles: 300, MaxTitle: MaxTitleRunes, MaxBody: MaxBodyRunes,
		Protected: DefaultProtection(), Executables: PolicyAsk, Links: PolicyBlock, Submodules: PolicyBlock,
		Requests: DefaultRequestBounds(),
	}
}

// DefaultProtection lists what decides who reviews, what runs in CI, what agents are told and what gets installed: all
// of it blocked but lock files and root documentation, which a person is asked about or which are let through (after gh-aw's
// manifest_file_helpers, November 2026).
func DefaultProtection() []Protection {
	return []Protection{
		{"workflows", []string{".github/workflows/", ".github/actions/", "action.yml", "action.yaml", ".gitlab-ci.yml", ".circleci/", "jenkinsfile", "azure-pipelines.yml", ".travis.yml", "bitbucket-pipelines.yml", ".buildkite/"}, PolicyBlock},
		{"owners", []string{"codeowners"}, PolicyBlock},
		{"git", []string{".gitmodules", ".gitattributes", ".githooks/", ".husky/", ".pre-commit-config.yaml", "lefthook.yml", ".lefthook.yml"}, PolicyBlock},
		{"agent instructions", []string{"agents.md", "agents.override.md", "claude.md", "claude.local.md", "gemini.md", "copilot-instructions.md", ".github/instructions/", ".github/prompts/", ".github/agents/", ".github/chatmodes/", ".github/copilot/", ".agents/", ".claude/", ".codex/", ".cursor/", ".cursorrules", ".gemini/", ".windsurfrules", ".clinerules", ".mcp.json", ".opencode/", "skill.md", "agent.md", "qwen.md", ".qwen/", "*.instructions.md", "*.prompt.md", "*.agent.md", "*.chatmode.md", ".github/hooks/", ".github/skills/", ".windsurf/", ".clinerules/", ".roo/", ".roorules", ".kiro/", ".junie/", ".amazonq/", ".continue/", ".aider.conf.yml", ".goosehints", ".rules", ".sbxpair.yaml"}, PolicyBlock},
		{"lock files", []string{"go.sum", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "bun.lock", "bun.lockb", "cargo.lock", "poetry.lock", "uv.lock", "pipfile.lock", "pdm.lock", "composer.lock", "gemfile.lock", "mix.lock", "pubspec.lock", "flake.lock", "deno.lock", "gradle.lockfile", "packages.lock.json", "go.work.sum", "pylock.toml", "pylock.*.toml", "pixi.lock", "conda-lock.yml", "package.resolved", "podfile.lock", "cartfile.resolved", "paket.lock", "renv.lock", "manifest.toml", "stack.yaml.lock", "cabal.project.freeze", "rebar.lock", "chart.lock", ".terraform.lock.hcl", "module.bazel.lock", "conan.lock", "shard.lock", "buf.lock", "cpanfile.snapshot", "verification-metadata.xml", "mise.lock", "devbox.lock", "berksfile.lock"}, PolicyAsk},
		// Last: any other folder at the top that starts with a dot, .github itself included.
		{"dot folders", []string{"./"}, PolicyBlock},
	}
}

// Change is what would be written: the target, and what the commits do to the tree.
type Change struct {
	Repo       Repo
	Fork       Repo // where the branch is pushed; zero for Repo
	Branch     string
	BaseBranch string
	Title      string
	Body       string
	Files      []FileChange
	// Patch is the text of the diff, for its size and for secrets in what it adds. PatchTruncated says that it is not all.
	Patch          []byte
	PatchTruncated bool
}

// FileChange is one entry of a diff, in git's own terms.
type FileChange struct {
	Path    string `json:"path"`
	OldPath string `json:"old_path,omitempty"` // of a rename or copy
	Status  string `json:"status"`             // A, C, D, M, R or T
	OldMode string `json:"old_mode,omitempty"` // six octal digits, 000000 for nothing
	Mode    string `json:"mode"`
}

// Check is the gate for a change. It is pure: the same bounds and change give the same verdict. Every reason is found,
// not only the first.
func Check(b Bounds, c Change) Verdict {
	v := &verdict{}
	v.target(b, c)
	v.text(b, ReasonTitle, "title", c.Title, b.MaxTitle)
	if strings.TrimSpace(c.Title) == "" {
		v.refuse(ReasonTitle, "", "is empty")
	}
	if b.TitlePrefix != "" && !strings.HasPrefix(c.Title, b.TitlePrefix) {
		v.refuse(ReasonTitle, "", fmt.Sprintf("does not begin with %q", b.TitlePrefix))
	}
	v.text(b, ReasonBody, "body", c.Body, b.MaxBody)
	if n := len(c.Files); n > b.MaxFiles {
		v.refuse(ReasonFileCount, "", fmt.Sprintf("%d files, allowed are %d", n, b.MaxFiles))
	}
	if n := int64(len(c.Patch)); n > b.MaxPatch {
		v.refuse(ReasonPatchSize, "", fmt.Sprintf("%d bytes, allowed are %d", n, b.MaxPatch))
	}
	if c.PatchTruncated {
		v.refuse(ReasonIncomplete, "", "the patch was cut, so it cannot be judged")
	}
	for _, f := range c.Files {
		v.file(b, f)
	}
	v.secrets(b, c.Patch, c.Files)
	v.reasons = slices.DeleteFunc(v.reasons, func(r Reason) bool { return r.Decision == Ask && slices.Contains(b.Approved, r) })
	return v.done()
}

type verdict struct {
	reasons []Reason
}

func (v *verdict) add(d Decision, code Code, path, detail string) {
	r := Reason{code, d, path, detail}
	if !slices.Contains(v.reasons, r) {
		v.reasons = append(v.reasons, r)
	}
}

func (v *verdict) refuse(code Code, path, detail string) { v.add(Refuse, code, path, detail) }

// by applies a policy.
func (v *verdict) by(p Policy, code Code, path, detail string) {
	switch p {
	case PolicyAllow:
	case PolicyAsk:
		v.add(Ask, code, path, detail)
	default:
		v.refuse(code, path, detail)
	}
}

func (v *verdict) done() Verdict {
	out := Verdict{Decision: Allow, Reasons: v.reasons}
	if out.Reasons == nil {
		out.Reasons = []Reason{}
	}
	for _, r := range v.reasons {
		if r.Decision == Refuse {
			out.Decision = Refuse
		} else if out.Decision == Allow {
			out.Decision = Ask
		}
	}
	// The hard ones first; otherwise as found.
	slices.SortStableFunc(out.Reasons, func(a, b Reason) int {
		rank := func(r Reason) int {
			if r.Decision == Refuse {
				return 0
			}
			return 1
		}
		return rank(a) - rank(b)
	})
	return out
}

func (v *verdict) target(b Bounds, c Change) {
	if b.Repo == (Repo{}) || !c.Repo.Equal(b.Repo) {
		v.refuse(ReasonRepository, "", fmt.Sprintf("%s is not this run's repository %s", c.Repo, b.Repo))
	}
	if !c.Fork.Equal(b.Fork) {
		v.refuse(ReasonRepository, "", fmt.Sprintf("%s is not where this run pushes to", c.Fork))
	}
	switch {
	case !ValidBranch(c.Branch):
		v.refuse(ReasonBranch, "", "not a branch name")
	case b.BranchPrefix == "" || !strings.HasPrefix(c.Branch, b.BranchPrefix) || c.Branch == b.BranchPrefix:
		v.refuse(ReasonBranch, "", fmt.Sprintf("%s is not below %q", c.Branch, b.BranchPrefix))
	case c.Branch == c.BaseBranch:
		v.refuse(ReasonBranch, "", "is the base branch itself")
	}
	if c.BaseBranch != "" && !matchAny(b.BaseBranches, c.BaseBranch) {
		v.refuse(ReasonBase, "", fmt.Sprintf("%s is not a base branch that is allowed", oneLine(c.BaseBranch, 100)))
	}
}

// text checks a length and the known and shaped secrets of a text.
func (v *verdict) text(b Bounds, code Code, what, s string, limit int) {
	if n := utf8.RuneCountInString(s); n > limit {
		v.refuse(code, "", fmt.Sprintf("%d characters, allowed are %d", n, limit))
	}
	if hit := findSecret(b.Secrets, []byte(s)); hit != "" {
		v.refuse(ReasonSecret, "", "the "+what+" holds "+hit)
	}
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return err == nil && ok
	})
}

const (
	modeNone       = "000000"
	modeFile       = "100644"
	modeExecutable = "100755"
	modeLink       = "120000"
	modeSubmodule  = "160000"
)

// file judges one entry, both sides of a rename.
func (v *verdict) file(b Bounds, f FileChange) {
	for _, p := range []string{f.Path, f.OldPath} {
		if p == "" {
			continue
		}
		if why := badPath(p); why != "" {
			v.refuse(ReasonPath, oneLine(p, 200), why)
		}
		place := p
		if f.Mode == modeLink || f.Mode == modeSubmodule {
			place += "/" // it can stand for a whole folder
		}
		for _, group := range b.Protected {
			if pattern := protects(group, place); pattern != "" {
				v.by(group.Policy, ReasonProtected, oneLine(p, 200), group.Name)
				break
			}
		}
		if b.AllowedPaths != nil && !slices.ContainsFunc(b.AllowedPaths, func(pat string) bool { return matchPath(pat, p) }) {
			v.refuse(ReasonAllowlist, oneLine(p, 200), "not among the paths that are allowed")
		}
	}
	shown := oneLine(f.Path, 200)
	switch f.Mode {
	case modeNone, "":
		if f.Status != "D" {
			v.refuse(ReasonMode, shown, "has no mode")
		}
	case modeFile:
	case modeExecutable:
		if f.OldMode != modeExecutable || f.Status == "C" {
			v.by(b.Executables, ReasonExecutable, shown, "becomes executable")
		}
	case modeLink:
		v.by(b.Links, ReasonLink, shown, "is a symbolic link")
	case modeSubmodule:
		v.by(b.Submodules, ReasonSubmodule, shown, "is a submodule")
	default:
		v.refuse(ReasonMode, shown, "has mode "+oneLine(f.Mode, 12))
	}
	switch f.OldMode {
	case modeSubmodule:
		if f.Mode != modeSubmodule {
			v.by(b.Submodules, ReasonSubmodule, shown, "was a submodule")
		}
	}
}

// badPath tells paths that are dangerous on some file system or cannot be in a repository.
func badPath(p string) string {
	switch {
	case !utf8.ValidString(p):
		return "is not UTF-8"
	case strings.HasPrefix(p, "/"), strings.Contains(p, "\\"):
		return "is not a relative path with slashes"
	case strings.ContainsFunc(p, func(r rune) bool { return r < 0x20 || r == 0x7f || invisible(r) }):
		return "holds characters that cannot be seen"
	case len(p) > 4096:
		return "is too long"
	}
	for part := range strings.SplitSeq(p, "/") {
		switch {
		case part == "", part == ".", part == "..":
			return "is not a clean path"
		case gitDirLike(part):
			return "is git's own folder"
		case shortName.MatchString(part):
			return "has the form of a short name, which on Windows is another file"
		}
	}
	return ""
}

// gitDirLike folds what some file system takes for .git: case, trailing dots, spaces and streams (NTFS), the short name.
func gitDirLike(part string) bool {
	part, _, _ = strings.Cut(part, ":")
	part = strings.ToLower(strings.TrimRight(part, ". "))
	return part == ".git" || part == "git~1"
}

// shortName is the form of the names that Windows makes for older programs: GITHUB~1 is .github there.
var shortName = regexp.MustCompile(`^[^.~ ]{1,6}~[0-9]{1,6}(?:\.[^.]{0,3})?$`)

// protects returns the pattern of the group that covers the path, or "". "./" stands for any top folder that begins with a dot.
func protects(g Protection, p string) string {
	for _, pattern := range g.Patterns {
		if pattern == "./" {
			if strings.HasPrefix(p, ".") && strings.Contains(p, "/") {
				return pattern
			}
			continue
		}
		if matchPath(pattern, p) {
			return pattern
		}
	}
	return ""
}

// foldPath is a path as the most forgiving file systems see it: without case, and, part by part, without what Windows leaves out at
// the end of a name.
func foldPath(p string) string {
	p = fold(p)
	if !strings.ContainsAny(p, ":. ") {
		return p
	}
	parts := strings.Split(p, "/")
	for i, part := range parts {
		part, _, _ = strings.Cut(part, ":")
		parts[i] = strings.TrimRight(part, ". ")
	}
	return strings.Join(parts, "/")
}

// matchPath is the rule of Protection.Patterns. It compares folded: on some file systems AGENTS.md and agents.md are one file.
func matchPath(pattern, p string) bool {
	pattern, p = fold(pattern), foldPath(p)
	if dir, ok := strings.CutSuffix(pattern, "/"); ok {
		if !strings.Contains(dir, "/") && !strings.HasPrefix(dir, ".github") {
			return p == dir || strings.HasPrefix(p, dir+"/") || strings.Contains("/"+p, "/"+dir+"/")
		}
		return p == dir || strings.HasPrefix(p, dir+"/")
	}
	if !strings.Contains(pattern, "/") {
		p = path.Base(p)
	}
	ok, err := path.Match(pattern, p)
	return err == nil && ok
}

// secrets looks for known values and for shapes in what the patch adds, and in the names of files.
func (v *verdict) secrets(b Bounds, patch []byte, files []FileChange) {
	for _, f := range files {
		if hit := findSecret(b.Secrets, []byte(f.Path)); hit != "" {
			v.refuse(ReasonSecret, "", "a file's name holds "+hit)
		}
	}
	// Known values are looked for in the whole patch: one that is on a removed line is in the history all the same.
	if knownSecret(b.Secrets, patch) {
		v.refuse(ReasonSecret, "", "the patch holds a credential of this run")
	}
	scanner := secrets.NewScanner()
	for _, a := range AddedLines(patch) {
		if knownSecret(b.Secrets, a.Text) {
			v.refuse(ReasonSecret, oneLine(a.Path, 200), "what is added holds a credential of this run")
		}
		if found := scanner.Scan(a.Text); len(found) > 0 {
			v.refuse(ReasonSecret, oneLine(a.Path, 200), "an added line has the shape of a credential ("+string(found[0].Kind)+")")
		}
	}
}

func findSecret(known []secrets.Value, text []byte) string {
	if knownSecret(known, text) {
		return "a credential of this run"
	}
	if found := secrets.NewScanner().Scan(text); len(found) > 0 {
		return "something with the shape of a credential (" + string(found[0].Kind) + ")"
	}
	return ""
}

// minSpread is the shortest value that is looked for taken apart; a shorter one would be found in innocent text.
const minSpread = 16

// knownSecret reports a known value in any of its encodings, in one piece or taken apart: over lines, as programs that encode do
// it, or by blanks, quotes and signs between its parts, as in code.
func knownSecret(known []secrets.Value, text []byte) bool {
	if len(text) == 0 || len(known) == 0 {
		return false
	}
	if secrets.NewRedactor(known...).Contains(text) {
		return true
	}
	spread := secrets.NewRedactor(slices.DeleteFunc(slices.Clone(known), func(v secrets.Value) bool { return len(v.Reveal()) < minSpread })...)
	without := func(signs string) []byte {
		return bytes.Map(func(c rune) rune {
			if unicode.IsSpace(c) || invisible(c) || c == joiner || strings.ContainsRune(signs, c) {
				return -1
			}
			return c
		}, text)
	}
	return spread.Contains(without("")) || spread.Contains(without("\"'`+.,;:\\*|<>()[]{}&#"))
}

// Added is the text that a patch adds to one file.
type Added struct {
	Path string
	Text []byte
}

// AddedLines picks what a git patch adds, file by file. A hunk's line counts decide where it ends, so that a line of
// content cannot pass for a header.
func AddedLines(patch []byte) []Added {
	var out []Added
	var cur *Added
	oldLeft, newLeft := 0, 0
	for len(patch) > 0 {
		line, rest, _ := bytes.Cut(patch, []byte{'\n'})
		patch = rest
		if oldLeft > 0 || newLeft > 0 {
			switch {
			case len(line) > 0 && line[0] == '+':
				newLeft--
				if cur != nil {
					cur.Text = append(append(cur.Text, line[1:]...), '\n')
				}
				continue
			case len(line) > 0 && line[0] == '-':
				oldLeft--
				continue
			case len(line) > 0 && line[0] == '\\':
				continue
			default:
				oldLeft--
				newLeft--
				continue
			}
		}
		text := string(line[:min(len(line), 8<<10)])
		switch {
		case strings.HasPrefix(text, "diff --git "):
			out = append(out, Added{Path: text[len("diff --git "):]})
			cur = &out[len(out)-1]
		case strings.HasPrefix(text, "+++ ") && cur != nil:
			cur.Path = strings.TrimPrefix(strings.TrimSuffix(text[4:], "\t"), "b/")
		case strings.HasPrefix(text, "@@ "):
			oldLeft, newLeft = hunk(text)
		}
	}
	return slices.DeleteFunc(out, func(a Added) bool { return len(a.Text) == 0 })
}

// hunk reads the two counts of "@@ -1,2 +3,4 @@".
func hunk(line string) (oldLines, newLines int) {
	f := strings.Fields(line)
	if len(f) < 3 {
		return 0, 0
	}
	count := func(s string) int {
		_, n, ok := strings.Cut(s, ",")
		if !ok {
			return 1
		}
		v := 0
		if _, err := fmt.Sscanf(n, "%d", &v); err != nil || v < 0 {
			return 0
		}
		return v
	}
	return count(f[1]), count(f[2])
}
