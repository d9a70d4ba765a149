package mtls

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"
)

// TestPatience: who is started again is waited for, who is away for longer is not.
func TestPatience(t *testing.T) {
	t.Parallel()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	p := &patient{wait: time.Minute}
	go func() {
		time.Sleep(100 * time.Millisecond)
		if l, err = new(net.ListenConfig).Listen(t.Context(), "tcp", address); err != nil {
			t.Error(err)
		}
	}()
	c, err := p.dial(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.Close()
	_ = l.Close()

	p.wait = 50 * time.Millisecond
	began := time.Now()
	if _, err := p.dial(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) || time.Since(began) < p.wait {
		t.Errorf("after %v it is %v", time.Since(began), err)
	}
	p.wait = time.Hour
	p.since = time.Now().Add(-2 * time.Hour)
	if _, err := p.dial(t.Context(), "tcp", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("who is away for long is waited for: %v", err)
	}
}
