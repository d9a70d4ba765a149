// Package mtls has the certificates by which the roles of a platform know each
// other: one authority of the platform, one certificate for each role. A peer is
// believed by its certificate alone, wherever it is.
package mtls

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/durable"
	"github.com/dozehq/doze/internal/httpx"
)

// A Role is what a process of a platform does.
type Role string

// The roles. Each has a certificate of its own.
const (
	Control Role = "control"
	Node    Role = "node"
	Edge    Role = "edge"
)

// Roles are all roles.
var Roles = []Role{Control, Node, Edge}

// host is the name in the certificate of a role. It is asked for whatever address a
// peer has.
func (r Role) host() string { return string(r) + ".doze.internal" }

// nodeHost is the second name in the certificate of the node with an id.
func nodeHost(id string) string { return id + "." + Node.host() }

const (
	// authorityLife and certificateLife are how long what Make makes is good.
	authorityLife   = 20 * 365 * 24 * time.Hour
	certificateLife = 5 * 365 * 24 * time.Hour
	// Soon is how long before the end of a certificate that nobody renews its role complains.
	Soon = 60 * 24 * time.Hour
	// clockSkew is by how much the clock of a peer may be behind.
	clockSkew = time.Hour

	authorityFile = "ca.crt"
	authorityKey  = "ca.key" // needed to make more certificates, and by no role
)

// Files are those that a role needs, by role.
type Files map[Role][]string

// Print says which files a role on another host needs.
func (f Files) Print(w io.Writer) {
	fmt.Fprintln(w, "A role on another host needs these files there, in the directory that --fleet-keys names:")
	for _, r := range Roles {
		fmt.Fprintf(w, "  %s:\n", r)
		for _, file := range f[r] {
			fmt.Fprintln(w, "   ", file)
		}
	}
	fmt.Fprintln(w, authorityKey+" makes more certificates. Keep it on the host of control alone.")
}

// Make makes the authority in a directory, if there is none, and a certificate of it
// for each role. Certificates that are there are made anew. It returns the files
// that a role needs, by role.
func Make(dir string) (Files, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of certificates: %w", err)
	}
	ca, key, err := openAuthority(dir)
	if err != nil {
		return nil, err
	}
	files := Files{}
	for _, role := range Roles {
		if err := issue(dir, role, ca, key); err != nil {
			return nil, fmt.Errorf("make the certificate of the role %s: %w", role, err)
		}
		files[role] = []string{filepath.Join(dir, authorityFile), certFile(dir, role), keyFile(dir, role)}
	}
	return files, nil
}

func certFile(dir string, r Role) string { return filepath.Join(dir, string(r)+".crt") }
func keyFile(dir string, r Role) string  { return filepath.Join(dir, string(r)+".key") }

// nextKeyFile is the key of a certificate that is about to be there.
func nextKeyFile(dir string, r Role) string { return keyFile(dir, r) + ".next" }

// openAuthority returns the authority of a directory, which it makes if there is
// none.
func openAuthority(dir string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	cert, secret := filepath.Join(dir, authorityFile), filepath.Join(dir, authorityKey)
	pair, err := tls.LoadX509KeyPair(cert, secret)
	if errors.Is(err, fs.ErrNotExist) {
		if err = newAuthority(cert, secret); err == nil {
			pair, err = tls.LoadX509KeyPair(cert, secret)
		}
	}
	if err != nil {
		return nil, nil, fmt.Errorf("the authority of certificates in %s: %w", dir, err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, nil, fmt.Errorf("the key of the authority in %s is not ECDSA: another program made it", dir)
	}
	return pair.Leaf, key, nil
}

func newAuthority(cert, secret string) error {
	for _, file := range []string{cert, secret} {
		if _, err := os.Lstat(file); !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is there without its other half: restore that, or remove it to begin anew", file)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "Doze fleet"},
		NotBefore: time.Now().Add(-clockSkew), NotAfter: time.Now().Add(authorityLife),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return write(cert, secret, template, template, key, key)
}

// issue makes the certificate of a role.
func issue(dir string, r Role, ca *x509.Certificate, by *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	return write(certFile(dir, r), keyFile(dir, r), leaf(certificateLife, r.host()), ca, key, by)
}

// leaf is a certificate of a role that is good for a time, before it is signed. names are
// those of the peer.
func leaf(life time.Duration, names ...string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: time.Now().Add(-min(clockSkew, life)), NotAfter: time.Now().Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
}

// serialBits is the length of a serial number, as RFC 5280 allows.
const serialBits = 127

func serial() *big.Int {
	n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits)) // it never fails
	return n
}

