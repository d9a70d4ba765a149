package openapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/openapi"
)

// partOf returns a part with one call and one schema.
func partOf(base, id, schema string) openapi.Part {
	return openapi.Part{Base: base, Document: openapi.Document{
		Tags:  []openapi.Tag{{Name: id}},
		Paths: map[string]openapi.Path{"/health": {"get": {ID: id, Parameters: []openapi.Parameter{{Name: "own"}}}}},
		Components: openapi.Components{Schemas: map[string]*openapi.Schema{
			"Thing": {Type: schema},
		}},
	}}
}

func TestJoin(t *testing.T) {
	t.Parallel()
	second := partOf("/run/{box}", "inside", "string")
	second.Variables = []openapi.Parameter{{Name: "box"}}
	d, err := openapi.Join(openapi.Info{Title: "both"}, partOf("/v0", "outside", "string"), second)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for path, operations := range d.Paths {
		for _, p := range operations["get"].Parameters {
			got[path] = append(got[path], p.Name)
		}
	}
	want := map[string][]string{"/v0/health": {"own"}, "/run/{box}/health": {"box", "own"}}
	if diff := cmp.Diff(want, got); diff != "" || len(d.Tags) != 2 || d.Info.Title != "both" {
		t.Errorf("%v of %v\n%s", d.Info, d.Tags, diff)
	}
	for want, other := range map[string]openapi.Part{
		"two operations are called outside":                partOf("/run", "outside", "string"),
		"two parts have different components called Thing": partOf("/run", "inside", "object"),
		"two parts have the path /v0/health":               partOf("/v0", "inside", "string"),
	} {
		if _, err := openapi.Join(openapi.Info{}, partOf("/v0", "outside", "string"), other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
