package mtls

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// A failover carries requests to the first of several peers that takes connections. One of
// them is active: the others take none.
type failover struct {
	next  http.RoundTripper
	hosts []string // host:port
	wait  time.Duration

	mu    sync.Mutex
	at    int       // guarded by mu; the peer that took the last connection
	since time.Time // guarded by mu; of the first failure of a row; zero: there is none
}

// TransportTo is [Identity.Transport] to whichever peer of a role is active, of some base
// URLs. Requests may name any of these. A request whose body is small is sent again to the next
// process of a peer if the one before did not take it.
func (i *Identity) TransportTo(peer Role, bases []string) (http.RoundTripper, error) {
	f := &failover{}
	for _, base := range bases {
		u, err := url.Parse(base)
		if err != nil {
			return nil, err
		}
		f.hosts = append(f.hosts, u.Host)
	}
	t := i.Transport(peer)
	if len(bases) > 1 {
		t.DialContext, f.wait = (&net.Dialer{Timeout: failoverWait}).DialContext, restartTime
	}
	f.next = speaker{t, Contract}
	return f, nil
}

const (
	// failoverWait is how long a peer may take to accept a connection before another one is
	// tried.
	failoverWait = 2 * time.Second
	// replayMax bounds the body that is kept for another try, in bytes. Calls of the API have
	// such bodies, and uploads do not.
	replayMax = 64 << 10
)

// RoundTrip implements [http.RoundTripper]. A request is tried again if nothing of it was sent.
// One that only reads is tried once more in any case: its answer may be lost with the peer.
func (f *failover) RoundTrip(r *http.Request) (*http.Response, error) {
	r, err := replayable(r)
	if err != nil {
		return nil, err
	}
	if r.GetBody != nil && r.Body != nil {
		_ = r.Body.Close() // each try has its own
	}
	again := r.Method == http.MethodGet || r.Method == http.MethodHead
	for tries := 1; ; tries++ {
		at, host := f.peer()
		out := r.Clone(r.Context())
		out.URL.Host = host
		var body *lent
		switch {
		case r.GetBody != nil:
			if out.Body, err = r.GetBody(); err != nil {
				return nil, err
			}
		case r.Body != nil && r.Body != http.NoBody:
			body = &lent{ReadCloser: r.Body}
			out.Body = body
		}
		resp, err := f.next.RoundTrip(out)
		if err == nil {
			f.worked()
			return resp, nil
		}
		away := f.failed(at)
		retry := tries < len(f.hosts) || away < f.wait
		if !unsent(err) {
			retry, again = again && body == nil, false
		}
		if !retry || r.Context().Err() != nil {
			if body != nil {
				_ = r.Body.Close()
			}
			return nil, err
		}
		t := time.NewTimer(knockEvery)
		select {
		case <-t.C:
		case <-r.Context().Done():
			t.Stop()
			return nil, err
		}
	}
}

// replayable returns a request whose body can be sent again, if it is small. HTTP/2 needs that
// where a peer that stops has not taken a request any more.
func replayable(r *http.Request) (*http.Request, error) {
	if r.GetBody != nil || r.Body == nil || r.Body == http.NoBody || r.ContentLength <= 0 || r.ContentLength > replayMax {
		return r, nil
	}
	raw, err := io.ReadAll(io.LimitReader(r.Body, replayMax))
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, err
	}
	if int64(len(raw)) != r.ContentLength {
		return nil, io.ErrUnexpectedEOF
	}
	out := *r // a transport may not change what it was given
	out.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(raw)), nil }
	return &out, nil
}

// peer is the one to try.
func (f *failover) peer() (at int, host string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.at, f.hosts[f.at]
}

// worked takes note that a peer answered.
func (f *failover) worked() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.since = time.Time{}
}

// failed has the next peer tried, unless somebody had before. It returns for how long none has
// answered.
func (f *failover) failed(at int) (away time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.since.IsZero() {
		f.since = time.Now()
	}
	if f.at == at {
		f.at = (at + 1) % len(f.hosts)
		slog.Debug("a peer takes no connections: trying another one", "peer", f.hosts[at], "other", f.hosts[f.at])
	}
	return time.Since(f.since)
}

// unsent reports whether an error is that of a connection that was never made.
func unsent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// lent is the body of a request. A transport that could not connect closes it unread: then
// it is still good for the next try.
type lent struct {
	io.ReadCloser

	mu   sync.Mutex
	read bool // guarded by mu
}

// Read implements [io.Reader].
func (l *lent) Read(p []byte) (int, error) {
	l.mu.Lock()
	l.read = true
	l.mu.Unlock()
	return l.ReadCloser.Read(p)
}

// Close implements [io.Closer].
func (l *lent) Close() error {
	l.mu.Lock()
	read := l.read
	l.mu.Unlock()
	if !read {
		return nil
	}
	return l.ReadCloser.Close()
}
