package search_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/search"
)

// tree makes files with contents; a name that ends in a slash is a directory.
func tree(tb testing.TB, files map[string]string) string {
	tb.Helper()
	root := filepath.Join(tb.TempDir(), "root")
	for name, content := range files {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			tb.Fatal(err)
		}
		if strings.HasSuffix(name, "/") {
			if err := os.MkdirAll(file, 0o755); err != nil {
				tb.Fatal(err)
			}
		} else if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			tb.Fatal(err)
		}
	}
	return root
}

func query(tb testing.TB, text string) url.Values {
	tb.Helper()
	q, err := url.ParseQuery(text)
	if err != nil {
		tb.Fatal(err)
	}
	return q
}

func TestFind(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"a.go": "", "b.txt": "", "src/c.go": "", "src/deep/d.go": "", ".hidden/e.go": "", ".f.go": "",
		"node_modules/g.go": "", "src/vendor/h.go": "", "empty/": "",
	})
	if err := os.Symlink("src", filepath.Join(root, "zlink")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		query string
		want  string
	}{
		"files":           {"", "a.go b.txt fifo src/c.go src/deep/d.go zlink"},
		"globs":           {"patterns=*.go,*.md", "a.go src/c.go src/deep/d.go"},
		"directories":     {"type=directory&patterns=none", ". empty src src/deep"},
		"hidden ones":     {"excludeHidden=false&patterns=*.go", ".f.go .hidden/e.go a.go src/c.go src/deep/d.go"},
		"hidden, too":     {"excludeHidden=&patterns=*.go", ".f.go .hidden/e.go a.go src/c.go src/deep/d.go"},
		"nothing skipped": {"excludeDirs=&patterns=*.go", "a.go node_modules/g.go src/c.go src/deep/d.go src/vendor/h.go"},
		"other skipped":   {"excludeDirs=src,empty&patterns=*.go", "a.go node_modules/g.go"},
		"some":            {"maxResults=2", "a.go b.txt"},
		"one directory":   {"maxResults=1&type=directory", "."},
		"all":             {"maxResults=0", "a.go b.txt fifo src/c.go src/deep/d.go zlink"},
		"the root itself": {"excludeDirs=root", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := search.ParseFind(query(t, test.query))
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.In(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			paths := make([]string, 0, len(got.Matches))
			for _, m := range got.Matches {
				paths = append(paths, m.Path)
			}
			if s := strings.Join(paths, " "); s != test.want || got.Total != len(paths) || got.Incomplete {
				t.Errorf("%q, total %d, incomplete %v; want %q", s, got.Total, got.Incomplete, test.want)
			}
		})
	}
}

