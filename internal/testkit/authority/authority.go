// Package authority is a certificate authority that speaks ACME on the loopback
// interface, for tests: that of Let's Encrypt's own tests.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/letsencrypt/pebble/v2/ca"
	"github.com/letsencrypt/pebble/v2/db"
	"github.com/letsencrypt/pebble/v2/va"
	"github.com/letsencrypt/pebble/v2/wfe"
)

// Long is the life of a certificate that is not renewed yet. The authority
// advises to renew on some day around the last third: a short one at any time.
const Long = 90 * 24 * time.Hour

// Options say where the names lead that it gives certificates for.
type Options struct {
	Resolver string        // host:port of the DNS server that it asks
	TLSPort  int           // where it expects the answer of tls-alpn-01
	HTTPPort int           // where it expects that of http-01
	Life     time.Duration // of a certificate
}

// Authority is a running one.
type Authority struct {
	Directory string         // URL
	Contact   *x509.CertPool // whom to believe that it is the authority
	File      string         // the same, in the form of PEM
	Roots     *x509.CertPool // of the certificates that it gives

	server *httptest.Server
	orders atomic.Int64
}

// quick has it look at once: it would wait up to 15 seconds.
var quick = sync.OnceValue(func() error { return os.Setenv("PEBBLE_VA_NOSLEEP", "1") })

// Serve starts an authority for as long as tb lasts.
func Serve(tb testing.TB, o Options) *Authority {
	tb.Helper()
	if err := quick(); err != nil {
		tb.Fatal(err)
	}
	logger, records := slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), db.NewMemoryStore()
	issuer := ca.New(logger, records, "", "ecdsa", 0, 1, map[string]ca.Profile{"default": {ValidityPeriod: uint64(o.Life.Seconds())}})
	validator := va.New(logger, o.HTTPPort, o.TLSPort, false, o.Resolver, records)
	front := wfe.New(logger, records, validator, issuer, []string{"authority.test"}, false, false, 1, 1)
	a := &Authority{Contact: x509.NewCertPool(), Roots: x509.NewCertPool(), File: filepath.Join(tb.TempDir(), "authority.pem")}
	handler := front.Handler()
	a.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/order-plz") {
			a.orders.Add(1)
		}
		handler.ServeHTTP(w, r)
	}))
	tb.Cleanup(a.server.Close)
	a.Directory = a.server.URL + wfe.DirectoryPath
	a.Contact.AddCert(a.server.Certificate())
	a.Roots.AppendCertsFromPEM(issuer.GetRootCert(0).PEM())
	if err := os.WriteFile(a.File, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.server.Certificate().Raw}), 0o600); err != nil {
		tb.Fatal(err)
	}
	return a
}

// Orders is how many certificates it was asked for.
func (a *Authority) Orders() int { return int(a.orders.Load()) }

// Close makes it unreachable.
func (a *Authority) Close() { a.server.Close() }

// SelfSigned writes a certificate of names, and of the address 127.0.0.1, that vouches for
// itself for an hour. It returns its files.
func SelfSigned(tb testing.TB, names ...string) (cert, key string, roots *x509.CertPool) {
	tb.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of a test"}, DNSNames: names, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		tb.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		tb.Fatal(err)
	}
	roots.AddCert(parsed)
	return cert, key, roots
}
