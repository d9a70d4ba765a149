package node_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine/machinetest"
)

// streaming answers and goes on until its caller goes away.
func streaming(w http.ResponseWriter, r *http.Request) {
	w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// body notices what is done with it.
type body struct {
	io.Reader

	read   atomic.Int64
	closed atomic.Bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	b.read.Add(int64(n))
	return n, err
}

func (b *body) Close() error {
	b.closed.Store(true)
	return nil
}

// endless is a body without end.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// idle fails if sandbox a is held.
func (p *process) idle() {
	p.h.t.Helper()
	synctest.Wait()
	if n := p.Holds("a"); n != 0 {
		p.h.t.Errorf("%d holds are left", n)
	}
}

func TestGateFailures(t *testing.T) {
	tests := map[string]struct {
		uid    string
		port   uint16
		before func(*host, *process)
		app    http.HandlerFunc
		give   time.Duration // the caller gives up
		kind   doze.Kind
		text   string
		unread bool // nothing of the request was read
	}{
		"unknown sandbox": {uid: "x", kind: doze.NotFound, text: "no such sandbox", unread: true},
		"disabled": {
			uid: "a", kind: doze.Conflict, text: "the sandbox is disabled", unread: true,
			before: func(h *host, p *process) { _ = p.Disable(h.t.Context(), "a") },
		},
		"wake fails": {
			uid: "a", kind: doze.Unavailable, text: "could not be woken", unread: true,
			before: func(h *host, p *process) { p.sleep("disk"); h.FailNext(machinetest.OpRestore, errBroken) },
		},
		"nobody listens": {uid: "a", port: nobodyPort, kind: doze.Unavailable, text: "nothing listens on port 3001", unread: true},
		"dial fails": {
			uid: "a", kind: doze.Unavailable, text: "the sandbox closed the connection on port 3000", unread: true,
			before: func(h *host, _ *process) { h.FailNext(machinetest.OpDial, errBroken) },
		},
		"dial hangs": {
			uid: "a", kind: doze.Unavailable, text: "port 3000 of the sandbox does not answer", unread: true,
			before: func(h *host, _ *process) { h.FailNext(machinetest.OpDial, context.DeadlineExceeded) },
		},
		"closes": {
			uid: "a", kind: doze.Unavailable, text: "closed the connection",
			app: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		},
		"caller gives up": {
			uid: "a", give: time.Second, kind: doze.Timeout,
			app: func(_ http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body) // or it does not notice
				<-r.Context().Done()
			},
		},
		"caller gives up the wake": {
			uid: "a", give: time.Second, kind: doze.Timeout, unread: true,
			before: func(h *host, p *process) { p.sleep("disk"); h.Delay(machinetest.OpRestore, time.Minute) },
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(h *host) {
				t := h.t
				p := h.has("a")
				if test.app != nil {
					h.app = test.app
				}
				if test.before != nil {
					test.before(h, p)
				}
				ctx := t.Context()
				if test.give > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, test.give)
					defer cancel()
				}
				b := &body{Reader: strings.NewReader("data")}
				r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://x/", b)
				if err != nil {
					t.Fatal(err)
				}
				port := test.port
				if port == 0 {
					port = appPort
				}
				resp, err := p.Transport(test.uid, port).RoundTrip(r)
				if err == nil {
					t.Fatalf("status %d", resp.StatusCode)
				}
				h.kind(err, test.kind, test.text)
				synctest.Wait()
				if !b.closed.Load() {
					t.Error("the body is open")
				}
				if test.unread && b.read.Load() > 0 {
					t.Error("the body was read")
				}
				time.Sleep(time.Minute)
				p.idle()
			})
		})
	}
}

