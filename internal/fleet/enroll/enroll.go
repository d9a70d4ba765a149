package enroll

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/fleet/mtls"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// Path is where control lets nodes join. GET answers the certificate of the authority,
	// and POST takes a [Request].
	Path = fleet.Prefix + "enroll"
	// RequestMax bounds the body of a request, in bytes: it has a key and some words.
	RequestMax = 8 << 10
	// answerMax bounds what a node reads of an answer, in bytes.
	answerMax = 64 << 10
	// joinTimeout bounds the whole exchange.
	joinTimeout = 30 * time.Second
)

// A Request is what a new node asks for.
type Request struct {
	Code string `json:"code"` // of its token, without the fingerprint
	Node string `json:"node"` // its id
	CSR  []byte `json:"csr"`  // in DER: the key of the certificate
	// Earlier is the certificate that the node had before, in DER: for the same key. A node that
	// is on record needs it.
	Earlier []byte `json:"earlier,omitempty"`
}

// An Answer is what control gives to a node that joins.
type Answer struct {
	Certificate []byte `json:"certificate"` // of the node, in PEM
	EgressKey   []byte `json:"egressKey"`   // the content of egress.key
}

// A Place is where a new node has what it needs.
type Place struct {
	Keys   string // directory of certificates
	Egress string // file of the key that opens secrets of routing rules
	Node   string // id of the node
}

// Join makes a machine a node of the platform of a token, whose control is at a base URL. It
// sends nothing secret before control has proved that it is of that platform. The key of
// the certificate stays on this machine. A wrong token is Forbidden. A machine whose
// certificate of before is in its place remains the node that it was.
func Join(ctx context.Context, control string, t Token, at Place) error {
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	// Nobody is believed yet: the fingerprint in the token tells whose answer this is.
	authority, err := exchange(ctx, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS13}, http.MethodGet, control, nil) //nolint:gosec // G402: see above
	if err != nil {
		return fmt.Errorf("ask control for the certificate of its authority: %w", err)
	}
	trust, err := mtls.ParseTrust(authority, t.print)
	if err != nil {
		return err
	}
	earlier, key := mtls.Earlier(at.Keys)
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return err
	}
	body, err := json.Marshal(Request{Code: t.code.Reveal(), Node: at.Node, CSR: csr, Earlier: earlier})
	if err != nil {
		return err
	}
	raw, err := exchange(ctx, trust.TLS(), http.MethodPost, control, body)
	if err != nil {
		return fmt.Errorf("join the platform: %w", err)
	}
	var a Answer
	if err := json.Unmarshal(raw, &a); err != nil {
		return fmt.Errorf("the answer of control: %w", err)
	}
	if err := place(at.Egress, a.EgressKey); err != nil {
		return err
	}
	return trust.Store(at.Keys, at.Node, a.Certificate, key)
}

// place writes a key to a file. A file with another key is that of another platform, and
// stays.
func place(file string, key []byte) error {
	if len(key) == 0 {
		return errors.New("control sent no egress.key")
	}
	is, err := os.ReadFile(file)
	switch {
	case err == nil && !bytes.Equal(is, key):
		return doze.Errorf(doze.Conflict, "%s is not that of the platform: a data directory is for one platform, so join with an empty one", file)
	case err == nil:
		return nil
	case !errors.Is(err, fs.ErrNotExist):
		return err
	}
	return durable.Replace(file, key, 0o600)
}

// exchange sends one request to control, and returns the body of the answer.
func exchange(ctx context.Context, c *tls.Config, method, control string, body []byte) ([]byte, error) {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	transport := &http.Transport{TLSClientConfig: c, Protocols: &protocols, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	r, err := http.NewRequestWithContext(ctx, method, control+Path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: transport, CheckRedirect: stay}).Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		resp.Body = io.NopCloser(bytes.NewReader(raw))
		return nil, httpx.ReadError(resp)
	}
	return raw, nil
}

// stay has no redirect followed: a token is for one address.
func stay(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
