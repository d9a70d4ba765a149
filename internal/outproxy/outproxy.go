// Package outproxy is the HTTP proxy of the operator's network, through which this host
// reaches public addresses. A host without one has a nil Proxy, which carries nothing.
//
// What must always hold: a caller that gives an address gets a connection to that address,
// or none. By a name, the proxy chooses the address.
package outproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http/httpproxy"
	"golang.org/x/time/rate"
)

const (
	// answerTime bounds a tunnel, if the caller does not: the proxy connects meanwhile.
	answerTime = 30 * time.Second
	// headMax bounds the answer of the proxy. An answer to CONNECT has no body.
	headMax = 64 << 10
	// addressesMax is how many addresses of the proxy are known. Larger farms of proxies
	// have one address in front.
	addressesMax = 64
	// warnEvery is how often the log says that the proxy fails.
	warnEvery = time.Minute
)

// Options say what proxy there is.
type Options struct {
	URL    string   // http://host:port, with credentials if it wants some; empty: none
	Except []string // what is reached without it, as in NO_PROXY
	// Resolves says that the proxy gets names, and chooses their addresses.
	Resolves bool
}

// Proxy is the proxy of a host. It is safe for concurrent use.
type Proxy struct {
	url      *url.URL // with credentials: it is for no log
	address  string   // host:port
	resolves bool
	except   string
	of       func(*url.URL) (*url.URL, error)
	warnings *rate.Limiter

	mu    sync.Mutex
	known []netip.Addr // guarded by mu; addresses that it was found to have, the last one last
}

// New returns the proxy of o, or nil without one.
func New(o Options) (*Proxy, error) {
	if o.URL == "" {
		return nil, nil //nolint:nilnil // nil is a host without a proxy
	}
	u, err := parse(o.URL)
	if err != nil {
		return nil, err
	}
	port := u.Port()
	if port == "" {
		port = "80"
	}
	p := &Proxy{
		url: u, address: net.JoinHostPort(u.Hostname(), port), resolves: o.Resolves, except: strings.Join(o.Except, ","),
		warnings: rate.NewLimiter(rate.Every(warnEvery), 1),
	}
	p.of = (&httpproxy.Config{HTTPProxy: u.String(), HTTPSProxy: u.String(), NoProxy: p.except}).ProxyFunc()
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		p.learn(ip)
	}
	return p, nil
}

// Check returns what is wrong with the URL of a proxy, or nil.
func Check(text string) error {
	_, err := parse(text)
	return err
}

// parse reads the URL of a proxy. The error does not repeat it: it may have a password.
func parse(text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("must be a URL such as http://proxy.example.com:3128")
	}
	u.Path = ""
	return u, nil
}

// HasPassword reports whether the URL of a proxy has one.
func HasPassword(text string) bool {
	u, err := url.Parse(text)
	if err != nil {
		return strings.Contains(text, "@")
	}
	_, has := u.User.Password()
	return has
}

// String is where the proxy is, without credentials.
func (p *Proxy) String() string {
	if p == nil {
		return "none"
	}
	return p.address
}

// Resolves reports whether the proxy gets names, and requests in clear.
func (p *Proxy) Resolves() bool { return p != nil && p.resolves }

// URL is where the proxy is, with its credentials.
func (p *Proxy) URL() *url.URL { return p.url }

// Carries reports whether a destination is reached through the proxy. It has a name or an
// address, or both: an exception holds for either of them. An address of a private network
// is on this side of the proxy.
func (p *Proxy) Carries(name string, at netip.Addr, port uint16) bool {
	if p == nil {
		return false
	}
	if at.IsValid() && (private(at) || p.excepts(at.String(), port)) {
		return false
	}
	return name == "" || !p.excepts(name, port)
}

func (p *Proxy) excepts(host string, port uint16) bool {
	through, err := p.of(&url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))})
	return err != nil || through == nil
}

// shared are the addresses between a provider and its customers.
var shared = netip.MustParsePrefix("100.64.0.0/10")

func private(a netip.Addr) bool {
	a = a.Unmap()
	return a.IsPrivate() || a.IsLoopback() || a.IsLinkLocalUnicast() || shared.Contains(a)
}

// Is reports whether a host and port are those of the proxy itself, in any spelling of its
// name.
func (p *Proxy) Is(address string) bool {
	return p != nil && strings.EqualFold(strings.TrimSuffix(address, "."), p.address)
}

// Has reports whether an address is one of the proxy. It knows those that it was
// connected to.
func (p *Proxy) Has(a netip.Addr) bool {
	if p == nil {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.known, a.Unmap())
}

func (p *Proxy) learn(a netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a = a.Unmap(); slices.Contains(p.known, a) {
		return
	}
	if len(p.known) == addressesMax {
		p.known = p.known[1:]
	}
	p.known = append(p.known, a)
}

