package drive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze/internal/drive/op"
)

const (
	// linkWait is how long a call waits for the host: longer than the host takes
	// to start again. Then it fails, and no process waits for ever.
	linkWait = 60 * time.Second
	// linkProbe is how long a call waits after others have waited so long. The kernel
	// makes some calls one after another, and none of them may take a minute more.
	linkProbe = 2 * time.Second
	// callLimit bounds one call with the upload of a whole file in it.
	callLimit = 30 * time.Minute
)

// link is the way to the host. Its connection comes and goes.
type link struct {
	mu      sync.Mutex
	host    *http.ClientConn // guarded by mu; nil while there is no connection
	changed chan struct{}    // guarded by mu; closed and replaced when host changes
	gone    bool             // guarded by mu; there will be no other
	missed  time.Time        // guarded by mu; since then calls wait for a connection; zero if none does
}

func newLink() *link { return &link{changed: make(chan struct{})} }

// set makes host the way from now on, or nil.
func (l *link) set(host *http.ClientConn, gone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.host, l.gone, l.missed = host, l.gone || gone, time.Time{}
	close(l.changed)
	l.changed = make(chan struct{})
}

// serve uses a connection to the host until it or ctx ends.
func (l *link) serve(ctx context.Context, c net.Conn) {
	ended := make(chan struct{})
	conn := &watched{Conn: c, ended: sync.OnceFunc(func() { close(ended) })}
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{
		Protocols:   &protocols,
		HTTP2:       &http.HTTP2Config{MaxReadFrameSize: op.DataMax},
		DialContext: func(context.Context, string, string) (net.Conn, error) { return conn, nil },
	}
	// One connection, and not a transport that makes another for the second of two
	// calls that wait for it.
	host, err := transport.NewClientConn(ctx, "http", "host:80")
	if err != nil {
		slog.Debug("a connection to the host is none", "err", err)
		_ = c.Close() // the host makes another
		return
	}
	l.set(host, false)
	select {
	case <-ended:
	case <-ctx.Done():
	}
	l.drop(host)
	_ = c.Close() // it may be closed already
}

// drop ends a way that does not work, unless there is another one: the host makes
// the next when it sees the end of this.
func (l *link) drop(host *http.ClientConn) {
	l.mu.Lock()
	same := l.host == host
	l.mu.Unlock()
	if same {
		l.set(nil, false)
	}
	_ = host.Close() // it may be closed already
}

// reach returns a way to the host other than the one that failed. If there is none, it
// waits for the rest of the time that all waiting calls share.
func (l *link) reach(ctx context.Context, failed *http.ClientConn) (*http.ClientConn, error) {
	var late <-chan time.Time
	for {
		l.mu.Lock()
		host, changed, gone := l.host, l.changed, l.gone
		if host == nil && late == nil {
			if l.missed.IsZero() {
				l.missed = time.Now()
			}
			late = time.After(max(linkProbe, linkWait-time.Since(l.missed)))
		}
		l.mu.Unlock()
		switch {
		case gone:
			return nil, syscall.ENOTCONN
		case host != nil && host != failed:
			return host, nil
		}
		select {
		case <-changed:
		case <-late:
			return nil, errAway
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// errAway is of a call for which there was no host in time.
var errAway = errors.New("the host is away")

// ask makes a call until the host has answered it. Without out, the answer is
// the bytes that it returns.
func (l *link) ask(ctx context.Context, c op.Call, data []byte, out *op.Answer) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	var failed *http.ClientConn
	for {
		host, err := l.reach(ctx, failed)
		if err != nil {
			return nil, err
		}
		raw, err := send(ctx, host, c, data)
		switch {
		case err == nil && out != nil:
			return nil, json.Unmarshal(raw, out)
		case err == nil || errors.As(err, new(syscall.Errno)):
			return raw, err
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		}
		slog.Debug("a call to the host is repeated", "op", c.Op, "err", err)
		failed, c.Again = host, true
		l.drop(host)
	}
}

// send makes one call. An [syscall.Errno] is the host's answer, other errors are
// those of the way.
func send(ctx context.Context, host http.RoundTripper, c op.Call, data []byte) ([]byte, error) {
	target, err := c.Target()
	if err != nil {
		return nil, syscall.EINVAL
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://host"+target, bytes.NewReader(data))
	if err != nil {
		return nil, syscall.EINVAL
	}
	resp, err := host.RoundTrip(r)
	if err != nil {
		return nil, broken(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := op.ReadBody(io.LimitReader(resp.Body, op.AnswerMax), resp.ContentLength)
	if err != nil {
		return nil, broken(err)
	}
	return raw, op.Refusal(resp)
}

// broken is an error of the way, without the errno that it may have: that of a
// connection is none of a file.
func broken(err error) error { return errors.New("the way to the host: " + err.Error()) }

// watched is a connection that tells of its end.
type watched struct {
	net.Conn

	ended func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.ended()
	}
	return n, err
}

func (w *watched) Close() error {
	w.ended()
	return w.Conn.Close()
}
