package doze_test

import (
	"go/ast"
	"go/token"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// A retired is a word that no declared name may have any more.
type retired struct {
	words []string
	use   string            // what the field calls it
	in    []string          // only these directories; none is all
	but   map[string]string // where the word may stay, a directory or a file, and why
}

// glossary is the table of words that were replaced. It holds for names that Go
// files declare, and for the names of the files.
var glossary = []retired{
	{words: []string{"wreck", "wrecks"}, use: "teardown"},
	{words: []string{"door", "doors", "keeper", "keepers"}, use: "handover, holder"},
	{words: []string{"mend", "mends", "mended"}, use: "reconcile, or fix"},
	{words: []string{"turns"}, use: "keylock"},
	{words: []string{"agenda"}, use: "scheduler"},
	{words: []string{"alarm", "alarms"}, use: "deadline"},
	{words: []string{"flip", "flips", "flipped", "flipping"}, use: "pause, resume"},
	{words: []string{"feed", "feeds"}, use: "events", in: []string{"internal/machine"}},
	{words: []string{"stray", "strays"}, use: "closefds, or orphan"},
	{words: []string{"pace", "paces", "paced"}, use: "ratelimit"},
	{words: []string{"pulse"}, use: "idletimer"},
	{words: []string{"lull"}, use: "trim"},
	{words: []string{"fleeting", "tie", "tied", "ties"}, use: "checkpoint blockers"},
	{words: []string{"lane", "lanes", "way", "ways"}, use: "egress mode: closed, proxied, direct"},
	{words: []string{"promise", "promises", "promised"}, use: "reserve"},
	{words: []string{"vacant"}, use: "freeport"},
	{words: []string{"zone", "zones"}, use: "dnstest", but: map[string]string{
		"internal/testkit/dnstest": "a zone of the DNS",
		"internal/certificate":     "has such a zone in its tests",
		"test":                     "likewise",
	}},
	{words: []string{"spare", "spares"}, use: "warm pool", but: map[string]string{
		"internal/node": "a spare is a machine of the warm pool",
	}},
	{words: []string{"keep", "keeps", "kept", "keeping"}, use: "a record is saved, a copy is a snapshot; only keepAlive stays"},
	{words: []string{"box", "boxes"}, use: "agent for the inside of a sandbox, cipher for a seal", but: map[string]string{
		"internal/node": "the node's sandbox",
	}},
	{words: []string{"image", "images"}, use: "checkpoint for a machine, disk for a volume", in: []string{"internal/machine", "internal/volume"}},
	{words: []string{"route", "routes"}, use: "upstream at the edge, rule for egress", in: []string{"internal/edge", "internal/egress"}, but: map[string]string{
		"internal/edge/errors.go": "the name of an error on the wire, ROUTE_NOT_FOUND",
	}},
}

// wireNames are fields whose JSON names are older than the glossary.
var wireNames = []string{"KeptAgo"}

// wordForm finds the words of a name in camel case.
var wordForm = regexp.MustCompile(`[A-Z]+[a-z]*|[a-z]+`)

// TestGlossary: each word in a name has one meaning, and it is that of the field.
func TestGlossary(t *testing.T) {
	t.Parallel()
	retiredWords := map[string][]retired{}
	for _, r := range glossary {
		for _, w := range r.words {
			retiredWords[w] = append(retiredWords[w], r)
		}
	}
	check := func(file, name string) {
		found := wordForm.FindAllString(name, -1)
		for i, w := range found {
			w = strings.ToLower(w)
			if w == "keep" && i+1 < len(found) && strings.HasPrefix(strings.ToLower(found[i+1]), "alive") {
				continue
			}
			for _, r := range retiredWords[w] {
				if r.holds(file) && !slices.Contains(wireNames, name) {
					t.Errorf("%s: %s has the word %q, which was replaced: %s", file, name, w, r.use)
				}
			}
		}
	}
	for name, f := range sources(t) {
		file := filepath.ToSlash(name)
		check(file, strings.TrimSuffix(path.Base(file), ".go"))
		for _, declared := range declaredIn(f) {
			check(file, declared)
		}
	}
}

// holds reports whether a file must do without the words.
func (r retired) holds(file string) bool {
	for at := range r.but {
		if within(file, at) {
			return false
		}
	}
	return len(r.in) == 0 || under(file, r.in)
}

// declaredIn returns the names that a file declares: its package, types, functions,
// parameters, fields, constants and variables.
func declaredIn(f *ast.File) (names []string) {
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			names = append(names, id.Name)
		}
	}
	add(f.Name)
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			add(n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(identifiers(n.Lhs...)...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(identifiers(n.Key, n.Value)...)
			}
		}
		return true
	})
	return names
}

// identifiers returns those expressions that are names.
func identifiers(all ...ast.Expr) (ids []*ast.Ident) {
	for _, e := range all {
		if id, ok := e.(*ast.Ident); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestGlossaryIsCurrent: a place that the table allows exists.
func TestGlossaryIsCurrent(t *testing.T) {
	t.Parallel()
	files := sources(t)
	for _, r := range glossary {
		for at := range r.but {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(files)), func(name string) bool { return within(filepath.ToSlash(name), at) }) {
				t.Errorf("%v: there is no %s", r.words, at)
			}
		}
	}
}
