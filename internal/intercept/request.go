package intercept

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// blockedHeader and blocked tell a sandbox that its rules forbid a request.
	blockedHeader = "Proxy-Error"
	blocked       = "firewall_blocked"
)

// forwarded are headers that the reverse proxy of the standard library takes
// away. They are the sandbox's own affair.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// partial are headers that ask for parts of an answer.
var partial = []string{"Range", "If-Range"}

// encoded are headers about the bytes of an answer as it came.
var encoded = []string{"Content-Encoding", "Content-Length", "Content-Digest", "Repr-Digest", "Digest", "Content-Md5"}

// serve answers one request of a connection.
func (i *Interceptor) serve(w http.ResponseWriter, r *http.Request) {
	g, ok := r.Context().Value(guestKey{}).(*guest)
	if !ok {
		refuse(w, doze.Errorf(doze.Internal, "the connection has no session"))
		return
	}
	Serve(w, r, g.session, g.upstream)
}

// Serve answers one request of a session, which by sends on. A *[doze.Error] of by
// is what the sandbox is told.
func Serve(w http.ResponseWriter, r *http.Request, s Session, by http.RoundTripper) {
	in, err := s.admit(r)
	if err != nil {
		refuse(w, err)
		return
	}
	x := exchange{session: &s, by: by, injection: in, path: httpx.Escape(r.URL), query: r.URL.RawQuery}
	if in != nil {
		if err := x.prepare(r); err != nil {
			refuse(w, err)
			return
		}
		w = &informed{w, in.masked}
	}
	_ = http.NewResponseController(w).EnableFullDuplex() // HTTP/2 always is
	x.forward(w, r)
}

// admit decides about one request.
func (s *Session) admit(r *http.Request) (*Injection, error) {
	if !s.isFor(r.Host) {
		return nil, doze.Errorf(doze.Forbidden, "this connection is for %s: make another one for another host", s.To.Host)
	}
	in, ok := s.Decide()
	switch {
	case !ok:
		return nil, doze.Errorf(doze.Forbidden, "the network rules of this sandbox do not allow %s", s.To.Host)
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		return nil, doze.Errorf(doze.Unsupported, "the method %s cannot be sent through the proxy", r.Method)
	}
	return in, nil
}

// isFor reports whether the host of a request is the one of s.
func (s *Session) isFor(authority string) bool {
	name, port, has := strings.Cut(authority, ":")
	if has && port != strconv.Itoa(int(s.To.Port)) {
		return false
	}
	host, ok := doze.ParseHost(name)
	return ok && host == s.To.Host
}

// exchange is one request on its way, and its answer.
type exchange struct {
	session     *Session
	by          http.RoundTripper
	injection   *Injection // nil is nothing
	filling     filling
	path, query string   // escaped, as they are sent
	added       []string // members of the body
}

// prepare makes of a request what is sent, but for the headers that are set.
func (x *exchange) prepare(r *http.Request) (err error) {
	c := x.injection.at(r.Method, x.path)
	if x.filling, err = c.fill(time.Now()); err != nil {
		return err
	}
	if err := c.references.header(r.Header); err != nil {
		return err
	}
	x.path, x.query = c.references.path(x.path), c.references.query(x.query)
	x.added, err = prepareBody(r, x.filling.body, c.references)
	return err
}

func (x *exchange) forward(w http.ResponseWriter, r *http.Request) {
	proxy := httputil.ReverseProxy{
		Transport: x.by, FlushInterval: -1, BufferPool: &buffers, // streams are as fast as they come
		Rewrite: x.rewrite, ModifyResponse: x.clean,
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) { x.fail(w, r, err) },
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // it quotes what a destination sent
	}
	proxy.ServeHTTP(w, r)
}

// rewrite makes of a request what is sent. Its address is put together of what
// was decided, and never resolved.
func (x *exchange) rewrite(p *httputil.ProxyRequest) {
	out := p.Out
	out.URL.Scheme, out.URL.Host, out.URL.User, out.URL.RawQuery = x.session.scheme(), x.session.authority(), nil, x.query
	out.URL.RawPath = x.path
	if plain, err := url.PathUnescape(x.path); err == nil {
		out.URL.Path = plain // or RawPath does not count
	}
	out.Host = out.URL.Host
	out.Trailer = p.In.Trailer // which is filled while the body is read
	for _, name := range forwarded {
		if v, ok := p.In.Header[name]; ok {
			out.Header[name] = v
		}
	}
	out.Header.Set(httpx.RequestIDHeader, uuid.NewString())
	if x.injection == nil {
		return
	}
	maps.DeleteFunc(out.Header, func(sent string, _ []string) bool { return x.filling.sets(sent) })
	for name, v := range x.filling.headers {
		out.Header.Set(name, v) // in place of all that the sandbox sent
	}
	x.cleanTrailer(out)
	if len(x.injection.masked) > 0 {
		out.Header.Set("Accept-Encoding", "identity") // so that a secret is seen if it comes back
		for _, name := range partial {
			out.Header.Del(name) // of which no part shows all of it
		}
		searchable(out.Header)
	}
}

// cleanTrailer takes out of the trailer of a request what is set, of what is announced
// and of what comes at the end of the body.
func (x *exchange) cleanTrailer(out *http.Request) {
	taken := func(sent string, _ []string) bool { return x.filling.sets(sent) }
	maps.DeleteFunc(out.Trailer, taken)
	if out.Body != nil {
		out.Body = &ending{out.Body, func() { maps.DeleteFunc(out.Trailer, taken) }}
	}
}