func TestGateStream(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				_, _ = io.WriteString(w, "tick\n")
				_ = http.NewResponseController(w).Flush()
				time.Sleep(time.Hour)
			}
		}
		p := h.has("a")
		p.sleep("disk")
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
		resp, err := p.Transport("a", appPort).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(resp.Body)
		for n := range 10 {
			began := time.Now()
			if !lines.Scan() {
				t.Fatal("the stream ended:", lines.Err())
			}
			if n > 0 && time.Since(began) != time.Hour {
				t.Errorf("a line came after %v", time.Since(began))
			}
			if got := p.phase("a"); got != doze.Running {
				t.Fatalf("while it streams, it is %s", got)
			}
		}
		for lines.Scan() {
			t.Error("more came than was sent")
		}
		if n := p.Holds("a"); n != 1 {
			t.Errorf("before the body is closed: %d holds", n)
		}
		resp.Body.Close()
		resp.Body.Close()
		p.idle()
		if n := p.Conns("a"); n == 0 {
			t.Error("no connection waits for the next request")
		}
		p.sleep("paused")
		if n := p.Conns("a"); n != 0 {
			t.Errorf("%d connections to a sleeping machine", n)
		}
	})
}

func TestGateCancelStream(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = streaming
		p := h.has("a")
		ctx, cancel := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://x/", nil)
		resp, err := p.Transport("a", appPort).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := io.ReadAll(resp.Body); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		resp.Body.Close()
		p.idle()
		p.sleep("disk")
	})
}

// TestGateBigBody sends far more than is read.
func TestGateBigBody(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }
		p := h.has("a")
		b := &body{Reader: endless{}}
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://x/", b)
		resp, err := p.Transport("a", appPort).RoundTrip(r)
		if err != nil || resp.StatusCode != http.StatusTeapot {
			t.Fatal(resp, err)
		}
		resp.Body.Close()
		p.idle()
		if !b.closed.Load() {
			t.Error("the body is open")
		}
	})
}

func TestGateUpgrade(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(http.ErrAbortHandler)
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			_, _ = io.Copy(c, c)
		}
		p := h.has("a")
		p.sleep("saved")
		upgrade := func() io.ReadWriteCloser {
			r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
			r.Header.Set("Connection", "Upgrade")
			r.Header.Set("Upgrade", "echo")
			resp, err := p.Transport("a", appPort).RoundTrip(r)
			if err != nil || resp.StatusCode != http.StatusSwitchingProtocols {
				t.Fatal(resp, err)
			}
			c, ok := resp.Body.(io.ReadWriteCloser)
			if !ok {
				t.Fatalf("the body of an upgrade is %T", resp.Body)
			}
			return c
		}
		c := upgrade()
		time.Sleep(time.Hour)
		got := make([]byte, 4)
		go func() { _, _ = io.WriteString(c, "ping") }()
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "ping" {
			t.Errorf("%q, %v", got, err)
		}
		if _, ok := c.(interface{ CloseWrite() error }); !ok {
			t.Error("it cannot be closed in one direction")
		}
		c.Close()
		p.idle()

		c = upgrade()
		if err := p.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(got); err == nil {
			t.Error("a connection to a deleted sandbox lives")
		}
		c.Close()
	})
}

// TestMachineEnds: nobody waits for the answer of a machine that has ended.
func TestMachineEnds(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		h.app = streaming
		p := h.has("a")
		ended := make(chan error, 1)
		go func() { _, err := p.call(t.Context(), "a", appPort); ended <- err }()
		synctest.Wait()
		h.Kill("a")
		select {
		case err := <-ended:
			if err == nil {
				t.Error("it ended well")
			}
		case <-time.After(time.Second):
			t.Error("a request waits for a machine that has ended")
		}
		p.idle()
		if n := p.Conns("a"); n != 0 {
			t.Errorf("%d connections to nobody", n)
		}
	})
}

