package route

import "testing"

// The first row that matches wins, and only by its own method.
func TestMatch(t *testing.T) {
	t.Parallel()
	table := Table{
		{Method: "GET", Pattern: "/a/fixed"},
		{Method: "GET", Pattern: "/a/{id}"},
		{Method: "GET", Pattern: "/a/{id}/part"},
		{Method: "PUT", Pattern: "/files/{path...}"},
	}
	for path, want := range map[string][2]string{
		"/a/fixed":       {"/a/fixed", ""},
		"/a/fixed/":      {"/a/fixed", ""},
		"/a/other":       {"/a/{id}", "other"},
		"/a/x%2Fy":       {"/a/{id}", "x/y"},
		"/a/other/part":  {"/a/{id}/part", "other"},
		"/a/other/none":  {},
		"/a//part":       {},
		"/files/a/b":     {},
		"/nothing/there": {},
	} {
		rt, arg := table.Match("GET", path, path)
		got := [2]string{"", arg}
		if rt != nil {
			got[0] = rt.Pattern
		}
		if got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		route Route
		want  bool
	}{
		{Route{Method: "GET", Pattern: "/process"}, false},
		{Route{Method: "POST", Pattern: "/process"}, true},
		{Route{Method: "GET", Pattern: "/terminal/ws"}, true}, // it starts a shell
		{Route{Method: "POST", Pattern: "/archive/resume"}, false},
	} {
		if got := test.route.Changes(); got != test.want {
			t.Errorf("%s %s: %v", test.route.Method, test.route.Pattern, got)
		}
	}
}
