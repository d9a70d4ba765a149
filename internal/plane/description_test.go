package plane_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/api"
	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

var update = flag.Bool("update", false, "write docs/openapi.json")

// TestDescription compares what is served, to everybody, with what is
// documented.
func TestDescription(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	w := p.Do("GET", "/openapi.json", "", "Authorization", "")
	if w.Code != 200 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	var lines bytes.Buffer
	if err := json.Indent(&lines, w.Body.Bytes(), "", "  "); err != nil {
		t.Fatal(err)
	}
	const golden = "../../docs/openapi.json"
	if *update {
		if err := os.WriteFile(golden, lines.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	documented, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(string(documented), "\n"), strings.Split(lines.String(), "\n")); diff != "" {
		t.Errorf("docs/openapi.json differs (run make gen and read what changed):\n%s", diff)
	}
}

// TestDescriptionIsComplete is made from the route table, so that a new route
// cannot be forgotten.
func TestDescriptionIsComplete(t *testing.T) {
	t.Parallel()
	d := plane.Describe().Description()
	ids, summaries, groups := map[string]string{}, map[string]string{}, map[string]bool{}
	for _, rt := range plane.Describe().Routes() {
		o := d.Paths[rt.Pattern][strings.ToLower(rt.Method)]
		where := rt.Method + " " + rt.Pattern
		if o == nil {
			t.Errorf("%s is not described", where)
			continue
		}
		if other := ids[o.ID]; other != "" {
			t.Errorf("%s and %s are both %s", where, other, o.ID)
		}
		ids[o.ID] = where
		if problem := saysWhat(o); problem != "" {
			t.Errorf("%s: %s", where, problem)
		}
		if other := summaries[o.Summary]; other != "" {
			t.Errorf("%s and %s both say %q: readers find calls by it", where, other, o.Summary)
		}
		summaries[o.Summary] = where
		groups[o.Tags[0]] = true
		if open := len(o.Security) == 0; open != (rt.Scope == "") {
			t.Errorf("%s: open is %v", where, open)
		}
		if rt.Method == http.MethodPost && o.Body == nil && !bodiless[where] {
			t.Errorf("%s has no body", where)
		}
	}
	for _, tag := range d.Tags {
		if !groups[tag.Name] || tag.Description == "" {
			t.Errorf("the group %s has no route, or does not say what it is about", tag.Name)
		}
		delete(groups, tag.Name)
	}
	for name := range groups {
		t.Errorf("routes are in the group %q, which the page does not have: see groups in internal/api", name)
	}
	if stale := plane.Describe().Stale(); len(stale) > 0 {
		t.Errorf("rows that no type has: %s", strings.Join(stale, ", "))
	}
}

// summaryMax is how many words of a summary fit into a line of the page's list of calls.
const summaryMax = 8

// saysWhat returns what is wrong with the words of an operation, or nothing.
func saysWhat(o *openapi.Operation) string {
	words := strings.Fields(o.Summary)
	switch {
	case len(words) == 0:
		return "it has no summary: name it in its row"
	case len(words) > summaryMax:
		return fmt.Sprintf("its summary has %d words, more than %d: %q", len(words), summaryMax, o.Summary)
	case !unicode.IsUpper(rune(o.Summary[0])) || strings.HasSuffix(o.Summary, ".") || o.Summary != strings.Join(words, " "):
		return fmt.Sprintf("its summary does not begin with a capital, or has a full stop: %q", o.Summary)
	case o.Description == "" || !unicode.IsUpper(rune(o.Description[0])) || !strings.HasSuffix(o.Description, "."):
		return fmt.Sprintf("its description is no sentence: %q", o.Description)
	}
	return ""
}

// asked are the names that handlers look for in a query.
var asked = regexp.MustCompile(`(?:\bv\.Get\(|Query\(\)\.Get\(|MomentOf\(v, )"(\w+)"`)

// TestParametersAreDescribed is made from the source of the handlers.
func TestParametersAreDescribed(t *testing.T) {
	t.Parallel()
	names := api.Flags()
	files, err := filepath.Glob("../*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file, "_test.go") || !bytes.Contains(source, []byte(`/internal/api"`)) && !strings.HasPrefix(file, "../api/") {
			continue
		}
		for _, found := range asked.FindAllSubmatch(source, -1) {
			names = append(names, string(found[1]))
		}
	}
	d := plane.Describe().Description()
	used := map[string]bool{}
	for _, operations := range d.Paths {
		for _, o := range operations {
			for _, p := range o.Parameters {
				used[strings.TrimPrefix(p.Ref, "#/components/parameters/")] = true
			}
		}
	}
	for _, name := range names {
		if !used[name] {
			t.Errorf("no route is described with the parameter %s", name)
		}
	}
	for name := range d.Components.Parameters {
		if !used[name] {
			t.Errorf("no route has the parameter %s", name)
		}
	}
}

// bodiless are the calls that only say what to do.
var bodiless = map[string]bool{
	"POST /sandboxes/{name}/snapshots/{snapshot}/restore": true,
	"POST /drives/{drive}/access-token":                   true,
	"POST /sandboxes/{name}/tickets":                      true,
	"POST /sandboxes/{name}/sleep":                        true,
	"POST /platform/nodes/{node}/cordon":                  true,
	"POST /platform/nodes/{node}/uncordon":                true,
	"POST /platform/nodes/settle":                         true,
	"POST /platform/nodes/{node}/drain":                   true,
	"POST /sandboxes/{name}/wake":                         true,
	"POST /sandboxes/{name}/archive":                      true,
	"POST /sandboxes/{name}/unarchive":                    true,
	"POST /customdomains/{domain}/verify":                 true,
	"POST /pending-image-shares/{share}/accept":           true,
	"POST /pending-image-shares/{share}/decline":          true,
	"POST /workspaces/{workspace}/accept":                 true,
	"POST /workspaces/{workspace}/decline":                true,
}
