package e2e_test

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// previous is the last commit of the release before this one. It changes with each release.
const previous = "0f1b93b4cecd4f4fe3565827b5cc05032bff241f"

// older is the directory of a dozed of the previous release. Beside it are the other programs of
// this one: an operator replaces all of them first, and restarts dozed then.
var older = sync.OnceValues(func() (dir string, err error) {
	root := testkit.Root()
	if err := runIn(root, "git", "cat-file", "-e", previous+"^{commit}"); err != nil {
		return "", fmt.Errorf("%w: this copy of the repository does not have the previous release: get its whole history with git fetch --unshallow: %w", errors.ErrUnsupported, err)
	}
	if dir, err = os.MkdirTemp("", "doze-older-"); err != nil {
		return "", err
	}
	source := filepath.Join(dir, "source")
	if err := extract(root, source); err != nil {
		return dir, err
	}
	if err := runIn(source, "go", "build", "-trimpath", "-o", filepath.Join(dir, "dozed"), "./cmd/dozed"); err != nil {
		return dir, err
	}
	for _, program := range []string{"doze-sentry", "doze-agent", "doze-builder"} {
		if err := os.Symlink(filepath.Join(root, "bin", program), filepath.Join(dir, program)); err != nil {
			return dir, err
		}
	}
	return dir, os.RemoveAll(source)
})

// runIn runs a program in a directory.
func runIn(dir, name string, args ...string) error {
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

// extract writes the files of the previous release into a directory.
func extract(root, dir string) (err error) {
	cmd := exec.Command("git", "archive", previous)
	cmd.Dir = root
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cmd.Wait()) }()
	for files := tar.NewReader(out); ; {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if err := copyFile(filepath.Join(dir, filepath.FromSlash(h.Name)), files); err != nil {
			return err
		}
	}
}

func copyFile(file string, from io.Reader) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, from)
	return errors.Join(err, out.Close())
}

// TestNeighbours: roles of the previous release work together with those of this one.
func TestNeighbours(t *testing.T) {
	t.Parallel()
	t.Cleanup(func() {
		if dir, _ := older(); dir != "" {
			_ = os.RemoveAll(dir)
		}
	})
	for name, roles := range map[string][]string{
		"control is older":        {testkit.Control},
		"node and edge are older": {testkit.Node, testkit.Edge},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			neighbours(t, roles)
		})
	}
}

// neighbours has a platform whose roles are partly of the previous release do what users do.
func neighbours(t *testing.T, roles []string) {
	t.Helper()
	dir, err := older()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip("SKIPPED: ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	programs := map[string]string{}
	for _, role := range roles {
		programs[role] = filepath.Join(dir, "dozed")
	}
	_, c := launch(t, nil, testkit.Options{Roles: true, Programs: programs, Args: []string{"--pause-after", "10m"}})
	sb, agent := create(t, c, named("a", 256))
	if got := sh(t, agent, "echo kept >/tmp/note; sleep 1000 >/dev/null & echo $! >/tmp/pid; echo here"); strings.TrimSpace(got) != "here" {
		t.Errorf("a command says %q", got)
	}
	if _, err := c.Sleep(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	until(t, "it sleeps", func() bool {
		got, err := c.Sandbox(t.Context(), "a")
		return err == nil && got.State == "STANDBY"
	})
	if got := sh(t, agent, "cat /tmp/note; kill -0 $(cat /tmp/pid) && echo runs"); strings.Join(strings.Fields(got), " ") != "kept runs" {
		t.Errorf("it woke with %q", got)
	}
	if _, err := c.Delete(t.Context(), sb.Metadata.Name); err != nil {
		t.Fatal(err)
	}
	until(t, "it is gone", func() bool {
		sb, err := c.Sandbox(t.Context(), "a")
		return kind(err) == doze.NotFound || err == nil && sb.Status == "TERMINATED"
	})
}
