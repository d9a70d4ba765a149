package attack_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// outsiders have no key. They own as many addresses as they like.
var outsiders = []attack{
	{"outsider", "headers of tiny fields that do not end", headerFlood},
	{"outsider", "headers that come byte by byte", slowHeaders},
	{"outsider", "bodies that never come", bodyFlood},
	{"outsider", "connections that say nothing", silence},
	{"outsider", "streams that are reset at once", rapidReset},
	{"outsider", "answers that are never read", slowReaders},
	{"outsider", "logins of devices", deviceFlood},
	{"outsider", "keys and passwords that are wrong", guesses},
}

const (
	headerSockets = 200
	headerBytes   = 1 << 20 // that each of them tries to send
	manySockets   = 6000
	sources       = 200 // addresses that an attack comes from
	tinyField     = "x: y\r\n"
)

// sockets opens connections until there are n, or ctx ends, from as many
// sources, and has each begin with what it sends. It returns those that were
// taken. They are closed when the test ends, if not before.
func (w *world) sockets(ctx context.Context, t *testing.T, n int, first string) (open []net.Conn) {
	t.Helper()
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	slots := make(chan struct{}, 64) // at a time: the kernel has a queue, too
	for i := range n {
		if ctx.Err() != nil {
			break
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			w.tried.Add(1)
			c, err := from(i%sources).DialContext(ctx, "tcp", strings.TrimPrefix(w.Address, "http://"))
			if err == nil {
				_, err = io.WriteString(c, first)
				if err != nil {
					_ = c.Close()
				}
			}
			if err != nil {
				w.refused.Add(1)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, c)
		})
	}
	wg.Wait()
	t.Cleanup(func() { hangUp(open) })
	return open
}

func hangUp(open []net.Conn) {
	for _, c := range open {
		_ = c.Close() // some were closed by the other side
	}
}

// gone waits until the other side has closed each connection, or ctx ends, and
// counts those it has closed. What it said before is returned for one of them.
func (w *world) gone(ctx context.Context, open []net.Conn) (closed int, said string) {
	var (
		wg sync.WaitGroup
		mu sync.Mutex
	)
	for _, c := range open {
		wg.Go(func() {
			if until, ok := ctx.Deadline(); ok {
				_ = c.SetReadDeadline(until) // or it is closed
			}
			text, err := io.ReadAll(io.LimitReader(c, 1<<12))
			if ne, timeout := errors.AsType[net.Error](err); timeout && ne.Timeout() {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			closed++
			w.refused.Add(1)
			if len(text) > len(said) {
				said = string(text)
			}
		})
	}
	wg.Wait()
	return closed, said
}

// headerFlood sends a megabyte of tiny header fields, and no end of them. All of
// the senders must be refused long before.
func headerFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	for first := true; first || ctx.Err() == nil; first = false {
		w.headers(context.WithoutCancel(ctx), t) // a wave takes less than a second
	}
}

// headers is one wave of them.
func (w *world) headers(ctx context.Context, t *testing.T) {
	t.Helper()
	open := w.sockets(ctx, t, headerSockets, "GET /v0/sandboxes HTTP/1.1\r\nHost: doze\r\n")
	defer hangUp(open)
	chunk := []byte(strings.Repeat(tinyField, 1<<12/len(tinyField)))
	var wg sync.WaitGroup
	var mu sync.Mutex
	most := 0
	for _, c := range open {
		wg.Go(func() {
			sent := 0
			for sent < headerBytes && ctx.Err() == nil {
				_ = c.SetWriteDeadline(time.Now().Add(time.Second)) // or it is closed
				n, err := c.Write(chunk)
				sent += n
				if err != nil {
					break
				}
			}
			mu.Lock()
			defer mu.Unlock()
			most = max(most, sent)
		})
	}
	wg.Wait()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), giveBack)
	defer cancel()
	closed, said := w.gone(ctx, open)
	if closed < len(open) {
		t.Errorf("of %d senders, %d are let go on after %d bytes of a header", len(open), len(open)-closed, most)
	}
	if said != "" && !strings.HasPrefix(said, "HTTP/1.1 4") && !strings.HasPrefix(said, "HTTP/1.1 5") {
		t.Errorf("a sender of endless headers is told %q", said)
	}
}

// slowHeaders sends one byte of a header at a time.
func slowHeaders(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	open := w.sockets(ctx, t, manySockets/4, "GET /v0/sandboxes HTTP/1.1\r\nHost: doze\r\n")
	for i := 0; ctx.Err() == nil; i++ {
		for _, c := range open {
			_, _ = c.Write([]byte{"x: y\r\n"[i%6]}) // those that were closed are what this is about
		}
		wait(ctx, time.Second/2)
	}
	hangUp(open)
}

