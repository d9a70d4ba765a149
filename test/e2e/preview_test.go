package e2e_test

import (
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
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
	script(t, p, "previews.mjs", "BL_CLIENT_CREDENTIALS="+base64.StdEncoding.EncodeToString([]byte(account.ClientID+":"+account.Secret)))
}
