package node

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dozehq/doze"
	"github.com/dozehq/doze/internal/agentapi"
	"github.com/dozehq/doze/internal/fleet"
)

const (
	// collectDelay is when the node first asks a sandbox that woke for output, so that
	// nothing is in the way of what woke it. It is half of the time until a pause at most.
	collectDelay = 500 * time.Millisecond
	// collectPause is between two collections at least: small lines come together.
	collectPause = 100 * time.Millisecond
	// collectRate and collectBurst bound the output of a sandbox that is stored, in bytes
	// per second and at once. What is more stays with the agent, which forgets the
	// oldest.
	collectRate  = 128 << 10
	collectBurst = 4 << 20
	// chunkCost is what a chunk costs besides its text, in bytes.
	chunkCost = 128
	// collectRetryMax is the longest pause after a collection that did not work.
	collectRetryMax = 30 * time.Second
	// collectorsMax bounds the answers that a node reads at a time: a hostile agent
	// sends a megabyte.
	collectorsMax = 4
	// lastCollect bounds what a sandbox that is deleted, or asked for, waits for its
	// last lines.
	lastCollect = 300 * time.Millisecond
	// freshRounds bounds the collections before an answer about logs.
	freshRounds = 4
)

// oldAgentMessage is what the log of a sandbox with an older agent says.
const oldAgentMessage = "the output of this sandbox is not stored, since its agent is older than that: a redeploy brings the agent of this platform. Until then GET /process/{id}/logs has the output"

// A Logbook has what sandboxes wrote.
type Logbook interface {
	// Stamp is that of the newest output that is stored of a machine.
	Stamp(ctx context.Context, machine string) (int64, error)
	// Append stores output that an agent sent, but for what is stored already.
	Append(ctx context.Context, machine, workspace, name string, c agentapi.Collected) error
	// Notice begins the log of a machine with a warning, unless it has one.
	Notice(ctx context.Context, machine, workspace, name, message string) error
	Lines(ctx context.Context, q fleet.LogQuery) (fleet.LogPage, error)
	End(ctx context.Context, all []fleet.EndedLog) error
	Drop(ctx context.Context, workspace string) error
	// Uses returns what each log takes of the disk.
	Uses() []fleet.DiskUse
}

// Logs implements [fleet.Node].
func (n *Node) Logs(ctx context.Context, q fleet.LogQuery) (fleet.LogPage, error) {
	if n.Logbook == nil {
		return q.Page(nil, nil), nil
	}
	for _, b := range n.all() {
		if b.order.Workspace == q.Workspace && b.order.Name == q.Name {
			b.logs.fresh(ctx)
		}
	}
	return n.Logbook.Lines(ctx, q)
}

// EndLogs implements [fleet.Node].
func (n *Node) EndLogs(ctx context.Context, all []fleet.EndedLog) error {
	if n.Logbook == nil {
		return nil
	}
	return n.Logbook.End(ctx, all)
}

// DropLogs implements [fleet.Node].
func (n *Node) DropLogs(ctx context.Context, workspace string) error {
	if n.Logbook == nil {
		return nil
	}
	return n.Logbook.Drop(ctx, workspace)
}

// collector carries the output of a box from its agent to the logbook, while the box
// runs. It holds nobody awake: every sleep ends its requests, and the agent has what was
// not collected until the next wake.
type collector struct {
	b *Box

	serving bool // guarded by mu of the box; run is under way
	refused bool // guarded by mu of the box; the agent does not know how

	mu   sync.Mutex
	paid time.Time // guarded by mu; until when the output that came is paid for by the rate
}

// serve begins to collect if the box runs. Preconditions: mu of the box is held.
func (c *collector) serve() {
	if c.b.n.Logbook == nil || c.b.hidden() || c.serving || c.refused || !c.b.state.Is(doze.Running) {
		return
	}
	c.serving = c.b.life.spawn(c.run)
}

// goesOn reports whether the box runs. If not, the next wake may begin again.
func (c *collector) goesOn() bool {
	c.b.mu.Lock()
	defer c.b.mu.Unlock()
	if c.b.state.Is(doze.Running) && c.b.life.Err() == nil && !c.refused {
		return true
	}
	c.serving = false
	return false
}

func (c *collector) run() {
	wait := min(collectDelay, c.b.n.PauseAfter/2)
	for failures := 0; ; {
		select {
		case <-time.After(wait):
		case <-c.b.life.Done():
		}
		if !c.goesOn() {
			return
		}
		more, err := c.collect(c.b.life)
		if err == nil && !more {
			err = c.await(c.b.life)
		}
		if err != nil {
			failures++
			c.heed(err)
			wait = min(collectPause<<min(failures, 16), collectRetryMax)
			continue
		}
		failures = 0
		wait = max(collectPause, c.owes())
	}
}

// heed takes note of what an agent answered. One that is too old is not asked again.
func (c *collector) heed(err error) {
	refusal, ok := errors.AsType[*agentapi.RefusalError](err)
	if !ok || refusal.Status != http.StatusNotFound {
		slog.Debug("output is not collected", "sandbox", c.b.order.UID, "err", err)
		return
	}
	c.b.mu.Lock()
	c.refused = true
	c.b.mu.Unlock()
	o := &c.b.order
	if err := c.b.n.Logbook.Notice(c.b.life, o.UID, o.Workspace, o.Name, oldAgentMessage); err != nil {
		slog.Warn("a log could not be begun", "sandbox", o.UID, "err", err)
	}
}

// await waits for output that is not stored.
func (c *collector) await(ctx context.Context) error {
	stamp, err := c.b.n.Logbook.Stamp(ctx, c.b.order.UID)
	if err != nil {
		return err
	}
	return c.b.agent().AwaitLogs(ctx, stamp)
}

// collect stores what there is, up to a bound, and reports whether there was anything.
func (c *collector) collect(ctx context.Context) (more bool, err error) {
	select {
	case c.b.n.collectors <- struct{}{}:
		defer func() { <-c.b.n.collectors }()
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
	o := &c.b.order
	stamp, err := c.b.n.Logbook.Stamp(ctx, o.UID)
	if err != nil {
		return false, err
	}
	out, err := c.b.agent().Collect(ctx, stamp)
	if err != nil {
		return false, err
	}
	size := 0
	for _, chunk := range out.Chunks {
		size += len(chunk.Text) + chunkCost
	}
	c.pay(size)
	return size > 0, c.b.n.Logbook.Append(ctx, o.UID, o.Workspace, o.Name, out)
}

// pay counts bytes that were stored.
func (c *collector) pay(size int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if rested := time.Now().Add(-time.Second * collectBurst / collectRate); c.paid.Before(rested) {
		c.paid = rested
	}
	c.paid = c.paid.Add(time.Duration(size) * time.Second / collectRate)
}

// owes is how long nothing is collected, so that a sandbox that always writes gets no
// more than its rate.
func (c *collector) owes() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, time.Until(c.paid))
}

// fresh stores what a running box has just written, within a moment. It does not
// matter if that does not work: the lines come later.
func (c *collector) fresh(ctx context.Context) {
	c.b.mu.Lock()
	running := c.b.state.Is(doze.Running) && !c.refused && !c.b.hidden()
	c.b.mu.Unlock()
	if c.b.n.Logbook == nil || !running {
		return
	}
	ctx, stop := c.b.life.bound(ctx)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, lastCollect)
	defer cancel()
	for range freshRounds {
		if c.owes() > 0 {
			return
		}
		if more, err := c.collect(ctx); !more || err != nil {
			return
		}
	}
}
