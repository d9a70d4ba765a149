package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/testkit"
)

// TestPage: the page has a row for each software, and says today's limits.
func TestPage(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join(testkit.Root(), "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(raw)
	for _, s := range all {
		if !strings.Contains(page, "\n| "+s.name+" | ") {
			t.Errorf("no row is of %s: make compatibility", s.name)
		}
		if s.version == "" || s.before == "" || s.after == "" {
			t.Errorf("%s is not looked at before and after a sleep", s.name)
		}
	}
	empty := written(nil)
	if head, _, _ := strings.Cut(empty, "\n\n## "); !strings.HasPrefix(page, head) || !strings.HasSuffix(page, limits) {
		t.Error("the page says something else than today's: make compatibility")
	}
	if got, want := strings.Count(page, "\n| "), strings.Count(empty, "\n| ")+len(all); got != want {
		t.Errorf("the page has %d rows, want %d", got, want)
	}
}