func TestFindIsBounded(t *testing.T) {
	t.Parallel()
	files := map[string]string{}
	for i := range 1500 {
		files[fmt.Sprintf("%04d", i)] = ""
	}
	root := tree(t, files)
	for text, want := range map[string]int{"": 20, "maxResults=5000": 1000, "maxResults=0": 1500} {
		f, err := search.ParseFind(query(t, text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := f.In(t.Context(), root)
		if err != nil || len(got.Matches) != want {
			t.Errorf("%q: %d matches, %v; want %d", text, len(got.Matches), err, want)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f, _ := search.ParseFind(nil)
	if _, err := f.In(ctx, root); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller left: %v", err)
	}
}

func TestFuzzy(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"main.go": "", "main_test.go": "", "domain/go.mod": "", "internal/manager/old.txt": "", "cmd/main/": "", "README.md": "",
		"src/UserList.tsx": "", "node_modules/main.go": "",
	})
	tests := map[string]struct {
		query string
		want  string
	}{
		"best first":    {"query=main", "cmd/main main.go main_test.go domain domain/go.mod"},
		"capitals":      {"query=ul", "src/UserList.tsx"},
		"upper case":    {"query=README", "README.md"},
		"path":          {"query=srcul", "src/UserList.tsx"},
		"files by glob": {"query=main&patterns=*.go", "cmd/main main.go main_test.go domain"},
		"some":          {"query=main&maxResults=1", "cmd/main"},
		"nothing":       {"query=xyz", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := search.ParseFuzzy(query(t, test.query))
			if err != nil {
				t.Fatal(err)
			}
			got, err := f.In(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			var paths []string
			for i, m := range got.Matches {
				paths = append(paths, m.Path)
				if m.Score <= 0 || i > 0 && m.Score > got.Matches[i-1].Score {
					t.Errorf("%s has the score %d", m.Path, m.Score)
				}
			}
			if s := strings.Join(paths, " "); s != test.want || got.Total != len(paths) {
				t.Errorf("%q, total %d; want %q", s, got.Total, test.want)
			}
		})
	}
}

func TestGrep(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"a.txt":             "one\r\ntwo Needle needle\n\nthree\nneedle",
		"b.go":              "// ÄPFEL needle.*\n",
		".hidden":           "needle\n",
		"binary":            "needle\x00needle",
		"node_modules/x.js": "needle",
		"long":              strings.Repeat("x", 3000) + "needle" + strings.Repeat("y", 70_000) + "needle2\nneedle3\n",
		"latin":             "\xe4 needle\n",
	})
	if err := syscall.Mkfifo(filepath.Join(root, "fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	type hit struct {
		path         string
		line, column int
		text, around string
	}
	clipped := strings.Repeat("x", 2048)
	tests := map[string]struct {
		query string
		want  []hit
	}{
		"any case": {"query=needle", []hit{
			{".hidden", 1, 1, "needle", ""},
			{"a.txt", 2, 5, "two Needle needle", ""},
			{"a.txt", 5, 1, "needle", ""},
			{"b.go", 1, 11, "// ÄPFEL needle.*", ""},
			{"latin", 1, 3, "\xe4 needle", ""},
			{"long", 1, 3001, clipped, ""},
			{"long", 2, 1, "needle3", ""},
		}},
		"this case":  {"query=Needle&caseSensitive=true", []hit{{"a.txt", 2, 5, "two Needle needle", ""}}},
		"a glob":     {"query=needle&filePattern=*.go", []hit{{"b.go", 1, 11, "// ÄPFEL needle.*", ""}}},
		"no pattern": {"query=needle.*", []hit{{"b.go", 1, 11, "// ÄPFEL needle.*", ""}}},
		"umlauts":    {"query=äpfel", []hit{{"b.go", 1, 4, "// ÄPFEL needle.*", ""}}},
		"skipped":    {"query=needle&filePattern=*.js&excludeDirs=", []hit{{"node_modules/x.js", 1, 1, "needle", ""}}},
		"some":       {"query=needle&maxResults=1", []hit{{".hidden", 1, 1, "needle", ""}}},
		"context": {"query=needle&contextLines=1&filePattern=a.txt", []hit{
			{"a.txt", 2, 5, "two Needle needle", "one\ntwo Needle needle\n"},
			{"a.txt", 5, 1, "needle", "three\nneedle"},
		}},
		"more context": {"query=two&contextLines=2", []hit{{"a.txt", 2, 1, "two Needle needle", "one\ntwo Needle needle\n\nthree"}}},
		"lines end":    {"query=two%0A", []hit{}},
		"nothing":      {"query=xyz", []hit{}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := search.ParseGrep(query(t, test.query))
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.In(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			found := []hit{}
			for _, h := range got.Matches {
				found = append(found, hit{h.Path, h.Line, h.Column, h.Text, h.Context})
				content, err := os.ReadFile(filepath.Join(root, h.Path))
				if at := h.Offset + int64(h.Column) - 1; err != nil || h.Match == "" || !strings.HasPrefix(string(content[at:]), h.Match) {
					t.Errorf("%s: %q is not at %d, %v", h.Path, h.Match, at, err)
				}
			}
			if diff := cmp.Diff(test.want, found, cmp.AllowUnexported(hit{})); diff != "" || got.Total != len(test.want) || got.Incomplete {
				t.Errorf("total %d: %s", got.Total, diff)
			}
		})
	}
}

