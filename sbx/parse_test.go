package sbx_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sbxpair/sbxpair/sbx"
)

// TestProseAroundJSON: what people are told does not hide what is meant for us, and does not pass for it.
func TestProseAroundJSON(t *testing.T) {
	one := `{"sandboxes":[{"name":"box","status":"running"}]}` + "\n"
	pretty := "{\n  \"sandboxes\": [\n    {\"name\": \"box\", \"status\": \"running\"}\n  ]\n}\n"
	for name, text := range map[string]string{
		"prose nobody has seen":        "Willkommen! Der Dienst wird gestartet (bitte warten) ...\n" + one,
		"prose, then indented":         "Preparing the daemon\n\n" + pretty,
		"job line of a shell":          "[1] 4242\n" + one,
		"job line, then indented":      "[1] 4242\n" + pretty,
		"many lines of a log":          strings.Repeat("[WARN] something\n{note} else\n", 40) + one,
		"a log line that is JSON":      `{"level":"warn","msg":"slow"}` + "\n" + one,
		"a list of numbers":            "[1, 2]\n" + one,
		"an object that breaks off":    "{\n  \"sandboxes\n" + one,
		"a progress line in between":   "\x1b[2K\rpulling 10%\n" + one,
		"notice behind, boxed":         one + "\n╭────╮\n│ Docker Sandboxes Update Available │\n╰────╯\nrun: brew upgrade sbx\n",
		"warning behind":               one + "WARN: failed to refresh token\n",
		"prose before, notice behind":  "hello\n" + one + "A new version is available\n",
		"a document with white spaces": "\n\n   " + one + "   \n",
	} {
		t.Run(name, func(t *testing.T) {
			list, err := sbx.ParseSandboxes([]byte(text))
			if err != nil || len(list) != 1 || list[0].Name != "box" {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
	for name, text := range map[string]string{
		"a job line only":          "[1] 4242\n",
		"two documents":            one + `{"sandboxes":[]}` + "\n",
		"two, a notice in between": one + "Update available\n" + one,
		"an error behind":          one + "ERROR: list runtimes: the list is not complete\n",
		"something behind":         one + "and so on\n",
		"a bracket too many":       strings.TrimSpace(one) + "}\n",
		"a name twice":             `{"sandboxes":[{"name":"box","name":"other","status":"running"}]}`,
		"a name twice, escaped":    `{"sandboxes":[{"name":"box","n\u0061me":"other","status":"running"}]}`,
		"a name twice, other case": `{"sandboxes":[{"name":"box","NAME":"other","status":"running"}]}`,
		"the list twice":           `{"sandboxes":[],"sandboxes":[{"name":"box","status":"running"}]}`,
		"cut off":                  strings.TrimSpace(one)[:30],
	} {
		t.Run(name, func(t *testing.T) {
			list, err := sbx.ParseSandboxes([]byte(text))
			if list != nil || !errors.Is(err, sbx.ErrMalformed) {
				t.Errorf("%v, %v", list, err)
			}
		})
	}
}

// TestGarbageIsNoRow: in every layout, what reads as a flag, or is no word, makes the listing malformed.
func TestGarbageIsNoRow(t *testing.T) {
	lastGood := ""
	for _, tt := range []struct{ parser, good, from, to string }{
		{"sandboxes", `{"sandboxes":[{"name":"box","id":"7f","agent":"shell","status":"running","workspaces":["/w"],"ports":[{"host_ip":"127.0.0.1","host_port":1,"sandbox_port":2,"protocol":"tcp"}]}]}`, `"7f"`, `"--all"`},
		{"sandboxes", "", `"7f"`, `"a b"`},
		{"sandboxes", "", `"shell"`, `"--yes"`},
		{"sandboxes", "", `"/w"`, `"-x"`},
		{"sandboxes", "", `"/w"`, `"/w\n/x"`},
		{"sandboxes", "", `"127.0.0.1"`, `"everywhere"`},
		{"sandboxes", "", `"host_port":1`, `"host_port":-1`},
		{"sandboxes", "", `"protocol":"tcp"`, `"protocol":"-tcp"`},
		{"ports", `[{"host_ip":"127.0.0.1","host_port":1,"sandbox_port":2,"protocol":"tcp"}]`, `127.0.0.1`, `--all`},
		{"ports", "", `"host_port":1`, `"host_port":70000`},
		{"ports", "", `"sandbox_port":2`, `"sandbox_port":0`},
		{"ports", "", `"tcp"`, `"--tcp"`},
		{"ports", "", `[{`, `[7,{`},
		{"rules", `{"rules":[{"id":"r1","name":"n","scope":"global","resource_type":"network","decision":"allow","resources":["a.example"],"origin":"local"}]}`, `"r1"`, `"--all"`},
		{"rules", "", `"r1"`, `""`},
		{"rules", "", `"n"`, `"-n"`},
		{"rules", "", `"a.example"`, `"-a.example"`},
		{"rules", "", `"a.example"`, `"a.example b.example"`},
		{"rules", "", `"a.example"`, `""`},
		{"rules", "", `"network"`, `"-network"`},
		{"rules", "", `"local"`, `"lo\u001bcal"`},
		{"rules", "PROVENANCE  APPLIES_TO  POLICY/RULE      TYPE     DECISION  RESOURCES\nlocal       all         local:r1         network  allow     a.example\n", "local:r1", "--force "},
		{"rules", "", "a.example", "--json   "},
		{"rule", `{"id":"r1","resource_type":"network","decision":"allow","resources":["a.example"]}`, `"r1"`, `"-r"`},
		{"verdict", `{"allowed":true,"target":"a.example"}`, `a.example`, `--json`},
		{"verdict", "Allowed: a.example:443\n", "a.example:443", "--all"},
		{"log", `{"blocked_hosts":[{"host":"a.example:443","vm_name":"box","proxy_type":"forward","count_since":1}],"allowed_hosts":[]}`, `a.example:443`, `--all`},
		{"log", "", `"a.example:443"`, `"a b"`},
		{"log", "", `"box"`, `"--box"`},
		{"log", "", `"count_since":1`, `"count_since":-1`},
		{"log", "", `"forward"`, `"-x"`},
		{"log", "Blocked requests:\nSANDBOX  TYPE     HOST           PROXY    RULE  REASON  LAST SEEN        COUNT\nbox      network  a.example:443  forward  -     -       10:15:25 29-Jan  1\n", "box", "-bx"},
		{"log", "", "a.example:443", "--example:443"},
		{"secrets", `{"secrets":[{"scope":"global","type":"service","name":"github"}],"custom_secrets":[{"scope":"global","targets":["a.example"],"env":"K","placeholder":"sbx-cs-1"}]}`, `"github"`, `"--all"`},
		{"secrets", "", `"github"`, `"git hub"`},
		{"secrets", "", `"a.example"`, `"-a"`},
		{"secrets", "", `"K"`, `"-K"`},
		{"secrets", "", `"sbx-cs-1"`, `"-sbx"`},
		{"templates", `{"images":[{"id":"0123456789ab","repository":"demo","tag":"v1"}]}`, `"v1"`, `"--all"`},
		{"templates", "", `"0123456789ab"`, `"-f"`},
		{"templates", "", `"demo"`, `"-f"`},
		{"templates", "REPOSITORY  TAG  IMAGE ID      FLAVOR  CREATED\ndemo        v1   0123456789ab  -       now\n", "v1", "-f"},
		{"templates", "", "0123456789ab", "--force     "},
		{"settings", `[{"key":"a.b","value":1,"type":"int","source":"default","env_var":"X"}]`, `"a.b"`, `"--a"`},
		{"settings", "", `"int"`, `"-int"`},
		{"inspection", `{"name":"box","state":"running","image_digest":"sha256:0","secrets":[{"name":"github","source":"x"}],"sessions":1}`, `"github"`, `"--all"`},
		{"inspection", "", `"sessions":1`, `"sessions":-1`},
		{"inspection", "Name: box\nState: running\nSessions: 1\n", "Sessions: 1", "Sessions: some"},
		{"inspection", "", "State: running\n", ""},
		{"diagnosis", `{"checks":[{"name":"Daemon","status":"pass"}]}`, `"pass"`, `"splendid"`},
		{"daemon", `{"status":"running","socket":"/s"}`, `"running"`, `"--running"`},
		{"daemon", "", `"/s"`, `"/s\u001b[2J"`},
	} {
		if tt.good != "" {
			lastGood = tt.good
		}
		p := parsers()[tt.parser]
		if _, err := p.parse([]byte(lastGood)); err != nil {
			t.Fatalf("%s: %v", tt.parser, err)
		}
		bad := strings.Replace(lastGood, tt.from, tt.to, 1)
		if bad == lastGood {
			t.Fatalf("%s: no %s to change", tt.parser, tt.from)
		}
		if got, err := p.parse([]byte(bad)); !errors.Is(err, sbx.ErrMalformed) {
			t.Errorf("%s, %s for %s: %+v, %v", tt.parser, tt.to, tt.from, got, err)
		}
	}
	for _, names := range []string{`[{"name":"--all"}]`, `[{"name":"a b"}]`, `[{"name":""}]`} {
		for _, doc := range []string{`{"would_remove":` + names + `}`, `{"would_remove":[{"name":"box"}],"skipped_unknown_stop":` + names + `}`} {
			c := sbx.New("", v47(), canned{"prune --dry-run": says(doc, "", 0)}.runner(t))
			if report, err := c.Prune(t.Context(), sbx.PruneSpec{}); !errors.Is(err, sbx.ErrMalformed) {
				t.Errorf("prune, %s: %+v, %v", doc, report, err)
			}
		}
	}
}

// TestTextIsTidied: text for people loses what acts on a terminal, also where JSON hides it.
func TestTextIsTidied(t *testing.T) {
	d, err := sbx.ParseDiagnosis([]byte(`{"checks":[{"name":"Daemon","status":"fail","message":"no\u001b[2J\nway \u202egnp.exe","hint":"a\u0007b"}]}`))
	ok(t, err)
	if c := d.Checks[0]; c.Message != "no way gnp.exe" || c.Hint != "ab" {
		t.Errorf("%q %q", c.Message, c.Hint)
	}
}

// TestMalformedShows: whoever meets an output that cannot be read sees it: its start, in one line, without credentials.
func TestMalformedShows(t *testing.T) {
	token := "ghp_" + strings.Repeat("0123456789", 4)[:36]
	for text, want := range map[string]string{
		"Etwas ganz Neues\nzweite Zeile\n": "in: Etwas ganz Neues ⏎ zweite Zeile",
		"":                                 "in: (nothing)",
		"\x1b[31mred\x1b[0m\x07\n":         "in: red",
		"the token is " + token + "\n":     "in: the token is ***",
		strings.Repeat("x", 200) + " " + token + " and more\n":  strings.Repeat("x", 200) + " *** and more",
		strings.Repeat("long ", 400):                            "long long",
		`{"sandboxes":[{"name":"/` + token + `","status":""}]}`: `named "/***"`,
	} {
		_, err := sbx.New("", v47(), canned{"ls": says(text, "", 0)}.runner(t)).List(t.Context())
		bad, isMalformed := errors.AsType[*sbx.MalformedError](err)
		if !isMalformed || !errors.Is(err, sbx.ErrMalformed) || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v", text, err)
			continue
		}
		if len(err.Error()) > 600 || strings.ContainsAny(err.Error(), "\n\x1b\x07") || strings.Contains(err.Error(), "0123456789") || bad.Reason == "" {
			t.Errorf("%.60q: %q", text, err)
		}
	}
	// The engine's own masks show both ends of a value.
	_, err := sbx.ParseSecrets([]byte("SCOPE NAME\nglobal github gho_GCaw4o****...****43qy\n"))
	if err == nil || strings.Contains(err.Error(), "GCaw4o") || strings.Contains(err.Error(), "43qy") {
		t.Errorf("error %v", err)
	}
	_, err = sbx.ParseVersion([]byte("frobnicator 3000"))
	if !errors.Is(err, sbx.ErrForeignTool) || !strings.Contains(err.Error(), "frobnicator 3000") {
		t.Errorf("error %v", err)
	}
}

// TestHostileSizes: input that is made to be slow is not. Each of these would take minutes if the work grew with the square
// of the input; the limit is far above what they need.
func TestHostileSizes(t *testing.T) {
	const n, many = 5_000, 100_000
	row := func(i int) string { return fmt.Sprintf(`"k%d":1,`, i) }
	var keys strings.Builder
	for i := range 10_000 {
		keys.WriteString(row(i))
	}
	for name, text := range map[string]string{
		"opening brackets":     strings.Repeat("[\n", many),
		"opening braces":       strings.Repeat("{\n\"a\":\n", many),
		"empty lists":          strings.Repeat("[]\n", n),
		"objects of another":   strings.Repeat("{\"a\":1}\n", n),
		"objects cut off":      strings.Repeat("{\"a\":[1,2,\n", n),
		"one string":           `{"sandboxes":["` + strings.Repeat("x", n) + "\n" + strings.Repeat("{\"\n", n),
		"many keys":            `{` + keys.String() + `"status":1}`,
		"spaces":               strings.Repeat(" ", many) + "x",
		"escapes":              strings.Repeat("\x1b[", many),
		"strings of a control": strings.Repeat("\x1b]", many),
		"headers":              strings.Repeat("SANDBOX   STATUS\n", n),
		"colons":               strings.Repeat("Name:", many),
		"errors":               strings.Repeat("error:\n", n),
	} {
		t.Run(name, func(t *testing.T) {
			within(t, 30*time.Second, func() {
				for _, which := range []string{"sandboxes", "ports", "inspection", "log"} { // one of each way to read
					_, _ = parsers()[which].parse([]byte(text))
				}
			})
		})
	}
}
