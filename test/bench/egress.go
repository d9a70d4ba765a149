package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/elazarl/goproxy"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/egress"
	"github.com/dozehq/doze/internal/intercept"
)

const (
	// egressHost is what the certificate of package httptest is for, and
	// egressAddress where it is: at a port of the web, so that the proxy looks at
	// what clients say.
	egressHost    = "example.com"
	egressAddress = "127.77.7.7"
	egressPort    = "443"

	egressRequests = 4000      // of a case, over all of its connections
	egressBytes    = 128 << 20 // of a download
	egressLoads    = 5
)

// egressConns are the numbers of connections that a case is measured with.
var egressConns = []int{1, 64}

// A path is one way from a client to the destination.
type path struct {
	name, against string
	proxy         string // of the client; without one it dials address
	address       string
	roots         *x509.CertPool
}

// Each path has its own rows, whose names begin with what goes there.
func connsPrefix(conns int) string { return fmt.Sprintf("connections %d, ", conns) }

var loadPrefix = fmt.Sprintf("%d MiB, ", egressBytes>>20)

// Paths are named by what is between the client and the destination.
const (
	pathDirect      = "direct"
	pathRelay       = "plain TCP relay"
	pathSpliced     = "spliced"
	pathTunnel      = "goproxy, tunnel"
	pathIntercepted = "intercepted"
	pathGoproxy     = "goproxy, intercepted"
)

// egressCases names all rows of the benchmark.
func egressCases() (names []string) {
	prefixes := []string{loadPrefix}
	for _, conns := range egressConns {
		prefixes = append(prefixes, connsPrefix(conns))
	}
	for _, prefix := range prefixes {
		for _, name := range []string{pathDirect, pathRelay, pathSpliced, pathTunnel, pathIntercepted, pathGoproxy} {
			names = append(names, prefix+name)
		}
	}
	return names
}

// egressPaths sends requests by all ways that there are, over TLS and the
// loopback device.
func egressPaths(ctx context.Context, _ string, only *regexp.Regexp) (_ table, err error) {
	slog.SetLogLoggerLevel(slog.LevelWarn) // not a line for each connection
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", net.JoinHostPort(egressAddress, egressPort))
	if err != nil {
		return latencies{}, err
	}
	load := bytes.Repeat([]byte("x"), egressBytes)
	destination := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: settle, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/load" {
			_, _ = w.Write(load)
			return
		}
		_, _ = io.WriteString(w, "hello")
	})}}
	destination.StartTLS()
	defer destination.Close()
	theirs := x509.NewCertPool()
	theirs.AddCert(destination.Certificate())
	s := &servers{ctx: ctx, running: &running, roots: theirs}
	paths, err := s.paths(l.Addr().String())
	if err != nil {
		return latencies{}, err
	}
	var all latencies
	for _, conns := range egressConns {
		more, err := measurePaths(ctx, paths, only, connsPrefix(conns), func(p path, s *series) error {
			return requests(ctx, p, conns, s)
		})
		if all = append(all, more...); err != nil {
			return all, err
		}
	}
	more, err := measurePaths(ctx, paths, only, loadPrefix, func(p path, s *series) error { return loads(ctx, p, s) })
	return append(all, more...), err
}

// measurePaths makes a series of each path.
func measurePaths(ctx context.Context, paths []path, only *regexp.Regexp, prefix string, measure func(path, *series) error) (all latencies, err error) {
	for _, p := range paths {
		s := &series{name: prefix + p.name}
		if i := slices.IndexFunc(all, func(s *series) bool { return s.name == prefix+p.against }); i >= 0 {
			s.against = all[i]
		}
		if p.against != "" && !only.MatchString(s.name) {
			continue
		}
		all = append(all, s)
		if err := measure(p, s); err != nil {
			return all, errors.Join(fmt.Errorf("%s: %w", s.name, err), context.Cause(ctx))
		}
	}
	return all, nil
}

// servers starts what is between clients and the destination.
type servers struct {
	ctx     context.Context //nolint:containedctx // of the benchmark, of which this is a part
	running *sync.WaitGroup
	roots   *x509.CertPool // by which the destination is trusted
}

