package egress

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// idleTime is how long a connection without a request stays.
	idleTime = 2 * time.Minute
	// idleMax is how many connections to one destination stay.
	idleMax = 8
	// idleAll is how many stay to all destinations of a sandbox.
	idleAll = 64
	// hostMax bounds what an error says of a host: no name is longer.
	hostMax = 255
)

// Blocked is the header of the answer to a request that is not allowed, and its
// value.
const (
	BlockedHeader = "Proxy-Error"
	BlockedValue  = "firewall_blocked"
)

// A link is a connection of a sandbox that speaks HTTP, or may be about to.
type link struct {
	*net.TCPConn

	guest *guest
	head  []byte      // what was read of it
	to    Destination // see stream
	proxy bool        // the client knows that we are a proxy
}

func (l *link) Read(b []byte) (int, error) {
	if len(l.head) > 0 {
		n := copy(b, l.head)
		l.head = l.head[n:]
		return n, nil
	}
	return l.TCPConn.Read(b)
}

// WriteTo is not that of the connection, which knows nothing of the head.
func (l *link) WriteTo(w io.Writer) (int64, error) {
	n, err := w.Write(l.head)
	l.head = l.head[n:]
	if err != nil {
		return int64(n), err
	}
	more, err := io.Copy(w, l.TCPConn)
	return int64(n) + more, err
}

func (l *link) Close() error {
	err := l.TCPConn.Close()
	l.guest.exit(l.TCPConn)
	return err
}

// handover is a listener to which connections are given.
type handover struct {
	links chan net.Conn
	ended chan struct{}
	once  sync.Once
}

func newHandover() *handover {
	return &handover{links: make(chan net.Conn), ended: make(chan struct{})}
}

func (h *handover) give(l *link) {
	select {
	case h.links <- l:
	case <-h.ended:
		_ = l.Close()
	}
}

func (h *handover) Accept() (net.Conn, error) {
	select {
	case c := <-h.links:
		return c, nil
	case <-h.ended:
		return nil, net.ErrClosed
	}
}

func (h *handover) Close() error {
	h.once.Do(func() { close(h.ended) })
	return nil
}

// Addr is that of nothing: connections come from several listeners.
func (h *handover) Addr() net.Addr { return new(net.TCPAddr) }

// linkKey is where the context of a request has its link.
type linkKey struct{}

func connContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, linkKey{}, c)
}

// serveHTTP decides about one request and passes it on.
func (e *Egress) serveHTTP(w http.ResponseWriter, r *http.Request) {
	l, ok := r.Context().Value(linkKey{}).(*link)
	if !ok {
		panic(http.ErrAbortHandler) // it came by another listener than a handover
	}
	e.streams.Add(1) // that of the connection ends when it is taken over
	defer e.streams.Done()
	to, rule := l.target(r)
	switch {
	case rule != "":
		e.block(w, r, l.guest, to, Verdict{Rule: rule})
	case r.Method == http.MethodConnect:
		e.connect(w, r, l, to)
	default:
		e.forward(w, r, l.guest, to)
	}
}

// target is where a request goes, or the rule that it breaks.
func (l *link) target(r *http.Request) (to Destination, rule string) {
	port := l.to.Port
	switch {
	case r.Method == http.MethodConnect && !l.proxy, l.proxy && r.Method != http.MethodConnect && r.URL.Scheme != "http":
		return to, ruleProtocol
	case l.proxy && r.Method != http.MethodConnect:
		port = 80
	}
	to, ok := authority(r.Host, port)
	to.Plain = r.Method != http.MethodConnect
	switch {
	case !ok:
		return to, ruleNoName
	case !l.proxy && (to.Port != l.to.Port || l.to.Name != "" && l.to.Name != to.Name):
		return to, ruleMismatch
	}
	return to, ""
}

// authority reads a host with an optional port, if usual is not 0. The host is a
// name, or an address in its one usual spelling. One of version 6 that has one of version
// 4 in it is none.
func authority(s string, usual uint16) (to Destination, ok bool) {
	host, port := s, ""
	if h, p, err := net.SplitHostPort(s); err == nil {
		host, port = h, p
	}
	to.Port = usual
	if port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return to, false
		}
		to.Port = uint16(n)
	}
	if name, is := doze.ParseHost(host); is {
		to.Name = name
	} else if ip, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")); err == nil && !ip.Is4In6() && ip.Zone() == "" {
		to.IP = ip
	} else {
		return to, false
	}
	return to, to.Port != 0
}

// block answers a request that is not allowed.
func (e *Egress) block(w http.ResponseWriter, r *http.Request, g *guest, to Destination, v Verdict) {
	e.decided(g, to, v)
	w.Header().Set(BlockedHeader, BlockedValue)
	httpx.WriteError(w, r, denied(r.Host, v))
}

// denied is the error of a request that is not allowed.
func denied(host string, v Verdict) error {
	return doze.Errorf(doze.Forbidden, "%.*q is denied (%s): %s", hostMax, host, v.Rule, v.reason())
}

