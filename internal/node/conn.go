package node

import (
	"bufio"
	"context"
	"net"
	"syscall"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/conn"
)

// reachable are the phases in which there is somebody to talk to; in all but
// the first, only we do.
var reachable = []doze.Phase{doze.Running, doze.Starting, doze.Archiving, doze.Unarchiving, doze.Disabling}

// unreachable is why nobody can be reached in the machine of a box, or nil.
// Preconditions: mu is held.
func (b *Box) unreachable() error {
	switch {
	case b.life.Err() != nil:
		return context.Cause(b.life)
	case b.machine != nil && b.state.Is(reachable...):
		return nil
	default: // it fell asleep, or ended, under a request
		return conn.ErrHungUp
	}
}

// reach is a box as those see it who connect to its machine.
type reach struct{ b *Box }

// Reach implements [conn.Owner].
func (r reach) Reach() (conn.Dialer, error) {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.machine, b.unreachable()
}

// Admit implements [conn.Owner].
func (r reach) Admit(add func()) error {
	b := r.b
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.unreachable(); err != nil {
		return err
	}
	add()
	return nil
}

// Inside implements [conn.Owner].
func (r reach) Inside(ctx context.Context, agent net.Conn, port uint16) (*bufio.Reader, error) {
	from, err := agentapi.ConnectLoopbackOver(ctx, agent, port)
	if agentapi.Refused(err) {
		return nil, syscall.ECONNREFUSED // nobody listens there, or the agent is older than the call
	}
	return from, err
}

// reachEarly begins a connection to a machine that wakes. Preconditions: the turn is
// held.
func (b *Box) reachEarly(m machine.Machine, port uint16) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns.Early(m, port, b.life.spawn)
}

// hangUp closes all connections into the machine, those that are being made
// included.
func (b *Box) hangUp() {
	b.conns.CloseIdle() // first, so that no request picks a closed one
	b.mu.Lock()
	closeAll := b.conns.Cut()
	b.mu.Unlock()
	closeAll()
}
