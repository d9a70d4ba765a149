package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/certificate"
	"github.com/dozehq/doze/internal/httpx"
)

// plainTime bounds a request of plain HTTP next to TLS, and its answer: both are
// short.
const plainTime = 30 * time.Second

// openTLS returns how the listener speaks TLS: with the certificate of the
// configuration for the names in it, and with those of the authority for
// others. It is nil where the listener speaks plain HTTP.
func (p *platform) openTLS() (*tls.Config, error) {
	c := p.config
	if !c.secure() {
		if !loopback(c.Listen) {
			slog.Warn("keys and tokens are not encrypted on the way here: use --tls-cert or --acme, unless something in front does it", "listen", c.Listen)
		}
		return nil, nil //nolint:nilnil // the server takes nil for none
	}
	if c.ListenHTTP != "" {
		var err error
		if p.plain, err = net.Listen("tcp", c.ListenHTTP); err != nil { //nolint:noctx // it does not block
			return nil, fmt.Errorf("choose another address with --http-listen: %w", err)
		}
	}
	var given *files
	if c.TLSCert != "" {
		var err error
		if given, err = openCertificate(c.TLSCert, c.TLSKey); err != nil {
			return nil, err
		}
	}
	if !c.ACME {
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: given.get}, nil
	}
	roots, err := readRoots(c.ACMERoots)
	if err != nil {
		return nil, err
	}
	p.issuer, err = certificate.New(certificate.Config{
		Store: p.store, Directory: c.ACMEURL, Roots: roots, Email: c.ACMEEmail, Listen: p.door.Addr().String(), ListenHTTP: c.ListenHTTP, Ours: p.edge.Host,
	})
	if err != nil {
		return nil, err
	}
	secure := p.issuer.TLS()
	if given != nil {
		secure.GetCertificate = given.orElse(secure.GetCertificate)
	}
	return secure, nil
}

// readRoots reads the certificates of a PEM file; nil stands for those of the
// host.
func readRoots(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // what it means to crypto/tls
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--acme-ca: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--acme-ca: %s has no certificate in the form of PEM", file)
	}
	return roots, nil
}

// loopback reports whether an address to listen on is that of this machine
// alone.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// servePlain answers plain HTTP until ctx ends: the authority that gives us
// certificates, and everybody else with the way to https.
func (p *platform) servePlain(ctx context.Context) error {
	var handler http.Handler = http.HandlerFunc(p.upgrade)
	if p.issuer != nil {
		handler = p.issuer.Challenges(handler)
	}
	server := &http.Server{
		Handler: handler, ReadTimeout: plainTime, WriteTimeout: plainTime,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	p.ingress.Configure(server)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(p.ingress.Listen(p.plain, nil)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// upgrade sends a browser on to https. Who sent a credential or a body should
// not do so again.
func (p *platform) upgrade(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close")
	if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" || !strings.HasPrefix(r.RequestURI, "/") {
		httpx.WriteError(w, r, doze.Errorf(doze.Forbidden, "this is plain HTTP, where everybody can read what you send: use https"))
		return
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	if public, err := url.Parse(p.config.PublicURL); err == nil && public.Port() != "" {
		host = net.JoinHostPort(host, public.Port())
	}
	w.Header().Set("Location", "https://"+host+r.RequestURI)
	w.WriteHeader(http.StatusPermanentRedirect)
}
