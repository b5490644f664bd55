package github

import (
	"encoding/base64"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/secrets"
)

var canary = secrets.New("github_pat_11CANARY00" + strings.Repeat("q", 60))

func okChange() Change {
	return Change{Repo: repoApp, Branch: "sbxpair/r1", BaseBranch: "main", Title: "Fix", Files: []FileChange{{Path: "a.go", Status: "M", OldMode: modeFile, Mode: modeFile}}}
}

func patchOf(path, added string) []byte {
	return fmt.Appendf(nil, "diff --git a/%s b/%s\nindex 1..2 100644\n--- a/%s\n+++ b/%s\n@@ -1,1 +1,2 @@\n old\n+%s\n", path, path, path, path, added)
}

// TestGate is the gate's table of refusals.
func TestGate(t *testing.T) {
	page := "| change | decision | reason |\n| --- | --- | --- |\n"
	file := func(f FileChange) func(*Change) { return func(c *Change) { c.Files = []FileChange{f} } }
	added := func(p string) func(*Change) {
		return file(FileChange{Path: p, Status: "A", OldMode: modeNone, Mode: modeFile})
	}
	for _, tt := range []struct {
		name   string
		change func(*Change)
		want   Decision
		code   Code
	}{
		{"an ordinary change", func(*Change) {}, Allow, ""},
		{"a new file", added("src/x/y.go"), Allow, ""},
		{"another repository", func(c *Change) { c.Repo.Name = "other" }, Refuse, ReasonRepository},
		{"a fork that the run is not for", func(c *Change) { c.Fork = Repo{"octo", "fork"} }, Refuse, ReasonRepository},
		{"the same in other case", func(c *Change) { c.Repo.Name = "APP" }, Allow, ""},
		{"branch outside the prefix", func(c *Change) { c.Branch = "feature" }, Refuse, ReasonBranch},
		{"branch that climbs out", func(c *Change) { c.Branch = "sbxpair/../main" }, Refuse, ReasonBranch},
		{"the prefix alone", func(c *Change) { c.Branch = "sbxpair/" }, Refuse, ReasonBranch},
		{"base not allowed", func(c *Change) { c.BaseBranch = "release" }, Refuse, ReasonBase},
		{"no title", func(c *Change) { c.Title = " " }, Refuse, ReasonTitle},
		{"long title", func(c *Change) { c.Title = strings.Repeat("é", MaxTitleRunes+1) }, Refuse, ReasonTitle},
		{"long body", func(c *Change) { c.Body = strings.Repeat("é", MaxBodyRunes+1) }, Refuse, ReasonBody},
		{"large patch", func(c *Change) { c.Patch = make([]byte, 4<<20+1) }, Refuse, ReasonPatchSize},
		{"cut patch", func(c *Change) { c.PatchTruncated = true }, Refuse, ReasonIncomplete},
		{"too many files", func(c *Change) {
			for i := range 301 {
				c.Files = append(c.Files, FileChange{Path: fmt.Sprint("f", i), Status: "M", OldMode: modeFile, Mode: modeFile})
			}
		}, Refuse, ReasonFileCount},
		{"workflow", added(".github/workflows/ci.yml"), Refuse, ReasonProtected},
		{"workflow in other case", added(".GitHub/Workflows/ci.yml"), Refuse, ReasonProtected},
		{"workflow with an invisible letter", added(".github\u200b/workflows/ci.yml"), Refuse, ReasonPath},
		{"workflow with a letter that another case has", added(".github/wor\u212aflows/ci.yml"), Refuse, ReasonProtected}, // the sign of Kelvin
		{"instructions with a letter that another case has", added("AGENT\u017f.md"), Refuse, ReasonProtected},            // the long s
		{"instructions with a joiner", added("AGENTS\u200d.md"), Refuse, ReasonProtected},
		{"instructions with a selector", added("AGENTS\ufe0f.md"), Refuse, ReasonProtected},
		{"instructions as Windows reads it", added("docs/AGENTS.md. ."), Refuse, ReasonProtected},
		{"instructions as a stream", added("docs/CLAUDE.md::$DATA"), Refuse, ReasonProtected},
		{"instructions by their short name", added("docs/COPILO~1.MD"), Refuse, ReasonPath},
		{"workflow in a folder as Windows reads it", added(".github /workflows./ci.yml"), Refuse, ReasonProtected},
		{"workflow deleted", file(FileChange{Path: ".github/workflows/ci.yml", Status: "D", OldMode: modeFile, Mode: modeNone}), Refuse, ReasonProtected},
		{"workflow renamed away", file(FileChange{Path: "x.yml", OldPath: ".github/workflows/ci.yml", Status: "R", OldMode: modeFile, Mode: modeFile}), Refuse, ReasonProtected},
		{"workflow renamed in", file(FileChange{OldPath: "x.yml", Path: ".github/workflows/ci.yml", Status: "R", OldMode: modeFile, Mode: modeFile}), Refuse, ReasonProtected},
		{"owners anywhere", added("docs/CODEOWNERS"), Refuse, ReasonProtected},
		{"agent instructions anywhere", added("pkg/AGENTS.md"), Refuse, ReasonProtected},
		{"agent folder in a folder", added("pkg/.claude/settings.json"), Refuse, ReasonProtected},
		{"our own narrowing file", added(".sbxpair.yaml"), Refuse, ReasonProtected},
		{"git attributes", added("a/.gitattributes"), Refuse, ReasonProtected},
		{"dot folder", added(".vscode/settings.json"), Refuse, ReasonProtected},
		{"dot folder in a folder", added("a/.vscode/settings.json"), Allow, ""},
		{"dot file", added(".editorconfig"), Allow, ""},
		{"lock file", added("web/package-lock.json"), Ask, ReasonProtected},
		{"becomes executable", file(FileChange{Path: "x.sh", Status: "M", OldMode: modeFile, Mode: modeExecutable}), Ask, ReasonExecutable},
		{"was executable", file(FileChange{Path: "x.sh", Status: "M", OldMode: modeExecutable, Mode: modeExecutable}), Allow, ""},
		{"new executable", file(FileChange{Path: "x.sh", Status: "A", OldMode: modeNone, Mode: modeExecutable}), Ask, ReasonExecutable},
		{"symbolic link", file(FileChange{Path: "x", Status: "A", OldMode: modeNone, Mode: modeLink}), Refuse, ReasonLink},
		{"file becomes a link", file(FileChange{Path: "x", Status: "T", OldMode: modeFile, Mode: modeLink}), Refuse, ReasonLink},
		{"submodule", file(FileChange{Path: "x", Status: "A", OldMode: modeNone, Mode: modeSubmodule}), Refuse, ReasonSubmodule},
		{"submodule removed", file(FileChange{Path: "x", Status: "D", OldMode: modeSubmodule, Mode: modeNone}), Refuse, ReasonSubmodule},
		{"unknown mode", file(FileChange{Path: "x", Status: "A", OldMode: modeNone, Mode: "100666"}), Refuse, ReasonMode},
		{"path that climbs", added("a/../../etc/passwd"), Refuse, ReasonPath},
		{"absolute path", added("/etc/passwd"), Refuse, ReasonPath},
		{"backslash", added(`a\b`), Refuse, ReasonPath},
		{"git folder", added("a/.GIT/config"), Refuse, ReasonPath},
		{"git folder on Windows", added("git~1/config"), Refuse, ReasonPath},
		{"git folder as a stream", added(".git::$INDEX_ALLOCATION/config"), Refuse, ReasonPath},
		{"newline in a path", added("a\nb"), Refuse, ReasonPath},
		{"direction in a path", added("a\u202egpj.exe"), Refuse, ReasonPath},
		{"bad UTF-8 in a path", added("a\xff"), Refuse, ReasonPath},
		{"known secret, plain", func(c *Change) { c.Patch = patchOf("a.go", canary.Reveal()) }, Refuse, ReasonSecret},
		{"known secret, base64", func(c *Change) {
			c.Patch = patchOf("a.go", base64.StdEncoding.EncodeToString([]byte(canary.Reveal())))
		}, Refuse, ReasonSecret},
		{"known secret, hex", func(c *Change) { c.Patch = patchOf("a.go", fmt.Sprintf("%x", canary.Reveal())) }, Refuse, ReasonSecret},
		{"known secret, base64 behind something", func(c *Change) {
			c.Patch = patchOf("a.go", base64.URLEncoding.EncodeToString([]byte("x:"+canary.Reveal()+":y")))
		}, Refuse, ReasonSecret},
		{"known secret, base64 over lines", func(c *Change) {
			text := base64.StdEncoding.EncodeToString([]byte(canary.Reveal()))
			c.Patch = fmt.Appendf(nil, "diff --git a/a b/a\n--- /dev/null\n+++ b/a\n@@ -0,0 +1,2 @@\n+%s\n+%s\n", text[:20], text[20:])
		}, Refuse, ReasonSecret},
		{"known secret, put together in code", func(c *Change) {
			c.Patch = patchOf("a.go", `k := "`+canary.Reveal()[:15]+`" + "`+canary.Reveal()[15:]+`"`)
		}, Refuse, ReasonSecret},
		{"known secret, removed line", func(c *Change) {
			c.Patch = []byte("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,1 +0,0 @@\n-" + canary.Reveal() + "\n")
		}, Refuse, ReasonSecret},
		{"shaped secret, added", func(c *Change) { c.Patch = patchOf("a.go", "AKIAABCDEFGHIJKLMNOP") }, Refuse, ReasonSecret},
		{"shaped secret, already there", func(c *Change) {
			c.Patch = []byte("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n AKIAABCDEFGHIJKLMNOP\n-x\n+y\n")
		}, Allow, ""},
		{"content that looks like a header", func(c *Change) {
			c.Patch = []byte("diff --git a/a b/a\n--- a/a\n+++ b/a\n@@ -0,0 +1,2 @@\n+++ b/x\n+AKIAABCDEFGHIJKLMNOP\n")
		}, Refuse, ReasonSecret},
		{"secret in a title", func(c *Change) { c.Title = canary.Reveal() }, Refuse, ReasonSecret},
		{"secret in a body", func(c *Change) { c.Body = "x ghp_0123456789abcdefABCDEF0123456789abcd" }, Refuse, ReasonSecret},
		{"secret in a file's name", added("x/" + canary.Reveal()), Refuse, ReasonSecret},
	} {
		page += fmt.Sprintf("| %s | %s | %s |\n", tt.name, tt.want, tt.code)
		t.Run(tt.name, func(t *testing.T) {
			b := DefaultBounds(repoApp, "main")
			b.Secrets = []secrets.Value{canary}
			c := okChange()
			tt.change(&c)
			v := Check(b, c)
			has := slices.ContainsFunc(v.Reasons, func(r Reason) bool { return r.Code == tt.code })
			if v.Decision != tt.want || tt.code != "" && !has || tt.code == "" && len(v.Reasons) != 0 {
				t.Errorf("verdict %+v, want %s for %s", v, tt.want, tt.code)
			}
			if err := v.Err(); (err == nil) != (tt.want == Allow) || err != nil && (!errors.Is(err, ErrRefused) || strings.Contains(err.Error(), canary.Reveal())) {
				t.Errorf("error %v", err)
			}
		})
	}
	pageSection(t, "gate.md", "changes", page)
	page = "| paths | patterns | policy |\n| --- | --- | --- |\n"
	for _, group := range DefaultProtection() {
		page += fmt.Sprintf("| %s | `%s` | %s |\n", group.Name, strings.Join(group.Patterns, "` `"), group.Policy)
	}
	pageSection(t, "gate.md", "protected", page)
}

