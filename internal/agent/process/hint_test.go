package process

import (
	"path/filepath"
	"testing"
)

// TestHint: a program that lacks control groups hears what to ask for, and only where they
// are missing.
func TestHint(t *testing.T) {
	t.Parallel()
	there := t.TempDir()
	missing := filepath.Join(there, "none")
	for _, text := range withoutGroups {
		last := "failed to start daemon: " + text + ".\n"
		if got := hintAt(last, missing); got != containersHint {
			t.Errorf("%q: %q", last, got)
		}
		if got := hintAt(last, there); got != "" {
			t.Errorf("%q, with control groups: %q", last, got)
		}
	}
	if got := hintAt("no such file or directory\n", missing); got != "" {
		t.Errorf("another failure: %q", got)
	}
}
