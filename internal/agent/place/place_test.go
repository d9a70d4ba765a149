package place

import (
	"path"
	"strings"
	"testing"
)

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
			got, err := parse(test.p, "/work", test.home)
			if (err != nil) != (test.abs == "") || got != (Place{test.abs, test.shown}) {
				t.Errorf("got %+v, %v", got, err)
			}
		})
	}
}

// FuzzPath checks that whatever is sent becomes a clean absolute path or an
// error.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"/tmp/a", "tmp/a", "//tmp", "~/x", "/tree//x", "../..", "\x00", "treehouse", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		at, err := parse(sent, "/work", "/home")
		if err != nil {
			return
		}
		if !path.IsAbs(at.Abs) || path.Clean(at.Abs) != at.Abs || len(at.Abs) > Max || strings.Contains(at.Abs, "\x00") {
			t.Errorf("%q leads to %q", sent, at.Abs)
		}
		again, err := parse(at.Abs, "/work", "/home")
		if err != nil || again.Abs != at.Abs {
			t.Errorf("%q leads to %q, which leads to %q", sent, at.Abs, again.Abs)
		}
	})
}