func TestGatePolicies(t *testing.T) {
	b := DefaultBounds(repoApp, "main")
	c := okChange()
	c.Files = []FileChange{{Path: "go.sum", Status: "M", OldMode: modeFile, Mode: modeFile}}
	for p, want := range map[Policy]Decision{PolicyAllow: Allow, PolicyAsk: Ask, PolicyBlock: Refuse, "": Refuse, "allowed": Refuse} {
		for i := range b.Protected {
			if b.Protected[i].Name == "lock files" {
				b.Protected[i].Policy = p
			}
		}
		if v := Check(b, c); v.Decision != want {
			t.Errorf("policy %q: %s, want %s", p, v.Decision, want)
		}
	}
	ask := DefaultBounds(repoApp, "main")
	c.Files = append(c.Files, FileChange{Path: "x.sh", Status: "A", OldMode: modeNone, Mode: modeExecutable})
	asked := Check(ask, c)
	ask.Approved = asked.Reasons[:1]
	if v := Check(ask, c); asked.Decision != Ask || v.Decision != Ask || len(v.Reasons) != 1 {
		t.Errorf("one of two approved: %+v", v)
	}
	ask.Approved = asked.Reasons
	if v := Check(ask, c); v.Decision != Allow {
		t.Errorf("all approved: %+v", v)
	}
	c.Files = append(c.Files, FileChange{Path: "l", Status: "A", OldMode: modeNone, Mode: modeLink})
	ask.Approved = Check(ask, c).Reasons
	if v := Check(ask, c); v.Decision != Refuse {
		t.Errorf("a refusal approved away: %+v", v)
	}
	b.AllowedPaths = []string{"docs/"}
	if v := Check(b, okChange()); v.Decision != Refuse || v.Reasons[0].Code != ReasonAllowlist {
		t.Errorf("outside an exclusive list: %+v", v)
	}
	b.AllowedPaths = []string{}
	if v := Check(b, okChange()); v.Decision != Refuse {
		t.Errorf("an empty list allows: %+v", v)
	}
	if v := (Verdict{}); v.Err() == nil {
		t.Error("the zero verdict allows")
	}
	if v := Check(Bounds{}, okChange()); v.Decision != Refuse {
		t.Error("the zero bounds allow")
	}
}

