package main

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// What a gate does to requests.
const (
	gatePasses int32 = iota
	gateRefuses
	gateWaits
)

// gateSlow is how long a request waits at a gate that is slow, at most.
const gateSlow = 2 * time.Second

// A gate stands before the bucket, at its address: there it can be slow, or out of service.
type gate struct {
	does   atomic.Int32
	server *http.Server
	done   chan struct{}
}

// openGate has callers of a port of a host reach another port of it.
func (w *wire) openGate(ctx context.Context, host, port, to string) (*gate, error) {
	l, err := w.listen(ctx, host, port)
	if err != nil {
		return nil, err
	}
	g := &gate{done: make(chan struct{})}
	behind := &httputil.ReverseProxy{
		Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host, r.Out.Host = "http", net.JoinHostPort(w.hosts[host], to), r.In.Host // which is signed
		},
		ErrorHandler: func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) }, // as a server that is gone
		ErrorLog:     slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}
	g.server = &http.Server{
		ReadHeaderTimeout: stallMax, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Handler: http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
			switch g.does.Load() {
			case gateRefuses:
				http.Error(out, "<Error><Code>SlowDown</Code><Message>the gate is shut</Message></Error>", http.StatusServiceUnavailable)
				return
			case gateWaits:
				if !pause(r.Context(), rand.N(gateSlow)) { //nolint:gosec // G404: not a secret
					return
				}
			}
			behind.ServeHTTP(out, r)
		}),
	}
	go func() { // ends with close
		defer close(g.done)
		_ = g.server.Serve(l)
	}()
	return g, nil
}

func (g *gate) close() error {
	err := g.server.Close()
	<-g.done
	return err
}

// listen listens on a host, in this process.
func (w *wire) listen(ctx context.Context, host, port string) (l net.Listener, err error) {
	space, err := os.Open("/run/netns/" + w.prefix() + host)
	if err != nil {
		return nil, err
	}
	defer func() { _ = space.Close() }()
	done := make(chan struct{})
	go func() { // ends with listen
		defer close(done)
		runtime.LockOSThread() // and never unlocks: the thread ends with this goroutine
		if err = unix.Setns(int(space.Fd()), unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("enter the host %s: %w", host, err)
			return
		}
		l, err = new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(w.hosts[host], port))
	}()
	<-done
	return l, err
}
