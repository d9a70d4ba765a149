package egress

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/time/rate"
)

// TestRate: what goes by a connection takes the time that its bytes cost, in both
// directions, and who waits for that hears of the end.
func TestRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		limit := rate.NewLimiter(1000, 1000)
		there, here := net.Pipe()
		c := newLimited(t.Context(), here, limit, new(Traffic), func() {})
		began := time.Now()
		go func() {
			for range 6 {
				_, _ = there.Write(make([]byte, 500))
			}
			_, _ = io.Copy(io.Discard, there)
		}()
		for range 6 {
			if _, err := io.ReadFull(c, make([]byte, 500)); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if _, err := c.Write(make([]byte, 1000)); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("5000 bytes, of which 1000 are free, took %v", took)
		}
		go func() {
			time.Sleep(time.Millisecond)
			_ = c.Close()
		}()
		began = time.Now()
		if _, err := c.Write(make([]byte, 1000)); err == nil || time.Since(began) != time.Millisecond {
			t.Errorf("closed while it waits: %v after %v", err, time.Since(began))
		}
		_ = there.Close()
	})
}

// TestRateOfStreams: streams that the kernel passes count as well, and end while
// they wait.
func TestRateOfStreams(t *testing.T) {
	t.Parallel()
	const perSecond, sent = 16 << 20, 5 << 20
	limit := rate.NewLimiter(perSecond, stride)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	from, a := pipe(t)
	b, to := pipe(t)
	done := make(chan struct{})
	go func() {
		splice(ctx, a, b, &guest{limit: limit, traffic: new(Traffic)}, new(flow))
		close(done)
	}()
	began := time.Now()
	content := bytes.Repeat([]byte("content "), sent/8)
	go func() {
		_, _ = from.Write(content)
		_ = from.CloseWrite()
	}()
	got, err := io.ReadAll(to)
	if err != nil || !bytes.Equal(got, content) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if took, least := time.Since(began), time.Duration(sent-stride)*time.Second/perSecond*9/10; took < least {
		t.Errorf("it took %v, at least %v are due", took, least)
	}
	limit.SetLimit(0)
	limit.AllowN(time.Now(), int(limit.Tokens())) // from here on everybody waits for ever
	for _, c := range []*net.TCPConn{from, to} {
		_ = c.SetDeadline(time.Now().Add(busy))
	}
	go func() { _, _ = to.Write(make([]byte, stride)) }() // the kernel may hold less; ends at the deadline
	if _, err := io.ReadFull(from, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	cancel()
	select {
	case <-done:
	case <-time.After(busy):
		t.Error("it does not end while it waits")
	}
}

// pipe returns both ends of a connection.
func pipe(tb testing.TB) (one, other *net.TCPConn) {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	c, err := new(net.Dialer).DialContext(tb.Context(), "tcp4", l.Addr().String())
	if err != nil {
		tb.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { c.Close(); d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}
