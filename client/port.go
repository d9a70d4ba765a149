package client

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// A PortConn is a connection to a port of a sandbox. CloseWrite ends what we send. The
// sandbox stays awake while it is open, but for at most 15 minutes without a byte.
type PortConn interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// DialPort connects to a port of the sandbox, for protocols other than HTTP. It wakes
// the sandbox. The error is [doze.Unavailable] if nothing listens there. The caller
// closes the connection, which outlives ctx.
func (b *Agent) DialPort(ctx context.Context, port int) (PortConn, error) {
	return b.upgrade(ctx, "/tcp/"+strconv.Itoa(port), "tcp")
}

// SSH connects to the SSH server of the sandbox, which asks for no credential. It wakes
// the sandbox. The caller closes the connection, which outlives ctx.
func (b *Agent) SSH(ctx context.Context) (PortConn, error) { return b.upgrade(ctx, "/ssh", "ssh") }

// upgrade sends a request that becomes a connection of another protocol.
func (b *Agent) upgrade(ctx context.Context, path, protocol string) (PortConn, error) {
	resp, err := b.c.upgrading().send(ctx, call{
		method: http.MethodGet, url: b.base + path,
		header: http.Header{"Connection": {"Upgrade"}, "Upgrade": {protocol}},
	})
	if err != nil {
		return nil, err
	}
	conn, ok := resp.Body.(PortConn)
	if !ok || resp.StatusCode != http.StatusSwitchingProtocols {
		_ = resp.Body.Close()
		return nil, doze.Errorf(doze.Unsupported, "the server made no connection of the request: it is older than this client, or a proxy before it lets no Upgrade header through")
	}
	return conn, nil
}

// upgrading is the client with HTTP/1.1 alone, since requests of HTTP/2 cannot become
// connections.
func (c *Client) upgrading() *Client {
	t, ok := c.http.Transport.(*http.Transport)
	if !ok {
		return c
	}
	t = t.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetHTTP1(true)
	t.DisableKeepAlives = true // each of them is of no use to another request
	own, h := *c, *c.http
	h.Transport, own.http = t, &h
	return &own
}

// Port passes requests, WebSockets too, on to a port of the sandbox, with our
// credential in the place of that of the caller. Each request wakes the sandbox.
func (b *Agent) Port(port int) (http.Handler, error) {
	to, err := url.Parse(b.base + "/port/" + strconv.Itoa(port))
	if err != nil {
		return nil, doze.Wrap(err, doze.Conflict, "the sandbox has no address")
	}
	return &httputil.ReverseProxy{
		Transport:     b.c.http.Transport,
		FlushInterval: -1,                                                      // streams are passed on as they come
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError), // its caller hears of it
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			for _, name := range []string{"Authorization", "X-Blaxel-Workspace"} {
				r.Out.Header.Del(name)
				if value := b.c.identity().Get(name); value != "" {
					r.Out.Header.Set(name, value)
				}
			}
			r.Out.Header.Del("X-Blaxel-Authorization") // the platform would read it first
		},
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			httpx.WriteError(w, r, doze.Wrap(err, doze.Unavailable, "%s does not answer", to.Host))
		},
	}, nil
}
