package sbx

import (
	"fmt"
	"strings"
	"testing"
)

// TestTable has the shapes that tables come in. A cell is written id=text; rows are separated by " / ".
func TestTable(t *testing.T) {
	long := strings.Repeat("n", 60)
	for name, tt := range map[string]struct {
		text, want string
	}{
		"blank column": {"SANDBOX  AGENT  STATUS  PORTS  WORKSPACE\nbox      shell  stopped        /w\n", "name=box agent=shell status=stopped workspace=/w"},
		"old header":   {"NAME  AGENT  STATUS   WORKSPACE\nbox   shell  stopped  /w\n", "name=box agent=shell status=stopped workspace=/w"},
		"overflow": {
			"SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\nbox-six   shell   running           /w\n" + long + "   shell   running           /x\n",
			"name=box-six agent=shell status=running workspace=/w / name=" + long + " agent=shell status=running workspace=/x",
		},
		"overflow, one space": {
			"SANDBOX   AGENT   STATUS    WORKSPACE\n" + long + " shell   running   /x\n",
			"name=" + long + " agent=shell status=running workspace=/x",
		},
		"overflow, all columns": {
			"SANDBOX  AGENT  STATUS  PORTS  WORKSPACE\n" + long + "  shell  running  127.0.0.1:1->2/tcp, 127.0.0.1:3->4/tcp  /x\n",
			"name=" + long + " agent=shell status=running ports=127.0.0.1:1->2/tcp, 127.0.0.1:3->4/tcp workspace=/x",
		},
		"indented":        {"  SANDBOX   STATUS\n  box       running\n", "name=box status=running"},
		"unknown column":  {"SANDBOX   NEW THING   STATUS\nbox       x y         running\n", "name=box status=running NEW THING=x y"},
		"wide characters": {"SANDBOX   STATUS    WORKSPACE\nbox       running   /日本/a\nbox2      stopped   /b\n", "name=box status=running workspace=/日本/a / name=box2 status=stopped workspace=/b"},
		"padded by width": {"SANDBOX   STATUS    PORTS   WORKSPACE\nbox       日本      x       /a\n", "name=box status=日本 ports=x workspace=/a"},
		"tabs":            {"SANDBOX\tSTATUS\nbox\trunning\n", "name=box status=running"},
		"prose around":    {"hello there\n\nSANDBOX   STATUS    PORTS\nbox       running\n\nNote: something else to tell\n", "name=box status=running"},
		"two tables":      {"SANDBOX   STATUS\na         running\n\nNAME   STATUS\nb      stopped\n", "name=a status=running / name=b status=stopped"},
		"header only":     {"SANDBOX   STATUS\n", ""},
		"no table":        {"No sandboxes found.\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			tables, _, err := parseTables(clean([]byte(tt.text)), sandboxTable())
			if err != nil {
				t.Fatal(err)
			}
			var rows []string
			for _, table := range tables {
				for _, row := range table.rows {
					var cells []string
					for _, id := range append([]string{"name", "agent", "status", "ports", "workspace"}, "NEW THING") {
						if row.text(id) != "" {
							cells = append(cells, id+"="+row.text(id))
						}
					}
					rows = append(rows, strings.Join(cells, " "))
				}
			}
			if got := strings.Join(rows, " / "); got != tt.want {
				t.Errorf("\ngot  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// TestTableRefuses: what does not fit is an error, not a guess.
func TestTableRefuses(t *testing.T) {
	for name, text := range map[string]string{
		"nothing under status":      "SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\nbox       shell                     /w\n",
		"between two columns":       "SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\nbox          shell     running   /w\n",
		"more cells than columns":   "SANDBOX   STATUS\nbox       running   x   y   z\n",
		"a name that is a flag":     "SANDBOX   STATUS\n--all     running\n",
		"a name with a path":        "SANDBOX   STATUS\n../x      running\n",
		"only a continuation":       "SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\n                                    /w\n",
		"a port that is none":       "SANDBOX   STATUS    PORTS\nbox       running   everything\n",
		"no header, no known words": "box   shell   running\n",
		"nothing":                   "",
	} {
		if list, err := ParseSandboxes([]byte(text)); err == nil {
			t.Errorf("%s: %+v, want an error", name, list)
		}
	}
}

func manyRows(n int) []byte {
	var b strings.Builder
	b.WriteString("SANDBOX            AGENT    STATUS    PORTS                        WORKSPACE\n")
	for i := range n {
		ports := ""
		if i%3 == 0 {
			ports = fmt.Sprintf("127.0.0.1:%05d->8080/tcp4", 10000+i%50000)
		}
		fmt.Fprintf(&b, "demo-agent-%05d   claude   running   %-26s   /home/dev/project-%d\n", i, ports, i)
	}
	return []byte(b.String())
}

func manyItems(n int) []byte {
	var s strings.Builder
	s.WriteString(`{"sandboxes":[`)
	for i := range n {
		if i > 0 {
			s.WriteString(",")
		}
		fmt.Fprintf(&s, `{"name":"demo-agent-%05d","id":"3b1f6c1e-6f0a-4f0e-9a51-0d5f7c1a2b01","agent":"shell","status":"running","created_at":"2026-10-08T09:12:44Z","workspaces":["/home/dev/project"]}`, i)
	}
	s.WriteString("]}\n")
	return []byte(s.String())
}

// BenchmarkParseSandboxesText parses 10,000 rows.
func BenchmarkParseSandboxesText(b *testing.B) {
	out := manyRows(10_000)
	b.SetBytes(int64(len(out)))
	b.ReportAllocs()
	for b.Loop() {
		list, err := ParseSandboxes(out)
		if err != nil || len(list) != 10_000 {
			b.Fatal(len(list), err)
		}
	}
}

// BenchmarkParseSandboxesJSON parses 10,000 items.
func BenchmarkParseSandboxesJSON(b *testing.B) {
	out := manyItems(10_000)
	b.SetBytes(int64(len(out)))
	for b.Loop() {
		if list, err := ParseSandboxes(out); err != nil || len(list) != 10_000 {
			b.Fatal(len(list), err)
		}
	}
}

// TestTableLinear counts work, not time: ten times the rows must not cost more than ten times the allocations, also for
// rows that only the fall-backs fit, and a hostile header must not multiply the work.
func TestTableLinear(t *testing.T) {
	shifted := func(n int) []byte {
		return []byte("SANDBOX   AGENT   STATUS    PORTS   WORKSPACE\n" + strings.Repeat(strings.Repeat("n", 60)+"   shell   running           /x\n", n))
	}
	for name, make := range map[string]func(int) []byte{"aligned": manyRows, "shifted": shifted, "json": manyItems} {
		cost := func(n int) float64 {
			out := make(n)
			return testing.AllocsPerRun(2, func() {
				if list, err := ParseSandboxes(out); err != nil || len(list) != n {
					t.Fatal(len(list), err)
				}
			})
		}
		if small, large := cost(200), cost(2000); large > 11*small {
			t.Errorf("%s: 200 rows cost %.0f allocations, 2000 cost %.0f", name, small, large)
		}
	}
	wide := []byte(strings.Repeat("SANDBOX   STATUS   ", 20_000) + "\n" + strings.Repeat("a   ", 20_000) + "\n")
	if _, err := ParseSandboxes(wide); err == nil {
		t.Error("a header of 40,000 columns was taken")
	}
}
