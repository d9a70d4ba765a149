package ingress

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/greeting"
	"github.com/dozehq/doze/internal/httpx"
)

const (
	// lingerTime and lingerBytes are what a client may still send when it has its
	// answer and the connection ends. Without them the kernel would reset the
	// connection, and take the answer back.
	lingerTime  = 2 * time.Second
	lingerBytes = 256 << 10
	// refusingMax bounds how many clients are told at a time that there is no
	// room. Others are only closed.
	refusingMax = 128
	// retrySeconds is after what time a refused connection may find room.
	retrySeconds = 5
)

// listener hands out the connections that get room.
type listener struct {
	net.Listener

	in      *Ingress
	secure  *greeting.Server // nil for plain HTTP
	streams Streams          // nil without
	arrived chan arrival
	closed  chan struct{}
	once    sync.Once
	start   sync.Once
}

// arrival is what Accept returns.
type arrival struct {
	conn net.Conn
	err  error
}

// Streams take connections that are no HTTP, by the host that their client asks for.
type Streams interface {
	// Takes reports whether a client is of theirs. It must not block.
	Takes(h greeting.Hello) bool
	// Open connects a client to its port, or says why not.
	Open(ctx context.Context, h greeting.Hello) (greeting.Stream, error)
	// Serve has the stream carried until it ends, and calls ended then. It does not wait.
	Serve(client greeting.Conn, s greeting.Stream, ended func())
}

// Listen returns a listener over l. With secure, which may be nil, it speaks TLS,
// and the server must not do so. Streams, which may be nil, take what is no HTTP. It is
// closed with l, or closes l.
func (in *Ingress) Listen(l net.Listener, secure *tls.Config, streams Streams) net.Listener {
	to := &listener{Listener: l, in: in, streams: streams, arrived: make(chan arrival), closed: make(chan struct{})}
	if secure != nil {
		secure = secure.Clone()
		for _, proto := range []string{"h2", "http/1.1"} {
			if !slices.Contains(secure.NextProtos, proto) {
				secure.NextProtos = append(secure.NextProtos, proto)
			}
		}
		to.secure = greeting.NewServer(secure, to.choose)
	}
	return to
}

// choose says who takes a connection.
func (l *listener) choose(ctx context.Context, h greeting.Hello) (greeting.Stream, error) {
	if l.streams == nil || !l.streams.Takes(h) {
		return nil, nil //nolint:nilnil // HTTP
	}
	if at, err := netip.ParseAddrPort(h.From); err == nil {
		if v := l.in.requests.take(at.Addr().Unmap().WithZone(""), 1); !v.OK {
			l.in.count(overRate)
			return nil, v.Err("connections from your address")
		}
	}
	return l.streams.Open(ctx, h)
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	if l.secure == nil {
		c, err := l.next()
		if err != nil {
			return nil, err
		}
		return c.over(c), nil
	}
	l.start.Do(func() { go l.shake() }) // ends with the listener below
	select {
	case a := <-l.arrived:
		return a.conn, a.err
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return l.Listener.Close()
}

// next returns the next connection that gets room. The others are refused.
func (l *listener) next() (*conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := address(raw)
		if v := l.in.barred.Take(httpx.SourceNetwork(from), 0); v.Remaining < 1 {
			l.in.count(deaf)
			_ = raw.Close() // it did not listen before
			continue
		}
		c := l.in.newConn(raw, l.opening())
		c.proxied = l.in.trusts(from)
		evict, why, ok := l.in.roster.add(c, from, c.proxied, number(raw) >= l.in.descriptors)
		if evict != nil {
			l.in.count(evicted)
			_ = evict.Close()
		}
		if ok {
			return c, nil
		}
		c.opening.Stop()
		l.in.count(why)
		l.refuse(raw, why)
	}
}

// opening is how long a connection may take to its first request.
func (l *listener) opening() time.Duration {
	if l.secure == nil {
		return l.in.limits.Header
	}
	return l.in.limits.Header + handshakeTime
}

// address is where a connection is from.
func address(c net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{} // a pipe
	}
	return at.Addr().Unmap().WithZone("")
}

// number is the descriptor of a connection. The kernel gives out the lowest that
// is free: a large one says how many are in use.
func number(c net.Conn) (fd int) {
	socket, ok := c.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(n uintptr) { fd = int(n) }) // 0 if it is closed already
	return fd
}