func (s *servers) paths(destination string) ([]path, error) {
	authorities, err := intercept.NewAuthorities([]byte("bench"))
	if err != nil {
		return nil, err
	}
	pem, err := authorities.Certificate("bench")
	if err != nil {
		return nil, err
	}
	ours := x509.NewCertPool()
	ours.AppendCertsFromPEM(pem)
	goproxyRoots := x509.NewCertPool()
	goproxyRoots.AddCert(goproxy.GoproxyCa.Leaf)
	all := []path{
		{name: pathDirect, address: destination, roots: s.roots},
		{name: pathRelay, against: pathDirect, roots: s.roots},
		{name: pathSpliced, against: pathRelay, roots: s.roots},
		{name: pathTunnel, against: pathRelay, roots: s.roots},
		{name: pathIntercepted, against: pathDirect, roots: ours},
		{name: pathGoproxy, against: pathDirect, roots: goproxyRoots},
	}
	rule := doze.ProxyTarget{
		Destinations: []string{egressHost}, Headers: map[string]string{"Authorization": "Bearer {{SECRET:key}}"},
		Secrets: doze.Hide(map[string]string{"key": "a-secret-of-usual-length"}),
	}
	var errs [5]error
	all[1].address, errs[0] = s.relay(destination)
	all[2].proxy, errs[1] = s.egress(doze.Proxy{AllowedDomains: []string{egressHost}}, nil)
	all[3].proxy, errs[2] = s.goproxy(destination, false)
	all[4].proxy, errs[3] = s.egress(doze.Proxy{Routing: []doze.ProxyTarget{rule}}, intercept.New(authorities, s.roots))
	all[5].proxy, errs[4] = s.goproxy(destination, true)
	return all, errors.Join(errs[:]...)
}

func (s *servers) listen() (net.Listener, error) {
	return new(net.ListenConfig).Listen(s.ctx, "tcp4", "127.0.0.1:0")
}

// relay copies bytes, and looks at none.
func (s *servers) relay(to string) (address string, err error) {
	l, err := s.listen()
	if err != nil {
		return "", err
	}
	context.AfterFunc(s.ctx, func() { _ = l.Close() })
	s.running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return // the listener is closed
			}
			s.running.Go(func() { s.copy(c, to) })
		}
	})
	return l.Addr().String(), nil
}

func (s *servers) copy(c net.Conn, to string) {
	defer func() { _ = c.Close() }()
	up, err := new(net.Dialer).DialContext(s.ctx, "tcp", to)
	if err != nil {
		return
	}
	defer context.AfterFunc(s.ctx, func() { _ = c.Close(); _ = up.Close() })()
	s.running.Go(func() {
		_, _ = io.Copy(up, c)
		_ = up.Close()
	})
	_, _ = io.Copy(c, up)
}

// egress serves this process as a sandbox with some rules, and returns the
// address of its proxy.
func (s *servers) egress(rules doze.Proxy, i *intercept.Interceptor) (proxy string, err error) {
	o := egress.Options{
		Pool: netip.MustParsePrefix("198.18.0.0/15"), Resolver: fixed{}, Denied: func(_, _ netip.Addr) bool { return false }, Decided: func(bool) {},
	}
	var errs [4]error
	o.Redirected, errs[0] = s.listen()
	o.Proxy, errs[1] = s.listen()
	o.Names, errs[2] = s.listen()
	o.Questions, errs[3] = new(net.ListenConfig).ListenPacket(s.ctx, "udp4", "127.0.0.1:0")
	if err := errors.Join(errs[:]...); err != nil {
		return "", err
	}
	if i != nil {
		compiled, err := intercept.Compile(rules.Routing, intercept.Defaults{})
		if err != nil {
			return "", err
		}
		o.Interceptor = interceptor{i, compiled}
		s.running.Go(func() { _ = i.Run(s.ctx) })
	}
	e := egress.New(o)
	who := egress.Guest{UID: "bench", Workspace: "bench", Name: "bench", IP: netip.MustParseAddr("127.0.0.1")}
	if err := e.Admit(who, &doze.Network{Proxy: &rules}); err != nil {
		return "", err
	}
	s.running.Go(func() { _ = e.Run(s.ctx) })
	return "http://" + o.Proxy.Addr().String(), nil
}

