package file_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestSearches(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	s.Write(t, "p/main.go", "package main // needle\n")
	s.Write(t, "p/sub/main_test.go", "package main\n")
	type match struct {
		Path, Type, Text string
		Line, Column     int
	}
	type matches struct {
		Query   string
		Matches []match
		Total   int
	}
	found := []match{{Path: "main.go", Type: "file"}, {Path: "sub/main_test.go", Type: "file"}}
	tests := map[string]struct {
		path string
		want matches
	}{
		"find":                       {"/filesystem-find/p", matches{"", found, 2}},
		"find, absolute":             {"/filesystem-find/" + s.Dir + "/p?patterns=main.go", matches{"", found[:1], 1}},
		"fuzzy, the query in a path": {"/filesystem-search/p/main.go", matches{"", found, 2}},
		"fuzzy, with a query":        {"/filesystem-search/p?query=main", matches{"", found, 2}},
		"content":                    {"/filesystem-content-search/p?query=Needle", matches{"Needle", []match{{Path: "main.go", Text: "package main // needle", Line: 1, Column: 17}}, 1}},
		"no content":                 {"/filesystem-content-search/p?query=xyz", matches{"xyz", []match{}, 0}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, agenttest.Get[matches](t, s, "GET", test.path, "")); diff != "" {
				t.Error(diff)
			}
		})
	}
	s.Fails(t, 404, "no such directory", "GET", "/filesystem-find/none", "")
	s.Fails(t, 400, "type must be", "GET", "/filesystem-find/p?type=x", "")
	s.Fails(t, 400, "query is required, or a last element", "GET", "/filesystem-search/", "")
	s.Fails(t, 400, "query is required, or a last element", "GET", "/filesystem-search/%2F", "")
	s.Fails(t, 400, "query is required", "GET", "/filesystem-content-search/p", "")
	s.Fails(t, 400, "no such directory", "GET", "/filesystem-content-search/none?query=x", "")
	s.Fails(t, 400, "NUL", "GET", "/filesystem-find/%00", "")
}
