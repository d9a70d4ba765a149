package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze/internal/testkit"
	"github.com/dozehq/doze/internal/testkit/bucket"
)

// TestPublicClient drives the platform with the unmodified npm package
// @blaxel/core: see e2e.mjs.
func TestPublicClient(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--pause-after", "1s", "--save-after", "300ms", "--disk-after", "1s")
	script(t, p, "e2e.mjs", "BL_API_KEY="+p.Key, "E2E_SLEEP_TIMEOUT_S=60", "E2E_ASLEEP_S=4", "E2E_MEMORY=1024")
}

// TestPublicClientRecords drives what is on record of sandboxes in the same way:
// see records.mjs.
func TestPublicClientRecords(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	script(t, p, "records.mjs", "BL_API_KEY="+p.Key)
}

// TestPublicClientCopies drives snapshots, forks and archives in the same way:
// see copies.mjs.
func TestPublicClientCopies(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	script(t, p, "copies.mjs", "BL_API_KEY="+p.Key)
}

// TestPublicClientSchedules drives schedules in the same way, of a sandbox that
// sleeps on disk: see schedules.mjs.
func TestPublicClientSchedules(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--pause-after", "300ms", "--save-after", "300ms", "--disk-after", "1s")
	script(t, p, "schedules.mjs", "BL_API_KEY="+p.Key)
}

// TestPublicClientVolumes drives volumes in the same way: see volumes.mjs.
func TestPublicClientVolumes(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	script(t, p, "volumes.mjs", "BL_API_KEY="+p.Key)
}

// TestPublicClientDrives does so with drives: see drives.mjs.
func TestPublicClientDrives(t *testing.T) {
	t.Parallel()
	srv := bucket.Serve(t)
	p, _ := start(t, "--drives", srv.URL, "--drives-credentials", srv.Credentials)
	script(t, p, "drives.mjs", "BL_API_KEY="+p.Key)
}

// TestPublicClientProduct drives the gaps that a product meets: see product.mjs.
func TestPublicClientProduct(t *testing.T) {
	t.Parallel()
	srv := bucket.Serve(t)
	p, _ := start(t, "--regions", "local,us-pdx-1", "--egress", "open", "--drives", srv.URL, "--drives-credentials", srv.Credentials)
	script(t, p, "product.mjs", "BL_API_KEY="+p.Key)
}

// script runs a program that uses the npm package, with these variables and
// those that say where the platform is.
func script(t *testing.T, p *testkit.Platform, name string, env ...string) {
	t.Helper()
	dir := filepath.Join(testkit.Root(), "test", "e2e")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@blaxel", "core")); err != nil {
		t.Fatal("the npm package is missing: make deps-test installs it")
	}
	cmd := exec.CommandContext(t.Context(), "node", name)
	cmd.Dir = dir
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = slices.Concat(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BL_") }), []string{
		"BL_API_URL=" + p.Address + "/v0", "BL_WORKSPACE=main", "BL_REGION=local", "BL_DISABLE_H2=1", "DO_NOT_TRACK=1",
	}, env)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
