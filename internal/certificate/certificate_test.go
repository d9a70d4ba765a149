package certificate

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/dozehq/doze/internal/seal"
	"github.com/dozehq/doze/internal/store"
	"github.com/dozehq/doze/internal/testkit/authority"
	"github.com/dozehq/doze/internal/testkit/dnstest"
	"github.com/dozehq/doze/internal/testkit/freeport"
)

// names are those that are ours in a test. It is safe for concurrent use.
type names struct{ sync.Map }

func (n *names) ours(name string) (string, bool) {
	_, ok := n.Load(name)
	return "shop.example", ok
}

// site is a server whose certificates an issuer gets.
type site struct {
	issuer *Issuer
	addr   string // of TLS
	stop   func()
	roots  *x509.CertPool
}

// world is an authority, the DNS that it asks, and two ports that it looks at.
type world struct {
	*authority.Authority
	zone    *dnstest.Zone
	names   names
	dir     string
	tls     string // addresses
	http    string
	useHTTP bool // challenges come by plain HTTP
}

// reserve finds an address that nobody listens on.
func reserve(t *testing.T) (addr string, port int) {
	t.Helper()
	port, err := freeport.Port(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), port
}

func newWorld(t *testing.T, life time.Duration) *world {
	t.Helper()
	w := &world{zone: dnstest.Serve(t), dir: t.TempDir()}
	o := authority.Options{Resolver: w.zone.Address, Life: life}
	w.tls, o.TLSPort = reserve(t)
	w.http, o.HTTPPort = reserve(t)
	w.Authority = authority.Serve(t, o)
	return w
}

// add makes a name ours, and the DNS lead to us.
func (w *world) add(name string) {
	w.names.Store(name, true)
	w.zone.A(name, [4]byte{127, 0, 0, 1})
}

// open starts a site with what is recorded.
func (w *world) open(t *testing.T) *site {
	t.Helper()
	cipher, err := seal.Open(filepath.Join(w.dir, "seal.key"))
	if err != nil {
		t.Fatal(err)
	}
	records, err := store.Open(t.Context(), filepath.Join(w.dir, "doze.db"), cipher)
	if err != nil {
		t.Fatal(err)
	}
	c := Config{Files: records, Directory: w.Directory, Roots: w.Contact, Listen: w.tls, Ours: w.names.ours}
	if w.useHTTP {
		c.ListenHTTP = w.http
	}
	issuer, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	hello := http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(rw, r.Proto) })
	secure := &http.Server{Handler: hello, TLSConfig: issuer.TLS(), ReadHeaderTimeout: time.Minute}
	plain := &http.Server{Handler: issuer.Challenges(hello), ReadHeaderTimeout: time.Minute}
	if w.useHTTP { // the other challenge would do
		secure.TLSConfig.NextProtos = []string{"h2"}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = issuer.Run(ctx) })
	for address, serve := range map[string]func(net.Listener) error{
		w.tls: func(l net.Listener) error { return secure.ServeTLS(l, "", "") }, w.http: plain.Serve,
	} {
		l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() { _ = serve(l) })
	}
	s := &site{addr: w.tls, roots: w.Roots, issuer: issuer}
	s.stop = sync.OnceFunc(func() {
		_ = secure.Close()
		_ = plain.Close()
		cancel()
		running.Wait()
		_ = records.Close()
	})
	t.Cleanup(s.stop)
	return s
}

// meet asks the site for a page by a name, and returns the serial number of
// the certificate that it showed, which has to be good for the name.
func (s *site) meet(t *testing.T, name string) (serial string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	client := &http.Transport{
		ForceAttemptHTTP2: true, DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, s.addr)
		},
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+name+"/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.RoundTrip(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	if b, err := io.ReadAll(resp.Body); err != nil || string(b) != "HTTP/2.0" {
		t.Errorf("%q, %v", b, err)
	}
	return resp.TLS.PeerCertificates[0].SerialNumber.String(), nil
}

// settle meets the site until its certificate is another one than old. On a slow
// machine the authority may lose its patience, or a short life be over.
func (s *site) settle(t *testing.T, name, old string) (serial string) {
	t.Helper()
	for late := time.Now().Add(2 * time.Minute); ; time.Sleep(50 * time.Millisecond) {
		serial, err := s.meet(t, name)
		if err == nil && serial != old {
			return serial
		}
		if time.Now().After(late) {
			t.Fatalf("serial number %q, %v", serial, err)
		}
	}
}

