package edge

import (
	"context"
	"crypto/rand"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/greeting"
	"github.com/dozehq/doze/internal/relay"
	"github.com/dozehq/doze/internal/trace"
)

// rawMethod stands for the method of a request where there is none: in the log, and in the
// audit log.
const rawMethod = "TLS"

// errPrivateStream and errBrowser are why a connection to a port is refused.
var (
	errPrivateStream = &doze.Error{Kind: doze.Forbidden, Name: forbidden, Message: "the preview is private, and a connection by TLS has no place for its token: make the preview public, or reach the port by doze sandbox port NAME PORT --tcp"}
	errBrowser       = &doze.Error{Kind: doze.Invalid, Name: badRequest, Message: "the client offers HTTP, and the port of this preview is declared without it: declare the port HTTP, or use a client of its protocol"}
)

// streamOf returns the protocol of the port of a preview, or nothing if the preview is
// served by HTTP. The sandbox API always is.
func (e *Edge) streamOf(p fleet.Preview, to fleet.Upstream) string {
	if !e.raw || p.Port == doze.ControlPort || p.Port == doze.AgentPort {
		return ""
	}
	protocol := to.Streams[p.Port]
	if protocol != doze.ProtocolTCP && protocol != doze.ProtocolTLS {
		return ""
	}
	return protocol
}

// streamPlace is where a host leads that is served without HTTP.
type streamPlace struct {
	label    string
	preview  fleet.Preview
	upstream fleet.Upstream
	protocol string
}

// streamAt finds the preview of a host that is served without HTTP.
func (e *Edge) streamAt(name string) (s streamPlace, ok bool) {
	if !e.raw {
		return s, false
	}
	host, now := hostOf(name), time.Now()
	if s.label, _, ok = e.customPreview(host); !ok {
		if s.label, ok = e.previewOf(host); !ok {
			return s, false
		}
	}
	if s.preview, ok = e.previews.Find(s.label, now); !ok {
		return s, false
	}
	if s.upstream, ok = e.directory.Find(s.preview.Workspace, s.preview.Sandbox, now); !ok {
		return s, false
	}
	s.protocol = e.streamOf(s.preview, s.upstream)
	return s, s.protocol != ""
}

// Takes reports whether a client asks for a port that is served without HTTP. An authority
// that asks whether such a name is ours gets an answer, where we have the certificate.
func (e *Edge) Takes(h greeting.Hello) bool {
	s, ok := e.streamAt(h.Name)
	return ok && (s.protocol == doze.ProtocolTLS || !h.Challenges())
}

// Open connects a client to a port, or says why not. It wakes the sandbox. ctx ends with
// the time for the handshake.
func (e *Edge) Open(ctx context.Context, h greeting.Hello) (greeting.Stream, error) {
	s, ok := e.streamAt(h.Name)
	c := &connection{edge: e, visit: &visit{id: rand.Text(), came: time.Now()}, request: &http.Request{
		Method: rawMethod, Host: h.Name, RemoteAddr: h.From, URL: &url.URL{Path: "/"}, RequestURI: "/", Header: http.Header{},
	}}
	err := error(errNoPreview)
	if ok {
		err = c.open(ctx, h, s)
	}
	if err == nil {
		return c, nil
	}
	c.leave()
	record(c.request.WithContext(ctx), c.visit, doze.Public(err).Kind.Status(), time.Since(c.visit.came))
	if e.denied != nil {
		e.denied(c.request.WithContext(ctx), c.visit.id, c.visit.caller, c.visit.upstream, err)
	}
	if err == errBrowser { //nolint:errorlint // it is ours
		err = greeting.WantsHTTP(err)
	}
	return nil, err
}

// connection is a client's, to a port of a sandbox. It is a [greeting.Stream].
type connection struct {
	edge    *Edge
	visit   *visit
	request *http.Request // for the logs
	inside  *once
	plain   bool            // TLS ends here
	life    context.Context //nolint:containedctx // ends when it may be no longer
	undo    []func()        // in reverse
}

