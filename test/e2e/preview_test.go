package e2e_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"doze"
	"doze/internal/testkit"
)

// TestPublicClientSharesSandboxes drives previews and sessions with the
// unmodified npm package, as a service account: see previews.mjs.
func TestPublicClientSharesSandboxes(t *testing.T) {
	t.Parallel()
	p, _ := start(t)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.Address+"/v0/service_accounts", strings.NewReader(`{"name":"ci"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Key)
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var account doze.ServiceAccount
	if err := json.Unmarshal(b, &account); err != nil || account.Secret == "" {
		t.Fatalf("%s, %v", b, err)
	}
	dir := filepath.Join(testkit.Root(), "test", "e2e")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@blaxel", "core")); err != nil {
		t.Fatal("the npm package is missing: make deps-test installs it")
	}
	cmd := exec.CommandContext(t.Context(), "node", "previews.mjs")
	cmd.Dir = dir
	cmd.WaitDelay = 10 * time.Second
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "BL_") }),
		"BL_API_URL="+p.Address+"/v0", "BL_WORKSPACE=main", "BL_REGION=local", "BL_DISABLE_H2=1", "DO_NOT_TRACK=1",
		"BL_CLIENT_CREDENTIALS="+base64.StdEncoding.EncodeToString([]byte(account.ClientID+":"+account.Secret)),
	)
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
}
