package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/testkit"
)

// TestEngineUpgrade replaces the engine under sandboxes that run and sleep. They
// stay in the one that they began in, and when the last of them is gone, so is
// that.
func TestEngineUpgrade(t *testing.T) {
	t.Parallel()
	p, c := start(t, "--pause-after", "1s", "--save-after", "100ms", "--disk-after", "200ms")
	_, asleep := create(t, c, named("asleep", 512))
	digest := random(t, asleep, "8")
	_, awake := create(t, c, named("awake", 512))
	counting(t, awake, true)
	before := count(t, awake)
	awaitTier(t, p, "asleep", "disk")
	sleeps(t, c, "asleep")
	engines := func() int {
		names, err := filepath.Glob(filepath.Join(p.Data, "engines", "*", "doze-sentry"))
		if err != nil {
			t.Fatal(err)
		}
		return len(names)
	}

	if err := p.Replace(); err != nil {
		t.Fatal(err)
	}
	p.Binaries(upgrade(t))
	revive(t, p)
	if n := engines(); n != 2 {
		t.Errorf("%d engines are installed, want the old one and the new one", n)
	}
	if after := count(t, awake); after <= before {
		t.Errorf("it counted from %v to %v", before, after)
	}
	if got := sh(t, asleep, "sha256sum </dev/shm/random"); got != digest {
		t.Errorf("its memory is %s and was %s", got, digest)
	}
	_, fresh := create(t, c, named("fresh", 512))
	if out := sh(t, fresh, "hostname"); out != "fresh" {
		t.Errorf("the new one is %q", out)
	}
	awaitTier(t, p, "asleep", "disk") // again, in the old one
	for _, name := range []string{"asleep", "awake"} {
		if _, err := c.Delete(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		until(t, name+" is gone", func() bool {
			sb, err := c.Sandbox(t.Context(), name)
			return kind(err) == doze.NotFound || err == nil && sb.Status == "TERMINATED"
		})
	}
	if err := p.Replace(); err != nil {
		t.Fatal(err)
	}
	revive(t, p)
	if n := engines(); n != 1 {
		t.Errorf("%d engines are installed, want the new one", n)
	}
	if out := sh(t, fresh, "hostname"); out != "fresh" {
		t.Errorf("the new one is %q", out)
	}
}

// upgrade returns a directory of binaries with another engine.
func upgrade(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"dozed", "doze-agent"} {
		// No link: dozed finds the others beside the file that it is.
		raw, err := os.ReadFile(filepath.Join(testkit.Root(), "bin", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), raw, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	engine := filepath.Join("bin", "engine")
	for _, args := range [][]string{
		{"run", "./internal/machine/gvisor/launcher/patch/apply", engine},
		{"build", "-trimpath", "-modfile", filepath.Join(engine, "go.mod"), "-ldflags", "-s -w -X gvisor.dev/gvisor/runsc/version.version=v9.9.9-next", "-o", filepath.Join(dir, "doze-sentry"), "github.com/dozehq/doze/cmd/doze-sentry"},
	} {
		build := exec.CommandContext(t.Context(), "go", args...)
		build.Dir, build.Env = testkit.Root(), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return dir
}