// TestGateFolderAsLink: what is protected is that in place of which a link or a submodule would stand, too, where those are allowed.
func TestGateFolderAsLink(t *testing.T) {
	b := DefaultBounds(repoApp, "main")
	b.Links, b.Submodules = PolicyAllow, PolicyAllow
	for _, mode := range []string{modeLink, modeSubmodule} {
		for path, want := range map[string]Decision{".github": Refuse, ".cursor": Refuse, "a/.claude": Refuse, ".github/workflows": Refuse, "AGENTS.md": Refuse, "docs": Allow} {
			c := okChange()
			c.Files = []FileChange{{Path: path, Status: "A", OldMode: modeNone, Mode: mode}}
			if v := Check(b, c); v.Decision != want {
				t.Errorf("%s as %s: %+v, want %s", path, mode, v, want)
			}
		}
	}
}

func TestParseRawDiff(t *testing.T) {
	a, z := strings.Repeat("a", 40), strings.Repeat("0", 40)
	good := ":100644 100644 " + a + " " + a + " M\x00x\x00:000000 120000 " + z + " " + a + " A\x00l\x00:100644 100755 " + a + " " + a + " R095\x00old name\x00new\x00"
	files, err := ParseRawDiff([]byte(good))
	want := []FileChange{{"x", "", "M", modeFile, modeFile}, {"l", "", "A", modeNone, modeLink}, {"new", "old name", "R", modeFile, modeExecutable}}
	if err != nil || !slices.Equal(files, want) {
		t.Errorf("%+v %v", files, err)
	}
	for _, bad := range []string{good[:len(good)-1], ":100644 100644 " + a + " " + a + " R\x00x\x00", "x\x00", ":1 2 3 4 M\x00x\x00", ":100644 100644 " + a + " " + a + " U\x00x\x00", ":100644 100644 " + a + " " + a + " M\x00\x00"} {
		if files, err := ParseRawDiff([]byte(bad)); err == nil {
			t.Errorf("%q gives %+v", bad, files)
		}
	}
	if files, err := ParseRawDiff(nil); err != nil || len(files) != 0 {
		t.Errorf("nothing: %v %v", files, err)
	}
}