// TestCertificatesAreObtainedAndStored: by both kinds of challenge, for our names
// only, once for each, sealed, and over a restart without the authority.
func TestCertificatesAreObtainedAndStored(t *testing.T) {
	t.Parallel()
	for name, useHTTP := range map[string]bool{"tls-alpn-01": false, "http-01": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, authority.Long)
			w.useHTTP = useHTTP
			s := w.open(t)
			ours, theirs := name+".preview.shop.example", name+".preview.other.example" // the library has one of each name in a process
			w.add(ours)
			w.zone.A(theirs, [4]byte{127, 0, 0, 1})
			first := s.settle(t, ours, "")
			asked := w.Orders() // two, if another kind of challenge was tried first
			if again, err := s.meet(t, strings.ToUpper(ours)); err != nil || again != first {
				t.Errorf("then %s, %v, first %s", again, err, first)
			}
			for _, name := range []string{theirs, "127.0.0.1", "localhost"} {
				if _, err := s.meet(t, name); err == nil {
					t.Errorf("%s has a certificate", name)
				}
			}
			if n := w.Orders() - asked; n != 0 {
				t.Errorf("the authority was asked %d times more", n)
			}
			s.stop()
			w.Close()
			s = w.open(t)
			if again, err := s.meet(t, ours); err != nil || again != first {
				t.Errorf("after a restart %s, %v, first %s", again, err, first)
			}
			w.names.Delete(ours)
			if _, err := s.meet(t, ours); err == nil {
				t.Error("a name that is ours no more has a certificate")
			}
			s.stop()
			if _, err := w.open(t).meet(t, ours); err == nil {
				t.Error("after a restart it has")
			}
			for _, file := range []string{"doze.db", "doze.db-wal"} {
				b, err := os.ReadFile(filepath.Join(w.dir, file))
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				if bytes.Contains(b, []byte("PRIVATE KEY")) {
					t.Errorf("a key can be read in %s", file)
				}
			}
		})
	}
}

// TestCertificatesAreRenewed while they are used, before they end.
func TestCertificatesAreRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 6*time.Second)
	s := w.open(t)
	const name = "short.preview.shop.example"
	w.add(name)
	first := s.settle(t, name, "")
	ended := s.issuer.End()
	s.settle(t, name, first)
	if at := s.issuer.End(); ended.IsZero() || !at.After(ended) {
		t.Errorf("the certificate ends at %v, the one before at %v", at, ended)
	}
	w.names.Delete(name)
	if at := s.issuer.End(); !at.IsZero() {
		t.Errorf("a name that is not ours has an end: %v", at)
	}
}

// TestRefusalsAreNotRepeated: the authority counts them.
func TestRefusalsAreNotRepeated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, authority.Long)
	s := w.open(t)
	const name = "nowhere.preview.shop.example"
	w.names.Store(name, true) // and nothing in the DNS
	for range 6 {
		if _, err := s.meet(t, name); err == nil {
			t.Fatal("a certificate for a name that leads nowhere")
		}
	}
	if n := w.Orders(); n < 1 || n > 3 { // once, unless they took many seconds
		t.Errorf("the authority was asked %d times", n)
	}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	var ours names
	i := &Issuer{ours: ours.ours, refused: map[string]refusals{}, recent: map[string]*rate.Limiter{}}
	now := time.Now()
	if err := i.admit("a.example", false, now); err == nil {
		t.Error("a name that is not ours")
	}
	ours.Store("a.example", true)
	for n := range newMax {
		if err := i.admit("a.example", false, now); err != nil {
			t.Fatalf("new certificate %d: %v", n, err)
		}
	}
	if err := i.admit("a.example", false, now); err == nil {
		t.Error("one too many")
	}
	if err := i.admit("a.example", true, now); err != nil {
		t.Errorf("a renewal: %v", err)
	}
	now = now.Add(newEvery)
	if err := i.admit("a.example", false, now); err != nil {
		t.Errorf("later: %v", err)
	}
	for _, want := range []time.Duration{10 * time.Second, time.Minute, 20 * time.Minute, 20 * time.Minute} {
		if got := i.refuse("a.example", now); got != want {
			t.Errorf("a pause of %v, want %v", got, want)
		}
		if err := i.admit("a.example", true, now.Add(want-time.Second)); err == nil {
			t.Errorf("asked again within %v", want)
		}
		now = now.Add(want)
		if err := i.admit("a.example", true, now); err != nil {
			t.Errorf("after %v: %v", want, err)
		}
	}
	if err := i.heed(t.Context(), "cert_obtained", map[string]any{"identifier": "a.example"}); err != nil || len(i.refused) != 0 {
		t.Errorf("%v; after a certificate it remembers %v", err, i.refused)
	}
	i.refuse("b.example", now)
	now = now.Add(newMax * newEvery)
	if err := i.admit("a.example", true, now); err != nil || len(i.refused)+len(i.recent) != 0 {
		t.Errorf("%v; it remembers %v %v", err, i.refused, i.recent)
	}
}
