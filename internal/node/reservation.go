package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/fleet"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/trace"
)

// A sandbox takes memory of the node as it touches it, so that nobody can tell
// from what is in use how much those that run will want. The reservations are what
// each may take, from before it gets memory until it has none: see
// [Box.account]. It is in memory alone and made again at each start.

// reservations are what machines may take of the memory, by their ids.
type reservations struct {
	most int64 // that all may take together; 0 is no bound

	mu       sync.Mutex
	reserved map[string]int64 // guarded by mu
	sum      int64            // guarded by mu; of reserved
	refusals uint64           // guarded by mu
}

// reserve reserves memory for a machine, unless there is none left. It reports
// whether the machine has its reservation, which may be from before.
func (r *reservations) reserve(id string, bytes int64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, has := r.reserved[id]; has {
		return true
	}
	if r.most > 0 && r.sum+bytes > r.most {
		return false
	}
	r.set(id, bytes)
	return true
}

// note records what a machine has already.
func (r *reservations) note(id string, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.set(id, bytes)
}

// release takes a reservation back, if there is one.
func (r *reservations) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum -= r.reserved[id]
	delete(r.reserved, id)
}

// set replaces a reservation. Preconditions: mu is held.
func (r *reservations) set(id string, bytes int64) {
	r.sum += bytes - r.reserved[id]
	r.reserved[id] = bytes
}

// refuse counts a refusal.
func (r *reservations) refuse() (reserved int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refusals++
	return r.sum
}

// Committed is what the machines of a node may take of its memory.
type Committed struct {
	Bytes    int64  // reserved now
	Most     int64  // that may be reserved; 0 is no bound
	Limit    int64  // that they can take together; 0 is no bound
	Refusals uint64 // of creates, forks and wakes, since the start
}

// Committed returns what is reserved for machines now.
func (n *Node) Committed() Committed {
	n.reservations.mu.Lock()
	defer n.reservations.mu.Unlock()
	return Committed{Bytes: n.reservations.sum, Most: n.reservations.most, Limit: n.Limit, Refusals: n.reservations.refusals}
}

// need is what a machine may take. No machine can take more than all together.
func (n *Node) need(c machine.Config) int64 {
	need := c.Memory + n.Driver.Traits().Overhead
	if n.Limit > 0 {
		need = min(need, n.Limit)
	}
	return need
}

// never is why a machine cannot have its memory at any time, or nil. A sandbox of
// the default size fits every node: it gets what there is.
func (n *Node) never(c machine.Config) error {
	most := n.reservations.most
	if c.Memory > int64(doze.MemoryDefault)<<20 && n.Limit > 0 {
		most = min(cmp.Or(most, n.Limit), n.Limit)
	}
	asked := c.Memory + n.Driver.Traits().Overhead
	if c.Memory <= int64(doze.MemoryDefault)<<20 {
		asked = n.need(c)
	}
	if most == 0 || asked <= most {
		return nil
	}
	n.reservations.refuse()
	return doze.Wrap(machine.ErrNoMemory, doze.Unprocessable,
		"a sandbox of %d MB never fits here: it needs %d MB with its engine, and the node has %d MB: ask for less, or have the operator look at --sandbox-memory-mb and --memory-overcommit",
		c.Memory>>20, asked>>20, most>>20)
}

// reserveMemory reserves the memory of a machine, if need be by moving sleeping sandboxes to
// disk, the longest unused first. Without room the error is public and wraps
// [machine.ErrNoMemory]. A machine that has its reservation costs one look into a map.
func (n *Node) reserveMemory(ctx context.Context, c machine.Config) error {
	defer trace.Start(ctx, trace.Memory).End()
	need := n.need(c)
	if err := n.never(c); err != nil {
		return err
	}
	for !n.reservations.reserve(c.ID, need) {
		if n.ahead.giveUp(ctx) {
			continue
		}
		done := n.sinkOldest(machine.OnDisk, (*descent.Schedule).InRAM)
		if done == nil {
			n.recount()
			if n.reservations.reserve(c.ID, need) {
				return nil
			}
			reserved := n.reservations.refuse()
			slog.WarnContext(ctx, "no memory is left to reserve", "sandbox", c.ID, "need", need, "reserved", reserved, "most", n.reservations.most)
			return doze.Wrap(errors.Join(machine.ErrNoMemory, fleet.ErrFull), doze.Unavailable,
				"the node has no memory left: sandboxes in memory have reserved %d of %d MB, and this one, of %d MB, needs %d MB with its engine; try again when one of them has gone to sleep, or delete one",
				reserved>>20, n.reservations.most>>20, c.Memory>>20, need>>20)
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// recount takes note of machines that ended and of which nobody told: a turn
// ends with that.
func (n *Node) recount() {
	for _, b := range n.all() {
		if b.turn.try() { // or it ends soon
			b.unlock()
		}
	}
}

// account makes the reservations agree with where the memory of the machine is.
// Preconditions: the turn is held, or nobody else has the box yet.
func (b *Box) account() {
	b.mu.Lock()
	m := b.machine
	soon := b.absent != nil && b.absent.Ran
	b.mu.Unlock()
	if !soon && (m == nil || m.Tier() >= machine.Swapped) {
		b.n.reservations.release(b.made.config.ID)
		return
	}
	b.n.reservations.note(b.made.config.ID, b.n.need(b.made.config))
}
