package tree_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/dozehq/doze/internal/agent/agenttest"
)

func TestWriteTree(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	root := s.Dir + "/new/root"
	got := agenttest.Get[agenttest.Directory](t, s, "PUT", "/filesystem/tree"+root, `{"files":{"b":"1","/a":"2","sub//c":"3"}}`)
	if len(got.Files) != 2 || got.Files[0].Name != "a" || got.Path != root || len(got.Subdirectories) != 1 {
		t.Errorf("got %+v", got)
	}
	for name, want := range map[string]string{"a": "2", "b": "1", "sub/c": "3"} {
		if b, err := os.ReadFile(root + "/" + name); string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	for _, body := range []string{`{}`, `{"files":null}`, `{"files":{}}`} {
		if got := agenttest.Get[agenttest.Directory](t, s, "PUT", "/filesystem/tree"+s.Dir+"/empty", body); len(got.Files) != 0 {
			t.Errorf("%s: %+v", body, got)
		}
	}
}

func TestWriteTreeStaysInside(t *testing.T) {
	t.Parallel()
	s := agenttest.Start(t)
	secret := s.Write(t, "secret", "old")
	s.Write(t, "root/in", "old")
	for link, target := range map[string]string{"out": "../secret", "outdir": "..", "abs": secret, "inside": "in"} {
		if err := os.Symlink(target, s.Dir+"/root/"+link); err != nil {
			t.Fatal(err)
		}
	}
	put := func(name string) string {
		b, _ := json.Marshal(map[string]map[string]string{"files": {name: "new"}})
		return string(b)
	}
	tree := "/filesystem/tree" + s.Dir + "/root"
	for name, test := range map[string]struct {
		status int
		want   string
	}{
		"../secret":   {400, "leads out"},
		"a/../../x":   {400, "leads out"},
		"":            {400, "no name of a file"},
		"x/":          {400, "no name of a file"},
		"a\x00b":      {400, "NUL"},
		"out":         {422, "escapes"},
		"outdir/evil": {422, "escapes"},
		"abs":         {422, "escapes"},
		"in/x":        {422, "file exists"},
	} {
		s.Fails(t, test.status, test.want, "PUT", tree, put(name))
	}
	s.Fails(t, 400, "JSON", "PUT", tree, `[`)
	s.Fails(t, 400, "files", "PUT", tree, `{"files":{"a":1}}`)
	// Nothing is written of a tree that cannot be.
	for body, want := range map[string]string{
		`{"files":{"new":"x","new/below":"y","new-":"z"}}`: `files has "new", which cannot be a file, since others are in it`,
		`{"files":{"new":"x","/new":"y"}}`:                 `files has "new", which is the same file as "/new"`,
		`{"files":{"new":"x","b":5,"..":"y"}}`:             `files.b must be a string, not number; files has "..", which leads out of the tree; use names without ..`,
	} {
		s.Fails(t, 400, want, "PUT", tree, body)
		if _, err := os.Lstat(s.Dir + "/root/new"); err == nil {
			t.Errorf("%s wrote half of it", body)
		}
	}
	s.Fails(t, 422, "not a directory", "PUT", "/filesystem/tree"+secret, put("x"))
	s.Fails(t, 422, "kernel's", "PUT", "/filesystem/tree/proc", put("self/cwd/evil"))
	agenttest.Get[agenttest.Directory](t, s, "PUT", tree, put("inside"))
	if b, _ := os.ReadFile(s.Dir + "/root/in"); string(b) != "new" {
		t.Errorf("the link inside leads to %q", b)
	}
	if b, _ := os.ReadFile(secret); string(b) != "old" {
		t.Errorf("outside: %q", b)
	}
	if _, err := os.Stat(s.Dir + "/evil"); err == nil {
		t.Error("a file got out")
	}
}
