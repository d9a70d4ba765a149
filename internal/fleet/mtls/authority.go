package mtls

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
)

// An Authority signs certificates of nodes that join. It is safe for concurrent use.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // of cert
}

// OpenAuthority returns the authority in a directory where [Make] put it. It is Unsupported
// if its key is not there: the operator has it elsewhere.
func OpenAuthority(dir string) (*Authority, error) {
	if _, err := os.Stat(filepath.Join(dir, authorityKey)); errors.Is(err, fs.ErrNotExist) {
		return nil, doze.Errorf(doze.Unsupported, "the directory of certificates of control has no %s: nodes need certificates of dozed certificates, or copy the file there", authorityKey)
	}
	cert, key, err := openAuthority(dir)
	if err != nil {
		return nil, err
	}
	return &Authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})}, nil
}

// PEM is the certificate of the authority. It is no secret.
func (a *Authority) PEM() []byte { return a.pem }

// Fingerprint is the SHA-256 of the certificate of the authority, in hexadecimal digits.
func (a *Authority) Fingerprint() string { return fingerprint(a.cert) }

func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.Raw)
	return hex.EncodeToString(sum[:])
}

// nodeForm is the form of the id of a node, which is a label of a name in its certificate.
var nodeForm = regexp.MustCompile(`^[a-z0-9]{8,40}$`)

// SignNode returns the certificate of the node with an id, in PEM. It is good for a time. Of
// request, which is a PKCS #10 request, the key alone counts. SignNode is Invalid if
// the node does not have the key, or if the id has another form than instance.NodeID makes.
func (a *Authority) SignNode(request []byte, id string, life time.Duration) ([]byte, error) {
	if !nodeForm.MatchString(id) {
		return nil, doze.Errorf(doze.Invalid, "%.80q is no id of a node: it has 8 to 40 letters in lower case and digits", id)
	}
	public, err := requested(request)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf(life, Node.host(), nodeHost(id)), a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of a node: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

// requested is the key in a request for a certificate, whose sender has proved that it has it.
func requested(request []byte) (*ecdsa.PublicKey, error) {
	csr, err := x509.ParseCertificateRequest(request)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the certificate signing request cannot be read")
	}
	public, ok := csr.PublicKey.(*ecdsa.PublicKey)
	if !ok {
		return nil, doze.Errorf(doze.Invalid, "the key of the certificate signing request is not ECDSA")
	}
	return public, nil
}

// Had reports whether a request for a certificate comes from the node with an id. Its key is
// that of a certificate that this authority signed for the node. cert is in DER, and may have
// ended.
func (a *Authority) Had(cert, request []byte, id string) bool {
	c, err := x509.ParseCertificate(cert)
	if err != nil {
		return false
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	_, err = c.Verify(x509.VerifyOptions{
		DNSName: nodeHost(id), Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: c.NotAfter,
	})
	if err != nil {
		return false
	}
	public, err := requested(request)
	return err == nil && public.Equal(c.PublicKey)
}

// A Trust is the authority that a new node believes.
type Trust struct {
	pem  []byte
	pool *x509.CertPool
}

// ParseTrust returns the authority in a PEM certificate, whose fingerprint the caller knows
// already. It is Forbidden for another authority.
func ParseTrust(text []byte, mark string) (*Trust, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, doze.Errorf(doze.Invalid, "the certificate of the authority cannot be read")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, doze.Wrap(err, doze.Invalid, "the certificate of the authority cannot be read")
	}
	if fingerprint(cert) != mark {
		return nil, doze.Errorf(doze.Forbidden, "the address is not that of the platform of the token: its authority has the fingerprint %s", fingerprint(cert))
	}
	t := &Trust{pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), x509.NewCertPool()}
	t.pool.AddCert(cert)
	return t, nil
}

// TLS is what a node without a certificate connects to control with.
func (t *Trust) TLS() *tls.Config {
	return &tls.Config{RootCAs: t.pool, ServerName: Control.host(), MinVersion: tls.VersionTLS13}
}

// Store writes the certificate of the node with an id to where [Open] finds it, with its key
// and the authority. The certificate comes last: [Joined] reports whether it is there. It is
// an error if the certificate is for something else.
func (t *Trust) Store(dir, id string, cert []byte, key *ecdsa.PrivateKey) error {
	if err := certifies(t.pool, id, cert, key); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of certificates: %w", err)
	}
	if err := durable.Replace(filepath.Join(dir, authorityFile), t.pem, 0o644); err != nil {
		return err
	}
	return replaceNode(dir, cert, key)
}

// certifies is an error unless a certificate that control sent is that of the node with an id,
// for a key.
func certifies(roots *x509.CertPool, id string, cert []byte, key *ecdsa.PrivateKey) error {
	block, _ := pem.Decode(cert)
	if block == nil {
		return errors.New("control sent no certificate")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return fmt.Errorf("the certificate that control sent: %w", err)
	}
	if _, err := c.Verify(x509.VerifyOptions{DNSName: nodeHost(id), Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return fmt.Errorf("the certificate that control sent: %w", err)
	}
	if !key.PublicKey.Equal(c.PublicKey) {
		return errors.New("the certificate that control sent is for another key")
	}
	return nil
}

// replaceNode puts the certificate of a node and its key in the place of those before. At each
// moment, [Open] finds a pair.
func replaceNode(dir string, cert []byte, key *ecdsa.PrivateKey) error {
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := durable.Replace(nextKeyFile(dir, Node), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600); err != nil {
		return err
	}
	block, _ := pem.Decode(cert) // it was read before
	if err := durable.Replace(certFile(dir, Node), pem.EncodeToMemory(block), 0o644); err != nil {
		return err
	}
	return errors.Join(os.Rename(nextKeyFile(dir, Node), keyFile(dir, Node)), durable.Sync(dir))
}

// Joined reports whether a directory has a certificate of a node that is good now. One that
// ended does not count: the node has to join again.
func Joined(dir string) (bool, error) {
	cert, err := load(dir, Node)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil && time.Now().Before(cert.Leaf.NotAfter), err
}

// Earlier returns the certificate of a node in a directory, in DER, and its key. They prove that
// the node has been here, also when the certificate has ended. Without one, both are nil. So
// are those of a certificate without an id, whose key others may have.
func Earlier(dir string) ([]byte, *ecdsa.PrivateKey) {
	cert, err := load(dir, Node)
	if err != nil || nodeID(cert.Leaf.DNSNames) == "" {
		return nil, nil
	}
	key, ok := cert.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil
	}
	return cert.Leaf.Raw, key
}
