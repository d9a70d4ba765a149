// Package front is what stands before the control API and the edge: the listeners
// and their limits, TLS, plain HTTP beside it, and who answers which path. It counts
// the requests that are under way, so that dozed can be replaced without cutting
// one off. It proves nothing about a caller, and knows no sandbox.
//
// What must always hold: previews by path never have the origin of the API.
package front

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/dozehq/doze/internal/certificate"
	"github.com/dozehq/doze/internal/daemon"
	"github.com/dozehq/doze/internal/handover"
	"github.com/dozehq/doze/internal/ingress"
	"github.com/dozehq/doze/internal/metric"
)

const (
	// EdgeLinger is how long an edge that stops waits for the requests that are under way.
	EdgeLinger = 30 * time.Second
	// drainTime is what requests get to end in when dozed stops.
	drainTime = 10 * time.Second
	// IdleDefault is how long an edge that ends waits for connections without a request. Clients
	// close theirs first: most do after seconds, and those in Go after 90. Units that stop an
	// edge give it longer than all of its times.
	IdleDefault = 95 * time.Second
	// idleLook is how often we look at them.
	idleLook = 100 * time.Millisecond
	// deafTime is how long a connection may take to be made that a caller has begun to make.
	deafTime = 300 * time.Millisecond
	// leaveWait is how long answers are the last ones of their connections, before connections
	// are closed. Busy ones have an answer in that time.
	leaveWait = 2 * time.Second
)

// Options are what a [Front] needs.
type Options struct {
	Listeners *Listeners
	Limits    ingress.Limits
	Handler   Handler      // behind the address of the API and the edge
	Previews  http.Handler // behind the address of previews by path
	Streams   Router       // gets connections that are no HTTP, where the listener speaks TLS; may be nil

	Listen     string // as the operator gave it; for a warning
	ListenHTTP string // address of plain HTTP beside TLS; empty is none
	PublicURL  string // how the world reaches it
	Domain     string // of the names of sandboxes; may be empty

	// Linger is how long requests that are under way may take at a stop. Without it, they are
	// rejected and cut off. Other edges take the callers meanwhile.
	Linger time.Duration
	// Idle is how long connections without a request are left to their clients, with Linger.
	Idle time.Duration
	// Hurry gets the signals by which the process ends. The second one ends all waiting. It may
	// be nil.
	Hurry <-chan os.Signal

	Cert, Key string     // PEM files of a certificate; empty is none
	Authority *Authority // that gives certificates for other names; nil is none
}

// A Handler knows which of its answers have no end.
type Handler interface {
	http.Handler
	// Lasts reports whether an answer ends with this process only: see [Mux.Lasts].
	Lasts(r *http.Request) bool
}

// Front serves callers. It is made by Open, and its services run it.
type Front struct {
	listeners *Listeners
	ingress   *ingress.Ingress
	server    *http.Server
	previews  *http.Server        // nil where previews have hosts of their own
	given     *pair               // nil without a certificate of the operator
	issuer    *certificate.Issuer // nil without an authority
	plain     net.Listener        // of plain HTTP beside TLS; nil without
	streams   *streams            // nil without
	publicURL string
	requests  *inflight
	linger    time.Duration
	hurry     <-chan os.Signal
	idle      time.Duration // how long connections without a request are waited for
}

// Open makes the servers. It accepts nobody yet. The listeners stay the caller's.
func Open(o Options) (_ *Front, err error) {
	noteLocalNames(o.Domain)
	f := &Front{listeners: o.Listeners, publicURL: o.PublicURL, requests: newInflight(), linger: o.Linger, idle: o.Idle, hurry: o.Hurry}
	if f.ingress, err = ingress.New(o.Limits); err != nil {
		return nil, fmt.Errorf("count descriptors: %w", err)
	}
	secure, err := f.openTLS(o)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	f.server = f.newServer(f.requests.over(o.Handler, o.Handler.Lasts), secure)
	f.server.RegisterOnShutdown(f.requests.endLasting)
	if o.Streams != nil && secure != nil {
		f.streams = newStreams(o.Streams, f.requests)
	}
	if f.listeners.previews != nil {
		f.previews = f.newServer(f.requests.over(o.Previews, func(*http.Request) bool { return false }), secure.Clone())
	}
	return f, nil
}

// newServer returns a server whose requests are bounded.
func (f *Front) newServer(handler http.Handler, secure *tls.Config) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	protocols.SetHTTP2(secure != nil)
	server := &http.Server{ //nolint:gosec // G112: Configure bounds the time for a header
		Handler: handler, TLSConfig: secure, Protocols: &protocols,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	f.ingress.Configure(server)
	return server
}

// Metrics is what callers did to the listeners.
func (f *Front) Metrics() metric.Front {
	c := f.ingress.Counts()
	return metric.Front{Open: c.Open, Refused: c.Refused, Requests: c.Requests, Certificates: f.ends()}
}

// ends are the earliest ends of certificates, by their source.
func (f *Front) ends() map[string]time.Time {
	ends := map[string]time.Time{}
	if f.given != nil {
		ends["file"] = f.given.end()
	}
	if f.issuer != nil {
		if at := f.issuer.End(); !at.IsZero() {
			ends["authority"] = at
		}
	}
	return ends
}

