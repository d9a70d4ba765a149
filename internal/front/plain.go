package front

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

// plainTime bounds a request of plain HTTP beside TLS, and its answer: both are
// short.
const plainTime = 30 * time.Second

// servePlain answers plain HTTP until ctx ends: the challenges of the authority
// that gives us certificates, and everybody else with the way to https.
func (f *Front) servePlain(ctx context.Context) error {
	handler := upgrade(f.publicURL)
	if f.issuer != nil {
		handler = f.issuer.Challenges(handler)
	}
	server := &http.Server{
		Handler: handler, ReadTimeout: plainTime, WriteTimeout: plainTime,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	f.ingress.Configure(server)
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(f.ingress.Listen(f.plain, nil, nil)); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return context.Cause(ctx)
}

// upgrade sends a browser on to https, at the port of the public URL. A caller who
// sent a credential or a body should not do so again, and is told.
func upgrade(publicURL string) http.Handler {
	port := ""
	if public, err := url.Parse(publicURL); err == nil {
		port = public.Port()
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		if r.Method != http.MethodGet && r.Method != http.MethodHead || r.Header.Get("Authorization") != "" || !strings.HasPrefix(r.RequestURI, "/") {
			httpx.WriteError(w, r, doze.Errorf(doze.Forbidden, "this is plain HTTP, where everybody can read what you send: use https"))
			return
		}
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		if port != "" {
			host = net.JoinHostPort(host, port)
		}
		w.Header().Set("Location", "https://"+host+r.RequestURI)
		w.WriteHeader(http.StatusPermanentRedirect)
	})
}
