package loop

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sbxpair/sbxpair/fixtures/page"
)

var update = flag.Bool("update", false, "write docs/reference/result.md")

// TestReferencePageIsCurrent holds that the published shape of a result is the one in the code. Rewrite it with -update.
func TestReferencePageIsCurrent(t *testing.T) {
	page.Holds(t, filepath.Join("..", "docs", "reference", "result.md"), page.All, renderResult(t), *update)
}

func renderResult(t *testing.T) string {
	t.Helper()
	types := map[string]*ast.StructType{}
	docs := map[string]string{}
	for _, name := range []string{"told.go", "receipt.go", "run.go", "record.go", "../agent/event.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok || gen.Tok != token.TYPE {
				continue
			}
			for _, spec := range gen.Specs {
				if s, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType); ok {
					types[spec.(*ast.TypeSpec).Name.Name], docs[spec.(*ast.TypeSpec).Name.Name] = s, oneText(gen.Doc.Text())
				}
			}
		}
	}
	var b strings.Builder
	b.WriteString("# The result of a run\n\nGenerated from package loop. `sbxpair result RUN --json` prints a Told; `sbxpair run --json` and `sbxpair resume --json` print its\n" +
		"part Result, and `receipt.json` in the run's folder is its part Receipt. Durations end in `_ns` and count nanoseconds. Absent fields\n" +
		"are empty. Types that are not here are events: see [events.md](events.md).\n\n" +
		"`outcome` is one of: delivered, finished (a mode that delivers nothing), staged, nothing to do, refused, failed, budget spent,\n" +
		"credential trouble, credential expired, cancelled, clean-up incomplete, up;\n" +
		"of a run without a last word: running, interrupted.\n")
	for _, name := range []string{"Told", "Receipt", "Result", "Session", "PhaseTime", "Usage", "ModelUsage"} {
		s := types[name]
		if s == nil {
			t.Fatalf("no type %s", name)
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | type | |\n| --- | --- | --- |\n", name, docs[name])
		for _, f := range s.Fields.List {
			tag := ""
			if f.Tag != nil {
				tag, _, _ = strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			}
			note := oneText(f.Doc.Text() + f.Comment.Text())
			switch {
			case len(f.Names) == 0:
				fmt.Fprintf(&b, "| | | and the fields of %s |\n", typeText(f.Type))
			case tag != "":
				fmt.Fprintf(&b, "| `%s` | %s | %s |\n", tag, typeText(f.Type), note)
			default:
				for _, n := range f.Names {
					if n.IsExported() {
						fmt.Fprintf(&b, "| `%s` | %s | %s |\n", n.Name, typeText(f.Type), note)
					}
				}
			}
		}
	}
	return b.String()
}

func oneText(s string) string { return strings.Join(strings.Fields(s), " ") }

func typeText(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		if known := map[string]string{"string": "string", "int": "number", "int64": "number", "float64": "number", "bool": "boolean"}[e.Name]; known != "" {
			return known
		}
		return e.Name
	case *ast.ArrayType:
		return "list of " + typeText(e.Elt)
	case *ast.MapType:
		return "object of " + typeText(e.Value)
	case *ast.StarExpr:
		return typeText(e.X) + " or absent"
	case *ast.SelectorExpr:
		switch e.Sel.Name {
		case "Duration":
			return "number"
		case "RunID", "Phase":
			return "string"
		case "Time":
			return "time"
		}
		return e.Sel.Name
	}
	return "?"
}
