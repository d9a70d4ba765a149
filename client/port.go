package client

import (
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

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
