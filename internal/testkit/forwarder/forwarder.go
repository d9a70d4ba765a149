// Package forwarder is an HTTP proxy for tests, as companies have one: it makes tunnels and
// forwards requests, and may want credentials.
package forwarder

import (
	"context"
	"encoding/base64"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"slices"
	"sync"
	"time"
)

// dialTime bounds the connection to a destination.
const dialTime = 10 * time.Second

// Proxy is a handler that forwards. It is made by a literal.
type Proxy struct {
	Credentials string // user:password; empty: everybody may use it
	// Tunnels are the ports to which it makes tunnels; nil: all.
	Tunnels []string
	// Dial connects to host:port, and resolves names.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	mu    sync.Mutex
	asked []string // guarded by mu
}

// Asked returns what was asked for since the last call: a method and a destination each.
func (p *Proxy) Asked() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	asked := p.asked
	p.asked = nil
	return asked
}

// ServeHTTP implements [http.Handler].
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	p.asked = append(p.asked, r.Method+" "+r.Host)
	p.mu.Unlock()
	if want := "Basic " + base64.StdEncoding.EncodeToString([]byte(p.Credentials)); p.Credentials != "" && r.Header.Get("Proxy-Authorization") != want {
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
		return
	}
	if r.Method == http.MethodConnect {
		p.connect(w, r)
		return
	}
	if r.URL.Host == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	transport := &http.Transport{DialContext: p.Dial, DisableKeepAlives: true}
	(&httputil.ReverseProxy{Transport: transport, Rewrite: func(*httputil.ProxyRequest) {}}).ServeHTTP(w, r)
}

// connect makes a tunnel until one side ends it.
func (p *Proxy) connect(w http.ResponseWriter, r *http.Request) {
	if _, port, err := net.SplitHostPort(r.Host); err != nil || p.Tunnels != nil && !slices.Contains(p.Tunnels, port) {
		w.WriteHeader(http.StatusForbidden)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), dialTime)
	defer cancel()
	up, err := p.Dial(ctx, "tcp", r.Host)
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer func() { _ = up.Close() }()
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		return
	}
	ended := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{c, up}, {up, c}} {
		go func() { // ends with either connection
			_, _ = io.Copy(pair[0], pair[1])
			ended <- struct{}{}
		}()
	}
	<-ended
}
