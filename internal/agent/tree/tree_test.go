package tree

import (
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
)

// take receives a tree and returns its files.
func take(tb testing.TB, src io.Reader) (*input, map[string]string, error) {
	tb.Helper()
	dir := tb.TempDir()
	in := newInput(func() (*os.File, error) { return os.Create(filepath.Join(dir, "spool")) })
	tb.Cleanup(in.close)
	in.From(src, 0)
	if err := in.receive(); err != nil {
		return in, nil, err
	}
	files := map[string]string{}
	for name := range in.asked.Files {
		b, err := io.ReadAll(in.content(name))
		if err != nil {
			tb.Fatal(err)
		}
		files[name] = string(b)
	}
	return in, files, nil
}

func TestTreeBody(t *testing.T) {
	t.Parallel()
	large := strings.Repeat("xü", body.Free)
	tests := map[string]struct {
		body string
		want map[string]string
		err  string
	}{
		"some":            {`{"files":{"a":"1","b/c":"","d":"\u00e4\n"},"x":{"files":{"y":"z"}}}`, map[string]string{"a": "1", "b/c": "", "d": "ä\n"}, ""},
		"null":            {`{"files":{"a":null,"b":"2","c":"3","c":null}}`, map[string]string{"a": "", "b": "2", "c": ""}, ""},
		"none":            {`{"files":{}}`, map[string]string{}, ""},
		"one twice":       {`{"files":{"a":"first","b":"2","a":"last"}}`, map[string]string{"a": "last", "b": "2"}, ""},
		"in two places":   {`{"files":{"a":"1"},"FILES":{"b":"2"}}`, map[string]string{"a": "1", "b": "2"}, ""},
		"no name":         {`{"files":{"":"1"}}`, nil, "no name of a file"},
		"large":           {`{"files":{"a":"1","b":"` + large + `","c":"3"}}`, map[string]string{"a": "1", "b": large, "c": "3"}, ""},
		"a number":        {`{"files":{"a":"1","b":2}}`, nil, "files.b must be a string, not number"},
		"a list":          {`{"files":["a","b"]}`, nil, "files must be an object"},
		"a name":          {`{"files":{"a":"1","b"}}`, nil, "JSON"},
		"it has no end":   {`{"files":{"a":"1`, nil, "within a"},
		"many names":      {`{"files":{"` + strings.Repeat("x", besideMax) + `":""}}`, nil, "besides files"},
		"no body at all":  {``, nil, "empty"},
		"a file in one":   {`{"files":{"a":"1","a/b/c":"2","a-":"3"}}`, nil, `"a", which cannot be a file`},
		"one and its own": {`{"files":{"a":"1","./a":"2"}}`, nil, `"a", which is the same file as "./a"`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, got, err := take(t, strings.NewReader(test.body))
			if p := doze.Public(err); test.err != "" && !strings.Contains(p.Message, test.err) || test.err == "" && err != nil {
				t.Errorf("got %v, want %q", err, test.err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%.1000s", diff)
			}
			if on := in.spool.file != nil; on != (name == "large") {
				t.Errorf("on the disk: %v", on)
			}
		})
	}
	full := newInput(func() (*os.File, error) { return nil, errors.New("no space") })
	full.From(strings.NewReader(tests["large"].body), 0)
	if err := full.receive(); doze.Public(err).Kind != doze.Unprocessable {
		t.Errorf("without space: %v", err)
	}
}

// FuzzTree compares what is read of a tree as it comes with what the package for
// JSON reads of all of it, and checks that no name leads out.
func FuzzTree(f *testing.F) {
	for _, s := range []string{
		`{"files":{"a/b":"x","/c":""}}`, `{"files":{"../x":"","a/../../b":"","a//../..":"","..":""}}`, `{"files":null}`,
		`{"files":{"":"","/":"","a/":"","a\u0000":""}}`, `[]`, `{"files":{"a":"\ud83d\ude00"},"x":[{"files":{"y":"z"}}],"Files":{"a":null}}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, files, err := take(t, iotest.HalfReader(strings.NewReader(string(b))))
		if err != nil && doze.Public(err).Kind != doze.Invalid {
			t.Errorf("got %v", err)
		}
		if strings.Contains(doze.Public(err).Message, "files has") {
			return // names that the other one does not mind
		}
		want, wantErr := body.Parse[struct{ Files map[string]string }](b)
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %v, want %v", b, err, wantErr)
		}
		if diff := cmp.Diff(want.Files, files); err == nil && len(want.Files)+len(files) > 0 && diff != "" {
			t.Errorf("%q (-want +got):\n%s", b, diff)
		}
		for _, sent := range slices.Sorted(maps.Keys(files)) {
			name, wrong := nameOf(sent)
			if wrong != "" || !filepath.IsLocal(name) || name == "." || strings.ContainsRune(name, 0) || path.Clean(name) != name {
				t.Errorf("%q became %q", sent, name)
			}
		}
	})
}

// FuzzTreeName checks that no name of a file leads out of its tree.
func FuzzTreeName(f *testing.F) {
	for _, s := range []string{"/tmp/a", "a/../../b", "//tmp", "~/x", "..", "\x00", "a/", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, sent string) {
		if name, wrong := nameOf(sent); wrong == "" && (strings.HasPrefix(name, "/") || !strings.HasPrefix(path.Join("/r", name), "/r/")) {
			t.Errorf("the tree name %q is outside", name)
		}
	})
}