func TestRegexp(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"a.go": "x\nfunc main()\n", "b_test.go": "func Main2()", "src/c.ts": "func main"})
	tests := map[string]struct {
		query            string
		exact            bool
		include, exclude string
		want             string
	}{
		"any case":  {`^func main\d?\(`, false, "", "", "a.go:2:1 b_test.go:1:1"},
		"this case": {`main`, true, "", "", "a.go:2:6 src/c.ts:1:6"},
		"include":   {`main`, false, "**/*.ts", "", "src/c.ts:1:6"},
		"a path":    {`main`, false, "src/*", "", "src/c.ts:1:6"},
		"exclude":   {`main`, false, "*.go", "*_test.go", "a.go:2:6"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g, err := search.Regexp(test.query, test.exact, test.include, test.exclude)
			if err != nil {
				t.Fatal(err)
			}
			got, err := g.In(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			var hits []string
			for _, h := range got.Matches {
				hits = append(hits, fmt.Sprintf("%s:%d:%d", h.Path, h.Line, h.Column))
			}
			if s := strings.Join(hits, " "); s != test.want {
				t.Errorf("%q, want %q", s, test.want)
			}
		})
	}
	for _, bad := range [][2]string{{"(", ""}, {"x", "["}, {strings.Repeat("x", 5000), ""}} {
		if _, err := search.Regexp(bad[0], false, bad[1], ""); err == nil || doze.Public(err).Kind != doze.Invalid {
			t.Errorf("%.10q: %v", bad, err)
		}
	}
}

// A search of everything does not get lost in what the kernel makes up.
func TestKernelDirs(t *testing.T) {
	t.Parallel()
	f, err := search.ParseFind(query(t, "type=directory&maxResults=1000"))
	if err != nil {
		t.Fatal(err)
	}
	all, err := f.In(t.Context(), "/")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all.Matches {
		if m.Path == "proc" || strings.HasPrefix(m.Path, "proc/") || m.Path == "dev" || m.Path == "sys" {
			t.Errorf("found %s", m.Path)
		}
	}
	if own, err := f.In(t.Context(), "/proc/self"); err != nil || len(own.Matches) < 2 {
		t.Errorf("in /proc/self there is %v, %v", own, err)
	}
}

