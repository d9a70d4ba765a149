package e2e_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"doze/internal/testkit"
)

// TestPublicClient drives the platform with the unmodified npm package
// @blaxel/core: see e2e.mjs.
func TestPublicClient(t *testing.T) {
	t.Parallel()
	p, _ := start(t, "--pause-after", "1s", "--save-after", "300ms", "--disk-after", "1s")
	dir := filepath.Join(testkit.Root(), "test", "e2e")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@blaxel", "core")); err != nil {
		t.Fatal("the npm package is missing: make deps-test installs it")
	}
	cmd := exec.CommandContext(t.Context(), "node", "e2e.mjs")
	cmd.Dir = dir
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(os.Environ(),
		"BL_API_URL="+p.Address+"/v0", "BL_API_KEY="+p.Key, "BL_WORKSPACE=main",
		"BL_REGION=local", "BL_DISABLE_H2=1", "DO_NOT_TRACK=1", "E2E_SLEEP_TIMEOUT_S=60", "E2E_ASLEEP_S=4", "E2E_MEMORY=1024",
	)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
