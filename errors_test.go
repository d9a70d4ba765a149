package doze_test

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestErrorsAreDocumented compares the table of kinds, and the names that are
// finer, with what docs/api/errors.md tells callers of the control API.
func TestErrorsAreDocumented(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("docs/api/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	statuses := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		codes := strings.Split(cells[2], ",")
		for i, name := range strings.Split(cells[1], ",") {
			statuses[strings.Trim(name, " `")] = strings.TrimSpace(codes[min(i, len(codes)-1)])
		}
	}
	for k := doze.Internal; k <= doze.TooLarge; k++ {
		if got := statuses[k.String()]; got != fmt.Sprint(k.Status()) {
			t.Errorf("%v is documented with the status %q, not %d", k, got, k.Status())
		}
	}
	names := errorNames(t)
	if len(names) == 0 {
		t.Fatal("errors.go has no names")
	}
	for _, name := range names {
		if statuses[name] == "" {
			t.Errorf("%s is not documented", name)
		}
	}
}

// errorNames are the values of the constants of errors.go. No error has another
// name: those written in place would be missed.
func errorNames(t *testing.T) (names []string) {
	t.Helper()
	for file, f := range sources(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if file == "errors.go" && strings.HasPrefix(n.Names[0].Name, "Name") {
					names = append(names, strings.Trim(n.Values[0].(*ast.BasicLit).Value, `"`))
				}
			case *ast.CompositeLit:
				if !strings.HasSuffix(file, "_test.go") && isError(n.Type) && namedInPlace(n) {
					t.Errorf("%s has an error with a name of its own: give errors.go a constant", file)
				}
			}
			return true
		})
	}
	return names
}

// isError reports whether a type is written as that of errors.
func isError(typ ast.Expr) bool {
	if s, ok := typ.(*ast.SelectorExpr); ok {
		pkg, ok := s.X.(*ast.Ident)
		return ok && pkg.Name == module && s.Sel.Name == "Error"
	}
	return false
}

// namedInPlace reports whether a literal has a member Name that is a text.
func namedInPlace(lit *ast.CompositeLit) bool {
	for _, e := range lit.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			text, isText := kv.Value.(*ast.BasicLit)
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == "Name" && isText && text.Kind == token.STRING {
				return true
			}
		}
	}
	return false
}
