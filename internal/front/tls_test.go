package front

import (
	"crypto/tls"
	"errors"
	"net/http/httptest"
	"path/filepath"
	"testing"
)

// TestUpgrade: a browser is sent on, byte for byte; who sent something that
// nobody else should read is told.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		public, method, target, host, key string
		status                            int
		to                                string
	}{
		"page":           {"https://doze.test", "GET", "/a//b/%2e?c=%zz", "www.preview.shop.example", "", 308, "https://www.preview.shop.example/a//b/%2e?c=%zz"},
		"another port":   {"https://doze.test:8443", "HEAD", "/", "doze.test:80", "", 308, "https://doze.test:8443/"},
		"two slashes":    {"https://doze.test", "GET", "//evil.test/", "doze.test", "", 308, "https://doze.test//evil.test/"},
		"with a key":     {"https://doze.test", "GET", "/", "doze.test", "Bearer x", 403, ""},
		"with a body":    {"https://doze.test", "POST", "/", "doze.test", "", 403, ""},
		"to be proxied":  {"https://doze.test", "GET", "http://evil.test/", "evil.test", "", 403, ""},
		"to the machine": {"https://doze.test", "OPTIONS", "*", "doze.test", "", 403, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := httptest.NewRequest(tt.method, "/", nil)
			r.RequestURI, r.Host = tt.target, tt.host
			r.Header.Set("Authorization", tt.key)
			w := httptest.NewRecorder()
			upgrade(tt.public).ServeHTTP(w, r)
			if w.Code != tt.status || w.Header().Get("Location") != tt.to {
				t.Errorf("%d to %q", w.Code, w.Header().Get("Location"))
			}
		})
	}
}

// TestGivenCertificate comes before those of the authority.
func TestGivenCertificate(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, 1) // for localhost
	given, err := openPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if at := (&Front{given: given}).ends()["file"]; at != given.loaded.Leaf.NotAfter || at.IsZero() {
		t.Errorf("the certificate ends at %v, want %v", at, given.loaded.Leaf.NotAfter)
	}
	if ends := (&Front{}).ends(); len(ends) > 0 {
		t.Errorf("without a certificate: %v", ends)
	}
	errOther := errors.New("another one")
	get := given.orElse(func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, errOther })
	for name, ours := range map[string]bool{"localhost": true, "LocalHost": true, "": true, "shop.example": false} {
		pair, err := get(&tls.ClientHelloInfo{ServerName: name})
		if ours && (err != nil || pair == nil) || !ours && !errors.Is(err, errOther) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestLoopback(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"127.0.0.1:7080": true, "127.1.2.3:1": true, "[::1]:80": true, "localhost:80": true,
		":80": false, "0.0.0.0:80": false, "[::]:80": false, "192.0.2.1:80": false, "example.com:80": false,
	} {
		if got := loopback(address); got != want {
			t.Errorf("%s: %t", address, got)
		}
	}
}

func TestRoots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, 1)
	for file, fine := range map[string]bool{"": true, cert: true, key: false, filepath.Join(dir, "none"): false} {
		if _, err := readRoots(file); (err == nil) != fine {
			t.Errorf("%s: %v", file, err)
		}
	}
}
