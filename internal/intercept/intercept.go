// Package intercept applies the routing rules of a sandbox to requests that it sends.
// It ends the sandbox's TLS with a certificate of an authority that the sandbox trusts.
// It puts headers, members of JSON and secrets into each request, and sends it on over
// a TLS connection of its own. Requests in clear are sent on in clear.
//
// It neither dials nor decides where a sandbox may go. The caller that hands a
// connection over decided for one host, dials it, and is asked again for each request.
// Three things always hold. A request goes to the host that was decided, whatever it
// says itself, and the certificate there is good for that host. What a sandbox sends is
// never searched for references to resolve. And the values of secrets are in requests
// to their destinations only: in no log line, error or answer.
package intercept

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
)

// Limits of a connection of a sandbox.
const (
	// headerTime is what the handshake, and the header of each request, may take.
	headerTime = 30 * time.Second
	// idleTime ends connections on which nothing is asked.
	idleTime = 5 * time.Minute
	// headerBytes bounds the header of a request, and of its answer. It is more
	// than servers take.
	headerBytes = 256 << 10
	// streamsMax bounds the requests that a connection carries at once, and so
	// the connections that are made for it.
	streamsMax = 100
	// connectTime is what the handshake with the destination may take.
	connectTime = 10 * time.Second
	// continueTime is what the destination gets to say whether it wants a body.
	continueTime = time.Second
)

// Session is a connection of a sandbox that goes to one host.
type Session struct {
	// Authority names who signs the certificate that the sandbox sees.
	Authority string
	To        doze.Address
	// Dial connects to the host and port. It has the last word on addresses.
	Dial func(ctx context.Context) (net.Conn, error)
	// Decide is asked for every request: what is injected into it, which may be
	// nil, or false if the host is forbidden by now.
	Decide func() (*Injection, bool)
}

// Interceptor serves sessions. It is safe for concurrent use.
type Interceptor struct {
	authorities *Authorities
	roots       *x509.CertPool
	arrivals    chan net.Conn
	stopped     chan struct{}
}

// New returns an interceptor that trusts destinations by roots; nil are those of
// the host.
func New(authorities *Authorities, roots *x509.CertPool) *Interceptor {
	return &Interceptor{authorities: authorities, roots: roots, arrivals: make(chan net.Conn), stopped: make(chan struct{})}
}

// Run serves until ctx ends, and then ends every session. It runs once.
func (i *Interceptor) Run(ctx context.Context) error {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	server := &http.Server{
		Handler: http.HandlerFunc(i.serve), Protocols: &protocols,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: i.certificate, SessionTicketsDisabled: true},
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: headerBytes,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: streamsMax},
		ConnContext: withSession,
		BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog:    slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.ServeTLS(&arrivals{from: i.arrivals, stopped: i.stopped}, "", "")
	if errors.Is(err, http.ErrServerClosed) || errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// Serve answers the requests of a connection, of which nothing was read, or all
// that was is read again. It closes conn, and returns when it is closed: when the
// sandbox or ctx ends it.
func (i *Interceptor) Serve(ctx context.Context, conn net.Conn, s Session) error {
	life, end := context.WithCancel(ctx)
	defer end()
	g := &guest{Conn: conn, session: s, closed: make(chan struct{})}
	g.upstream = i.upstream(life, &s)
	defer g.upstream.CloseIdleConnections()
	defer context.AfterFunc(life, func() { _ = g.Close() })()
	select {
	case i.arrivals <- g:
	case <-i.stopped:
		_ = g.Close()
		return doze.Errorf(doze.Unavailable, "the proxy is shutting down")
	case <-life.Done():
		_ = g.Close()
		return context.Cause(ctx)
	}
	<-g.closed
	return context.Cause(ctx)
}

// upstream returns what carries the requests of one session. Its connections end
// with life.
func (i *Interceptor) upstream(life context.Context, s *Session) *http.Transport {
	return &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := s.Dial(ctx)
			if err != nil {
				return nil, err
			}
			return &upstream{conn, context.AfterFunc(life, func() { _ = conn.Close() })}, nil
		},
		TLSClientConfig:     &tls.Config{RootCAs: i.roots, ServerName: s.To.Host, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout: connectTime, ExpectContinueTimeout: continueTime, IdleConnTimeout: idleTime,
		MaxConnsPerHost: streamsMax, MaxIdleConnsPerHost: streamsMax, MaxResponseHeaderBytes: headerBytes,
		ForceAttemptHTTP2: true, DisableCompression: true,
	}
}

var errName = errors.New("the handshake is for another host than the one that was decided")

// certificate returns the one that a sandbox believes for the host of its session.
func (i *Interceptor) certificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	g, ok := hello.Conn.(*guest)
	if !ok {
		return nil, errName
	}
	if host, ok := doze.ParseHost(hello.ServerName); !ok || host != g.session.To.Host {
		return nil, errName
	}
	return i.authorities.leaf(g.session.Authority, g.session.To.Host, time.Now())
}

// guest is a connection of a sandbox.
type guest struct {
	net.Conn
	session  Session
	upstream *http.Transport

	once   sync.Once
	err    error
	closed chan struct{}
}

func (g *guest) Close() error {
	g.once.Do(func() {
		g.err = g.Conn.Close()
		close(g.closed)
	})
	return g.err
}

type guestKey struct{}

func withSession(ctx context.Context, conn net.Conn) context.Context {
	if secure, ok := conn.(*tls.Conn); ok {
		return context.WithValue(ctx, guestKey{}, secure.NetConn())
	}
	return ctx
}

// upstream is a connection to a destination.
type upstream struct {
	net.Conn
	forget func() bool // that it ends with its session
}

func (u *upstream) Close() error {
	u.forget()
	return u.Conn.Close()
}

// arrivals is a listener of connections that are handed over.
type arrivals struct {
	from    <-chan net.Conn
	stopped chan struct{}
	once    sync.Once
}

func (a *arrivals) Accept() (net.Conn, error) {
	select {
	case conn := <-a.from:
		return conn, nil
	case <-a.stopped:
		return nil, net.ErrClosed
	}
}

func (a *arrivals) Close() error {
	a.once.Do(func() { close(a.stopped) })
	return nil
}

// Addr is that of nothing.
func (a *arrivals) Addr() net.Addr { return &net.UnixAddr{Name: "intercept", Net: "unix"} }
