package agent

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		method, decoded, escaped string
		pattern, arg             string
	}{
		"root":                   {"GET", "/", "/", "/", ""},
		"root twice":             {"GET", "//", "//", "", ""},
		"fixed":                  {"GET", "/health", "/health", "/health", ""},
		"fixed and slash":        {"POST", "/process/", "/process/", "/process", ""},
		"unknown":                {"GET", "/nope", "/nope", "", ""},
		"other method":           {"PATCH", "/health", "/health", "", ""},
		"all escaped":            {"GET", "/filesystem//tmp/a b/c.txt", "/filesystem/%2Ftmp%2Fa%20b%2Fc.txt", "/filesystem/{path...}", "//tmp/a b/c.txt"},
		"escaped between":        {"GET", "/filesystem/tmp/a.txt", "/filesystem%2Ftmp/a.txt", "/filesystem/{path...}", "/tmp/a.txt"},
		"doubled":                {"PUT", "/filesystem//tmp/a.txt", "/filesystem//tmp/a.txt", "/filesystem/{path...}", "/tmp/a.txt"},
		"escaped root":           {"GET", "/filesystem//", "/filesystem/%2F", "/filesystem/{path...}", "//"},
		"empty":                  {"GET", "/filesystem/", "/filesystem/", "/filesystem/{path...}", ""},
		"relative":               {"GET", "/filesystem/src/main.go", "/filesystem/src/main.go", "/filesystem/{path...}", "src/main.go"},
		"relative with escape":   {"GET", "/filesystem/tmp/rel.txt", "/filesystem/tmp%2Frel.txt", "/filesystem/{path...}", "/tmp/rel.txt"},
		"lower case escape":      {"GET", "/filesystem//tmp/a", "/filesystem/%2ftmp/a", "/filesystem/{path...}", "/tmp/a"},
		"dots are kept":          {"GET", "/filesystem/a/../b", "/filesystem/a/../b", "/filesystem/{path...}", "a/../b"},
		"no slash":               {"GET", "/filesystem", "/filesystem", "", ""},
		"tree":                   {"PUT", "/filesystem/tree/tmp/dir", "/filesystem/tree/tmp/dir", "/filesystem/tree/{path...}", "/tmp/dir"},
		"tree, doubled":          {"GET", "/filesystem/tree//tmp/dir", "/filesystem/tree//tmp/dir", "/filesystem/tree/{path...}", "//tmp/dir"},
		"tree, escaped":          {"GET", "/filesystem/tree//tmp/dir", "/filesystem/tree/%2Ftmp%2Fdir", "/filesystem/tree/{path...}", "//tmp/dir"},
		"tree of all":            {"GET", "/filesystem/tree", "/filesystem/tree", "/filesystem/tree/{path...}", "/"},
		"no tree":                {"GET", "/filesystem/treehouse", "/filesystem/treehouse", "/filesystem/{path...}", "treehouse"},
		"absolute /tree":         {"GET", "/filesystem//tree/x", "/filesystem//tree/x", "/filesystem/{path...}", "/tree/x"},
		"id":                     {"GET", "/process/a", "/process/a", "/process/{id}", "a"},
		"id with a slash":        {"GET", "/process/a/b", "/process/a%2Fb", "/process/{id}", "a/b"},
		"id with space":          {"DELETE", "/process/a b/kill", "/process/a%20b/kill", "/process/{id}/kill", "a b"},
		"logs":                   {"GET", "/process/7/logs", "/process/7/logs", "/process/{id}/logs", "7"},
		"log stream":             {"GET", "/process/7/logs/stream", "/process/7/logs/stream", "/process/{id}/logs/stream", "7"},
		"a process called logs":  {"GET", "/process/logs", "/process/logs", "/process/{id}", "logs"},
		"one segment too many":   {"GET", "/process/7/nope", "/process/7/nope", "", ""},
		"no id":                  {"DELETE", "/process//kill", "/process//kill", "", ""},
		"private":                {"POST", "/doze/wake", "/doze/wake", "/doze/wake", ""},
		"not below its prefix":   {"GET", "/doze/keepalive/x", "/doze/keepalive/x", "", ""},
		"shorter than the tree":  {"DELETE", "/file", "/file", "", ""},
		"prefix without a slash": {"GET", "/filesystemx", "/filesystemx", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rt, arg := anybody.routes().Match(test.method, test.decoded, test.escaped)
			pattern := ""
			if rt != nil {
				pattern = rt.Pattern
			}
			if pattern != test.pattern || arg != test.arg {
				t.Errorf("%q with %q, want %q with %q", pattern, arg, test.pattern, test.arg)
			}
		})
	}
}

// FuzzMatch checks that no path leads to another route's handler by accident.
func FuzzMatch(f *testing.F) {
	for _, s := range []string{"/%2Ftmp%2Fa", "%2Ftmp/a", "//tmp", "/~/x", "/tree//x", "/../..", "/%00", "/treehouse", "/a%2fb"} {
		f.Add("/filesystem"+s, "/filesystem"+s)
	}
	table := anybody.routes()
	f.Fuzz(func(t *testing.T, decoded, escaped string) {
		rt, _ := table.Match("GET", decoded, escaped)
		if rt != nil && strings.HasPrefix(rt.Pattern, "/filesystem") && !strings.HasPrefix(decoded, "/filesystem") {
			t.Errorf("%q is served by %s", decoded, rt.Pattern)
		}
	})
}
