package sbxpair_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reportIDs are the numbers of the field reports, as ranges; there are 170.
const reportIDs = `1-11 18 20-22 25-37 39 44 47-64 75-77 79-89 92 95 98 100-101 103-116 120 124 126 128 130-137 141 143
	145-153 157 161-162 164-177 186-189 191-204 206 211 213 217-226 228 234-235 237-242 247-253 258-259`

func wantedReports(t *testing.T) (ids []string) {
	t.Helper()
	for part := range strings.FieldsSeq(reportIDs) {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err := strconv.Atoi(first)
		if err != nil {
			t.Fatal(err)
		}
		to, err := strconv.Atoi(last)
		if err != nil {
			t.Fatal(err)
		}
		for n := from; n <= to; n++ {
			ids = append(ids, "R"+strconv.Itoa(1000 + n)[1:])
		}
	}
	return ids
}

// testIndex has what the tests of a folder are called: by function, the texts in it, and of those the names of subtests.
type testIndex map[string]map[string]testFunc

type testFunc struct{ texts, subtests []string }

func indexTests(t *testing.T) testIndex {
	t.Helper()
	index := testIndex{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != "." && (strings.HasPrefix(entry.Name(), ".") || entry.Name() == "testdata" || entry.Name() == "bin"):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		dir := filepath.ToSlash(filepath.Dir(path))
		if index[dir] == nil {
			index[dir] = map[string]testFunc{}
		}
		for _, decl := range file.Decls {
			if fn, is := decl.(*ast.FuncDecl); is && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") {
				index[dir][fn.Name.Name] = textsOf(fn)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func textsOf(fn *ast.FuncDecl) (f testFunc) {
	text := func(e ast.Expr) (string, bool) {
		lit, is := e.(*ast.BasicLit)
		if !is || lit.Kind != token.STRING {
			return "", false
		}
		s, err := strconv.Unquote(lit.Value)
		return s, err == nil
	}
	ast.Inspect(fn, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BasicLit:
			if s, is := text(n); is {
				f.texts = append(f.texts, s)
			}
		case *ast.CallExpr:
			if sel, is := n.Fun.(*ast.SelectorExpr); is && sel.Sel.Name == "Run" && len(n.Args) == 2 {
				if s, is := text(n.Args[0]); is {
					f.subtests = append(f.subtests, s)
				}
			}
		}
		return true
	})
	return f
}

var reportID = regexp.MustCompile(`\bR\d{3}\b`)

// check reports what is wrong with a test as the pages write it: folder, function and, after a slash, the subtest. A
// number has to be in the name of a subtest; another name may come from a table.
func (index testIndex) check(ref string) string {
	dir, name, _ := strings.Cut(ref, " ")
	name, sub, hasSub := strings.Cut(name, "/")
	fn, found := index[dir][name]
	switch {
	case !found:
		return "no such test"
	case !hasSub:
		return ""
	case reportID.MatchString(sub):
		if !slices.ContainsFunc(fn.subtests, func(s string) bool { return slices.Contains(reportID.FindAllString(s, -1), sub) }) {
			return "no subtest with this number"
		}
	case !slices.Contains(fn.texts, sub):
		return "no such subtest"
	}
	return ""
}

var testRef = regexp.MustCompile("`([a-z][a-z0-9/-]* Test[^`]*)`")

// pageRows gives the cells of the rows of a page's tables whose first cell matches, with the heading above them.
func pageRows(t *testing.T, page string, first *regexp.Regexp) (rows [][]string) {
	t.Helper()
	data, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	heading := ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSpace(line)
		if title, is := strings.CutPrefix(line, "## "); is {
			heading = title
		}
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if strings.HasPrefix(line, "|") && first.MatchString(cells[0]) {
			rows = append(rows, append([]string{heading}, cells...))
		}
	}
	return rows
}

// TestFieldReportsPage: every report is on the page once, and every test that it names exists.
func TestFieldReportsPage(t *testing.T) {
	const page = "docs/field-reports.md"
	index := indexTests(t)
	count, kinds := map[string]int{}, map[string]int{}
	for _, row := range pageRows(t, page, regexp.MustCompile(`^R\d{3}$`)) {
		heading, id, last := row[0], row[1], row[len(row)-1]
		count[id]++
		if len(row) < 4 || row[2] == "" {
			t.Errorf("%s: no words", id)
		}
		switch heading {
		case "Cannot apply":
			kinds["cannot apply"]++
			if len(row) != 5 || len(last) < 20 {
				t.Errorf("%s: no reason", id)
			}
			continue
		case "Not covered yet":
			kinds["not covered yet"]++
			continue
		}
		refs := testRef.FindAllStringSubmatch(last, -1)
		if len(refs) == 0 {
			t.Errorf("%s: no test", id)
		}
		numbered := false
		for _, ref := range refs {
			if wrong := index.check(ref[1]); wrong != "" {
				t.Errorf("%s: %s: %s", id, ref[1], wrong)
			}
			named := reportID.FindString(ref[1])
			numbered = numbered || named == id
			if named != "" && named != id {
				t.Errorf("%s: %s is of another report", id, ref[1])
			}
		}
		if numbered {
			kinds["a test that has the number in its name"]++
		} else {
			kinds["a test of another name"]++
		}
	}
	want := wantedReports(t)
	if len(want) != 170 {
		t.Fatalf("%d numbers, want 170", len(want))
	}
	for _, id := range want {
		if count[id] != 1 {
			t.Errorf("%s is on the page %d times", id, count[id])
		}
		delete(count, id)
	}
	for id := range count {
		t.Errorf("%s is no report", id)
	}
	for _, row := range pageRows(t, page, regexp.MustCompile(`^(a test|cannot|not covered)`)) {
		if got := strconv.Itoa(kinds[row[1]]); row[2] != got {
			t.Errorf("%s: the page says %s, it has %s", row[1], row[2], got)
		}
	}
}

// TestTrapsPage: every trap of sbx is on the page, with a test that exists or a reason.
func TestTrapsPage(t *testing.T) {
	index := indexTests(t)
	rows := pageRows(t, "docs/reference/sbx-traps.md", regexp.MustCompile(`^\d+$`))
	if len(rows) != 62 {
		t.Errorf("%d traps, want 62", len(rows))
	}
	for i, row := range rows {
		if row[1] != strconv.Itoa(i+1) {
			t.Errorf("trap %s stands where %d should", row[1], i+1)
		}
		last := row[len(row)-1]
		refs := testRef.FindAllStringSubmatch(last, -1)
		if len(row) != 4 || len(refs) == 0 && len(last) < 20 {
			t.Errorf("trap %s: neither a test nor a reason", row[1])
		}
		for _, ref := range refs {
			if wrong := index.check(ref[1]); wrong != "" {
				t.Errorf("trap %s: %s: %s", row[1], ref[1], wrong)
			}
		}
	}
}