// More hits than anybody asked for must neither hang nor fill the memory.
func TestGrepIsBounded(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{
		"a": strings.Repeat("x\n", 150_000),
		"b": strings.Repeat(strings.Repeat("y", 1999)+"\n", 5000),
		"c": strings.Repeat("z\n", 100_000),
	})
	for text, want := range map[string]struct {
		hits int
		cut  bool
	}{
		"query=x":                                {100, false},
		"query=x&maxResults=2000":                {1000, false},
		"query=x&maxResults=0":                   {100_000, true},
		"query=z&maxResults=0":                   {100_000, false},
		"query=y&maxResults=0":                   {8 << 20 / 1999, true},
		"query=y&maxResults=1&contextLines=1000": {1, false},
	} {
		g, err := search.ParseGrep(query(t, text))
		if err != nil {
			t.Fatal(err)
		}
		got, err := g.In(t.Context(), root)
		if err != nil || len(got.Matches) != want.hits || got.Incomplete != want.cut {
			t.Errorf("%s: %d hits, incomplete %v, %v; want %v", text, len(got.Matches), got.Incomplete, err, want)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	root := tree(t, map[string]string{"file": ""})
	find := func(q url.Values) error { _, err := search.ParseFind(q); return err }
	fuzzy := func(q url.Values) error { _, err := search.ParseFuzzy(q); return err }
	grep := func(q url.Values) error { _, err := search.ParseGrep(q); return err }
	findIn := func(root string) func(url.Values) error {
		return func(q url.Values) error {
			f, err := search.ParseFind(q)
			if err != nil {
				t.Fatal(err)
			}
			_, err = f.In(t.Context(), root)
			return err
		}
	}
	grepIn := func(root string) func(url.Values) error {
		return func(q url.Values) error {
			g, err := search.ParseGrep(q)
			if err != nil {
				t.Fatal(err)
			}
			_, err = g.In(t.Context(), root)
			return err
		}
	}
	tests := map[string]struct {
		call  func(url.Values) error
		query string
		kind  doze.Kind
	}{
		"bad type":               {find, "type=link", doze.Invalid},
		"negative":               {find, "maxResults=-1", doze.Invalid},
		"no number":              {grep, "query=x&maxResults=many", doze.Invalid},
		"bad glob":               {find, "patterns=[", doze.Invalid},
		"bad glob for content":   {grep, "query=x&filePattern=[", doze.Invalid},
		"no query":               {grep, "", doze.Invalid},
		"long query":             {grep, "query=" + strings.Repeat("x", 5000), doze.Invalid},
		"bad context":            {grep, "query=x&contextLines=-1", doze.Invalid},
		"nothing to rank":        {fuzzy, "", doze.Invalid},
		"long query to rank":     {fuzzy, "query=" + strings.Repeat("x", 5000), doze.Invalid},
		"no root":                {findIn(root + "/none"), "", doze.NotFound},
		"below a file":           {findIn(root + "/file/x"), "", doze.NotFound},
		"a file":                 {findIn(root + "/file"), "", doze.Invalid},
		"no root for content":    {grepIn(root + "/none"), "query=x", doze.Invalid},
		"a file for its content": {grepIn(root + "/file"), "query=x", doze.Invalid},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := test.call(query(t, test.query)); err == nil || doze.Public(err).Kind != test.kind {
				t.Errorf("got %v, want %v", err, test.kind)
			}
		})
	}
}

// FuzzSearch runs whatever can be parsed.
func FuzzSearch(f *testing.F) {
	f.Add("query=a&maxResults=3&patterns=*.go,b", "a\nb\xff\xc3\n")
	f.Add("query=%C3%A4&contextLines=2&caseSensitive=true", strings.Repeat("ä", 1500))
	f.Add("query=\xff&excludeHidden=false&type=directory", "\xff\x00")
	root := tree(f, map[string]string{"a/b": "", ".c/d": ""})
	f.Fuzz(func(t *testing.T, raw, content string) {
		q, err := url.ParseQuery(raw)
		if err != nil {
			return
		}
		if err := os.WriteFile(filepath.Join(root, "file"), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if f, err := search.ParseFind(q); err == nil {
			if _, err := f.In(t.Context(), root); err != nil {
				t.Error(err)
			}
		}
		if f, err := search.ParseFuzzy(q); err == nil {
			if _, err := f.In(t.Context(), root); err != nil {
				t.Error(err)
			}
		}
		g, err := search.ParseGrep(q)
		if err != nil {
			return
		}
		got, err := g.In(t.Context(), root)
		if err != nil {
			t.Error(err)
		}
		for _, h := range got.Matches {
			if h.Line < 1 || h.Column < 1 || len(h.Text) > 2048 {
				t.Errorf("%+v", h)
			}
		}
	})
}

func BenchmarkGrep(b *testing.B) {
	line := strings.Repeat("some Words of a line ", 4) + "\n"
	files := map[string]string{}
	for i := range 100 {
		files[fmt.Sprintf("%d/file.txt", i)] = strings.Repeat(line, 2000)
	}
	root := tree(b, files)
	b.SetBytes(int64(100 * 2000 * len(line)))
	for b.Loop() {
		g, _ := search.ParseGrep(url.Values{"query": {"Needle"}})
		if _, err := g.In(b.Context(), root); err != nil {
			b.Fatal(err)
		}
	}
}
