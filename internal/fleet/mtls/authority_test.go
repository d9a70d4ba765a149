package mtls_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet/mtls"
)

func request(tb testing.TB, key any) []byte {
	tb.Helper()
	raw, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{"control.doze.internal"}}, key)
	if err != nil {
		tb.Fatal(err)
	}
	return raw
}

func newKey(tb testing.TB) *ecdsa.PrivateKey {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return key
}

// TestSignNode: what is signed is the certificate of one node, whatever the request asks for.
func TestSignNode(t *testing.T) {
	t.Parallel()
	dir := made(t)
	a, err := mtls.OpenAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	trust, err := mtls.ParseTrust(a.PEM(), a.Fingerprint())
	if err != nil {
		t.Fatal(err)
	}
	key, id := newKey(t), "abcdefgh"
	cert, err := a.SignNode(request(t, key), id, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "fleet")
	if err := trust.Store(at, "another1", cert, key); err == nil {
		t.Error("the certificate of another node is stored")
	}
	if err := trust.Store(at, id, cert, newKey(t)); err == nil {
		t.Error("the certificate of another key is stored")
	}
	if joined, err := mtls.Joined(at); joined || err != nil {
		t.Errorf("before it has a certificate: %v, %v", joined, err)
	}
	if err := trust.Store(at, id, cert, key); err != nil {
		t.Fatal(err)
	}
	if _, err := mtls.Open(at, mtls.Control); err == nil {
		t.Error("a node can be control")
	}
	url := serve(t, open(t, dir, mtls.Control), mtls.Node)
	if status, body, err := ask(t.Context(), open(t, at, mtls.Node).Transport(mtls.Control), url); status != http.StatusOK {
		t.Errorf("the node calls control: %d %s, %v", status, body, err)
	}
	strong, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	broken := request(t, key)
	broken[len(broken)-1] ^= 1
	for what, bad := range map[string][]byte{"nothing": nil, "text": []byte("hello"), "another kind of key": request(t, strong), "no proof of the key": broken} {
		if _, err := a.SignNode(bad, id, time.Hour); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, bad := range []string{"", "short", "with.dots.in.it", "Capitals1", strings.Repeat("a", 41), "*", "abcdefg\x00"} {
		if _, err := a.SignNode(request(t, key), bad, time.Hour); doze.Public(err).Kind != doze.Invalid {
			t.Errorf("the id %q: %v", bad, err)
		}
	}
	other, err := mtls.OpenAuthority(made(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := mtls.ParseTrust(other.PEM(), a.Fingerprint()); doze.Public(err).Kind != doze.Forbidden {
		t.Errorf("another authority: %v", err)
	}
	if cert, err = other.SignNode(request(t, key), id, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := trust.Store(at, id, cert, key); err == nil {
		t.Error("the certificate of another authority is stored")
	}
}

func FuzzSignNode(f *testing.F) {
	dir := filepath.Join(f.TempDir(), "fleet")
	if _, err := mtls.Make(dir); err != nil {
		f.Fatal(err)
	}
	a, err := mtls.OpenAuthority(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(request(f, newKey(f)), "abcdefgh")
	f.Fuzz(func(t *testing.T, csr []byte, id string) {
		cert, err := a.SignNode(csr, id, time.Hour)
		if (err == nil) != (len(cert) > 0) {
			t.Errorf("%d bytes, %v", len(cert), err)
		}
	})
}

func FuzzParseTrust(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), "00")
	f.Fuzz(func(t *testing.T, text []byte, mark string) {
		if trust, err := mtls.ParseTrust(text, mark); (err == nil) != (trust != nil) {
			t.Errorf("%v, %v", trust, err)
		}
	})
}
