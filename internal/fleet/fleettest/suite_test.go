package fleettest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"reflect"
	"testing"

	"github.com/dozehq/doze/internal/fleet"
)

// TestSuiteIsComplete: each method of a node is called by a case.
func TestSuiteIsComplete(t *testing.T) {
	t.Parallel()
	called := map[string]bool{}
	for _, name := range []string{"suite.go", "builds.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if method, ok := call.Fun.(*ast.SelectorExpr); ok {
				if of, ok := method.X.(*ast.Ident); ok && of.Name == "b" {
					called[method.Sel.Name] = true
				}
			}
			return true
		})
	}
	for m := range reflect.TypeFor[fleet.Node]().Methods() {
		if !called[m.Name] {
			t.Errorf("no case calls %s", m.Name)
		}
	}
}