// refuse ends a connection that gets no room. Over plain HTTP the client is told
// so, if not too many are told at the moment.
func (l *listener) refuse(raw net.Conn, why reason) {
	select {
	case l.in.refusing <- struct{}{}:
	default:
		_ = raw.Close()
		return
	}
	if l.secure != nil { // a handshake costs more than a request
		<-l.in.refusing
		_ = raw.Close()
		return
	}
	go func() { // ends after lingerTime
		defer func() { <-l.in.refusing }()
		defer func() { _ = raw.Close() }()
		_ = raw.SetDeadline(time.Now().Add(lingerTime))
		text := l.in.busy
		if why == crowdedSource {
			text = l.in.crowded
		}
		if _, err := raw.Write(text); err != nil {
			return
		}
		if half, ok := raw.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
		_, _ = io.CopyN(io.Discard, raw, lingerBytes)
	}()
}

// refusal is the answer to a connection that gets no room.
func refusal(message string) []byte {
	body, err := json.Marshal(httpx.ControlBody(&doze.Error{
		Kind: doze.Unavailable, Message: fmt.Sprintf("%s; try again in %d s", message, retrySeconds),
	}))
	if err != nil {
		panic(err) // a text always can be
	}
	status := doze.Unavailable.Status()
	return fmt.Appendf(nil, "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %d\r\nRetry-After: %d\r\n%s: %s\r\nConnection: close\r\n\r\n%s",
		status, http.StatusText(status), httpx.JSONType, len(body), retrySeconds, origin, platform, body)
}

// shake accepts connections, and hands each out when it has made the handshake
// of TLS. Those that are under way when the listener below closes are handed out
// still. It ends when they are through, or with the listener.
func (l *listener) shake() {
	var shaking sync.WaitGroup
	for {
		c, err := l.next()
		if err == nil {
			shaking.Go(func() { l.handshake(c) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			shaking.Wait()
			l.once.Do(func() { close(l.closed) })
			return
		}
		if !l.hand(arrival{err: err}) {
			return
		}
	}
}

// hand gives Accept something to return, unless the listener is closed.
func (l *listener) hand(a arrival) bool {
	select {
	case l.arrived <- a:
		return true
	case <-l.closed:
		return false
	}
}

// handshakeTime bounds a handshake whose client has begun: an authority may have
// to make the certificate first.
const handshakeTime = 30 * time.Second

// handshake makes the handshake of one connection, in a bounded time.
func (l *listener) handshake(c *conn) {
	ctx, cancel := context.WithTimeout(context.Background(), handshakeTime) //nolint:forbidigo // a listener has no context
	defer cancel()
	_ = c.SetReadDeadline(time.Now().Add(l.in.limits.Header))
	begun, stream, err := l.secure.Begin(ctx, c)
	if err != nil {
		l.dismiss(c, err)
		return
	}
	c.opening.Reset(l.in.limits.Header)
	if stream != nil {
		c.opening.Stop()
		c.active.Add(1) // nobody makes room by ending it
		l.streams.Serve(begun, stream, func() { c.active.Add(-1); _ = c.Close() })
		return
	}
	secure, _ := begun.(*tls.Conn)
	var served net.Conn = secure // HTTP/2, which bounds its headers itself
	if proto := secure.ConnectionState().NegotiatedProtocol; proto == "" || proto == "http/1.1" {
		served = c.over(secure)
	} else {
		c.multiplexed.Store(true)
	}
	if !l.hand(arrival{conn: served}) {
		_ = c.Close()
	}
}

// dismiss ends a connection whose handshake did not work, when its client could read
// why.
func (l *listener) dismiss(c *conn, err error) {
	defer func() { _ = c.Close() }()
	if header, ok := errors.AsType[tls.RecordHeaderError](err); ok && looksPlain(header.RecordHeader) {
		_ = c.SetDeadline(time.Now().Add(lingerTime))
		_, _ = io.WriteString(c, "HTTP/1.0 400 Bad Request\r\n\r\nThis address speaks TLS: use https.\n")
		return
	}
	if greeting.Told(err) {
		_ = c.SetDeadline(time.Now().Add(lingerTime))
		_ = c.CloseWrite()
		_, _ = io.CopyN(io.Discard, c, lingerBytes)
	}
}

// looksPlain reports whether what should be TLS is a request of HTTP.
func looksPlain(header [5]byte) bool {
	return slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "DELET", "PATCH"}, string(header[:]))
}
