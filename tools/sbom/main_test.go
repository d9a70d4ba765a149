package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestBill: the bill of this test's own binary has all its modules, twice the same.
func TestBill(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	for _, w := range []*bytes.Buffer{&first, &second} {
		if err := run(w, []string{"-version", "1.2.3", self}); err != nil {
			t.Fatal(err)
		}
	}
	if first.String() != second.String() {
		t.Error("two bills of a binary are not the same")
	}
	var got struct {
		BOMFormat  string
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version, Purl string }
	}
	if err := json.Unmarshal(first.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.BOMFormat != "CycloneDX" || got.Metadata.Component.Version != "1.2.3" {
		t.Errorf("the bill begins with %+v", got.Metadata)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Components) != len(info.Deps)+1 || len(info.Deps) == 0 {
		t.Fatalf("%d components, want %d and the standard library", len(got.Components), len(info.Deps))
	}
	listed := map[string]bool{}
	for _, c := range got.Components {
		listed[c.Name+"@"+c.Version] = true
		if !strings.HasPrefix(c.Purl, "pkg:golang/"+c.Name+"@") {
			t.Errorf("%s has the package URL %q", c.Name, c.Purl)
		}
	}
	for _, m := range info.Deps {
		if !listed[m.Path+"@"+m.Version] {
			t.Errorf("the bill lacks %s %s", m.Path, m.Version)
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no version": {[]string{text}, "usage"},
		"no binary":  {[]string{"-version", "1", text}, "give a binary that Go linked"},
		"no file":    {[]string{"-version", "1", text + "2"}, "no such file"},
	} {
		if err := run(new(bytes.Buffer), test.args); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}
