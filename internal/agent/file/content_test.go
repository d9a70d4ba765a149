package file

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agent/body"
	"github.com/dozehq/doze/internal/agent/owner"
	"github.com/dozehq/doze/internal/agent/place"
	"github.com/dozehq/doze/internal/agent/text"
)

// contentFrom reads a body that comes from src.
func contentFrom(src io.Reader, ahead int) *contentBody {
	c := newContent()
	c.From(src, ahead)
	return c
}

// rest reads all of a body that comes in pieces of any size.
func (c *contentBody) rest() (Write, error) {
	b, err := io.ReadAll(c)
	c.asked.Content = string(b)
	return c.asked, err
}

func TestContent(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("aü€😀", 20_000)
	tests := map[string]struct {
		body string
		want Write
		err  string // part of it
		kind doze.Kind
	}{
		"nothing else":      {`{"content":"x"}`, Write{Content: "x"}, "", 0},
		"the rest after it": {` { "content" : "x" , "permissions" : "0600" } `, Write{Content: "x", Permissions: "0600"}, "", 0},
		"and before":        {`{"other":{"content":["}",{"content":"y"}]},"permissions":"\"7","content":"x"}`, Write{}, "octal", doze.Invalid},
		"any case":          {`{"Cont\u0065NT":"x"}`, Write{Content: "x"}, "", 0},
		"escapes":           {`{"content":"\"\\\/\b\f\n\r\t\u00e4\ud83d\ude00"}`, Write{Content: "\"\\/\b\f\n\r\tä😀"}, "", 0},
		"half a character":  {`{"content":"\ud83d\u0041"}`, Write{}, "half of a character", doze.Invalid},
		"the other half":    {`{"content":"\ude00"}`, Write{}, "half of a character", doze.Invalid},
		"no UTF-8":          {"{\"content\":\"x\xff\"}", Write{}, "not UTF-8", doze.Invalid},
		"nor beside it":     {"{\"content\":\"x\",\"permissions\":\"\xff\"}", Write{}, "not UTF-8", doze.Invalid},
		"long":              {`{"content":"` + long + `"}`, Write{Content: long}, "", 0},
		"empty":             {`{"content":""}`, Write{}, "", 0},
		"null":              {`{"content":null}`, Write{}, "", 0},
		"directory":         {`{"content":"","isDirectory":true}`, Write{IsDirectory: true}, "", 0},
		"of a directory":    {`{"content":"x","isDirectory":true}`, Write{}, "leave out content", doze.Invalid},
		"twice":             {`{"content":"x","CONTENT":"y"}`, Write{}, "twice", doze.Invalid},
		"no string":         {`{"content":7,"permissions":8}`, Write{}, "content must be a string, not number; permissions must be", doze.Invalid},
		"in a list":         {`["content":"x"]`, Write{}, "JSON", doze.Invalid},
		"it does not end":   {`{"content":"x`, Write{}, "within content", doze.Invalid},
		"nor its escape":    {`{"content":"\u00`, Write{}, "within content", doze.Invalid},
		"nor its object":    {`{"content":"x"`, Write{}, "JSON", doze.Invalid},
		"more than one":     {`{"content":"x"}{"content":"y"}`, Write{}, "twice", doze.Invalid},
		"more behind it":    {`{"content":"x"} y`, Write{}, "JSON", doze.Invalid},
		"bad escape":        {`{"content":"\x00aa"}`, Write{}, "escape", doze.Invalid},
		"bad number":        {`{"content":"\u+0a0"}`, Write{}, "escape", doze.Invalid},
		"a line":            {"{\"content\":\"a\nb\"}", Write{}, "control character", doze.Invalid},
		"no body":           {``, Write{}, "empty", doze.Invalid},
		"much beside it":    {`{"x":"` + strings.Repeat("x", besideMax) + `"}`, Write{}, "besides content", doze.TooLarge},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for how, src := range map[string]io.Reader{
				"whole": strings.NewReader(test.body), "by bytes": iotest.OneByteReader(strings.NewReader(test.body)),
			} {
				got, err := contentFrom(src, 0).rest()
				switch {
				case test.err == "":
					if diff := cmp.Diff(test.want, got); diff != "" || err != nil {
						t.Errorf("%s: %v, %s", how, err, diff)
					}
				case doze.Public(err).Kind != test.kind || !strings.Contains(doze.Public(err).Message, test.err):
					t.Errorf("%s: %v, want %q", how, err, test.err)
				}
			}
		})
	}
}

