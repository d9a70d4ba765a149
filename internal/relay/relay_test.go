package relay_test

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/dozehq/doze/internal/relay"
)

// pair returns both ends of a connection.
func pair(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = c.Close(), s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// join joins two connections, and returns their far ends.
func join(ctx context.Context, t *testing.T) (a, b *net.TCPConn, ended chan struct{}) {
	t.Helper()
	a, nearA := pair(t)
	b, nearB := pair(t)
	ended = make(chan struct{})
	go func() {
		defer close(ended)
		relay.Join(ctx, nearA, io.MultiReader(strings.NewReader("early "), nearA), nearB, nearB)
	}()
	return a, b, ended
}

// TestJoin: each direction carries its bytes, and ends by itself.
func TestJoin(t *testing.T) {
	t.Parallel()
	a, b, ended := join(t.Context(), t)
	_, _ = io.WriteString(a, "question")
	_ = a.CloseWrite()
	if got, err := io.ReadAll(b); string(got) != "early question" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	_, _ = io.WriteString(b, "answer")
	_ = b.CloseWrite()
	if got, err := io.ReadAll(a); string(got) != "answer" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	<-ended
}

// TestBreak: an end that breaks ends the other one, as the context does.
func TestBreak(t *testing.T) {
	t.Parallel()
	a, b, ended := join(t.Context(), t)
	_ = a.SetLinger(0)
	_ = a.Close()
	_, _ = io.ReadAll(b)
	<-ended
	ctx, cancel := context.WithCancel(t.Context())
	a, _, ended = join(ctx, t)
	cancel()
	<-ended
	if _, err := a.Read(make([]byte, 1)); err == nil {
		t.Error("a connection is open after its context")
	}
}