// open proves that the connection may be, and makes its part to the sandbox.
func (c *connection) open(ctx context.Context, h greeting.Hello, s streamPlace) error {
	e, v := c.edge, c.visit
	v.preview, v.upstream, v.port, v.raw = &s.preview, s.upstream, uint16(s.preview.Port), true //nolint:gosec // G115: control takes 1 to 65535
	v.upstream.Why = ""                                                                         // the reason is for the owners of the sandbox
	v.caller.Workspace = s.preview.Workspace
	c.plain = s.protocol == doze.ProtocolTCP
	if !s.preview.Public {
		return errPrivateStream
	}
	if h.SpeaksHTTP() || h.Challenges() {
		return errBrowser
	}
	if err := barred(v.upstream); err != nil {
		return err
	}
	leave, err := e.enter(http.Header{}, v.upstream.Workspace, "")
	if err != nil {
		return err
	}
	c.undo = append(c.undo, leave)
	arrived, caller := trace.Arrive(context.WithoutCancel(ctx), v.came, "")
	life, cut := context.WithCancelCause(arrived)
	c.undo = append(c.undo, caller.Leave, func() { cut(nil) })
	c.life = life
	done, err := e.streams.add(&stream{idle: &v.idle, idleMax: e.idleMax, cut: cut, control: noDeadlines{}, valid: func() bool {
		now, ok := e.streamAt(h.Name)
		return ok && now.preview.ID == s.preview.ID && now.preview.Port == s.preview.Port && now.preview.Public && now.protocol == s.protocol && now.upstream.UID == s.upstream.UID
	}})
	if err != nil {
		return err
	}
	c.undo = append(c.undo, done)
	// The way to the port outlives the handshake, but not one that ends before it is there.
	defer context.AfterFunc(ctx, func() { cut(ctx.Err()) })()
	inside, err := e.gate.Dial(life, v.upstream.UID, v.port)
	if err != nil {
		return err
	}
	c.inside = onlyOnce(inside)
	c.undo = append(c.undo, func() { _ = c.inside.Close() })
	if h.Postgres && !c.plain {
		return c.askPostgres(ctx)
	}
	return nil
}

// askPostgres has the server begin TLS, as its client has us.
func (c *connection) askPostgres(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = c.inside.Close() })()
	if err := greeting.AskPostgres(c.inside); err != nil {
		return doze.Wrap(err, doze.Unavailable, "%v", err)
	}
	return nil
}

// Untouched implements [greeting.Stream].
func (c *connection) Untouched() bool { return !c.plain }

// Close implements [greeting.Stream].
func (c *connection) Close() {
	c.leave()
	record(c.request, c.visit, 0, time.Since(c.visit.came))
}

// leave undoes what open did.
func (c *connection) leave() {
	for len(c.undo) > 0 {
		last := len(c.undo) - 1
		undo := c.undo[last]
		c.undo = c.undo[:last]
		undo()
	}
}

// Serve implements [greeting.Stream].
func (c *connection) Serve(ctx context.Context, client greeting.Conn) {
	defer c.leave()
	defer func() { record(c.request, c.visit, http.StatusSwitchingProtocols, time.Since(c.visit.came)) }()
	both, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(c.life, end)()
	inside := &halfBeating{c.visit.idle.over(c.inside), c.inside}
	relay.Join(both, client, client, inside, inside)
}

// once closes a connection once: each close gives the sandbox up.
type once struct {
	net.Conn

	close func() error
}

func onlyOnce(c net.Conn) *once { return &once{c, sync.OnceValue(c.Close)} }

// Close implements [net.Conn].
func (o *once) Close() error { return o.close() }

// CloseWrite ends one direction. Without that, a connection ends whole.
func (o *once) CloseWrite() error {
	if half, ok := o.Conn.(halfCloser); ok {
		return half.CloseWrite()
	}
	return o.Close()
}

// noDeadlines are those of a connection that ends with its context.
type noDeadlines struct{}

func (noDeadlines) SetReadDeadline(time.Time) error  { return nil }
func (noDeadlines) SetWriteDeadline(time.Time) error { return nil }