// fixed knows one address.
type fixed struct{}

func (fixed) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return []netip.Addr{netip.MustParseAddr(egressAddress)}, nil
}

// interceptor has one sandbox, with fixed rules.
type interceptor struct {
	*intercept.Interceptor
	rules intercept.Rules
}

// Intercept implements [egress.Interceptor].
func (i interceptor) Intercept(ctx context.Context, _ egress.Guest, c net.Conn, to egress.Destination, _ []int, dial func(context.Context) (net.Conn, error)) {
	session := i.session(to)
	session.Authority, session.Dial = "bench", dial
	_ = i.Serve(ctx, c, session)
}

// Request implements [egress.Interceptor].
func (i interceptor) Request(w http.ResponseWriter, r *http.Request, _ egress.Guest, to egress.Destination, by http.RoundTripper) {
	intercept.Serve(w, r, i.session(to), by)
}

func (i interceptor) session(to egress.Destination) intercept.Session {
	at := doze.Address{Host: to.Name, Port: to.Port, Plain: to.Plain}
	return intercept.Session{To: at, Decide: func() (*intercept.Injection, bool) { return i.rules.For(at), true }}
}

// goproxy is the yardstick: a library that is often taken for this.
func (s *servers) goproxy(destination string, intercepts bool) (proxy string, err error) {
	l, err := s.listen()
	if err != nil {
		return "", err
	}
	p := goproxy.NewProxyHttpServer()
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, destination)
	}
	p.Tr = &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: s.roots, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: slices.Max(egressConns)}
	p.ConnectDial = func(network, address string) (net.Conn, error) { return dial(s.ctx, network, address) }
	if intercepts {
		p.OnRequest().HandleConnect(goproxy.AlwaysMitm)
		p.OnRequest().DoFunc(func(r *http.Request, _ *goproxy.ProxyCtx) (*http.Request, *http.Response) {
			r.Header.Set("Authorization", "Bearer a-secret-of-usual-length")
			return r, nil
		})
	}
	server := &http.Server{Handler: p, ReadHeaderTimeout: settle}
	context.AfterFunc(s.ctx, func() { _ = server.Close() })
	s.running.Go(func() { _ = server.Serve(l) })
	return "http://" + l.Addr().String(), nil
}

// clientOf is what speaks HTTP/1.1 by a path, over so many connections.
func clientOf(p path, conns int) *http.Transport {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots, MinVersion: tls.VersionTLS12}, MaxConnsPerHost: conns, MaxIdleConnsPerHost: conns, DisableCompression: true}
	if p.proxy != "" {
		t.Proxy = func(*http.Request) (*url.URL, error) { return url.Parse(p.proxy) }
		return t
	}
	t.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, p.address)
	}
	return t
}

// requests takes the time of each of many requests, once all connections are
// there.
func requests(ctx context.Context, p path, conns int, s *series) error {
	t := clientOf(p, conns)
	defer t.CloseIdleConnections()
	var mu sync.Mutex
	var errs []error
	var clients sync.WaitGroup
	for range conns {
		clients.Go(func() {
			var took []time.Duration
			var err error
			for n := 0; n <= egressRequests/conns && err == nil; n++ {
				var d time.Duration
				if d, err = fetch(ctx, t, "/", 5); n > 0 { // the first one makes the connection
					took = append(took, d)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			s.samples, errs = append(s.samples, took...), append(errs, err)
		})
	}
	clients.Wait()
	return errors.Join(errs...)
}

// loads takes the time of downloads.
func loads(ctx context.Context, p path, s *series) error {
	t := clientOf(p, 1)
	defer t.CloseIdleConnections()
	for range times(egressLoads) {
		took, err := fetch(ctx, t, "/load", egressBytes)
		if err != nil {
			return err
		}
		s.add(took)
	}
	return nil
}

func fetch(ctx context.Context, t *http.Transport, path string, want int64) (time.Duration, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+egressHost+path, nil)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	resp, err := t.RoundTrip(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.Copy(io.Discard, resp.Body)
	if err == nil && (n != want || resp.StatusCode != http.StatusOK) {
		err = fmt.Errorf("%s with %d bytes", resp.Status, n)
	}
	return time.Since(begin), err
}
