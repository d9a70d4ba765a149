package mtls_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/dozehq/doze/internal/fleet/mtls"
)

// open returns the identity of a role.
func open(t *testing.T, dir string, r mtls.Role) *mtls.Identity {
	t.Helper()
	i, err := mtls.Open(dir, r)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func made(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "fleet")
	if _, err := mtls.Make(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// serve has a role serve who may ask, and returns its address.
func serve(t *testing.T, i *mtls.Identity, may ...mtls.Role) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	of := map[mtls.Role]http.Handler{}
	for _, role := range may {
		of[role] = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	var served sync.WaitGroup
	served.Go(func() {
		if err := i.Serve(ctx, l, mtls.ByRole(of)); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); served.Wait() })
	return "https://" + l.Addr().String()
}

func ask(ctx context.Context, transport http.RoundTripper, url string) (status int, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), err
}

// TestRoles: every role is told from every other one, in both directions.
func TestRoles(t *testing.T) {
	t.Parallel()
	dir := made(t)
	for _, server := range mtls.Roles {
		for _, allowed := range mtls.Roles {
			url := serve(t, open(t, dir, server), allowed)
			for _, client := range mtls.Roles {
				for _, expected := range mtls.Roles {
					status, body, err := ask(t.Context(), open(t, dir, client).Transport(expected), url)
					switch {
					case expected != server:
						if err == nil {
							t.Errorf("%s takes %s for %s", client, server, expected)
						}
					case client == allowed:
						if err != nil || status != http.StatusOK || body != "HTTP/2.0" {
							t.Errorf("%s asks %s: %d %q %v", client, server, status, body, err)
						}
					case err != nil || status != http.StatusForbidden:
						t.Errorf("%s asks %s, which is for %s: %d %v", client, server, allowed, status, err)
					}
				}
			}
		}
	}
}

func TestStrangers(t *testing.T) {
	t.Parallel()
	dir := made(t)
	url := serve(t, open(t, dir, mtls.Node), mtls.Roles...)
	for name, transport := range map[string]http.RoundTripper{
		"without a certificate":          &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, ForceAttemptHTTP2: true},
		"of another authority":           open(t, made(t), mtls.Control).Transport(mtls.Node),
		"in the clear":                   http.DefaultTransport,
		"with TLS 1.2 and a certificate": older(t, dir),
	} {
		target := url
		if name == "in the clear" {
			target = "http" + strings.TrimPrefix(url, "https")
		}
		if status, _, err := ask(t.Context(), transport, target); err == nil && status != http.StatusBadRequest {
			t.Errorf("%s: %d", name, status)
		}
	}
}

func older(t *testing.T, dir string) http.RoundTripper {
	t.Helper()
	transport := open(t, dir, mtls.Control).Transport(mtls.Node)
	transport.TLSClientConfig.MinVersion, transport.TLSClientConfig.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	return transport
}

// TestMakeAgain: new certificates are of the same authority, so that roles can be
// restarted one after the other.
func TestMakeAgain(t *testing.T) {
	t.Parallel()
	dir := made(t)
	before := open(t, dir, mtls.Control)
	if _, err := mtls.Make(dir); err != nil {
		t.Fatal(err)
	}
	url := serve(t, open(t, dir, mtls.Node), mtls.Control)
	if status, _, err := ask(t.Context(), before.Transport(mtls.Node), url); err != nil || status != http.StatusOK {
		t.Errorf("%d, %v", status, err)
	}
	for _, name := range []string{"ca.key", "control.key", "node.key", "edge.key"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		do   func(dir string) error
		text string
	}{
		"no certificate":        {func(dir string) error { return os.Remove(filepath.Join(dir, "node.crt")) }, "dozed certificates"},
		"no authority":          {func(dir string) error { return os.Remove(filepath.Join(dir, "ca.crt")) }, "authority"},
		"that of another role":  {func(dir string) error { return copyRole(dir, "edge", "node") }, "not the certificate of the role node"},
		"an authority of noise": {func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600) }, "has no certificate"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := made(t)
			if err := tc.do(dir); err != nil {
				t.Fatal(err)
			}
			if _, err := mtls.Open(dir, mtls.Node); err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("it is %v, want %q in it", err, tc.text)
			}
		})
	}
	dir := made(t)
	if err := os.Remove(filepath.Join(dir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := mtls.Make(dir); err == nil || !strings.Contains(err.Error(), "other half") {
		t.Errorf("an authority without its key is replaced: %v", err)
	}
}

func copyRole(dir, from, to string) error {
	for _, end := range []string{".crt", ".key"} {
		raw, err := os.ReadFile(filepath.Join(dir, from+end))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, to+end), raw, 0o600); err != nil {
			return err
		}
	}
	return nil
}