// checked sends the requests of a sandbox to one destination. Its errors may be
// shown to the sandbox.
type checked struct {
	transport http.RoundTripper
	to        Destination
	allowed   Verdict
	decided   func(Verdict) // of each call the first counts
}

// RoundTrip implements [http.RoundTripper].
func (c *checked) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.transport.RoundTrip(r)
	v := c.allowed.after(err)
	c.decided(v)
	if _, is := errors.AsType[broken](err); is {
		return nil, denied(c.to.host(), v)
	}
	return resp, err
}

// connect makes a tunnel of the connection of a request.
func (e *Egress) connect(w http.ResponseWriter, r *http.Request, l *link, to Destination) {
	v := l.guest.verdict(to)
	var at *found
	var err error
	if v.Allow {
		at, err = e.reachable(r.Context(), l.guest, to)
		if rule, is := errors.AsType[broken](err); is {
			v = Verdict{Rule: string(rule)}
		}
	}
	if !v.Allow {
		e.block(w, r, l.guest, to, v)
		return
	}
	if err != nil {
		e.decided(l.guest, to, v)
		e.unreached(w, l.guest, to, err)
		return
	}
	h, ok := w.(http.Hijacker)
	if !ok {
		panic(http.ErrAbortHandler) // a version of HTTP that we do not serve
	}
	_, buffered, err := h.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	head, _ := buffered.Peek(buffered.Reader.Buffered()) // all of it is there
	head = append(slices.Clone(head), l.head...)
	s := &stream{e: e, g: l.guest, c: l.TCPConn, head: head, to: to, at: at}
	if _, err := l.Write([]byte("HTTP/1.1 200 Connection established\r\n\r\n")); err != nil {
		refuse(l.TCPConn)
		l.guest.exit(l.TCPConn)
		return
	}
	s.serve(r.Context())
}

// forward passes a request on to where it goes.
func (e *Egress) forward(w http.ResponseWriter, r *http.Request, g *guest, to Destination) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	v, f := g.begin(to, cancel)
	if f == nil {
		e.block(w, r, g, to, v)
		return
	}
	defer g.done(f)
	if len(v.Rules) > 0 && e.Interceptor == nil {
		e.block(w, r, g, to, Verdict{Rule: ruleProtocol})
		return
	}
	decided := e.once(g, to)
	if len(v.Rules) > 0 {
		e.Interceptor.Request(w, r.WithContext(ctx), g.Guest, to, &checked{g.transport, to, v, decided})
		decided(v) // of a request that was not sent
		return
	}
	proxy := httputil.ReverseProxy{
		Transport: g.transport, FlushInterval: -1, ErrorLog: e.web.ErrorLog,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host = "http", net.JoinHostPort(to.host(), strconv.Itoa(int(to.Port)))
			p.Out.Host, p.Out.URL.RawPath, p.Out.URL.RawQuery = p.In.Host, httpx.Escape(p.In.URL), p.In.URL.RawQuery
			for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
				if v, ok := p.In.Header[name]; ok {
					p.Out.Header[name] = v // it is the sandbox that says so
				}
			}
			p.Out.Header.Set(httpx.RequestIDHeader, uuid.NewString())
		},
		ModifyResponse: func(*http.Response) error {
			decided(v)
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if rule, is := errors.AsType[broken](err); is {
				e.block(w, r, g, to, Verdict{Rule: string(rule)})
				return
			}
			decided(v.after(err))
			e.unreached(w, g, to, err)
		},
	}
	proxy.ServeHTTP(w, r.WithContext(ctx))
}

// unreached answers a request that is allowed, for a destination that does not.
func (e *Egress) unreached(w http.ResponseWriter, g *guest, to Destination, err error) {
	slog.Debug("a destination does not answer", "sandbox", g.UID, "host", to.host(), "port", to.Port, "err", err)
	message := to.host() + " cannot be reached"
	if e, is := errors.AsType[*doze.Error](err); is {
		message = e.Message
	}
	httpx.WriteJSON(w, http.StatusBadGateway, map[string]any{"error": "bad_gateway", "code": http.StatusBadGateway, "message": message})
}

// transport carries the requests of one sandbox: no other one's go by its
// connections.
func (e *Egress) transport(g *guest) *requests {
	return &requests{egress: e, guest: g, Transport: &http.Transport{
		Proxy:              chosen,
		DisableCompression: true, MaxIdleConnsPerHost: idleMax, MaxIdleConns: idleAll, IdleConnTimeout: idleTime, MaxResponseHeaderBytes: headMax,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			if e.Through.Is(address) { // no sandbox may name it: see findNamed
				return e.openProxy(ctx, g)
			}
			to, ok := authority(address, 0)
			if !ok {
				return nil, doze.Errorf(doze.Invalid, "%q is no destination", address)
			}
			return e.open(ctx, g, to, nil)
		},
	}}
}