// Export has every program of ours that obeys the usual variables use the proxy: libraries
// of this process, and what it starts, such as apt. Call it before the first request.
func (p *Proxy) Export() error {
	if p == nil {
		return nil
	}
	var errs []error
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		errs = append(errs, os.Setenv(name, p.url.String()))
	}
	for _, name := range []string{"NO_PROXY", "no_proxy"} {
		errs = append(errs, os.Setenv(name, p.except))
	}
	return errors.Join(errs...)
}

// Open connects to the proxy itself.
func (p *Proxy) Open(ctx context.Context) (*net.TCPConn, error) {
	c, err := (&net.Dialer{Timeout: answerTime}).DialContext(ctx, "tcp", p.address)
	if err != nil {
		if ctx.Err() != nil && errors.Is(context.Cause(ctx), context.Canceled) {
			return nil, err // nobody waits any more
		}
		return nil, p.failed(&Error{Why: "the HTTP proxy of this platform cannot be reached: its operator sees why in the log", Ours: true, Err: err})
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("a connection of the kind %T", c), c.Close())
	}
	if at, err := netip.ParseAddrPort(tcp.RemoteAddr().String()); err == nil {
		p.learn(at.Addr())
	}
	return tcp, nil
}

// Dial makes a tunnel through the proxy to host:port. The next byte of the connection is
// the first one of the destination.
func (p *Proxy) Dial(ctx context.Context, to string) (_ *net.TCPConn, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	c, err := p.Open(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() {
			err = errors.Join(err, context.Cause(ctx))
		}
		if err != nil {
			_ = c.Close()
		}
	}()
	if err := p.ask(c, to); err != nil {
		return nil, err
	}
	return c, nil
}

// ask asks for a tunnel, and reads no more than the answer.
func (p *Proxy) ask(c io.ReadWriter, to string) error {
	r := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: to}, Host: to, Header: http.Header{"User-Agent": {"doze"}}}
	if u := p.url.User; u != nil {
		password, _ := u.Password()
		r.SetBasicAuth(u.Username(), password)
		r.Header["Proxy-Authorization"] = r.Header["Authorization"]
		r.Header.Del("Authorization")
	}
	if err := r.Write(c); err != nil {
		return p.failed(&Error{Why: "the HTTP proxy of this platform breaks off", Ours: true, Err: err})
	}
	status, err := answer(c)
	if err != nil {
		return p.failed(&Error{Why: "the HTTP proxy of this platform gives no answer that is HTTP", Ours: true, Err: err})
	}
	if status/100 != 2 {
		return p.Refused(status, to)
	}
	return nil
}

// answer reads the status of an answer to CONNECT, and nothing after its header.
func answer(r io.Reader) (status int, err error) {
	// The reader gets one byte at a time, so that it holds none back.
	b := bufio.NewReader(single{io.LimitReader(r, headMax)})
	a, err := http.ReadResponse(b, &http.Request{Method: http.MethodConnect}) //nolint:bodyclose // an answer to CONNECT has none
	if err != nil {
		return 0, err
	}
	return a.StatusCode, nil
}

// single returns one byte for each call.
type single struct{ io.Reader }

func (s single) Read(b []byte) (int, error) { return s.Reader.Read(b[:min(1, len(b))]) }

// Refused is the error of an answer that is no success.
func (p *Proxy) Refused(status int, to string) error {
	e := &Error{Err: fmt.Errorf("the HTTP proxy answers %d for %s", status, to)}
	switch {
	case status == http.StatusProxyAuthRequired:
		e.Ours, e.Why = true, "the HTTP proxy of this platform refuses its credentials (407): its operator sets them with --upstream-proxy-file"
	case status/100 == 5:
		e.Why, e.Unreached = fmt.Sprintf("the HTTP proxy of this platform cannot reach it (%d)", status), true
	default:
		e.Why = fmt.Sprintf("the HTTP proxy of this platform refuses it (%d): ask its operator", status)
	}
	return p.failed(e)
}

// failed writes down what the operator can do something about.
func (p *Proxy) failed(e *Error) error {
	if e.Ours && p.warnings.Allow() {
		slog.Warn("the upstream proxy fails: what goes through it is refused", "proxy", p.address, "why", e.Why, "err", e.Err)
	}
	return e
}

// Probe returns why the proxy does not answer as it should, or nil. It asks for a name that
// nobody has.
func (p *Proxy) Probe(ctx context.Context) error {
	c, err := p.Dial(ctx, "doctor.invalid:443")
	if err == nil {
		return c.Close()
	}
	if e, is := errors.AsType[*Error](err); is && !e.Ours {
		return nil
	}
	return err
}

// Error is why the proxy carries nothing to a destination.
type Error struct {
	Why       string // what the sandbox may read that asked for the connection
	Ours      bool   // the fault is the proxy's, or our credentials': every destination has it
	Unreached bool   // the destination does not answer the proxy
	Err       error
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %v", e.Why, e.Err) }
func (e *Error) Unwrap() error { return e.Err }
