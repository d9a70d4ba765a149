package front

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"os"

	"github.com/dozehq/doze/internal/certificate"
)

// Authority gives certificates for the names that are ours.
type Authority struct {
	Directory string            // URL of its ACME directory
	Roots     string            // PEM file of the authorities that vouch for it; empty are those of the host
	Email     string            // where it writes when something is wrong; may be empty
	Files     certificate.Files // where certificates and keys are kept
	// Ours reports whether a name is ours, and the domain that it belongs to.
	// It must not block.
	Ours func(name string) (domain string, ok bool)
}

// Plain reports whether others reach the listener, and by plain HTTP.
func (o Options) Plain() bool { return o.Cert == "" && o.Authority == nil && !loopback(o.Listen) }

// openTLS returns how the listener speaks TLS: with the certificate of the files
// for the names in it, and with those of the authority for others. It is nil where
// the listener speaks plain HTTP.
func (f *Front) openTLS(o Options) (*tls.Config, error) {
	if o.Cert == "" && o.Authority == nil {
		if o.Plain() {
			slog.Warn("keys and tokens are not encrypted on the way here: use --tls-cert or --acme, unless something in front does it", "listen", o.Listen)
		}
		return nil, nil //nolint:nilnil // the server takes nil for none
	}
	if o.ListenHTTP != "" {
		var err error
		if f.plain, err = net.Listen("tcp", o.ListenHTTP); err != nil { //nolint:noctx // it does not block
			return nil, fmt.Errorf("choose another address with --http-listen: %w", err)
		}
	}
	var given *pair
	if o.Cert != "" {
		var err error
		if given, err = openPair(o.Cert, o.Key); err != nil {
			return nil, err
		}
		f.given = given
	}
	if o.Authority == nil {
		return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: given.get}, nil
	}
	if err := f.openIssuer(*o.Authority, o.ListenHTTP); err != nil {
		return nil, err
	}
	secure := f.issuer.TLS()
	if given != nil {
		secure.GetCertificate = given.orElse(secure.GetCertificate)
	}
	return secure, nil
}

func (f *Front) openIssuer(a Authority, listenHTTP string) error {
	roots, err := readRoots(a.Roots)
	if err != nil {
		return err
	}
	f.issuer, err = certificate.New(certificate.Config{
		Files: a.Files, Directory: a.Directory, Roots: roots, Email: a.Email,
		Listen: f.listeners.Address(), ListenHTTP: listenHTTP, Ours: a.Ours,
	})
	return err
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
