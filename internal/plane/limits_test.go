package plane_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/openapi"
	"github.com/dozehq/doze/internal/plane"
	"github.com/dozehq/doze/internal/plane/planetest"
)

// boundless are the numbers in bodies that have no limits.
var boundless = map[string]string{
	"/policies spec.maxTokens.":          "of model policies, which nothing here obeys",
	"/sandboxes/{name}/fork memory":      "of applications, which this platform has not",
	"/sandboxes/{name}/fork port":        "likewise",
	"/sandboxes/{name}/fork traffic":     "likewise",
	"/snapshots/{snapshot}/fork memory":  "likewise",
	"/snapshots/{snapshot}/fork port":    "likewise",
	"/snapshots/{snapshot}/fork traffic": "likewise",
}

// A number is a number in the body of a route.
type number struct {
	path   string // its names, with dots, [] after that of a list
	schema *openapi.Schema
}

// numbersIn returns the numbers in a schema.
func numbersIn(d *openapi.Document, s *openapi.Schema, path string) (all []number) {
	if name, ok := strings.CutPrefix(s.Ref, "#/components/schemas/"); ok {
		s = d.Components.Schemas[name]
	}
	switch {
	case s.Type == "integer" || s.Type == "number":
		all = append(all, number{path, s})
	case s.Items != nil:
		all = numbersIn(d, s.Items, path+"[]")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		all = append(all, numbersIn(d, s.Properties[name], strings.TrimPrefix(path+"."+name, "."))...)
	}
	return all
}

// bodyWith is a body that has nothing but one value.
func bodyWith(path string, value any) any {
	names := strings.Split(path, ".")
	for _, name := range slices.Backward(names) {
		if list, ok := strings.CutSuffix(name, "[]"); ok {
			name, value = list, []any{value}
		}
		value = map[string]any{name: value}
	}
	return value
}

// TestNumbersHaveLimits: each number that a body can have has a least and a greatest
// value in the description, and is refused outside of them, under its name.
func TestNumbersHaveLimits(t *testing.T) {
	t.Parallel()
	p := planetest.Start(t, false)
	p.Create(planetest.Named("a"))
	d := plane.Describe().Description()
	found := 0
	for _, rt := range plane.Describe().Routes() {
		o := d.Paths[rt.Pattern][strings.ToLower(rt.Method)]
		if rt.Method != http.MethodPost || o.Body == nil {
			continue // a PUT has the same types
		}
		for _, media := range o.Body.Content {
			for _, n := range numbersIn(&d, media.Schema, "") {
				where := rt.Pattern + " " + n.path
				if exempt(where) {
					continue
				}
				found++
				if n.schema.Minimum == nil || n.schema.Maximum == nil {
					t.Errorf("%s has no minimum or no maximum: say them in the schema.go of its room", where)
					continue
				}
				for _, value := range []int{*n.schema.Minimum - 1, *n.schema.Maximum + 1} {
					body, err := json.Marshal(bodyWith(n.path, value))
					if err != nil {
						t.Fatal(err)
					}
					w := p.Do(http.MethodPost, strings.ReplaceAll(rt.Pattern, "{name}", "a"), string(body))
					name := n.path[strings.LastIndexByte(n.path, '.')+1:]
					if w.Code != 400 && w.Code != 422 || !strings.Contains(w.Body.String(), fmt.Sprintf("%s is %d", name, value)) {
						t.Errorf("%s of %d: %d %s", where, value, w.Code, w.Body)
					}
				}
			}
		}
	}
	if found == 0 {
		t.Error("no body has a number")
	}
}

func exempt(where string) bool {
	for begin := range boundless {
		if strings.HasPrefix(where, begin) {
			return true
		}
	}
	return false
}
