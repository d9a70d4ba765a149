package console_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestAssetsAreTheSource: a build of app makes the committed assets, byte for byte. It
// needs the packages that the lock names, which a first run gets.
func TestAssetsAreTheSource(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it builds the page, in short mode")
	}
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("SKIPPED: there is no npm: make deps-test installs it")
	}
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = "app"
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
	}
	if _, err := os.Stat("app/node_modules/.package-lock.json"); err != nil {
		run("npm", "ci", "--no-audit", "--no-fund", "--loglevel=error")
	}
	dir := t.TempDir()
	run("npm", "run", "--silent", "check")
	run("node", "build.mjs", dir)
	for _, name := range []string{"app.js", "app.css", "icon.svg"} {
		committed, err := os.ReadFile(filepath.Join("assets", name))
		if err != nil {
			t.Fatal(err)
		}
		built, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(committed, built) {
			t.Errorf("%s has %d bytes, and a build of app makes %d others: run make console, and commit assets", name, len(committed), len(built))
		}
	}
}
