package plane_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/api"
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
	ids := map[string]string{}
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
		if open := len(o.Security) == 0; open != (rt.Scope == "") {
			t.Errorf("%s: open is %v", where, open)
		}
		if rt.Method == http.MethodPost && o.Body == nil && !bodiless[where] {
			t.Errorf("%s has no body", where)
		}
	}
	if stale := plane.Describe().Stale(); len(stale) > 0 {
		t.Errorf("rows that no type has: %s", strings.Join(stale, ", "))
	}
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
	"POST /sandboxes/{name}/wake":                         true,
	"POST /sandboxes/{name}/archive":                      true,
	"POST /sandboxes/{name}/unarchive":                    true,
	"POST /customdomains/{domain}/verify":                 true,
	"POST /pending-image-shares/{share}/accept":           true,
	"POST /pending-image-shares/{share}/decline":          true,
	"POST /workspaces/{workspace}/accept":                 true,
	"POST /workspaces/{workspace}/decline":                true,
}
