package fleet

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/trace"
)

// A tunnel is one stream of HTTP/2 from a caller to a port of a sandbox. The body
// of the request is what the caller sends; its end is the end of that direction.
// The body of the answer is a sequence of frames: the length as a big-endian
// uint32, then as many bytes. A frame of length 0 ends that direction. A stream
// that ends without one was cut.
const (
	tunnelPath = Prefix + "tunnel"
	frameHead  = 4
	// frameMax bounds one frame, in bytes: a tunnel keeps no more of an answer.
	frameMax = 64 << 10
	// cameHeader says how long the caller behind a request has waited already, in
	// nanoseconds: the clocks of two hosts differ.
	cameHeader = "Doze-Waited"
	// stateAgeHeader has the age of the state of the sandbox in nanoseconds, on the
	// first tunnel after the sandbox went back to a checkpoint.
	stateAgeHeader = "Doze-State-Age"
	parentHeader   = "Traceparent"
)

// announce names the caller behind a request to another role, if there is one.
func announce(ctx context.Context, r *http.Request) {
	if c := trace.CallerOf(ctx); c != nil {
		r.Header.Set(cameHeader, strconv.FormatInt(int64(c.Waited()), 10))
		r.Header.Set(parentHeader, c.Parent())
	}
}

// arrive returns a context that knows the caller behind a request: what the request
// makes the node do is traced from the moment in which the caller came.
func arrive(r *http.Request) (context.Context, *trace.Caller) {
	text := r.Header.Get(cameHeader)
	waited, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return trace.Expect(r.Context())
	}
	return trace.Arrive(r.Context(), time.Now().Add(-time.Duration(max(0, waited))), r.Header.Get(parentHeader))
}

// Dialer is what a node gives to the carrier of requests to sandboxes.
type Dialer interface {
	// Dial wakes a sandbox and connects to a port of it. The sandbox is held awake
	// until the connection is closed. An error says that nothing reached the sandbox.
	Dial(ctx context.Context, uid string, port uint16) (net.Conn, error)
	// StateAge returns how old the state of a sandbox is, once after the sandbox went
	// back to a checkpoint. It does not block.
	StateAge(uid string) (age time.Duration, ok bool)
}

// PortFailure classifies an error of the way to a port of a sandbox. The end of the
// caller's own context stays what it is.
func PortFailure(ctx context.Context, port uint16, err error) error {
	switch {
	case ctx.Err() != nil, errors.Is(err, ErrUnreachable): // it says nothing about the port
		return err
	case errors.Is(err, syscall.ECONNREFUSED):
		return doze.Wrap(err, doze.Unavailable, "nothing listens on port %d: start a server on it", port)
	case errors.Is(err, context.DeadlineExceeded):
		return doze.Wrap(err, doze.Unavailable, "port %d of the sandbox does not answer", port)
	}
	if _, ok := errors.AsType[*doze.Error](err); ok {
		return err
	}
	return doze.Wrap(err, doze.Unavailable, "the sandbox closed the connection on port %d", port)
}

