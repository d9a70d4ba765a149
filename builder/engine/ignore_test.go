package engine

import (
	"os"
	"path/filepath"
	"testing"
)

func TestIgnoredBy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		".dockerignore":                "*.log\ndocs\n!docs/keep.md\n",
		"own/Dockerfile.dockerignore":  "src\n",
		"link/Dockerfile.dockerignore": "", // replaced below
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("*\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link/Dockerfile.dockerignore")
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ dockerfile, path, want string }{
		{"", "a.log", ".dockerignore"},
		{"", "docs/deep/a.md", ".dockerignore"},
		{"", "docs/keep.md", ""},
		{"", "src/main.go", ""},
		{"own/Dockerfile", "src/main.go", "own/Dockerfile.dockerignore"},
		{"own/Dockerfile", "a.log", ""},
		{"link/Dockerfile", "src/main.go", ""}, // the link leads out of the context
	} {
		if got := ignoredBy(dir, c.dockerfile, c.path); got != c.want {
			t.Errorf("%q, %q: %q, want %q", c.dockerfile, c.path, got, c.want)
		}
	}
}
