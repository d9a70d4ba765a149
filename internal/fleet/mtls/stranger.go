package mtls

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// strangersMost is how many peers without a certificate are connected at a time. A
	// node joins in less than a second.
	strangersMost = 64
	// strangerTime is how long such a connection lasts: others may wait for its place.
	strangerTime = 10 * time.Second
)

// ServeStrangers is Serve for a role that peers without a certificate may reach, too. Their
// connections are few and short. One with a certificate of another authority is refused.
func (i *Identity) ServeStrangers(ctx context.Context, l net.Listener, h http.Handler, ending ...func()) error {
	c := &tls.Config{
		GetCertificate: i.present, ClientCAs: i.pool, ClientAuth: tls.VerifyClientCertIfGiven, MinVersion: tls.VersionTLS13,
		NextProtos: []string{"h2"}, // a copy for each connection misses what the server adds
	}
	var strangers atomic.Int64
	each := c.Clone()
	each.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		own := c.Clone()
		own.VerifyConnection = func(s tls.ConnectionState) error {
			if len(s.VerifiedChains) > 0 {
				return nil
			}
			if strangers.Add(1) > strangersMost {
				strangers.Add(-1)
				return doze.Errorf(doze.Exhausted, "too many peers without a certificate are connected")
			}
			time.AfterFunc(strangerTime, func() {
				_ = hello.Conn.Close() // it may be closed already
				strangers.Add(-1)
			})
			return nil
		}
		return own, nil
	}
	return serve(ctx, i.server(h, each), l, ending)
}

// WithStrangers serves one path to everybody, and anything else as h does.
func WithStrangers(path string, to, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == path:
			to.ServeHTTP(w, r)
		case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
			httpx.WriteError(w, r, doze.Errorf(doze.Forbidden, "this is for the roles of the platform: a node without a certificate joins with a token first"))
		default:
			h.ServeHTTP(w, r)
		}
	})
}
