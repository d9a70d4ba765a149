package archive

import (
	"os"
	"path/filepath"
	"testing"
)

// TestAuthoritiesAreNoChange: what the agent writes about authorities is none of the
// owner's changes, and neither is a bundle of the image that became a link to it. Other
// links are.
func TestAuthoritiesAreNoChange(t *testing.T) {
	t.Parallel()
	root, image := t.TempDir(), t.TempDir()
	write := func(name string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const bundle = "etc/ssl/certs/ca-certificates.crt"
	write(filepath.Join(image, bundle))
	for _, dir := range []string{root, image} {
		write(filepath.Join(dir, "usr/local/share/ca-certificates/theirs.crt"))
	}
	write(filepath.Join(root, "etc/doze/ca-bundle.pem"))
	write(filepath.Join(root, "usr/local/share/ca-certificates/doze.crt"))
	for name, to := range map[string]string{
		bundle:                     "../../doze/ca-bundle.pem",
		"etc/ssl/certs/0a1b2c3d.0": "../../../usr/local/share/ca-certificates/doze.crt",
		"etc/ssl/certs/mine.0":     "../../../usr/local/share/ca-certificates/theirs.crt",
	} {
		name = filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	changes, err := Scan(t.Context(), root, image, nil)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]Kind{}
	for _, c := range changes {
		if c.Path != "etc" && c.Path != "etc/ssl" && c.Path != "etc/ssl/certs" && c.Path != "usr/local/share/ca-certificates" { // times of directories
			found[c.Path] = c.Kind
		}
	}
	delete(found, "usr/local/share/ca-certificates/theirs.crt") // by its time
	if len(found) != 1 || found["etc/ssl/certs/mine.0"] != Added {
		t.Errorf("%v", found)
	}
}