// serveTunnel connects a caller to a port of a sandbox until both directions have
// ended, or one was cut.
func (s *Server) serveTunnel(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	uid := q.Get("uid")
	port, err := strconv.ParseUint(q.Get("port"), 10, 16)
	if err != nil || port == 0 {
		Answer(w, nil, doze.Errorf(doze.Invalid, "the port of the tunnel must be 1 to 65535"))
		return
	}
	ctx, caller := arrive(r)
	defer caller.Leave()
	conn, err := s.dialer.Dial(ctx, uid, uint16(port))
	if err != nil {
		Answer(w, nil, err)
		return
	}
	defer func() { _ = conn.Close() }()
	control := http.NewResponseController(w)
	if age, ok := s.dialer.StateAge(uid); ok {
		w.Header().Set(stateAgeHeader, strconv.FormatInt(int64(age), 10))
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	w.WriteHeader(http.StatusOK)
	if control.Flush() != nil {
		return // the caller is gone
	}
	var up sync.WaitGroup
	up.Go(func() { sendUp(conn, r.Body) })
	err = sendDown(w, control, conn)
	if err != nil {
		_ = conn.Close()
		_ = r.Body.Close() // ends sendUp
	}
	up.Wait()
	if err != nil {
		panic(http.ErrAbortHandler) // resets the stream: the caller sees that it was cut
	}
}

// sendUp copies what the caller sends into the sandbox, and its end. A caller that
// was cut takes the connection with it.
func sendUp(conn net.Conn, from io.Reader) {
	_, err := io.Copy(conn, from)
	half, ok := conn.(interface{ CloseWrite() error })
	if err != nil || !ok {
		_ = conn.Close()
		return
	}
	_ = half.CloseWrite() // a sandbox that is gone has ended the other direction
}

// sendDown sends what the sandbox writes in frames, each as soon as it is there.
func sendDown(w io.Writer, control *http.ResponseController, from io.Reader) error {
	buf := make([]byte, frameHead+frameMax)
	for {
		n, err := from.Read(buf[frameHead:])
		if n > 0 || errors.Is(err, io.EOF) {
			binary.BigEndian.PutUint32(buf, uint32(n)) //nolint:gosec // G115: at most frameMax
			if _, lost := w.Write(buf[:frameHead+n]); lost != nil {
				return lost
			}
			if lost := control.Flush(); lost != nil {
				return lost
			}
		}
		switch {
		case errors.Is(err, io.EOF) && n == 0:
			return nil
		case errors.Is(err, io.EOF): // the next read says so again, with nothing
		case err != nil:
			return err
		}
	}
}

// Ports carries requests to ports of sandboxes on another host, each over a tunnel
// of its own. It is safe for concurrent use.
type Ports struct {
	find      func(uid string) (node string, c *Client)
	transport *http.Transport

	// Moves says where sandboxes go; without it, none does. It is set before the first request.
	Moves Moves

	mu   sync.Mutex
	ages map[string]time.Time // guarded by mu; by UID: when the state was made that nobody was told of
}

// Moves is what is known of sandboxes that go from one node to another.
type Moves interface {
	// Many reports whether there is more than one node.
	Many() bool
	// Await waits until a sandbox is not on a node any more, and reports whether that is so.
	Await(ctx context.Context, uid, node string) bool
}

var _ Gate = (*Ports)(nil)

const (
	// portHeaderMax bounds the header of an answer of a sandbox, in bytes. The tenant
	// decides what comes.
	portHeaderMax = 1 << 20
	// agesMax bounds the sandboxes whose age is still to be told.
	agesMax = 10_000
)

// NewPorts returns the ports of sandboxes. find returns the node that has one, and its
// client.
func NewPorts(find func(uid string) (node string, c *Client)) *Ports {
	p := &Ports{find: find, ages: map[string]time.Time{}}
	p.transport = &http.Transport{
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			uid, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return nil, fmt.Errorf("port %q: %w", port, err)
			}
			return p.Dial(ctx, uid, uint16(n))
		},
		DisableCompression:     true, // bytes pass as they are
		MaxIdleConnsPerHost:    -1,   // a tunnel holds its sandbox awake
		MaxResponseHeaderBytes: portHeaderMax,
	}
	return p
}

// Transport implements [Gate].
func (p *Ports) Transport(uid string, port uint16) http.RoundTripper { return remotePort{p, uid, port} }

// StateAge is as in [Dialer], for what the last tunnel to a sandbox said.
func (p *Ports) StateAge(uid string) (age time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	made, ok := p.ages[uid]
	delete(p.ages, uid)
	return max(0, time.Since(made)), ok
}

// learnAge remembers the age that a node has told.
func (p *Ports) learnAge(uid, text string) {
	age, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ages) < agesMax {
		p.ages[uid] = time.Now().Add(-time.Duration(age))
	}
}

// remotePort is a [http.RoundTripper] to one port of one sandbox.
type remotePort struct {
	p    *Ports
	uid  string
	port uint16
}

// RoundTrip opens a tunnel and sends the request.
func (t remotePort) RoundTrip(r *http.Request) (*http.Response, error) {
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", net.JoinHostPort(t.uid, strconv.Itoa(int(t.port)))
	resp, err := t.p.transport.RoundTrip(out)
	if err != nil {
		return nil, PortFailure(r.Context(), t.port, err)
	}
	return resp, nil
}

const (
	// movedWait is how long a request waits for a sandbox that moves to another node.
	movedWait = 30 * time.Second
	// awayWait is how long a request waits for a sandbox whose node does not answer: others
	// may get it in that time.
	awayWait = 15 * time.Second
	// againWait is how soon the same node is asked again.
	againWait = time.Second
)

// Dial opens a tunnel, as [Dialer] says. The connection has no deadlines. While the
// sandbox moves from one node to another, Dial waits for that. It asks the next node as soon as
// the sandbox is there, also if the one before has not answered yet.
func (p *Ports) Dial(ctx context.Context, uid string, port uint16) (net.Conn, error) {
	for began := time.Now(); ; {
		node, client := p.find(uid)
		c, err := p.dialAt(ctx, node, client, uid, port)
		wait := awayWait
		switch {
		case err == nil, ctx.Err() != nil, p.Moves == nil, !p.Moves.Many():
			return c, err
		case errors.Is(err, ErrMoved):
			wait = movedWait
		case !errors.Is(err, ErrUnreachable):
			return nil, err
		}
		if time.Since(began) > wait {
			if errors.Is(err, ErrUnreachable) {
				err = doze.Wrap(err, doze.Unavailable, "the node of the sandbox cannot be reached, and another one takes the sandbox when its lease is over: try again")
			}
			return nil, err
		}
		bounded, cancel := context.WithTimeout(ctx, againWait)
		p.Moves.Await(bounded, uid, node) // or the node answers again
		cancel()
	}
}

