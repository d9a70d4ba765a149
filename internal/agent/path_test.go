package agent

import (
	"path"
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
			rt, arg := match(test.method, test.decoded, test.escaped)
			pattern := ""
			if rt != nil {
				pattern = rt.pattern
			}
			if pattern != test.pattern || arg != test.arg {
				t.Errorf("%q with %q, want %q with %q", pattern, arg, test.pattern, test.arg)
			}
		})
	}
}

func TestParsePath(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ p, home, abs, shown string }{
		"absolute":        {"/tmp/a", "/h", "/tmp/a", "/tmp/a"},
		"doubled":         {"//tmp///a b/c", "/h", "/tmp/a b/c", "/tmp/a b/c"},
		"root":            {"//", "/h", "/", "/"},
		"relative":        {"src/x", "/h", "/work/src/x", "src/x"},
		"empty":           {"", "/h", "/work", "/work"},
		"dot":             {".", "/h", "/work", "/work"},
		"dot and slash":   {"./", "/h", "/work", "/work"},
		"dots":            {"a/../b", "/h", "/work/b", "a/../b"},
		"above":           {"../../../etc", "/h", "/etc", "../../../etc"},
		"trailing slash":  {"/tmp/d/", "/h", "/tmp/d", "/tmp/d/"},
		"home":            {"~", "/h", "/h", "/h"},
		"below home":      {"~/x", "/h", "/h/x", "/h/x"},
		"tilde in a name": {"~x", "/h", "/work/~x", "~x"},
		"no home":         {"~/x", "", "", ""},
		"NUL":             {"a\x00b", "/h", "", ""},
		"too long":        {strings.Repeat("x", 5000), "/h", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parsePath(test.p, "/work", test.home)
			if (err != nil) != (test.abs == "") || got != (place{test.abs, test.shown}) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// FuzzPath checks that whatever is sent becomes a clean absolute path or an
// error, and that no path leads to another route's handler by accident.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/%2Ftmp%2Fa", "%2Ftmp/a", "//tmp", "/~/x", "/tree//x", "/../..", "/%00", "/treehouse", "/a%2fb"} {
		f.Add("/filesystem"+s, "/filesystem"+s)
	}
	f.Fuzz(func(t *testing.T, decoded, escaped string) {
		rt, arg := match("GET", decoded, escaped)
		if rt == nil {
			return
		}
		if strings.HasPrefix(rt.pattern, "/filesystem") && !strings.HasPrefix(decoded, "/filesystem") {
			t.Fatalf("%q is served by %s", decoded, rt.pattern)
		}
		at, err := parsePath(arg, "/work", "/home")
		if err != nil {
			return
		}
		if !path.IsAbs(at.abs) || path.Clean(at.abs) != at.abs || len(at.abs) > pathMax || strings.Contains(at.abs, "\x00") {
			t.Errorf("%q leads to %q", arg, at.abs)
		}
		again, err := parsePath(at.abs, "/work", "/home")
		if err != nil || again.abs != at.abs {
			t.Errorf("%q leads to %q, which leads to %q", arg, at.abs, again.abs)
		}
		if name, wrong := treeName(arg); wrong == "" && (strings.HasPrefix(name, "/") || !strings.HasPrefix(path.Join("/r", name), "/r/")) {
			t.Errorf("the tree name %q is outside", name)
		}
	})
}
