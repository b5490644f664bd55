package events_test

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

	"github.com/sbxpair/sbxpair/events"
	"github.com/sbxpair/sbxpair/fixtures/page"
)

var update = flag.Bool("update", false, "write docs/reference/events.md")

// TestReferencePageIsCurrent holds that the published schema is the one in the code: every payload with its fields.
// Rewrite it with -update.
func TestReferencePageIsCurrent(t *testing.T) {
	page.Holds(t, filepath.Join("..", "docs", "reference", "events.md"), page.All, render(t), *update)
}

// kinds maps the name of each payload type to its event's type.
func kinds() map[string]string {
	m := map[string]string{}
	for _, p := range []events.Payload{
		events.RunStarted{}, events.Resumed{}, events.PhaseStarted{}, events.PhaseEnded{}, events.Planned{}, events.EngineCall{}, events.Proof{},
		events.AgentActed{}, events.AgentEnded{}, events.Spent{}, events.Verified{}, events.Reviewed{}, events.EndState{}, events.Gated{}, events.Tasked{}, events.Requested{}, events.Asked{}, events.Delivered{},
		events.Blocked{}, events.Granted{}, events.Revoked{}, events.Rotated{}, events.Noted{}, events.Released{}, events.RunEnded{},
	} {
		m[reflect.TypeOf(p).Name()] = p.Kind()
	}
	return m
}

func render(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "payloads.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Events\n\nGenerated from package events. A run's folder holds `events.jsonl`: one JSON object a line, written as things happen and\n" +
		"readable meanwhile. Every line has\n\n| field | meaning |\n| --- | --- |\n| `seq` | number of the line, from 1, without gaps |\n| `time` | UTC |\n" +
		"| `run` | run id |\n| `type` | one of the types below |\n| `data` | the fields of that type; credential values are masked as `***` |\n" +
		"| `prev` | SHA-256 of the line before, in hex; empty in the first |\n\n`receipt.json` beside it pins the number of lines and the hash of the last one, so that a cut or altered log shows.\n" +
		"Durations end in `_ns` and count nanoseconds.\n")
	known := kinds()
	for _, decl := range file.Decls {
		gen, ok := decl.(*ast.GenDecl)
		if !ok || gen.Tok != token.TYPE {
			continue
		}
		spec := gen.Specs[0].(*ast.TypeSpec)
		fields, ok := spec.Type.(*ast.StructType)
		if !ok {
			continue
		}
		title := "`" + known[spec.Name.Name] + "`"
		if known[spec.Name.Name] == "" {
			title = spec.Name.Name // a part of another payload
		}
		delete(known, spec.Name.Name)
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n| field | type | |\n| --- | --- | --- |\n", title, strings.TrimSpace(strings.ReplaceAll(gen.Doc.Text(), "\n", " ")))
		for _, f := range fields.Fields.List {
			name, _, _ := strings.Cut(reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json"), ",")
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", name, typeName(f.Type), strings.TrimSpace(strings.ReplaceAll(f.Doc.Text()+f.Comment.Text(), "\n", " ")))
		}
	}
	for name := range known {
		t.Errorf("payload %s is not in payloads.go", name)
	}
	return b.String()
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return map[string]string{"string": "string", "int": "number", "int64": "number", "float64": "number", "bool": "boolean", "any": "object", "Phase": "string"}[e.Name] +
			map[bool]string{true: e.Name}[e.Name == "Probe" || e.Name == "Finding" || e.Name == "Change" || e.Name == "Push"]
	case *ast.ArrayType:
		return "list of " + typeName(e.Elt)
	case *ast.StarExpr:
		return typeName(e.X) + " or absent"
	case *ast.SelectorExpr:
		return "number"
	}
	return "?"
}