// dialAt opens a tunnel to a node, as long as that has the sandbox. After that the error is
// ErrMoved. A node that is dead may not refuse for a long time, and nothing of a request is
// sent before the tunnel is open.
func (p *Ports) dialAt(ctx context.Context, node string, client *Client, uid string, port uint16) (net.Conn, error) {
	if p.Moves == nil || !p.Moves.Many() {
		return p.dial(ctx, client, uid, port)
	}
	opening, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { // ends with opening
		if p.Moves.Await(opening, uid, node) {
			end(ErrMoved)
		}
	}()
	c, err := p.dial(opening, client, uid, port)
	if err != nil && ctx.Err() == nil && errors.Is(context.Cause(opening), ErrMoved) {
		err = errors.Join(ErrMoved, err)
	}
	return c, err
}

// dial opens a tunnel to a node.
func (p *Ports) dial(ctx context.Context, client *Client, uid string, port uint16) (net.Conn, error) {
	// The tunnel outlives the context in which it is opened.
	life, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	open := context.AfterFunc(ctx, func() { cut(context.Cause(ctx)) })
	body, up := io.Pipe()
	query := url.Values{"uid": {uid}, "port": {strconv.Itoa(int(port))}}
	to, err := client.at(ctx, tunnelPath+"?"+query.Encode())
	if err != nil {
		cut(err)
		return nil, unreachable(ctx, nodePeer, "tunnel", err)
	}
	r, err := http.NewRequestWithContext(life, http.MethodPost, to, body)
	if err != nil {
		cut(err)
		return nil, err
	}
	announce(ctx, r)
	resp, err := client.http.Do(r)
	if err == nil && resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, callMax))
		_ = resp.Body.Close()
		err = failed(nodePeer, resp.StatusCode, raw)
	} else if err != nil {
		err = unreachable(ctx, nodePeer, "tunnel", err)
	}
	if open(); err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
		_ = resp.Body.Close()
	}
	if err != nil {
		cut(err)
		return nil, err
	}
	if text := resp.Header.Get(stateAgeHeader); text != "" {
		p.learnAge(uid, text)
	}
	return &tunnel{up: up, down: bufio.NewReaderSize(resp.Body, frameMax), body: resp.Body, cut: cut, address: tunnelAddress(net.JoinHostPort(uid, strconv.Itoa(int(port))))}, nil
}

// tunnel is the caller's end.
type tunnel struct {
	up      *io.PipeWriter
	down    *bufio.Reader
	body    io.Closer
	left    int // of the frame that is being read
	ended   bool
	cut     context.CancelCauseFunc
	address tunnelAddress
}

// errCut is the end of a tunnel without that of what it carried.
var errCut = fmt.Errorf("the connection to the node was cut: %w", io.ErrUnexpectedEOF)

// Read implements [net.Conn].
func (t *tunnel) Read(p []byte) (int, error) {
	if t.ended {
		return 0, io.EOF
	}
	if t.left == 0 {
		var head [frameHead]byte
		if _, err := io.ReadFull(t.down, head[:]); err != nil {
			return 0, errors.Join(errCut, err)
		}
		n := binary.BigEndian.Uint32(head[:])
		if n > frameMax {
			return 0, fmt.Errorf("the node sends a frame of %d bytes, more than %d", n, frameMax)
		}
		if t.left = int(n); t.left == 0 {
			t.ended = true
			return 0, io.EOF
		}
	}
	n, err := t.down.Read(p[:min(len(p), t.left)])
	t.left -= n
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
}

// Write implements [net.Conn].
func (t *tunnel) Write(p []byte) (int, error) { return t.up.Write(p) }

// CloseWrite ends what we send and goes on reading.
func (t *tunnel) CloseWrite() error { return t.up.Close() }

// errTunnelClosed is for the other end of what was not over.
var errTunnelClosed = errors.New("the tunnel was closed")

// Close implements [net.Conn]. The node lets go of the sandbox.
func (t *tunnel) Close() error {
	t.cut(errTunnelClosed)
	_ = t.up.CloseWithError(errTunnelClosed)
	return t.body.Close()
}

// LocalAddr implements [net.Conn].
func (t *tunnel) LocalAddr() net.Addr { return tunnelAddress("") }

// RemoteAddr implements [net.Conn].
func (t *tunnel) RemoteAddr() net.Addr { return t.address }

// SetDeadline implements [net.Conn]. A tunnel ends with the request that it carries.
func (t *tunnel) SetDeadline(time.Time) error { return os.ErrNoDeadline }

// SetReadDeadline implements [net.Conn].
func (t *tunnel) SetReadDeadline(time.Time) error { return os.ErrNoDeadline }

// SetWriteDeadline implements [net.Conn].
func (t *tunnel) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }

// tunnelAddress is a port of a sandbox: uid:port.
type tunnelAddress string

// Network implements [net.Addr].
func (tunnelAddress) Network() string { return "doze" }

func (a tunnelAddress) String() string { return string(a) }
