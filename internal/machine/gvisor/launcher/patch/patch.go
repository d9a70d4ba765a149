// Package patch makes the gVisor that the engine is built with: a copy of the module
// with a few named changes. It changes what gVisor does. What gVisor saves stays the same, but
// for some more answers of the processor.
package patch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Module is what is changed.
const Module = "gvisor.dev/gvisor"

const (
	copied = "gvisor" // in the directory of Apply: the changed module
	made   = "made"   // likewise: which version and changes it was made of
)

// errText says that gVisor does not have the text that a change replaces.
var errText = errors.New("gVisor has another text there: adapt the change to this version")

// Apply makes the changed module in dir. With it come a go.mod and a go.sum for the flag
// -modfile of a build in root, the directory of our module. It does nothing if both are
// there already. Several processes may call it at once.
func Apply(ctx context.Context, root, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // G301: sources that anybody may read
		return fmt.Errorf("make the directory of the engine: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("lock the directory of the engine: %w", err)
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock the directory of the engine: %w", err)
	}
	from, version, err := source(ctx, root)
	if err != nil {
		return err
	}
	mod, sum, err := modules(root, dir)
	if err != nil {
		return err
	}
	want := []byte(version + " " + digest(mod, sum) + "\n")
	if have, err := os.ReadFile(filepath.Join(dir, made)); err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err := errors.Join(os.RemoveAll(filepath.Join(dir, made)), os.RemoveAll(filepath.Join(dir, copied))); err != nil {
		return fmt.Errorf("remove the last engine: %w", err)
	}
	if err := change(from, filepath.Join(dir, copied)); err != nil {
		return err
	}
	for name, text := range map[string][]byte{"go.mod": mod, "go.sum": sum, made: want} { // made counts with both
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil { //nolint:gosec // G306: likewise
			return fmt.Errorf("write the module of the engine: %w", err)
		}
	}
	return nil
}

// source returns where the module is, and its version. It downloads the module first if it
// is not there.
func source(ctx context.Context, root string) (dir, version string, err error) {
	download := exec.CommandContext(ctx, "go", "mod", "download", "-json", Module)
	download.Dir = root
	raw, err := download.Output()
	var about struct{ Dir, Version, Error string }
	if json.Unmarshal(raw, &about) == nil && about.Error != "" {
		err = errors.New(about.Error)
	}
	if err != nil {
		return "", "", fmt.Errorf("go mod download %s: %w", Module, err)
	}
	if about.Dir == "" {
		return "", "", fmt.Errorf("go mod download %s does not say where the module is", Module)
	}
	return about.Dir, about.Version, nil
}

// modules returns our go.mod, with the changed module in the place of gVisor's, and our
// go.sum.
func modules(root, dir string) (mod, sum []byte, err error) {
	if mod, err = os.ReadFile(filepath.Join(root, "go.mod")); err != nil {
		return nil, nil, err
	}
	if sum, err = os.ReadFile(filepath.Join(root, "go.sum")); err != nil {
		return nil, nil, err
	}
	at, err := replacement(root, filepath.Join(dir, copied))
	if err != nil {
		return nil, nil, err
	}
	return append(mod, fmt.Sprintf("\nreplace %s => %q\n", Module, at)...), sum, nil
}

// replacement is how a go.mod for root names a directory. A binary has that name in it: one
// that is below root must not say where root is, or two builds would differ.
func replacement(root, dir string) (string, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if root, err = filepath.Abs(root); err != nil {
		return "", err
	}
	if rel, err := filepath.Rel(root, dir); err == nil && filepath.IsLocal(rel) {
		return "./" + filepath.ToSlash(rel), nil
	}
	return dir, nil
}

// digest names what Apply makes of a version.
func digest(mod, sum []byte) string {
	h := sha256.New()
	for _, part := range [][]byte{mod, sum} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	for _, e := range edits {
		fmt.Fprintf(h, "%q", []string{e.file, e.old, e.with})
	}
	for _, name := range sorted(added) {
		fmt.Fprintf(h, "%q", []string{name, added[name]})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// change copies a module with all changes.
func change(from, to string) error {
	texts, err := changed(from)
	if err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil { // which makes files that may be written to
		return fmt.Errorf("copy %s: %w", Module, err)
	}
	for _, name := range sorted(texts) {
		if err := write(filepath.Join(to, name), texts[name]); err != nil {
			return fmt.Errorf("change %s: %w", Module, err)
		}
	}
	return nil
}

// changed returns the new text of each file that is changed or added.
func changed(from string) (map[string][]byte, error) {
	texts := map[string][]byte{}
	for name, text := range added {
		texts[name] = []byte(mark + text)
		if _, err := os.Lstat(filepath.Join(from, name)); !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: %w", name, errText)
		}
	}
	for _, e := range edits {
		text := texts[e.file]
		if text == nil {
			raw, err := os.ReadFile(filepath.Join(from, e.file))
			if err != nil {
				return nil, err
			}
			text = append([]byte(mark), raw...)
		}
		if bytes.Count(text, []byte(e.old)) != 1 {
			return nil, fmt.Errorf("%s, %q: %w", e.file, e.old, errText)
		}
		texts[e.file] = bytes.Replace(text, []byte(e.old), []byte(e.with), 1)
	}
	return texts, nil
}

// write writes one file. Those of the cache of modules may not be written to.
func write(name string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // G301: likewise
		return err
	}
	return os.WriteFile(name, text, 0o644) //nolint:gosec // G306: likewise
}

// sorted returns the keys of m in order.
func sorted[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
