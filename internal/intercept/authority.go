package intercept

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

const (
	// authoritiesMax and leavesMax bound what is kept in memory: some hundred
	// bytes each, and a tenth of a millisecond to make again.
	authoritiesMax = 4096
	leavesMax      = 16384
	// leafLife is how long a certificate of a host counts; leafEarly is by how
	// much a sandbox's clock may be behind.
	leafLife  = 7 * 24 * time.Hour
	leafEarly = 24 * time.Hour
	// scalarBytes is the length of a private key of P-256.
	scalarBytes = 32
	// commonNameMax is the longest one that X.509 allows.
	commonNameMax = 64
)

// An authority counts for as long as any sandbox can exist: what it signs is
// short-lived.
var (
	authorityFrom  = time.Date(2024, time.January, 1, 0, 0, 0, 0, time.UTC)
	authorityUntil = time.Date(2074, time.January, 1, 0, 0, 0, 0, time.UTC)
)

// Authorities are certificate authorities by name, such as the id of a sandbox.
// Their keys follow from one seed, so that nothing is stored for them, and never
// leave this process. It is safe for concurrent use.
type Authorities struct {
	seed   []byte
	roots  *lru.Cache[string, *authority]
	leaves *lru.Cache[leafID, *tls.Certificate]
}

type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

// leafID has the name of the authority in it: nobody gets the certificate that
// another one's sandboxes believe.
type leafID struct{ authority, host string }

// NewAuthorities returns the authorities of a seed, which must be random and the
// same every time.
func NewAuthorities(seed []byte) (*Authorities, error) {
	roots, err := lru.New[string, *authority](authoritiesMax)
	if err != nil {
		return nil, err
	}
	leaves, err := lru.New[leafID, *tls.Certificate](leavesMax)
	return &Authorities{seed: seed, roots: roots, leaves: leaves}, err
}

// Certificate returns the certificate of an authority, in PEM: what a sandbox has
// to trust.
func (a *Authorities) Certificate(name string) ([]byte, error) {
	root, err := a.root(name)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.cert.Raw}), nil
}

// root returns an authority, which is the same every time, byte for byte.
func (a *Authorities) root(name string) (*authority, error) {
	if root, ok := a.roots.Get(name); ok {
		return root, nil
	}
	key, err := a.key(name)
	if err != nil {
		return nil, fmt.Errorf("key of the authority: %w", err)
	}
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), // there is one of this name
		Subject:      pkix.Name{Organization: []string{"Doze egress"}, CommonName: clip("Doze egress "+name, commonNameMax)},
		NotBefore:    authorityFrom, NotAfter: authorityUntil,
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	raw, err := x509.CreateCertificate(nil, cert, cert, key.Public(), key) // without chance, the signature follows from the key, too
	if err != nil {
		return nil, fmt.Errorf("certificate of the authority: %w", err)
	}
	if cert, err = x509.ParseCertificate(raw); err != nil {
		return nil, err
	}
	root := &authority{key, cert}
	a.roots.Add(name, root)
	return root, nil
}

// key derives the private key of an authority. Of the 2²⁵⁶ values that may come
// out, one in 2³² is no key; then the next one is taken.
func (a *Authorities) key(name string) (*ecdsa.PrivateKey, error) {
	for attempt := 0; ; attempt++ {
		scalar, err := hkdf.Key(sha256.New, a.seed, nil, fmt.Sprintf("authority/%d/%s", attempt, name), scalarBytes)
		if err != nil {
			return nil, err
		}
		if key, err := ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar); err == nil {
			return key, nil
		}
	}
}

// leaf returns a certificate for a host that is good for a while.
func (a *Authorities) leaf(authority, host string, now time.Time) (*tls.Certificate, error) {
	id := leafID{authority, host}
	if leaf, ok := a.leaves.Get(id); ok && now.Add(leafLife/2).Before(leaf.Leaf.NotAfter) {
		return leaf, nil
	}
	root, err := a.root(authority)
	if err != nil {
		return nil, err
	}
	leaf, err := root.sign(host, now)
	if err != nil {
		return nil, fmt.Errorf("certificate for %s: %w", host, err)
	}
	a.leaves.Add(id, leaf)
	return leaf, nil
}

func (a *authority) sign(host string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		Subject: pkix.Name{CommonName: clip(host, commonNameMax)}, DNSNames: []string{host},
		NotBefore: now.Add(-leafEarly), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	raw, err := x509.CreateCertificate(rand.Reader, cert, a.cert, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(raw)
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key, Leaf: parsed}, err
}

// clip shortens what only people read.
func clip(s string, most int) string { return s[:min(len(s), most)] }
