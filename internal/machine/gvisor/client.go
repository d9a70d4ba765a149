package gvisor

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dozehq/doze/internal/machine"
)

var (
	errNoLauncher = errors.New("no launcher listens")
	errGone       = errors.New("the launcher has no such machine")
	errTaken      = errors.New("the launcher has such a machine already")
	errStill      = errors.New("the machine stands still")
	errLate       = errors.New("what ended the checkpoint was meant for an earlier one")
	errLost       = errors.New("the guest was faster than the copy")
	errOld        = errors.New("the launcher is of a build that does not know this call")
	errCut        = errors.New("the launcher ended before it answered")
)

// answerMax bounds what we read of a launcher's answer.
const answerMax = 16 << 20

// idleMax bounds the kept connections; more calls at once make their own.
const idleMax = 64

// client speaks to a launcher, over connections that are kept. A call writes
// and reads in the goroutine that makes it: net/http's client hands it to two
// others, and each hand-over costs a wake a tenth of a millisecond.
type client struct {
	socket string

	mu   sync.Mutex
	idle []*wire // guarded by mu
}

func newClient(socket string) *client { return &client{socket: socket} }

// wire is one connection.
type wire struct {
	*net.UnixConn

	in *bufio.Reader
}

// quiet reports whether the far end is there and says nothing, as it should
// between calls. On a unix socket the end of a process is seen at once.
func (w *wire) quiet() (ok bool) {
	raw, err := w.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		ok = errors.Is(err, unix.EAGAIN)
	})
	return ok && err == nil
}

// take returns a kept connection, or a new one.
func (c *client) take(ctx context.Context) (*wire, error) {
	for w := c.idleConn(); w != nil; w = c.idleConn() {
		if w.quiet() {
			return w, nil
		}
		_ = w.Close()
	}
	var d net.Dialer
	conn, err := d.DialUnix(ctx, "unix", nil, &net.UnixAddr{Name: c.socket, Net: "unix"})
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w: %w", errNoLauncher, err)
	case err != nil:
		return nil, err
	}
	return &wire{conn, bufio.NewReader(conn)}, nil
}

// idleConn returns the connection that was used last, or nil.
func (c *client) idleConn() *wire {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.idle)
	if n == 0 {
		return nil
	}
	w := c.idle[n-1]
	c.idle = c.idle[:n-1]
	return w
}

// release takes a connection back on which nothing is under way.
func (c *client) release(w *wire) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.idle) == idleMax {
		_ = w.Close()
		return
	}
	c.idle = append(c.idle, w)
}

// hangUp closes the kept connections.
func (c *client) hangUp() {
	for w := c.idleConn(); w != nil; w = c.idleConn() {
		_ = w.Close()
	}
}

func (c *client) ping(ctx context.Context) error {
	return c.get(ctx, PathVersion, &Version{})
}

func (c *client) get(ctx context.Context, path string, out any) error {
	return c.do(ctx, leave, http.MethodGet, path, nil, out)
}

func (c *client) post(ctx context.Context, path string, in, out any) error {
	return c.do(ctx, leave, http.MethodPost, path, in, out)
}

// leave does not wait for the answer of an abandoned call.
func leave(w *wire) { _ = w.SetDeadline(time.Unix(1, 0)) }

// halt asks the launcher to end an abandoned call early, and waits for it.
func halt(w *wire) { _ = w.CloseWrite() }

func (c *client) do(ctx context.Context, abandon func(*wire), method, path string, in, out any) error {
	status, raw, err := c.exchange(ctx, abandon, method, path, in)
	if err != nil {
		return fmt.Errorf("launcher %s: %w", path, err)
	}
	if status == http.StatusNotFound {
		return fmt.Errorf("launcher %s: %w", path, errOld)
	}
	if status != http.StatusOK {
		var f Failure
		if err := json.Unmarshal(raw, &f); err != nil {
			return fmt.Errorf("launcher %s: %s", path, http.StatusText(status))
		}
		switch {
		case f.Gone:
			return fmt.Errorf("%w: %w: %s", machine.ErrGone, errGone, f.Error)
		case f.Taken:
			return fmt.Errorf("%w: %s", errTaken, f.Error)
		case f.Still:
			return fmt.Errorf("%w: %s", errStill, f.Error)
		case f.Late:
			return fmt.Errorf("%w: %s", errLate, f.Error)
		case f.Lost:
			return fmt.Errorf("%w: %s", errLost, f.Error)
		}
		if _, why, damaged := strings.Cut(f.Error, machine.ErrDamaged.Error()+": "); damaged { // the launcher has words for it only
			return fmt.Errorf("%w: %s", machine.ErrDamaged, why)
		}
		return errors.New(f.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(raw, out)
}

// exchange sends a request and reads the whole answer. When ctx ends, abandon is
// called.
func (c *client) exchange(ctx context.Context, abandon func(*wire), method, path string, in any) (status int, answer []byte, err error) {
	w, err := c.take(ctx)
	if err != nil {
		return 0, nil, err
	}
	stop := context.AfterFunc(ctx, func() { abandon(w) })
	defer func() {
		switch {
		case !stop(): // it was abandoned, or is about to be
			if _ = w.Close(); err != nil {
				err = context.Cause(ctx)
			}
		case err != nil:
			_ = w.Close()
			err = fmt.Errorf("%w: %w", errCut, err)
		default:
			c.release(w)
		}
	}()
	resp, err := w.send(method, path, in)
	if err != nil {
		return 0, nil, err
	}
	answer, err = io.ReadAll(io.LimitReader(resp.Body, answerMax))
	if err == nil && (len(answer) == answerMax || resp.Close) {
		err = errors.New("the answer does not end, or says that no other follows")
	}
	return resp.StatusCode, answer, errors.Join(err, resp.Body.Close())
}

// send sends a request and reads the header of the answer.
func (w *wire) send(method, path string, in any) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, "http://launcher"+path, body) //nolint:noctx // its deadline is the connection's
	if err != nil {
		return nil, err
	}
	if err := req.Write(w); err != nil {
		return nil, err
	}
	return http.ReadResponse(w.in, req)
}

// events returns what the launcher tells until it goes or ctx ends; then the
// channel is closed.
func (c *client) events(ctx context.Context) (<-chan machine.Event, error) {
	w, err := c.take(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = w.Close() })
	resp, err := w.send(http.MethodGet, PathEvents, nil) //nolint:bodyclose // the goroutine below closes the connection
	if err != nil {
		stop()
		return nil, errors.Join(err, w.Close())
	}
	out := make(chan machine.Event)
	go func() { // ends with the stream
		defer close(out)
		defer func() { stop(); _ = w.Close() }()
		decoder := json.NewDecoder(resp.Body)
		for {
			var e machine.Event
			if decoder.Decode(&e) != nil {
				return
			}
			select {
			case out <- e:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out, nil
}