// Servers answer requests, in the order in which they start. When they stop, they
// wait for the requests that are under way.
func (f *Front) Servers() (services []daemon.Service) {
	if f.issuer != nil {
		services = append(services, daemon.Service{Name: "certificates", Run: f.issuer.Run})
	}
	if f.plain != nil {
		services = append(services, daemon.Service{Name: "plain http", Run: f.servePlain})
	}
	if f.previews != nil {
		services = append(services, f.serving("previews", f.listeners.previews, f.previews, nil))
	}
	return append(services, f.serving("http", f.listeners.api, f.server, f.streams))
}

// Listeners let callers in, until they stop. They start after the servers. Signals ask
// to be replaced: then end is called with a cause as soon as that cuts off nobody.
// It ends life.
func (f *Front) Listeners(life context.Context, signals <-chan os.Signal, end context.CancelCauseFunc) []daemon.Service {
	replaced := func() bool { return errors.Is(context.Cause(life), errReplaced) }
	services := []daemon.Service{{Name: "leave", Run: func(ctx context.Context) error { return f.leave(ctx, replaced) }}, f.attending("listener", f.listeners.api, f.server, replaced)}
	if f.previews != nil {
		services = append(services, f.attending("listener of previews", f.listeners.previews, f.previews, replaced))
	}
	return append(services, daemon.Service{Name: "successor", Run: func(ctx context.Context) error { return f.yield(ctx, signals, end) }})
}

// Close closes what Open opened, and no service has closed.
func (f *Front) Close() error {
	if f.plain == nil {
		return nil
	}
	if err := f.plain.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// serving answers what comes through a listener, TLS included. At its end it waits
// for the requests that are under way, and for the streams, which may be nil.
func (f *Front) serving(name string, l *handover.Listener, server *http.Server, streams *streams) daemon.Service {
	return daemon.Service{Name: name, Run: func(ctx context.Context) error {
		if streams == nil {
			return serve(ctx, server, f.ingress.Listen(l, server.TLSConfig, nil))
		}
		streams.begin(ctx)
		err := serve(ctx, server, f.ingress.Listen(l, server.TLSConfig, streams))
		streams.end()
		return err
	}}
}

func serve(ctx context.Context, server *http.Server, through net.Listener) error {
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(through) }() // ends with the server
	select {
	case err := <-ended:
		if !errors.Is(err, net.ErrClosed) {
			return err
		}
		<-ctx.Done() // the listener is closed first
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := server.Shutdown(drain); err != nil {
		return errors.Join(err, server.Close())
	}
	return nil
}

// attending keeps a listener open. At its end nobody is let in any more: callers
// are refused, or wait for the dozed that replaces this one.
func (f *Front) attending(name string, l *handover.Listener, server *http.Server, replaced func() bool) daemon.Service {
	return daemon.Service{Name: name, Run: func(ctx context.Context) error {
		err := l.Run(ctx)
		if f.linger > 0 && !replaced() {
			if deaf := l.Deafen(); deaf != nil {
				slog.Warn("callers may be cut off", "err", deaf)
			}
			pause(context.WithoutCancel(ctx), deafTime) // for those whose call is on its way
		}
		if !replaced() {
			err = errors.Join(err, l.Shut())
		}
		if f.linger == 0 || replaced() {
			server.SetKeepAlivesEnabled(false)
		}
		return errors.Join(err, l.Close())
	}}
}

// leave waits for the end of ctx. Then callers have the time to leave, and the requests that are
// under way to end. New callers are refused already: they use another edge.
func (f *Front) leave(ctx context.Context, replaced func() bool) error {
	<-ctx.Done()
	if f.linger == 0 || replaced() {
		return nil
	}
	f.requests.shut.Store(true)
	f.requests.closing.Store(true)
	began := time.Now()
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	slog.Info("to end as soon as no request is under way and clients have closed their connections; another signal ends that", "idle", f.idle)
	pause(life, leaveWait)
	select {
	case <-f.hurry: // that by which it ends
	default:
	}
	go func() { // ends with life
		select {
		case <-f.hurry:
			stop()
		case <-life.Done():
		}
	}()
	_ = f.rested(life, 0) // an error is another signal
	// Those that came last by a connection that was idle get their time, too.
	most, cancel := context.WithTimeout(life, max(f.linger-time.Since(began), drainTime))
	defer cancel()
	if err := f.requests.wait(most, 0); err != nil {
		slog.Warn("requests are cut off", "requests", f.requests.old(0), "after", time.Since(began))
	}
	return nil
}

// rested returns when no connection has been without a request for an age or longer, or with the
// cause of the end of ctx. Each was told with its last answer, or will be with its next one. If
// it were closed, a request could be on its way already. Connections that their clients do not
// close within the idle time are not waited for.
func (f *Front) rested(ctx context.Context, age time.Duration) error {
	for f.ingress.Resting(age, f.idle) > 0 {
		if pause(ctx, idleLook); ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// keepAlives lets connections stay open behind requests, or not.
func (f *Front) keepAlives(on bool) {
	f.server.SetKeepAlivesEnabled(on)
	if f.previews != nil {
		f.previews.SetKeepAlivesEnabled(on)
	}
}