// bodyFlood announces bodies that never come, on a route that needs a key and on
// one that does not.
func bodyFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	const head = " HTTP/1.1\r\nHost: doze\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
	var open []net.Conn
	for _, path := range []string{"/v0/sandboxes", "/v0/login/device", "/run/main/sandboxes/victim/process"} {
		open = append(open, w.sockets(ctx, t, manySockets/3, "POST "+path+head)...)
	}
	wait(ctx, wholeTime)
	hangUp(open)

	// The refusal must not wait for the body.
	c := w.dial(t, sources+1)
	defer c.Close()
	began := time.Now()
	if _, err := io.WriteString(c, "POST /v0/sandboxes"+head); err != nil {
		t.Fatal(err)
	}
	_ = c.SetReadDeadline(began.Add(dialTime))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("a request without a key has no answer after %v, as its body is missing: %v", time.Since(began).Round(poll), err)
	}
	defer resp.Body.Close()
	if took := time.Since(began); resp.StatusCode != http.StatusUnauthorized || took > time.Second {
		t.Errorf("a request without a key, and without its body, is answered by %s after %v; want 401 at once", resp.Status, took)
	}
}

// dial connects from the i-th address.
func (w *world) dial(t *testing.T, i int) net.Conn {
	t.Helper()
	c, err := from(i).DialContext(t.Context(), "tcp", strings.TrimPrefix(w.Address, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// silence connects and says nothing.
func silence(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	open := w.sockets(ctx, t, manySockets, "")
	wait(ctx, wholeTime)
	hangUp(open)
}

// rapidReset opens streams of HTTP/2 and resets each at once (CVE-2023-44487).
func rapidReset(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for ctx.Err() == nil {
				w.resetStreams(ctx, i)
			}
		})
	}
	wg.Wait()
}

// resetStreams does so on one connection until the other side ends it.
func (w *world) resetStreams(ctx context.Context, i int) {
	c, err := from(i).DialContext(ctx, "tcp", strings.TrimPrefix(w.Address, "http://"))
	if err != nil {
		w.refused.Add(1)
		wait(ctx, poll)
		return
	}
	defer func() { _ = c.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	defer stop()
	go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
	var head bytes.Buffer
	enc := hpack.NewEncoder(&head)
	for _, f := range [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "doze"}, {":path", "/v0/sandboxes"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]}) // a buffer takes all
	}
	out := bufio.NewWriter(c)
	_, err = out.WriteString(http2.ClientPreface)
	framer := http2.NewFramer(out, nil)
	err = errors.Join(err, framer.WriteSettings())
	for id := uint32(1); err == nil && ctx.Err() == nil; id += 2 {
		err = errors.Join(
			framer.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head.Bytes(), EndStream: true, EndHeaders: true}),
			framer.WriteRSTStream(id, http2.ErrCodeCancel),
		)
		w.tried.Add(1)
	}
	if err != nil {
		w.refused.Add(1)
	}
}

// slowReaders ask for the largest answer that anybody gets, again and again on
// one connection, and read none.
func slowReaders(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	request := strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: doze\r\n\r\n", 20)
	open := w.sockets(ctx, t, manySockets/12, request)
	wait(ctx, wholeTime)
	hangUp(open)
}

// deviceFlood begins logins that nobody completes, from one address. Somebody
// else must still be able to log in.
func deviceFlood(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	client := w.at(1)
	defer client.CloseIdleConnections()
	form := url.Values{"client_id": {"blaxel"}, "scope": {"offline_access"}}
	begin := func(c *http.Client) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.Address+"/v0/login/device", strings.NewReader(form.Encode()))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := c.Do(r)
		if err != nil {
			return 0, err
		}
		_, _ = io.Copy(io.Discard, resp.Body) // what matters is the status
		return resp.StatusCode, resp.Body.Close()
	}
	for range 2000 {
		if ctx.Err() != nil {
			break
		}
		status, err := begin(client)
		w.tried.Add(1)
		switch {
		case err != nil:
			t.Error(err)
			return
		case status == http.StatusTooManyRequests:
			w.refused.Add(1)
		case status != http.StatusOK:
			t.Errorf("a login of a device is answered by %d", status)
			return
		}
	}
	if w.tried.Load() > 100 && w.refused.Load() == 0 {
		t.Error("one address may begin as many logins as it likes")
	}
	other := w.at(2)
	defer other.CloseIdleConnections()
	if status, err := begin(other); status != http.StatusOK || err != nil {
		t.Errorf("after that, a login from another address is answered by %d, %v", status, err)
	}
}

// at is a client whose requests come from the i-th address.
func (w *world) at(i int) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{DialContext: from(i).DialContext}}
}

// guesses tries keys.
func guesses(ctx context.Context, t *testing.T, w *world) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			c := w.at(i)
			defer c.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, w.Address+"/v0/sandboxes", nil)
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("Authorization", fmt.Sprintf("Bearer bl_%d_%d", i, n))
				w.tried.Add(1)
				resp, err := c.Do(r)
				if err != nil {
					continue // it is cut off
				}
				_ = resp.Body.Close()
				switch resp.StatusCode {
				case http.StatusTooManyRequests:
					w.refused.Add(1)
				case http.StatusUnauthorized:
				default:
					t.Errorf("a wrong key is answered by %s", resp.Status)
				}
			}
		})
	}
	wg.Wait()
}

// wait waits for a while, or until ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
