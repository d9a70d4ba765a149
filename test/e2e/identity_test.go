package e2e_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/dozehq/doze"
)

// TestServiceAccountComesAndGoes: a program logs in with its client secret,
// uses a sandbox, and loses both its token and its open stream with its
// account.
func TestServiceAccountComesAndGoes(t *testing.T) {
	t.Parallel()
	p, c := start(t)
	call := func(method, path, body string, header http.Header, status int, out any) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, p.Address+"/v0"+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header.Clone()
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != status {
			t.Fatalf("%s %s: %d %s, %v", method, path, resp.StatusCode, b, err)
		}
		if err := json.NewDecoder(bytes.NewReader(b)).Decode(out); err != nil {
			t.Fatal(err)
		}
	}
	admin := http.Header{"Authorization": {"Bearer " + p.Key}}
	var account doze.ServiceAccount
	call("POST", "/service_accounts", `{"name":"ci"}`, admin, 200, &account)
	var token struct {
		Access string `json:"access_token"`
	}
	basic := "Basic " + base64.StdEncoding.EncodeToString([]byte(account.ClientID+":"+account.Secret))
	call("POST", "/oauth/token", `{"grant_type":"client_credentials"}`, http.Header{"Authorization": {basic}}, 200, &token)
	as := http.Header{"X-Blaxel-Authorization": {"Bearer " + token.Access}}

	sb, err := c.Create(t.Context(), doze.Sandbox{Metadata: doze.Metadata{Name: "a"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, sb.Metadata.URL+"/process", strings.NewReader(`{"command":"sleep 3600","name":"s"}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = as.Clone()
	r.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", resp, err)
	}
	_ = resp.Body.Close()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err = http.NewRequestWithContext(ctx, http.MethodGet, sb.Metadata.URL+"/process/s/logs/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header = as
	stream, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || stream.StatusCode != http.StatusOK {
		t.Fatalf("%v, %v", stream, err)
	}
	defer func() { _ = stream.Body.Close() }()

	var gone any
	call("DELETE", "/service_accounts/"+account.ClientID, "", admin, 200, &gone)
	if _, err := io.Copy(io.Discard, stream.Body); err != nil {
		t.Logf("the stream ended with %v", err) // how it ends is not ours to say
	}
	if ctx.Err() != nil { // a test of package edge knows when
		t.Error("the stream goes on")
	}
	call("GET", "/sandboxes", "", as, 401, &gone)
}
