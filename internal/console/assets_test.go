package console_test

import (
	"bytes"
	"io/fs"
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
	committed, built := files(t, "assets"), files(t, dir)
	for name := range committed {
		if _, ok := built[name]; !ok {
			t.Errorf("a build of app does not make %s: run make console, and commit assets", name)
		}
	}
	for name, content := range built {
		if !bytes.Equal(committed[name], content) {
			t.Errorf("%s has %d bytes, and a build of app makes %d others: run make console, and commit assets", name, len(committed[name]), len(content))
		}
	}
}

// files are the contents of the files below a directory, by their paths in it.
func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		all[name], err = os.ReadFile(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