// TestContentIsWhole: a body that is found to be wrong, or to end, after its first
// part has gone to the disk leaves the file as it was.
func TestContentIsWhole(t *testing.T) {
	t.Parallel()
	content := strings.Repeat("x", 3*body.Free)
	head := `{"content":"` + content + `"`
	tests := map[string]struct {
		body io.Reader
		want string
	}{
		"permissions":  {strings.NewReader(head + `,"permissions":"x"}`), "octal"},
		"a directory":  {strings.NewReader(head + `,"isDirectory":true}`), "leave out content"},
		"no JSON":      {strings.NewReader(head), "JSON"},
		"no end":       {strings.NewReader(head[:2*body.Free]), "within content"},
		"a connection": {io.MultiReader(strings.NewReader(head[:2*body.Free]), iotest.ErrReader(io.ErrUnexpectedEOF)), "the body ended early; the file is unchanged"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := path.Join(dir, "f")
			if err := os.WriteFile(file, []byte("old"), 0o640); err != nil {
				t.Fatal(err)
			}
			_, err := writeBody(owner.AsAgent, place.Place{Abs: file, Shown: file}, contentFrom(test.body, text.Ahead))
			if p := doze.Public(err); p.Kind != doze.Invalid || !strings.Contains(p.Message, test.want) {
				t.Errorf("got %v", err)
			}
			entries, _ := os.ReadDir(dir)
			if b, err := os.ReadFile(file); string(b) != "old" || err != nil || len(entries) != 1 {
				t.Errorf("the file has %d bytes, %v, beside %v", len(b), err, entries)
			}
		})
	}
	t.Run("well", func(t *testing.T) {
		t.Parallel()
		file := path.Join(t.TempDir(), "f")
		done, err := writeBody(owner.AsAgent, place.Place{Abs: file, Shown: "f"}, contentFrom(strings.NewReader(head+`,"permissions":"0600"}`), text.Ahead))
		if err != nil || done.Path != "f" {
			t.Fatal(done, err)
		}
		info, err := os.Stat(file)
		if err != nil || info.Mode() != 0o600 || info.Size() != int64(len(content)) {
			t.Errorf("%v, %v", info, err)
		}
	})
}

// FuzzContent compares what is read of a body as it comes with what the package
// for JSON reads of all of it.
func FuzzContent(f *testing.F) {
	for _, s := range []string{
		`{"content":"x","permissions":"0644"}`, `{"isDirectory":true,"permissions":"7777"}`, `{"permissions":"-1"}`, `{"content":7}`, `"x"`, `null`, ``,
		`{"x":[{"content":"y"}],"content":"\ud83d\ude00\ud83d\u0041\n\"\\"}`, "{\"content\":\"\xff\xc3\xbc\xe2\x82\"}", `{"c\u006fntent" : "x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		in := contentFrom(iotest.HalfReader(strings.NewReader(string(b))), 0)
		got, err := in.rest()
		if err != nil {
			p := doze.Public(err)
			if p.Kind != doze.Invalid && p.Kind != doze.TooLarge {
				t.Errorf("got %v", err)
			}
			if strings.Contains(p.Message, "twice") || strings.Contains(p.Message, "leave out") || p.Kind == doze.TooLarge {
				return // which the other one does not mind
			}
		}
		want, wantErr := body.Parse[Write](b)
		if wantErr == nil {
			var p doze.Problems
			want.Mode(want.Content != "", &p)
			wantErr = p.Err()
		}
		if (err == nil) != (wantErr == nil) {
			t.Errorf("%q: %v, want %v", b, err, wantErr)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q: %s", b, diff)
		}
		if in.perm&^(fs.ModePerm&^owner.Umask) != 0 {
			t.Errorf("%q became %v", got.Permissions, in.perm)
		}
	})
}

// BenchmarkContent reads a body of the size of a source file.
func BenchmarkContent(b *testing.B) {
	raw, err := json.Marshal(map[string]string{"content": strings.Repeat("\tif err != nil {\n\t\treturn \"ü\", err\n", 1<<15)})
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := io.Copy(io.Discard, contentFrom(strings.NewReader(string(raw)), text.Ahead)); err != nil && !errors.Is(err, io.EOF) {
			b.Fatal(err)
		}
	}
}