// TestEndsUnsent: what was about to reach a machine when that ended reaches the
// sandbox all the same, whole. One without a checkpoint says what it is.
func TestEndsUnsent(t *testing.T) {
	const sent = "all of it"
	calls := map[string]func(*process) (string, error){
		"request": func(p *process) (string, error) {
			b := &body{Reader: strings.NewReader(sent)}
			r, err := http.NewRequestWithContext(p.h.t.Context(), http.MethodPost, "http://x/", b)
			if err != nil {
				return "", err
			}
			resp, err := p.Transport("a", appPort).RoundTrip(r)
			synctest.Wait()
			if !b.closed.Load() {
				p.h.t.Error("the body of the request is left open")
			}
			if err != nil {
				return "", err
			}
			defer resp.Body.Close()
			raw, err := io.ReadAll(resp.Body)
			return string(raw), err
		},
		"connection": func(p *process) (string, error) {
			c, err := p.Dial(p.h.t.Context(), "a", appPort)
			if err != nil {
				return "", err
			}
			defer c.Close()
			if _, err := io.WriteString(c, "POST / HTTP/1.0\r\nContent-Length: 9\r\n\r\n"+sent); err != nil {
				return "", err
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				return "", err
			}
			raw, err := io.ReadAll(resp.Body)
			return string(raw), err
		},
	}
	for name, call := range calls {
		for _, saved := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, saved %t", name, saved), func(t *testing.T) {
				virtual(t, func(h *host) {
					h.app = func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
					o := h.options()
					o.GoBack = true
					p := h.startWith(o)
					if err := p.Create(h.t.Context(), order("a")); err != nil {
						h.t.Fatal(err)
					}
					if saved {
						p.sleep("disk")
						release, err := p.Hold(h.t.Context(), "a")
						if err != nil {
							h.t.Fatal(err)
						}
						release()
						time.Sleep(pauseAfter / 2) // no connection waits any more
					}
					h.Delay(machinetest.OpDial, time.Second)
					time.AfterFunc(time.Second/2, func() { h.Kill("a") })
					got, err := call(p)
					switch {
					case !saved:
						h.kind(err, doze.Conflict, "the sandbox is failed")
					case got != sent || err != nil:
						h.t.Errorf("it answered %q, %v", got, err)
					}
					if st, _ := p.Status("a"); (st.Setback != nil) != saved {
						h.t.Errorf("it went back to %+v", st.Setback)
					}
					p.idle()
				})
			})
		}
	}
}

// TestRefused: right after a wake from disk listeners may not be back yet.
func TestRefused(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		// FailNext counts attempts: the third finds the listener.
		for range 3 {
			h.FailNext(machinetest.OpDial, syscall.ECONNREFUSED)
		}
		p.hello("a")
		p.sleep("disk")
		began := time.Now()
		_, err := p.call(t.Context(), "a", nobodyPort)
		h.kind(err, doze.Unavailable, "nothing listens on port 3001")
		if took := time.Since(began); took < time.Second || took > 2*time.Second {
			t.Errorf("after a wake from disk it was refused after %v", took)
		}
		began = time.Now()
		_, err = p.call(t.Context(), "a", nobodyPort)
		h.kind(err, doze.Unavailable, "nothing listens on port 3001")
		if took := time.Since(began); took > 0 {
			t.Errorf("awake, it was refused after %v", took)
		}
		p.idle()
	})
}

// TestDial: a connection holds its sandbox awake until it is closed, and an error
// is that of a request.
func TestDial(t *testing.T) {
	virtual(t, func(h *host) {
		t := h.t
		p := h.has("a")
		p.sleep("disk")
		c, err := p.Dial(t.Context(), "a", appPort)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		time.Sleep(time.Hour)
		if st, _ := p.Status("a"); st.Phase != doze.Running || !st.InUse {
			t.Errorf("with an open connection it is %+v", st)
		}
		_ = resp.Body.Close()
		_ = c.Close()
		p.idle()
		if all := p.Traces("a"); len(all) == 0 || all[0].From != "disk" {
			t.Errorf("the wake left the traces %+v", all)
		}
		_, err = p.Dial(t.Context(), "a", nobodyPort)
		h.kind(err, doze.Unavailable, "nothing listens on port 3001")
		_, err = p.Dial(t.Context(), "x", appPort)
		h.kind(err, doze.NotFound, "no such sandbox")
		p.idle()
	})
}