// write writes a certificate and its key, the key first: a certificate never lacks
// its key.
func write(cert, secret string, template, parent *x509.Certificate, key, by *ecdsa.PrivateKey) error {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		return err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := durable.Replace(secret, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		return err
	}
	return durable.Replace(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// An Identity is the certificate of a role, and the authority that it trusts. It is safe for
// concurrent use. [Identity.Renewing] has it take up new ones.
type Identity struct {
	role Role
	dir  string
	pool *x509.CertPool
	root *x509.Certificate // the authority
	cert atomic.Pointer[tls.Certificate]
}

// Open returns the identity of a role from the directory where Make put it. A certificate that
// ended is an error, which says how to get another one.
func Open(dir string, r Role) (*Identity, error) {
	cert, err := load(dir, r)
	if errors.Is(err, fs.ErrNotExist) && r == Node {
		return nil, fmt.Errorf("the certificate of the role %s: %w: start it once with --join and a token of doze node token, or copy one that dozed certificates made", r, err)
	}
	if err != nil {
		return nil, fmt.Errorf("the certificate of the role %s: %w: make it with dozed certificates, and copy it, its key and %s to this host", r, err, authorityFile)
	}
	i, err := trusting(dir, r)
	if err != nil {
		return nil, err
	}
	if err := i.check(cert.Leaf); err != nil {
		return nil, err
	}
	i.cert.Store(&cert)
	return i, nil
}

// trusting returns the identity of a role, which has no certificate yet.
func trusting(dir string, r Role) (*Identity, error) {
	raw, err := os.ReadFile(filepath.Join(dir, authorityFile))
	if err != nil {
		return nil, fmt.Errorf("the authority of certificates: %w", err)
	}
	block, _ := pem.Decode(raw)
	if block == nil {
		return nil, fmt.Errorf("%s has no certificate", filepath.Join(dir, authorityFile))
	}
	i := &Identity{role: r, dir: dir, pool: x509.NewCertPool()}
	if i.root, err = x509.ParseCertificate(block.Bytes); err != nil {
		return nil, fmt.Errorf("the authority of certificates: %w", err)
	}
	i.pool.AddCert(i.root)
	return i, nil
}

// A Sight is what a look at the certificate of a role found.
type Sight struct {
	Role Role
	Node string    // the id of the node that it is of; empty for another role, or for any node
	Ends time.Time // zero if it cannot be read
	Err  error     // why the role would not start with it
}

// Look looks at the certificates in a directory, and changes nothing. Roles without one are left
// out.
func Look(dir string) (all []Sight) {
	for _, r := range Roles {
		cert, err := tls.LoadX509KeyPair(certFile(dir, r), keyFile(dir, r))
		if errors.Is(err, fs.ErrNotExist) {
			if _, none := os.Lstat(certFile(dir, r)); none != nil {
				continue
			}
		}
		if err != nil { // or a renewal is between its two writes
			if next, other := tls.LoadX509KeyPair(certFile(dir, r), nextKeyFile(dir, r)); other == nil {
				cert, err = next, nil
			}
		}
		seen := Sight{Role: r, Err: err}
		if err == nil {
			seen.Node, seen.Ends = nodeID(cert.Leaf.DNSNames), cert.Leaf.NotAfter
			var i *Identity
			if i, seen.Err = trusting(dir, r); seen.Err == nil {
				seen.Err = i.check(cert.Leaf)
			}
		}
		all = append(all, seen)
	}
	return all
}

// ended is the error about a certificate that is over. It says how to get another one.
func (i *Identity) ended(leaf *x509.Certificate) error {
	at := leaf.NotAfter.UTC().Format(time.RFC3339)
	if nodeID(leaf.DNSNames) != "" {
		return doze.Errorf(doze.Forbidden, "the certificate of this node ended at %s: join again, with --join and a token of doze node token; the node keeps what it has", at)
	}
	return doze.Errorf(doze.Forbidden, "the certificate of the role %s ended at %s: make new ones with dozed certificates, and copy them to their hosts", i.role, at)
}

// check is an error unless a certificate is good for the role now. It says how to get another one.
func (i *Identity) check(leaf *x509.Certificate) error {
	if !time.Now().Before(leaf.NotAfter) {
		return i.ended(leaf)
	}
	_, err := leaf.Verify(x509.VerifyOptions{DNSName: i.role.host(), Roots: i.pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	if err != nil {
		return fmt.Errorf("%s is not the certificate of the role %s: %w", certFile(i.dir, i.role), i.role, err)
	}
	return nil
}

// load reads a certificate and its key. A process that ended between the two writes of a
// renewal has left the key beside its place: load puts it there.
func load(dir string, r Role) (tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(certFile(dir, r), keyFile(dir, r))
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		return cert, err
	}
	next, other := tls.LoadX509KeyPair(certFile(dir, r), nextKeyFile(dir, r))
	if other != nil {
		return cert, err
	}
	return next, errors.Join(os.Rename(nextKeyFile(dir, r), keyFile(dir, r)), durable.Sync(dir))
}

const (
	// streamsMax is how many requests of one peer a role answers at a time: an edge
	// has one open for each request to a sandbox.
	streamsMax = 20_000
	// streamBuffer bounds what one stream keeps for a reader who is slow, in bytes.
	streamBuffer = 512 << 10
	// pingAfter is how long a peer may be silent before it is asked whether it is
	// there, and pingWait how long it may take to answer.
	pingAfter = 15 * time.Second
	pingWait  = 10 * time.Second
	// dialWait bounds the way to a peer, with TLS.
	dialWait = 5 * time.Second
	// drainTime is what requests get to end in when a role stops.
	drainTime = 10 * time.Second
	// headerWait bounds the header of a request.
	headerWait = 10 * time.Second
)

func http2() *http.HTTP2Config {
	return &http.HTTP2Config{
		MaxConcurrentStreams: streamsMax, MaxReceiveBufferPerStream: streamBuffer,
		SendPingTimeout: pingAfter, PingTimeout: pingWait,
	}
}

// Transport returns the way to a peer that has a role. It speaks HTTP/2 alone.
func (i *Identity) Transport(peer Role) *http.Transport {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	return &http.Transport{
		TLSClientConfig: &tls.Config{
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return i.cert.Load(), nil },
			RootCAs:              i.pool, ServerName: peer.host(), MinVersion: tls.VersionTLS13,
		},
		DialContext:         (&patient{Dialer: net.Dialer{Timeout: dialWait}, wait: restartTime}).dial,
		TLSHandshakeTimeout: dialWait,
		Protocols:           &protocols, HTTP2: http2(),
		DisableCompression: true,
	}
}

// Server returns a server for peers that have a certificate of the authority.
// [ByRole] says which of them may ask for what.
func (i *Identity) Server(h http.Handler) *http.Server {
	return i.server(h, &tls.Config{
		GetCertificate: i.present, ClientCAs: i.pool, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13,
	})
}

// present returns the certificate that a new connection gets. Those that are open keep theirs.
func (i *Identity) present(*tls.ClientHelloInfo) (*tls.Certificate, error) { return i.cert.Load(), nil }

func (i *Identity) server(h http.Handler, c *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP2(true)
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headerWait, Protocols: &protocols, HTTP2: http2(), TLSConfig: c,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
}

// Serve serves peers until ctx ends, and then waits for the requests that are under
// way. Those that end by no other means, ending has to end.
func (i *Identity) Serve(ctx context.Context, l net.Listener, h http.Handler, ending ...func()) error {
	return serve(ctx, i.Server(h), l, ending)
}

func serve(ctx context.Context, server *http.Server, l net.Listener, ending []func()) error {
	for _, end := range ending {
		server.RegisterOnShutdown(end)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeTLS(l, "", "") }() // ends with the server
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return server.Close() // what takes longer is cut
	}
	return nil
}

// ByRole has peers of each role served by the handler of that role, and refuses
// others. It refuses those whose version of the contract is too far from [Contract], too.
func ByRole(of map[Role]http.Handler) http.Handler {
	return speaks(Contract, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for role, h := range of {
			if is(r, role) {
				h.ServeHTTP(w, r)
				return
			}
		}
		httpx.WriteError(w, r, doze.Errorf(doze.Forbidden, "this is for the roles %v of the platform", slices.Sorted(maps.Keys(of))))
	}))
}

// is reports whether a request came from a peer of a role.
func is(r *http.Request, role Role) bool { return slices.Contains(names(r), role.host()) }

// names are those in the certificate of a peer. A stranger has none.
func names(r *http.Request) []string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 {
		return nil
	}
	return r.TLS.VerifiedChains[0][0].DNSNames
}

// NodeID returns the id in the certificate of a node. It is empty for a certificate of
// [Make], which is good for any node.
func NodeID(r *http.Request) string { return nodeID(names(r)) }

// nodeID is the id among the names of a certificate, or nothing.
func nodeID(names []string) string {
	for _, name := range names {
		if id, ok := strings.CutSuffix(name, nodeHost("")); ok {
			return id
		}
	}
	return ""
}
