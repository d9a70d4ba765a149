package conn_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/node/conn"
)

// sandbox is the owner of connections, and its machine.
type sandbox struct {
	*testing.T

	closed  error // why nobody can be reached
	refuses int   // how many connections the machine refuses
	refused bool  // it did: then its agent takes connections
	silent  bool  // the machine does not answer
	inside  int   // how often a server inside was looked for
	within  bool  // there is one
	dials   int
	peers   []net.Conn
}

// Reach implements [conn.Owner].
func (s *sandbox) Reach() (conn.Dialer, error) { return s, s.closed }

// Admit implements [conn.Owner].
func (s *sandbox) Admit(add func()) error {
	if s.closed == nil {
		add()
	}
	return s.closed
}

// Inside implements [conn.Owner].
func (s *sandbox) Inside(_ context.Context, agent net.Conn, _ uint16) (*bufio.Reader, error) {
	s.inside++
	if !s.within {
		return nil, syscall.ECONNREFUSED
	}
	return bufio.NewReader(agent), nil
}

// Dial implements [conn.Dialer].
func (s *sandbox) Dial(ctx context.Context, to uint16) (net.Conn, error) {
	if to == doze.AgentPort && s.refused {
		ours, theirs := net.Pipe()
		s.peers = append(s.peers, theirs)
		return ours, nil
	}
	s.dials++
	if s.silent {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if s.refuses > 0 {
		s.refuses--
		s.refused = true
		return nil, syscall.ECONNREFUSED
	}
	ours, theirs := net.Pipe()
	s.peers = append(s.peers, theirs)
	return ours, nil
}

const port = 3000

// virtual runs a test of connections in virtual time.
func virtual(t *testing.T, do func(s *sandbox, all *conn.Set)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &sandbox{T: t}
		do(s, conn.New(t.Context(), s))
	})
}

// TestCut: a cut ends what is open, and what is being made.
func TestCut(t *testing.T) {
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		c, err := all.Dial(t.Context(), port)
		if err != nil || all.Len() != 1 {
			t.Fatalf("%d connections are open: %v", all.Len(), err)
		}
		s.silent = true
		failed := make(chan error)
		go func() {
			_, err := all.Dial(t.Context(), port)
			failed <- err
		}()
		synctest.Wait()
		all.Cut()()
		if err := <-failed; err == nil || errors.Is(err, context.Canceled) {
			t.Errorf("who was about to connect is told %v", err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("an open connection ends with %v", err)
		}
		if all.Len() != 0 {
			t.Errorf("%d connections are open after a cut", all.Len())
		}
		s.silent = false
		if again, err := all.Dial(t.Context(), port); err != nil {
			t.Errorf("after a cut: %v", err)
		} else {
			_ = again.Close()
		}
	})
}

// TestRefused: listeners that are not back yet are waited for after a wake from disk,
// and only then.
func TestRefused(t *testing.T) {
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		s.refuses = 3
		if _, err := all.Dial(t.Context(), port); !errors.Is(err, syscall.ECONNREFUSED) || s.dials != 1 {
			t.Errorf("after %d attempts: %v", s.dials, err)
		}
		all.Woke(time.Now())
		c, err := all.Dial(t.Context(), port)
		if err != nil || s.dials != 4 {
			t.Fatalf("after %d attempts: %v", s.dials, err)
		}
		_ = c.Close()
		s.refuses = 1 << 30
		began := time.Now()
		if _, err := all.Dial(t.Context(), port); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) > 2*time.Second {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestInside: a server that listens on a loopback address alone is found when the
// address of the sandbox refuses. Right after a wake nobody looks for it: the other
// listeners are not back.
func TestInside(t *testing.T) {
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		s.refuses, s.within = 1<<30, true
		c, err := all.Dial(t.Context(), port)
		if err != nil || s.dials != 1 || s.inside != 1 {
			t.Fatalf("after %d attempts, %d of them inside: %v", s.dials, s.inside, err)
		}
		if all.Len() != 1 {
			t.Errorf("%d connections are open", all.Len())
		}
		_ = c.Close()
		if _, err := s.peers[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection to the agent is not closed: %v", err)
		}
		all.Woke(time.Now())
		began := time.Now()
		if c, err = all.Dial(t.Context(), port); err != nil || time.Since(began) < 5*time.Millisecond || time.Since(began) > 20*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		_ = c.Close()
		if _, err := all.Dial(t.Context(), doze.AgentPort); err != nil || s.inside != 2 {
			t.Errorf("the agent was looked for inside, %d times: %v", s.inside-2, err)
		}
	})
}

// TestUnreachable: nobody connects to a sandbox that sleeps, nor keeps a connection
// that was made while it fell asleep.
func TestUnreachable(t *testing.T) {
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		asleep := errors.New("it sleeps")
		s.closed = asleep
		if _, err := all.Dial(t.Context(), port); !errors.Is(err, asleep) || s.dials != 0 {
			t.Errorf("after %d attempts: %v", s.dials, err)
		}
		late := conn.New(t.Context(), &falling{s, asleep})
		if _, err := late.Dial(t.Context(), port); !errors.Is(err, asleep) || late.Len() != 0 {
			t.Errorf("%d connections are open: %v", late.Len(), err)
		}
		if _, err := s.peers[0].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("what came too late is not closed: %v", err)
		}
	})
}

// falling falls asleep while a connection to it is made.
type falling struct {
	*sandbox

	why error
}

// Reach implements [conn.Owner].
func (f *falling) Reach() (conn.Dialer, error) { return f.sandbox, nil }

// Admit implements [conn.Owner].
func (f *falling) Admit(func()) error { return f.why }

// TestEarly: the first request finds the connection that was made while the machine
// woke. Without one it is closed.
func TestEarly(t *testing.T) {
	spawn := func(do func()) bool { go do(); return true }
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		all.Early(s, port, spawn)
		synctest.Wait()
		other, err := all.Dial(t.Context(), port+1)
		if err != nil {
			t.Fatal(err)
		}
		c, err := all.Dial(t.Context(), port)
		if err != nil || s.dials != 2 {
			t.Errorf("%d connections were made: %v", s.dials, err)
		}
		_, _ = other.Close(), c.Close()

		all.Early(s, port, spawn)
		synctest.Wait()
		all.Cut()()
		if _, err := s.peers[2].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after a cut the early connection is open: %v", err)
		}
		all.Early(s, port, spawn)
		time.Sleep(time.Minute)
		synctest.Wait()
		if _, err := s.peers[3].Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("nobody came, and the early connection is open: %v", err)
		}
		all.Early(s, port, func(func()) bool { return false })
		if s.dials != 4 {
			t.Error("at the end of its life the owner connects")
		}
	})
}

// TestHTTP: the host of a request is the port.
func TestHTTP(t *testing.T) {
	virtual(t, func(s *sandbox, all *conn.Set) {
		t := s.T
		for host, dials := range map[string]int{"sandbox:3000": 1, "sandbox:70000": 0} {
			s.dials, s.refuses = 0, 1
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.URL.Host = host
			if _, err := all.HTTP().RoundTrip(r); err == nil || s.dials != dials {
				t.Errorf("%s: %d connections, and %v", host, s.dials, err)
			}
		}
	})
}
