package node

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/machine"
	"github.com/dozehq/doze/internal/node/descent"
	"github.com/dozehq/doze/internal/trace"
)

// A sandbox takes memory of the node as it touches it, so that nobody can tell
// from what is in use how much those that run will want. The pledges are what
// each may take, from before it gets memory until it has none: see
// [Box.account]. It is in memory alone and made again at each start.

// errNoMemory is why a machine gets no memory.
var errNoMemory = errors.New("the memory of the node is promised to others")

// pledges are what machines may take of the memory, by their ids.
type pledges struct {
	most int64 // that all may take together; 0 is no bound

	mu       sync.Mutex
	promised map[string]int64 // guarded by mu
	sum      int64            // guarded by mu; of promised
	refusals uint64           // guarded by mu
}

// reserve promises memory to a machine, unless there is none left. It reports
// whether the machine has its promise, which may be from before.
func (p *pledges) reserve(id string, bytes int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, has := p.promised[id]; has {
		return true
	}
	if p.most > 0 && p.sum+bytes > p.most {
		return false
	}
	p.set(id, bytes)
	return true
}

// note records what a machine has already.
func (p *pledges) note(id string, bytes int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set(id, bytes)
}

// release takes a promise back, if there is one.
func (p *pledges) release(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sum -= p.promised[id]
	delete(p.promised, id)
}

// set replaces a promise. Preconditions: mu is held.
func (p *pledges) set(id string, bytes int64) {
	p.sum += bytes - p.promised[id]
	p.promised[id] = bytes
}

// refuse counts a refusal.
func (p *pledges) refuse() (promised int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals++
	return p.sum
}

// Committed is what the machines of a node may take of its memory.
type Committed struct {
	Bytes    int64  // promised now
	Most     int64  // that may be promised; 0 is no bound
	Limit    int64  // that they can take together; 0 is no bound
	Refusals uint64 // of creates, forks and wakes, since the start
}

// Committed returns what is promised to machines now.
func (n *Node) Committed() Committed {
	n.pledges.mu.Lock()
	defer n.pledges.mu.Unlock()
	return Committed{Bytes: n.pledges.sum, Most: n.pledges.most, Limit: n.Limit, Refusals: n.pledges.refusals}
}

// need is what a machine may take. No machine can take more than all together.
func (n *Node) need(c machine.Config) int64 {
	need := c.Memory + machine.EngineMemory
	if n.Limit > 0 {
		need = min(need, n.Limit)
	}
	return need
}

// never is why a machine cannot have its memory at any time, or nil. A sandbox of
// the default size fits every node: it gets what there is.
func (n *Node) never(c machine.Config) error {
	most := n.pledges.most
	if c.Memory > int64(doze.MemoryDefault)<<20 && n.Limit > 0 {
		most = min(cmp.Or(most, n.Limit), n.Limit)
	}
	asked := c.Memory + machine.EngineMemory
	if c.Memory <= int64(doze.MemoryDefault)<<20 {
		asked = n.need(c)
	}
	if most == 0 || asked <= most {
		return nil
	}
	n.pledges.refuse()
	return doze.Wrap(errNoMemory, doze.Unprocessable,
		"a sandbox of %d MB never fits here: it needs %d MB with its engine, and the node has %d MB: ask for less, or have the operator look at --sandbox-memory-mb and --memory-overcommit",
		c.Memory>>20, asked>>20, most>>20)
}

// pledge promises a machine its memory, if need be by moving sleeping sandboxes to
// disk, the longest unused first. Without room the error is public and wraps
// errNoMemory. A machine that has its promise costs one look into a map.
func (n *Node) pledge(ctx context.Context, c machine.Config) error {
	defer trace.Start(ctx, trace.Memory).End()
	need := n.need(c)
	if err := n.never(c); err != nil {
		return err
	}
	for !n.pledges.reserve(c.ID, need) {
		if n.ahead.giveUp(ctx) {
			continue
		}
		done := n.sinkOldest(machine.OnDisk, (*descent.Way).InRAM)
		if done == nil {
			n.recount()
			if n.pledges.reserve(c.ID, need) {
				return nil
			}
			promised := n.pledges.refuse()
			slog.WarnContext(ctx, "no memory is left to promise", "sandbox", c.ID, "need", need, "promised", promised, "most", n.pledges.most)
			return doze.Wrap(errNoMemory, doze.Unavailable,
				"the node has no memory left: sandboxes in memory were promised %d of %d MB, and this one, of %d MB, needs %d MB with its engine; try again when one of them has gone to sleep, or delete one",
				promised>>20, n.pledges.most>>20, c.Memory>>20, need>>20)
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

// account makes the pledges agree with where the memory of the machine is.
// Preconditions: the turn is held, or nobody else has the box yet.
func (b *Box) account() {
	b.mu.Lock()
	m := b.machine
	b.mu.Unlock()
	if m == nil || m.Tier() >= machine.Swapped {
		b.n.pledges.release(b.made.config.ID)
		return
	}
	b.n.pledges.note(b.made.config.ID, b.n.need(b.made.config))
}
