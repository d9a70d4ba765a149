// Package fence keeps a driver of machines from doing anything while its node may not.
package fence

import (
	"cmp"
	"context"
	"net"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
)

// ErrClosed is for a connection to a machine while its node may run nothing.
var ErrClosed = doze.Errorf(doze.Unavailable, "the node of the sandbox has lost its connection to the platform: try again in a moment")

// A Gate is passed by every operation of machines. It is safe for concurrent use.
type Gate struct {
	mu      sync.Mutex
	open    chan struct{} // guarded by mu; closed when those that wait are to look again
	closed  bool          // guarded by mu
	ended   bool          // guarded by mu; it neither opens nor closes any more
	inside  int           // guarded by mu
	emptied chan struct{} // guarded by mu; closed when nothing is inside, while somebody waits
}

// NewGate returns an open gate.
func NewGate() *Gate {
	g := &Gate{open: make(chan struct{})}
	close(g.open)
	return g
}

// enter waits until an operation may begin. The caller that is let in calls leave.
func (g *Gate) enter(ctx context.Context) (leave func(), err error) {
	for {
		g.mu.Lock()
		if !g.closed {
			g.inside++
			g.mu.Unlock()
			return g.leave, nil
		}
		open, ended := g.open, g.ended
		g.mu.Unlock()
		if ended {
			return nil, cmp.Or(context.Cause(ctx), ErrClosed)
		}
		select {
		case <-open:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (g *Gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.inside--; g.inside == 0 && g.emptied != nil {
		close(g.emptied)
		g.emptied = nil
	}
}

// Close lets no operation begin any more, and returns when those that have begun are over.
// The end of ctx is an error: some go on, and the gate is closed.
func (g *Gate) Close(ctx context.Context) error {
	g.mu.Lock()
	if !g.closed && !g.ended {
		g.closed, g.open = true, make(chan struct{})
	}
	if g.inside == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.emptied == nil {
		g.emptied = make(chan struct{})
	}
	emptied := g.emptied
	g.mu.Unlock()
	select {
	case <-emptied:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Open lets operations begin again.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && !g.ended {
		g.closed = false
		close(g.open)
	}
}

// End leaves the gate as it is for ever: nobody is there any more who would open it. Operations
// that wait for a closed gate, or come to it, fail with ErrClosed. So the end of a process does not wait for them.
func (g *Gate) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed && !g.ended {
		close(g.open) // those that wait look again
	}
	g.ended = true
}

// Closed reports whether no operation may begin.
func (g *Gate) Closed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed
}

// Driver is a driver behind a gate. Its events pass.
type Driver struct {
	machine.Driver

	gate *Gate
}

// New returns a driver behind a gate.
func New(d machine.Driver, g *Gate) *Driver { return &Driver{d, g} }

// through makes an operation of a driver when the gate is open.
func (d *Driver) through(ctx context.Context, do func() (machine.Machine, error)) (machine.Machine, error) {
	leave, err := d.gate.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	m, err := do()
	if m == nil || err != nil {
		return m, err
	}
	return &fenced{m, d.gate}, nil
}

// Boot implements [machine.Driver].
func (d *Driver) Boot(ctx context.Context, c machine.Config) (machine.Machine, error) {
	return d.through(ctx, func() (machine.Machine, error) { return d.Driver.Boot(ctx, c) })
}

// Receive implements [machine.Driver].
func (d *Driver) Receive(ctx context.Context, c machine.Config) (machine.Machine, error) {
	return d.through(ctx, func() (machine.Machine, error) { return d.Driver.Receive(ctx, c) })
}

// Adopt implements [machine.Driver].
func (d *Driver) Adopt(ctx context.Context, c machine.Config) (machine.Machine, error) {
	return d.through(ctx, func() (machine.Machine, error) { return d.Driver.Adopt(ctx, c) })
}

// Sweep implements [machine.Driver].
func (d *Driver) Sweep(ctx context.Context, live func(id string) bool) error {
	leave, err := d.gate.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return d.Driver.Sweep(ctx, live)
}

// fenced is a machine behind a gate. What only looks at it passes.
type fenced struct {
	machine.Machine

	gate *Gate
}

func (m *fenced) through(ctx context.Context, do func() error) error {
	leave, err := m.gate.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	return do()
}

// Suspend implements [machine.Machine].
func (m *fenced) Suspend(ctx context.Context, to machine.Tier) error {
	return m.through(ctx, func() error { return m.Machine.Suspend(ctx, to) })
}

// Resume implements [machine.Machine].
func (m *fenced) Resume(ctx context.Context) error {
	return m.through(ctx, func() error { return m.Machine.Resume(ctx) })
}

// Precopy implements [machine.Machine].
func (m *fenced) Precopy(ctx context.Context) error {
	return m.through(ctx, func() error { return m.Machine.Precopy(ctx) })
}

// Snapshot implements [machine.Machine].
func (m *fenced) Snapshot(ctx context.Context, dir string, freeze machine.Freeze) error {
	return m.through(ctx, func() error { return m.Machine.Snapshot(ctx, dir, freeze) })
}

// Renew implements [machine.Machine].
func (m *fenced) Renew(ctx context.Context, most time.Duration, freeze machine.Freeze) error {
	return m.through(ctx, func() error { return m.Machine.Renew(ctx, most, freeze) })
}

// Rename implements [machine.Machine].
func (m *fenced) Rename(ctx context.Context, hostname string) error {
	return m.through(ctx, func() error { return m.Machine.Rename(ctx, hostname) })
}

// Administer implements [machine.Machine].
func (m *fenced) Administer(ctx context.Context, args ...string) error {
	return m.through(ctx, func() error { return m.Machine.Administer(ctx, args...) })
}

// Archive implements [machine.Machine].
func (m *fenced) Archive(ctx context.Context, file string) error {
	return m.through(ctx, func() error { return m.Machine.Archive(ctx, file) })
}

// Dial implements [machine.Machine]. It does not wait for the gate.
func (m *fenced) Dial(ctx context.Context, port uint16) (net.Conn, error) {
	if m.gate.Closed() {
		return nil, ErrClosed
	}
	return m.Machine.Dial(ctx, port)
}

// Close implements [machine.Machine].
func (m *fenced) Close(ctx context.Context) error {
	return m.through(ctx, func() error { return m.Machine.Close(ctx) })
}
