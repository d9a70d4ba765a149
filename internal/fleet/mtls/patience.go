package mtls

import (
	"context"
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// restartTime is how long a peer may refuse connections before that is an error: a
	// role that is started again does so for less than a second.
	restartTime = 10 * time.Second
	// knockEvery is how often it is tried meanwhile.
	knockEvery = 20 * time.Millisecond
)

// A patient dialer waits while a peer is started again. What is refused was not sent:
// it can be tried as often as one likes.
type patient struct {
	net.Dialer

	wait time.Duration

	mu    sync.Mutex
	since time.Time // guarded by mu; of the first refusal of a row
}

// dial connects. To a peer that has refused for longer it fails at once.
func (p *patient) dial(ctx context.Context, network, address string) (net.Conn, error) {
	for {
		c, err := p.DialContext(ctx, network, address)
		if !p.tryAgain(err) {
			return c, err
		}
		select {
		case <-time.After(knockEvery):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// tryAgain takes note of how a try ended, and reports whether to wait for another one.
func (p *patient) tryAgain(err error) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !errors.Is(err, syscall.ECONNREFUSED) {
		p.since = time.Time{}
		return false
	}
	if p.since.IsZero() {
		p.since = time.Now()
	}
	return time.Since(p.since) < p.wait
}
