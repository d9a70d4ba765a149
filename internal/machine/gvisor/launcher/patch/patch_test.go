package patch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// root is the directory of our module.
const root = "../../../../.."

func TestChanged(t *testing.T) {
	t.Parallel()
	from, _, err := source(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	texts, err := changed(from)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range texts {
		if !strings.HasPrefix(string(text), mark) {
			t.Errorf("%s does not say that it was changed", name)
		}
	}
}

func TestChangedRefuses(t *testing.T) {
	t.Parallel()
	e := edits[0]
	for name, text := range map[string]string{"the text is gone": "package state\n", "the text is there twice": e.old + e.old} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, e := range edits {
				if err := write(filepath.Join(dir, e.file), []byte(text)); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := changed(dir); !errors.Is(err, errText) || !strings.Contains(err.Error(), e.file) {
				t.Errorf("the error is %v, want one that names %s", err, e.file)
			}
		})
	}
	t.Run("a file of that name is there", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		for name := range added {
			if err := write(filepath.Join(dir, name), nil); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := changed(dir); !errors.Is(err, errText) {
			t.Errorf("the error is %v", err)
		}
	})
}

// TestSource asks for the module on a machine that has none yet, as a newcomer's is.
func TestSource(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED: it downloads gVisor")
	}
	t.Setenv("GOMODCACHE", filepath.Join(t.TempDir(), "cache"))
	t.Setenv("GOFLAGS", "-modcacherw") // or the directory could not be removed
	dir, version, err := source(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "pkg/state/state.go")); err != nil {
		t.Errorf("version %s: %v", version, err)
	}
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOMODCACHE", filepath.Join(t.TempDir(), "empty"))
	if _, _, err := source(t.Context(), root); err == nil || !strings.Contains(err.Error(), "GOPROXY=off") {
		t.Errorf("without a way to download it: %v", err)
	}
}

// TestApply makes a changed module, and makes it again only if something changed.
func TestApply(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "engine")
	apply := func() time.Time {
		t.Helper()
		if err := Apply(t.Context(), root, dir); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(filepath.Join(dir, copied, "pkg/state/encode.go"))
		if err != nil {
			t.Fatal(err)
		}
		return info.ModTime()
	}
	first := apply()
	if again := apply(); !again.Equal(first) {
		t.Error("it was made again without a change")
	}
	if err := os.WriteFile(filepath.Join(dir, made), []byte("of another version\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if again := apply(); again.Equal(first) {
		t.Error("that of another version is left")
	}
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if info, err := d.Info(); err != nil || info.Mode().Perm()&0o200 == 0 {
				t.Errorf("%s may not be written to, and so not be removed by all: %v", name, err)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestInside runs the tests of testdata inside of packages of the changed gVisor: only
// those see what was added there.
func TestInside(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it compiles a part of gVisor")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	dir := t.TempDir()
	if err := Apply(ctx, root, dir); err != nil {
		t.Fatal(err)
	}
	args := []string{"test", "-modfile", filepath.Join(dir, "go.mod"), "-count=1", "-vet=off"}
	for name, pkg := range map[string]string{
		"stop_test.go": "pkg/state", "encode_test.go": "pkg/state", "watch_test.go": "pkg/sentry/pgalloc", "aside_test.go": "pkg/sentry/pgalloc",
		"processor_test.go": "pkg/cpuid",
	} {
		raw, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = write(filepath.Join(dir, copied, pkg, name), raw)
		}
		if err != nil {
			t.Fatal(err)
		}
		if pkg = Module + "/" + pkg; !slices.Contains(args, pkg) {
			args = append(args, pkg)
		}
	}
	run := exec.CommandContext(ctx, "go", args...)
	run.Dir = root
	if out, err := run.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// TestEncodesTheSame runs the test of the encoder inside of gVisor as it is, and inside of the
// changed one: a checkpoint of one can be loaded by the other.
func TestEncodesTheSame(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("SKIPPED: it compiles a part of gVisor")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	original, _, err := source(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join("testdata", "encode_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	encoding := func(module string) string {
		t.Helper()
		if err := write(filepath.Join(module, "pkg/state/encode_test.go"), raw); err != nil {
			t.Fatal(err)
		}
		run := exec.CommandContext(ctx, "go", "test", "-count=1", "-vet=off", "-v", "-run", "^TestEncoding$", "./pkg/state")
		run.Dir = module
		out, err := run.CombinedOutput()
		_, after, found := strings.Cut(string(out), "encoding ")
		if err != nil || !found {
			t.Fatalf("%v: %s", err, out)
		}
		sum, _, _ := strings.Cut(after, "\n")
		return sum
	}
	unchanged, changed := filepath.Join(t.TempDir(), "unchanged"), filepath.Join(t.TempDir(), "changed")
	if err := os.CopyFS(unchanged, os.DirFS(original)); err != nil {
		t.Fatal(err)
	}
	if err := change(original, changed); err != nil {
		t.Fatal(err)
	}
	if was, is := encoding(unchanged), encoding(changed); was != is {
		t.Errorf("gVisor encodes %s, and the changed one %s", was, is)
	}
}