// ending is a body of which something happens at its end, before that is said.
type ending struct {
	io.ReadCloser
	ended func()
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil {
		e.ended()
	}
	return n, err
}

// sets reports whether a destination may take a header for one that is set: many
// give their programs dashes as underscores, and case is nothing to anybody.
func (f *filling) sets(sent string) bool {
	sent = strings.ReplaceAll(sent, "_", "-")
	for name := range f.headers {
		if strings.EqualFold(sent, strings.ReplaceAll(name, "_", "-")) {
			return true
		}
	}
	return false
}

// scheme is that of what is sent.
func (s *Session) scheme() string {
	if s.To.Plain {
		return "http"
	}
	return "https"
}

// usualPorts are those that an address may leave out.
var usualPorts = map[string]uint16{"http": 80, "https": 443}

// authority is the host, with the port unless that is the usual one.
func (s *Session) authority() string {
	if s.To.Port == usualPorts[s.scheme()] {
		return s.To.Host
	}
	return s.To.Host + ":" + strconv.Itoa(int(s.To.Port))
}

// clean takes secrets out of an answer, and says what functions returned.
func (x *exchange) clean(resp *http.Response) error {
	if x.injection == nil {
		return nil
	}
	traces := x.injection.masked
	if len(traces) > 0 {
		if err := expose(resp); err != nil {
			return err
		}
		redactHeader(resp.Header, traces)
		redactHeader(resp.Trailer, traces) // whose names are announced
		if both, ok := resp.Body.(io.ReadWriteCloser); ok && resp.StatusCode == http.StatusSwitchingProtocols {
			resp.Body = &frames{ReadWriteCloser: both, traces: traces}
		} else {
			resp.Body = &redacted{ReadCloser: resp.Body, traces: traces, ended: func() { redactHeader(resp.Trailer, traces) }}
		}
	}
	for name, v := range x.filling.echo(x.added) {
		resp.Header.Set(name, v)
	}
	return nil
}

// expose makes the body of an answer searchable for secrets. The error is Unavailable
// if that is impossible: an unknown encoding, partial content, or a protocol that the
// request did not ask for.
func expose(resp *http.Response) error {
	switch {
	case resp.StatusCode == http.StatusSwitchingProtocols && (resp.Request.Header.Get("Upgrade") == "" || resp.Header.Get(extensionsHeader) != ""):
		return doze.Errorf(doze.Unavailable, "the destination switched protocols without being asked: doze withholds the answer, because it cannot mask secrets in it")
	case resp.Request.Method == http.MethodHead, resp.StatusCode == http.StatusNotModified, resp.StatusCode == http.StatusSwitchingProtocols:
		return nil // there is nothing to search, or it is searched frame by frame
	case resp.StatusCode == http.StatusPartialContent:
		return doze.Errorf(doze.Unavailable, "the destination sent partial content without being asked: doze withholds the answer, because it cannot mask secrets in it")
	}
	names := codingsOf(resp.Header.Values("Content-Encoding"))
	if len(names) == 0 {
		return nil
	}
	plain, ok := undo(resp.Body, names)
	if !ok {
		return doze.Errorf(doze.Unavailable, "the answer has an unsupported Content-Encoding: doze withholds the answer, because it cannot mask secrets in it")
	}
	resp.Body, resp.ContentLength = &decoded{counted{Reader: plain}, resp.Body}, -1
	for _, name := range encoded {
		resp.Header.Del(name)
	}
	return nil
}

// fail answers for a destination that cannot.
func (x *exchange) fail(w http.ResponseWriter, r *http.Request, err error) {
	host := x.session.To.Host
	slog.Debug("a request of a sandbox could not be sent on", "host", host, "err", x.mask(err))
	switch e, known := errors.AsType[*doze.Error](err); {
	case r.Context().Err() != nil:
		panic(http.ErrAbortHandler) // nobody waits for an answer
	case known:
		refuse(w, e)
	case errors.As(err, new(*tls.CertificateVerificationError)):
		refuse(w, doze.Errorf(doze.Unavailable, "the certificate of %s is not good for it: nothing was sent", host))
	case errors.Is(err, context.DeadlineExceeded):
		refuse(w, doze.Errorf(doze.Timeout, "%s did not answer in time", host))
	default:
		refuse(w, doze.Errorf(doze.Unavailable, "%s could not be reached, or did not answer as expected", host))
	}
}

// mask is an error without secrets: it may quote what a destination sent.
func (x *exchange) mask(err error) string {
	text := []byte(err.Error())
	if x.injection != nil {
		found, _, err := find(text, x.injection.traces)
		if err != nil {
			return err.Error()
		}
		redact(text, found)
	}
	return string(text)
}

// refuse answers with an error. What the rules forbid has the header that says so.
func refuse(w http.ResponseWriter, err error) {
	e := doze.Public(err)
	if e.Kind == doze.Forbidden {
		w.Header().Set(blockedHeader, blocked)
	}
	httpx.WriteJSON(w, e.Kind.Status(), httpx.ControlBody(e))
}

// informed takes secrets out of the headers that come before the answer, too.
type informed struct {
	http.ResponseWriter
	traces []*trace
}

func (w *informed) WriteHeader(status int) {
	if status < http.StatusOK {
		redactHeader(w.Header(), w.traces)
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets the rest through.
func (w *informed) Unwrap() http.ResponseWriter { return w.ResponseWriter }
